"""`SyncServicer`: the four calls of RelaySync, from a store.

Source: LP-6421 §2.2; decisions P18, P22, P23, P35, J6; 21-18 to 21-24, 21-53, 21-56.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import grpc

from luxrelay.bus import constants as c
from luxrelay.bus.header import MessageId, NamespaceId, message_id
from luxrelay.errors import SyncArgumentError
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.backing import StoreHead, SyncStore
from luxrelay.sync.rpc.calls import CallBook, ServedCall
from luxrelay.sync.rpc.config import FRAME_BYTES_MAX, MESSAGE_BYTES_MAX, SyncServerConfig
from luxrelay.sync.rpc.pages import PageReader, PageRequest, to_frame
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncServicer

ANSWER_BYTES: Final = FRAME_BYTES_MAX - MESSAGE_BYTES_MAX
"""Bytes of messages after which a GetMessages answer takes no further one."""


class SyncServicer(RelaySyncServicer):
    """Answers from ``store``; without one every call is UNIMPLEMENTED (21-56)."""

    def __init__(
        self,
        store: SyncStore | None,
        config: SyncServerConfig,
        calls: CallBook,
        clock_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._config = config
        self._calls = calls
        self._clock_ms = clock_ms

    def SyncNamespace(  # noqa: N802 - the name of the specification
        self, request: pb.SyncRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.StoredMessage]:
        """Stream one page; the last frame is its status."""
        with self._calls.call("SyncNamespace", context, stream=True) as call:
            reader = PageReader(
                self._open_store(call),
                self._config,
                PageRequest.check(request, self._config),
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
            return self._get_messages(request, self._open_store(call))
        raise AssertionError  # the call above returns or aborts

    def GetNamespaceHead(  # noqa: N802 - the name of the specification
        self, request: pb.NamespaceHeadRequest, context: grpc.ServicerContext
    ) -> pb.NamespaceHeadResponse:
        """Return the head of one namespace."""
        with self._calls.call("GetNamespaceHead", context) as call:
            _check_length("NamespaceHeadRequest.namespace_id", request.namespace_id)
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
                _check_length("ListHeadsRequest.parent_id", request.parent_id)
            yield from self._list_heads(request, self._open_store(call))

    def _get_messages(
        self, request: pb.GetMessagesRequest, store: SyncStore
    ) -> pb.GetMessagesResponse:
        if len(request.ids) > self._config.ids_max:
            raise SyncArgumentError(
                f"{len(request.ids)} ids in one call",
                where="GetMessagesRequest.ids",
                hint=f"send {self._config.ids_max} at most",
            )
        for each in request.ids:
            _check_length("GetMessagesRequest.ids", each, c.HASH_BYTES)
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

    def _list_heads(
        self, request: pb.ListHeadsRequest, store: SyncStore
    ) -> Iterator[pb.NamespaceHeadResponse]:
        now_ms = self._clock_ms()
        parent = NamespaceId(request.parent_id) if request.parent_id else None
        cursor, sent = request.cursor, 0
        while True:
            room = request.limit - sent if request.limit else self._config.heads_read
            heads, cursor = store.heads(parent, cursor, min(self._config.heads_read, room))
            for index, head in enumerate(heads):
                frame = self._head(head, now_ms)
                if index == len(heads) - 1:
                    frame.next_cursor = cursor
                yield frame
            sent += len(heads)
            self._calls.counters.sent(heads=len(heads))
            if not cursor or not heads or sent == request.limit:
                return

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
        )

    def _open_store(self, call: ServedCall) -> SyncStore:
        if self._store is None:
            call.refuse(
                grpc.StatusCode.UNIMPLEMENTED, "this relay holds no messages; ask another relay"
            )
        return self._store


def _check_length(name: str, value: bytes, length: int = c.NAMESPACE_BYTES) -> None:
    if len(value) != length:
        raise SyncArgumentError(
            f"an id of {len(value)} bytes", where=name, hint=f"send {length} bytes"
        )
