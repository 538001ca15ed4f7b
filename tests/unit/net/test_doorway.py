"""Who has a place before the handshake is done, and who goes for a newer one."""

from __future__ import annotations

from typing import Any

import pytest

from luxrelay.net.config import NetConfig
from luxrelay.net.doorway import Doorway, Stranger

CONFIG = NetConfig(handshakes_max=16, handshakes_per_s=10.0)


class Street:
    """A doorway, and who was turned out of it."""

    def __init__(self, config: NetConfig = CONFIG) -> None:
        self.doorway = Doorway(config)
        self.gone: list[str] = []

    def enter(self, host: str, name: str, *, speaks: bool = False) -> Stranger:
        """A connection from the host, by its name."""
        stranger, _ = self.doorway.enter(host, lambda: self.gone.append(name))
        stranger.spoke = speaks
        return stranger


@pytest.mark.trial
@pytest.mark.parametrize(
    ("net", "share"),
    [("198.51.{}.1", 4), ("2001:db8:{}::1", 4), ("10.51.{}.1", 8), ("127.0.{}.1", 8)],
)
def test_one_network_has_its_share_and_its_oldest_goes(net: str, share: int) -> None:
    """A quarter for a /16 or /32, half for a private one; the first that came makes room."""
    street = Street()
    for number in range(share):
        street.enter(net.format(number), f"{number}")
    assert street.gone == []

    street.enter(net.format(99), "99")
    street.enter(net.format(100), "100")

    assert street.gone == ["0", "1"]
    assert len(street.doorway) == share


@pytest.mark.trial
def test_a_newcomer_of_another_network_always_finds_a_place() -> None:
    """With all places taken by five networks, the largest makes room."""
    street = Street()
    for number in range(4):
        for net in range(4):
            street.enter(f"198.5{net}.0.{number}", f"{net}.{number}")

    street.enter("192.0.2.1", "honest")

    assert street.gone == ["0.0"]
    assert len(street.doorway) == 16


@pytest.mark.trial
def test_who_has_one_connection_and_speaks_is_the_last_to_go() -> None:
    """Beside attackers in its own network an honest dialler keeps its place."""
    street = Street()
    street.enter("198.51.0.1", "honest", speaks=True)
    for number in range(100):
        street.enter("198.51.0.2", f"silent {number}")
        street.enter("198.51.0.3", f"talks {number}", speaks=True)

    assert "honest" not in street.gone
    assert len(street.gone) == 197


def test_of_one_address_the_silent_go_first() -> None:
    """Who has said something keeps its place before an older one that has not."""
    street = Street()
    street.enter("198.51.0.1", "first", speaks=True)
    for number in range(10):
        street.enter("198.51.0.1", f"silent {number}")

    assert "first" not in street.gone
    assert len(street.doorway) == 4


def test_a_place_that_is_left_is_free() -> None:
    """Who is through, or gone, takes no place; leaving twice is leaving."""
    street = Street()
    for number in range(100):
        stranger = street.enter("198.51.0.1", f"{number}")
        street.doorway.leave(stranger)
        street.doorway.leave(stranger)

    assert street.gone == []
    assert len(street.doorway) == 0
    assert not street.doorway.turn_out_one()


def test_want_of_descriptors_frees_a_place() -> None:
    """One place is freed when asked for, of the largest network."""
    street = Street()
    street.enter("192.0.2.1", "honest")
    street.enter("198.51.0.1", "one")
    street.enter("198.51.0.2", "two")

    assert street.doorway.turn_out_one()
    assert street.gone == ["one"]


@pytest.mark.trial
def test_handshakes_of_one_address_are_calculated_at_a_pace() -> None:
    """A second's worth at once, the rest at the rate; another address does not wait."""
    doorway = Street().doorway

    waits = [doorway.pause("198.51.0.1", 100.0) for _ in range(30)]

    assert waits[:10] == [0.0] * 10
    assert waits[-1] == pytest.approx(1.9)
    assert doorway.pause("198.51.0.2", 100.0) == 0.0
    assert doorway.pause("198.51.0.1", 110.0) == 0.0


def test_pacing_forgets_addresses_that_are_long_past() -> None:
    """However many addresses come, only those of the last moments are remembered."""
    doorway = Street().doorway
    for number in range(5000):
        doorway.pause(f"11.{number // 250}.{number % 250}.1", float(number))

    assert len(doorway._due) <= 1025


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_a_development_network_is_not_limited(host: str) -> None:
    """Loopback, where it is exempt, has all places and no pace."""
    street = Street(NetConfig(handshakes_max=16, loopback_exempt=True))
    places: Any = range(16) if host else range(4)
    for number in places:
        street.enter(host, f"{number}")

    assert street.gone == []
    assert [street.doorway.pause(host, 1.0) for _ in range(100)] == [0.0] * 100
