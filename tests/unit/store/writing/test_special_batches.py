"""Of older messages every Nth stays where that was asked for, and whoever reads is told."""

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.bus.finality import FinalityRow, FinalityState
from luxrelay.errors import StoreArgumentError, StoreError
from luxrelay.store import NamespaceQuery, PutOutcome, RelayStore, RelayStoreConfig, layout
from luxrelay.store.rocks import Database
from luxrelay.store.writing.special_batches import thinned_runs

Opener = Callable[..., RelayStore]
OLD = 5 * 60_000
"""Age from which messages are thinned, milliseconds."""


def held(store: RelayStore, namespace: Any, now: int) -> list[int]:
    """Return the sequences that a reader gets."""
    query = NamespaceQuery(namespace_id=namespace, limit=1_000)
    return [each.seq for each in store.query(query, now).messages]


def test_by_default_nothing_is_thinned(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """Without a ratio a cycle leaves every sequence up to its time to live (21-43, P16)."""
    store = open_store()
    store.put_many([forge.message(seq) for seq in range(1, 31)], now)
    store.expire(now + 599_999)

    assert held(store, parent, now) == list(range(1, 31))
    assert store.gaps(parent) == []


def test_every_nth_stays_and_the_rest_is_told(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """Multiples of the ratio and the newest stay; a page names what went as gaps (21-44, J3)."""
    store = open_store(thin_ratios={parent: 10})
    store.put_many([forge.message(seq) for seq in range(1, 26)], now)
    assert store.expire(now + OLD - 1).removed_count == 0
    assert store.expire(now + OLD).removed_count == 22
    page = store.query(NamespaceQuery(namespace_id=parent), now)

    assert [each.seq for each in page.messages] == [10, 20, 25]
    assert page.gaps == [(1, 9), (11, 19), (21, 24)]
    assert page.earliest_seq == 10
    head = store.head(parent)
    assert (head.contiguous_seq, head.latest_seq, head.messages, head.floor) == (25, 25, 3, 0)
    assert store.gaps(parent) == []  # nothing is missing that a peer should bring
    assert store.stats().thinned == 22
    assert store.verify() == []


def test_the_record_is_slot_and_header_hash(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """What stays of a thinned message is {seq, headerHash} (P16)."""
    store = open_store(thin_ratios={parent: 2})
    messages = [forge.message(seq) for seq in (1, 2, 3)]
    store.put_many(messages, now)
    store.expire(now + OLD)

    rows = list(store._ledger.slices.scan(layout.THINNED, b"", b""))
    assert rows == [(layout.slot_key(parent, 1), messages[0].header.header_hash)]


def test_a_thinned_message_does_not_come_back(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """A copy from a peer is refused, also after a restart and without the ratio (J3)."""
    store = open_store(thin_ratios={parent: 2})
    store.put_many([forge.message(seq) for seq in range(1, 6)], now)
    store.expire(now + OLD)
    copies = [forge.message(1), forge.message(3, sender=2), forge.message(4)]
    outcomes = [PutOutcome.LOST_SLOT, PutOutcome.LOST_SLOT, PutOutcome.DUPLICATE]

    assert store.put_many(copies, now + OLD) == outcomes
    store.close()
    again = open_store()
    assert again.put_many(copies, now + OLD) == outcomes
    assert again.head(parent).contiguous_seq == 5
    assert again.verify() == []


def test_the_record_goes_with_its_slice(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """When the time to live is over nothing of a thinned message is left (P9)."""
    store = open_store(thin_ratios={parent: 2}, slice_ms=60_000)
    store.put_many([forge.message(seq) for seq in range(1, 6)], now)
    store.expire(now + OLD)
    store.expire(now + 700_000)

    assert list(store._ledger.slices.scan(layout.THINNED, b"", b"")) == []
    assert store.head(parent).floor == 5


def test_a_slice_of_thinned_messages_alone_raises_the_floor(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """When a slice goes that held nothing but records, nothing in it is expected any more."""
    store = open_store(thin_ratios={parent: 10}, slice_ms=60_000)
    lane = forge.lane(1)
    store.put_many([forge.message(seq) for seq in range(1, 9)], now)
    store.put_many([forge.in_lane(1, 1)], now)  # the newest of its lane keeps the slice alive
    later = [forge.message(seq, at=now + 120_000) for seq in range(9, 14)]
    store.put_many(later, now + 120_000)
    store.expire(now + OLD)
    assert held(store, parent, now) == [9, 10, 11, 12, 13]
    assert [set(each.shares) for each in store._ledger.slices.live] == [{lane}, {parent}]
    assert store.verify() == []
    store.expire(now + 660_001)

    assert (store.head(parent).floor, store.head(parent).contiguous_seq) == (8, 13)
    assert len(store._ledger.slices.live) == 1
    assert store.verify() == []


def test_what_an_archive_reads_is_not_thinned(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """A namespace with a watermark is not ephemeral, nor are its lanes (J8)."""
    store = open_store(thin_ratios={parent: 2})
    store.put_many([forge.message(seq) for seq in range(1, 6)], now)
    store.put_many([forge.in_lane(seq, 1) for seq in range(1, 6)], now)
    store.set_watermark(parent, parent, 5)

    assert store.expire(now + OLD).removed_count == 0
    store.drop_watermark(parent)
    assert store.expire(now + OLD).removed_count == 4  # 1 and 3 of both


def test_lanes_are_thinned_with_their_parent(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """A ratio holds for the lanes of a namespace; one of their own is stronger (J6)."""
    own = forge.lane(2)
    store = open_store(thin_ratios={parent: 2, own: 3})
    for sender in (1, 2):
        store.put_many([forge.in_lane(seq, sender) for seq in range(1, 8)], now)
    store.put_many([forge.message(seq, namespace=bytes(19) + b"x") for seq in (1, 2, 3)], now)
    store.expire(now + OLD)

    assert held(store, forge.lane(1), now) == [2, 4, 6, 7]
    assert held(store, own, now) == [3, 6, 7]
    assert held(store, bytes(19) + b"x", now) == [1, 2, 3]


def test_what_lies_above_a_hole_stays(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """A hole is still asked for, and a restart finds the same heads (P25)."""
    store = open_store(thin_ratios={parent: 4})
    store.put_many([forge.message(seq) for seq in (1, 2, 3, 4, 7, 8, 9)], now)
    store.expire(now + OLD)
    assert held(store, parent, now) == [4, 7, 8, 9]
    assert store.gaps(parent) == [(5, 6)]
    before = store.head(parent)
    store.close()

    again = open_store(thin_ratios={parent: 4})
    assert again.head(parent) == before
    assert again.put_many([forge.message(seq) for seq in (5, 6)], now) == [PutOutcome.STORED] * 2
    again.expire(now + OLD)
    assert held(again, parent, now) == [4, 8, 9]


def test_a_finalized_message_stays(forge: Any, open_store: Opener, parent: Any, now: int) -> None:
    """What consensus has decided is not thinned; a later word on one that was is settled (P40)."""
    store = open_store(thin_ratios={parent: 4})
    messages = [forge.message(seq) for seq in range(1, 6)]
    store.put_many(messages, now)

    def said(seq: int) -> FinalityRow:
        header = messages[seq - 1].header
        return FinalityRow(
            namespace_id=parent,
            seq=seq,
            header_hash=header.header_hash,
            state=FinalityState.FINALIZED,
        )

    assert store.apply_finality([said(2)], {parent: 2}) == []
    store.expire(now + OLD)
    assert held(store, parent, now) == [2, 4, 5]
    assert store.apply_finality([said(3)], {parent: 3}) == []
    assert store.verify() == []


def test_a_failed_write_is_tried_again(
    forge: Any, open_store: Opener, parent: Any, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages whose batch the disk refused are thinned by a later cycle."""
    store = open_store(thin_ratios={parent: 2})
    store.put_many([forge.message(seq) for seq in range(1, 6)], now)
    with monkeypatch.context() as patch:

        def refuse(_database: Database, _batch: Any) -> None:
            raise StoreError("no space left")

        patch.setattr(Database, "write", refuse)
        with pytest.raises(StoreError):
            store.expire(now + OLD)
    assert held(store, parent, now) == [1, 2, 3, 4, 5]

    store.expire(now + OLD)
    assert held(store, parent, now) == [2, 4, 5]


@pytest.mark.parametrize("ratios", [{b"short": 2}, {bytes(20): 1}, {bytes(20): True}])
def test_a_ratio_is_two_or_more(ratios: Any) -> None:
    """Anything else is refused with the field's name (P17: a ratio of 0 would divide)."""
    with pytest.raises(StoreArgumentError) as caught:
        RelayStoreConfig(thin_ratios=ratios)

    assert caught.value.where == "RelayStoreConfig.thin_ratios"


def test_the_gaps_of_a_page_are_bounded(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """A page lists gaps_max of them, the lowest (style: every bound is reached by a test)."""
    store = open_store(thin_ratios={parent: 2}, gaps_max=3)
    store.put_many([forge.message(seq) for seq in range(1, 20)], now)
    store.expire(now + OLD)
    page = store.query(NamespaceQuery(namespace_id=parent), now)

    assert page.gaps == [(1, 1), (3, 3), (5, 5)]
    assert thinned_runs(store._ledger.slices, parent, 4, 9, 100) == [(5, 5), (7, 7), (9, 9)]


def test_a_row_that_names_nothing_is_found(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """The orphan scan knows these rows: one of a held message, and one that is damaged (P9)."""
    store = open_store()
    store.put_many([forge.message(1)], now)
    (where,) = store._ledger.slices.live
    batch = store._database.batch()
    rows = [(layout.THINNED + layout.slot_key(parent, 1), bytes(32)), (layout.THINNED, b"")]
    batch.put_rows(where.table, rows)
    store._database.write(batch)

    assert [line.split(":")[1] for line in store.verify()] == [
        " names no slot and header",
        " its message is here",
    ]


def test_a_step_is_bounded_in_rows_and_namespaces(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """Lanes without anything to thin count as well; a pass goes on where a step ended."""
    store = open_store(thin_ratios={parent: 1_000})
    for sender in range(1, 21):
        store.put_many([forge.in_lane(seq, sender) for seq in (1, 2)], now)
    thinner = store._writer._thinner
    assert thinner.victims(now, 1) == ([], False)
    assert len(thinner._left) == 16
    assert thinner.victims(now, 2) == ([], False)
    assert len(thinner._left) == 8

    assert thinner.victims(now, 100) == ([], True)
    found, done = thinner.victims(now + OLD, 3)
    assert (len(found), done) == (3, False)
    found, done = thinner.victims(now + OLD, 100)
    assert (len(found), done) == (17, True)
    thinner.victims(now, 1)
    store.set_watermark(thinner._left[-1][0], parent, 0)  # while a pass is under way
    assert [store.expire(now + OLD).removed_count for _ in range(2)] == [15, 4]


def test_a_cycle_cut_off_while_thinning_comes_again_soon(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """What is left to thin makes the next cycle follow at the short interval (LP-6421 §7.1)."""
    store = open_store(thin_ratios={parent: 10}, gc_chunk_size=4, gc_batch_limit=20)
    store.put_many([forge.message(seq) for seq in range(1, 32)], now)
    cycles = [store.expire(now + OLD) for _ in range(3)]

    assert [each.hit_limit for each in cycles] == [True, False, False]
    assert sum(each.removed_count for each in cycles) == 27
    assert held(store, parent, now) == [10, 20, 30, 31]
