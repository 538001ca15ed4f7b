"""Subscriptions as protobuf: there and back, and whatever else comes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import NamespaceId
from luxrelay.errors import SyncArgumentError
from luxrelay.sync import WireMessage
from luxrelay.sync.following import (
    Followed,
    FollowedBeyond,
    FollowedDropped,
    FollowedGap,
    FollowedLive,
    FollowEvent,
    SubscribeWanted,
)
from luxrelay.sync.rpc import relay_node_pb2 as pb
from luxrelay.sync.rpc.subscription_frames import (
    FRAME_BYTES,
    from_events,
    from_wanted,
    to_events,
    to_wanted,
)

ONE, OTHER = NamespaceId(b"\x01" * 20), NamespaceId(b"\x02" * 20)
HEADER = b"\x01\x00" + ONE + bytes(190)


@pytest.mark.parametrize(
    "wanted",
    [
        SubscribeWanted(namespaces=[ONE]),
        SubscribeWanted(namespaces=[ONE, OTHER], after=7, lanes=False, gap_wait_ms=0),
        SubscribeWanted(namespaces=[ONE], after=None, positions={OTHER: 2**64 - 1}),
    ],
)
def test_a_request_there_and_back(wanted: SubscribeWanted) -> None:
    """What is asked for arrives as it was asked."""
    frame = pb.SubscribeRequest.FromString(from_wanted(wanted).SerializeToString())
    assert to_wanted(frame) == wanted


def test_events_there_and_back() -> None:
    """Every kind of event, in their order."""
    events: list[FollowEvent] = [
        Followed(WireMessage(HEADER, b"blob", 1, 2, 3), OTHER, late=True),
        Followed(WireMessage(HEADER, b"blob", 1, 2, 3), OTHER, regressed=True),
        FollowedGap(ONE, 3, 5, expired=True),
        FollowedGap(ONE, 6, 7, expired=False, coming=True),
        FollowedLive({ONE: 9}),
        FollowedDropped(1, 2),
        FollowedBeyond(NamespaceId(b"\x07" * 20), 2, 3),
    ]
    (frame,) = from_events(events)
    assert to_events(pb.SubscribeReply.FromString(frame.SerializeToString())) == events


def test_frames_are_bounded() -> None:
    """A group beyond `FRAME_BYTES` is cut between messages; one large message goes alone."""
    large = Followed(WireMessage(HEADER, bytes(2 * FRAME_BYTES)), ONE)
    small = Followed(WireMessage(HEADER, bytes(FRAME_BYTES // 4)), ONE)
    events = [small, large, *[small] * 6]

    frames = list(from_events(events))

    assert [len(frame.events) for frame in frames] == [1, 1, 3, 3]
    assert [event for frame in frames for event in to_events(frame)] == events
    assert list(from_events([])) == []


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    """A frame of any bytes is refused with ValueError, a request with our own error."""
    try:
        reply = pb.SubscribeReply.FromString(data)
        request = pb.SubscribeRequest.FromString(data)
    except DecodeError:
        return
    with suppress(ValueError):
        to_events(reply)
    with suppress(SyncArgumentError):
        to_wanted(request)
