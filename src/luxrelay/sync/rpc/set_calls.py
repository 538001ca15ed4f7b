"""`SetCalls`: a client's questions about a relay's message set.

Source: decisions P22, P26, P28, J11.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

import grpc

from luxrelay.bus import constants as c
from luxrelay.bus.header import ContentId, NamespaceId
from luxrelay.errors import ReconcileError, SyncRemoteError, SyncUnreachableError
from luxrelay.sync.held import HeldLane, from_steps
from luxrelay.sync.messages import BlobAnswer, PageFlow, WireMessage
from luxrelay.sync.negentropy import Initiator
from luxrelay.sync.reconcile import TreeInitiator
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.config import IDS_MAX, require, require_id
from luxrelay.sync.rpc.connection import RelayConnection, Streaming
from luxrelay.sync.rpc.frames import to_message
from luxrelay.sync.rpc.patience import beating
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncStub
from luxrelay.sync.rpc.scope import CallScope
from luxrelay.sync.rpc.uplink import LATER_MAX_S

RESUMES_MAX: Final = 8
"""Times that one reading of a blob is gone on with."""
RESUMED_BYTES: Final = 64 * 1024
"""Bytes of a blob that are asked for at a time after a connection was lost."""
BARREN_MAX: Final = 3
"""Askings in a row that may bring nothing once an answer has begun: the one that was cut before
gRPC handed anything out, and those that began on its connection before that was known as lost."""
WHOLE_BLOB_S: Final = 150.0
"""Deadline of GetBlob at a relay that sends no parts, seconds: 2 MiB at 128 kbit/s and a little."""
_Parts = Generator[bytes, None, None]


def _nothing() -> _Parts:
    yield from ()


_Questions = queue.SimpleQueue[pb.ReconcileRequest | None]


class SetCalls(RelayConnection):
    """The calls of RelaySync that compare sets."""

    _whole_blobs = False
    """Whether the relay is known to send whole blobs only."""

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
        timeout = self.config.page_s
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

        Arguments and errors are those of `iter_contents`.
        """
        found: list[WireMessage] = []
        missing: list[ContentId] = []
        for some, absent in self.iter_contents(content_ids, scope=scope):
            found += some
            missing += absent
        return found, missing

    def iter_contents(
        self,
        content_ids: Sequence[bytes],
        *,
        flow: PageFlow | None = None,
        scope: CallScope | None = None,
    ) -> Iterator[tuple[list[WireMessage], list[ContentId]]]:
        """Yield messages with up to 1,000 content ids, and ids the relay does not hold.

        Asks again for what did not fit into one answer. Whether a message has the content id that
        was asked for is seen when it is decoded: its receiver checks that.

        Args:
            content_ids: 32 bytes each.
            flow: Its ``page_bytes`` and ``blob_bytes`` bound an answer, so that a slow link brings
                it in the time of a page.
            scope: Lets another thread cancel the call.

        Raises:
            SyncArgumentError: more than 1,000 ids, or an id that has not 32 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used.

        Source: J11, P46.

        """
        require("len(content_ids)", len(content_ids), 0, IDS_MAX)
        for each in content_ids:
            require_id("content_id", each, c.HASH_BYTES)
        wanted = list(dict.fromkeys(content_ids))
        while wanted and not (scope is not None and scope.cancelled):
            request = pb.GetMessagesRequest(content_ids=wanted)
            if flow is not None:
                request.max_bytes, request.max_blob_bytes = flow.page_bytes, flow.blob_bytes
            answer = self._contents(request)
            told = len(answer.found) + len(answer.missing) + len(answer.omitted)
            if told != len(wanted) or len(answer.omitted) >= len(wanted):
                raise self._bad("the ids of the answer are not the ids asked for")
            if not set(wanted).issuperset((*answer.missing, *answer.omitted)):
                raise self._bad("the ids of the answer are not the ids asked for")
            if flow is not None:
                flow.took(answer.ByteSize())
            try:
                found = [to_message(message) for message in answer.found]
            except ValueError as error:
                raise self._bad(str(error)) from None
            yield found, [ContentId(each) for each in answer.missing]
            wanted = list(answer.omitted)

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
        silence_s = self.config.reconcile_s
        until = time.monotonic() + silence_s

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
            call = RelaySyncStub(channel).Reconcile(asked(waiting), timeout=timeout)
            return beating(call, silence_s)

        ranges = isinstance(initiator, Initiator)
        first = pb.ReconcileRequest(
            method=pb.RECONCILE_METHOD_RANGES if ranges else pb.RECONCILE_METHOD_TREE,
            parent_id=parent or b"",
            from_timestamp=from_ms,
            to_timestamp=to_ms,
            payload=initiator.start(),
        )
        sent, received = first.ByteSize(), 0
        timeout = max(silence_s, self.config.transfer_s)
        answers = self._stream(
            begin,
            scope,
        )
        try:
            for answer in answers:
                received += answer.ByteSize()
                until = time.monotonic() + silence_s
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

    def get_blob(self, commitment: bytes) -> bytes | None:
        """Return what the relay says is the blob of a commitment; None when it has none.

        It may take as long as its bytes come; after ``call_s`` of silence, or a lost connection, it
        is gone on with at the byte reached, `RESUMES_MAX` times at most and while bytes came. Then
        it is asked for in small parts, for gRPC drops of a lost connection what it has not handed
        out; once an answer has begun, `BARREN_MAX` askings in a row may bring nothing.
        Nothing is verified here: the receiver checks length and commitment.

        Raises:
            SyncArgumentError: the commitment has not 32 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used, or a blob above 2 MiB.

        Source: LP-6421 §5.2, P28.

        """
        came, total, left = bytearray(), 1, RESUMES_MAX
        count, barren, began = 0, 0, False
        while len(came) < total:
            before = len(came)
            try:
                answer = self.get_blob_parts(
                    commitment, before, count, silence_s=self.config.call_s
                )
                if answer is None:
                    return None
                if before and answer.total != total:
                    raise self._bad(f"a blob of {answer.total} bytes that had {total}")
                total, began = answer.total, True
                for part in answer.parts:
                    came += part
            except SyncUnreachableError:
                left, count = left - 1, RESUMED_BYTES
                barren = 0 if len(came) > before else barren + 1
                if not left or barren > BARREN_MAX or not began:
                    raise
        return bytes(came)

    def get_blob_parts(
        self,
        commitment: bytes,
        offset: int = 0,
        count: int = 0,
        *,
        silence_s: float = 15.0,
        scope: CallScope | None = None,
        may_wait: bool = False,
    ) -> BlobAnswer | None:
        """Return a part of a blob as it comes; None when the relay does not hold the blob.

        A relay of an earlier version sends the whole at once; what was not asked for is left out.
        Nothing is verified here: the receiver checks length and commitment.

        Args:
            commitment: 32 bytes.
            offset: The first byte wanted.
            count: Bytes wanted; 0 for all from ``offset`` on.
            silence_s: The call is over when nothing came for so many seconds.
            scope: Lets another thread cancel the call.
            may_wait: The relay may put the question off (`BlobAnswer.later_s`, P52).

        Raises (also while iterating):
            SyncArgumentError: the commitment has not 32 bytes, or a number is out of range.
            SyncUnreachableError: no answer, or none any more.
            SyncRemoteError: an answer that cannot be used.

        Source: LP-6421 §5.2, P28, P50.

        """
        require_id("commitment", commitment, c.HASH_BYTES)
        require("offset", offset, 0, c.MAX_BLOB_BYTES - 1)
        require("count", count, 0, c.MAX_BLOB_BYTES)
        if self._whole_blobs:
            return self._whole_blob(commitment, offset, count)
        request = pb.GetBlobPartsRequest(
            commitment=commitment, offset=offset, count=count, may_wait=may_wait
        )
        frames = self._stream(
            lambda channel: beating(RelaySyncStub(channel).GetBlobParts(request), silence_s),
            scope,
            again=False,
        )
        try:
            first = next(frames, None)
        except SyncRemoteError as error:
            if not error.unimplemented:
                raise
            self._whole_blobs = True
            return self._whole_blob(commitment, offset, count)
        if first is None:
            raise self._bad("no frame about a blob")
        if not first.found:
            next(frames, None)  # its status: the call ends by itself
            return None
        if first.later_ms:
            next(frames, None)
            if not may_wait or first.later_ms > 1000 * LATER_MAX_S:
                raise self._bad(f"a blob that is put off for {first.later_ms} ms")
            return BlobAnswer(first.total, _nothing(), first.later_ms / 1000)
        left = min(count or first.total, first.total - offset)
        if left <= 0 or first.total > c.MAX_BLOB_BYTES:
            frames.close()
            raise self._bad(f"a blob of {first.total} bytes")
        return BlobAnswer(first.total, self._parts(frames, left))

    def _parts(self, frames: Generator[pb.BlobPart, None, None], left: int) -> _Parts:
        try:
            while left:
                frame = next(frames, None)
                if frame is None:
                    raise self._bad("the stream ended before the blob")
                if not 0 < len(frame.part) <= left:
                    raise self._bad(f"a part of {len(frame.part)} bytes, not up to {left}")
                left -= len(frame.part)
                if not left:
                    next(frames, None)  # its status: the call ends by itself
                yield frame.part
        finally:
            frames.close()

    def _whole_blob(self, commitment: bytes, offset: int, count: int) -> BlobAnswer | None:
        request = pb.GetBlobRequest(commitment=commitment)
        answer: pb.GetBlobResponse = self._unary(
            lambda channel: RelaySyncStub(channel).GetBlob(request, timeout=WHOLE_BLOB_S)
        )
        blob = answer.blob
        if len(blob) > c.MAX_BLOB_BYTES or bool(blob) is not answer.found:
            raise self._bad(f"a blob of {len(blob)} bytes")
        if not answer.found:
            return None

        def parts() -> _Parts:
            yield blob[offset : offset + count] if count else blob[offset:]

        return BlobAnswer(len(blob), parts())
