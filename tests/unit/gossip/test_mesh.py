"""Meshes, fan-outs and back-offs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luxrelay.errors import GossipArgumentError
from luxrelay.gossip import GossipParams, PeerId
from luxrelay.gossip.mesh import Backoffs

Kit = Any


def test_thirty_routers_form_meshes_within_bounds(kit: Kit) -> None:
    """After 20 heartbeats every mesh of a full network has d_lo to d_hi peers (20-14)."""
    params = replace(GossipParams(), prune_backoff_s=2.0)
    world = kit.World(30, params)
    world.connect_all()
    world.subscribe(topic := kit.topic_of(1))

    world.heartbeats(20)

    sizes = world.mesh_sizes(topic)
    assert min(sizes) >= params.d_lo
    assert max(sizes) <= params.d_hi
    assert params.d_lo <= sum(sizes) / len(sizes) <= params.d + 3


def test_meshes_are_mutual(kit: Kit) -> None:
    """Who has a peer in its mesh is in that peer's mesh (20-14)."""
    world = kit.World(12, GossipParams())
    world.connect_all()
    world.subscribe(topic := kit.topic_of(1))

    world.heartbeats(10)

    meshes = [set(router._mesh.topics[topic]) for router in world.routers]
    for node, mesh in enumerate(meshes):
        assert all(kit.peer_id(node) in meshes[int(peer[5:])] for peer in mesh)


def test_a_small_network_meshes_before_its_heartbeat(kit: Kit) -> None:
    """graft_delay_s after subscribers appear they are grafted while a mesh is below d_lo."""
    world = kit.World(3)
    world.run(0.06)
    world.connect_all()

    world.subscribe(topic := kit.topic_of(1))

    assert world.mesh_sizes(topic) == [2, 2, 2]


def test_a_mesh_below_the_low_mark_is_filled(kit: Kit) -> None:
    """The heartbeat grafts up to d (20-14, LP-6420 §4.1)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    desk.peers(10, topic)
    assert desk.router.stats().mesh[topic] == desk.params.d_lo
    for peer in list(desk.router._mesh.topics[topic])[:2]:
        desk.router.peer_disconnected(peer, desk.now)

    grafted = desk.heartbeat()

    assert desk.router.stats().mesh[topic] == desk.params.d
    assert sum(grafted.rpc(peer).graft == [topic] for peer in grafted.frames) == 4


@pytest.mark.parametrize("seed", range(5))
def test_pruning_keeps_the_best_and_enough_outbound(kit: Kit, seed: int) -> None:
    """Above d_hi the mesh goes down to d: d_score best stay, and d_out outbound (20-15)."""
    desk = kit.Desk(seed=seed)
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(20, topic, outbound=(18, 19))
    mesh = desk.router._mesh.topics[topic]
    mesh.update({peer: desk.router._peers.get(peer) for peer in peers[4:]})
    count = len(mesh)
    best = list(mesh)[:4]
    for peer in best:
        desk.router.app_score(peer, 5.0, desk.now)
    assert len(mesh) > desk.params.d_hi

    pruned = desk.heartbeat()

    assert len(mesh) == desk.params.d
    assert set(best) <= set(mesh)
    assert {peers[18], peers[19]} <= set(mesh)
    told = [peer for peer in pruned.frames if pruned.rpc(peer).prune == [(topic, 60)]]
    assert len(told) == count - desk.params.d


def test_outbound_peers_are_grafted_until_there_are_enough(kit: Kit) -> None:
    """A mesh of inbound peers alone takes d_out outbound ones in (20-15)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    desk.peers(9, topic)
    mesh = desk.router._mesh.topics[topic]
    assert len(mesh) == desk.params.d_lo
    for number in (20, 21, 22):
        desk.router.peer_connected(kit.peer_id(number), "/meshsub/1.1.0", True, desk.now)
        desk.receive(kit.peer_id(number), kit.frame(subscribe=[topic]))
    assert not any(state.outbound for state in mesh.values())

    desk.heartbeat()

    assert sum(state.outbound for state in mesh.values()) == desk.params.d_out
    assert len(mesh) <= desk.params.d_hi


def test_a_full_mesh_takes_outbound_peers_only(kit: Kit) -> None:
    """At d_hi a GRAFT is answered with PRUNE unless we dialed the peer (20-35)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(13, topic)
    for peer in peers[:12]:
        desk.receive(peer, kit.frame(graft=[topic]))
    mesh = desk.router._mesh.topics[topic]
    mesh.pop(peers[12], None)
    mesh.update({peer: desk.router._peers.get(peer) for peer in peers[:12]})
    dialed = kit.peer_id(20)
    desk.router.peer_connected(dialed, "/meshsub/1.1.0", True, desk.now)
    assert desk.router.stats().mesh[topic] == desk.params.d_hi

    refused = desk.receive(peers[12], kit.frame(graft=[topic]))
    taken = desk.receive(dialed, kit.frame(subscribe=[topic], graft=[topic]))

    assert refused.rpc(peers[12]).prune == [(topic, 60)]
    assert taken.frames == {}
    assert desk.router.stats().mesh[topic] == desk.params.d_hi + 1
    desk.heartbeat()
    assert desk.router.stats().mesh[topic] == desk.params.d


def test_a_pruned_peer_is_refused_during_its_backoff(kit: Kit) -> None:
    """PRUNE is honoured; GRAFT in back-off is refused, counted, and starts it anew (20-35)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    desk.receive(peer, kit.frame(prune=[(topic, 10)]))
    assert desk.router.stats().mesh[topic] == 0

    desk.now += 9
    refused = desk.receive(peer, kit.frame(graft=[topic]))

    assert refused.rpc(peer).prune == [(topic, 60)]
    stats = desk.router.stats()
    assert (stats.grafts_refused, stats.peers[peer].grafts_refused) == (1, 1)
    desk.now += 60.1
    assert desk.heartbeat().rpc(peer).graft == []
    desk.now += 0.7
    assert desk.heartbeat().rpc(peer).graft == [topic]


def test_a_backoff_outlives_the_connection(kit: Kit) -> None:
    """Reconnecting does not shorten a back-off (20-35)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    desk.receive(peer, kit.frame(prune=[(topic, 30)]))
    desk.router.peer_disconnected(peer, desk.now)

    desk.peers(1, topic)

    assert desk.receive(peer, kit.frame(graft=[topic])).rpc(peer).prune == [(topic, 60)]


def test_a_backoff_is_at_most_backoff_max(kit: Kit) -> None:
    """A peer cannot keep us out for ever, whatever number it sends."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    desk.receive(peer, kit.frame(prune=[(topic, 2**64 - 1)]))

    left = desk.router._mesh.backoffs.left(topic, peer, desk.now)

    assert left == desk.params.backoff_max_s


def test_backoffs_are_bounded() -> None:
    """backoffs_max entries are kept, the oldest goes first; expired ones go by themselves."""
    backoffs = Backoffs(2)
    for number in range(3):
        backoffs.set("/a", PeerId(b"%d" % number), 10.0 + number)
    backoffs.set("/a", PeerId(b"2"), 5.0)

    assert len(backoffs) == 2
    assert not backoffs.waits("/a", PeerId(b"0"))
    assert backoffs.left("/a", PeerId(b"2"), 0) == 12.0
    backoffs.expire(11.5)
    assert [backoffs.waits("/a", PeerId(b"%d" % n)) for n in range(3)] == [False, False, True]


def test_leaving_a_topic_prunes_with_the_short_backoff(kit: Kit) -> None:
    """The mesh is told, and both sides wait unsubscribe_backoff_s (G14, 20-41)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(2, topic)

    desk.router.unsubscribe(topic, desk.now)
    told = desk.drain()

    for peer in peers:
        assert told.rpc(peer).prune == [(topic, 10)]
        assert told.rpc(peer).subscriptions == [(False, topic)]
    desk.router.subscribe(topic, desk.now)
    assert all(desk.drain().rpc(peer).graft == [] for peer in peers)


def test_a_graft_needs_a_subscription(kit: Kit) -> None:
    """A peer that does not follow the topic is not taken into its mesh."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1)

    assert desk.receive(peer, kit.frame(graft=[topic])).rpc(peer).prune == [(topic, 60)]
    assert desk.router.stats().mesh[topic] == 0


def test_control_for_a_topic_we_do_not_follow_is_passed_over(kit: Kit) -> None:
    """GRAFT and PRUNE for other topics cause nothing, not even an answer."""
    desk = kit.Desk()
    (peer,) = desk.peers(1, kit.topic_of(1))

    drained = desk.receive(
        peer,
        kit.frame(
            graft=[kit.topic_of(1), "nonsense"], prune=[(kit.topic_of(2), 5), ("nonsense", 5)]
        ),
    )

    assert drained.frames == {}
    assert len(desk.router._mesh.backoffs) == 0


def test_a_mesh_forgets_who_unsubscribes_or_leaves(kit: Kit) -> None:
    """Only connected subscribers are in a mesh (20-14)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(3, topic)

    desk.receive(peers[0], kit.frame(unsubscribe=[topic]))
    desk.router.peer_disconnected(peers[1], desk.now)

    assert list(desk.router._mesh.topics[topic]) == [peers[2]]


@pytest.mark.parametrize("flood", [True, False])
def test_a_fanout_ends_after_its_time(kit: Kit, flood: bool) -> None:
    """fanout_ttl_s after the last publish the peers are forgotten (20-16)."""
    desk = kit.Desk(GossipParams(flood_publish=flood))
    topic = kit.topic_of(1)
    desk.peers(10, topic)
    count = desk.router.publish(topic, kit.envelope(topic), desk.now)
    assert count == (10 if flood else 6)
    fanouts = desk.router._mesh.fanouts
    assert len(fanouts[topic].peers) == desk.params.d

    for seq in (2, 3):
        desk.now += 59.9
        desk.heartbeat()
        assert topic in fanouts
        desk.router.publish(topic, kit.envelope(topic, seq), desk.now)
    desk.now += 60.1
    desk.heartbeat()

    assert topic not in fanouts


def test_a_fanout_is_kept_full_and_becomes_the_mesh(kit: Kit) -> None:
    """Lost peers are replaced; whoever then subscribes starts with its fan-out (LP-6420 §4.1)."""
    desk = kit.Desk(GossipParams(flood_publish=False))
    topic = kit.topic_of(1)
    desk.peers(10, topic)
    desk.router.publish(topic, kit.envelope(topic), desk.now)
    fanout = desk.router._mesh.fanouts[topic].peers
    desk.router.peer_disconnected(next(iter(fanout)), desk.now)
    desk.receive(next(iter(fanout)), kit.frame(unsubscribe=[topic]))
    assert len(fanout) == desk.params.d - 2
    desk.heartbeat()
    assert len(fanout) == desk.params.d

    desk.router.subscribe(topic, desk.now)

    assert set(desk.router._mesh.topics[topic]) == set(fanout)
    assert topic not in desk.router._mesh.fanouts


def test_a_fanout_peer_in_backoff_does_not_join_the_mesh(kit: Kit) -> None:
    """Who left a topic and publishes to it comes back without grafting too early (20-35)."""
    desk = kit.Desk(GossipParams(flood_publish=False))
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    desk.router.unsubscribe(topic, desk.now)
    desk.router.publish(topic, kit.envelope(topic), desk.now)
    assert list(desk.router._mesh.fanouts[topic].peers) == [peer]

    desk.router.subscribe(topic, desk.now)

    assert desk.router.stats().mesh[topic] == 0


def test_topics_and_fanouts_are_bounded(kit: Kit) -> None:
    """topics_max topics can be followed; a fan-out beyond it is used and not kept."""
    desk = kit.Desk(replace(GossipParams(), topics_max=2))
    desk.peers(1, kit.topic_of(3))
    for number in (1, 2, 3):
        topic = kit.topic_of(number)
        desk.router.publish(topic, kit.envelope(topic), desk.now)
    assert list(desk.router._mesh.fanouts) == [kit.topic_of(1), kit.topic_of(2)]
    desk.router.subscribe(kit.topic_of(1), desk.now)
    desk.router.subscribe(kit.topic_of(2), desk.now)

    with pytest.raises(GossipArgumentError, match="2 topics"):
        desk.router.subscribe(kit.topic_of(3), desk.now)


def test_a_poor_mesh_takes_better_peers_in(kit: Kit) -> None:
    """Every 60 heartbeats a mesh with a median below 1 grafts two peers above it (G14)."""
    params = replace(GossipParams(), opportunistic_graft_heartbeats=4)
    desk = kit.Desk(params)
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(20, topic, outbound=(0, 1))
    desk.heartbeat()
    mesh = desk.router._mesh.topics[topic]
    before = set(mesh)
    outside = [peer for peer in peers if peer not in before][:3]
    for peer in outside:
        desk.router.app_score(peer, 7.0, desk.now)

    desk.heartbeat()
    assert set(mesh) == before
    desk.heartbeat()

    assert len(set(mesh) - before) == 2
    assert set(mesh) - before <= set(outside)
    assert desk.router.stats().grafts_opportunistic == 2


def test_a_mesh_of_mute_peers_is_poor_however_long_it_lasts(kit: Kit) -> None:
    """The credit for time in the mesh hides no peer that brings nothing, nor keeps others out."""
    desk = kit.Desk(replace(GossipParams(), opportunistic_graft_heartbeats=600))
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(20, topic, outbound=(0, 1))
    desk.heartbeat()
    mesh = desk.router._mesh.topics[topic]
    before = set(mesh)
    better = next(peer for peer in peers if peer not in before)
    desk.router.app_score(better, 0.5, desk.now)
    for _ in range(600):
        desk.heartbeat()

    mute = min(state.score for peer, state in mesh.items() if peer in before)
    assert mute > desk.router._score_params.opportunistic_graft_threshold > 0.5
    assert set(mesh) - before == {better}


def test_a_good_mesh_is_left_alone(kit: Kit) -> None:
    """A median at the threshold needs no better peers."""
    desk = kit.Desk(replace(GossipParams(), opportunistic_graft_heartbeats=1))
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(20, topic, outbound=(0, 1))
    for peer in peers:
        desk.router.app_score(peer, 1.0, desk.now)
    desk.heartbeat()
    mesh = desk.router._mesh.topics[topic]
    before = set(mesh)
    desk.router.app_score(next(p for p in peers if p not in before), 50.0, desk.now)

    desk.heartbeat()

    assert set(mesh) == before


def test_light_nodes_are_in_no_mesh(kit: Kit) -> None:
    """A light node is pruned, not grafted, refused, and still published to (G26; 20-01)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    light, other = desk.peers(2, topic)
    mesh = desk.router._mesh.topics[topic]
    assert set(mesh) == {light, other}

    desk.router.peer_is_light(light, desk.now)
    assert desk.drain().rpc(light).prune == [(topic, 60)]
    desk.router.peer_is_light(light, desk.now)
    assert desk.drain().frames == {}
    desk.now += 100
    desk.heartbeat()
    refused = desk.receive(light, kit.frame(graft=[topic])).rpc(light)

    assert refused.prune == [(topic, 60)]
    assert set(mesh) == {other}
    assert desk.router.publish(topic, kit.envelope(topic), desk.now) == 2


def test_a_light_node_has_no_mesh_and_still_hears(kit: Kit) -> None:
    """It grafts nobody, refuses GRAFTs, and gets what others publish and announce (G26; 20-01)."""
    params = replace(GossipParams(), light=True, flood_publish=False)
    desk = kit.Desk(params)
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    desk.heartbeat()

    refused = desk.receive(peer, kit.frame(graft=[topic])).rpc(peer)
    assert refused.prune == [(topic, 60)]
    assert desk.router.stats().mesh[topic] == 0
    assert len(desk.accept(peer, topic, kit.envelope(topic)).deliver) == 1
    data = kit.envelope(topic, 2)
    asked = desk.receive(peer, kit.frame(ihave=[(topic, [kit.id_of(data)])])).rpc(peer).iwant
    assert asked == [kit.id_of(data)]
    assert desk.router.publish(topic, kit.envelope(topic, 3), desk.now) == 1


def test_a_fan_out_drops_whom_it_should_not_publish_to(kit: Kit) -> None:
    """A peer below the publish threshold leaves the fan-out and another takes its place (G16)."""
    desk = kit.Desk(replace(GossipParams(), flood_publish=False, d=2, d_lo=2, d_score=1, d_out=1))
    topic = kit.topic_of(1)
    desk.peers(3, topic)
    assert desk.router.publish(topic, kit.envelope(topic, 1), desk.now) == 2
    fanout = desk.router._mesh.fanouts[topic]
    first = set(fanout.peers)
    bad = min(first)

    desk.router.app_score(bad, -1.0, desk.now)
    desk.heartbeat()

    assert len(fanout.peers) == 2
    assert set(fanout.peers) & first == first - {bad}
