"""`Transfer` and `LinkWindow`, on simulated links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import SyncArgumentError
from luxrelay.sync.transfer import GROWTH, SAMPLE_S, LinkWindow, Transfer, TransferConfig

CONFIG = TransferConfig(silence_s=10, window_first=65_536, window_min=4_096, window_max=1_048_576)
PIECE = 1_024
PIECE_MAX = 32_768
PIECES_A_SECOND = 200
"""A fast link is simulated in larger pieces, so that each example has as many."""


def piece_of(rate: float) -> int:
    """Return the bytes that are asked for at a time."""
    return max(PIECE, min(int(rate / PIECES_A_SECOND), PIECE_MAX))


def carried(
    window: LinkWindow, rate: float, latency_s: float, seconds: float, now: float = 0.0
) -> tuple[int, list[int]]:
    """Ask as much as the window lets, over a link with one queue.

    Returns:
        Bytes that came, and what was under way at each arrival.

    """
    queue: list[tuple[float, int]] = []
    piece = piece_of(rate)
    busy, got, ahead, ends = now, 0, [], now + seconds
    while now < ends:
        while window.room >= piece or not window.under_way:
            window.asked(piece, now)
            busy = max(busy, now + latency_s) + piece / rate
            queue.append((busy + latency_s, piece))
        now, size = queue.pop(0)
        ahead.append(window.under_way)
        window.came(size, now)
        got += size
    return got, ahead


def test_a_transfer_is_over_by_silence_never_by_length() -> None:
    """P46: each byte gives it the whole time anew; none gives it nothing."""
    transfer = Transfer(10.0, 100.0, position=7)
    assert not transfer.begun
    for step in range(1, 1_000):  # 9,000 seconds
        assert not transfer.late(100.0 + 9 * step)
        transfer.came(1, 100.0 + 9 * step)
    assert (transfer.begun, transfer.position) == (True, 1_006)
    transfer.came(0, 100.0 + 9 * 999 + 9)
    assert transfer.due == 100.0 + 9 * 999 + 10
    assert transfer.late(transfer.due)


def test_the_window_follows_the_link() -> None:
    """P46: no more is under way than the link carries in `ahead_s`, within both bounds."""
    slow, fast, never = LinkWindow(CONFIG), LinkWindow(CONFIG), LinkWindow(CONFIG)
    carried(slow, 10_000, 0.05, 60)
    carried(fast, 10_000_000, 0.0005, 5)
    carried(never, 100, 0.05, 600)
    assert 0.8 * 40_000 < slow.size < 1.2 * 40_000
    assert fast.size == CONFIG.window_max
    assert never.size == CONFIG.window_min


def test_a_link_that_becomes_slower_is_noticed() -> None:
    """P46: what was measured long ago counts no more after a few samples."""
    window = LinkWindow(CONFIG)
    carried(window, 200_000, 0.01, 20)
    assert window.size > 600_000
    while window.under_way:
        window.came(min(PIECE, window.under_way), 100.0)
    carried(window, 10_000, 0.01, 30, now=200.0)
    assert window.size < 60_000


def test_pauses_of_ours_make_no_link_slow() -> None:
    """P46: the clock of a measurement stands still while nothing is under way."""
    window = LinkWindow(CONFIG)
    for minute in range(1, 20):
        window.asked(8_192, 60.0 * minute)
        window.came(8_192, 60.0 * minute + SAMPLE_S)
    assert window.rate is not None
    assert window.rate == pytest.approx(8_192 / SAMPLE_S)


def test_what_is_late_halves_the_window_and_what_ends_leaves_room() -> None:
    """P46: nothing came in time, so less is asked for; a shorter answer is no fault."""
    window = LinkWindow(CONFIG)
    window.asked(60_000, 1.0)
    assert window.room == CONFIG.window_first - 60_000
    window.ended(60_000, 2.0)
    assert (window.size, window.room) == (CONFIG.window_first, CONFIG.window_first)
    window.asked(60_000, 1.0)
    window.ended(60_000, 2.0, late=True)
    assert window.size == CONFIG.window_first // 2
    for _ in range(20):
        window.asked(1, 1.0)
        window.ended(1, 2.0, late=True)
    assert window.size == CONFIG.window_min


@given(
    rate=st.floats(2_000, 1e7),
    latency_s=st.floats(0, 0.3),
    first=st.sampled_from([4_096, 65_536, 1_048_576]),
)
def test_a_link_is_used_and_not_flooded(rate: float, latency_s: float, first: int) -> None:
    """P46: nine tenths of what it carries once the window is open; never more than its share."""
    config = TransferConfig(window_first=first, window_min=4_096, window_max=1_048_576)
    window = LinkWindow(config)
    carried(window, rate, latency_s, 12)
    window.ended(window.under_way, 900.0)
    got, ahead = carried(window, rate, latency_s, 10, now=1_000.0)
    piece = piece_of(rate)
    possible = min(rate, (config.window_max - piece) / (2 * latency_s + piece / rate))
    assert got >= 0.8 * possible * (10 - 2 * latency_s - piece / rate) - 2 * piece
    assert max(ahead) <= max(config.window_min, GROWTH * rate * config.ahead_s, piece)


@pytest.mark.parametrize(
    "values",
    [{"silence_s": 0}, {"ahead_s": -1}, {"window_min": 0}, {"window_first": 1}, {"window_max": 1}],
    ids=str,
)
def test_values_that_cannot_work_are_refused(values: dict[str, float]) -> None:
    """P46: a bound of zero, or bounds that cross."""
    with pytest.raises(SyncArgumentError):
        TransferConfig(**values)  # type: ignore[arg-type]
