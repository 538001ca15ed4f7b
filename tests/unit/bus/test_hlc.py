"""The hybrid clock under a wall clock that jumps."""

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
    remote = pack_stamp(50_000, 3)

    assert clock.observe(remote, 10_000) > remote
    assert clock.now(10_000) > remote + 1


@pytest.mark.parametrize(("ms", "counter"), [(-1, 0), (2**48, 0), (0, 65_536), (0, -1)])
def test_reject_what_does_not_fit(ms: int, counter: int) -> None:
    """A stamp has 48 bits of time and 16 of counter."""
    with pytest.raises(BusArgumentError):
        pack_stamp(ms, counter)
