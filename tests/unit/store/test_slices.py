"""Slices are read as one table, cover every expiry once, and go as a whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import StoreError
from luxrelay.store import (
    NamespaceQuery,
    PutOutcome,
    RelayStore,
    RelayStoreConfig,
    SenderQuery,
    TimeQuery,
    layout,
)
from luxrelay.store.rocks import Database
from luxrelay.store.slices import Slice, Slices, _merge

Opener = Callable[..., RelayStore]
TTL = 600_000
BLOB = Random(1).randbytes(6_000)
MINUTE = 60_000


def slices_of(database: Database, **changes: Any) -> Slices:
    """Return the slices of an empty database, a minute each."""
    config = replace(RelayStoreConfig.small(), **{"slice_ms": MINUTE, **changes})
    return Slices.load(database, config)


def spans(slices: Slices) -> list[tuple[int, int]]:
    """Return the spans in order."""
    return [(each.first_ms, each.end_ms) for each in slices.live]


def fill(forge: Any, store: RelayStore, now: int, minutes: int = 5) -> list[Any]:
    """Return messages put a minute apart, two lanes."""
    messages = [
        forge.in_lane(1 + minute, sender, at=now + minute * MINUTE, blob=BLOB)
        for minute in range(minutes)
        for sender in (1, 2)
    ]
    assert set(store.put_many(messages, now)) == {PutOutcome.STORED}
    return messages


def test_every_expiry_has_one_slice(database: Database) -> None:
    """Spans are aligned, never overlap, and are found again (21-12)."""
    slices = slices_of(database)
    for minute in (5, 1, 3, 2, 5):
        slices.take(minute * MINUTE + 7)

    assert spans(slices) == [(n * MINUTE, (n + 1) * MINUTE) for n in (1, 2, 3, 5)]
    assert slices.at(3 * MINUTE) is slices.take(4 * MINUTE - 1)
    assert slices.at(4 * MINUTE) is None
    with pytest.raises(StoreError) as caught:
        slices.of(4 * MINUTE)
    assert caught.value.code == "store.corrupt"


def test_slices_max_widens_the_nearest(database: Database) -> None:
    """Times far apart cannot make slices without end: the nearest one takes them."""
    slices = slices_of(database, slices_max=2)
    for minute in (5, 9, 7, 1, 30):
        slices.take(minute * MINUTE)

    assert spans(slices) == [(MINUTE, 8 * MINUTE), (9 * MINUTE, 31 * MINUTE)]
    assert spans(slices_of(database, slices_max=2)) == spans(slices)


def test_a_changed_width_keeps_the_spans(database: Database) -> None:
    """A configuration with other slices fits its spans between those that are there."""
    slices_of(database).take(10 * MINUTE)
    slices = slices_of(database, slice_ms=4 * MINUTE)
    slices.take(9 * MINUTE)
    slices.take(11 * MINUTE)

    assert spans(slices) == [
        (8 * MINUTE, 10 * MINUTE),
        (10 * MINUTE, 11 * MINUTE),
        (11 * MINUTE, 12 * MINUTE),
    ]


def test_a_table_without_a_row_is_dropped(database: Database) -> None:
    """What a crash left between a table and its row counts for nothing."""
    database.create("slice-7")

    assert slices_of(database).live == ()
    assert "slice-7" not in database.names


def test_a_row_without_a_table_is_corruption(database: Database) -> None:
    """Messages that are counted and gone are reported when the store is opened."""
    batch = database.batch()
    batch.put(layout.META, layout.slice_key(3), layout.encode_span(1, 2))
    database.write(batch)

    with pytest.raises(StoreError) as caught:
        slices_of(database)
    assert caught.value.code == "store.corrupt"


@given(st.lists(st.lists(st.integers(0, 30), unique=True, max_size=8), max_size=5))
def test_a_merge_is_the_sorted_union(lists: list[list[int]]) -> None:
    """Whatever the sources hold, their items come in order, each once."""
    sources = [sorted({number * 5 + at for number in numbers}) for at, numbers in enumerate(lists)]
    tables = [[bytes([item]) for item in items] for items in sources]
    openers = [(items[0] if items else b"", items) for items in tables]
    openers.sort(key=lambda pair: pair[0])

    merged = list(_merge(openers, iter, bytes))  # type: ignore[arg-type]  # lists stand for slices

    assert merged == sorted(item for items in tables for item in items)


def test_queries_cross_slices_in_order(forge: Any, open_store: Opener, now: int) -> None:
    """A namespace, a time span and a sender are read over all slices (21-32, 21-34, 21-35)."""
    store = open_store()
    messages = fill(forge, store, now)
    lane = forge.lane(1)

    assert len(store._ledger.slices.live) == 5
    page = store.query(NamespaceQuery(namespace_id=lane, limit=3), now)
    rest = store.query(NamespaceQuery(namespace_id=lane, cursor=page.next_cursor), now)
    assert [each.seq for each in [*page.messages, *rest.messages]] == [1, 2, 3, 4, 5]
    by_time = store.query_time(TimeQuery(from_time=now + MINUTE), now).messages
    assert [each.timestamp for each in by_time] == sorted(each.timestamp for each in by_time)
    assert len(by_time) == 8
    sender = messages[0].header.sender_address
    by_sender = store.query_sender(SenderQuery(sender=sender), now).messages
    assert [each.seq for each in by_sender] == [1, 2, 3, 4, 5]
    ids = [message.header.message_id for message in messages]
    found, missing = store.get_messages(ids, now + 10 * TTL // 100)
    assert (len(found), missing) == (10, [])


def test_a_slice_goes_whole(forge: Any, open_store: Opener, now: int) -> None:
    """What is wholly past leaves with sums, tree, heads and floors right (21-12)."""
    store = open_store()
    messages = fill(forge, store, now)
    names = set(store._database.names)

    stats = store.expire(now + TTL + 2 * MINUTE)

    assert (stats.removed_count, stats.namespaces_processed, stats.hit_limit) == (6, 2, False)
    assert store.verify() == []
    head = store.head(forge.lane(1))
    assert (head.floor, head.earliest_seq, head.messages, head.contiguous_seq) == (3, 4, 2, 5)
    assert len(names - set(store._database.names)) == 2  # the third was swept
    assert store.get_blob(messages[-1].header.blob_commitment) == BLOB
    store.close()
    again = open_store()
    assert again.verify() == []
    assert again.stats().messages == 4
    assert again.head(forge.lane(1)) == head


def test_a_drop_gives_the_space_back(
    forge: Any, open_store: Opener, tmp_path: Path, now: int
) -> None:
    """The table files of a slice are gone with it, not at some later compaction."""
    store = open_store()
    fill(forge, store, now, minutes=12)
    store.close()  # writes all rows to table files
    store = open_store()
    files = lambda: sum(p.stat().st_size for p in (tmp_path / "store" / "db").glob("*.sst"))  # noqa: E731
    before = files()

    store.expire(now + TTL + 12 * MINUTE)

    assert before > 40_000
    assert files() < before / 4


def test_an_unread_slice_is_not_dropped(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """A slice with one message that the archive has not read is swept instead (21-51, J8)."""
    store = open_store()
    store.set_watermark(forge.lane(1), parent, 1)
    fill(forge, store, now, minutes=2)

    stats = store.expire(now + TTL + 10 * MINUTE)

    assert stats.removed_count == 3
    assert store.stats().held == 1
    assert store.verify() == []
    store.set_watermark(forge.lane(1), parent, 2)
    assert store.expire(now + TTL + 10 * MINUTE).removed_count == 1
    assert store.stats().messages == store.stats().held == 0
    assert store.verify() == []


def test_a_slice_past_the_window_goes_unread(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """The retention window is stronger than the archive, and what it missed is counted (J8)."""
    store = open_store(retention_window_ms=2 * TTL)
    store.set_watermark(forge.lane(1), parent, 1)
    fill(forge, store, now, minutes=3)
    store.expire(now + TTL + 10 * MINUTE)
    assert store.stats().held == 2

    stats = store.expire(now + 2 * TTL + 10 * MINUTE)

    assert stats.removed_count == 2
    assert (store.stats().unread_evicted, store.stats().held) == (2, 0)
    assert store._ledger.slices.live == ()
    assert store.verify() == []


def test_a_reader_of_a_dropped_slice_reads_on(forge: Any, open_store: Opener, now: int) -> None:
    """A scan that began before a slice went sees it to its end."""
    store = open_store()
    fill(forge, store, now, minutes=3)
    scan = store._ledger.slices.keys(layout.TIMES, b"", b"")
    first = next(scan)

    store.expire(now + TTL + 20 * MINUTE)

    assert len([first, *scan]) == 6


def test_a_crash_between_batch_and_drop_is_mended(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table whose slice is forgotten already goes at the next opening (P9)."""
    store = open_store()
    fill(forge, store, now, minutes=3)

    def fail(_slices: Slices, _gone: Slice) -> None:
        raise StoreError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Slices, "drop", fail)
        with pytest.raises(StoreError):
            store.expire(now + TTL + 20 * MINUTE)
    assert store.verify() == []
    before = store.stats().messages
    store.close()
    again = open_store()

    assert again.stats().messages == before == 4
    assert again.verify() == []
    named = [name for name in again._database.names if name.startswith("slice-")]
    assert len(named) == len(again._ledger.slices.live)


def test_the_batch_is_on_the_disk_before_the_table_goes(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut can lose the log but not a drop, so the log is synced first (ADR 0006 §4)."""
    store = open_store(durability="fsync")
    fill(forge, store, now, minutes=1)
    order: list[str] = []
    for name in ("sync", "drop"):
        real = getattr(Database, name)
        monkeypatch.setattr(
            Database,
            name,
            lambda database, *rest, name=name, real=real: (
                order.append(name),
                real(database, *rest),
            ),
        )

    store.expire(now + TTL + MINUTE)

    assert order == ["sync", "drop"]


def test_puts_and_drops_side_by_side(forge: Any, open_store: Opener, now: int) -> None:
    """Puts, queries and cycles in three threads end with a sound store (21-49)."""
    store = open_store(cold_store_ttl_ms=MINUTE, slice_ms=MINUTE)
    stop = threading.Event()
    faults: list[BaseException] = []

    def repeat(work: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:  # noqa: BLE001  # shown by the test
            faults.append(error)

    clock = [now]
    query = NamespaceQuery(namespace_id=forge.lane(1))
    threads = [
        threading.Thread(target=repeat, args=(lambda: store.expire(clock[0]),)),
        threading.Thread(target=repeat, args=(lambda: store.query(query, clock[0]),)),
    ]
    for thread in threads:
        thread.start()
    for step in range(30):
        clock[0] = now + step * MINUTE // 2
        messages = [forge.in_lane(10 * step + n, 1, at=clock[0]) for n in range(1, 11)]
        assert set(store.put_many(messages, clock[0])) == {PutOutcome.STORED}
    stop.set()
    for thread in threads:
        thread.join()

    assert faults == []
    assert store.verify() == []
    store.expire(clock[0] + MINUTE)
    assert store.stats().messages == 0
