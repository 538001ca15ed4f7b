"""Rotation: whom it drops, whom it spares, and whom it asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luxrelay.gossip import DiversityParams, GossipParams, PeerId

Kit = Any

RARE = replace(GossipParams(), heartbeat_interval_s=10.0)


def rotated(desk: Any) -> list[PeerId]:
    """Let five minutes pass; return who was dropped."""
    dropped = []
    for _ in range(31):
        dropped += [d.peer for d in desk.heartbeat().disconnect if "rotation" in d.reason]
    return dropped


def test_low_scores_go_and_new_peers_are_asked_for(kit: Kit) -> None:
    """Every five minutes those below zero go, the lowest first, and two others come (20-32)."""
    desk = kit.Desk(RARE, diversity=DiversityParams(peers_min=3))
    peers = desk.peers(10)
    for number, score in ((2, -5.0), (7, -9.0)):
        desk.router.app_score(peers[number], score, desk.now)
    due = desk.now + 290
    while desk.now < due:
        assert desk.heartbeat().disconnect == []

    drained = desk.heartbeat()

    assert [d.peer for d in drained.disconnect] == [peers[7], peers[2]]
    assert [d.count for d in drained.discover] == [2]
    assert desk.router.stats().rotated == 2
    assert desk.heartbeat().discover == []


def test_one_stale_outbound_peer_goes_however_good_it_is(kit: Kit) -> None:
    """At most one of the lowest quarter of the outbound peers, by chance (20-32, G22)."""
    gone = set()
    for seed in range(12):
        desk = kit.Desk(RARE, seed, diversity=DiversityParams(peers_min=3))
        peers = desk.peers(16, outbound=range(8))
        for number, peer in enumerate(peers):
            desk.router.app_score(peer, 10.0 + number, desk.now)
        (dropped,) = rotated(desk)
        gone.add(dropped)

    assert gone == set(peers[:2])


def test_never_fewer_than_the_minimum(kit: Kit) -> None:
    """peers_min peers stay, whatever their scores (20-32)."""
    desk = kit.Desk(RARE, diversity=DiversityParams(peers_min=8))
    peers = desk.peers(10)
    for peer in peers:
        desk.router.app_score(peer, -5.0, desk.now)

    assert len(rotated(desk)) == 2
    assert len(desk.router.stats().peers) == 8


@pytest.mark.parametrize("subscribers", [4, 5, 6, 9])
def test_no_mesh_is_starved(kit: Kit, subscribers: int) -> None:
    """A topic keeps d_lo peers in its mesh and d_lo that could be grafted (20-32)."""
    desk = kit.Desk(RARE, diversity=DiversityParams(peers_min=1))
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    desk.peers(subscribers, topic, outbound=range(subscribers))
    desk.heartbeat()

    for _ in range(12):
        rotated(desk)
        left = desk.router.stats()
        assert left.mesh[topic] >= desk.params.d_lo
        assert len(left.peers) >= desk.params.d_lo

    assert len(left.peers) <= max(4, subscribers - 1)


@pytest.mark.parametrize("why", ["protected", "validator"])
def test_chosen_and_proven_peers_stay(kit: Kit, why: str) -> None:
    """Protected peers and proven validators are not rotated (G22)."""
    desk = kit.Desk(RARE, diversity=DiversityParams(peers_min=1))
    peers = desk.peers(4, outbound=range(4))
    for peer in peers[:3]:
        if why == "protected":
            desk.router.peer_connected(peer, "/meshsub/1.1.0", True, desk.now, protected=True)
        else:
            desk.router._peers.get(peer).ledger.validator = True
            desk.router.app_score(peer, -90.0, desk.now)

    assert rotated(desk) == [peers[3]]
    assert rotated(desk) == []


def test_nobody_is_asked_for_without_room(kit: Kit) -> None:
    """As many as there are places, none when there is no place (20-32)."""
    desk = kit.Desk(replace(RARE, peers_max=5), diversity=DiversityParams(peers_min=5))
    desk.peers(5)
    asked = [d.count for _ in range(31) for d in desk.heartbeat().discover]
    assert asked == []

    desk.router.peer_disconnected(kit.peer_id(0), desk.now)
    asked = [d.count for _ in range(31) for d in desk.heartbeat().discover]
    assert asked == [1]


def test_without_diversity_nothing_rotates(kit: Kit) -> None:
    """Rotation is part of what `DiversityParams` turn on."""
    desk = kit.Desk(RARE)
    peers = desk.peers(10, outbound=range(10))
    desk.router.app_score(peers[0], -5.0, desk.now)

    assert rotated(desk) == []


def test_a_mesh_at_its_low_mark_loses_nobody(kit: Kit) -> None:
    """Though others could be grafted, a member stays while the mesh has d_lo peers (20-32)."""
    desk = kit.Desk(RARE, diversity=DiversityParams(peers_min=1))
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(12, topic, outbound=range(12))
    mesh = desk.router._mesh.topics[topic]
    assert len(mesh) == desk.params.d_lo
    for peer in peers:
        desk.router.app_score(peer, 1.0 if peer in mesh else 50.0, desk.now)

    assert desk.router._doorkeeper._rotation.choose() == []
