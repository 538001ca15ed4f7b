"""What a frame says besides messages; here the exchange of peers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luxrelay.gossip import GossipParams, PeerId, ScoreParams

Kit = Any

EXCHANGING = replace(GossipParams(), peer_exchange=True)


def crowded(kit: Kit, params: GossipParams = EXCHANGING) -> tuple[Any, str, list[PeerId]]:
    """Return a desk with a full mesh of twelve, and a thirteenth peer outside."""
    desk = kit.Desk(params)
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(13, topic)
    for peer in peers[:12]:
        desk.receive(peer, kit.frame(graft=[topic]))
    desk.router._mesh.topics[topic].pop(peers[12], None)
    for peer in peers:
        assert desk.router.peer_record(peer, b"record of " + peer)
    return desk, topic, peers


def test_a_pruned_peer_is_told_of_others(kit: Kit) -> None:
    """A PRUNE for want of room suggests subscribers with signed records (20-03, G21)."""
    desk, topic, peers = crowded(kit)

    told = desk.receive(peers[12], kit.frame(graft=[topic])).rpc(peers[12])

    assert told.prune == [(topic, 60)]
    assert {peer for _, peer, _ in told.suggested} == set(peers[:12])
    assert all(record == b"record of " + peer for _, peer, record in told.suggested)
    assert desk.router.stats().px_suggested == 12


def test_only_good_peers_with_a_record_are_suggested(kit: Kit) -> None:
    """No record, a score below zero, or gone: not suggested (20-03)."""
    desk, topic, peers = crowded(kit)
    desk.router._peers.get(peers[0]).record = b""
    desk.router.app_score(peers[1], -1.0, desk.now)
    desk.router.peer_disconnected(peers[2], desk.now)
    desk.receive(peers[3], kit.frame(unsubscribe=[topic]))
    for number in range(50, 52):
        desk.router.peer_connected(kit.peer_id(number), "/meshsub/1.1.0", False, desk.now)
        desk.receive(kit.peer_id(number), kit.frame(subscribe=[topic], graft=[topic]))

    told = desk.receive(peers[12], kit.frame(graft=[topic])).rpc(peers[12])

    assert {peer for _, peer, _ in told.suggested} == set(peers[4:12])


def test_a_peer_of_low_score_or_in_backoff_is_told_of_nobody(kit: Kit) -> None:
    """Whoever misbehaves is not helped to find others (20-03, G16)."""
    desk, topic, peers = crowded(kit)
    desk.router.app_score(peers[12], -1.0, desk.now)

    low = desk.receive(peers[12], kit.frame(graft=[topic])).rpc(peers[12])
    desk.router.app_score(peers[12], 0.0, desk.now)
    early = desk.receive(peers[12], kit.frame(graft=[topic])).rpc(peers[12])

    assert (len(low.prune), low.suggested) == (1, [])
    assert (len(early.prune), early.suggested) == (1, [])


def test_nobody_is_suggested_unless_asked_for(kit: Kit) -> None:
    """Peer exchange is off until the driver can do its part."""
    desk, topic, peers = crowded(kit, GossipParams())

    told = desk.receive(peers[12], kit.frame(graft=[topic])).rpc(peers[12])
    heard = desk.receive(peers[0], kit.frame(prune=[(topic, 60)], suggest=[(b"new", b"record")]))

    assert told.suggested == []
    assert heard.dial == []


def test_suggestions_are_bounded(kit: Kit) -> None:
    """At most px_peers_max, as many as fit a frame; a longer record is not kept (20-03)."""
    desk, topic, peers = crowded(kit, replace(EXCHANGING, px_peers_max=3, rpc_max=2_048))
    assert not desk.router.peer_record(peers[0], bytes(2_049))
    assert not desk.router.peer_record(PeerId(b"stranger"), b"r")

    told = desk.receive(peers[12], kit.frame(graft=[topic])).rpc(peers[12])
    assert len(told.suggested) == 3

    desk, topic, peers = crowded(kit, replace(EXCHANGING, rpc_max=2_048))
    for peer in peers:
        desk.router.peer_record(peer, bytes(600))
    drained = desk.receive(peers[12], kit.frame(graft=[topic]))
    assert 0 < len(drained.rpc(peers[12]).suggested) < 12
    assert all(len(data) <= 2_048 for data in drained.frames[peers[12]])


def test_suggested_peers_are_dialled(kit: Kit) -> None:
    """A trusted peer's suggestions become Dial actions with the record as it came (20-03)."""
    desk, topic, peers = crowded(kit)
    desk.router.app_score(peers[0], 1.0, desk.now)

    dials = desk.receive(
        peers[0], kit.frame(prune=[(topic, 60)], suggest=[(b"new", b"a record"), (b"other", b"b")])
    ).dial

    assert [(d.peer, d.record) for d in dials] == [(b"new", b"a record"), (b"other", b"b")]


@pytest.mark.parametrize(
    ("peer", "record"),
    [
        (b"the desk", b"r"),
        (b"peer-0003", b"r"),
        (b"banned", b"r"),
        (b"", b"r"),
        (b"x" * 65, b"r"),
        (b"unsigned", b""),
        (b"long", bytes(2_049)),
    ],
)
def test_pass_over_a_suggestion_that_is_none(kit: Kit, peer: bytes, record: bytes) -> None:
    """Ourselves, connected, refused, nameless, without a record or with a huge one (20-03)."""
    desk, topic, peers = crowded(kit)
    desk.router.app_score(peers[0], 1.0, desk.now)
    banned = PeerId(b"banned")
    desk.router.peer_connected(banned, "/meshsub/1.1.0", False, desk.now)
    desk.router.app_score(banned, -6000.0, desk.now)
    assert desk.drain().disconnect

    dials = desk.receive(peers[0], kit.frame(prune=[(topic, 60)], suggest=[(peer, record)])).dial

    assert dials == []
    assert desk.router.stats().px_refused == 1


def test_strangers_suggest_in_vain(kit: Kit) -> None:
    """Suggestions are followed from px_threshold on, and of a peer the operator chose (G21)."""
    desk, topic, peers = crowded(kit)
    suggestion = kit.frame(prune=[(topic, 60)], suggest=[(b"new", b"r")])
    foreign = kit.frame(prune=[(kit.topic_of(9), 60)], suggest=[(b"new", b"r")])

    assert desk.receive(peers[0], suggestion).dial == []
    desk.router.peer_connected(peers[1], "/meshsub/1.1.0", True, desk.now, protected=True)
    assert desk.receive(peers[1], foreign).dial == []
    assert len(desk.receive(peers[1], suggestion).dial) == 1
    assert ScoreParams().px_threshold > 0


def test_dials_are_bounded_in_a_heartbeat(kit: Kit) -> None:
    """px_dials_max a heartbeat, however many frames come (20-36)."""
    desk, topic, peers = crowded(kit, replace(EXCHANGING, px_dials_max=5))
    desk.router.app_score(peers[0], 1.0, desk.now)
    frames = [
        kit.frame(prune=[(topic, 60)], suggest=[(b"n%d-%d" % (n, k), b"r") for k in range(20)])
        for n in range(3)
    ]

    first = [d for data in frames for d in desk.receive(peers[0], data).dial]
    desk.heartbeat()
    then = [d for data in frames for d in desk.receive(peers[0], data).dial]

    assert (len(first), len(then)) == (5, 5)
