"""`StreamClient`: a `RelaySyncClient` over a stream that is not gRPC's.

`StreamChannel` has the shape of gRPC's channel, so that every check on what a relay says is the
same whatever carries it.

Source: decisions J5, P37.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, Final, Protocol, Self

import grpc
from google.protobuf.message import DecodeError

from luxrelay.sync.rpc.client import RelaySyncClient
from luxrelay.sync.rpc.config import SyncClientConfig
from luxrelay.sync.rpc.faults import CallFault
from luxrelay.sync.rpc.stream_kinds import CODES, END, NAMES, PART, REFUSED

_KINDS: Final = {name: kind for kind, name in NAMES.items()}
UNTIMED_S: Final = 60.0
"""Longest silence of a call that names none, seconds."""


class CarrierError(Exception):
    """The stream is gone, silent, or brings what is no answer.

    Args:
        text: What happened.
        late: The time was over.
        unusable: The peer's bytes were no answer; everything else says nothing against it.

    """

    def __init__(self, text: str, *, late: bool = False, unusable: bool = False) -> None:
        super().__init__(text)
        self.code = (
            grpc.StatusCode.DEADLINE_EXCEEDED
            if late
            else grpc.StatusCode.DATA_LOSS
            if unusable
            else grpc.StatusCode.UNAVAILABLE
        )


class Carrier(Protocol):
    """Carries a question to a relay and its answer back; one at a time."""

    def ask(self, question: bytes, timeout_s: float) -> Iterator[bytes]:
        """Yield the frames of the answer; the caller stops at its end.

        The time is that of the longest silence, not of the whole (P46).

        Raises:
            CarrierError: there is no whole answer.

        """
        ...

    def drop(self) -> None:
        """Forget the stream: the rest of an answer is not wanted. Any thread."""
        ...


class _Answer:
    """The responses of one call, as gRPC gives them: an iterator that may be cancelled."""

    def __init__(self, parts: Iterator[Any], drop: Callable[[], None]) -> None:
        self._parts = parts
        self._drop = drop
        self._over = False

    def __iter__(self) -> Iterator[Any]:
        yield from self._parts
        self._over = True

    def cancel(self) -> bool:
        """End the call."""
        if not self._over:
            self._over = True
            self._drop()
        return True


class StreamChannel(grpc.Channel):
    """Makes calls over a carrier; threads wait for each other."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._busy = threading.Lock()

    def unary_unary(  # type: ignore[override]  # what a stub gives
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., Any]:
        """Return a call of one question and one response."""

        def call(request: Any, timeout: float) -> Any:
            parts = list(
                self._ask(method, request_serializer(request), response_deserializer, timeout)
            )
            return _one(parts)

        return call

    def unary_stream(  # type: ignore[override]  # what a stub gives
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., Any]:
        """Return a call of one question and many responses."""

        def call(request: Any, timeout: float = UNTIMED_S) -> _Answer:
            data = request_serializer(request)
            parts = self._ask(method, data, response_deserializer, timeout)
            return _Answer(parts, self._carrier.drop)

        return call

    def stream_stream(  # type: ignore[override]  # what a stub gives
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., Any]:
        """Return a call of many questions, each with one response, in turns."""

        def turns(requests: Iterable[Any], timeout: float) -> Iterator[Any]:
            for request in requests:
                data = request_serializer(request)
                # To its end: who has what it wanted looks no further, and the stream goes on.
                parts = list(self._ask(method, data, response_deserializer, timeout))
                # Without a response nobody would ask on, and this thread wait for the question.
                yield _one(parts)

        def call(requests: Iterable[Any], timeout: float) -> _Answer:
            return _Answer(turns(requests, timeout), lambda: None)

        return call

    def stream_unary(self, *_: Any, **__: Any) -> Any:
        """Refuse it: no call of RelaySync is of this form."""
        raise CallFault(grpc.StatusCode.UNIMPLEMENTED, "not over this stream")

    def subscribe(self, *_: Any, **__: Any) -> None:
        """No state to tell of."""

    def unsubscribe(self, *_: Any, **__: Any) -> None:
        """No state to tell of."""

    def close(self) -> None:
        """Forget the stream."""
        self._carrier.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self, method: str, request: bytes, deserialize: Callable[[bytes], Any], timeout: float
    ) -> Iterator[Any]:
        kind = _KINDS.get(method.rpartition("/")[2])
        if kind is None:
            raise CallFault(grpc.StatusCode.UNIMPLEMENTED, "not over this stream")
        with self._busy:
            try:
                frames = self._carrier.ask(bytes([kind]) + request, timeout)
                with closing(frames):  # type: ignore[type-var]  # a generator
                    yield from _parts(frames, deserialize)
            except CarrierError as error:
                raise CallFault(error.code, str(error)) from None


def _one(parts: list[Any]) -> Any:
    """Return the only response of an answer.

    Raises:
        CallFault: there is none, or another one.

    """
    if len(parts) != 1:
        raise CallFault(grpc.StatusCode.DATA_LOSS, f"{len(parts)} responses in place of one")
    return parts[0]


def _parts(frames: Iterator[bytes], deserialize: Callable[[bytes], Any]) -> Iterator[Any]:
    """Yield the responses of an answer.

    Raises:
        CarrierError: a frame is none of an answer.
        CallFault: the relay refused the question.

    """
    for frame in frames:
        first, rest = frame[:1], frame[1:]
        if first == PART:
            try:
                part = deserialize(rest)
            except DecodeError as error:
                raise CarrierError("a response cannot be read", unusable=True) from error
            yield part
        elif first == END and not rest:
            return
        elif first == REFUSED and rest:
            code = CODES.get(rest[0], grpc.StatusCode.UNKNOWN)
            raise CallFault(code, rest[1:].decode(errors="replace"))
        else:
            raise CarrierError("a frame that is no answer", unusable=True)
    raise CarrierError("the answer ended early")


class StreamClient(RelaySyncClient):
    """A relay reached over a stream.

    Args:
        name: What errors and reports call it: its peer id.
        carrier: How to reach it.
        config: Deadlines and sizes.

    """

    def __init__(self, name: str, carrier: Carrier, config: SyncClientConfig | None = None) -> None:
        super().__init__("stream:1", config=config)
        self.address = name
        self._over: grpc.Channel = StreamChannel(carrier)

    def _dial(self) -> grpc.Channel:
        return self._over

    def _patient(self, channel: grpc.Channel) -> grpc.Channel:
        """Return it as it is: a carrier has deadlines of its own."""
        return channel
