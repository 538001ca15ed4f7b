"""Peers whose link takes less than is offered, in virtual time (G38, G39)."""

from __future__ import annotations

from typing import Any

import pytest

from luxrelay.bus import VerdictKind
from luxrelay.gossip.envelope import RelayMessage, TopicKind, global_topic, relay_message_id
from luxrelay.gossip.rpc import RpcPacker, decode_rpc, encode_prune
from luxrelay.gossip.score_params import ScoreParams

BIG = 12_000
"""Bytes of a message that a slow link feels."""


def id_of(data: bytes) -> bytes:
    """Return the id of a message."""
    return relay_message_id(RelayMessage.decode(data))


@pytest.fixture
def desk(kit: Any) -> Any:
    """A router with three peers in the mesh of one topic."""
    made = kit.Desk()
    made.topic = kit.topic_of(1)
    made.router.subscribe(made.topic, made.now)
    made.who = made.peers(3, made.topic)
    made.heartbeat()
    return made


def accepted(desk: Any, kit: Any, seq: int, size: int = BIG) -> tuple[bytes, Any]:
    """Let the first peer bring a message that is accepted; the message and what follows."""
    data = kit.envelope(desk.topic, seq=seq, blob=bytes(size))
    return data, desk.accept(desk.who[0], desk.topic, data)


def test_a_slow_peer_leaves_the_mesh_and_is_told_ids(desk: Any, kit: Any) -> None:
    """It is pruned for a short while, gets no full message, and asks for what it lacks (G39)."""
    slow = desk.who[1]
    desk.router.peer_room(slow, 50_000, desk.now)
    pruned = desk.drain()
    assert pruned.rpc(slow).prune == [(desk.topic, int(desk.params.unsubscribe_backoff_s))]
    assert slow not in desk.router.mesh_peers(desk.topic)

    data, forwarded = accepted(desk, kit, 1)
    assert forwarded.receivers(data) == {desk.who[2]}
    told = desk.heartbeat().rpc(slow)
    assert told.ihave == [(desk.topic, [id_of(data)])]
    asked = desk.receive(slow, kit.frame(iwant=[[id_of(data)]]))
    assert asked.receivers(data) == {slow}
    assert desk.router.stats().slow == 1
    assert desk.router.stats().peers[slow].slow
    assert desk.router.explain(slow, desk.now).offences == 0


def test_a_slow_peer_is_told_the_newest_that_fit(desk: Any, kit: Any) -> None:
    """Announcements come to no more than its room, but one whatever its size."""
    slow = desk.who[1]
    data = [accepted(desk, kit, seq)[0] for seq in range(1, 6)]
    desk.router.peer_room(slow, 2 * BIG, desk.now)
    desk.drain()

    def told(room: int) -> list[bytes]:
        desk.router.peer_room(slow, room, desk.now)
        return [each for _, found in desk.heartbeat().rpc(slow).ihave for each in found]

    assert told(2 * BIG) == [id_of(data[4]), id_of(data[3])]
    assert told(1) == [id_of(data[4])]
    assert told(0) == []


def test_what_a_slow_peer_asks_for_beyond_its_room_is_not_queued(desk: Any, kit: Any) -> None:
    """It gets what it was promised, a little more, and then nothing until there is room."""
    slow = desk.who[1]
    data = [accepted(desk, kit, seq)[0] for seq in range(1, 12)]
    desk.router.peer_room(slow, BIG, desk.now)
    desk.drain()

    asked = desk.receive(slow, kit.frame(iwant=[[id_of(each) for each in data]]))

    sent = len(asked.rpc(slow).messages)
    assert 1 < sent <= 2 + desk.params.rpc_max // BIG + 1
    assert desk.router.stats().slow_spared == len(data) - sent


def test_our_own_messages_are_announced_to_a_slow_peer(desk: Any, kit: Any) -> None:
    """It is about to ask whoever announces first, so that a pushed copy would be the second."""
    slow = desk.who[1]
    desk.router.peer_room(slow, BIG, desk.now)
    first, second = (kit.envelope(desk.topic, seq=seq, blob=bytes(BIG)) for seq in (1, 2))

    desk.router.publish(desk.topic, first, desk.now)
    desk.router.publish(desk.topic, second, desk.now)
    sent = desk.drain()

    assert sent.receivers(first) == sent.receivers(second) == {desk.who[0], desk.who[2]}
    assert desk.router.stats().slow_spared == 2
    assert desk.heartbeat().rpc(slow).ihave == [(desk.topic, [id_of(second)])]


def test_nobody_else_is_asked_while_our_own_link_is_slow(desk: Any, kit: Any) -> None:
    """Where the quickest peer takes seconds, a second holder is asked after twice that (G39)."""
    first, second = desk.who[0], desk.who[1]
    beat = desk.params.heartbeat_interval_s
    data = [kit.envelope(desk.topic, seq=seq, blob=bytes(BIG)) for seq in (1, 2, 3)]

    def announced(each: bytes) -> None:
        for peer in (first, second):
            desk.receive(peer, kit.frame(ihave=[(desk.topic, [id_of(each)])]))

    def asked_again_after(each: bytes) -> float:
        began = desk.now
        announced(each)
        while not any(id_of(each) in ids for ids in desk.heartbeat().rpc(second).iwant):
            assert desk.now - began < 20 * beat
        return float(desk.now - began)

    assert asked_again_after(data[0]) <= 2 * beat
    announced(data[1])
    desk.now += 2 * beat
    desk.accept(first, desk.topic, data[1])
    assert asked_again_after(data[2]) == pytest.approx(4 * beat, abs=beat / 2)


def pulls(desk: Any, seconds: int = 10) -> bytes:
    """Return the frame in which a peer says that its own link is slow."""
    packer = RpcPacker(desk.params.rpc_max)
    packer.add_control(encode_prune(desk.topic, seconds, pulls=True))
    (frame,) = packer.finish()
    return frame


def told(desk: Any, sent: Any, peer: Any) -> int:
    """Return for how many seconds a peer was told that we catch up; 0 when it was not."""
    frames = sent.frames.get(peer, [])
    return max((decode_rpc(each, desk.params).pulls_s for each in frames), default=0)


def test_a_peer_that_pulls_is_sent_nothing_unasked(desk: Any, kit: Any) -> None:
    """No message, neither passed on nor our own, and no announcement, until it is well (G41)."""
    slow, other = desk.who[1], desk.who[2]
    desk.receive(slow, pulls(desk))
    assert desk.router.peer_pulls(slow)
    assert slow not in desk.router.mesh_peers(desk.topic)
    assert desk.router.stats().pulling_peers == 1
    assert desk.router.stats().peers[slow].slow

    data, forwarded = accepted(desk, kit, 1)
    assert forwarded.receivers(data) == {other}
    own = kit.envelope(desk.topic, seq=2, blob=bytes(BIG))
    desk.router.publish(desk.topic, own, desk.now)
    assert slow not in desk.drain().receivers(own)
    assert not desk.heartbeat().rpc(slow).ihave

    desk.receive(slow, kit.frame(graft=[desk.topic]))
    assert not desk.router.peer_pulls(slow)


def test_a_peer_that_pulls_is_believed_as_long_as_it_said(desk: Any) -> None:
    """Who falls silent is sent messages again; nobody is spared for longer than a back-off."""
    slow = desk.who[1]
    desk.receive(slow, pulls(desk, 2**40))
    desk.now += desk.params.backoff_max_s - 1
    desk.heartbeat()
    assert desk.router.peer_pulls(slow)
    desk.now += 2
    desk.heartbeat()
    assert not desk.router.peer_pulls(slow)


def test_a_node_that_pulls_leaves_the_meshes_and_asks_for_nothing(desk: Any, kit: Any) -> None:
    """Every peer is told so, again before it forgets; catching up brings what is announced."""
    wait_s = desk.params.unsubscribe_backoff_s
    desk.router.pull(pulls=True, now=desk.now)
    sent = desk.drain()
    assert not desk.router.mesh_peers(desk.topic)
    assert [told(desk, sent, peer) for peer in desk.who] == [wait_s] * 3
    assert desk.router.stats().pulling

    ids = [id_of(kit.envelope(desk.topic, seq=seq)) for seq in (1, 2)]
    assert (
        not desk.receive(desk.who[0], kit.frame(ihave=[(desk.topic, ids)])).rpc(desk.who[0]).iwant
    )
    assert desk.router.stats().ihave_left == 2
    refused = desk.receive(desk.who[0], kit.frame(graft=[desk.topic]))
    assert told(desk, refused, desk.who[0]) == wait_s
    assert not desk.router.mesh_peers(desk.topic)

    began, again = desk.now, 0
    while desk.now - began < wait_s:
        again += bool(told(desk, desk.heartbeat(), desk.who[1]))
    assert again == 1

    desk.router.pull(pulls=False, now=desk.now)
    for _ in range(2 * int(wait_s / desk.params.heartbeat_interval_s)):
        desk.heartbeat()
    assert set(desk.router.mesh_peers(desk.topic)) == set(desk.who)


def test_a_node_that_pulls_asks_no_second_holder(desk: Any, kit: Any) -> None:
    """What was asked for before is waited for, and asked of nobody else."""
    wanted = id_of(kit.envelope(desk.topic, seq=1))
    for peer in desk.who:
        desk.receive(peer, kit.frame(ihave=[(desk.topic, [wanted])]))
    desk.router.pull(pulls=True, now=desk.now)
    desk.drain()
    for _ in range(20):
        sent = desk.heartbeat()
        assert not any(sent.rpc(peer).iwant for peer in desk.who)
    assert desk.router.stats().wanted == 0


@pytest.mark.parametrize("slow", ["our own", "the peer's", "by its own word"])
def test_a_slow_link_leaves_no_deficit_behind(kit: Any, slow: str) -> None:
    """What did not come through it in the mesh is nobody's failure (P3b, G38)."""
    desk = kit.Desk(scores=ScoreParams.watching_headers())
    desk.topic = global_topic("testnet", TopicKind.HEADERS_GLOBAL)
    desk.router.subscribe(desk.topic, desk.now)
    (peer,) = desk.peers(1, desk.topic)
    desk.heartbeat()
    desk.now += 100
    terms = desk.router.explain(peer, desk.now)
    assert terms.topics[desk.topic].mesh_deficit > 0

    if slow == "our own":
        desk.router.pull(pulls=True, now=desk.now)
    elif slow == "the peer's":
        desk.router.peer_room(peer, BIG, desk.now)
    else:
        desk.receive(peer, pulls(desk))

    assert not desk.router.mesh_peers(desk.topic)
    assert desk.router.explain(peer, desk.now).topic_penalty == 0


def test_a_slow_peer_is_not_grafted_until_it_is_well(desk: Any, kit: Any) -> None:
    """Its GRAFT is refused meanwhile without an offence, and taken afterwards."""
    slow = desk.who[1]
    desk.router.peer_room(slow, BIG, desk.now)
    desk.drain()
    for _ in range(40):
        desk.router.peer_room(slow, BIG, desk.now)
        desk.heartbeat()
    assert slow not in desk.router.mesh_peers(desk.topic)
    desk.receive(slow, kit.frame(graft=[desk.topic]))
    assert slow not in desk.router.mesh_peers(desk.topic)
    assert desk.router.explain(slow, desk.now).offences == 0

    desk.router.peer_room(slow, None, desk.now)
    desk.beat(2 * desk.params.prune_backoff_s)

    assert slow in desk.router.mesh_peers(desk.topic)
    assert desk.router.stats().slow == 0


def test_a_promise_of_a_peer_that_fell_silent_is_nobodys_fault(desk: Any, kit: Any) -> None:
    """A network that carries nothing breaks no promise of the peer behind it (G38)."""
    peer = desk.who[1]
    desk.receive(peer, kit.frame(ihave=[(desk.topic, [b"\x07" * 32])]))

    desk.beat(2 * desk.params.iwant_followup_s)

    stats = desk.router.stats()
    assert (stats.promises_stalled, stats.promises_broken, stats.wanted) == (1, 0, 0)
    assert desk.router.explain(peer, desk.now).offences == 0


def test_a_promise_waits_while_messages_keep_coming(desk: Any, kit: Any) -> None:
    """A slow link delivers in order: what is asked for is behind what comes, for a while (G38)."""
    peer, params = desk.who[1], desk.params
    desk.receive(peer, kit.frame(ihave=[(desk.topic, [b"\x07" * 32])]))
    began, seq = desk.now, 10

    while desk.router.stats().promises_broken == 0:
        assert desk.now - began <= 12 * params.iwant_followup_s
        desk.now += 1.0
        seq += 1
        desk.accept(peer, desk.topic, kit.envelope(desk.topic, seq=seq))
        desk.heartbeat()

    assert desk.now - began >= 10 * params.iwant_followup_s
    assert desk.router.explain(peer, desk.now).offences == pytest.approx(1, abs=0.1)


def test_what_is_declined_overtakes_messages(desk: Any, kit: Any) -> None:
    """IDONTWANT leaves in a frame of its own that goes before all messages (G39)."""
    desk.router.peer_connected(desk.who[2], "/meshsub/1.2.0", False, desk.now)
    desk.router.drain()
    data = kit.envelope(desk.topic, seq=1, blob=bytes(BIG))
    desk.router.received(desk.who[0], kit.frame(messages=[(desk.topic, data)]), desk.now)
    (validate,) = [a for a in desk.router.drain() if hasattr(a, "token")]
    desk.router.validated(validate.token, VerdictKind.ACCEPT, desk.now)

    sends = [a for a in desk.router.drain() if getattr(a, "peer", None) == desk.who[2]]

    assert [send.urgent for send in sends] == [True, False]
