"""Subscription events to protobuf frames and back.

Source: user-01; decision P23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from luxrelay.bus import ContentId, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.sync.following import (
    Followed,
    FollowedBeyond,
    FollowedDropped,
    FollowedGap,
    FollowedLive,
    FollowedRefused,
    FollowedWaiting,
    FollowEvent,
    SubscribeWanted,
)
from luxrelay.sync.messages import WireMessage
from luxrelay.sync.rpc import relay_node_pb2 as pb
from luxrelay.sync.rpc import relay_sync_pb2 as sync_pb
from luxrelay.sync.rpc.frames import to_message

FRAME_BYTES: Final = 1024 * 1024
"""Bytes of messages in one frame; one message always fits."""
KNOWS: Final = 10
"""Highest field of SubscribeRequest that is read here."""
_BLOBS: Final = {
    "held": pb.SubscribeRequest.HELD,
    "later": pb.SubscribeRequest.LATER,
    "none": pb.SubscribeRequest.NONE,
}
_BLOBS_OF: Final = {value: name for name, value in _BLOBS.items()}
_NEW_FIELDS: Final = ((7, "ordered"), (8, "senders"), (9, "max_rate"), (10, "blobs"))
"""Fields that a node of an earlier version passes over."""
_PLAIN: Final = SubscribeWanted(namespaces=[NamespaceId(bytes(c.NAMESPACE_BYTES))])


def from_wanted(wanted: SubscribeWanted) -> pb.SubscribeRequest:
    """Return the request."""
    return pb.SubscribeRequest(
        namespaces=wanted.namespaces,
        after=wanted.after or 0,
        latest=wanted.after is None,
        without_lanes=not wanted.lanes,
        positions=_positions(wanted.positions),
        gap_wait_ms=wanted.gap_wait_ms,
        ordered=wanted.ordered,
        senders=wanted.senders,
        max_rate=wanted.max_rate,
        blobs=_BLOBS[wanted.blobs],
    )


def to_wanted(frame: pb.SubscribeRequest) -> SubscribeWanted:
    """Return what is asked for.

    Raises:
        SyncArgumentError: a value is out of range.

    """
    return SubscribeWanted(
        namespaces=[NamespaceId(each) for each in frame.namespaces],
        after=None if frame.latest else frame.after,
        lanes=not frame.without_lanes,
        positions={NamespaceId(each.namespace_id): each.seq for each in frame.positions},
        gap_wait_ms=frame.gap_wait_ms if frame.HasField("gap_wait_ms") else None,
        ordered=frame.ordered,
        senders=tuple(frame.senders),
        max_rate=frame.max_rate,
        blobs=_BLOBS_OF.get(frame.blobs, ""),
    )


def needs(wanted: SubscribeWanted) -> tuple[int, str]:
    """Return the highest field that a node must know for this, and its name."""
    for field, name in reversed(_NEW_FIELDS):
        if getattr(wanted, name) != getattr(_PLAIN, name):
            return field, name
    return 0, ""


def from_events(events: Sequence[FollowEvent]) -> Iterator[pb.SubscribeReply]:
    """Yield the events as frames."""
    frame, size = pb.SubscribeReply(knows=KNOWS), 0
    for event in events:
        weight = len(event.message.blob) + 512 if isinstance(event, Followed) else 64
        if size and size + weight > FRAME_BYTES:
            yield frame
            frame, size = pb.SubscribeReply(knows=KNOWS), 0
        frame.events.append(_from_event(event))
        size += weight
    if frame.events:
        yield frame


def to_events(frame: pb.SubscribeReply) -> list[FollowEvent]:
    """Return the events of a frame; what a newer node says beside them is passed over.

    Raises:
        ValueError: it is none.

    """
    found = [_to_event(each) for each in frame.events]
    return [each for each in found if each is not None]


def _from_event(event: FollowEvent) -> pb.SubscribeEvent:
    match event:
        case Followed(message, parent, late, regressed, completes):
            stored = sync_pb.StoredMessage(
                header=message.header,
                blob_data=message.blob,
                received_at=message.received_at,
                expires_at=message.expires_at,
                finality=message.finality,
                sidecar_len=message.sidecar_len,
            )
            told = pb.FollowedMessage(
                message=stored,
                parent_id=parent,
                late=late,
                regressed=regressed,
                completes=completes,
            )
            return pb.SubscribeEvent(message=told)
        case FollowedGap(namespace_id, first, last, expired, coming):
            gap = pb.FollowedGap(
                namespace_id=namespace_id, first=first, last=last, expired=expired, coming=coming
            )
            return pb.SubscribeEvent(gap=gap)
        case FollowedLive(positions, not_carried):
            live = pb.FollowedPositions(
                positions=_positions(positions), not_carried=sorted(not_carried)
            )
            return pb.SubscribeEvent(live=live)
        case FollowedDropped(lanes, late, blobs):
            dropped = pb.FollowedDropped(lanes=lanes, late=late, blobs=blobs)
            return pb.SubscribeEvent(dropped=dropped)
        case FollowedBeyond(namespace_id, held, position):
            beyond = pb.FollowedBeyond(namespace_id=namespace_id, held=held, position=position)
            return pb.SubscribeEvent(beyond=beyond)
        case FollowedRefused(namespace_id, seq, content_id, code, reason):
            refused = pb.FollowedRefused(
                namespace_id=namespace_id, seq=seq, content_id=content_id, code=code, reason=reason
            )
            return pb.SubscribeEvent(refused=refused)
        case FollowedWaiting(namespace_id, first, last):
            waiting = pb.FollowedWaiting(namespace_id=namespace_id, first=first, last=last)
            return pb.SubscribeEvent(waiting=waiting)


def _to_event(frame: pb.SubscribeEvent) -> FollowEvent | None:
    match frame.WhichOneof("event"):
        case "message":
            told = frame.message
            message: WireMessage = to_message(told.message)
            parent = _id(told.parent_id)
            return Followed(message, parent, told.late, told.regressed, told.completes)
        case "gap":
            gap = frame.gap
            return FollowedGap(_id(gap.namespace_id), gap.first, gap.last, gap.expired, gap.coming)
        case "live":
            live = frame.live
            positions = {_id(p.namespace_id): p.seq for p in live.positions}
            return FollowedLive(positions, frozenset(map(_id, live.not_carried)))
        case "dropped":
            return FollowedDropped(frame.dropped.lanes, frame.dropped.late, frame.dropped.blobs)
        case "beyond":
            beyond = frame.beyond
            return FollowedBeyond(_id(beyond.namespace_id), beyond.held, beyond.position)
        case "refused":
            no = frame.refused
            if len(no.content_id) != c.HASH_BYTES:
                raise ValueError("a content id that has not 32 bytes")
            content = ContentId(no.content_id)
            return FollowedRefused(_id(no.namespace_id), no.seq, content, no.code, no.reason)
        case "waiting":
            hole = frame.waiting
            return FollowedWaiting(_id(hole.namespace_id), hole.first, hole.last)
    return None


def _positions(positions: Mapping[NamespaceId, int]) -> list[pb.LanePosition]:
    return [pb.LanePosition(namespace_id=each, seq=seq) for each, seq in positions.items()]


def _id(data: bytes) -> NamespaceId:
    if len(data) != c.NAMESPACE_BYTES:
        raise ValueError(f"an id of {len(data)} bytes")
    return NamespaceId(data)
