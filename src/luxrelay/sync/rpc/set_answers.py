"""`SetAnswers`: a relay's answers about its message set: intervals, digests, contents.

Source: decisions P22, P26, J4, J11; ADR 0006 §8.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha3_256
from typing import Final

from luxrelay.bus import constants as c
from luxrelay.bus.header import ContentId, NamespaceId
from luxrelay.errors import SyncArgumentError
from luxrelay.store import NamespaceQuery
from luxrelay.sync.held import BLOCK_SEQS, held_spans, to_steps
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.backing import StoreHead, SyncStore
from luxrelay.sync.rpc.config import FRAME_BYTES_MAX, MESSAGE_BYTES_MAX, SyncServerConfig
from luxrelay.sync.rpc.pages import Turns, to_frame
from luxrelay.sync.rpc.stats import SyncCounters

ANSWER_BYTES: Final = FRAME_BYTES_MAX - MESSAGE_BYTES_MAX
"""Bytes of messages after which a GetMessages answer takes no further one."""


class SetAnswers:
    """Reads a store for those who compare it with their own."""

    def __init__(self, config: SyncServerConfig, counters: SyncCounters) -> None:
        self._config = config
        self._counters = counters

    def list_held(
        self, request: pb.ListHeldRequest, store: SyncStore, turns: Turns
    ) -> Iterator[pb.HeldNamespace]:
        """Yield the interval lists of a parent and its lanes, or of every namespace."""
        parent = NamespaceId(request.parent_id) if request.parent_id else None
        cursor, sent = request.cursor, 0
        while True:
            room = request.limit - sent if request.limit else self._config.heads_read
            with turns() as turn:
                heads, cursor = store.heads(parent, cursor, min(self._config.heads_read, room))
                frames = [self._held(head, store) for head in heads]
                turn.read(sum(frame.ByteSize() for frame in frames))
            if frames:
                frames[-1].next_cursor = cursor
            yield from frames
            sent += len(heads)
            self._counters.sent(heads=len(heads))
            if not cursor or not heads or sent == request.limit:
                return

    def _held(self, head: StoreHead, store: SyncStore) -> pb.HeldNamespace:
        limit = self._config.intervals_max
        gaps = store.gaps(head.namespace_id, limit)
        spans, cut = held_spans(head.earliest_seq, head.latest_seq, gaps, limit)
        lane = head.parent != head.namespace_id
        return pb.HeldNamespace(
            namespace_id=head.namespace_id,
            parent_id=head.parent if lane else b"",
            steps=to_steps(spans),
            cut=cut,
        )

    def digests(
        self, request: pb.DigestsRequest, store: SyncStore, now_ms: int
    ) -> pb.DigestsResponse:
        """Return a digest for each block asked for (P26).

        Raises:
            SyncArgumentError: too many blocks, or one beyond the sequences there are.

        """
        end = (request.first_block + request.blocks) * BLOCK_SEQS
        if not 0 < request.blocks <= self._config.digest_blocks_max or end > c.MAX_U64:
            raise SyncArgumentError(
                f"{request.blocks} blocks from {request.first_block} on",
                where="DigestsRequest.blocks",
                hint=f"send 1 to {self._config.digest_blocks_max}",
            )
        hashes = [sha3_256() for _ in range(request.blocks)]
        begun = [False] * request.blocks
        cursor, more = b"", True
        while more:
            page = store.query(
                NamespaceQuery(
                    namespace_id=NamespaceId(request.namespace_id),
                    from_seq=request.first_block * BLOCK_SEQS,
                    to_seq=end,
                    limit=self._config.read_messages,
                    max_bytes=self._config.read_bytes,
                    cursor=cursor,
                ),
                now_ms,
            )
            for row in page.messages:
                block = (row.seq - 1) // BLOCK_SEQS - request.first_block
                hashes[block].update(row.header.header_hash)
                begun[block] = True
            more, cursor = page.has_more, page.next_cursor
        return pb.DigestsResponse(
            digests=[
                each.digest() if any_row else b""
                for each, any_row in zip(hashes, begun, strict=True)
            ]
        )

    def contents(
        self, request: pb.GetMessagesRequest, store: SyncStore, now_ms: int
    ) -> pb.GetMessagesResponse:
        """Return messages by content id, as many as one answer holds, one at least."""
        answer = pb.GetMessagesResponse()
        size, done = 0, 0
        blob_max = request.max_blob_bytes or MESSAGE_BYTES_MAX
        size_max = min(request.max_bytes or ANSWER_BYTES, ANSWER_BYTES)
        ceiling = size_max if request.max_bytes else FRAME_BYTES_MAX - 64 * 1024
        wanted = [ContentId(each) for each in dict.fromkeys(request.content_ids)]
        while done < len(wanted) and size < size_max:
            asked = wanted[done : done + self._config.ids_read]
            rows, missing = store.get_contents(asked, now_ms)
            told = set(missing)
            answer.missing.extend(missing)
            for row in rows:
                blob_bytes = len(row.blob or b"")
                row_bytes = len(row.header_bytes) + (blob_bytes if blob_bytes <= blob_max else 0)
                if answer.found and size + row_bytes > ceiling:
                    break
                told.add(row.header.content_id)
                answer.found.append(to_frame(row, blob_max))
                size += row_bytes
            done += len(asked)
            answer.omitted.extend(each for each in asked if each not in told)
            if len(told) < len(asked):
                break
        answer.omitted.extend(wanted[done:])
        self._counters.sent(messages=len(answer.found), size_bytes=size)
        return answer


def check_length(name: str, value: bytes, length: int = c.NAMESPACE_BYTES) -> None:
    """Return when ``value`` has ``length`` bytes.

    Raises:
        SyncArgumentError: it has not; the text names the field.

    """
    if len(value) != length:
        raise SyncArgumentError(
            f"an id of {len(value)} bytes", where=name, hint=f"send {length} bytes"
        )
