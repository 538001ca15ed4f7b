"""The deletion cycle removes what is past its time, whole, in chunks, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.store import CycleStats, RelayStore, layout
from luxrelay.store.writer import Writer

Opener = Callable[..., RelayStore]
TTL = 600_000


def stats(removed: int, namespaces: int, hit_limit: bool = False) -> CycleStats:
    """Return the stats of a cycle."""
    return CycleStats(removed_count=removed, namespaces_processed=namespaces, hit_limit=hit_limit)


def test_delete_at_the_ttl_and_not_before(forge: Any, open_store: Opener, now: int) -> None:
    """At 599,999 ms a message stays, at 600,000 ms it goes with all its rows (21-10, 21-48)."""
    store = open_store()
    store.put_many([forge.message(1)], now)

    assert store.expire(now + TTL - 1) == stats(0, 0)
    assert store.expire(now + TTL) == stats(1, 1)
    for family in layout.FAMILIES:
        if family not in {layout.NAMESPACES, layout.LANES, layout.META}:
            assert list(store._database.keys(family, b"", b"")) == []


def test_delete_only_what_is_due(forge: Any, open_store: Opener, now: int) -> None:
    """Messages of one namespace go one by one as their time comes (21-45)."""
    store = open_store()
    store.put_many([forge.message(seq, at=now + seq) for seq in (1, 2, 3, 4)], now + 4)

    assert store.expire(now + TTL + 2) == stats(2, 1)
    head = store.head(forge.message(1).parent)
    assert (head.earliest_seq, head.messages, head.floor, head.contiguous_seq) == (3, 2, 2, 4)
    assert store.verify() == []


def test_a_wholly_aged_namespace_keeps_its_head(forge: Any, open_store: Opener, now: int) -> None:
    """Last sequence, hash and time stay when every message has gone (retention document)."""
    store = open_store()
    store.put_many([forge.message(seq) for seq in (1, 2, 3)], now)
    before = store.head(forge.message(1).parent)
    store.expire(now + TTL)
    after = store.head(forge.message(1).parent)

    assert (after.latest_seq, after.contiguous_seq, after.floor) == (3, 3, 3)
    assert after.latest_header_hash == before.latest_header_hash
    assert after.latest_timestamp == before.latest_timestamp
    assert (after.earliest_seq, after.messages, after.size_bytes) == (0, 0, 0)
    store.close()
    assert open_store().head(forge.message(1).parent) == after


def test_expiry_forgives_the_holes_below(forge: Any, open_store: Opener, now: int) -> None:
    """A hole below an expired message has expired as well; the head moves on (P25)."""
    store = open_store()
    store.put_many(
        [forge.message(1), forge.message(3, at=now + 1), forge.message(4, at=now + 2)], now + 2
    )
    namespace = forge.message(1).parent
    assert store.gaps(namespace) == [(2, 2)]
    store.expire(now + TTL + 1)

    assert store.gaps(namespace) == []
    assert store.head(namespace).contiguous_seq == 4


def test_a_cycle_stops_at_its_limit(forge: Any, open_store: Opener, now: int) -> None:
    """gc_batch_limit bounds a cycle, and hit_limit says that more waits."""
    store = open_store(gc_batch_limit=5, gc_chunk_size=2)
    store.put_many([forge.message(seq) for seq in range(1, 11)], now)

    assert store.expire(now + TTL) == stats(5, 1, hit_limit=True)
    assert store.expire(now + TTL) == stats(5, 1, hit_limit=False)
    assert store.expire(now + TTL) == stats(0, 0)
    assert store.verify() == []


def test_a_chunk_bounds_one_hold_of_the_lock(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than gc_chunk_size messages go while writers wait."""
    store = open_store(gc_chunk_size=4)
    store.put_many([forge.message(seq) for seq in range(1, 11)], now)
    sizes = []
    real = Writer.remove_expired

    def watched(writer: Writer, now_ms: int, limit: int) -> Any:
        removed = real(writer, now_ms, limit)
        sizes.append(len(removed))
        return removed

    monkeypatch.setattr(Writer, "remove_expired", watched)
    store.expire(now + TTL)

    assert sizes == [4, 4, 2]


def test_count_the_namespaces(forge: Any, open_store: Opener, now: int) -> None:
    """namespaces_processed counts each namespace once."""
    store = open_store(gc_chunk_size=2)
    store.put_many([forge.in_lane(seq, sender) for sender in (1, 2, 3) for seq in (1, 2)], now)

    assert store.expire(now + TTL) == stats(6, 3)


def test_a_slot_keeps_its_id_until_its_last_candidate_goes(
    forge: Any, open_store: Opener, now: int
) -> None:
    """The id row of a slot is shared by its candidates (P10)."""
    store = open_store()
    early, late = forge.message(1, sender=1), forge.message(1, sender=2, at=now + 1000)
    store.put_many([early, late], now + 1000)
    store.expire(now + TTL)

    found, _ = store.get_messages([late.header.message_id], now + TTL)
    assert [message.header.content_id for message in found] == [late.header.content_id]
    assert store.verify() == []
    store.expire(now + TTL + 1000)
    assert list(store._database.keys(layout.SLOTS, b"", b"")) == []


def test_a_message_that_came_after_a_later_cycle_goes_too(
    forge: Any, open_store: Opener, now: int
) -> None:
    """A clock that went back between cycles leaves nothing behind (21-14)."""
    store = open_store()
    store.expire(now + 10 * TTL)
    store.put_many([forge.message(1)], now)

    assert store.expire(now + TTL) == stats(1, 1)


def test_expiry_after_a_restart(forge: Any, open_store: Opener, now: int) -> None:
    """Expiry times are on disk: a reopened store deletes what is due."""
    store = open_store()
    store.put_many([forge.message(seq) for seq in (1, 2)], now)
    store.close()
    again = open_store()

    assert again.expire(now + TTL) == stats(2, 1)
    assert again.verify() == []


def test_put_again_after_expiry(forge: Any, open_store: Opener, now: int) -> None:
    """A namespace goes on after its messages have gone, in the same and in the next batch."""
    store = open_store()
    store.put_many([forge.message(seq) for seq in (1, 2)], now)
    store.expire(now + TTL)
    store.put_many([forge.message(seq, at=now + TTL) for seq in (3, 5)], now + TTL)
    head = store.head(forge.message(1).parent)

    assert (head.earliest_seq, head.contiguous_seq, head.latest_seq) == (3, 3, 5)
    assert store.gaps(forge.message(1).parent) == [(4, 4)]
    assert store.verify() == []
