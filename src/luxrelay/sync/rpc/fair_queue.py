"""`Turnstile`: the fair queue for threads. Each call has one thread, which waits for its turn here.

Source: LP-6421 §6.1, §6.2; 21-40 to 21-42; decisions P33, P34.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from luxrelay.errors import SyncUnreachableError
from luxrelay.sync.fairness import FairnessConfig, FairQueue, Grant


@dataclass(slots=True)
class _Waiter:
    cancel: Callable[[], object]
    granted: threading.Event = field(default_factory=threading.Event)
    ended: bool = False


class QueuePassage:
    """One call's way through the turnstile; its thread alone uses it."""

    __slots__ = ("_call", "_turnstile")

    def __init__(self, turnstile: Turnstile, call: int) -> None:
        self._turnstile = turnstile
        self._call = call

    @contextmanager
    def turn(self) -> Iterator[TurnTaken]:
        """Wait until the call may read; what it read before has been taken by its reader.

        Raises:
            SyncUnreachableError: the call has ended meanwhile.

        """
        self._turnstile.wait(self._call)
        taken = TurnTaken()
        try:
            yield taken
        finally:
            self._turnstile.done(self._call, taken.size_bytes)

    def end(self) -> None:
        """Let a waiting thread go: the client has left or its time is over. Any thread."""
        self._turnstile.end(self._call)

    def close(self) -> None:
        """Leave."""
        self._turnstile.close(self._call)


class TurnTaken:
    """A turn while it lasts."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0
        """What was read."""

    def read(self, size_bytes: int) -> None:
        """Say how much was read."""
        self.size_bytes = size_bytes


class Turnstile:
    """Drives one `FairQueue`; one thread of its own waits for rates and stalled readers."""

    def __init__(self, config: FairnessConfig, *, name: str) -> None:
        self._queue = FairQueue(config, time.monotonic())
        self._name = name
        self._changed = threading.Condition()
        self._waiters: dict[int, _Waiter] = {}
        self._next = 0
        self._closed = False
        self._watcher: threading.Thread | None = None
        self.stalled = 0
        """Calls ended because their reader took nothing."""

    def enter(
        self, peer: str, cancel: Callable[[], object], *, weight: float = 1.0, limited: bool = True
    ) -> tuple[QueuePassage | None, str]:
        """Return a passage for a call that ``cancel`` ends, or None and why it is refused."""
        with self._changed:
            if self._closed:
                return None, "the relay is stopping"
            self._next += 1
            call = self._next
            why, after_s = self._queue.open(
                call, peer, weight=weight, limited=limited, now=time.monotonic()
            )
            if why:
                return None, f"{why}; ask again in {max(0.1, after_s):.1f} s"
            self._waiters[call] = _Waiter(cancel)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name=self._name, daemon=True)
                self._watcher.start()
        return QueuePassage(self, call), ""

    def wait(self, call: int) -> None:
        """Return when it is the call's turn.

        Raises:
            SyncUnreachableError: the call has been ended.

        """
        with self._changed:
            waiter = self._waiters[call]
            if not waiter.ended:
                waiter.granted.clear()
                self._queue.ask(call, time.monotonic())
                cancels = self._act()
        if not waiter.ended:
            _run(cancels)
            waiter.granted.wait()
        if waiter.ended:
            raise SyncUnreachableError("the call ended while it waited for its turn")

    def done(self, call: int, size_bytes: int) -> None:
        """End the call's turn."""
        with self._changed:
            if not self._waiters[call].ended:
                self._queue.done(call, size_bytes, time.monotonic())
            cancels = self._act()
        _run(cancels)

    def end(self, call: int) -> None:
        """Let the thread of a call go that waits, now or later."""
        with self._changed:
            waiter = self._waiters.get(call)
            if waiter is None or waiter.ended:
                return
            waiter.ended = True
            self._queue.close(call, time.monotonic())
            waiter.granted.set()
            cancels = self._act()
        _run(cancels)

    def close(self, call: int) -> None:
        """Forget a call."""
        with self._changed:
            self._waiters.pop(call, None)
            self._queue.close(call, time.monotonic())
            cancels = self._act()
        _run(cancels)

    def received(self, peer: str, size_bytes: int, *, limited: bool = True) -> float:
        """Charge published bytes; return the seconds to wait before more are taken."""
        with self._changed:
            return self._queue.received(peer, size_bytes, limited=limited, now=time.monotonic())

    @property
    def waiting(self) -> int:
        """Calls that wait for a turn now."""
        with self._changed:
            return self._queue.waiting

    @property
    def held_bytes(self) -> int:
        """Bytes read and not yet taken by their readers."""
        with self._changed:
            return self._queue.held_bytes

    def shut(self) -> None:
        """Admit nobody any more, let every waiting thread go, end the watcher."""
        with self._changed:
            self._closed = True
            calls = list(self._waiters)
            self._changed.notify()
        for call in calls:
            self.end(call)
        if self._watcher is not None:
            self._watcher.join()

    def _act(self) -> list[Callable[[], object]]:
        """Do what the queue asks; return how to end what has stalled, to be called unlocked."""
        cancels: list[Callable[[], object]] = []
        for action in self._queue.drain():
            waiter = self._waiters.get(action.call)
            if waiter is None:
                continue
            if isinstance(action, Grant):
                waiter.granted.set()
            else:
                self.stalled += 1
                cancels.append(waiter.cancel)
        self._changed.notify()
        return cancels

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                wake_at = self._queue.wake_at()
                now = time.monotonic()
                if wake_at is None or wake_at > now:
                    self._changed.wait(None if wake_at is None else wake_at - now)
                    continue
                self._queue.wake(now)
                cancels = self._act()
            _run(cancels)


def _run(cancels: list[Callable[[], object]]) -> None:
    for cancel in cancels:
        cancel()
