"""Who may stand at a port, who gives way, and how fast connections are handed on."""

from __future__ import annotations

import pytest

from luxrelay.errors import SyncArgumentError
from luxrelay.sync.arrivals import Arrival, Arrivals, ArrivalsConfig, Rank


def enter(arrivals: Arrivals, host: str, gone: list[str], name: str = "") -> Arrival:
    """Return the place of a connection that writes its name when it is turned out."""
    arrival, _ = arrivals.enter(host, lambda: gone.append(name or host))
    assert arrival is not None
    return arrival


def test_one_network_has_a_quarter_of_the_places() -> None:
    """The 5th of one /16 takes the place of its first; another network still comes in."""
    arrivals, gone = Arrivals(ArrivalsConfig(places=16)), list[str]()
    for last in range(5):
        enter(arrivals, f"8.8.0.{last}", gone)
    enter(arrivals, "9.9.0.1", gone)

    assert gone == ["8.8.0.0"]
    assert len(arrivals) == 5


@pytest.mark.parametrize(("host", "share"), [("10.1.0.1", 8), ("127.0.0.1", 16)])
def test_a_private_network_has_half_and_this_machine_all(host: str, share: int) -> None:
    """Operators have their own relays there."""
    arrivals, gone = Arrivals(ArrivalsConfig(places=16)), list[str]()
    for _ in range(share):
        enter(arrivals, host, gone)
    assert not gone
    enter(arrivals, host, gone)
    assert gone == [host]


def test_a_full_port_makes_room_in_the_largest_network() -> None:
    """A newcomer of a small network is let in, and the crowd loses one."""
    arrivals, gone = Arrivals(ArrivalsConfig(places=8)), list[str]()
    for _ in range(5):
        enter(arrivals, "127.0.0.1", gone)
    for net in range(3):
        enter(arrivals, f"{20 + net}.0.0.1", gone)
    enter(arrivals, "99.0.0.1", gone)

    assert gone == ["127.0.0.1"]


def test_the_oldest_that_has_proven_least_goes() -> None:
    """Silence goes before words, these before calls, and calls that run go last."""
    arrivals, gone = Arrivals(ArrivalsConfig(places=4)), list[str]()
    served = enter(arrivals, "127.0.0.1", gone, "served")
    served.calls = 1
    called = enter(arrivals, "127.0.0.1", gone, "called")
    called.shown = Rank.CALLED
    spoke = enter(arrivals, "127.0.0.1", gone, "spoke")
    assert arrivals.pause(spoke, 0.0) == 0
    enter(arrivals, "127.0.0.1", gone, "silent")
    for name in ("one", "two", "three", "four"):
        enter(arrivals, "127.0.0.1", gone, name).shown = Rank.KNOWN

    assert gone == ["silent", "spoke", "called", "served"]


def test_the_address_with_most_connections_gives_way() -> None:
    """Of one network, the busy address pays, not the neighbour that came first."""
    arrivals, gone = Arrivals(ArrivalsConfig(places=16)), list[str]()
    enter(arrivals, "8.8.0.1", gone)
    for _ in range(3):
        enter(arrivals, "8.8.0.2", gone)
    enter(arrivals, "8.8.0.3", gone)

    assert gone == ["8.8.0.2"]


def test_who_has_shown_a_token_goes_for_nobody() -> None:
    """When all have, the newcomer is refused."""
    arrivals, gone = Arrivals(ArrivalsConfig(places=2)), list[str]()
    for _ in range(2):
        enter(arrivals, "127.0.0.1", gone).shown = Rank.KNOWN

    assert arrivals.enter("127.0.0.1", lambda: gone.append("new")) == (None, False)
    assert not gone


def test_connections_above_the_rate_wait_and_then_are_refused() -> None:
    """A burst at once, then one every tenth of a second, and none that would wait too long."""
    config = ArrivalsConfig(address_per_s=10, address_burst=3, wait_max_s=0.25)
    arrivals = Arrivals(config)
    arrival = enter(arrivals, "8.8.0.1", [])
    waits = [arrivals.pause(arrival, 0.0) for _ in range(8)]

    assert waits[:6] == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3])
    assert waits[6:] == [None, None]
    assert arrivals.pause(arrival, 1.0) == 0
    other = enter(arrivals, "8.8.0.2", [])
    assert arrivals.pause(other, 0.0) == 0


def test_a_rate_of_zero_is_no_limit() -> None:
    """As in the other keys."""
    arrivals = Arrivals(ArrivalsConfig(address_per_s=0, address_burst=1))
    arrival = enter(arrivals, "8.8.0.1", [])
    assert {arrivals.pause(arrival, 0.0) for _ in range(100)} == {0.0}


def test_few_addresses_are_remembered() -> None:
    """The one idle longest is forgotten, and begins anew."""
    arrivals = Arrivals(ArrivalsConfig(address_per_s=1, address_burst=1, hosts_max=1, wait_max_s=1))
    first, second = enter(arrivals, "8.8.0.1", []), enter(arrivals, "9.9.0.1", [])
    assert [arrivals.pause(first, 0.0) for _ in range(4)] == [0, 1, 2, None]
    assert arrivals.pause(second, 0.0) == 0
    assert arrivals.pause(first, 0.0) == 0


def test_a_place_that_was_left_is_free() -> None:
    """Leaving twice changes nothing."""
    arrivals, gone = Arrivals(ArrivalsConfig(places=1)), list[str]()
    arrival = enter(arrivals, "8.8.0.1", gone)
    arrivals.leave(arrival)
    arrivals.leave(arrival)
    enter(arrivals, "nowhere", gone)
    assert not gone


@pytest.mark.parametrize("wrong", [{"places": 0}, {"address_per_s": -1}, {"wait_max_s": 0}])
def test_what_cannot_work_is_refused(wrong: dict[str, float]) -> None:
    """With the name of the bound."""
    with pytest.raises(SyncArgumentError, match=next(iter(wrong))):
        ArrivalsConfig(**wrong)  # type: ignore[arg-type]
