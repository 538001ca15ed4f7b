"""Admission by network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import GossipArgumentError
from luxrelay.gossip import DiversityParams, GossipParams, PeerId, PeerLocation, PlaceTable
from luxrelay.gossip.diversity import Diversity

Kit = Any

WORLD = PlaceTable(
    [(f"11.{n}.0.0/16", PeerLocation(asn=n // 4 + 1, region="abc"[n % 3])) for n in range(40)]
)


def made(
    params: DiversityParams | None = None,
    *,
    resolver: PlaceTable | None = None,
    peers_max: int = 50,
    exempt_loopback: bool = False,
) -> Diversity:
    """Return an empty room."""
    return Diversity(
        params or DiversityParams(),
        peers_max=peers_max,
        resolver=resolver,
        exempt_loopback=exempt_loopback,
    )


def fill(room: Diversity, addresses: list[str], *, outbound: bool = False) -> int:
    """Let peers in as far as they may; return how many came."""
    before = len(room)
    for address in addresses:
        if not room.refusal(address, outbound=outbound):
            room.joined(PeerId(address.encode()), address, outbound=outbound)
    return len(room) - before


def test_the_defaults_are_those_of_the_decisions() -> None:
    """/16 ≤ 4, ASN ≤ 8, region off, distinct outbound ≥ 4, rotation 2 in 5 minutes (G21)."""
    params = DiversityParams()

    assert (params.subnet_max, params.asn_max, params.regions_min) == (4, 8, 0)
    assert (params.outbound_distinct_min, params.outbound_max) == (4, 16)
    assert (params.rotation_interval_s, params.rotation_count, params.peers_min) == (300, 2, 10)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"subnet_max": 0}, "subnet_max is 0"),
        ({"peers_min": -1}, "peers_min is -1"),
        ({"rotation_interval_s": float("nan")}, "rotation_interval_s is nan"),
        ({"outbound_max": 3}, "outbound_distinct_min is above"),
    ],
)
def test_refuse_a_diversity_that_cannot_be(changes: dict[str, float], text: str) -> None:
    """Numbers that do not fit are refused by name (20-06)."""
    with pytest.raises(GossipArgumentError, match=text):
        DiversityParams(**changes)  # type: ignore[arg-type]  # names come from the table above


@pytest.mark.parametrize("net", ["11.7.{}.1", "2001:db8:{}::1"])
def test_one_network_gives_four_peers(net: str) -> None:
    """Of a hundred hosts of one /16 or IPv6 /32, four come in (20-30, G23)."""
    room = made()

    assert fill(room, [net.format(n) for n in range(100)]) == 4
    assert "peers of" in room.refusal(net.format(200), outbound=False)
    assert room.refusal("11.8.0.1", outbound=False) == ""
    room.left(PeerId(net.format(0).encode()))
    assert room.refusal(net.format(200), outbound=False) == ""


def test_one_autonomous_system_gives_eight_peers() -> None:
    """Where a resolver knows it, and across its networks (20-30)."""
    hosts = [f"11.{n}.{k}.1" for n in range(4) for k in range(4)]

    assert fill(made(resolver=WORLD), hosts) == 8
    assert fill(made(), hosts) == 16


def test_the_last_outbound_places_are_for_other_networks() -> None:
    """With four places and one network connected, three are for others (20-30)."""
    room = made(DiversityParams(outbound_max=5, outbound_distinct_min=4))
    same = [f"11.1.{n}.1" for n in range(4)]

    assert fill(room, same, outbound=True) == 2
    assert "other networks" in room.refusal("11.1.9.1", outbound=True)
    assert room.refusal("11.1.9.1", outbound=False) == ""
    others = [f"11.{n}.0.1" for n in range(2, 5)]
    assert fill(room, others, outbound=True) == 3
    assert room.refusal("11.2.0.2", outbound=True) == ""


def test_the_last_places_are_for_other_regions() -> None:
    """With regions_min 3 and one region seen, two places are kept (20-31)."""
    room = made(replace(DiversityParams(), regions_min=3), resolver=WORLD, peers_max=6)
    region_a = [f"11.{n}.0.1" for n in range(0, 39, 3)]

    assert fill(room, region_a) == 4
    assert "other regions" in room.refusal("11.3.9.9", outbound=False)
    assert "other regions" in room.refusal("192.0.2.1", outbound=False)
    assert fill(room, ["11.1.0.1", "11.2.0.1"]) == 2


def test_regions_need_a_resolver() -> None:
    """Without one nothing is known, and nobody is refused for it (20-31)."""
    room = made(replace(DiversityParams(), regions_min=3), peers_max=6)

    assert fill(room, [f"11.{n}.0.1" for n in range(6)]) == 6


def test_loopback_counts_unless_it_is_exempt() -> None:
    """A development network on one machine says so (G23)."""
    hosts = [f"127.0.0.{n}" for n in range(1, 41)]

    assert fill(made(), hosts) == 24
    assert fill(made(exempt_loopback=True), hosts) == 40


@pytest.mark.trial
@pytest.mark.parametrize(
    "net", ["10.7.{}.1", "172.16.{}.1", "192.168.{}.1", "100.64.{}.1", "fd00:0:{}::1"]
)
def test_a_private_network_has_a_number_of_its_own(net: str) -> None:
    """Ten relays of one private /16 are peers of each other, and a flood of them is bounded."""
    room = made()

    assert fill(room, [net.format(n) for n in range(10)]) == 10
    assert fill(room, [net.format(n) for n in range(10, 100)]) == 14
    assert "24 peers of" in room.refusal(net.format(200), outbound=False)
    assert fill(made(DiversityParams(private_subnet_max=3)), [net.format(n) for n in range(9)]) == 3


def test_an_unknown_address_is_in_no_network() -> None:
    """Peers whose address nobody knows are not one network; outbound ones take places."""
    room = made(DiversityParams(outbound_max=5))

    for number in range(20):
        assert room.refusal("", outbound=True) == ""
        room.joined(PeerId(bytes([number])), "", outbound=True)
    room.joined(PeerId(b"first"), "11.1.0.1", outbound=True)
    assert "other networks" in room.refusal("11.1.0.2", outbound=True)


STEPS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 39), st.booleans(), st.booleans()), max_size=60
)


@given(steps=STEPS)
def test_counting_ends_where_it_began(steps: list[tuple[int, int, bool, bool]]) -> None:
    """However peers come, come again and go, every count is the number of those who are there."""
    room = made(resolver=WORLD)
    there: dict[int, tuple[str, bool]] = {}
    for who, where, outbound, leaves in steps:
        if leaves:
            room.left(PeerId(bytes([who])))
            there.pop(who, None)
        else:
            there[who] = (f"11.{where}.0.1", outbound)
            room.joined(PeerId(bytes([who])), *there[who][:1], outbound=outbound)
        groups = [address.rpartition(".0.1")[0] for address, _ in there.values()]
        assert sum(room._groups.values()) == len(there) == len(room)
        assert len(room._groups) == len(set(groups))
        assert sum(room._outbound.values()) == sum(out for _, out in there.values())
        assert sum(room._systems.values()) == sum(room._regions.values()) == len(there)


# With a router.


def test_an_eclipse_by_one_network_fails(kit: Kit) -> None:
    """Of 60 peers of one /16 four get in, and the honest ones find their places (20-30)."""
    desk = kit.Desk(diversity=DiversityParams())
    for number in range(60):
        desk.router.peer_connected(
            kit.peer_id(number), "/meshsub/1.1.0", False, desk.now, address=f"11.66.{number}.1"
        )
    assert len(desk.drain().disconnect) == 56
    for number in range(60, 80):
        desk.router.peer_connected(
            kit.peer_id(number), "/meshsub/1.1.0", True, desk.now, address=f"12.{number}.1.1"
        )

    assert desk.drain().disconnect == []
    assert len(desk.router.stats().peers) == 24
    assert desk.router.stats().refused == 56
    assert "11.66.0.0/16" in desk.router.refuses("11.66.99.1", outbound=True)


def test_a_peer_that_leaves_makes_room_for_its_neighbours(kit: Kit) -> None:
    """The router tells who left, so places are freed (20-30)."""
    desk = kit.Desk(diversity=DiversityParams())
    for number in range(4):
        desk.router.peer_connected(
            kit.peer_id(number), "/meshsub/1.1.0", False, desk.now, address="11.66.0.1"
        )
    assert desk.router.refuses("11.66.0.9", outbound=False)

    desk.router.peer_disconnected(kit.peer_id(0), desk.now)

    assert desk.router.refuses("11.66.0.9", outbound=False) == ""


def test_a_protected_peer_is_let_in_and_counts(kit: Kit) -> None:
    """Who the operator chose comes from wherever it is (G22)."""
    desk = kit.Desk(diversity=DiversityParams())
    for number in range(6):
        desk.router.peer_connected(
            kit.peer_id(number),
            "/meshsub/1.1.0",
            True,
            desk.now,
            address="11.66.0.1",
            protected=True,
        )

    assert desk.drain().disconnect == []
    assert desk.router.refuses("11.66.0.9", outbound=False)


def test_crowds_are_scored_by_host(kit: Kit) -> None:
    """Five peers of one IPv6 /64 are one crowd; on loopback nobody is, in development (P6)."""
    desk = kit.Desk()
    for number in range(5):
        desk.router.peer_connected(
            kit.peer_id(number), "/meshsub/1.1.0", False, desk.now, address=f"2001:db8::{number}"
        )
    assert desk.router.explain(kit.peer_id(0), desk.now).colocation == 10

    local = kit.Desk(replace(GossipParams(), exempt_loopback=True))
    for number in range(9):
        local.router.peer_connected(
            kit.peer_id(number), "/meshsub/1.1.0", False, local.now, address="127.0.0.1"
        )
    assert local.router.explain(kit.peer_id(0), local.now).colocation == 0
