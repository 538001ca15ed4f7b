"""Figures of the demonstration."""

from luxrelay.cli.demo.checks import Holdings, latencies_ms, percentile


def test_percentile_is_nearest_rank() -> None:
    """The percentile is a value that was measured."""
    values = [15, 20, 35, 40, 50]

    assert percentile(values, 0.5) == 35
    assert percentile(values, 0.95) == percentile(values, 1.0) == 50
    assert percentile([7], 0.01) == 7
    assert percentile([], 0.5) == 0


def test_latencies_leave_out_what_was_fetched_later() -> None:
    """Messages a relay caught up with say nothing about gossip."""
    relay = Holdings({b"a": 1010, b"b": 9000}, {b"a": 1000, b"b": 1000}, True, 1)

    assert latencies_ms([relay], [b"a", b"b", b"c"], frozenset({b"b"})) == [10]
