"""Protobuf frames to values and back, with checks of a relay's answers.

Functions that read a peer's frame raise ``ValueError`` with the reason; the client adds whose
frame it was.

Source: LP-6421 §2.2; decisions P18, P22, P23, P35, P36.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from luxrelay.bus import constants as c
from luxrelay.bus.header import NamespaceId
from luxrelay.sync.heads import PeerHead, SeqRange
from luxrelay.sync.messages import (
    HEADER_PEEK_BYTES,
    SLOT,
    LanePage,
    LaneRange,
    PublishItem,
    PublishReceipt,
    QuotaUse,
    SyncPage,
    SyncStatus,
    Watermark,
    WireMessage,
)
from luxrelay.sync.rpc import relay_node_pb2 as node_pb
from luxrelay.sync.rpc import relay_sync_pb2 as pb

_VERDICTS: Final = range(3)
"""Accept, ignore, reject."""
_USUAL_BYTES: Final = min(c.MAX_HEADER_BYTES, c.MAX_BLOB_BYTES)
"""Header and blob of no more than this together are each within their limits."""


@dataclass(slots=True)
class _Lane:
    """One namespace of an answer while its frames come in."""

    asked: LaneRange
    messages: list[WireMessage] = field(default_factory=list)
    last_seq: int = 0
    status: SyncStatus | None = None


class PageCheck:
    """Gathers the frames of one SyncNamespace answer and checks each against the request.

    Args:
        lanes: What was asked for, in order.
        rows_max: Messages asked for at most, all lanes together.
        bytes_max: Bytes asked for at most, all lanes together.
        gaps_max: Gaps accepted in one status.
        several: True for a call with lanes: messages and statuses of one lane after another.

    """

    def __init__(
        self,
        lanes: Sequence[LaneRange],
        *,
        rows_max: int,
        bytes_max: int,
        gaps_max: int,
        several: bool = False,
    ) -> None:
        self._waiting = [_Lane(lane) for lane in reversed(lanes)]
        self._several = several
        self._rows_left = rows_max
        self._bytes_left = self._bytes_max = bytes_max
        self._rows_max = rows_max
        self._gaps_max = gaps_max
        self._any = False
        self._lane: _Lane | None = None
        self._done: list[_Lane] = []

    def take(self, frame: pb.StoredMessage) -> None:
        """Keep what the frame brings.

        Raises:
            ValueError: it brings what was not asked for; the text says what.

        """
        if frame.header:
            self._take_messages((frame,))
        if frame.batch:
            self._take_messages(frame.batch)
        if frame.HasField("status"):
            self._take_status(frame.status)

    @property
    def size_bytes(self) -> int:
        """Bytes of headers and blobs so far."""
        return self._bytes_max - self._bytes_left

    @property
    def begun(self) -> bool:
        """True when something came that can be kept."""
        return self._any or bool(self._done)

    def cut(self) -> None:
        """Take what came for a page of its own; the stream was cut.

        The lane that was under way has more, and no cursor: it goes on behind its last sequence. A
        second candidate of that sequence may be lacking; a comparison of contents finds it.
        """
        lane, self._lane = self._lane, None
        if lane is not None and lane.messages:
            lane.status = SyncStatus(last_seq=lane.last_seq, has_more=True)
            self._done.append(lane)

    def page(self) -> SyncPage:
        """Return the page of the one namespace asked for, once the stream has ended.

        Raises:
            ValueError: the stream ended without a status (P23).

        """
        if not self._done:
            raise ValueError("the page ended without a status")
        return SyncPage(messages=self._done[0].messages, status=_status_of(self._done[0]))

    def pages(self) -> list[LanePage]:
        """Return the pages of the lanes that were served, once the stream has ended.

        Raises:
            ValueError: a lane was begun and not ended, or there is none at all (P23).

        """
        if self._lane is not None or not self._done:
            raise ValueError("the page ended without a status")
        return [
            LanePage(
                namespace_id=lane.asked.namespace_id,
                messages=lane.messages,
                status=_status_of(lane),
            )
            for lane in self._done
        ]

    def _take_messages(self, entries: Iterable[pb.StoredMessage]) -> None:
        """Keep messages and statuses in order; the hot loop of a client."""
        lane, unpack = self._lane, SLOT.unpack_from
        for entry in entries:
            header, blob = entry.header, entry.blob_data
            if not header and entry.HasField("status"):
                self._take_status(entry.status)
                lane = None
                continue
            size = len(header) + len(blob)
            if size > _USUAL_BYTES or len(header) < HEADER_PEEK_BYTES:
                _check_lengths(header, blob)
            namespace_id, seq = unpack(header, c.OFFSET_NAMESPACE)
            if lane is None or namespace_id != lane.asked.namespace_id:
                lane = self._current(namespace_id)
            if not lane.asked.from_seq < seq <= (lane.asked.to_seq or c.MAX_U64):
                raise ValueError(f"sequence {seq} is outside the asked range")
            if seq < lane.last_seq:
                raise ValueError(f"sequence {seq} follows {lane.last_seq}")
            # The first message may alone exceed the byte bound; else a page could never move on.
            self._bytes_left -= size
            if self._any and self._bytes_left < 0:
                raise ValueError(f"more than {self._bytes_max} bytes")
            if not self._rows_left:
                raise ValueError(f"more than {self._rows_max} messages")
            self._rows_left -= 1
            self._any = True
            lane.last_seq = seq
            lane.messages.append(
                WireMessage(
                    header,
                    blob,
                    entry.received_at,
                    entry.expires_at,
                    entry.finality,
                    entry.sidecar_len,
                )
            )

    def _current(self, namespace_id: bytes) -> _Lane:
        """Return the lane that frames are coming in for: the one begun, or the next."""
        if self._lane is None:
            if not self._waiting:
                raise ValueError("a frame follows the status")
            if self._done and _status_of(self._done[-1]).has_more:
                raise ValueError("a lane follows one that has more")
            self._lane = self._waiting.pop()
        if namespace_id != self._lane.asked.namespace_id:
            raise ValueError("a message of another namespace")
        return self._lane

    def _take_status(self, frame: pb.SyncStatus) -> None:
        asked = self._lane or (self._waiting[-1] if self._waiting else None)
        named = frame.namespace_id if self._several or asked is None else asked.asked.namespace_id
        lane = self._current(named)
        lane.status = self._checked(to_status(frame), lane)
        self._done.append(lane)
        self._lane = None

    def _checked(self, status: SyncStatus, lane: _Lane) -> SyncStatus:
        if status.last_seq != lane.last_seq:
            raise ValueError("the status names another last sequence than the last message")
        if status.has_more and not (lane.messages and status.next_cursor):
            raise ValueError("the status promises more and gives no way on")
        if len(status.gaps) > self._gaps_max:
            raise ValueError(f"more than {self._gaps_max} gaps")
        previous = 0
        for gap in status.gaps:
            if not previous < gap.first <= gap.last:
                raise ValueError("gaps out of order")
            previous = gap.last
        return status


def _status_of(lane: _Lane) -> SyncStatus:
    assert lane.status is not None, "a lane is done with its status"
    return lane.status


def to_message(frame: pb.StoredMessage) -> WireMessage:
    """Return the message of a frame.

    Raises:
        ValueError: the header is too short to name its sequence, or something is above the limits
            of LP-6411 §5.

    """
    header, blob = frame.header, frame.blob_data
    _check_lengths(header, blob)
    times = frame.received_at, frame.expires_at
    return WireMessage(header, blob, *times, frame.finality, frame.sidecar_len)


def _check_lengths(header: bytes, blob: bytes) -> None:
    if not HEADER_PEEK_BYTES <= len(header) <= c.MAX_HEADER_BYTES:
        raise ValueError(f"a header of {len(header)} bytes")
    if len(blob) > c.MAX_BLOB_BYTES:
        raise ValueError(f"a blob of {len(blob)} bytes")


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


def from_status(status: SyncStatus, namespace_id: bytes = b"") -> pb.StoredMessage:
    """Return the final frame of a page; with lanes it names the one that ends (P23)."""
    return pb.StoredMessage(
        status=pb.SyncStatus(
            complete=status.complete,
            last_seq=status.last_seq,
            has_more=status.has_more,
            earliest_seq=status.earliest_seq,
            gaps=[pb.SeqRange(first=gap.first, last=gap.last) for gap in status.gaps],
            next_cursor=status.next_cursor,
            namespace_id=namespace_id,
        )
    )


def to_head(frame: pb.NamespaceHeadResponse, asked: bytes) -> PeerHead:
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
    return PeerHead(
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
        watermark=frame.watermark if frame.HasField("watermark") else None,
        floor_seq=frame.floor_seq,
    )


def publish_frames(
    items: Iterable[PublishItem], items_max: int, bytes_max: int
) -> Iterator[node_pb.PublishRequest]:
    """Yield requests of at most ``items_max`` items and about ``bytes_max`` bytes, in order."""
    frame = node_pb.PublishRequest()
    size = 0
    for item in items:
        item_bytes = len(item.header) + len(item.blob) + len(item.sidecar)
        if frame.items and (len(frame.items) == items_max or size + item_bytes > bytes_max):
            yield frame
            frame, size = node_pb.PublishRequest(), 0
        frame.items.add(
            header=item.header, blob=item.blob, parent_id=item.parent_id, sidecar=item.sidecar
        )
        size += item_bytes
    if frame.items:
        yield frame


def to_items(frame: node_pb.PublishRequest) -> list[PublishItem]:
    """Return the items of a request."""
    return [
        PublishItem(
            header=each.header,
            blob=each.blob,
            parent_id=each.parent_id,
            sidecar=each.sidecar,
        )
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
        digest=frame.digest,
        seen_back=frame.seen_back,
        retry_after_ms=frame.retry_after_ms,
    )


def from_receipts(receipts: Iterable[PublishReceipt]) -> node_pb.PublishReceipts:
    """Return the frame of some receipts."""
    return node_pb.PublishReceipts(
        knows=node_pb.PublishItem.SIDECAR_FIELD_NUMBER,
        receipts=[
            node_pb.PublishReceipt(
                verdict=each.verdict,
                code=each.code,
                reason=each.reason,
                stored=each.stored,
                peers_sent=each.peers_sent,
                message_id=each.message_id,
                expected_seq=each.expected_seq,
                digest=each.digest,
                seen_back=each.seen_back,
                retry_after_ms=min(each.retry_after_ms, 2**32 - 1),
            )
            for each in receipts
        ],
    )


def to_quota(frame: node_pb.QuotaUse) -> QuotaUse:
    """Return the use of a quota of a frame."""
    return QuotaUse(
        account=frame.account,
        messages_limit=frame.messages_limit,
        bytes_limit=frame.bytes_limit,
        messages_used=frame.messages_used,
        bytes_used=frame.bytes_used,
        expires_ms=frame.expires_ms,
    )


def from_quota(use: QuotaUse) -> node_pb.QuotaUse:
    """Return the frame of the use of a quota."""
    return node_pb.QuotaUse(
        account=use.account,
        messages_limit=use.messages_limit,
        bytes_limit=use.bytes_limit,
        messages_used=use.messages_used,
        bytes_used=use.bytes_used,
        expires_ms=use.expires_ms,
    )


def to_watermark(frame: node_pb.Watermark) -> Watermark:
    """Return the watermark of a frame.

    Raises:
        ValueError: an id of the wrong length.

    """
    parent = frame.parent_id or frame.namespace_id
    if len(frame.namespace_id) != c.NAMESPACE_BYTES or len(parent) != c.NAMESPACE_BYTES:
        raise ValueError("a watermark with an id that has not 20 bytes")
    return Watermark(
        namespace_id=NamespaceId(frame.namespace_id),
        parent_id=NamespaceId(parent),
        seq=None if frame.drop else frame.seq,
    )


def from_watermark(watermark: Watermark) -> node_pb.Watermark:
    """Return the frame of a watermark."""
    return node_pb.Watermark(
        namespace_id=watermark.namespace_id,
        parent_id=watermark.parent_id,
        seq=watermark.seq or 0,
        drop=watermark.seq is None,
    )
