"""Addresses, their groups, and tables of networks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import GossipArgumentError
from luxrelay.gossip import Place, PlaceTable, places
from luxrelay.gossip.places import Location, locate


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.77", Location("192.0.2.77", "192.0.2.77", "192.0.0.0/16", loopback=False)),
        ("127.0.0.9", Location("127.0.0.9", "127.0.0.9", "127.0.0.0/16", loopback=True)),
        (
            "2001:db8:1:2:3::4",
            Location("2001:db8:1:2:3::4", "2001:db8:1:2::/64", "2001:db8::/32", loopback=False),
        ),
        ("fe80::1%eth0", Location("fe80::1", "fe80::/64", "fe80::/32", loopback=False)),
        ("::1", Location("::1", "::/64", "::/32", loopback=True)),
        ("::ffff:192.0.2.77", Location("192.0.2.77", "192.0.2.77", "192.0.0.0/16", loopback=False)),
        ("", None),
        ("relay.example", None),
        ("1.2.3", None),
    ],
)
def test_an_address_has_a_host_and_a_group(address: str, expected: Location | None) -> None:
    """/16 of IPv4, /32 of IPv6, one host a /64, and nobody counts twice (20-30, G23)."""
    assert locate(address) == expected


@given(st.text(max_size=60))
def test_locating_never_raises(text: str) -> None:
    """Text that is no address is nowhere."""
    location = locate(text)
    assert location is None or location.group


def test_the_longest_network_says_where_an_address_is() -> None:
    """Nested networks: the narrower one wins; outside all of them nothing is known (20-31)."""
    table = PlaceTable(
        [
            ("10.0.0.0/8", Place(1, "eu")),
            ("10.9.0.0/16", Place(2, "us")),
            ("2001:db8::/32", Place(3, "asia")),
        ]
    )

    assert table.place("10.1.1.1") == Place(1, "eu")
    assert table.place("10.9.1.1") == Place(2, "us")
    assert table.place("2001:db8::9") == Place(3, "asia")
    assert table.place("11.0.0.1") == table.place("nonsense") == Place()


def test_refuse_a_table_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with host bits or a table without end is refused."""
    with pytest.raises(GossipArgumentError, match="is no network"):
        PlaceTable([("10.0.0.1/8", Place())])
    monkeypatch.setattr(places, "ENTRIES_MAX", 2)
    with pytest.raises(GossipArgumentError, match="more than 2 networks"):
        PlaceTable([(f"10.{n}.0.0/16", Place()) for n in range(3)])
