"""A header has two topics, its namespace's and ``headers/global``, and crosses a link once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.unit.gossip.conftest import READER, Desk, World, envelope, frame, peer_id, topic_of

from luxrelay.bus import NamespaceId
from luxrelay.gossip import (
    MessageType,
    RelayMessage,
    ScoreParams,
    TopicKind,
    global_topic,
    parse_topic,
)
from luxrelay.gossip.announcements import for_headers_global, parent_named
from luxrelay.gossip.rpc import decode_rpc

GLOBAL = global_topic("testnet", TopicKind.HEADERS_GLOBAL)
ROOM = topic_of(1)
PARENT = NamespaceId((1).to_bytes(20))


def second(data: bytes) -> bytes:
    """Return what stands on ``headers/global`` for a message of the room."""
    return for_headers_global(RelayMessage.decode(data), parse_topic(ROOM)).encode()


def publish(world: World, node: int, data: bytes) -> None:
    """Publish on both topics, as a node does."""
    world.publish(node, ROOM, data)
    world.publish(node, GLOBAL, second(data))


def crossings(world: World) -> Counter[tuple[int, int]]:
    """Return how many messages each direction of each link carried."""
    found: Counter[tuple[int, int]] = Counter()
    for source, target, data in world.carried:
        found[source, target] += len(decode_rpc(data, READER).messages)
    return +found


def islands(world: World, both: list[int], alone: list[int]) -> None:
    """Let nodes follow both topics, or ``headers/global`` alone."""
    world.subscribe(GLOBAL, [*both, *alone])
    world.subscribe(ROOM, both)
    world.run(3)


@pytest.mark.parametrize("blob", [None, b"a payload of forty bytes, more or less so"])
def test_a_header_crosses_each_link_of_a_chain_once(blob: bytes | None) -> None:
    """Also when relays announce it for heartbeats on end (LP-6420 §2.2, §4.3; G2, G34)."""
    world = World(4)
    for node in range(3):
        world.connect(node, node + 1)
    islands(world, [0, 1, 2], [3])

    for seq in range(1, 6):
        publish(world, 0, envelope(ROOM, seq, blob=blob))
    world.run(8)

    assert crossings(world) == {(0, 1): 5, (1, 2): 5, (2, 3): 5}
    far = [RelayMessage.decode(each.data) for each in world.delivered[3]]
    assert [each.type for each in far] == [MessageType.HEADER] * 5
    assert {parent_named(each) for each in far} == {PARENT}
    assert world.routers[2].stats().passed_on == 5


def test_no_direction_of_a_link_carries_a_header_twice() -> None:
    """In a crowd in which some follow one topic and others both (LP-6420 §2.2; G34)."""
    world = World(10)
    world.connect_all()
    islands(world, [0, 1, 2, 3, 4, 5, 6], [7, 8, 9])

    publish(world, 0, envelope(ROOM, 1, blob=b"x" * 20))
    world.run(8)

    assert max(crossings(world).values()) == 1
    assert all(len(told) == 1 for told in world.delivered[1:])


def test_who_follows_one_topic_alone_joins_two_parts_of_a_namespace() -> None:
    """Relays that nothing else connects get each other's headers by ``headers/global`` (G34)."""
    world = World(3)
    world.connect(0, 1)
    world.connect(1, 2)
    islands(world, [0, 2], [1])

    publish(world, 0, envelope(ROOM, 1))
    world.run(4)

    assert [len(told) for told in world.delivered] == [0, 1, 1]
    assert crossings(world) == {(0, 1): 1, (1, 2): 1}


def test_who_does_not_pass_headers_on_is_sent_both() -> None:
    """A relay of an earlier version feeds its followers of ``headers/global`` itself (G34)."""
    world = World(4, plain=[1])
    for node in range(3):
        world.connect(node, node + 1)
    islands(world, [0, 1, 2], [3])
    world.routers[1]._flow._pass_on = lambda *_: None  # type: ignore[method-assign]

    publish(world, 0, envelope(ROOM, 1))
    world.run(4)

    assert crossings(world)[0, 1] == 2
    assert len(world.delivered[3]) == 1


def test_who_comes_late_is_told_of_what_was_passed_on() -> None:
    """A follower outside the mesh asks for it by its announcement (LP-6420 §4.2; G34)."""
    desk = Desk()
    one, two = peer_id(1), peer_id(2)
    desk.router.subscribe(GLOBAL, desk.now)
    desk.router.subscribe(ROOM, desk.now)
    for peer, topics in ((one, [ROOM, GLOBAL]), (two, [GLOBAL])):
        desk.router.peer_connected(peer, "/meshsub/1.1.0", False, desk.now)
        desk.router.received(peer, frame(subscribe=topics, prune=[(GLOBAL, 60)]), desk.now)
        desk.router.peer_passes_on(peer)
    desk.drain()
    data = envelope(ROOM, 1, blob=b"x")

    desk.accept(one, ROOM, data)
    told = desk.heartbeat()

    ((topic, ids),) = told.rpc(two).ihave
    assert topic == GLOBAL
    assert [t for t, _ in told.rpc(one).ihave] in ([], [ROOM])
    asked = desk.receive(two, frame(iwant=[list(ids)]))
    assert asked.receivers(second(data)) == {two}
    # Who follows both is sent the one with the payload, whoever asks.
    again = desk.receive(one, frame(iwant=[list(ids)]))
    assert [message for _, message in again.rpc(one).messages] == [data]


def test_nobody_is_asked_for_the_second_copy() -> None:
    """An announcement on ``headers/global`` of a header that came is passed over (G34)."""
    desk = Desk()
    desk.router.subscribe(GLOBAL, desk.now)
    desk.router.subscribe(ROOM, desk.now)
    one, two = desk.peers(2, ROOM, GLOBAL)
    data = envelope(ROOM, 1)
    desk.accept(one, ROOM, data)
    (delivered,) = (each for each in desk.router._memory.cache.recent()[ROOM, ""])

    heard = desk.receive(two, frame(ihave=[(GLOBAL, [delivered])]))
    assert heard.rpc(two).iwant == []
    other = desk.receive(two, frame(ihave=[(GLOBAL, [b"\x01" * 32])]))
    assert other.rpc(two).iwant == [b"\x01" * 32]


def test_a_header_on_the_namespace_s_topic_counts_on_both() -> None:
    """Deliveries that are watched on ``headers/global`` are those of either topic (G18, G34)."""
    desk = Desk(scores=ScoreParams.watching_headers())
    desk.router.subscribe(GLOBAL, desk.now)
    desk.router.subscribe(ROOM, desk.now)
    one, two = desk.peers(2, ROOM, GLOBAL)
    for peer in (one, two):
        desk.receive(peer, frame(graft=[GLOBAL, ROOM]))
    data = envelope(ROOM, 1)

    desk.accept(one, ROOM, data)
    desk.message(two, ROOM, data)

    def mesh(peer: Any) -> float:
        return desk.router._peers.get(peer).ledger.topics[GLOBAL].mesh  # type: ignore[union-attr]

    assert (mesh(one), mesh(two)) == (1, 1)
