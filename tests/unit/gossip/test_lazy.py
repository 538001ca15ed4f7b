"""IHAVE and IWANT."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luxrelay.bus import VerdictKind
from luxrelay.gossip import GossipParams, RelayMessage, relay_message_id

Kit = Any


def id_of(data: bytes) -> bytes:
    """Return the id of an encoded message."""
    return relay_message_id(RelayMessage.decode(data))


def ids(count: int, start: int = 0) -> list[bytes]:
    """Return ids that nobody has a message for."""
    return [number.to_bytes(32) for number in range(start, start + count)]


def test_recent_messages_are_announced_outside_the_mesh(kit: Kit) -> None:
    """Each heartbeat tells d_lazy subscribers outside the mesh, for 3 heartbeats (20-18, 20-17)."""
    desk = kit.Desk(GossipParams(d_lazy=3))
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(12, topic)
    desk.heartbeat()
    data = kit.envelope(topic)
    desk.accept(peers[0], topic, data)
    mesh = set(desk.router._mesh.topics[topic])

    told = [desk.heartbeat() for _ in range(4)]

    for drained in told[:3]:
        announced = {peer for peer in drained.frames if drained.rpc(peer).ihave}
        assert len(announced) == 3
        assert not announced & mesh
        assert all(drained.rpc(peer).ihave == [(topic, [id_of(data)])] for peer in announced)
    assert not any(told[3].rpc(peer).ihave for peer in told[3].frames)


@pytest.mark.parametrize(("heartbeats", "served"), [(0, True), (4, True), (5, False), (6, False)])
def test_a_message_is_served_while_it_is_in_the_window(
    kit: Kit, heartbeats: int, served: bool
) -> None:
    """IWANT is answered for history_length heartbeats and not after 6 (20-17)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(2, topic)
    data = kit.envelope(topic)
    desk.accept(peers[0], topic, data)
    for _ in range(heartbeats):
        desk.heartbeat()

    drained = desk.receive(peers[1], kit.frame(iwant=[[id_of(data)]]))

    assert (drained.receivers(data) == {peers[1]}) is served


def test_a_message_is_sent_again_three_times_at_most(kit: Kit) -> None:
    """iwant_retransmit_max answers a peer and message (20-36, G14)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(2, topic)
    data = kit.envelope(topic)
    desk.accept(peers[0], topic, data)

    drained = desk.receive(peers[1], kit.frame(iwant=[[id_of(data)] * 9]))

    assert len(drained.rpc(peers[1]).messages) == 3
    stats = desk.router.stats()
    assert (stats.iwant_served, stats.iwant_refused) == (3, 6)


def test_requests_are_capped_per_heartbeat(kit: Kit) -> None:
    """iwant_ids_max ids are looked up for a peer, then none until the heartbeat (20-36)."""
    desk = kit.Desk(GossipParams(iwant_ids_max=3))
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(2, topic)
    data = kit.envelope(topic)
    desk.accept(peers[0], topic, data)

    flood = desk.receive(peers[1], kit.frame(iwant=[ids(5)]))
    refused = desk.receive(peers[1], kit.frame(iwant=[[id_of(data)]]))

    assert flood.frames == refused.frames == {}
    assert desk.router.stats().iwant_refused == 3
    desk.heartbeat()
    again = desk.receive(peers[1], kit.frame(iwant=[[id_of(data)]]))
    assert again.receivers(data) == {peers[1]}


def test_a_message_is_not_served_to_who_does_not_follow_its_topic(kit: Kit) -> None:
    """Nobody gets messages of a topic by guessing ids."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    data = kit.envelope(topic)
    desk.accept(peer, topic, data)
    stranger = kit.peer_id(99)
    desk.router.peer_connected(stranger, "/meshsub/1.1.0", False, desk.now)
    desk.drain()

    assert desk.receive(stranger, kit.frame(iwant=[[id_of(data)]])).frames == {}


def test_an_unknown_id_is_asked_for_and_comes(kit: Kit) -> None:
    """IHAVE, IWANT, message (20-35)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(2, topic)
    data = kit.envelope(topic)

    asked = desk.receive(peers[0], kit.frame(ihave=[(topic, [id_of(data), b"no id"])]))
    assert asked.rpc(peers[0]).iwant == [id_of(data)]
    assert desk.router.stats().wanted == 1
    accepted = desk.accept(peers[0], topic, data)

    assert len(accepted.deliver) == 1
    assert desk.router.stats().wanted == 0
    known = desk.receive(peers[1], kit.frame(ihave=[(topic, [id_of(data)])]))
    assert known.frames == {}


def test_a_promise_is_not_broken_by_our_standstill(kit: Kit) -> None:
    """What was promised waits unread meanwhile; it has its whole time after."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    desk.receive(peer, kit.frame(ihave=[(topic, ids(1))]))
    desk.sign_of_life(peer)

    desk.now += 10 * desk.params.iwant_followup_s
    desk.heartbeat()

    assert desk.router.stats().promises_broken == 0
    desk.beat(desk.params.iwant_followup_s)
    assert desk.router.stats().promises_broken == 1


def test_one_holder_is_asked_at_a_time(kit: Kit) -> None:
    """A heartbeat later the next holder is asked, and a broken promise is counted (G14)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(3, topic)
    (wanted,) = ids(1)
    desk.now += 0.3
    for peer in peers[:2]:
        drained = desk.receive(peer, kit.frame(ihave=[(topic, [wanted])]))
        assert (drained.rpc(peer).iwant == [wanted]) is (peer == peers[0])

    assert desk.heartbeat().frames == {}
    second = desk.heartbeat()
    assert [peer for peer in peers if second.rpc(peer).iwant] == [peers[1]]
    desk.sign_of_life(*peers)
    desk.beat(desk.params.iwant_followup_s)

    stats = desk.router.stats()
    assert (stats.wanted, stats.promises_broken) == (0, 2)
    assert [stats.peers[peer].promises_broken for peer in peers] == [1, 1, 0]
    assert all(state.wanted == 0 for state in desk.router._peers)


def test_who_was_asked_is_not_asked_again(kit: Kit) -> None:
    """Announcing the same id once more makes nobody a further holder (G14)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    announcement = kit.frame(ihave=[(topic, ids(1))])
    assert desk.receive(peer, announcement).rpc(peer).iwant == ids(1)

    again = [desk.receive(peer, announcement), desk.heartbeat(), desk.heartbeat()]

    assert [drained.rpc(peer).iwant for drained in again] == [[], [], []]


def test_announcements_are_capped_per_heartbeat(kit: Kit) -> None:
    """ihave_messages_max RPCs and ihave_ids_max ids are heard of a peer a heartbeat (20-36)."""
    desk = kit.Desk(GossipParams(ihave_messages_max=2, ihave_ids_max=10))
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(2, topic)

    first = desk.receive(peers[0], kit.frame(ihave=[(topic, ids(8))]))
    second = desk.receive(peers[0], kit.frame(ihave=[(topic, ids(8, 100))]))
    third = desk.receive(peers[0], kit.frame(ihave=[(topic, ids(1, 200))]))

    assert len(first.rpc(peers[0]).iwant) == 8
    assert len(second.rpc(peers[0]).iwant) == 2
    assert third.frames == {}
    assert desk.router.stats().ihave_refused == 6
    other = desk.receive(peers[1], kit.frame(ihave=[(topic, ids(1, 200))]))
    assert len(other.rpc(peers[1]).iwant) == 1
    desk.now += 0.7
    desk.heartbeat()
    again = desk.receive(peers[0], kit.frame(ihave=[(topic, ids(1, 300))]))
    assert len(again.rpc(peers[0]).iwant) == 1


def test_wanted_ids_are_bounded(kit: Kit) -> None:
    """wanted_peer_max and wanted_max hold, so that announcing lies fills no memory (20-36)."""
    desk = kit.Desk(GossipParams(wanted_peer_max=5, wanted_max=8))
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(2, topic)

    for number, peer in enumerate(peers):
        desk.receive(peer, kit.frame(ihave=[(topic, ids(20, 100 * number))]))

    stats = desk.router.stats()
    assert (stats.wanted, stats.ihave_refused) == (8, 15 + 17)
    desk.router.peer_disconnected(peers[0], desk.now)
    assert desk.router.stats().wanted == 3


def test_a_holder_beyond_its_cap_is_not_asked(kit: Kit) -> None:
    """Asking the next holder keeps to the same caps as asking the first (20-36)."""
    desk = kit.Desk(GossipParams(wanted_peer_max=1))
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(3, topic)
    for peer, wanted in ((peers[0], 0), (peers[1], 1), (peers[2], 2)):
        desk.receive(peer, kit.frame(ihave=[(topic, ids(1, wanted))]))
    desk.receive(peers[2], kit.frame(ihave=[(topic, ids(2))]))

    desk.now += 0.7
    drained = desk.heartbeat()

    assert drained.rpc(peers[2]).iwant == []
    assert desk.router.stats().ihave_refused == 2


def test_a_holder_in_validation_time_is_not_sent_the_message(kit: Kit) -> None:
    """Who announces an id has it: no copy goes there (20-19)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(4, topic)
    data = kit.envelope(topic)
    desk.receive(peers[1], kit.frame(ihave=[(topic, [id_of(data)])]))
    (validate,) = desk.message(peers[0], topic, data).validate
    desk.receive(peers[2], kit.frame(ihave=[(topic, [id_of(data)])]))

    sent = desk.verdict(validate, VerdictKind.ACCEPT)

    assert sent.receivers(data) == {peers[3]}


def test_announcements_for_other_topics_are_passed_over(kit: Kit) -> None:
    """We ask for nothing on topics that we do not follow."""
    desk = kit.Desk()
    (peer,) = desk.peers(1, kit.topic_of(1))

    drained = desk.receive(peer, kit.frame(ihave=[(kit.topic_of(1), ids(3)), ("odd", ids(3))]))

    assert drained.frames == {}


def test_ids_announced_to_a_peer_are_capped(kit: Kit) -> None:
    """A heartbeat announces at most ihave_ids_max ids to a peer, over all topics (20-36)."""
    desk = kit.Desk(GossipParams(ihave_ids_max=10))
    topics = [kit.topic_of(1), kit.topic_of(2)]
    for topic in topics:
        desk.router.subscribe(topic, desk.now)
    peers = desk.peers(12, *topics)
    desk.heartbeat()
    for number in range(8):
        for topic in topics:
            desk.accept(peers[0], topic, kit.envelope(topic, number))

    drained = desk.heartbeat()

    counts = {sum(len(ids) for _, ids in drained.rpc(peer).ihave) for peer in peers}
    assert counts == {0, 8, 10}


@pytest.mark.parametrize("liars", [1, 3])
def test_a_message_arrives_by_gossip_alone(kit: Kit, liars: int) -> None:
    """A node outside every mesh gets the message although some announce and never send (20-18)."""
    params = replace(GossipParams.small(), flood_publish=False)
    world = kit.World(5 + liars, params)
    topic = kit.topic_of(1)
    source = liars + 1
    for node in range(1, 5 + liars):
        world.connect(0, node)
        if node != source:
            world.connect(node, source)
    # Back-offs without end keep node 0 out of every mesh; what it asks of a liar gets lost.
    for node in range(1, 5 + liars):
        world.routers[0]._mesh.backoffs.set(topic, kit.peer_id(node), 1e9)
        world.routers[node]._mesh.backoffs.set(topic, kit.peer_id(0), 1e9)
    world.cut = {(0, liar) for liar in range(1, liars + 1)}
    world.subscribe(topic)
    assert world.mesh_sizes(topic)[0] == 0

    world.publish(source, topic, kit.envelope(topic))
    assert world.delivered[0] == []
    world.heartbeats(6)

    assert len(world.delivered[0]) == 1
    assert all(len(delivered) == 1 for delivered in world.delivered[1:source])


LARGE = bytes(1_000)
"""A blob that makes a message one to be declined."""


def test_large_messages_are_declined_once_accepted(kit: Kit) -> None:
    """Mesh peers of 1.2 are told not to send it, ahead of the message itself (gossipsub 1.2)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    source, other, old = desk.peers(3, topic, protocol="/meshsub/1.2.0")
    desk.router.peer_connected(old, "/meshsub/1.1.0", False, desk.now)
    desk.drain()
    data = kit.envelope(topic, blob=LARGE)

    waiting = desk.message(source, topic, data)
    assert all(waiting.rpc(peer).idontwant == [] for peer in (source, other, old))
    spread = desk.verdict(waiting.validate[0], VerdictKind.ACCEPT)

    assert spread.rpc(other).idontwant == [kit.id_of(data)]
    first, second = spread.frames[other]
    assert len(first) < 100 < len(second)
    assert spread.rpc(source).idontwant == spread.rpc(old).idontwant == []
    small = desk.accept(source, topic, kit.envelope(topic, 2))
    assert small.rpc(other).idontwant == []
    assert desk.router.stats().idontwant_sent == 1


def test_a_forged_large_message_declines_nothing(kit: Kit) -> None:
    """Only an accepted message is declined, so a forged copy keeps nothing away (G1; 20-22)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    source, other = desk.peers(2, topic, protocol="/meshsub/1.2.0")
    (validate,) = desk.message(source, topic, kit.envelope(topic, blob=LARGE)).validate

    assert desk.verdict(validate, VerdictKind.REJECT).rpc(other).idontwant == []


def test_what_a_peer_declines_is_not_forwarded_to_it(kit: Kit) -> None:
    """IDONTWANT holds for a few heartbeats, for the first message of a slot (gossipsub 1.2)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    source, other = desk.peers(2, topic)
    one, twin = kit.envelope(topic, 1), kit.envelope(topic, 1, salt=5)
    late = kit.envelope(topic, 2)
    desk.receive(other, kit.frame(idontwant=[[kit.id_of(one), b"short"], [kit.id_of(late)]]))

    assert desk.accept(source, topic, one).receivers(one) == set()
    assert desk.accept(source, topic, twin).receivers(twin) == {other}
    for _ in range(desk.params.idontwant_heartbeats):
        desk.heartbeat()
    assert desk.accept(source, topic, late).receivers(late) == {other}
    assert desk.router.stats().idontwant_heeded == 1


def test_declined_ids_are_bounded(kit: Kit) -> None:
    """idontwant_ids_max a heartbeat; more is refused and an offence (20-36)."""
    desk = kit.Desk(replace(GossipParams(), idontwant_ids_max=5))
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    state = desk.router._peers.get(peer)

    for beat in range(6):
        ids = [bytes([beat, n]) * 16 for n in range(4)]
        for _ in range(3):
            desk.receive(peer, kit.frame(idontwant=[ids]))
        assert len(state.declined) <= 5 * (desk.params.idontwant_heartbeats + 1)
        desk.heartbeat()

    assert desk.router.stats().idontwant_refused == 6 * 7
    assert desk.router.stats().control_floods == 6
    assert desk.router.explain(peer, desk.now).offences > 6
