"""Pages out of a store, without a network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from luxrelay.bus import MsgHeader, NamespaceId, sha3_commitment
from luxrelay.errors import SyncArgumentError
from luxrelay.store import NamespaceHead, NamespaceQuery, QueryPage, StoredMessage
from luxrelay.sync.messages import SyncStatus
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.config import SyncServerConfig
from luxrelay.sync.rpc.frames import to_status
from luxrelay.sync.rpc.pages import PageReader, ServedPageRequest

NS = NamespaceId(b"\x22" * 20)
NOW_MS = 1_800_000_000_000


def row(seq: int, size: int) -> StoredMessage:
    """Return a stored message with a blob of ``size`` bytes."""
    header = MsgHeader(
        namespace_id=NS,
        seq=seq,
        timestamp=NOW_MS + seq,
        blob_commitment=sha3_commitment(bytes(size)),
        blob_len=size,
        policy_hash=bytes(32),
        sender_pub_key=b"\1" + bytes(32),
        signature=bytes(64),
    )
    return StoredMessage(
        header_bytes=header.encode(), blob=bytes(size), received_at=NOW_MS, expires_at=NOW_MS + 9
    )


@dataclass
class ListStore:
    """A store that is a list, and remembers what it was asked."""

    rows: list[StoredMessage]
    step: int = 1_000
    """Rows looked at before a page ends early, as in a narrow filter."""
    queries: list[NamespaceQuery] = field(default_factory=list)

    def head(self, namespace_id: NamespaceId) -> NamespaceHead:
        """Return the head."""
        seqs = [each.seq for each in self.rows]
        return NamespaceHead(
            namespace_id=namespace_id,
            parent=namespace_id,
            earliest_seq=min(seqs, default=0),
            latest_seq=max(seqs, default=0),
        )

    def query(self, query: NamespaceQuery, now_ms: int) -> QueryPage:
        """Return a page."""
        assert now_ms == NOW_MS
        self.queries.append(query)
        after = int.from_bytes(query.cursor[:8], "big") if query.cursor else query.from_seq
        ahead = [each for each in self.rows if after < each.seq <= (query.to_seq or 2**64)]
        page: list[StoredMessage] = []
        size = looked = 0
        for each in ahead[: self.step]:
            size += len(each.header_bytes) + len(each.blob or b"")
            if query.admits(each.timestamp):
                if len(page) == query.limit or (page and size > query.max_bytes):
                    break
                page.append(each)
            looked += 1
        more = looked < len(ahead)
        last = ahead[looked - 1] if more else None
        return QueryPage(
            messages=page,
            has_more=more,
            next_cursor=last.seq.to_bytes(8, "big") + last.header.content_id if last else b"",
            earliest_seq=self.head(NS).earliest_seq,
            last_seq=page[-1].seq if page else 0,
            gaps=[],
        )

    def get_messages(self, *_: Any) -> Any:
        """Not asked here."""
        raise AssertionError

    def heads(self, *_: Any) -> Any:
        """Not asked here."""
        raise AssertionError


def read(
    store: ListStore, config: SyncServerConfig | None = None, *, stop: bool = False, **fields: Any
) -> tuple[list[list[int]], SyncStatus]:
    """Return the sequences of each frame, and the status."""
    config = config or SyncServerConfig()
    request = ServedPageRequest.check(pb.SyncRequest(namespace_id=NS, **fields), config)
    reader = PageReader(store, config, request, now_ms=NOW_MS, stop=lambda: stop)
    *frames, last = map(pb.StoredMessage.FromString, reader.frames())
    groups = [frame.batch or [frame] for frame in frames]
    assert sum(len(group) for group in groups) == reader.messages
    numbers = [[MsgHeader.decode(each.header).seq for each in group] for group in groups]
    return numbers, to_status(last.status)


def test_read_in_slices() -> None:
    """21-21: no slice is larger than read_messages and read_bytes, whatever the page."""
    store = ListStore([row(seq, 10) for seq in range(1, 41)])
    config = SyncServerConfig(read_messages=16, read_bytes=2_000)

    frames, status = read(store, config, max_messages=40, max_frame_messages=40)

    assert [seq for frame in frames for seq in frame] == list(range(1, 41))
    assert status.complete
    assert all(query.limit <= 16 and query.max_bytes <= 2_000 for query in store.queries)
    assert len(store.queries) > 4


def test_close_a_frame_by_messages_and_bytes() -> None:
    """A frame holds what the client asked, frame_messages_max and frame_bytes at most."""
    store = ListStore([row(seq, 100) for seq in range(1, 9)])

    asked, _ = read(store, max_frame_messages=3)
    capped, _ = read(store, SyncServerConfig(frame_messages_max=2), max_frame_messages=100)
    sized, _ = read(store, SyncServerConfig(frame_bytes=700), max_frame_messages=100)

    assert [len(frame) for frame in asked] == [3, 3, 2]
    assert [len(frame) for frame in capped] == [2, 2, 2, 2]
    assert [len(frame) for frame in sized] == [2, 2, 2, 2]


def test_cap_what_a_client_may_ask() -> None:
    """P18: page_messages_max and page_bytes_max hold whatever the request says."""
    store = ListStore([row(seq, 100) for seq in range(1, 9)])

    rows, status = read(store, SyncServerConfig(page_messages_max=3), max_messages=1_000)
    size, _ = read(store, SyncServerConfig(page_bytes_max=700), max_bytes=10**9)

    assert [seq for frame in rows for seq in frame] == [1, 2, 3]
    assert (status.has_more, status.last_seq) == (True, 3)
    assert [seq for frame in size for seq in frame] == [1, 2]


def test_go_on_through_rows_that_do_not_match() -> None:
    """A narrow filter makes the store give empty slices; the page goes on to its match."""
    store = ListStore([row(seq, 0) for seq in range(1, 31)], step=4)

    frames, status = read(store, from_timestamp=NOW_MS + 29)

    assert [seq for frame in frames for seq in frame] == [29, 30]
    assert not status.has_more
    assert len(store.queries) > 5


def test_stop_between_slices() -> None:
    """For want of time a page ends after a slice, with more to come and a way on."""
    store = ListStore([row(seq, 0) for seq in range(1, 31)])
    config = SyncServerConfig(read_messages=8)

    frames, status = read(store, config, stop=True)
    rest, _ = read(store, config, cursor=status.next_cursor)

    assert [seq for frame in frames for seq in frame] == list(range(1, 9))
    assert status.has_more
    assert [seq for frame in rest for seq in frame] == list(range(9, 31))


@pytest.mark.parametrize(
    ("seqs", "fields", "gaps"),
    [
        ([1, 2, 3], {}, []),
        ([1, 4], {}, [(2, 3)]),
        ([5, 6], {}, []),
        ([5, 8], {"from_seq": 5}, [(6, 7)]),
        ([1, 8], {"to_seq": 4}, [(2, 4)]),
        ([1, 8], {"to_seq": 20}, [(2, 7)]),
        ([5, 8], {"to_seq": 3}, []),
        ([], {}, []),
    ],
)
def test_name_gaps_in_the_covered_range(
    seqs: list[int], fields: dict[str, int], gaps: list[tuple[int, int]]
) -> None:
    """P23: gaps begin at the relay's earliest sequence and end with range or latest."""
    _, status = read(ListStore([row(seq, 0) for seq in seqs]), **fields)
    assert status.gaps == tuple(gaps)


@pytest.mark.parametrize(
    ("fields", "complete"),
    [
        ({}, False),
        ({"from_seq": 4}, True),
        ({"from_seq": 3}, False),
        ({"to_seq": 3}, False),
        ({"from_timestamp": NOW_MS - 500_000}, True),
        ({"from_timestamp": NOW_MS - 700_000}, False),
    ],
)
def test_tell_too_old_from_complete(fields: dict[str, int], complete: bool) -> None:
    """P23: what begins before the relay's messages is complete only inside its time window."""
    _, status = read(ListStore([row(5, 0), row(6, 0)]), **fields)

    assert status.complete is complete
    assert status.earliest_seq == 5


def test_refuse_a_cursor_of_another_request() -> None:
    """A cursor outside the range it is sent with belongs to another request."""
    cursor = (7).to_bytes(8, "big") + bytes(32)
    config = SyncServerConfig()
    ServedPageRequest.check(pb.SyncRequest(namespace_id=NS, cursor=cursor), config)
    for fields in ({"from_seq": 7}, {"to_seq": 6}):
        with pytest.raises(SyncArgumentError, match="cursor"):
            ServedPageRequest.check(
                pb.SyncRequest(namespace_id=NS, cursor=cursor, **fields), config
            )
