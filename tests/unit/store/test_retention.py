"""The deletion cycle removes what is past its time, whole, in chunks, and nothing else."""

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.store import CycleStats, Lack, RelayStore, layout
from luxrelay.store.rocks import Database
from luxrelay.store.writing import writer
from luxrelay.store.writing.writer import Writer

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
    for kind in layout.KINDS:
        assert list(store._ledger.slices.keys(kind, b"", b"")) == []


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
    """No more than gc_chunk_size messages of a swept slice go while writers wait."""
    store = open_store(gc_chunk_size=4, slice_ms=2 * TTL)
    store.put_many([forge.message(seq) for seq in range(1, 11)], now)
    sizes = []
    real = Writer.remove_expired

    def watched(writer: Writer, now_ms: int, limit: int) -> Any:
        removed = real(writer, now_ms, limit)
        sizes.append(removed.looked_at)
        return removed

    monkeypatch.setattr(Writer, "remove_expired", watched)
    store.expire(now + TTL)

    assert sizes == [4, 4, 2, 0]


@pytest.mark.parametrize("bounds", [(2, 100), (1_000, 2)])
def test_a_put_waits_for_one_chunk_at_most(
    forge: Any,
    open_store: Opener,
    now: int,
    monkeypatch: pytest.MonkeyPatch,
    bounds: tuple[int, int],
) -> None:
    """A put goes in after the chunk that runs, or after a piece of it (retention document)."""
    chunk, piece = bounds
    monkeypatch.setattr(writer, "PIECE_MAX", piece)
    store = open_store(gc_chunk_size=chunk)
    store.put_many([forge.message(seq) for seq in range(1, 41)], now)
    marker = store._marker
    assert marker is not None
    marker.close()  # nobody else wants the lock
    inside, go_on = threading.Event(), threading.Event()
    writes: list[str] = []
    real = Database.write

    def watched(database: Database, batch: Any) -> None:
        writes.append(threading.current_thread().name)
        real(database, batch)
        if writes == ["cycle"]:
            inside.set()
            go_on.wait(30)

    monkeypatch.setattr(Database, "write", watched)
    cycle = threading.Thread(target=store.expire, args=(now + TTL,), name="cycle")
    fresh = [forge.message(50, at=now + TTL)]
    put = threading.Thread(target=store.put_many, args=(fresh, now + TTL), name="put")
    cycle.start()
    assert inside.wait(30)
    put.start()
    while not store._writer.lock.is_wanted():
        threading.Event().wait(0.001)
    go_on.set()
    put.join()
    cycle.join()

    assert writes[:2] == ["cycle", "put"]
    assert writes.count("cycle") == 20


def test_a_clock_that_jumps_deletes_nothing(forge: Any, open_store: Opener, now: int) -> None:
    """A wall clock set an hour ahead pauses deletion and raises the alarm (21-14, P43)."""
    store = open_store(clock_settle_ms=1_000_000)
    store.put_many([forge.message(seq) for seq in (1, 2)], now)
    store.expire(now, 100.0)
    paused = store.expire(now + 3_600_000 + 1_000, 101.0)

    assert (paused.removed_count, paused.hit_limit, paused.paused) == (0, False, True)
    assert store.stats().messages == 2
    assert store.stats().gc.clock_moved_ms == 3_600_000
    assert not store.expire(now + 2_000, 102.0).paused
    assert store.stats().gc.clock_moved_ms == 0
    assert store.stats().gc.clock_alarms == 1
    assert store.expire(now + TTL, 102.0 + TTL / 1000).removed_count == 2


def test_a_jump_before_the_first_cycle_deletes_nothing(
    forge: Any, open_store: Opener, now: int
) -> None:
    """The clocks are compared from the opening on (21-14, P43)."""
    store = open_store(now=100.0)
    store.put_many([forge.message(1)], now)
    paused = store.expire(now + 3_600_000 + 1_000, 101.0)

    assert (paused.removed_count, paused.paused) == (0, True)
    assert store.stats().gc.clock_moved_ms == 3_600_000
    assert not store.expire(now + 2_000, 102.0).paused


def test_a_jump_between_two_cycles_makes_nobody_old(
    forge: Any, open_store: Opener, now: int
) -> None:
    """A full store that has not noticed yet makes room by quota, not by age (P13, P43)."""
    store = open_store(max_storage_bytes=10_000, gc_interval_ms=60_000, now=100.0)
    later = now + 2 * TTL
    store.put_many([forge.message(seq) for seq in range(1, 4)], now)
    store.put_many([forge.message(seq, at=later) for seq in range(4, 41)], later)

    stats = store.stats()
    assert stats.removed == 0
    assert stats.evicted[Lack.STORE] == 40 - stats.messages > 0


def test_a_jump_that_stays_is_believed_in_the_end(forge: Any, open_store: Opener, now: int) -> None:
    """After clock_settle_ms at its new time the clock is trusted again (P43)."""
    store = open_store(clock_settle_ms=60_000)
    store.put_many([forge.message(1)], now)
    store.expire(now, 0.0)
    assert store.expire(now + TTL + 1_000, 1.0).paused

    assert store.expire(now + TTL + 60_999, 60.999).paused
    assert store.expire(now + TTL + 61_000, 61.0).removed_count == 1


def test_room_is_made_while_the_clock_is_doubted(forge: Any, open_store: Opener, now: int) -> None:
    """Eviction by quota needs no clock, and the expired do not go first then (P13, P43)."""
    store = open_store(max_storage_bytes=10_000)
    store.put_many([forge.message(seq) for seq in range(1, 4)], now)
    store.expire(now, 0.0)
    later = now + 2 * TTL
    assert store.expire(later, 1.0).paused
    store.put_many([forge.message(seq, at=later) for seq in range(4, 41)], later)

    stats = store.stats()
    assert stats.removed == 0
    assert stats.evicted[Lack.STORE] == 40 - stats.messages > 0
    assert store.expire(later, 1.0).paused


def test_a_shorter_window_applies_to_what_is_there(
    forge: Any, open_store: Opener, now: int
) -> None:
    """A store opened with a shorter retention window forgets by it at the next cycle (J2)."""
    store = open_store()
    store.put_many([forge.message(seq, at=now + seq) for seq in (1, 2, 3)], now)
    store.close()
    again = open_store(retention_window_ms=1_000)

    assert again.expire(now + 1_002) == stats(2, 1)
    assert again.stats().gc.cutoff_ms == now + 2
    assert again.stats().oldest_timestamp == now + 3
    assert again.verify() == []


def test_statistics_of_the_cycles(forge: Any, open_store: Opener, now: int) -> None:
    """Cycles, messages, namespaces, cut-off and durations are counted (21-46)."""
    store = open_store(gc_batch_limit=2)
    store.put_many([forge.in_lane(1, sender) for sender in (1, 2, 3)], now)
    assert store.stats().gc.cutoff_ms == 0
    for _ in range(2):
        store.expire(now + TTL)
    gc = store.stats().gc

    assert (gc.cycles, gc.messages_deleted, gc.namespaces_processed) == (2, 3, 3)
    assert gc.cutoff_ms == now + TTL - store.config.retention_window_ms
    assert gc.duration_buckets[-1] == (math.inf, 2)
    assert gc.duration_sum_s > 0
    assert not gc.running


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
    assert list(store._ledger.slices.keys(layout.SLOTS, b"", b"")) == []


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
