"""`OwnLink`: when our own link is slow, and when it is well again (G41)."""

from __future__ import annotations

from itertools import count

import pytest

from luxrelay.net.config import NetConfig
from luxrelay.net.own_link import AGAIN_S, HOLDS_MAX, OwnLink

CONFIG = NetConfig(pull_after_s=0.5, pull_hold_s=10.0)


class Looks:
    """A link that is looked at once a second."""

    def __init__(self) -> None:
        self.link = OwnLink(CONFIG)
        self.now = 0.0
        self.moved = (0, 0)

    def __call__(
        self, waits_s: float, *, gossip: int = 100, other: int = 0, level: bool = False
    ) -> bool:
        """Return whether messages are fetched from now on."""
        self.now += 1
        self.moved = (self.moved[0] + gossip, self.moved[1] + gossip + other)
        return self.link.look(waits_s, self.moved, level=level, now=self.now)

    def until_well(self, waits_s: float = 0.0, *, level: bool = False) -> int:
        """Return the seconds until messages are taken again."""
        return next(n for n in count(0) if not self(waits_s, level=level))


@pytest.fixture
def looks() -> Looks:
    """A link of which nothing is known."""
    return Looks()


def test_packets_that_wait_for_gossip_make_it_slow(looks: Looks) -> None:
    """Above the bound, and not at it."""
    assert not looks(0.0)
    assert not looks(CONFIG.pull_after_s)
    assert looks(CONFIG.pull_after_s + 0.01)


def test_what_we_asked_for_does_not_make_it_slow(looks: Looks) -> None:
    """Blobs and pages have windows of their own; a link that is still is not slow either."""
    assert not any(looks(5.0, gossip=100, other=200) for _ in range(20))
    assert not any(looks(5.0, gossip=0, other=100) for _ in range(60))
    assert looks(5.0, gossip=10_000)


def test_it_is_well_when_packets_wait_no_longer(looks: Looks) -> None:
    """For the whole time: one look in between begins it anew."""
    assert looks(1.0)
    for _ in range(9):
        assert looks(0.25)
    assert looks(0.26)
    assert looks.until_well(0.25) == CONFIG.pull_hold_s


def test_it_is_well_when_catching_up_lacks_nothing(looks: Looks) -> None:
    """A link that pages keep full may carry everything."""
    assert looks(1.0)
    for _ in range(60):
        assert looks(1.0)
    assert looks(1.0, level=True)
    assert looks(0.4, level=True)
    assert looks.until_well(1.0, level=True) == CONFIG.pull_hold_s - 2
    assert looks(1.0)  # that was too soon


def test_a_link_that_somebody_else_fills_is_left_alone(looks: Looks) -> None:
    """Nothing was lacking and packets waited all the same: not again before the queue was gone."""
    assert looks(1.0)
    assert looks.until_well(1.0, level=True) == CONFIG.pull_hold_s
    assert not any(looks(1.0) for _ in range(600))
    assert not looks(0.25)
    assert looks(1.0)


def test_an_error_lasts_twice_as_long_the_next_time(looks: Looks) -> None:
    """Up to a bound; a minute without queues ends it."""
    found = []
    for _ in range(7):
        assert looks(1.0)
        found.append(looks.until_well() / CONFIG.pull_hold_s)
    assert found == [1, 2, 4, 8, HOLDS_MAX, HOLDS_MAX, HOLDS_MAX]
    looks.now += AGAIN_S
    assert looks(1.0)
    assert looks.until_well() == CONFIG.pull_hold_s
