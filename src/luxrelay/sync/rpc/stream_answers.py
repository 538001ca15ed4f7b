"""`AnsweringStream`: RelaySync's calls answered over a stream that is not gRPC's.

The same servicer answers, with the same turns, rates and counters, so a peer has one share whatever
it asks through. What gRPC gives a servicer, `StreamContext` gives here.

Source: decisions J5, P33, P34, P37; retention document, "Sync Soft-Filter".
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Never

import grpc
from google.protobuf.message import DecodeError

from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.reading import SyncServicer
from luxrelay.sync.rpc.stream_kinds import END, NAMES, PART, REQUESTS, StreamKind, refusal


class _Ended(Exception):  # noqa: N818 - no error: how a servicer leaves a call
    """The servicer has ended the call with a status."""


class StreamContext(grpc.ServicerContext):
    """What a servicer asks of gRPC, for one question of a peer.

    Args:
        peer: Its name; its share of the relay is under it.
        answer_s: Seconds until the answer must be complete.
        host: Its address, which pays for its questions; a peer identity costs nothing.

    """

    def __init__(self, peer: str, answer_s: float, host: str = "") -> None:
        self._peer = peer
        self.remote_host = host
        """Where the peer is connected from."""
        self._until = time.monotonic() + answer_s
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] | None = []
        self.code: grpc.StatusCode = grpc.StatusCode.OK
        """How the call ended."""
        self.text = ""
        """Why."""

    def renew(self, answer_s: float) -> None:
        """Begin the time for an answer anew: one call may have many questions."""
        self._until = time.monotonic() + answer_s

    def peer(self) -> str:
        """Return the peer in gRPC's form: kind, name, port."""
        return f"libp2p:{self._peer}:0"

    def time_remaining(self) -> float:
        """Return the seconds left."""
        return max(0.0, self._until - time.monotonic())

    def abort(self, code: grpc.StatusCode, details: str) -> Never:
        """End the call; does not return."""
        self.code, self.text = code, details
        raise _Ended

    def cancel(self) -> bool:
        """End the call, from any thread; whoever waits for it is let go."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback()
        return callbacks is not None

    def is_active(self) -> bool:
        """Return False once it has been cancelled."""
        return self._callbacks is not None

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Have something called at the end; False when the end has been."""
        with self._lock:
            if self._callbacks is None:
                return False
            self._callbacks.append(callback)
            return True

    def auth_context(self) -> dict[str, Any]:
        """Return nothing: the peer's name is its proven key already."""
        return {}

    def invocation_metadata(self) -> Any:
        """Return nothing."""
        return ()

    def peer_identities(self) -> Any:
        """Return nothing."""
        return None

    def peer_identity_key(self) -> Any:
        """Return nothing."""
        return None

    def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Send nothing: there is none here."""

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Send nothing: there is none here."""

    def abort_with_status(self, status: Any) -> Never:
        """End the call; does not return."""
        self.abort(status.code, status.details)

    def set_code(self, code: grpc.StatusCode) -> None:
        """Note how the call ends."""
        self.code = code

    def set_details(self, details: str) -> None:
        """Note why."""
        self.text = details


class _Questions:
    """The requests of one reconciliation, as they come in; the servicer takes them one by one."""

    def __init__(self) -> None:
        self.waiting: deque[pb.ReconcileRequest] = deque()

    def __iter__(self) -> Iterator[pb.ReconcileRequest]:
        return self

    def __next__(self) -> pb.ReconcileRequest:
        if not self.waiting:
            raise StopIteration
        return self.waiting.popleft()


class AnsweringStream:
    """Answers the questions of one stream, one after another; may be called from changing threads.

    Args:
        servicer: Who answers.
        peer: Name of the peer.
        answer_s: Seconds for one answer.
        host: Its address.

    """

    def __init__(self, servicer: SyncServicer, peer: str, answer_s: float, host: str = "") -> None:
        self._servicer = servicer
        self._host = host
        self._peer = peer
        self._answer_s = answer_s
        self._context: StreamContext | None = None
        self._asked = _Questions()
        self._replies: Iterator[pb.ReconcileReply] | None = None
        self._reconciling: StreamContext | None = None

    def answer(self, question: bytes) -> Iterator[bytes]:
        """Yield the frames of the answer; the last one is the end or a refusal."""
        try:
            kind = StreamKind(question[0])
            request = REQUESTS[kind].FromString(question[1:])
        except (IndexError, ValueError, DecodeError):
            yield refusal(grpc.StatusCode.INVALID_ARGUMENT, "the question cannot be read")
            return
        if kind is StreamKind.RECONCILE:
            yield from self._reconcile(request)
            return
        context = self._context = StreamContext(self._peer, self._answer_s, self._host)
        try:
            found = getattr(self._servicer, NAMES[kind])(request, context)
            for part in found if isinstance(found, Iterator) else (found,):
                yield PART + (part if isinstance(part, bytes) else part.SerializeToString())
        except _Ended:
            yield refusal(context.code, context.text)
            return
        finally:
            context.cancel()
        yield END

    def _reconcile(self, request: pb.ReconcileRequest) -> Iterator[bytes]:
        """Yield the reply to one message; a request with a method begins a new reconciliation."""
        if request.method:
            self._end_reconciling()
        if self._replies is None:
            context = self._reconciling = StreamContext(self._peer, self._answer_s, self._host)
            self._replies = iter(self._servicer.Reconcile(self._asked, context))
        assert self._reconciling is not None, "it comes with the replies"
        context = self._context = self._reconciling
        context.renew(self._answer_s)
        self._asked.waiting.append(request)
        try:
            reply = next(self._replies, None)
        except _Ended:
            reply = None
        if reply is None:
            yield refusal(context.code, context.text)
            self._end_reconciling()
            return
        yield PART + reply.SerializeToString()
        yield END

    def _end_reconciling(self) -> None:
        self._asked.waiting.clear()
        replies, self._replies = self._replies, None
        if replies is not None:
            replies.close()  # type: ignore[attr-defined]  # a generator
        if self._reconciling is not None:
            self._reconciling.cancel()

    def cancel(self) -> None:
        """Let a thread go that waits in an answer; the peer has left. Any thread."""
        for context in (self._context, self._reconciling):
            if context is not None:
                context.cancel()

    def close(self) -> None:
        """Give back what a reconciliation holds; no answer is under way any more."""
        self._end_reconciling()
