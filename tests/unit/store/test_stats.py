"""Every number that a metric is made from is the truth about the rows (LP-6421 §8; 21-46)."""

from collections.abc import Callable
from typing import Any

from luxrelay.store import Lack, PutOutcome, RelayStore, layout

Opener = Callable[..., RelayStore]
TTL = 600_000


def test_every_number_is_that_of_the_rows(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """After puts, duplicates, expiry, eviction, handoff and reads each field is exact."""
    store = open_store(namespace_quota_bytes=20_000, hot_ttl_ms=2 * TTL)
    store.set_watermark(parent, parent, 1)
    store.put_many([forge.message(seq) for seq in (1, 2, 2)], now)
    store.expire(now + TTL)
    late = [forge.message(seq, namespace=forge.lane(2), at=now + TTL) for seq in range(1, 61)]
    store.put_many([*late, forge.message(9)], now + TTL)
    ids = [late[-1].header.message_id, forge.message(77).header.message_id]
    store.get_messages(ids, now + TTL)
    stats = store.stats()
    stored = store._ledger.slices.scan(layout.HEADERS, b"", b"")
    rows = [layout.decode_row(value) for _, value in stored]

    assert stats.messages == len(rows)
    assert stats.size_bytes == sum(layout.charge_bytes(row) for row in rows)
    assert stats.oldest_timestamp == min(row.timestamp for row in rows)
    assert stats.namespaces == 2
    assert stats.outcomes == {
        PutOutcome.STORED: 62,
        PutOutcome.DUPLICATE: 1,
        PutOutcome.LOST_SLOT: 0,
        PutOutcome.EXPIRED: 1,
        PutOutcome.FULL: 0,
    }
    assert stats.removed == 1
    assert stats.evicted[Lack.ACCOUNT] == 62 - 1 - len(rows) > 0
    assert sum(stats.refused.values()) == 0
    assert (stats.held, stats.handoffs, stats.unread_evicted) == (1, 1, 0)
    assert (stats.hot_hits, stats.hot_misses, stats.hit_rate) == (1, 1, 0.5)
    assert stats.hot_messages == len(rows)
    assert stats.gc.messages_deleted == 1
    assert stats.gc.cutoff_ms == now + TTL - store.config.retention_window_ms
