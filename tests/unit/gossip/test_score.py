"""Scores: one test a term, then the sum, decay and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import NamespaceId, VerdictKind
from luxrelay.gossip import (
    PeerId,
    ScoreParams,
    TopicKind,
    global_topic,
    topic_for_namespace,
)
from luxrelay.gossip.rpc_pb2 import RPC, Message
from luxrelay.gossip.score import UNREADABLE, PeerLedger, Scores
from luxrelay.gossip.seen import EnvelopeDigest

Kit = Any

NAMESPACE = topic_for_namespace("net", NamespaceId(b"\x21" * 20))
HEADERS = global_topic("net", TopicKind.HEADERS_GLOBAL)
BLOBS = global_topic("net", TopicKind.BLOBS_AVAILABLE)
NOBODY = EnvelopeDigest(b"")


def made(params: ScoreParams | None = None) -> Scores:
    """Return scores with heartbeats of one second."""
    return Scores(params or ScoreParams(), heartbeat_s=1.0, topics_max=8)


def joined(scores: Scores, name: bytes = b"p", now: float = 0.0) -> PeerLedger:
    """Return the ledger of a peer that connected."""
    return scores.joined(PeerId(name), now)


def deliver(scores: Scores, ledger: PeerLedger, topic: str, count: int, now: float = 0.0) -> None:
    """Let a peer bring accepted messages first."""
    for number in range(count):
        scores.accepted([ledger], topic, EnvelopeDigest(number.to_bytes(4)), now)


def test_a_stranger_has_no_score() -> None:
    """Nothing counts for or against a peer that just came (20-28)."""
    scores = made()

    assert scores.score(joined(scores), 0.0) == 0.0


def test_time_in_the_mesh_counts_up_to_a_cap() -> None:
    """P1: 0.05 a second, at most 300 of them, gone when pruned (20-26)."""
    scores = made()
    ledger = joined(scores)
    scores.grafted(ledger, HEADERS, 10.0)

    assert scores.score(ledger, 30.0) == pytest.approx(20 * 0.05)
    scores.grafted(ledger, HEADERS, 20.0)
    assert scores.score(ledger, 10_000.0) == pytest.approx(300 * 0.05)
    scores.pruned(ledger, HEADERS, 10_000.0)
    assert scores.score(ledger, 10_000.0) == 0.0


def test_first_deliveries_count_up_to_a_cap_and_decay() -> None:
    """P2: 1 each, at most 100, 2 % less with each heartbeat (20-26)."""
    scores = made()
    ledger, late = joined(scores), joined(scores, b"late")

    scores.accepted([ledger, late], HEADERS, NOBODY, 0.0)
    assert (scores.score(ledger, 0.0), scores.score(late, 0.0)) == (1.0, 0.0)
    deliver(scores, ledger, HEADERS, 500)
    assert scores.score(ledger, 0.0) == 100
    scores.decay(1.0)
    assert scores.score(ledger, 1.0) == pytest.approx(98)


def test_missing_deliveries_in_the_mesh_count_where_they_are_watched() -> None:
    """P3: 0.5 × deficit² after 60 s, less for each copy within 2 s, none elsewhere (20-26, G18)."""
    scores = made(ScoreParams.watching_headers())
    lazy, keen = joined(scores), joined(scores, b"keen")
    for ledger in (lazy, keen):
        scores.grafted(ledger, HEADERS, 0.0)
        scores.grafted(ledger, NAMESPACE, 0.0)
    other = joined(scores, b"other")
    for number in range(3):
        digest = EnvelopeDigest(bytes([number]))
        scores.accepted([other], HEADERS, digest, 55.0)
        scores.duplicate(keen, digest, 56.9)
        scores.duplicate(keen, digest, 56.9)
        scores.duplicate(lazy, digest, 57.0)
    scores.accepted([other], NAMESPACE, EnvelopeDigest(b"n"), 55.0)

    assert scores.explain(lazy, 59.0).topic_penalty == 0
    assert scores.explain(lazy, 60.0).topics[HEADERS].mesh_deficit == pytest.approx(0.5 * 25)
    assert scores.explain(keen, 60.0).topics[HEADERS].mesh_deficit == pytest.approx(0.5 * 4)
    assert scores.explain(lazy, 60.0).topics[NAMESPACE].mesh_deficit == 0


def test_a_deficit_outlives_the_mesh() -> None:
    """P3b: who is pruned with a deficit keeps its square for a while (20-26)."""
    scores = made(ScoreParams.watching_headers())
    ledger = joined(scores)
    scores.grafted(ledger, HEADERS, 0.0)

    scores.pruned(ledger, HEADERS, 60.0)

    assert scores.explain(ledger, 60.0).topics[HEADERS].mesh_failures == pytest.approx(0.5 * 25)
    scores.decay(60.0)
    scores.decay(61.0)
    assert scores.explain(ledger, 61.0).topic_penalty == pytest.approx(0.5 * 25 * 0.98**2)


def test_mesh_deliveries_count_up_to_a_cap() -> None:
    """P3: nobody saves up deliveries for a long silence (20-26)."""
    scores = made(ScoreParams.watching_headers())
    ledger = joined(scores)
    scores.grafted(ledger, HEADERS, 0.0)

    for number in range(150):
        scores.accepted([ledger], HEADERS, EnvelopeDigest(number.to_bytes(4)), 0.0)

    assert ledger.topics[HEADERS].mesh == 100


def test_late_copies_are_watched_up_to_a_bound() -> None:
    """Beyond window_messages_max the oldest message's copies count no more."""
    scores = made(replace(ScoreParams.watching_headers(), window_messages_max=2))
    ledger, other = joined(scores), joined(scores, b"other")
    scores.grafted(ledger, HEADERS, 0.0)
    digests = [EnvelopeDigest(bytes([number])) for number in range(3)]

    for digest in digests:
        scores.accepted([other], HEADERS, digest, 0.0)
        assert len(scores._window) <= 2
    for digest in digests:
        scores.duplicate(ledger, digest, 0.5)
    assert ledger.topics[HEADERS].mesh == 2
    scores.decay(2.0)
    assert not scores._window


def test_invalid_messages_count_squared() -> None:
    """P4: 10 × n², times the topic's weight, decaying by 1 % (20-26, G18)."""
    scores = made()
    ledger = joined(scores)

    scores.invalid(ledger, HEADERS, 3)
    assert scores.score(ledger, 0.0) == -90
    scores.decay(1.0)
    assert scores.score(ledger, 1.0) == pytest.approx(-90 * 0.99**2)


@pytest.mark.parametrize(("count", "score"), [(11, -1210), (16, -2560), (23, -5290)])
def test_the_decisions_examples_hold(count: int, score: float) -> None:
    """11 invalid messages graylist, 16 silence, 23 disconnect (20-25)."""
    scores = made()
    ledger = joined(scores)

    scores.invalid(ledger, UNREADABLE, count)

    assert scores.score(ledger, 0.0) == score


def test_the_application_has_its_say() -> None:
    """P5: the application's score, and 50 for a validator (20-48)."""
    scores = made(replace(ScoreParams(), app_weight=2.0))
    ledger = joined(scores)

    ledger.app = -7.0
    assert scores.score(ledger, 0.0) == -14
    ledger.validator = True
    assert scores.score(ledger, 0.0) == 86


def test_crowds_at_one_address_count_squared() -> None:
    """P6: 10 × (peers − 4)² for each of them, and less when one leaves (20-25)."""
    scores = made()
    ledgers = [joined(scores, bytes([n])) for n in range(6)]
    alone = joined(scores, b"alone")
    for ledger in ledgers:
        scores.at(ledger, "10.0.0.1")
    scores.at(alone, "10.0.0.2")

    assert [scores.score(ledger, 0.0) for ledger in ledgers] == [-40.0] * 6
    assert scores.score(alone, 0.0) == 0
    scores.at(ledgers[0], "10.0.0.2")
    assert scores.score(ledgers[1], 0.0) == -10
    scores.left(ledgers[5], 0.0)
    assert scores.score(ledgers[1], 0.0) == 0
    for ledger in (*ledgers, alone):
        scores.left(ledger, 0.0)
    assert not scores._at_address


def test_offences_count_beyond_a_few() -> None:
    """P7: 10 × (n − 6)², decaying by 5 % a second (20-25)."""
    scores = made()
    ledger = joined(scores)

    scores.misbehaved(ledger, 6)
    assert scores.score(ledger, 0.0) == 0
    scores.misbehaved(ledger, 4)
    assert scores.score(ledger, 0.0) == -160
    scores.decay(0.0)
    scores.decay(10.0)
    assert ledger.offences == pytest.approx(10 * 0.95**11)
    assert scores.score(ledger, 10.0) == 0


def test_credit_is_capped_before_penalties() -> None:
    """Many topics give at most 200, and no stock of credit hides an offence beyond it (20-25)."""
    scores = made(replace(ScoreParams(), topic_credit_cap=120.0))
    ledger = joined(scores)
    deliver(scores, ledger, HEADERS, 100)
    deliver(scores, ledger, NAMESPACE, 100)

    assert scores.score(ledger, 0.0) == 120
    scores.invalid(ledger, HEADERS, 2)
    assert scores.score(ledger, 0.0) == 80


def test_the_score_is_the_sum_of_its_terms() -> None:
    """Σ topic·weight + app·weight − colocation − behaviour, as `explain` shows it (20-25)."""
    scores = made()
    ledger = joined(scores)
    for number in range(5):
        scores.at(ledger if number == 0 else joined(scores, bytes([number])), "a")
    scores.grafted(ledger, NAMESPACE, 0.0)
    deliver(scores, ledger, NAMESPACE, 4)
    deliver(scores, ledger, BLOBS, 10)
    scores.invalid(ledger, BLOBS, 1)
    scores.misbehaved(ledger, 7)
    ledger.app = 3.0

    terms = scores.explain(ledger, 20.0)

    assert terms.topics[NAMESPACE].time_in_mesh == pytest.approx(0.5)
    assert terms.topics[NAMESPACE].first_deliveries == pytest.approx(2)
    assert terms.topics[BLOBS].first_deliveries == pytest.approx(3)
    assert terms.topics[BLOBS].invalid == pytest.approx(3)
    assert (terms.credit, terms.topic_penalty) == (pytest.approx(5.5), pytest.approx(3))
    assert (terms.application, terms.colocation, terms.behaviour) == (3, 10, 10)
    assert terms.offences == 7
    assert terms.score == pytest.approx(5.5 - 3 + 3 - 10 - 10)
    assert terms.score == scores.score(ledger, 20.0)


def test_late_heartbeats_forgive_neither_less_nor_more() -> None:
    """Ten seconds are ten heartbeats' decay, however many were run (20-26)."""
    steps, leap = made(), made()
    often, once = joined(steps), joined(leap)
    for scores, ledger in ((steps, often), (leap, once)):
        scores.decay(0.0)
        scores.invalid(ledger, HEADERS, 5)
        scores.misbehaved(ledger, 20)

    for second in range(1, 11):
        steps.decay(float(second))
    leap.decay(10.0)
    leap.decay(9.0)

    assert leap.score(once, 10.0) == pytest.approx(steps.score(often, 10.0))


def test_small_counters_are_forgotten() -> None:
    """What decays below counter_min is zero, and a topic without counters is no topic."""
    scores = made()
    ledger = joined(scores)
    scores.invalid(ledger, HEADERS)
    scores.misbehaved(ledger, 1)

    scores.decay(0.0)
    scores.decay(2_000.0)

    assert (ledger.topics, ledger.offences) == ({}, 0.0)


def test_penalties_are_remembered_and_credit_is_not() -> None:
    """Coming back does not wash a peer clean; time away counts as time (20-27)."""
    scores = made()
    bad, good = joined(scores, b"bad"), joined(scores, b"good")
    scores.invalid(bad, HEADERS, 10)
    deliver(scores, good, HEADERS, 10)
    for ledger in (bad, good):
        scores.left(ledger, 0.0)

    assert scores.score(joined(scores, b"good", 50.0), 50.0) == 0
    back = joined(scores, b"bad", 50.0)
    assert scores.score(back, 50.0) == pytest.approx(-1000 * 0.99**100)
    assert joined(scores, b"bad", 50.0) is back
    scores.left(back, 50.0)
    scores.decay(50.0 + scores.params.retain_s)
    assert len(scores) == 1
    assert scores.score(joined(scores, b"bad", 4_000.0), 4_000.0) == 0


def test_the_memory_of_bad_peers_is_bounded() -> None:
    """Beyond retained_max the oldest is forgotten; one whose time is over comes back clean."""
    scores = made(replace(ScoreParams(), retained_max=3, retain_s=10.0))
    for number in range(5):
        ledger = joined(scores, bytes([number]))
        scores.invalid(ledger, HEADERS, 10)
        scores.left(ledger, 0.0)
        scores.left(ledger, 0.0)

    assert len(scores) == 3
    assert scores.score(joined(scores, b"\x00"), 0.0) == 0
    assert scores.score(joined(scores, b"\x04"), 0.0) == -1000
    assert scores.score(joined(scores, b"\x03", 10.0), 10.0) == 0


def test_a_refused_peer_is_refused_for_ten_minutes() -> None:
    """`refuse_s` runs from the refusal, and only for that peer (G16)."""
    scores = made()
    ledger = joined(scores)
    scores.refuse(ledger, 0.0)
    scores.left(ledger, 0.0)

    assert scores.refused_s(PeerId(b"p"), 100.0) == 500
    assert scores.refused_s(PeerId(b"p"), 600.0) == 0
    assert scores.refused_s(PeerId(b"q"), 100.0) == 0


def test_the_topics_of_a_ledger_are_bounded() -> None:
    """Beyond topics_max what happens on further topics counts as unreadable."""
    scores = made()
    ledger = joined(scores)
    for number in range(20):
        scores.invalid(ledger, topic_for_namespace("net", NamespaceId(bytes([number]) * 20)))

    assert len(ledger.topics) == 9
    assert ledger.topics[UNREADABLE].invalid == 12
    scores.grafted(ledger, HEADERS, 0.0)
    assert ledger.topics[UNREADABLE].grafted_at is None


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["invalid", "misbehaved", "colocation", "pruned", "decay"]),
        st.sampled_from([HEADERS, NAMESPACE, BLOBS, UNREADABLE]),
        st.floats(0.0, 50.0),
    ),
    max_size=12,
)


@given(acts=ACTS, credit=st.integers(0, 150), watching=st.booleans())
def test_penalties_never_raise_a_score(
    acts: list[tuple[str, str, float]], credit: int, watching: bool
) -> None:
    """Whatever speaks against a peer leaves its score the same or lower (20-29, G17)."""
    scores = made(ScoreParams.watching_headers() if watching else None)
    ledger = joined(scores)
    scores.grafted(ledger, HEADERS, 0.0)
    deliver(scores, ledger, HEADERS, credit)
    now = 100.0
    scores.decay(now)
    for number, (act, topic, amount) in enumerate(acts):
        before = scores.score(ledger, now)
        if act == "invalid":
            scores.invalid(ledger, topic)
        elif act == "misbehaved":
            scores.misbehaved(ledger, amount)
        elif act == "colocation":
            scores.at(joined(scores, b"x%d" % number), "a")
            if not ledger.address:
                scores.at(ledger, "a")
        elif act == "pruned":
            scores.pruned(ledger, topic, now)
        else:
            now += amount
            scores.decay(now)
            continue
        assert scores.score(ledger, now) <= before + 1e-9
        terms = scores.explain(ledger, now)
        assert min(terms.topic_penalty, terms.colocation, terms.behaviour, terms.credit) >= 0


# What follows from a score, with a router.


@pytest.mark.parametrize(
    ("score", "keeps"),
    [
        (0.0, {"mesh", "gossip", "control", "voice"}),
        (-1.0, {"control", "voice"}),
        (-1001.0, {"voice"}),
        (-2501.0, set()),
    ],
)
def test_each_threshold_has_its_effect(kit: Kit, score: float, keeps: set[str]) -> None:
    """0, −1, −1001 and −2501 lose mesh, gossip, control and voice in turn (20-27, G16)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    assert desk.router.stats().mesh[topic] == 1

    desk.router.app_score(peer, score, desk.now)
    desk.heartbeat()

    assert (desk.router.stats().mesh[topic] == 1) == ("mesh" in keeps)
    wanted = b"\x07" * 32
    asked = desk.receive(peer, kit.frame(ihave=[(topic, [wanted])])).rpc(peer).iwant
    assert (asked == [wanted]) == ("gossip" in keeps)
    other = kit.topic_of(2)
    desk.router.subscribe(other, desk.now)
    pruned = desk.receive(peer, kit.frame(graft=[other])).rpc(peer).prune
    assert bool(pruned) == ("control" in keeps)
    validations = desk.message(peer, topic, kit.envelope(topic)).validate
    assert bool(validations) == ("voice" in keeps)
    assert desk.router.publish(topic, kit.envelope(topic, 9), desk.now) == ("mesh" in keeps)


def test_a_peer_that_is_not_heard_costs_little(kit: Kit) -> None:
    """Its messages are not looked at, not even for what they must not hold; garbage counts."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    signed = RPC(publish=[Message(topic=topic, data=b"x", signature=b"x")]).SerializeToString()
    desk.receive(peer, signed)
    assert (desk.router.stats().malformed, desk.router.stats().unheard) == (1, 0)
    desk.router.app_score(peer, -2501.0, desk.now)

    desk.receive(peer, signed)
    desk.message(peer, topic, kit.envelope(topic))
    assert (desk.router.stats().malformed, desk.router.stats().unheard) == (1, 2)
    assert desk.router.stats().received == 0
    desk.receive(peer, b"\xff")

    assert (desk.router.stats().malformed, desk.router.stats().unheard) == (2, 2)
    counted = desk.router.stats().peers[peer]
    assert (counted.malformed, counted.unheard, counted.received) == (2, 2, 0)


def test_below_the_last_threshold_a_peer_is_disconnected(kit: Kit) -> None:
    """−5001 closes the door (20-27, G16)."""
    desk = kit.Desk()
    (peer,) = desk.peers(1)

    desk.router.app_score(peer, -5000.0, desk.now)
    assert desk.drain().disconnect == []
    desk.router.app_score(peer, -5001.0, desk.now)

    assert [d.peer for d in desk.drain().disconnect] == [peer]
    assert desk.router.explain(peer, desk.now) is None


def test_a_fresh_peer_takes_part(kit: Kit) -> None:
    """A peer without a past is grafted, asked, told and published to (20-28)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)

    assert desk.router.explain(peer, desk.now).score == 0
    assert desk.router.stats().mesh[topic] == 1
    assert desk.router.publish(topic, kit.envelope(topic), desk.now) == 1


def test_verdicts_feed_the_score(kit: Kit) -> None:
    """ACCEPT is a first delivery, REJECT an offence of all that brought it, IGNORE none (20-57)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    first, second = desk.peers(2, topic)
    bad, dull = kit.envelope(topic, 2), kit.envelope(topic, 3)

    desk.accept(first, topic, kit.envelope(topic, 1))
    desk.message(second, topic, kit.envelope(topic, 1))
    (validate,) = desk.message(first, topic, dull).validate
    desk.verdict(validate, VerdictKind.IGNORE)
    (validate,) = desk.message(first, topic, bad).validate
    desk.message(second, topic, bad)
    desk.verdict(validate, VerdictKind.REJECT)

    terms = [desk.router.explain(peer, desk.now).topics[topic] for peer in (first, second)]
    assert [t.first_deliveries for t in terms] == [0.5, 0.0]
    assert [t.invalid for t in terms] == [5.0, 5.0]
    assert desk.router.stats().peers[first].score == pytest.approx(0.5 - 5, abs=0.1)


def test_grafts_in_backoff_and_broken_promises_are_offences(kit: Kit) -> None:
    """2 for a GRAFT too early, 1 for a heartbeat with broken promises, however many (20-25)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    desk.receive(peer, kit.frame(prune=[(topic, 60)]))

    desk.receive(peer, kit.frame(graft=[topic]))
    assert desk.router.explain(peer, desk.now).offences == 2
    desk.receive(peer, kit.frame(ihave=[(topic, [bytes([n]) * 32 for n in range(20)])]))
    desk.sign_of_life(peer)
    desk.beat(desk.params.iwant_followup_s)

    assert desk.router.stats().promises_broken == 20
    faded = 2 * 0.95 ** (desk.params.iwant_followup_s)
    assert desk.router.explain(peer, desk.now).offences == pytest.approx(1 + faded, abs=0.2)


def test_a_promise_is_not_broken_while_we_are_slow(kit: Kit) -> None:
    """While messages of the peer wait for verdicts, what is missing may be stuck behind them."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    desk.message(peer, topic, kit.envelope(topic))

    desk.receive(peer, kit.frame(ihave=[(topic, [b"\x07" * 32])]))
    desk.sign_of_life(peer)
    desk.beat(desk.params.iwant_followup_s)

    assert desk.router.stats().promises_broken == 1
    assert desk.router.explain(peer, desk.now).offences == 0


@pytest.mark.parametrize("why", ["busy", "full", "ignored"])
def test_a_message_that_cannot_be_taken_in_keeps_its_promise(kit: Kit, why: str) -> None:
    """Whoever delivers is not blamed because we had no room or had just ignored it."""
    params = replace(kit.Desk().params, pending_peer_max=1, digests_max=1)
    desk = kit.Desk(params)
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peer, _, third = desk.peers(3, topic)
    data = kit.envelope(topic, 5)
    slot_id = kit.id_of(data)
    if why == "ignored":
        (validate,) = desk.message(third, topic, data).validate
        desk.verdict(validate, VerdictKind.IGNORE)
    desk.receive(peer, kit.frame(ihave=[(topic, [slot_id])]))
    if why == "full":
        desk.router._memory.seen.add((topic, slot_id), EnvelopeDigest(b"another"), desk.now)
    if why == "busy":
        (waiting,) = desk.message(peer, topic, kit.envelope(topic, 6)).validate
    assert len(desk.router._lazy) == 1

    assert desk.message(peer, topic, data).validate == []

    assert len(desk.router._lazy) == 0
    if why == "busy":
        desk.verdict(waiting, VerdictKind.ACCEPT)
    desk.beat(desk.params.iwant_followup_s)
    assert desk.router.stats().promises_broken == 0
    assert desk.router._peers.get(peer).wanted == 0


def test_leaving_a_topic_breaks_no_promises(kit: Kit) -> None:
    """What was announced on a topic we left is not waited for."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    desk.receive(peer, kit.frame(ihave=[(topic, [b"\x07" * 32])]))

    desk.router.unsubscribe(topic, desk.now)
    desk.now += 10
    desk.heartbeat()

    assert desk.router.stats().promises_broken == 0


def test_reconnecting_does_not_clear_a_score(kit: Kit) -> None:
    """A peer that leaves with penalties meets them again (20-27)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)
    for _ in range(5):
        desk.receive(peer, b"\xff")

    desk.router.peer_disconnected(peer, desk.now)
    desk.router.peer_connected(peer, "/meshsub/1.1.0", False, desk.now)
    desk.receive(peer, kit.frame(subscribe=[topic]))
    desk.heartbeat()

    assert desk.router.stats().peers[peer].score == pytest.approx(-250, rel=0.05)
    assert desk.router.stats().mesh[topic] == 0
