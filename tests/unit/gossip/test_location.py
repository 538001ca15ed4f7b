"""Addresses, their groups, and tables of networks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import GossipArgumentError
from luxrelay.gossip import PeerLocation, PlaceTable
from luxrelay.gossip import location as places
from luxrelay.gossip.location import Location, locate


def location(address: str, host: str, group: str, *, ours: bool = False) -> Location:
    """Where an address is; one of this machine is private as well."""
    private = ours or address.startswith("fe80")
    return Location(address, host, group, loopback=ours, private=private)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.77", location("192.0.2.77", "192.0.2.77", "192.0.0.0/16")),
        ("127.0.0.9", location("127.0.0.9", "127.0.0.9", "127.0.0.0/16", ours=True)),
        (
            "2001:db8:1:2:3::4",
            location("2001:db8:1:2:3::4", "2001:db8:1:2::/64", "2001:db8::/32"),
        ),
        ("fe80::1%eth0", location("fe80::1", "fe80::/64", "fe80::/32")),
        ("::1", location("::1", "::/64", "::/32", ours=True)),
        ("::ffff:192.0.2.77", location("192.0.2.77", "192.0.2.77", "192.0.0.0/16")),
        ("", None),
        ("relay.example", None),
        ("1.2.3", None),
    ],
)
def test_an_address_has_a_host_and_a_group(address: str, expected: Location | None) -> None:
    """/16 of IPv4, /32 of IPv6, one host a /64, and nobody counts twice (20-30, G23)."""
    assert locate(address) == expected


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("10.255.0.1", True),
        ("172.16.0.1", True),
        ("172.32.0.1", False),
        ("192.168.9.9", True),
        ("100.64.0.1", True),
        ("100.128.0.1", False),
        ("127.4.5.6", True),
        ("169.254.1.1", True),
        ("fd00::1", True),
        ("::1", True),
        ("::ffff:10.0.0.1", True),
        ("192.0.2.1", False),
        ("11.0.0.1", False),
        ("2001:db8::1", False),
    ],
)
def test_private_networks_are_known(address: str, *, private: bool) -> None:
    """Addresses that anybody may use are told from those that somebody has."""
    found = locate(address)
    assert found is not None
    assert found.private is private


@given(st.text(max_size=60))
def test_locating_never_raises(text: str) -> None:
    """Text that is no address is nowhere."""
    found = locate(text)
    assert found is None or found.group


def test_the_longest_network_says_where_an_address_is() -> None:
    """Nested networks: the narrower one wins; outside all of them nothing is known (20-31)."""
    table = PlaceTable(
        [
            ("10.0.0.0/8", PeerLocation(1, "eu")),
            ("10.9.0.0/16", PeerLocation(2, "us")),
            ("2001:db8::/32", PeerLocation(3, "asia")),
        ]
    )

    assert table.place("10.1.1.1") == PeerLocation(1, "eu")
    assert table.place("10.9.1.1") == PeerLocation(2, "us")
    assert table.place("2001:db8::9") == PeerLocation(3, "asia")
    assert table.place("11.0.0.1") == table.place("nonsense") == PeerLocation()


def test_refuse_a_table_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with host bits or a table without end is refused."""
    with pytest.raises(GossipArgumentError, match="is no network"):
        PlaceTable([("10.0.0.1/8", PeerLocation())])
    monkeypatch.setattr(places, "ENTRIES_MAX", 2)
    with pytest.raises(GossipArgumentError, match="more than 2 networks"):
        PlaceTable([(f"10.{n}.0.0/16", PeerLocation()) for n in range(3)])
