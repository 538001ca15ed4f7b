"""The latency histogram."""

from luxrelay.node.stages.deliver import BUCKETS_MS, LatencyHistogram


def test_counts_are_cumulative() -> None:
    """Each bucket counts what is at or below its bound, +Inf counts all."""
    histogram = LatencyHistogram()
    for value in (-5, 0, 1, 2, 3, 40_000):
        histogram.observe(value)

    buckets, total_ms = histogram.snapshot()
    found = dict(buckets)
    assert (found["1"], found["2"], found["5"], found["30000"], found["+Inf"]) == (3, 4, 5, 5, 6)
    assert total_ms == 40_006
    assert len(buckets) == len(BUCKETS_MS) + 1
