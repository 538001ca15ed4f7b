"""A sweep finds what is due in a slice, a chunk at a time, and remembers when to come again."""

from collections.abc import Callable
from typing import Any

from luxrelay.store import RelayStore
from luxrelay.store.slices import NEVER
from luxrelay.store.writing.eviction import ROWS_PER_MESSAGE, Sweep

Opener = Callable[..., RelayStore]
TTL = 600_000


def test_a_chunk_is_bounded_in_messages(forge: Any, open_store: Opener, now: int) -> None:
    """No more than the limit is found, and the next chunk goes on after it."""
    store = open_store(slice_ms=2 * TTL)
    store.put_many([forge.message(seq) for seq in range(1, 8)], now)
    (where,) = store._ledger.slices.live
    sizes = []
    while not sizes or where.position:
        sweep = Sweep(where, now + TTL, 3)
        sizes.append(len(sweep.chunk()))
        sweep.passed()

    assert sizes == [3, 3, 1]
    assert where.next_due == NEVER


def test_a_chunk_is_bounded_in_rows(forge: Any, open_store: Opener, now: int) -> None:
    """A slice in which little is due does not hold the writer for long (P12)."""
    store = open_store(slice_ms=2 * TTL)
    store.put_many([forge.message(seq, at=now + seq) for seq in range(1, 21)], now)
    (where,) = store._ledger.slices.live
    sweep = Sweep(where, now + TTL, 1)

    assert sweep.chunk() == []
    sweep.passed()
    assert where.position
    assert where.seen_due == now + TTL + 1
    looked_at = ROWS_PER_MESSAGE
    assert (
        list(where.table.keys(where.position, b"", b"t"))
        == list(where.table.keys(b"", b"", b"t"))[looked_at:]
    )


def test_what_comes_during_a_sweep_is_not_forgotten(
    forge: Any, open_store: Opener, now: int
) -> None:
    """A message put behind the sweep's back is due when its time comes."""
    store = open_store(slice_ms=2 * TTL, gc_chunk_size=1)
    store.put_many([forge.message(seq, at=now + 100 + seq) for seq in range(1, 21)], now)
    (where,) = store._ledger.slices.live
    sweep = Sweep(where, now + TTL, 1)
    sweep.chunk()
    sweep.passed()
    assert where.position
    store.put_many([forge.in_lane(1, 1, at=now + 1)], now + 1)

    assert store.expire(now + TTL + 50).removed_count == 1
    assert store.verify() == []
