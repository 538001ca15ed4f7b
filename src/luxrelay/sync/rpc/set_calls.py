"""`SetCalls`: a client's questions about a relay's message set.

Source: decisions P22, P26, P28, J11.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import islice

import grpc

from luxrelay.bus import constants as c
from luxrelay.bus.header import ContentId, NamespaceId
from luxrelay.errors import ReconcileError
from luxrelay.sync.held import HeldLane, from_steps
from luxrelay.sync.messages import WireMessage
from luxrelay.sync.negentropy import Initiator
from luxrelay.sync.reconcile import TreeInitiator
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.config import IDS_MAX, require, require_id
from luxrelay.sync.rpc.connection import RelayConnection, Streaming
from luxrelay.sync.rpc.frames import to_message
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncStub
from luxrelay.sync.rpc.scope import CallScope

_Questions = queue.SimpleQueue[pb.ReconcileRequest | None]


class SetCalls(RelayConnection):
    """The calls of RelaySync that compare sets."""

    def list_held(
        self, parent: bytes | None = None, *, scope: CallScope | None = None
    ) -> Generator[HeldLane, None, None]:
        """Yield which sequences the relay holds, for a parent and its lanes or every namespace.

        Raises (while iterating):
            SyncArgumentError: the parent has not 20 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used, or more than ``heads_max`` namespaces.

        Source: P26.

        """
        if parent is not None:
            require_id("parent", parent, c.NAMESPACE_BYTES)
        cursor, count, pace = b"", 0, self._pace()
        while True:
            request = pb.ListHeldRequest(
                parent_id=parent or b"", cursor=cursor, limit=self.config.heads_page
            )
            following = b""
            for frame in self._held_page(request, scope):
                count += 1
                if count > self.config.heads_max:
                    raise self._too_much(f"{self.config.heads_max} namespaces", "heads_max")
                following = frame.next_cursor
                pace.brought(1, self.address)
                yield self._lane(frame, parent)
                pace.waits()
            if not following:
                return
            if following == cursor:
                raise self._bad("the cursor does not move on")
            cursor = following

    def _held_page(
        self, request: pb.ListHeldRequest, scope: CallScope | None
    ) -> Iterator[pb.HeldNamespace]:
        timeout = self.config.call_s
        return self._stream(
            lambda channel: RelaySyncStub(channel).ListHeld(request, timeout=timeout), scope
        )

    def _contents(self, request: pb.GetMessagesRequest) -> pb.GetMessagesResponse:
        timeout = self.config.call_s
        return self._unary(
            lambda channel: RelaySyncStub(channel).GetMessages(request, timeout=timeout)
        )

    def _lane(self, frame: pb.HeldNamespace, parent: bytes | None) -> HeldLane:
        of = frame.parent_id or frame.namespace_id
        if len(frame.namespace_id) != c.NAMESPACE_BYTES or len(of) != c.NAMESPACE_BYTES:
            raise self._bad("an interval list with an id that has not 20 bytes")
        if parent is not None and of != parent:
            raise self._bad("an interval list of another parent")
        try:
            spans = from_steps(list(islice(frame.steps, 2 * self.config.gaps_max + 2)))
        except ValueError as error:
            raise self._bad(str(error)) from None
        return HeldLane(
            namespace_id=NamespaceId(frame.namespace_id),
            parent_id=NamespaceId(of),
            spans=spans,
            wire_bytes=frame.ByteSize(),
            cut=frame.cut or len(frame.steps) > 2 * self.config.gaps_max + 2,
        )

    def get_digests(self, namespace_id: bytes, first_block: int, blocks: int) -> list[bytes]:
        """Return digests of blocks of 256 sequences; an empty one where nothing is held.

        Args:
            namespace_id: 20 bytes.
            first_block: Block *b* holds the sequences 256 *b* + 1 to 256 *b* + 256.
            blocks: How many, 64 at most at a relay with the defaults.

        Raises:
            SyncArgumentError: the id has not 20 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used.

        Source: P26.

        """
        require_id("namespace_id", namespace_id, c.NAMESPACE_BYTES)
        require("first_block", first_block, 0, 2**56)
        require("blocks", blocks, 1, 4_096)
        request = pb.DigestsRequest(
            namespace_id=namespace_id, first_block=first_block, blocks=blocks
        )
        answer = self._unary(
            lambda channel: RelaySyncStub(channel).GetDigests(request, timeout=self.config.page_s)
        )
        digests = list(answer.digests)
        if len(digests) != blocks or any(len(each) not in {0, c.HASH_BYTES} for each in digests):
            raise self._bad("digests of other blocks")
        return digests

    def get_contents(
        self, content_ids: Sequence[bytes], *, scope: CallScope | None = None
    ) -> tuple[list[WireMessage], list[ContentId]]:
        """Return the messages with up to 1,000 content ids, and the ids the relay does not hold.

        Asks again for what did not fit into one answer. Whether a message has the content id that
        was asked for is seen when it is decoded: its receiver checks that.

        Raises:
            SyncArgumentError: more than 1,000 ids, or an id that has not 32 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used.

        Source: J11.

        """
        require("len(content_ids)", len(content_ids), 0, IDS_MAX)
        for each in content_ids:
            require_id("content_id", each, c.HASH_BYTES)
        found: list[WireMessage] = []
        missing: list[ContentId] = []
        wanted = list(dict.fromkeys(content_ids))
        while wanted and not (scope is not None and scope.cancelled):
            request = pb.GetMessagesRequest(content_ids=wanted)
            answer = self._contents(request)
            told = len(answer.found) + len(answer.missing) + len(answer.omitted)
            if told != len(wanted) or len(answer.omitted) >= len(wanted):
                raise self._bad("the ids of the answer are not the ids asked for")
            if not set(wanted).issuperset((*answer.missing, *answer.omitted)):
                raise self._bad("the ids of the answer are not the ids asked for")
            try:
                found += [to_message(message) for message in answer.found]
            except ValueError as error:
                raise self._bad(str(error)) from None
            missing += [ContentId(each) for each in answer.missing]
            wanted = list(answer.omitted)
        return found, missing

    def reconcile(
        self,
        initiator: Initiator | TreeInitiator,
        *,
        parent: bytes | None = None,
        from_ms: int = 0,
        to_ms: int = 0,
        scope: CallScope | None = None,
    ) -> tuple[int, int]:
        """Run a reconciliation to its end; what it found is in the initiator.

        Args:
            initiator: One that has not begun. Its kind is the method.
            parent: Compare this namespace and its lanes; None for everything, which a tree always
                compares.
            from_ms: Lowest timestamp compared, Unix milliseconds; 0 for no bound.
            to_ms: Highest timestamp compared; 0 for no bound.
            scope: Lets another thread cancel the call.

        Returns:
            Bytes sent and received.

        Raises:
            SyncArgumentError: the parent has not 20 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used.

        Source: J4, J5.

        """
        if parent is not None:
            require_id("parent", parent, c.NAMESPACE_BYTES)
        waiting: _Questions = queue.SimpleQueue()
        until = time.monotonic() + self.config.reconcile_s

        def asked(questions: _Questions) -> Iterator[pb.ReconcileRequest]:
            """Yield the questions; whoever takes them does not wait beyond the deadline."""
            with suppress(queue.Empty):
                while request := questions.get(timeout=max(0.0, until - time.monotonic())):
                    yield request

        def begin(channel: grpc.Channel) -> Streaming[pb.ReconcileReply]:
            """Ask the first question, of a relay that was busy anew."""
            nonlocal waiting
            waiting.put(None)
            waiting = queue.SimpleQueue()
            waiting.put(first)
            return RelaySyncStub(channel).Reconcile(asked(waiting), timeout=timeout)

        ranges = isinstance(initiator, Initiator)
        first = pb.ReconcileRequest(
            method=pb.RECONCILE_METHOD_RANGES if ranges else pb.RECONCILE_METHOD_TREE,
            parent_id=parent or b"",
            from_timestamp=from_ms,
            to_timestamp=to_ms,
            payload=initiator.start(),
        )
        sent, received = first.ByteSize(), 0
        timeout = self.config.reconcile_s
        answers = self._stream(
            begin,
            scope,
        )
        try:
            for answer in answers:
                received += answer.ByteSize()
                payload = initiator.receive(answer.payload)
                if payload is None:
                    return sent, received
                request = pb.ReconcileRequest(payload=payload)
                sent += request.ByteSize()
                waiting.put(request)
        except ReconcileError as error:
            raise self._bad(error.what) from None
        finally:
            waiting.put(None)
            answers.close()
        raise self._bad("the stream ended in the middle of a reconciliation")

    def get_blob(self, commitment: bytes, *, deadline_s: float | None = None) -> bytes | None:
        """Return what the relay says is the blob of a commitment; None when it has none.

        Nothing is verified here: the receiver checks length and commitment.

        Raises:
            SyncArgumentError: the commitment has not 32 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used, or a blob above 2 MiB.

        Source: LP-6421 §5.2, P28.

        """
        require_id("commitment", commitment, c.HASH_BYTES)
        request = pb.GetBlobRequest(commitment=commitment)
        timeout = deadline_s or self.config.call_s
        answer = self._unary(
            lambda channel: RelaySyncStub(channel).GetBlob(request, timeout=timeout)
        )
        if len(answer.blob) > c.MAX_BLOB_BYTES or (answer.blob and not answer.found):
            raise self._bad(f"a blob of {len(answer.blob)} bytes")
        return answer.blob if answer.found else None
