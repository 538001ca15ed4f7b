"""Deadlines by progress."""

from luxrelay.cli.demo.patience import DemoPatience


def test_what_moves_is_waited_for_however_slow() -> None:
    """Only standing still for so long ends the wait."""
    now = 0.0
    patience = DemoPatience(10.0, clock=lambda: now)

    for count in range(20):
        now += 9.0
        assert not patience.lost([count, 0])
    now += 9.9
    assert not patience.lost([19, 0])
    now += 0.1
    assert patience.lost([19, 0])
    assert not patience.lost([20, 0])
