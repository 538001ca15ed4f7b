"""The router as a whole."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from luxrelay.bus import VerdictKind
from luxrelay.errors import TopicError
from luxrelay.gossip import PROTOCOLS, GossipParams, GossipRouter, PeerId, Send

Kit = Any


def test_a_new_peer_is_told_our_subscriptions(kit: Kit) -> None:
    """One frame greets it, in the order we subscribed (20-41)."""
    desk = kit.Desk()
    topics = [kit.topic_of(1), kit.topic_of(2)]
    for topic in topics:
        desk.router.subscribe(topic, desk.now)

    desk.router.peer_connected(kit.peer_id(1), PROTOCOLS[0], True, desk.now)

    assert desk.drain().rpc(kit.peer_id(1)).subscriptions == [(True, topic) for topic in topics]


def test_a_connected_peer_is_told_changes(kit: Kit) -> None:
    """Subscribing and unsubscribing are announced once each; repeating does nothing (20-41)."""
    desk = kit.Desk()
    (peer,) = desk.peers(1)
    topic = kit.topic_of(1)

    told = []
    for action in (desk.router.subscribe, desk.router.unsubscribe):
        for _ in range(2):
            action(topic, desk.now)
            told.append(desk.drain().rpc(peer).subscriptions)

    assert told == [[(True, topic)], [], [(False, topic)], []]


def test_the_alias_subscribes_to_the_same_topic(kit: Kit) -> None:
    """We follow and leave the canonical topic, whatever spelling the caller uses (20-09, G5)."""
    desk = kit.Desk()
    topic = kit.topic_of(1)
    alias = topic.replace("namespace/", "namespace/0x")

    desk.router.subscribe(alias, desk.now)
    assert list(desk.router.stats().mesh) == [topic]
    desk.router.unsubscribe(alias, desk.now)

    assert desk.router.stats().mesh == {}
    desk.router.unsubscribe("no topic", desk.now)


def test_refuse_what_is_no_topic(kit: Kit) -> None:
    """A caller learns at once that a topic is none (20-41)."""
    desk = kit.Desk()

    with pytest.raises(TopicError):
        desk.router.subscribe("chat", desk.now)
    with pytest.raises(TopicError):
        desk.router.publish("chat", b"", desk.now)


def test_routing_reaches_exactly_the_subscribers(kit: Kit) -> None:
    """3 topics, 10 nodes: a message goes to who follows its topic and to nobody else (20-49)."""
    world = kit.World(10)
    world.connect_all()
    topics = [kit.topic_of(number) for number in range(3)]
    followers = {topics[0]: {0, 1, 2, 3}, topics[1]: {2, 3, 4, 5, 6}, topics[2]: {7, 8}}
    for topic, nodes in followers.items():
        world.subscribe(topic, nodes)
    world.heartbeats(3)

    for seq, topic in enumerate(topics):
        world.publish(9, topic, kit.envelope(topic, seq))
    world.heartbeats(4)

    for node in range(10):
        got = sorted(deliver.topic for deliver in world.delivered[node])
        assert got == sorted(topic for topic in topics if node in followers[topic])
        carried = {topic for topic in topics if node in followers[topic]}
        sent = world.received_messages(node)
        assert all(
            kit.envelope(t, s) not in [d for _, d in sent]
            for s, t in enumerate(topics)
            if t not in carried
        )


def test_a_line_of_routers_carries_a_message_to_its_end(kit: Kit) -> None:
    """Each hop validates and forwards, and nobody gets a message back (20-18, 20-19)."""
    world = kit.World(6)
    for node in range(5):
        world.connect(node, node + 1)
    world.subscribe(topic := kit.topic_of(1))

    world.publish(0, topic, kit.envelope(topic))

    assert [len(delivered) for delivered in world.delivered] == [0, 1, 1, 1, 1, 1]
    assert [len(world.received_messages(node)) for node in range(6)] == [0, 1, 1, 1, 1, 1]


def test_a_rejecting_node_stops_a_message(kit: Kit) -> None:
    """Behind a node that rejects, nobody sees the message (20-18)."""
    world = kit.World(4)
    for node in range(3):
        world.connect(node, node + 1)
    world.subscribe(topic := kit.topic_of(1))
    world.judge = lambda node, _: VerdictKind.REJECT if node == 1 else VerdictKind.ACCEPT

    world.publish(0, topic, kit.envelope(topic))
    world.heartbeats(5)

    assert [len(delivered) for delivered in world.delivered] == [0, 0, 0, 0]
    assert world.received_messages(2) == []


def test_a_network_delivers_everything_to_everyone_once(kit: Kit) -> None:
    """20 nodes, 60 messages from all of them: each arrives once at each other node (20-21)."""
    world = kit.World(20, GossipParams(flood_publish=False))
    world.connect_all()
    world.subscribe(topic := kit.topic_of(1))
    world.heartbeats(3)

    for seq in range(60):
        world.publish(seq % 20, topic, kit.envelope(topic, seq))
    world.heartbeats(3)

    assert [len(delivered) for delivered in world.delivered] == [57] * 20
    assert all(len(validated) == 57 for validated in world.validated)


def test_a_network_recovers_when_a_third_leaves(kit: Kit) -> None:
    """Meshes fill up again, and messages reach everyone who stayed (20-14, 20-51)."""
    world = kit.World(15)
    world.connect_all()
    world.subscribe(topic := kit.topic_of(1))
    world.heartbeats(3)
    for gone in range(10, 15):
        for node in range(15):
            if node != gone:
                world.disconnect(gone, node)

    world.heartbeats(5)
    world.publish(0, topic, kit.envelope(topic))
    world.heartbeats(3)

    assert all(len(world.delivered[node]) == 1 for node in range(1, 10))
    assert min(world.mesh_sizes(topic)[:10]) >= world.params.d_lo


def test_peers_are_bounded(kit: Kit) -> None:
    """One more than peers_max is disconnected and not remembered (20-05)."""
    desk = kit.Desk(replace(GossipParams(), peers_max=2))
    desk.peers(2)
    extra = kit.peer_id(7)

    desk.router.peer_connected(extra, PROTOCOLS[0], False, desk.now)
    drained = desk.drain()

    assert [(d.peer, d.reason) for d in drained.disconnect] == [(extra, "too many peers")]
    assert len(desk.router.stats().peers) == 2


@pytest.mark.parametrize(
    ("peer", "protocol", "reason"),
    [
        (PeerId(b"the desk"), PROTOCOLS[0], "ourselves"),
        (PeerId(b"other"), "/floodsub/1.0.0", "not spoken"),
    ],
)
def test_refuse_ourselves_and_foreign_protocols(
    kit: Kit, peer: PeerId, protocol: str, reason: str
) -> None:
    """Such a connection is closed with a reason (G29)."""
    desk = kit.Desk()

    desk.router.peer_connected(peer, protocol, True, desk.now)

    (disconnect,) = desk.drain().disconnect
    assert disconnect.peer == peer
    assert reason in disconnect.reason


def test_connecting_again_greets_again(kit: Kit) -> None:
    """A second connection updates what is known and repeats our subscriptions."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)

    desk.router.peer_connected(peer, PROTOCOLS[0], True, desk.now)

    assert desk.drain().rpc(peer).subscriptions == [(True, topic)]
    assert list(desk.router._mesh.topics[topic]) == [peer]


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x12\x7f", bytes(2_000_000)])
def test_a_garbage_frame_is_counted_and_dropped(kit: Kit, data: bytes) -> None:
    """Whatever a peer sends, nothing is raised and nothing else happens."""
    desk = kit.Desk()
    (peer,) = desk.peers(1)

    drained = desk.receive(peer, data)

    assert (drained.frames, drained.disconnect) == ({}, [])
    assert desk.router.stats().peers[peer].malformed == 1


def test_a_frame_of_a_stranger_is_dropped(kit: Kit) -> None:
    """Frames that arrive after a disconnection cause nothing."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    desk.router.peer_disconnected(peer, desk.now)
    desk.router.peer_disconnected(peer, desk.now)

    assert desk.message(peer, topic, kit.envelope(topic)).validate == []
    assert desk.router.stats().strangers == 1


def test_isolated_faults_are_forgiven(kit: Kit) -> None:
    """Invalid messages decay with each heartbeat, so faults far apart never add up (G18)."""
    desk = kit.Desk()
    (peer,) = desk.peers(1)

    disconnects = []
    for _ in range(40):
        disconnects += desk.receive(peer, b"\xff").disconnect
        for _ in range(100):
            desk.heartbeat()

    assert disconnects == []
    assert desk.router.stats().peers[peer].malformed == 40


def test_faults_in_a_row_lead_from_the_mesh_to_the_door(kit: Kit) -> None:
    """23 unreadable frames disconnect a peer, and it is refused for ten minutes (20-27; G16)."""
    desk = kit.Desk()
    (peer,) = desk.peers(1)

    disconnects = [d for _ in range(23) for d in desk.receive(peer, b"\xff").disconnect]

    assert [(d.peer, d.reason, d.refuse_s) for d in disconnects] == [(peer, "score -5290", 600.0)]
    assert desk.router.stats().peers == {}
    assert desk.router.stats().disconnected == 1
    desk.now += 599
    desk.router.peer_connected(peer, "/meshsub/1.1.0", False, desk.now)
    (refused,) = desk.drain().disconnect
    assert refused.refuse_s == pytest.approx(1)
    desk.now += 2
    desk.router.peer_connected(peer, "/meshsub/1.1.0", False, desk.now)
    assert desk.drain().disconnect == []
    assert list(desk.router.stats().peers) == [peer]


def test_a_second_greeting_says_everything_again(kit: Kit) -> None:
    """Who may have forgotten us is told what we follow and in whose mesh it is."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    desk.router.subscribe(quiet := kit.topic_of(2), desk.now)
    (peer,) = desk.peers(1, topic)
    assert desk.router.stats().mesh == {topic: 1, quiet: 0}

    desk.router.peer_connected(peer, "/meshsub/1.1.0", False, desk.now)
    rpc = desk.drain().rpc(peer)

    assert sorted(rpc.subscriptions) == sorted([(True, topic), (True, quiet)])
    assert rpc.graft == [topic]


def test_the_heartbeat_keeps_its_period(kit: Kit) -> None:
    """It is due at once after the interval, not earlier; a late one is not made up for."""
    desk = kit.Desk()
    assert desk.router.wake_at() is None
    desk.router.wake(desk.now)
    assert desk.router.wake_at() == desk.now + desk.params.heartbeat_initial_s

    desk.heartbeat()
    first = desk.router.wake_at()
    assert first == pytest.approx(desk.now + 0.7)
    desk.router.wake(desk.now)
    assert desk.router.wake_at() == first
    desk.now += 70
    desk.router.wake(desk.now)

    assert desk.router.wake_at() == pytest.approx(desk.now + 0.7)


def test_the_heartbeat_lets_memories_expire(kit: Kit) -> None:
    """What was accepted and what failed is forgotten after its time (G1, G14)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    desk.accept(peer, topic, kit.envelope(topic, 1))
    (validate,) = desk.message(peer, topic, kit.envelope(topic, 2)).validate
    desk.verdict(validate, VerdictKind.REJECT)
    assert (desk.router.stats().seen, desk.router.stats().failures) == (1, 1)

    desk.now += desk.params.seen_ttl_s
    desk.heartbeat()

    assert (desk.router.stats().seen, desk.router.stats().failures) == (0, 0)


@pytest.mark.trial
@pytest.mark.parametrize("part", [0.1, 0.42, 0.99])
def test_the_same_bytes_again_and_again_are_delivered_once(kit: Kit, part: float) -> None:
    """Copies that come for ten times a message's time are judged and delivered once."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    one, other = desk.peers(2, topic)
    data = kit.envelope(topic, 1)
    desk.accept(one, topic, data)
    until, pause = desk.now + 10 * desk.params.seen_ttl_s, part * desk.params.seen_ttl_s
    while desk.now < until:
        desk.now += pause
        desk.heartbeat()
        for peer in (one, other):
            did = desk.message(peer, topic, data)
            assert not did.validate
            assert not did.deliver

    desk.now += desk.params.seen_ttl_s
    desk.heartbeat()
    assert desk.router.stats().seen == 0
    assert desk.router.stats().delivered == 1


def test_the_same_seed_gives_the_same_actions(kit: Kit) -> None:
    """Chance comes from rng alone, so a run can be repeated byte for byte."""
    runs = []
    for _ in range(2):
        world = kit.World(8, seed=7)
        world.connect_all()
        world.subscribe(topic := kit.topic_of(1))
        for seq in range(5):
            world.publish(seq, topic, kit.envelope(topic, seq))
            world.heartbeats(1)
        runs.append(world.carried)

    assert runs[0] == runs[1]


def test_frames_to_a_peer_are_coalesced_and_bounded(kit: Kit) -> None:
    """Everything ready at drain time is put into as few frames as rpc_max allows (20-58)."""
    params = replace(GossipParams(), rpc_max=2_048)
    router = GossipRouter(params, rng=random.Random(1), own_id=PeerId(b"me"))
    topic = kit.topic_of(1)
    peer = PeerId(b"peer")
    router.peer_connected(peer, PROTOCOLS[1], True, 0.0)
    router.received(peer, kit.frame(subscribe=[topic]), 0.0)
    size = len(kit.envelope(topic))
    for seq in range(20):
        router.publish(topic, kit.envelope(topic, seq), 0.0)
    router.publish(topic, kit.envelope(topic, 99, blob=bytes(40_000)), 0.0)

    sends = [action for action in router.drain() if isinstance(action, Send)]

    per_frame = 2_048 // (size + 70)
    assert len(sends) <= 20 // per_frame + 2
    assert all(len(send.data) <= 2_048 for send in sends[:-1])
    assert len(sends[-1].data) > 40_000
    assert router.drain() == []
