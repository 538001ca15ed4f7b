"""The hybrid clock under a wall clock that jumps."""

import random

import pytest

from luxrelay.bus import HybridClock, pack_stamp, unpack_stamp
from luxrelay.errors import BusArgumentError


def test_stamps_order_like_pairs() -> None:
    """Packing keeps the order of (ms, counter) and unpacking inverts it (J1)."""
    assert pack_stamp(5, 65_535) < pack_stamp(6, 0)
    assert unpack_stamp(pack_stamp(1_704_067_200_000, 7)) == (1_704_067_200_000, 7)


def test_never_goes_back() -> None:
    """A wall clock that jumps back an hour does not take the stamps with it (J1)."""
    clock = HybridClock()
    walls = [10_000, 10_000, 9_000, 3_000, 10_001]

    stamps = [clock.now(wall) for wall in walls]

    assert stamps == sorted(set(stamps))
    assert unpack_stamp(stamps[-1])[0] == 10_001


def test_observe_is_later_than_remote() -> None:
    """After a remote stamp ours are later, even when our wall clock is behind."""
    clock = HybridClock()
    remote = pack_stamp(40_000, 3)

    assert clock.observe(remote, 10_000) > remote
    assert clock.now(10_000) > remote + 1


@pytest.mark.parametrize(("ms", "counter"), [(-1, 0), (2**48, 0), (0, 65_536), (0, -1)])
def test_reject_what_does_not_fit(ms: int, counter: int) -> None:
    """A stamp has 48 bits of time and 16 of counter."""
    with pytest.raises(BusArgumentError):
        pack_stamp(ms, counter)


def test_remote_stamp_beyond_tolerance_is_not_taken() -> None:
    """A peer's clock an hour ahead does not carry ours out of everybody's tolerance (J1, H14)."""
    clock = HybridClock()
    wall = 1_704_067_200_000

    clock.observe(pack_stamp(wall + 3_600_000, 0), wall)
    assert unpack_stamp(clock.now(wall))[0] == wall
    clock.observe(pack_stamp(wall + 30_000, 0), wall)
    assert unpack_stamp(clock.now(wall))[0] == wall + 30_000
    wide = HybridClock(ahead_max_ms=3_600_000)
    wide.observe(pack_stamp(wall + 3_600_000, 0), wall)
    assert unpack_stamp(wide.now(wall))[0] == wall + 3_600_000


def test_two_nodes_on_wandering_clocks() -> None:
    """Stamps of a conversation rise, whatever two wall clocks do within tolerance (J1)."""
    rng = random.Random(1)
    nodes = [HybridClock(), HybridClock()]
    walls = [1_704_067_200_000, 1_704_067_200_000]
    last = 0
    for step in range(2000):
        speaker = step % 2
        walls = [wall + rng.randint(-2000, 2500) for wall in walls]
        walls[1] = max(walls[0] - 20_000, min(walls[0] + 20_000, walls[1]))
        stamp = nodes[speaker].now(walls[speaker])
        nodes[1 - speaker].observe(stamp, walls[1 - speaker])

        if abs(unpack_stamp(stamp)[0] - walls[1 - speaker]) <= 30_000:
            assert stamp > last
        last = max(last, stamp)


def test_persisted_stamp_is_kept() -> None:
    """After a restart with a clock set back, stamps go on above the persisted one (J1)."""
    clock = HybridClock()
    before = clock.now(2_000_000)

    assert HybridClock(before).now(1_000_000) > before
