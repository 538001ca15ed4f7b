"""`SyncServicer`: the four calls of RelaySync, from a store.

Source: LP-6421 §2.2; decisions P18, P22, P23, P35, J6; 21-18 to 21-24, 21-53, 21-56.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from functools import partial
from math import ceil
from typing import Final

import grpc

from luxrelay.bus import constants as c
from luxrelay.bus.header import MessageId, NamespaceId, message_id
from luxrelay.errors import SyncArgumentError
from luxrelay.sync.fairness import is_recent
from luxrelay.sync.negentropy import ReconcileConfig
from luxrelay.sync.reconcile import TreeConfig
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.backing import ArchiveFallback, StoreHead, SyncStore
from luxrelay.sync.rpc.callers import Caller, ProvenValidators
from luxrelay.sync.rpc.calls import CallBook, ServedCall
from luxrelay.sync.rpc.config import FRAME_BYTES_MAX, SyncServerConfig
from luxrelay.sync.rpc.pages import PageReader, ServedPageRequest, Turns, to_frame
from luxrelay.sync.rpc.reconciling import ReconcileDesk
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncServicer
from luxrelay.sync.rpc.set_answers import ANSWER_BYTES, SetAnswers, check_length
from luxrelay.sync.rpc.uplink import BlobUplink

HEAD_BYTES: Final = 160
"""About what a head takes on the wire."""
BLOB_PART_BYTES: Final = 32 * 1024
"""Bytes of a blob in one frame of GetBlobParts: two seconds of 128 kbit/s."""
RECENT_MESSAGES: Final = 1_000
"""A reader this close to a head that is itself recent asks for recent messages (P32)."""


class SyncServicer(RelaySyncServicer):
    """Answers from ``store``; without one every call is UNIMPLEMENTED (21-56)."""

    def __init__(
        self,
        store: SyncStore | None,
        config: SyncServerConfig,
        calls: CallBook,
        clock_ms: Callable[[], int],
        *,
        subscribed: Container[NamespaceId] = frozenset(),
        uplink: BlobUplink,
        beyond: ArchiveFallback | None = None,
    ) -> None:
        self._store = store
        self._uplink = uplink
        self._beyond = beyond
        self._subscribed = subscribed
        self._config = config
        self._validators = ProvenValidators(config.validators, config.validator_keys)
        self._calls = calls
        self._clock_ms = clock_ms
        self._sets = SetAnswers(config, calls.counters)
        self._desk = ReconcileDesk(
            config.reconciles_max,
            ReconcileConfig(ranges_max=config.reconcile_ranges_max),
            TreeConfig(),
            clock_ms,
        )

    def SyncNamespace(  # type: ignore[override]  # noqa: N802 - encoded already; see service.py
        self, request: pb.SyncRequest, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Stream one page in encoded frames; the last one is its status."""
        with self._calls.call(
            "SyncNamespace", context, stream=True, weigh=partial(self._weigh, request)
        ) as call:
            reader = PageReader(
                self._open_store(call),
                self._config,
                ServedPageRequest.check(request, self._config),
                turns=call.turn,
                beyond=self._beyond,
                now_ms=self._clock_ms(),
                stop=lambda: context.time_remaining() < self._config.deadline_margin_s,
            )
            try:
                yield from reader.frames()
            finally:
                self._calls.counters.sent(messages=reader.messages, size_bytes=reader.size_bytes)

    def GetMessages(  # noqa: N802 - the name of the specification
        self, request: pb.GetMessagesRequest, context: grpc.ServicerContext
    ) -> pb.GetMessagesResponse:
        """Return messages by id, as many as one answer holds."""
        with self._calls.call("GetMessages", context) as call:
            with call.turn() as turn:
                answer = self._get_messages(request, self._open_store(call))
                turn.read(answer.ByteSize())
            if self._beyond is not None and request.ids and answer.missing:
                self._look_beyond(self._beyond, answer)
            return answer
        raise AssertionError  # the call above returns or aborts

    def GetNamespaceHead(  # noqa: N802 - the name of the specification
        self, request: pb.NamespaceHeadRequest, context: grpc.ServicerContext
    ) -> pb.NamespaceHeadResponse:
        """Return the head of one namespace."""
        with self._calls.call("GetNamespaceHead", context) as call, call.turn():
            check_length("NamespaceHeadRequest.namespace_id", request.namespace_id)
            head = self._open_store(call).head(NamespaceId(request.namespace_id))
            self._calls.counters.sent(heads=1)
            return self._head(head, self._clock_ms())
        raise AssertionError  # the call above returns or aborts

    def ListHeads(  # noqa: N802 - the name in relay_sync.proto
        self, request: pb.ListHeadsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.NamespaceHeadResponse]:
        """Stream heads in the order of their ids."""
        with self._calls.call("ListHeads", context, stream=True) as call:
            if request.parent_id:
                check_length("ListHeadsRequest.parent_id", request.parent_id)
            yield from self._list_heads(request, self._open_store(call), call.turn)

    def ListHeld(  # noqa: N802 - the name in relay_sync.proto
        self, request: pb.ListHeldRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.HeldNamespace]:
        """Stream interval lists in the order of the namespaces' ids."""
        with self._calls.call("ListHeld", context, stream=True) as call:
            if request.parent_id:
                check_length("ListHeldRequest.parent_id", request.parent_id)
            yield from self._sets.list_held(request, self._open_store(call), call.turn)

    def GetDigests(  # noqa: N802 - the name in relay_sync.proto
        self, request: pb.DigestsRequest, context: grpc.ServicerContext
    ) -> pb.DigestsResponse:
        """Return digests of blocks of 256 sequences."""
        with self._calls.call("GetDigests", context) as call, call.turn():
            check_length("DigestsRequest.namespace_id", request.namespace_id)
            return self._sets.digests(request, self._open_store(call), self._clock_ms())
        raise AssertionError  # the call above returns or aborts

    def GetBlob(  # noqa: N802 - the name in relay_sync.proto
        self, request: pb.GetBlobRequest, context: grpc.ServicerContext
    ) -> pb.GetBlobResponse:
        """Return one blob of our own store; a peer's question is never passed on (P28)."""
        with self._calls.call("GetBlob", context) as call:
            with call.turn() as turn:
                check_length("GetBlobRequest.commitment", request.commitment, c.HASH_BYTES)
                blob = self._open_store(call).get_blob(request.commitment, self._clock_ms())
                turn.read(len(blob or b""))
            if blob is None and self._beyond is not None:
                blob = self._beyond.blob(request.commitment)
            self._calls.counters.sent(size_bytes=len(blob or b""))
            return pb.GetBlobResponse(found=blob is not None, blob=blob or b"")
        raise AssertionError  # the call above returns or aborts

    def GetBlobParts(  # noqa: N802 - the name in relay_sync.proto
        self, request: pb.GetBlobPartsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.BlobPart]:
        """Stream a part of one blob of our own store in small frames (P50)."""
        with self._calls.call("GetBlobParts", context, stream=True) as call:
            with call.turn() as turn:
                check_length("GetBlobPartsRequest.commitment", request.commitment, c.HASH_BYTES)
                blob = self._open_store(call).get_blob(request.commitment, self._clock_ms())
                part = _part_of(blob or b"", request)
                turn.read(len(part))
            if blob is None and self._beyond is not None:
                blob = self._beyond.blob(request.commitment)
                part = _part_of(blob or b"", request)
            if blob is None:
                yield pb.BlobPart()
                return
            total = len(blob)
            later_s = self._uplink.begin(
                request.commitment,
                call.caller.name,
                len(part),
                must=not request.may_wait,
                measured=False,
            )
            if later_s:
                yield pb.BlobPart(found=True, total=total, later_ms=ceil(1000 * later_s))
                return
            left = len(part)
            try:
                yield pb.BlobPart(found=True, total=total)
                for start in range(0, len(part), BLOB_PART_BYTES):
                    piece = bytes(part[start : start + BLOB_PART_BYTES])
                    yield pb.BlobPart(part=piece)
                    left -= len(piece)
                    self._calls.counters.sent(size_bytes=len(piece))
            finally:
                most = not left and 2 * len(part) >= total
                self._uplink.handed(request.commitment, len(part) - left, most=most)

    def Reconcile(  # noqa: N802 - the name in relay_sync.proto
        self, request_iterator: Iterator[pb.ReconcileRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ReconcileReply]:
        """Answer the messages of one reconciliation."""
        with self._calls.call("Reconcile", context, stream=True) as call:
            yield from self._desk.serve(request_iterator, self._open_store(call), call)

    def _get_messages(
        self, request: pb.GetMessagesRequest, store: SyncStore
    ) -> pb.GetMessagesResponse:
        count = len(request.ids) + len(request.content_ids)
        if count > self._config.ids_max:
            raise SyncArgumentError(
                f"{count} ids in one call",
                where="GetMessagesRequest.ids",
                hint=f"send {self._config.ids_max} at most",
            )
        for each in (*request.ids, *request.content_ids):
            check_length("GetMessagesRequest.ids", each, c.HASH_BYTES)
        if request.content_ids:
            if request.ids:
                raise SyncArgumentError(
                    "ids of both kinds in one call",
                    where="GetMessagesRequest",
                    hint="send ids or content_ids",
                )
            return self._sets.contents(request, store, self._clock_ms())
        now_ms = self._clock_ms()
        wanted = [MessageId(each) for each in dict.fromkeys(request.ids)]
        answer = pb.GetMessagesResponse()
        size = 0
        while wanted and size < ANSWER_BYTES:
            asked = wanted[: self._config.ids_read]
            rows, missing = store.get_messages(asked, now_ms)
            told = set(missing)
            answer.missing.extend(missing)
            for row in rows:
                row_bytes = len(row.header_bytes) + len(row.blob or b"")
                slot = message_id(row.namespace_id, row.seq)
                # A slot of several candidates too large for one answer is sent in part.
                if size + row_bytes > FRAME_BYTES_MAX - 64 * 1024 or size >= ANSWER_BYTES:
                    if slot not in told:
                        break
                    continue
                told.add(slot)
                answer.found.append(to_frame(row))
                size += row_bytes
            wanted = [each for each in wanted if each not in told]
            if not told:
                break
        answer.omitted.extend(wanted)
        self._calls.counters.sent(messages=len(answer.found), size_bytes=size)
        return answer

    def _look_beyond(self, beyond: ArchiveFallback, answer: pb.GetMessagesResponse) -> None:
        """Complete an answer by what is missing here; what was not looked for is omitted."""
        wanted = [MessageId(each) for each in answer.missing]
        rows, missing = beyond.slots(wanted)
        told, size, count = set(missing), answer.ByteSize(), len(answer.found)
        for row in rows:
            size += len(row.header_bytes) + len(row.blob or b"")
            if size > FRAME_BYTES_MAX - 64 * 1024:
                break
            told.add(message_id(row.namespace_id, row.seq))
            answer.found.append(to_frame(row))
        del answer.missing[:]
        answer.missing.extend(missing)
        answer.omitted.extend(each for each in wanted if each not in told)
        sent = sum(len(each.header) + len(each.blob_data) for each in answer.found[count:])
        self._calls.counters.sent(messages=len(answer.found) - count, size_bytes=sent)

    def _list_heads(
        self, request: pb.ListHeadsRequest, store: SyncStore, turns: Turns
    ) -> Iterator[pb.NamespaceHeadResponse]:
        now_ms = self._clock_ms()
        parent = NamespaceId(request.parent_id) if request.parent_id else None
        cursor, sent = request.cursor, 0
        while True:
            room = request.limit - sent if request.limit else self._config.heads_read
            with turns() as turn:
                heads, cursor = store.heads(parent, cursor, min(self._config.heads_read, room))
                frames = [self._head(head, now_ms) for head in heads]
                turn.read(len(frames) * HEAD_BYTES)
            if frames:
                frames[-1].next_cursor = cursor
            yield from frames
            sent += len(heads)
            self._calls.counters.sent(heads=len(heads))
            if not cursor or not heads or sent == request.limit:
                return

    def _weigh(self, request: pb.SyncRequest, caller: Caller) -> float:
        """Return the share of a page request (LP-6421 §6.2; P32, P33)."""
        now_ms = self._clock_ms()
        namespace = request.lanes[0].namespace_id if request.lanes else request.namespace_id
        store, subscribed, recent = self._store, False, is_recent(request.from_timestamp, now_ms)
        if store is not None and len(namespace) == c.NAMESPACE_BYTES:
            head = store.head(NamespaceId(namespace))
            subscribed = head.parent in self._subscribed
            if request.from_seq and not request.lanes:
                # Who has everything but the newest asks for what came after it, so for recent ones.
                behind = head.latest_seq - min(request.from_seq, head.latest_seq)
                fresh = is_recent(head.latest_timestamp, now_ms)
                recent |= fresh and behind <= RECENT_MESSAGES
        validator = self._validators.has(caller)
        if validator:
            self._calls.counters.validator()
        return self._config.fairness.weight(
            validator=validator,
            recent=recent,
            subscribed=subscribed,
        )

    def _head(self, head: StoreHead, now_ms: int) -> pb.NamespaceHeadResponse:
        return pb.NamespaceHeadResponse(
            earliest_seq=head.earliest_seq,
            contiguous_head=head.contiguous_seq,
            latest_seq=head.latest_seq,
            finalized_seq=head.finalized_seq,
            latest_header_hash=head.latest_header_hash if head.latest_seq else b"",
            latest_timestamp=head.latest_timestamp,
            window_start_ms=max(0, now_ms - self._config.window_ms),
            namespace_id=head.namespace_id,
            parent_id=head.parent,
            messages=head.messages,
            size_bytes=head.size_bytes,
            watermark=self._open().watermark(head.namespace_id),
            floor_seq=head.floor,
        )

    def _open_store(self, call: ServedCall) -> SyncStore:
        if self._store is None:
            call.refuse(
                grpc.StatusCode.UNIMPLEMENTED, "this relay holds no messages; ask another relay"
            )
        return self._store

    def _open(self) -> SyncStore:
        assert self._store is not None, "a head came from it"
        return self._store


def _part_of(blob: bytes, request: pb.GetBlobPartsRequest) -> memoryview:
    """Return the bytes that are asked for.

    Raises:
        SyncArgumentError: they begin behind the end.

    """
    if blob and request.offset >= len(blob):
        raise SyncArgumentError(
            f"byte {request.offset} of {len(blob)}",
            where="GetBlobPartsRequest.offset",
            hint="ask from 0 to the length less one",
        )
    end = request.offset + request.count if request.count else len(blob)
    return memoryview(blob)[request.offset : end]
