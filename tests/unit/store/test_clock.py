"""The wall clock is believed while it keeps pace with the monotonic one."""

import pytest

from luxrelay.store.retention import ClockGuard

WALL = 1_764_000_000_000
JUMP, SETTLE = 300_000, 3_600_000


@pytest.fixture
def guard() -> ClockGuard:
    """A guard that has seen both clocks once."""
    guard = ClockGuard(jump_ms=JUMP, settle_ms=SETTLE)
    assert guard.trusts(WALL, 50.0)
    return guard


@pytest.mark.parametrize("moved", [-JUMP, -1, 0, 1, JUMP])
def test_trust_up_to_the_jump(guard: ClockGuard, moved: int) -> None:
    """Five minutes either way are tolerated (P43)."""
    assert guard.trusts(WALL + 10_000 + moved, 60.0)
    assert (guard.moved_ms, guard.alarms) == (0, 0)


@pytest.mark.parametrize("moved", [-JUMP - 1, JUMP + 1, 10**10])
def test_doubt_beyond_it(guard: ClockGuard, moved: int) -> None:
    """More than that is an alarm that says how far the clock moved."""
    assert not guard.trusts(WALL + 10_000 + moved, 60.0)
    assert (guard.moved_ms, guard.alarms) == (moved, 1)


def test_small_steps_do_not_add_up_to_trust(guard: ClockGuard) -> None:
    """A clock that creeps away is doubted once it is far from where it was believed."""
    assert guard.trusts(WALL + 1_000 + 200_000, 51.0)
    assert not guard.trusts(WALL + 2_000 + 400_000, 52.0)


def test_a_clock_that_comes_back_is_trusted_at_once(guard: ClockGuard) -> None:
    """The old time needs no settling."""
    assert not guard.trusts(WALL + 10**7, 51.0)
    assert guard.trusts(WALL + 2_000, 52.0)


def test_a_second_jump_settles_anew(guard: ClockGuard) -> None:
    """Only time at the newest offset counts."""
    assert not guard.trusts(WALL + 10**7, 50.0)
    assert not guard.trusts(WALL + 10**8, 50.0 + SETTLE / 1000)
    assert guard.alarms == 2

    assert guard.trusts(WALL + 10**8 + SETTLE, 50.0 + 2 * SETTLE / 1000)
    assert guard.moved_ms == 0
