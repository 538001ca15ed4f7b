"""What a store answers is what it holds, within bounds."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from luxrelay.bus import ContentId, NamespaceId
from luxrelay.store import NamespaceQuery, RelayStore, TimeQuery
from luxrelay.store.ledger import Ledger

Opener = Callable[..., RelayStore]


def test_know_what_is_held(forge: Any, open_store: Opener, now: int) -> None:
    """`has` answers by content id (J11)."""
    store = open_store()
    store.put_many([forge.message(1)], now)

    assert store.has(forge.message(1).header.content_id)
    assert not store.has(ContentId(bytes(32)))


def test_the_head_has_every_field(forge: Any, open_store: Opener, now: int) -> None:
    """Earliest, contiguous, latest, hash and time, with a hole between (21-24, P22)."""
    store = open_store()
    store.put_many([forge.in_lane(seq, 1, at=now + seq) for seq in (2, 3, 6)], now)
    store.skip_to(forge.lane(1), forge.in_lane(1, 1).parent, 1)
    head = store.head(forge.lane(1))
    latest = forge.in_lane(6, 1, at=now + 6).header

    assert (head.earliest_seq, head.contiguous_seq, head.latest_seq) == (2, 3, 6)
    assert (head.finalized_seq, head.floor, head.messages) == (0, 1, 3)
    assert head.latest_header_hash == latest.header_hash
    assert head.latest_timestamp == latest.timestamp
    assert head.size_bytes == store.stats().size_bytes


def test_an_empty_head_is_zero(open_store: Opener) -> None:
    """An unknown namespace has a head of zeros (21-24)."""
    head = open_store().head(NamespaceId(b"u" * 20))

    assert (head.latest_seq, head.messages, head.latest_header_hash) == (0, 0, bytes(32))


def test_gaps_are_bounded(forge: Any, open_store: Opener, now: int) -> None:
    """The caller's limit and gaps_max both hold."""
    store = open_store(gaps_max=2)
    store.put_many([forge.message(seq) for seq in (2, 4, 6, 8)], now)
    namespace = forge.message(1).parent

    assert store.gaps(namespace, 1) == [(1, 1)]
    assert store.gaps(namespace, 99) == store.gaps(namespace) == [(1, 1), (3, 3)]
    assert store.gaps(NamespaceId(b"u" * 20)) == []


def test_heads_are_bounded(forge: Any, open_store: Opener, now: int) -> None:
    """heads_max bounds an answer; the cursor goes on (J6)."""
    store = open_store(heads_max=2)
    store.put_many([forge.in_lane(1, sender) for sender in range(5)], now)
    parent = forge.in_lane(1, 1).parent
    seen, cursor = [], b""
    while True:
        heads, cursor = store.heads(parent, cursor, 99)
        assert len(heads) <= 2
        seen += [head.namespace_id for head in heads]
        if not cursor:
            break

    assert seen == sorted(forge.lane(sender) for sender in range(5))
    assert [head.namespace_id for head in store.heads(None, b"", 2)[0]] == seen[:2]


def test_a_lane_that_is_just_being_stored_is_no_damage(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are written before the state is told: who lists heads in between waits for it."""
    store = open_store()
    publish, written, told = Ledger.publish, threading.Event(), threading.Event()

    def later(*arguments: Any) -> None:
        written.set()
        assert told.wait(10)
        publish(*arguments)

    monkeypatch.setattr(Ledger, "publish", later)
    with ThreadPoolExecutor(2) as threads:
        putting = threads.submit(store.put_many, [forge.in_lane(1, 1)], now)
        assert written.wait(60)
        listing = threads.submit(store.heads, forge.in_lane(1, 1).parent, b"", 9)
        with pytest.raises(TimeoutError):
            listing.result(0.2)
        told.set()
        putting.result(60)
        heads, _ = listing.result(60)

    assert [head.namespace_id for head in heads] == [forge.lane(1)]


def test_the_newest_message_is_served(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """A message one second old is in every answer, hot or not (21-17, P4)."""
    store = open_store()
    message = forge.message(1)
    store.put_many([message], now)
    at = now + 1_000

    page = store.query(NamespaceQuery(namespace_id=parent), at)  # what sync reads pages from
    assert [each.header for each in page.messages] == [message.header]
    assert len(store.query_time(TimeQuery(from_time=now), at).messages) == 1
    assert len(store.get_messages([message.header.message_id], at)[0]) == 1
    assert len(store.get_contents([message.header.content_id], at)[0]) == 1
    assert store.head(parent).latest_seq == 1
