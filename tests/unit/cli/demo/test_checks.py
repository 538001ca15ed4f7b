"""Figures of the demonstration."""

from luxrelay.cli.demo.rehearsal import Holdings, caught_up_s, latencies_ms, percentile


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


def test_catching_up_is_measured_from_the_return() -> None:
    """Until the relay holds what was published one sample before, while publishing goes on."""
    published = [index / 10 for index in range(100)]  # ten a second, for ten seconds
    samples = [(1.0, 10), (2.0, None), (5.0, 12), (6.0, 30), (7.0, 55), (8.0, 71), (9.0, 80)]

    assert caught_up_s(samples, published, 4.5) == 3.5
    assert caught_up_s([(1.0, 10), (5.0, 12), (6.0, 30)], published, 4.5) == 1.5  # it never did
    assert caught_up_s([], published, 4.5) == 0.0
