"""What the wire adds to LP-6421: lanes in one call, watermarks, intervals, digests, blobs."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from grpc import ServicerContext, StatusCode

from luxrelay.bus import NamespaceId, sha3_commitment
from luxrelay.errors import SyncArgumentError, SyncRemoteError
from luxrelay.store import RelayStore
from luxrelay.sync import (
    LaneRange,
    RelaySyncClient,
    SeqRange,
    SyncClientConfig,
    SyncServerConfig,
    Watermark,
)
from luxrelay.sync.rpc.config import LANES_MAX, WATERMARKS_MAX
from luxrelay.sync.rpc.reading import SyncServicer
from luxrelay.sync.rpc.uplink import BlobUplink

if TYPE_CHECKING:
    from tests.integration.sync.conftest import Harbour


def filled(harbour: Harbour, lanes: int, each: int) -> tuple[RelayStore, list[NamespaceId]]:
    """Return a store with ``each`` messages in each of some lanes, and the lanes."""
    authors = [harbour.author(number) for number in range(1, lanes + 1)]
    store = harbour.store([m for a in authors for m in a.messages(range(1, each + 1))])
    return store, [a.lane for a in authors]


@pytest.mark.parametrize("frame_messages", [1, 7, 256])
def test_several_lanes_in_one_call(harbour: Harbour, frame_messages: int) -> None:
    """21-18: lanes of one call come in order, each whole, each with its status."""
    store, lanes = filled(harbour, 5, 10)
    address = harbour.serve(store)
    client = harbour.client(address, SyncClientConfig(frame_messages=frame_messages))

    pages = client.sync_lanes(
        [LaneRange(namespace_id=lane, from_seq=3, to_seq=8) for lane in lanes]
    )

    assert [page.namespace_id for page in pages] == lanes
    for page in pages:
        assert [message.seq for message in page.messages] == [4, 5, 6, 7, 8]
        assert (page.status.last_seq, page.status.has_more) == (8, False)


def test_lanes_end_where_the_page_is_full(harbour: Harbour) -> None:
    """21-20, 21-22: a full page ends within a lane, says so, and names no lane after it."""
    store, lanes = filled(harbour, 4, 10)
    client = harbour.client(harbour.serve(store))
    asked = [LaneRange(namespace_id=lane) for lane in lanes]

    pages = client.sync_lanes(asked, 25)

    assert [len(page.messages) for page in pages] == [10, 10, 5]
    assert [page.status.has_more for page in pages] == [False, False, True]
    assert not pages[2].status.complete


@pytest.mark.parametrize("page", [1, 7, 10, 1_000])
def test_iterate_lanes_to_their_end(harbour: Harbour, page: int) -> None:
    """P24: whatever the page, every message of every lane comes once and in order."""
    store, lanes = filled(harbour, 3, 10)
    client = harbour.client(harbour.serve(store))

    found: dict[bytes, list[int]] = {}
    for part in client.iter_lanes([LaneRange(namespace_id=lane) for lane in lanes], page):
        found.setdefault(part.namespace_id, []).extend(m.seq for m in part.messages)

    assert found == {lane: list(range(1, 11)) for lane in lanes}


def test_lanes_by_bytes(harbour: Harbour) -> None:
    """A page of lanes ends before the message that does not fit; the next call begins there."""
    store, lanes = filled(harbour, 2, 3)
    client = harbour.client(harbour.serve(store))
    first = client.sync_page(lanes[0]).messages
    size = sum(len(m.header) + len(m.blob) for m in first)

    pages = client.sync_lanes([LaneRange(namespace_id=lane) for lane in lanes], max_bytes=size)

    assert [page.namespace_id for page in pages] == lanes[:1]
    assert len(pages[0].messages) == 3


def test_unknown_lanes_end_at_once(harbour: Harbour) -> None:
    """A namespace the relay does not know has a status and no messages."""
    store, lanes = filled(harbour, 1, 2)
    client = harbour.client(harbour.serve(store))

    pages = client.sync_lanes(
        [LaneRange(namespace_id=NamespaceId(b"\x09" * 20)), LaneRange(namespace_id=lanes[0])]
    )

    assert [len(page.messages) for page in pages] == [0, 2]


def test_refuse_lanes_that_cannot_be_served(harbour: Harbour) -> None:
    """Too many lanes, or one twice, are refused before and behind the wire."""
    store, lanes = filled(harbour, 1, 1)
    client = harbour.client(harbour.serve(store, SyncServerConfig(lanes_max=2)))
    one = LaneRange(namespace_id=lanes[0])
    many = [LaneRange(namespace_id=NamespaceId(bytes([n]) * 20)) for n in (3, 4, 5)]

    with pytest.raises(SyncArgumentError, match="twice"):
        client.sync_lanes([one, one])
    with pytest.raises(SyncArgumentError):
        client.sync_lanes(many * (LANES_MAX // 3 + 1))
    with pytest.raises(SyncRemoteError, match="send 2 at most"):
        client.sync_lanes(many)


def test_watermark_moves_and_stays(harbour: Harbour) -> None:
    """21-51: an archive moves its watermark, never back, and heads show it (J8)."""
    store, lanes = filled(harbour, 1, 5)
    client = harbour.client(harbour.serve(store, handoff=store))
    parent = NamespaceId(harbour.parent)

    def mark(seq: int | None) -> Watermark:
        return Watermark(namespace_id=lanes[0], parent_id=parent, seq=seq)

    assert client.get_head(lanes[0]).watermark is None
    assert client.set_watermarks([mark(3)]) == [mark(3)]
    assert client.set_watermarks([mark(1)]) == [mark(3)]
    assert client.get_head(lanes[0]).watermark == 3
    assert client.set_watermarks([mark(None)]) == [mark(None)]
    assert store.watermark(lanes[0]) is None


def test_nobody_moves_a_watermark_unasked(harbour: Harbour) -> None:
    """A relay that keeps nothing for an archive refuses, and too many are refused."""
    store, lanes = filled(harbour, 1, 1)
    mark = Watermark(namespace_id=lanes[0], parent_id=NamespaceId(harbour.parent), seq=1)

    with pytest.raises(SyncRemoteError, match="PERMISSION_DENIED"):
        harbour.client(harbour.serve(store)).set_watermarks([mark])
    with pytest.raises(SyncArgumentError):
        harbour.client(harbour.serve(store)).set_watermarks([mark] * (WATERMARKS_MAX + 1))
    small = harbour.serve(store, SyncServerConfig(watermarks_max=1), handoff=store)
    with pytest.raises(SyncRemoteError, match="send 1 at most"):
        harbour.client(small).set_watermarks([mark, mark])


def test_serve_what_waits_for_the_archive(harbour: Harbour) -> None:
    """J8: what is past its time comes with ``held`` alone."""
    store, lanes = filled(harbour, 1, 4)
    store.set_watermark(lanes[0], NamespaceId(harbour.parent), 1)
    later = harbour.base_ms + store.config.cold_store_ttl_ms + 60_000
    client = harbour.client(harbour.serve(store, now_ms=later))

    assert client.sync_page(lanes[0]).messages == []
    assert [m.seq for m in client.sync_page(lanes[0], held=True).messages] == [1, 2, 3, 4]
    held = client.sync_lanes([LaneRange(namespace_id=lanes[0])], held=True)
    assert len(held[0].messages) == 4


def test_list_intervals(harbour: Harbour) -> None:
    """P26: a relay names what it holds as intervals, page by page, and says when it cuts."""
    one, two = harbour.author(1), harbour.author(2)
    store = harbour.store([*one.messages([1, 2, 3, 7, 9]), *two.messages([2])])
    client = harbour.client(harbour.serve(store), SyncClientConfig(heads_page=1))

    lanes = {lane.namespace_id: lane for lane in client.list_held(harbour.parent)}

    assert lanes[one.lane].spans == (SeqRange(1, 3), SeqRange(7, 7), SeqRange(9, 9))
    assert lanes[two.lane].spans == (SeqRange(2, 2),)
    assert {lane.parent_id for lane in lanes.values()} == {harbour.parent}
    cut = harbour.client(harbour.serve(store, SyncServerConfig(intervals_max=1)))
    cut_lanes = {lane.namespace_id: lane for lane in cut.list_held()}
    assert cut_lanes[one.lane].cut
    assert cut_lanes[one.lane].spans == (SeqRange(1, 3),)


def test_digests_tell_blocks_apart(harbour: Harbour) -> None:
    """P26: equal blocks have equal digests, a fork or a hole changes its own block only."""
    writer = harbour.author(1)
    whole = writer.messages(range(1, 601))
    forked = [*whole[:299], writer.message(300, blob=b"another"), *whole[300:]]
    first = harbour.relay(whole)
    second = harbour.relay(forked)

    ours, theirs = (each.get_digests(writer.lane, 0, 4) for each in (first, second))

    assert [a == b for a, b in zip(ours, theirs, strict=True)] == [True, False, True, True]
    assert ours[3] == b""
    expected = hashlib.sha3_256(b"".join(m.header.header_hash for m in whole[:256])).digest()
    assert ours[0] == expected
    with pytest.raises(SyncRemoteError, match="blocks"):
        first.get_digests(writer.lane, 0, 65)


def test_fetch_by_content_id(harbour: Harbour) -> None:
    """J11: messages come by content id, in as many answers as it takes; others are missing."""
    writer = harbour.author(1)
    messages = [writer.message(seq, blob=bytes(900_000)) for seq in range(1, 8)]
    client = harbour.relay(messages)
    ids = [m.header.content_id for m in messages]

    found, missing = client.get_contents([*ids, b"\x05" * 32])

    assert [message.seq for message in found] == list(range(1, 8))
    assert missing == [b"\x05" * 32]


def test_fetch_a_blob_of_the_own_store(harbour: Harbour) -> None:
    """21-37: a relay answers with the blob it holds, or that it has none."""
    writer = harbour.author(1)
    client: RelaySyncClient = harbour.relay([writer.message(1, blob=b"payload")])

    assert client.get_blob(sha3_commitment(b"payload")) == b"payload"
    assert client.get_blob(sha3_commitment(b"another")) is None


@pytest.mark.parametrize("old", [False, True])
def test_parts_of_a_blob(harbour: Harbour, monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    """P50: frames of 32 KiB from the byte asked for; of an earlier relay the whole, cut here."""
    blob = bytes(range(256)) * 400
    if old:

        def unknown(self: SyncServicer, request: object, context: ServicerContext) -> None:
            del self, request
            context.abort(StatusCode.UNIMPLEMENTED, "Method not found!")

        monkeypatch.setattr(SyncServicer, "GetBlobParts", unknown)
    client: RelaySyncClient = harbour.relay([harbour.author(1).message(1, blob=blob)])
    key = sha3_commitment(blob)

    for offset, count in ((0, 0), (7, 0), (40_000, 50_000), (len(blob) - 1, 5)):
        answer = client.get_blob_parts(key, offset, count)
        assert answer is not None
        parts = list(answer.parts)
        assert b"".join(parts) == blob[offset : offset + count if count else None]
        assert answer.total == len(blob)
        assert old or max(map(len, parts)) <= 32 * 1024
    assert client.get_blob_parts(sha3_commitment(b"another")) is None
    if not old:
        with pytest.raises(SyncRemoteError, match="of 102400"):
            client.get_blob_parts(key, len(blob))
    with pytest.raises(SyncArgumentError):
        client.get_blob_parts(key, -1)


def test_receipts_of_a_relay_that_takes_nothing(harbour: Harbour) -> None:
    """A relay without a publisher keeps no receipts and says so."""
    store: RelayStore = harbour.store()
    with pytest.raises(SyncRemoteError, match="does not offer"):
        harbour.client(harbour.serve(store)).get_receipts([b"\x01" * 32])


def test_a_question_for_parts_may_be_put_off(
    harbour: Harbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P52: over gRPC only who says so is put off, with the time; who does not is served."""
    begin = BlobUplink.begin

    def full(
        uplink: BlobUplink,
        commitment: bytes,
        asker: str,
        size: int,
        *,
        must: bool = False,
        measured: bool = True,
    ) -> float:
        assert asker
        assert not measured
        return begin(uplink, commitment, asker, size, must=must, measured=False) if must else 2.5

    monkeypatch.setattr(BlobUplink, "begin", full)
    blob = b"payload" * 1_000
    client = harbour.relay([harbour.author(1).message(1, blob=blob)])
    key = sha3_commitment(blob)

    put_off = client.get_blob_parts(key, may_wait=True)
    assert put_off is not None
    assert (put_off.later_s, list(put_off.parts)) == (2.5, [])
    assert client.get_blob(key) == blob
    assert client.get_blob_parts(bytes(32), may_wait=True) is None
