"""Deadlines of waits for a relay, by a clock of ours beside gRPC's.

Theory of operation
  gRPC ends a call at its deadline, when it is cancelled and when its channel is closed - unless its
  core loses the event, as after a GOAWAY; then the thread that waits in it waits for ever, and
  closing the channel waits for that thread. So nobody waits inside gRPC here: a call's frames are
  taken by a thread of its own (a daemon) and handed over one by one, and the caller waits for them
  with a deadline a little behind gRPC's. What was cancelled or is late is left to itself.
  *Bounds*: a stream holds ``FRAMES_AHEAD`` frames that the caller has not taken; ``STUCK_MAX``
  threads may be left behind in the process, and while there are that many no call is begun.
  *Pace*: `Pace` is for what is asked in many calls, each in time: it must bring a certain number of
  rows a second beside a grace.

Source: decisions P24, P37; architecture, rule 4.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Self, TypeVar

import grpc

from luxrelay.errors import SyncUnreachableError
from luxrelay.sync.rpc.faults import CallFault

_Call = TypeVar("_Call")
MARGIN_S: Final = 1.0
"""How long after gRPC's own deadline a call is given up, seconds: gRPC's word says more."""
CLOSE_S: Final = 1.0
"""How long closing a channel is waited for, seconds; then it goes on alone."""
FRAMES_AHEAD: Final = 2
"""Frames of a stream that are read before they are asked for; 4 MiB each at most."""
STUCK_MAX: Final = 64
"""Threads that may hang in gRPC at once; further calls fail while there are that many."""


class Pace:
    """What is asked in many calls has to come at a certain pace; only waiting counts.

    Args:
        grace_s: Seconds of waiting that are free.
        rows_per_s: Rows that pay for one further second.
        clock: Monotonic seconds.

    """

    def __init__(
        self, grace_s: float, rows_per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._grace_s, self._rows_per_s, self._clock = grace_s, rows_per_s, clock
        self._began = clock()
        self._waited_s = 0.0
        self._rows = 0

    def waits(self) -> None:
        """Begin to wait for the relay; so does a new pace."""
        self._began = self._clock()

    def brought(self, rows: int, address: str) -> None:
        """Note what a wait brought; until `waits` the time is the caller's own.

        Raises:
            SyncUnreachableError: all in all it is too little.

        """
        self._waited_s += self._clock() - self._began
        self._rows += rows
        if self._waited_s > self._grace_s + self._rows / self._rows_per_s:
            raise SyncUnreachableError(
                f"the relay is too slow: {self._rows:,} rows in {self._waited_s:.0f} s",
                where=address,
            )


class _Stuck:
    """Counts the threads of this process that hang in gRPC."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[threading.Thread] = []

    def leave(self, thread: threading.Thread) -> None:
        with self._lock:
            self._left.append(thread)

    def count(self) -> int:
        with self._lock:
            self._left = [each for each in self._left if each.is_alive()]
            return len(self._left)


_STUCK: Final = _Stuck()


def stuck_threads() -> int:
    """Return how many threads of this process were left behind in a call and still hang."""
    return _STUCK.count()


class _Pump:
    """One call: a thread takes its frames, the caller waits for them with a deadline."""

    def __init__(
        self,
        call: Any,
        timeout_s: float | None,
        broken: Callable[[], object],
        forget: Callable[[_Pump], object],
        name: str,
    ) -> None:
        self._call = call
        self._name, self._timeout_s = name, timeout_s
        self.silence_s: float | None = None
        """Longest wait for one frame, seconds."""
        self._until = None if timeout_s is None else time.monotonic() + timeout_s + MARGIN_S
        self._broken = broken
        self._forget = forget
        self._changed = threading.Condition()
        self._frames: deque[Any] = deque()
        self._over = False
        self._error: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._take, name="luxrelay-grpc-call", daemon=True)

    def start(self) -> None:
        """Begin to take frames."""
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        while (found := self._next()) is not None:
            yield found[0]

    def _next(self) -> tuple[Any] | None:
        silent_at = None if self.silence_s is None else time.monotonic() + self.silence_s
        with self._changed:
            while not self._frames:
                if self._ended:
                    raise CallFault(grpc.StatusCode.CANCELLED, "the call was ended here")
                if self._over:
                    if isinstance(self._error, grpc.RpcError):
                        raise _told(self._error, self._name, self._timeout_s) from None
                    if self._error is not None:
                        raise self._error
                    return None
                ends = [each for each in (self._until, silent_at) if each is not None]
                left = min(ends) - time.monotonic() if ends else None
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            if self._frames:
                frame = self._frames.popleft()
                self._changed.notify_all()
                return (frame,)
        if silent_at is not None and time.monotonic() >= silent_at:
            self.cancel()
            words = f"{self._name} brought nothing for {self.silence_s:.3g} s (silence_s)"
            raise CallFault(grpc.StatusCode.DEADLINE_EXCEEDED, words)
        self._broken()
        self.cancel()
        raise CallFault(grpc.StatusCode.DEADLINE_EXCEEDED, f"gRPC did not end {self._name}")

    def cancel(self) -> bool:
        """End the call; who waits for it is let go at once, and so is its thread."""
        with self._changed:
            running = not self._over and not self._ended
            self._ended = True
            self._frames.clear()
            self._changed.notify_all()
        if running:
            _STUCK.leave(self._thread)  # until it has ended, in a moment as a rule
            self._call.cancel()
        self._forget(self)
        return True

    def _take(self) -> None:
        error: BaseException | None = None
        try:
            for frame in self._call:
                with self._changed:
                    while len(self._frames) >= FRAMES_AHEAD and not self._ended:
                        self._changed.wait()
                    if self._ended:
                        return
                    self._frames.append(frame)
                    self._changed.notify_all()
        except BaseException as caught:  # noqa: BLE001 - raised where the frames are wanted
            error = caught
        finally:
            with self._changed:
                self._over, self._error = True, error
                self._changed.notify_all()
            self._forget(self)


def beating(call: _Call, silence_s: float | None) -> _Call:
    """Return a stream that is given up when nothing comes for so long, seconds; None for ever."""
    if silence_s is not None and isinstance(call, _Pump):
        call.silence_s = silence_s
    return call


class PatientChannel(grpc.Channel):
    """A channel on whose calls nobody waits longer than they may take.

    Args:
        channel: gRPC's own.
        broken: Told that gRPC did not end a call in time: the channel is not to be believed.

    """

    def __init__(self, channel: grpc.Channel, broken: Callable[[], object] = bool) -> None:
        self._channel = channel
        self._broken = broken
        self._lock = threading.Lock()
        self._open: set[_Pump] = set()

    def unary_unary(self, *args: Any, **options: Any) -> Callable[..., Any]:  # type: ignore[override]  # what a stub gives
        """Return a call of one question and one response."""
        inner, name = self._channel.unary_unary(*args, **options), _name(args[0])

        def call(request: Any, timeout: float | None = None) -> Any:
            _require_room()
            answer = inner.future(request, timeout=timeout)
            try:
                return answer.result(None if timeout is None else timeout + MARGIN_S)
            except grpc.FutureTimeoutError:
                self._broken()
                answer.cancel()
                raise CallFault(
                    grpc.StatusCode.DEADLINE_EXCEEDED, f"gRPC did not end {name}"
                ) from None
            except grpc.RpcError as error:
                raise _told(error, name, timeout) from None
            except grpc.FutureCancelledError:
                raise CallFault(grpc.StatusCode.CANCELLED, "the call was ended here") from None

        return call

    def unary_stream(self, *args: Any, **options: Any) -> Callable[..., Any]:  # type: ignore[override]  # what a stub gives
        """Return a call of one question and many responses."""
        return self._pumped(self._channel.unary_stream(*args, **options), _name(args[0]))

    def stream_stream(self, *args: Any, **options: Any) -> Callable[..., Any]:  # type: ignore[override]  # what a stub gives
        """Return a call of many questions and many responses."""
        return self._pumped(self._channel.stream_stream(*args, **options), _name(args[0]))

    def stream_unary(self, *args: Any, **options: Any) -> Callable[..., Any]:  # type: ignore[override]  # what a stub gives
        """Refuse it: no call of ours is of this form."""
        del args, options
        raise CallFault(grpc.StatusCode.UNIMPLEMENTED, "no call of this form is waited for here")

    def _pumped(self, inner: Callable[..., Any], name: str) -> Callable[..., _Pump]:
        def call(request: Any, timeout: float | None = None) -> _Pump:
            _require_room()
            call = inner(request, timeout=timeout)
            pump = _Pump(call, timeout, self._broken, self._forget, name)
            with self._lock:
                self._open.add(pump)
            pump.start()
            return pump

        return call

    def _forget(self, pump: _Pump) -> None:
        with self._lock:
            self._open.discard(pump)

    def subscribe(self, *args: Any, **options: Any) -> None:
        """Have a callback told of the connection's state."""
        self._channel.subscribe(*args, **options)

    def unsubscribe(self, *args: Any, **options: Any) -> None:
        """Forget a callback."""
        self._channel.unsubscribe(*args, **options)

    def close(self) -> None:
        """End every call; gRPC's own close, which waits for them, is waited for a moment only."""
        with self._lock:
            pumps = list(self._open)
        for pump in pumps:
            pump.cancel()
        closing = threading.Thread(
            target=self._channel.close, name="luxrelay-grpc-close", daemon=True
        )
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            _STUCK.leave(closing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _name(method: str | bytes) -> str:
    """Return a call's name without its service."""
    text = method.decode() if isinstance(method, bytes) else method
    return text.rpartition("/")[2]


def _told(error: grpc.RpcError, name: str, timeout_s: float | None) -> grpc.RpcError:
    """Return the error; of a call that ran out of time with what was waited for, and how long."""
    if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED or timeout_s is None:
        return error
    return CallFault(error.code(), f"{name} had {timeout_s:.3g} s; {error.details() or ''}")


def _require_room() -> None:
    """Return unless too many threads hang.

    Raises:
        CallFault: they do.

    """
    hanging = _STUCK.count()
    if hanging >= STUCK_MAX:
        raise CallFault(
            grpc.StatusCode.UNAVAILABLE,
            f"{hanging} calls hang in gRPC; restart the program if this lasts",
        )
