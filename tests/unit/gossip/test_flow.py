"""The way of a message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luxrelay.bus import VerdictKind
from luxrelay.errors import GossipArgumentError
from luxrelay.gossip import (
    BlobAvailabilityHint,
    GossipParams,
    MessageType,
    RelayMessage,
    TopicKind,
    global_topic,
)

Kit = Any
GLOBAL = global_topic("testnet", TopicKind.HEADERS_GLOBAL)


def desk_on(kit: Kit, *topics: str, params: GossipParams | None = None, peers: int = 4) -> Any:
    """Return a router that follows topics with peers that do, too, and the peers."""
    desk = kit.Desk(params)
    for topic in topics:
        desk.router.subscribe(topic, desk.now)
    return desk, desk.peers(peers, *topics)


def test_a_message_is_validated_before_it_is_forwarded(kit: Kit) -> None:
    """Nothing is sent or delivered before the verdict, everything after ACCEPT (20-18)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    data = kit.envelope(topic)

    before = desk.message(peers[0], topic, data)
    (validate,) = before.validate
    after = desk.verdict(validate, VerdictKind.ACCEPT)

    assert (before.frames, before.deliver) == ({}, [])
    assert (validate.peer, validate.topic, validate.data) == (peers[0], topic, data)
    assert validate.message == RelayMessage.decode(data)
    assert after.receivers(data) == set(peers[1:])
    assert [(d.topic, d.data) for d in after.deliver] == [(topic, data)]
    assert desk.router.stats().cached == 1


@pytest.mark.parametrize("kind", [VerdictKind.IGNORE, VerdictKind.REJECT])
def test_a_message_that_fails_stays_here(kit: Kit, kind: VerdictKind) -> None:
    """Neither IGNORE nor REJECT forwards, delivers, caches or marks as seen (20-18, 20-57)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    (validate,) = desk.message(peers[0], topic, kit.envelope(topic)).validate

    after = desk.verdict(validate, kind)

    assert (after.frames, after.deliver) == ({}, [])
    stats = desk.router.stats()
    assert (stats.seen, stats.cached, stats.failures) == (0, 0, 1)
    counts = stats.peers[peers[0]]
    assert (counts.ignored, counts.rejected) == ((1, 0) if kind is VerdictKind.IGNORE else (0, 1))


def test_a_message_does_not_go_back(kit: Kit) -> None:
    """Neither to its source nor to who sent a copy during validation (20-19)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    data = kit.envelope(topic)
    (validate,) = desk.message(peers[0], topic, data).validate
    copy = desk.message(peers[1], topic, data)

    after = desk.verdict(validate, VerdictKind.ACCEPT)

    assert copy.validate == []
    assert after.receivers(data) == set(peers[2:])
    assert desk.router.stats().duplicates == 1


def test_duplicates_are_delivered_once(kit: Kit) -> None:
    """100 copies from 5 peers are one validation and one delivery (20-21)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic, peers=5)
    data = kit.envelope(topic)
    validations, deliveries = [], []

    for number in range(100):
        drained = desk.message(peers[number % 5], topic, data)
        for validate in drained.validate:
            validations.append(validate)
            deliveries += desk.verdict(validate, VerdictKind.ACCEPT).deliver

    assert (len(validations), len(deliveries)) == (1, 1)
    stats = desk.router.stats()
    assert (stats.received, stats.duplicates, stats.accepted) == (100, 99, 1)
    assert stats.peers[peers[1]].duplicates == 20


def test_a_bad_first_copy_does_not_suppress_the_good_one(kit: Kit) -> None:
    """Who floods a forged header for a slot does not make the true one a duplicate (20-22, G1)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    bad, good = kit.envelope(topic, salt=666), kit.envelope(topic)
    (forged,) = desk.message(peers[0], topic, bad).validate
    (true,) = desk.message(peers[1], topic, good).validate
    desk.verdict(forged, VerdictKind.REJECT)

    after = desk.verdict(true, VerdictKind.ACCEPT)

    assert after.receivers(good) == {peers[0], peers[2], peers[3]}
    assert len(after.deliver) == 1


def test_bad_bytes_are_not_validated_twice(kit: Kit) -> None:
    """A digest that failed costs the next peer a count and us nothing, for a while (G1)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    bad = kit.envelope(topic)
    (validate,) = desk.message(peers[0], topic, bad).validate
    desk.verdict(validate, VerdictKind.REJECT)

    again = desk.message(peers[1], topic, bad)

    assert again.validate == []
    assert desk.router.stats().peers[peers[1]].rejected == 1
    desk.now += desk.params.rejected_ttl_s
    assert len(desk.message(peers[1], topic, bad).validate) == 1


def test_an_ignored_message_gets_another_chance_soon(kit: Kit) -> None:
    """What was in the way may pass: after ignored_ttl_s the same bytes are validated anew."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    data = kit.envelope(topic)
    (validate,) = desk.message(peers[0], topic, data).validate
    desk.verdict(validate, VerdictKind.IGNORE)

    assert desk.message(peers[1], topic, data).validate == []
    assert desk.router.stats().peers[peers[1]].ignored == 1
    desk.now += desk.params.ignored_ttl_s
    assert len(desk.message(peers[1], topic, data).validate) == 1


def test_everybody_who_sent_rejected_bytes_is_counted(kit: Kit) -> None:
    """Who forwards without validating shares the blame (20-57)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    bad = kit.envelope(topic)
    (validate,) = desk.message(peers[0], topic, bad).validate
    desk.message(peers[1], topic, bad)

    desk.verdict(validate, VerdictKind.REJECT)

    stats = desk.router.stats()
    assert [stats.peers[peer].rejected for peer in peers] == [1, 1, 0, 0]


def test_four_messages_share_an_id(kit: Kit) -> None:
    """digests_max accepted messages of a slot spread; a fifth is not even validated (G1)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)

    delivered = [
        desk.accept(peers[0], topic, kit.envelope(topic, salt=salt)).deliver for salt in range(4)
    ]
    fifth = desk.message(peers[0], topic, kit.envelope(topic, salt=4))

    assert [len(deliver) for deliver in delivered] == [1, 0, 0, 0]
    assert fifth.validate == []
    stats = desk.router.stats()
    assert (stats.accepted, stats.contended, stats.seen) == (4, 1, 1)


def test_a_slot_that_fills_during_validation_takes_no_more(kit: Kit) -> None:
    """Five at once are validated, and four accepted (G1)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    waiting = [
        desk.message(peers[0], topic, kit.envelope(topic, salt=salt)).validate[0]
        for salt in range(5)
    ]

    sent = [desk.verdict(validate, VerdictKind.ACCEPT).frames for validate in waiting]

    assert [bool(frames) for frames in sent] == [True] * 4 + [False]
    assert desk.router.stats().contended == 1


def test_a_header_propagates_on_both_its_topics(kit: Kit) -> None:
    """Known on the global topic, it still spreads on the namespace topic, told once (20-23, G2)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic, GLOBAL)
    first, second = kit.envelope(GLOBAL), kit.envelope(topic)

    on_global = desk.accept(peers[0], GLOBAL, first)
    on_topic = desk.accept(peers[0], topic, second)

    assert on_global.receivers(first) == on_topic.receivers(second) == set(peers[1:])
    assert (len(on_global.deliver), len(on_topic.deliver)) == (1, 0)


def test_two_meshes_carry_the_same_header(kit: Kit) -> None:
    """Nodes that follow one topic or both all get it, each delivers it once (20-23)."""
    topic = kit.topic_of(1)
    world = kit.World(9)
    world.connect_all()
    world.subscribe(topic, range(6))
    world.subscribe(GLOBAL, range(3, 9))
    world.heartbeats(2)

    world.publish(4, topic, kit.envelope(topic))
    world.publish(4, GLOBAL, kit.envelope(GLOBAL))
    world.heartbeats(3)

    assert [len(delivered) for delivered in world.delivered] == [1, 1, 1, 1, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("code", [0, 5, 0x11, 0xFF])
def test_reject_an_unknown_type(kit: Kit, code: int) -> None:
    """There is no default case for a type (20-57, G4)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    data = kit.envelope(topic)

    drained = desk.message(peers[0], topic, data[:1] + bytes([code]) + data[2:])

    assert drained.validate == []
    assert desk.router.stats().peers[peers[0]].rejected == 1


def test_a_broken_envelope_is_counted_as_malformed(kit: Kit) -> None:
    """Another version, a cut envelope, a payload without an id: no verdict is asked (20-57)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    data = kit.envelope(topic)
    empty = RelayMessage(type=MessageType.HEADER, topic=topic, payload=b"").encode()

    for bad in (b"\x02" + data[1:], data[:-1], data[:1], b"\x00", empty):
        assert desk.message(peers[0], topic, bad).validate == []

    stats = desk.router.stats()
    assert stats.malformed == stats.peers[peers[0]].malformed == 5


@pytest.mark.parametrize(
    ("kind", "carried"),
    [
        (TopicKind.HEADERS_GLOBAL, {MessageType.HEADER, MessageType.HEADER_WITH_BLOB}),
        (TopicKind.BLOCKS_PROPOSED, {MessageType.BLOCK}),
        (TopicKind.BLOCKS_FINALIZED, {MessageType.BLOCK}),
        (TopicKind.BLOBS_AVAILABLE, {MessageType.BLOB_HINT}),
    ],
)
def test_reject_a_type_on_the_wrong_topic(
    kit: Kit, kind: TopicKind, carried: set[MessageType]
) -> None:
    """Each topic carries its own types only (20-08, LP-6420 §2.2)."""
    topic = global_topic("testnet", kind)
    desk, peers = desk_on(kit, topic)
    header = RelayMessage.decode(kit.envelope(topic)).payload
    hint = BlobAvailabilityHint(
        commitment=b"c" * 32, blob_len=1, providers=(b"p",), expires_at_ms=1
    ).encode()

    validated = {
        validate.message.type
        for one in MessageType
        for validate in desk.message(
            peers[0],
            topic,
            RelayMessage(
                type=one,
                topic=topic,
                payload=hint if one is MessageType.BLOB_HINT else header,
            ).encode(),
        ).validate
    }

    assert validated == carried
    assert desk.router.stats().peers[peers[0]].rejected == 4 - len(carried)


def test_reject_an_envelope_for_another_topic(kit: Kit) -> None:
    """The topic in the envelope is the topic it travels on (20-57)."""
    topic, other = kit.topic_of(1), kit.topic_of(2)
    desk, peers = desk_on(kit, topic, other)

    drained = desk.message(peers[0], topic, kit.envelope(other))

    assert drained.validate == []
    assert desk.router.stats().peers[peers[0]].rejected == 1


def test_a_message_on_a_topic_we_do_not_follow_is_passed_over(kit: Kit) -> None:
    """It is nobody's fault: we may have left a moment ago (20-49)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)

    for name in (kit.topic_of(2), "foreign"):
        assert desk.message(peers[0], name, kit.envelope(kit.topic_of(2))).validate == []

    stats = desk.router.stats()
    assert (stats.unwanted, stats.malformed, stats.rejected) == (2, 0, 0)


def test_a_message_above_message_max_is_malformed(kit: Kit) -> None:
    """message_max may be set below what an envelope can hold."""
    topic = kit.topic_of(1)
    data = kit.envelope(topic)
    desk, peers = desk_on(kit, topic, params=GossipParams(message_max=len(data)))

    assert len(desk.message(peers[0], topic, data).validate) == 1
    larger = kit.envelope(topic, blob=b"x")
    assert desk.message(peers[0], topic, larger).validate == []
    assert desk.router.stats().malformed == 1


def test_beyond_pending_max_a_message_is_busy(kit: Kit) -> None:
    """It is ignored, counted, and free to come again (20-57, 20-58)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic, params=GossipParams(pending_max=2))
    waiting = [
        validate
        for seq in range(3)
        for validate in desk.message(peers[0], topic, kit.envelope(topic, seq)).validate
    ]

    assert len(waiting) == 2
    stats = desk.router.stats()
    assert (stats.busy, stats.pending, stats.peers[peers[0]].ignored) == (1, 2, 1)
    desk.verdict(waiting[0], VerdictKind.ACCEPT)
    assert len(desk.message(peers[1], topic, kit.envelope(topic, 2)).validate) == 1


def test_one_peer_cannot_fill_the_validation(kit: Kit) -> None:
    """pending_peer_max leaves room for the others (20-58)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic, params=GossipParams(pending_peer_max=2))
    for seq in range(9):
        desk.message(peers[0], topic, kit.envelope(topic, seq))

    assert desk.router.stats().pending == 2
    assert len(desk.message(peers[1], topic, kit.envelope(topic, 8)).validate) == 1


def test_a_message_without_a_verdict_is_let_go(kit: Kit) -> None:
    """After validation_timeout_s it counts as ignored, and a late verdict changes nothing."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    (validate,) = desk.message(peers[0], topic, kit.envelope(topic)).validate

    desk.beat(desk.params.validation_timeout_s)
    late = desk.verdict(validate, VerdictKind.ACCEPT)

    assert (late.frames, late.deliver) == ({}, [])
    stats = desk.router.stats()
    assert (stats.pending, stats.ignored, stats.strangers) == (0, 1, 1)


def test_a_process_that_stood_still_waits_for_its_verdicts(kit: Kit) -> None:
    """After a standstill the first `wake` gives up on nothing: the verdicts stand behind it."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    (validate,) = desk.message(peers[0], topic, kit.envelope(topic)).validate

    desk.now += 10 * desk.params.validation_timeout_s
    desk.heartbeat()
    late = desk.verdict(validate, VerdictKind.ACCEPT)

    assert len(late.deliver) == 1
    assert (desk.router.stats().ignored, desk.router.stats().pending) == (0, 0)


def test_a_standstill_lends_no_more_than_the_whole_time(kit: Kit) -> None:
    """However long it was, a verdict that never comes is given up validation_timeout_s later."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    desk.message(peers[0], topic, kit.envelope(topic))

    desk.now += 10 * desk.params.validation_timeout_s
    desk.beat(desk.params.validation_timeout_s)

    assert desk.router.stats().ignored == 1


def test_a_verdict_outlives_the_peer(kit: Kit) -> None:
    """A message spreads although its source is gone, and a rejection finds nobody to blame."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    good, bad = kit.envelope(topic, 1), kit.envelope(topic, 2)
    (first,) = desk.message(peers[0], topic, good).validate
    (second,) = desk.message(peers[0], topic, bad).validate
    desk.router.peer_disconnected(peers[0], desk.now)

    assert desk.verdict(first, VerdictKind.ACCEPT).receivers(good) == set(peers[1:])
    assert desk.verdict(second, VerdictKind.REJECT).disconnect == []
    assert desk.router.stats().rejected == 1


def test_a_message_accepted_after_we_left_stays_here(kit: Kit) -> None:
    """It is known, and neither forwarded nor delivered (20-49)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    (validate,) = desk.message(peers[0], topic, kit.envelope(topic)).validate
    desk.router.unsubscribe(topic, desk.now)
    desk.drain()

    after = desk.verdict(validate, VerdictKind.ACCEPT)

    assert (after.frames, after.deliver) == ({}, [])
    assert desk.router.stats().seen == 1


def test_what_we_publish_goes_to_all_subscribers(kit: Kit) -> None:
    """Flood publish reaches beyond the mesh; without it the mesh is what counts (G14)."""
    topic = kit.topic_of(1)
    for flood, expected in ((True, 10), (False, 4)):
        desk, _ = desk_on(kit, topic, params=GossipParams(flood_publish=flood), peers=10)

        count = desk.router.publish(topic, kit.envelope(topic), desk.now)

        assert count == len(desk.drain().frames) == expected
        assert desk.router.stats().published == 1


def test_what_we_published_is_known(kit: Kit) -> None:
    """Published again or brought back, it causes nothing (20-21)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    data = kit.envelope(topic)
    desk.router.publish(topic, data, desk.now)
    desk.drain()

    assert desk.router.publish(topic, data, desk.now) == 0
    echo = desk.message(peers[0], topic, data)

    assert (echo.validate, echo.frames) == ([], {})
    assert desk.router.stats().duplicates == 2


def test_what_we_published_is_not_delivered_to_us(kit: Kit) -> None:
    """Also when the same header comes back on its other topic (G2)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic, GLOBAL)
    desk.router.publish(topic, kit.envelope(topic), desk.now)
    desk.drain()

    assert desk.accept(peers[0], GLOBAL, kit.envelope(GLOBAL)).deliver == []


def test_publishing_what_is_in_validation_spares_its_senders(kit: Kit) -> None:
    """The late verdict then finds it known (20-19)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    data = kit.envelope(topic)
    (validate,) = desk.message(peers[0], topic, data).validate

    assert desk.router.publish(topic, data, desk.now) == 3
    assert desk.drain().receivers(data) == set(peers[1:])
    after = desk.verdict(validate, VerdictKind.ACCEPT)

    assert (after.frames, after.deliver) == ({}, [])


def test_refuse_to_publish_what_peers_would_reject(kit: Kit) -> None:
    """An envelope that is broken, for another topic, or of a type the topic does not carry."""
    topic = kit.topic_of(1)
    desk, _ = desk_on(kit, topic)
    hint = RelayMessage(type=MessageType.BLOB_HINT, topic=topic, payload=bytes(32))

    for data in (b"", kit.envelope(kit.topic_of(2)), hint.encode()):
        with pytest.raises(GossipArgumentError):
            desk.router.publish(topic, data, desk.now)
    assert desk.router.stats().published == 0


def test_peers_with_both_spellings_exchange(kit: Kit) -> None:
    """0x and bare peers are in one mesh, each written to in its own spelling (20-09, G5)."""
    topic = kit.topic_of(1)
    alias = topic.replace("namespace/", "namespace/0x")
    desk, (bare,) = desk_on(kit, topic, peers=1)
    other = kit.peer_id(50)
    desk.router.peer_connected(other, "/meshsub/1.1.0", False, desk.now)
    desk.receive(other, kit.frame(subscribe=[alias]))
    greeted = desk.heartbeat()
    from_alias, from_bare = kit.envelope(alias, 1), kit.envelope(topic, 2)

    to_bare = desk.accept(other, alias, from_alias)
    to_alias = desk.accept(bare, topic, from_bare)

    assert greeted.rpc(other).graft == [alias]
    assert to_bare.rpc(bare).messages == [(topic, from_alias)]
    assert to_alias.rpc(other).messages == [(alias, from_bare)]
    assert len(to_bare.deliver) == len(to_alias.deliver) == 1


def test_a_full_queue_drops_messages_and_says_so(kit: Kit) -> None:
    """queue_bytes_max bounds what waits when nobody drains (20-58)."""
    topic = kit.topic_of(1)
    params = replace(GossipParams(), message_max=1_000, queue_bytes_max=2_100)
    desk, _ = desk_on(kit, topic, params=params)

    counts = [desk.router.publish(topic, kit.envelope(topic, n), desk.now) for n in range(9)]

    assert counts[0] == 4
    assert counts[-1] == 0
    assert desk.router.stats().dropped_messages == 4 * counts.count(0)
    assert all(state.outbox.size_bytes <= 2_100 for state in desk.router._peers)


def test_a_lane_travels_on_its_parents_topic(kit: Kit) -> None:
    """A header of another namespace is carried; whether it is a lane is for the verdict (J6)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    data = kit.envelope(topic)
    assert kit.topic_of(1) != kit.topic_of(int.from_bytes(b"\x22" * 20))

    spread = desk.accept(peers[0], topic, data)

    assert len(spread.deliver) == 1
    assert spread.receivers(data) == set(peers[1:])


def test_two_lanes_of_a_topic_have_their_own_slots(kit: Kit) -> None:
    """The same sequence of two lanes is two messages, each with its id (J6; 20-21)."""
    topic = kit.topic_of(1)
    desk, peers = desk_on(kit, topic)
    one, two = kit.envelope(topic, 1, lane=b"\x31" * 20), kit.envelope(topic, 1, lane=b"\x32" * 20)

    delivered = [desk.accept(peers[0], topic, data).deliver for data in (one, two)]

    assert [len(found) for found in delivered] == [1, 1]
    assert kit.id_of(one) != kit.id_of(two)


def test_a_topic_takes_only_its_bytes(kit: Kit) -> None:
    """Beyond topic_bytes_per_s messages are ignored without blame, and time renews it (20-47)."""
    topic, other = kit.topic_of(1), kit.topic_of(2)
    size = len(kit.envelope(topic))
    params = replace(GossipParams(), topic_bytes_per_s=float(size))
    desk, peers = desk_on(kit, topic, other, params=params)
    for seq in range(3):
        desk.accept(peers[0], topic, kit.envelope(topic, seq))

    assert desk.message(peers[0], topic, kit.envelope(topic, 9)).validate == []
    assert len(desk.message(peers[0], other, kit.envelope(other, 9)).validate) == 1
    assert desk.router.stats().throttled == 1
    assert desk.router.explain(peers[0], desk.now).topic_penalty == 0
    desk.now += 1.0
    assert len(desk.message(peers[0], topic, kit.envelope(topic, 9)).validate) == 1


def test_forged_messages_do_not_take_the_bytes_of_a_topic(kit: Kit) -> None:
    """Only accepted messages are paid for (20-47)."""
    topic = kit.topic_of(1)
    params = replace(GossipParams(), topic_bytes_per_s=10.0)
    desk, peers = desk_on(kit, topic, params=params)

    (validate,) = desk.message(peers[0], topic, kit.envelope(topic, 1)).validate
    desk.verdict(validate, VerdictKind.REJECT)

    assert len(desk.message(peers[1], topic, kit.envelope(topic, 2)).validate) == 1
