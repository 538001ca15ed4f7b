"""Who may be here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from luxrelay.gossip import DiversityParams, GossipParams, PeerId

Kit = Any


def test_a_refusal_says_why(kit: Kit) -> None:
    """Ourselves, a foreign protocol, no room, the wrong network: each by name (20-05, 20-56)."""
    desk = kit.Desk(replace(GossipParams(), peers_max=5), diversity=DiversityParams(subnet_max=1))
    for peer, protocol, address in (
        (b"the desk", "/meshsub/1.1.0", ""),
        (b"a", "/floodsub/1.0.0", ""),
        (b"b", "/meshsub/1.1.0", "11.0.0.1"),
        (b"c", "/meshsub/1.1.0", "11.0.0.2"),
    ):
        desk.router.peer_connected(PeerId(peer), protocol, False, desk.now, address=address)
    for number in range(4):
        desk.router.peer_connected(kit.peer_id(number), "/meshsub/1.1.0", False, desk.now)
    desk.router.peer_connected(PeerId(b"full"), "/meshsub/1.1.0", False, desk.now, protected=True)

    assert [(d.peer, d.reason) for d in desk.drain().disconnect] == [
        (b"the desk", "this is ourselves"),
        (b"a", "protocol '/floodsub/1.0.0' is not spoken here"),
        (b"c", "1 peers of 11.0.0.0/16 are connected"),
        (b"full", "too many peers"),
    ]
    assert desk.router.stats().refused == 4


def test_a_second_connection_updates_what_is_known(kit: Kit) -> None:
    """Protocol and address are those of the last call; whom we dialled once we have dialled."""
    desk = kit.Desk(diversity=DiversityParams(subnet_max=2))
    peer = kit.peer_id(0)
    for _ in range(5):
        desk.router.peer_connected(peer, "/meshsub/1.1.0", False, desk.now, address="11.0.0.1")
    assert desk.router.refuses("11.0.0.2", outbound=False) == ""

    desk.router.peer_connected(peer, "/meshsub/1.2.0", True, desk.now, address="11.9.0.1")

    state = desk.router._peers.get(peer)
    assert (state.protocol, state.outbound, state.declines) == ("/meshsub/1.2.0", True, True)
    desk.router.peer_connected(peer, "/meshsub/1.2.0", False, desk.now, address="11.9.0.1")
    assert state.outbound
    assert desk.drain().disconnect == []


def test_a_ledger_does_not_outlive_a_good_peer(kit: Kit) -> None:
    """Ten thousand peers that come and go in peace leave nothing behind (20-58)."""
    desk = kit.Desk(diversity=DiversityParams())
    for number in range(10_000):
        peer = PeerId(b"%d" % number)
        desk.router.peer_connected(
            peer, "/meshsub/1.1.0", False, desk.now, address=f"11.{number % 200}.1.1"
        )
        desk.router.peer_disconnected(peer, desk.now)

    doorkeeper = desk.router._doorkeeper
    assert len(desk.router._scores) == len(doorkeeper._diversity) == 0
    assert not desk.router._scores._at_address
    assert not doorkeeper._diversity._groups
