"""Frames to values and back, and what is not believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import constants as c
from luxrelay.bus.header import NamespaceId
from luxrelay.sync.heads import SeqRange
from luxrelay.sync.messages import LaneRange, PublishItem, PublishReceipt, SyncStatus
from luxrelay.sync.rpc import relay_node_pb2 as node_pb
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.frames import (
    PageCheck,
    from_receipts,
    from_status,
    publish_frames,
    to_head,
    to_items,
    to_message,
    to_receipt,
    to_status,
)

NS = NamespaceId(b"n" * 20)


def frame(seq: int, *, namespace: bytes = NS, blob: bytes = b"") -> pb.StoredMessage:
    """Return a frame whose header names ``seq`` and is nothing else."""
    header = b"\x01\x00" + namespace + seq.to_bytes(8, "big")
    return pb.StoredMessage(header=header.ljust(c.MIN_HEADER_BYTES, b"\0"), blob_data=blob)


def check(**changes: int) -> PageCheck:
    """Return a check of a small request."""
    limits = {"rows_max": 5, "bytes_max": 10_000, "gaps_max": 2, **changes}
    lane = LaneRange(
        namespace_id=NS, from_seq=limits.pop("from_seq", 0), to_seq=limits.pop("to_seq", 9)
    )
    return PageCheck([lane], **limits)


# LP-6421's field numbers (21-57)


def test_golden_request() -> None:
    """21-57: SyncRequest has the numbers 1 to 5 of LP-6421, and ours above."""
    request = pb.SyncRequest(
        namespace_id=b"\xaa" * 20, from_seq=1, to_seq=300, from_timestamp=2, max_messages=3
    )
    golden = b"\x0a\x14" + b"\xaa" * 20 + b"\x10\x01\x18\xac\x02\x20\x02\x28\x03"

    assert request.SerializeToString(deterministic=True) == golden
    ours = pb.SyncRequest(cursor=b"c", max_frame_messages=4, max_bytes=5, to_timestamp=6)
    assert ours.SerializeToString(deterministic=True) == b"\x32\x01c\x38\x04\x40\x05\x48\x06"


def test_golden_message() -> None:
    """21-57: StoredMessage has the numbers 1 to 4 of LP-6421, and ours above (P36)."""
    message = pb.StoredMessage(header=b"h", blob_data=b"b", received_at=1, source_peer=b"p")
    assert message.SerializeToString(deterministic=True) == b"\x0a\x01h\x12\x01b\x18\x01\x22\x01p"

    ours = pb.StoredMessage(
        expires_at=1,
        finality=2,
        sidecar=b"s",
        status=pb.SyncStatus(complete=True),
        batch=[pb.StoredMessage(header=b"h")],
    )
    golden = b"\x28\x01\x30\x02\x3a\x01s\x42\x02\x08\x01\x4a\x03\x0a\x01h"
    assert ours.SerializeToString(deterministic=True) == golden


def test_golden_status_and_heads() -> None:
    """21-57: our additions keep the numbers they were published with."""
    status = pb.SyncStatus(
        complete=True,
        last_seq=2,
        has_more=True,
        earliest_seq=4,
        gaps=[pb.SeqRange(first=5, last=6)],
        next_cursor=b"c",
    )
    golden = b"\x08\x01\x10\x02\x18\x01\x20\x04\x2a\x04\x08\x05\x10\x06\x32\x01c"
    assert status.SerializeToString(deterministic=True) == golden

    head = pb.NamespaceHeadResponse(
        earliest_seq=1, contiguous_head=2, latest_seq=3, finalized_seq=4, latest_header_hash=b"h",
        latest_timestamp=6, window_start_ms=7, namespace_id=b"n", parent_id=b"p", messages=10,
        size_bytes=11, next_cursor=b"c",
    )  # fmt: skip
    golden = (
        b"\x08\x01\x10\x02\x18\x03\x20\x04\x2a\x01h\x30\x06\x38\x07"
        b"\x42\x01n\x4a\x01p\x50\x0a\x58\x0b\x62\x01c"
    )
    assert head.SerializeToString(deterministic=True) == golden


def test_golden_publication() -> None:
    """The RelayNode messages keep their numbers."""
    item = node_pb.PublishItem(header=b"h", blob=b"b", parent_id=b"p")
    assert item.SerializeToString(deterministic=True) == b"\x0a\x01h\x12\x01b\x1a\x01p"
    receipt = node_pb.PublishReceipt(
        verdict=1, code=2, reason="r", stored=True, peers_sent=5, message_id=b"m", expected_seq=7
    )
    golden = b"\x08\x01\x10\x02\x1a\x01r\x20\x01\x28\x05\x32\x01m\x38\x07"
    assert receipt.SerializeToString(deterministic=True) == golden


def test_golden_service_names() -> None:
    """P37: package, services and calls are the published ones."""
    sync = pb.DESCRIPTOR.services_by_name["RelaySync"]
    node = node_pb.DESCRIPTOR.services_by_name["RelayNode"]

    assert sync.full_name == "lux.relay.v1.RelaySync"
    calls = [method.name for method in sync.methods]
    assert calls[:4] == ["SyncNamespace", "GetMessages", "GetNamespaceHead", "ListHeads"]
    assert calls[4:] == ["ListHeld", "GetDigests", "Reconcile", "GetBlob", "GetBlobParts"]
    calls = [method.name for method in node.methods]
    assert calls == ["Publish", "Subscribe", "GetReceipts", "GetQuotas", "SetWatermarks"]


# Pages


def test_take_plain_and_grouped_frames() -> None:
    """One message a frame and many a frame make the same page."""
    plain, grouped = check(), check()
    for seq in (1, 2, 3):
        plain.take(frame(seq))
    grouped.take(pb.StoredMessage(batch=[frame(1), frame(2), frame(3)]))
    for each in (plain, grouped):
        each.take(from_status(SyncStatus(last_seq=3, complete=True)))

    assert plain.page() == grouped.page()
    assert [message.seq for message in plain.page().messages] == [1, 2, 3]


def test_take_the_candidates_of_a_slot() -> None:
    """J11: a sequence may come again, it may not go back."""
    page = check()
    page.take(frame(2))
    page.take(frame(2))
    with pytest.raises(ValueError, match="follows"):
        page.take(frame(1))


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([frame(1, namespace=b"x" * 20)], "another namespace"),
        ([frame(10)], "outside"),
        ([pb.StoredMessage(header=b"short")], "a header of 5 bytes"),
        ([pb.StoredMessage(header=bytes(c.MAX_HEADER_BYTES + 1))], "a header of 8193"),
        ([frame(1, blob=bytes(c.MAX_BLOB_BYTES + 1))], "a blob of"),
        ([frame(seq) for seq in range(1, 7)], "more than 5 messages"),
        ([frame(1, blob=bytes(9_000)), frame(2, blob=bytes(9_000))], "more than 10000 bytes"),
        ([from_status(SyncStatus(last_seq=4))], "another last sequence"),
        ([from_status(SyncStatus(has_more=True, next_cursor=b"c"))], "no way on"),
        ([frame(1), from_status(SyncStatus(last_seq=1, has_more=True))], "no way on"),
        ([from_status(SyncStatus()), from_status(SyncStatus())], "follows the status"),
        (
            [from_status(SyncStatus(gaps=tuple(SeqRange(n, n) for n in (1, 3, 5))))],
            "more than 2 gaps",
        ),
        ([from_status(SyncStatus(gaps=(SeqRange(3, 2),)))], "gaps out of order"),
        ([from_status(SyncStatus(gaps=(SeqRange(3, 4), SeqRange(4, 5))))], "gaps out of order"),
        ([from_status(SyncStatus(gaps=(SeqRange(0, 4),)))], "gaps out of order"),
    ],
)
def test_refuse_what_was_not_asked(frames: list[pb.StoredMessage], says: str) -> None:
    """Each way of answering something else has its words."""
    page = check()
    *before, last = frames
    for each in before:
        page.take(each)
    with pytest.raises(ValueError, match=says):
        page.take(last)


def test_refuse_a_page_without_an_end() -> None:
    """P23: without a status nobody knows whether the page is whole."""
    with pytest.raises(ValueError, match="without a status"):
        check().page()


def test_let_one_large_message_through() -> None:
    """The first message may exceed the byte bound alone, or a page could never move on."""
    page = check(bytes_max=1)
    page.take(frame(1, blob=bytes(5_000)))
    page.take(from_status(SyncStatus(last_seq=1, has_more=True, next_cursor=b"c")))
    assert len(page.page().messages) == 1


@given(st.binary(max_size=200))
def test_refuse_garbage_with_one_error(data: bytes) -> None:
    """Whatever protobuf can parse, a check takes it or raises ValueError."""
    try:
        parsed = pb.StoredMessage.FromString(data)
    except Exception:  # noqa: BLE001 - protobuf's own error, raised before us
        return
    page = check()
    try:
        page.take(parsed)
        page.page()
    except ValueError:
        pass


# Values


@given(
    st.builds(
        SyncStatus,
        complete=st.booleans(),
        last_seq=st.integers(0, 2**64 - 1),
        has_more=st.booleans(),
        earliest_seq=st.integers(0, 2**64 - 1),
        gaps=st.lists(
            st.builds(SeqRange, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=3
        ).map(tuple),
        next_cursor=st.binary(max_size=40),
    )
)
def test_status_round_trip(status: SyncStatus) -> None:
    """A status survives the wire."""
    wire = from_status(status).SerializeToString()
    assert to_status(pb.StoredMessage.FromString(wire).status) == status


def test_receipt_round_trip() -> None:
    """A receipt survives the wire."""
    receipt = PublishReceipt(
        verdict=2, code=1005, reason="bad signature", stored=False, peers_sent=0,
        message_id=bytes(32), expected_seq=9,
    )  # fmt: skip
    assert [to_receipt(each) for each in from_receipts([receipt]).receipts] == [receipt]


def test_items_in_bounded_requests() -> None:
    """Requests hold publish_items and publish_bytes at most, and every item once, in order."""
    items = [PublishItem(header=bytes([n]), blob=bytes(50)) for n in range(10)]

    by_count = list(publish_frames(items, 4, 10_000))
    by_bytes = list(publish_frames(items, 100, 120))

    assert [len(each.items) for each in by_count] == [4, 4, 2]
    assert [len(each.items) for each in by_bytes] == [2] * 5
    assert [item for each in by_count for item in to_items(each)] == items
    assert list(publish_frames([], 4, 100)) == []


def test_head_of_a_plain_relay() -> None:
    """A relay that leaves our ids out answers for the namespace that was asked."""
    head = to_head(pb.NamespaceHeadResponse(latest_seq=4), NS)
    assert (head.namespace_id, head.parent_id, head.latest_seq) == (NS, NS, 4)


@pytest.mark.parametrize(
    "answer",
    [
        pb.NamespaceHeadResponse(),
        pb.NamespaceHeadResponse(namespace_id=b"x"),
        pb.NamespaceHeadResponse(namespace_id=NS, parent_id=b"x"),
        pb.NamespaceHeadResponse(namespace_id=NS, latest_header_hash=b"x"),
    ],
)
def test_refuse_a_malformed_head(answer: pb.NamespaceHeadResponse) -> None:
    """Ids and hashes have their lengths."""
    with pytest.raises(ValueError, match="head with"):
        to_head(answer, b"")


def test_message_keeps_every_field() -> None:
    """What the relay says of a message arrives with it (P36)."""
    sent = frame(3, blob=b"b")
    sent.received_at, sent.expires_at, sent.finality = 5, 6, 1

    message = to_message(sent)

    assert (message.blob, message.received_at, message.expires_at, message.finality) == (
        b"b", 5, 6, 1,
    )  # fmt: skip


def test_reject_receipt_with_an_unknown_verdict() -> None:
    """A verdict is one of three; a relay that says another is not understood by guessing."""
    with pytest.raises(ValueError, match="verdict 3"):
        to_receipt(node_pb.PublishReceipt(verdict=3))
