"""What the server counts."""

from __future__ import annotations

from luxrelay.sync.rpc.stats import LATENCY_BOUNDS_MS, SyncCounters


def test_count_calls_by_method_and_status() -> None:
    """LP-6421 §8: requests by method and status; a client that leaves is no error."""
    counters = SyncCounters()
    for code in ("OK", "OK", "INVALID_ARGUMENT", "CANCELLED"):
        counters.began()
        counters.ended("GetMessages", code, 0.003)
    counters.began()

    stats = counters.snapshot()

    assert stats.requests["GetMessages", "OK"] == 2
    assert (stats.errors, stats.active) == (1, 1)


def test_put_durations_into_buckets() -> None:
    """relay_sync_latency_ms: a bucket's bound is inclusive; the last one takes the rest."""
    counters = SyncCounters()
    for seconds in (0.001, 0.0011, 0.005, 3600.0):
        counters.began()
        counters.ended("SyncNamespace", "OK", seconds)

    latency = counters.snapshot().latency["SyncNamespace"]

    assert len(latency.counts) == len(LATENCY_BOUNDS_MS) + 1
    assert latency.counts[:3] == (1, 1, 1)
    assert latency.counts[-1] == 1
    assert latency.count == 4
    assert latency.sum_ms == 1.0 + 1.1 + 5.0 + 3_600_000.0


def test_snapshot_stands_still() -> None:
    """A snapshot does not change with the counters."""
    counters = SyncCounters()
    before = counters.snapshot()
    counters.sent(messages=3, size_bytes=900, heads=2)
    counters.published(4)

    after = counters.snapshot()

    assert (before.messages_sent, before.bytes_sent, before.heads_sent) == (0, 0, 0)
    assert (after.messages_sent, after.bytes_sent, after.heads_sent) == (3, 900, 2)
    assert after.items_published == 4
