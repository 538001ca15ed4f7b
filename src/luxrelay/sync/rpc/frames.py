"""Protobuf frames to values and back, and the checks on what a relay says.

Functions that read a peer's frame raise ``ValueError`` with the reason; the client adds whose
frame it was.

Source: LP-6421 §2.2; decisions P18, P22, P23, P35, P36.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from luxrelay.bus import constants as c
from luxrelay.bus.header import NamespaceId
from luxrelay.sync.heads import Head, SeqRange
from luxrelay.sync.messages import (
    HEADER_PEEK_BYTES,
    PublishItem,
    PublishReceipt,
    SyncPage,
    SyncStatus,
    WireMessage,
)
from luxrelay.sync.rpc import relay_node_pb2 as node_pb
from luxrelay.sync.rpc import relay_sync_pb2 as pb

_VERDICTS: Final = range(3)
"""Accept, ignore, reject."""


class PageCheck:
    """Gathers the frames of one SyncNamespace answer and checks each against the request."""

    def __init__(
        self,
        *,
        namespace_id: NamespaceId,
        from_seq: int,
        to_seq: int,
        rows_max: int,
        bytes_max: int,
        gaps_max: int,
    ) -> None:
        self._namespace_id = namespace_id
        self._from_seq = from_seq
        self._to_seq = to_seq
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._gaps_max = gaps_max
        self._bytes = 0
        self._last_seq = 0
        self._messages: list[WireMessage] = []
        self._status: SyncStatus | None = None

    def take(self, frame: pb.StoredMessage) -> None:
        """Keep what the frame brings.

        Raises:
            ValueError: it brings what was not asked for; the text says what.

        """
        if self._status is not None:
            raise ValueError("a frame follows the status")
        if frame.header:
            self._take_message(frame)
        for message in frame.batch:
            self._take_message(message)
        if frame.HasField("status"):
            self._status = self._checked(to_status(frame.status))

    def page(self) -> SyncPage:
        """Return the page, once the stream has ended.

        Raises:
            ValueError: the stream ended without a status (P23).

        """
        if self._status is None:
            raise ValueError("the page ended without a status")
        return SyncPage(messages=self._messages, status=self._status)

    def _take_message(self, frame: pb.StoredMessage) -> None:
        message = to_message(frame)
        seq = message.seq
        if message.namespace_id != self._namespace_id:
            raise ValueError("a message of another namespace")
        if not self._from_seq < seq <= self._to_seq:
            raise ValueError(f"sequence {seq} is outside the asked range")
        if seq < self._last_seq:
            raise ValueError(f"sequence {seq} follows {self._last_seq}")
        # The first message may alone exceed the byte bound; otherwise a page could never move on.
        self._bytes += len(message.header) + len(message.blob)
        if self._messages and self._bytes > self._bytes_max:
            raise ValueError(f"more than {self._bytes_max} bytes")
        if len(self._messages) == self._rows_max:
            raise ValueError(f"more than {self._rows_max} messages")
        self._last_seq = seq
        self._messages.append(message)

    def _checked(self, status: SyncStatus) -> SyncStatus:
        if status.last_seq != self._last_seq:
            raise ValueError("the status names another last sequence than the last message")
        if status.has_more and not (self._messages and status.next_cursor):
            raise ValueError("the status promises more and gives no way on")
        if len(status.gaps) > self._gaps_max:
            raise ValueError(f"more than {self._gaps_max} gaps")
        previous = 0
        for gap in status.gaps:
            if not previous < gap.first <= gap.last:
                raise ValueError("gaps out of order")
            previous = gap.last
        return status


def to_message(frame: pb.StoredMessage) -> WireMessage:
    """Return the message of a frame.

    Raises:
        ValueError: the header is too short to name its sequence, or something is above the limits
            of LP-6411 §5.

    """
    header, blob = frame.header, frame.blob_data
    if not HEADER_PEEK_BYTES <= len(header) <= c.MAX_HEADER_BYTES:
        raise ValueError(f"a header of {len(header)} bytes")
    if len(blob) > c.MAX_BLOB_BYTES:
        raise ValueError(f"a blob of {len(blob)} bytes")
    return WireMessage(
        header=header,
        blob=blob,
        received_at=frame.received_at,
        expires_at=frame.expires_at,
        finality=frame.finality,
    )


def to_status(frame: pb.SyncStatus) -> SyncStatus:
    """Return the status of a final frame, unchecked."""
    return SyncStatus(
        complete=frame.complete,
        last_seq=frame.last_seq,
        has_more=frame.has_more,
        earliest_seq=frame.earliest_seq,
        gaps=tuple(SeqRange(gap.first, gap.last) for gap in frame.gaps),
        next_cursor=frame.next_cursor,
    )


def from_status(status: SyncStatus) -> pb.StoredMessage:
    """Return the final frame of a page (P23)."""
    return pb.StoredMessage(
        status=pb.SyncStatus(
            complete=status.complete,
            last_seq=status.last_seq,
            has_more=status.has_more,
            earliest_seq=status.earliest_seq,
            gaps=[pb.SeqRange(first=gap.first, last=gap.last) for gap in status.gaps],
            next_cursor=status.next_cursor,
        )
    )


def to_head(frame: pb.NamespaceHeadResponse, asked: bytes) -> Head:
    """Return the head of a frame.

    Args:
        frame: What the relay sent; one that knows the plain protocol leaves the ids out.
        asked: The namespace that was asked for; empty in a listing.

    Raises:
        ValueError: an id or hash of the wrong length.

    """
    namespace = frame.namespace_id or asked
    parent = frame.parent_id or namespace
    if len(namespace) != c.NAMESPACE_BYTES or len(parent) != c.NAMESPACE_BYTES:
        raise ValueError("a head with an id that has not 20 bytes")
    if len(frame.latest_header_hash) not in {0, c.HASH_BYTES}:
        raise ValueError("a head with a hash that has not 32 bytes")
    return Head(
        namespace_id=NamespaceId(namespace),
        parent_id=NamespaceId(parent),
        earliest_seq=frame.earliest_seq,
        contiguous_seq=frame.contiguous_head,
        latest_seq=frame.latest_seq,
        finalized_seq=frame.finalized_seq,
        latest_header_hash=frame.latest_header_hash,
        latest_timestamp=frame.latest_timestamp,
        messages=frame.messages,
        size_bytes=frame.size_bytes,
        window_start_ms=frame.window_start_ms,
    )


def publish_frames(
    items: Iterable[PublishItem], items_max: int, bytes_max: int
) -> Iterator[node_pb.PublishRequest]:
    """Yield requests of at most ``items_max`` items and about ``bytes_max`` bytes, in order."""
    frame = node_pb.PublishRequest()
    size = 0
    for item in items:
        item_bytes = len(item.header) + len(item.blob)
        if frame.items and (len(frame.items) == items_max or size + item_bytes > bytes_max):
            yield frame
            frame, size = node_pb.PublishRequest(), 0
        frame.items.add(header=item.header, blob=item.blob, parent_id=item.parent_id)
        size += item_bytes
    if frame.items:
        yield frame


def to_items(frame: node_pb.PublishRequest) -> list[PublishItem]:
    """Return the items of a request."""
    return [
        PublishItem(header=each.header, blob=each.blob, parent_id=each.parent_id)
        for each in frame.items
    ]


def to_receipt(frame: node_pb.PublishReceipt) -> PublishReceipt:
    """Return the receipt of a frame."""
    if frame.verdict not in _VERDICTS:
        raise ValueError(f"a receipt with verdict {frame.verdict}, which is none")
    return PublishReceipt(
        verdict=frame.verdict,
        code=frame.code,
        reason=frame.reason,
        stored=frame.stored,
        peers_sent=frame.peers_sent,
        message_id=frame.message_id,
        expected_seq=frame.expected_seq,
    )


def from_receipts(receipts: Iterable[PublishReceipt]) -> node_pb.PublishReceipts:
    """Return the frame of some receipts."""
    return node_pb.PublishReceipts(
        receipts=[
            node_pb.PublishReceipt(
                verdict=each.verdict,
                code=each.code,
                reason=each.reason,
                stored=each.stored,
                peers_sent=each.peers_sent,
                message_id=each.message_id,
                expected_seq=each.expected_seq,
            )
            for each in receipts
        ]
    )
