"""Attacks on a router, each played by hand: bounded, scored, and harmless to honest peers.

Every test asks the same three things: does what the router holds stay within its bounds, does the
attacker's score fall, and does an honest message still arrive.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from luxrelay.bus import SignatureScheme, SigningKey, VerdictKind
from luxrelay.gossip import (
    BlobAvailabilityHint,
    DiversityParams,
    GossipParams,
    MessageType,
    PeerId,
    RelayMessage,
    TopicKind,
    Validate,
    global_topic,
    judge_hint,
    peer_id_of,
)

Kit = Any

NOW_MS = 1_700_000_000_000


class Siege:
    """A router with three honest peers and one attacker on a topic."""

    def __init__(
        self, kit: Kit, topic: str, params: GossipParams | None = None, **more: Any
    ) -> None:
        self.kit = kit
        self.topic = topic
        self.desk = kit.Desk(params, **more)
        self.desk.router.subscribe(topic, self.desk.now)
        *self.honest, self.attacker = self.desk.peers(4, topic)
        self._seq = 1_000_000

    def attack(self, *frames: bytes) -> list[Any]:
        """Let the attacker send frames; return what the router asked for."""
        return [self.desk.receive(self.attacker, data) for data in frames]

    @property
    def score(self) -> float:
        """The attacker's score; minus infinity once it is out."""
        terms = self.desk.router.explain(self.attacker, self.desk.now)
        return float("-inf") if terms is None else terms.score

    def serves(self) -> bool:
        """Return True when an honest message still reaches the application and honest peers."""
        self._seq += 1
        data = self.kit.envelope(self.topic, self._seq)
        spread = self.desk.accept(self.honest[0], self.topic, data)
        scores = [self.desk.router.explain(peer, self.desk.now).score for peer in self.honest]
        return (
            len(spread.deliver) == 1
            and set(self.honest[1:]) <= spread.receivers(data)
            and min(scores) >= 0
        )


@pytest.fixture
def siege(kit: Kit) -> Siege:
    """An attacked router with the defaults."""
    return Siege(kit, kit.topic_of(1))


def test_forged_hints_are_rejected_and_their_sender_shown_out(kit: Kit) -> None:
    """Hints that aim traffic at others cost their sender the connection (G10; 20-11, 20-34)."""
    topic = global_topic("testnet", TopicKind.BLOBS_AVAILABLE)
    siege = Siege(kit, topic)
    victim = peer_id_of(bytes(32))
    forger = SigningKey.from_seed(SignatureScheme.ED25519, b"f" * 32)
    judged = 0
    for number in range(200):
        hint = BlobAvailabilityHint(
            commitment=number.to_bytes(32),
            blob_len=2 * 1024 * 1024,
            providers=(victim,) * 16,
            expires_at_ms=NOW_MS + 600_000,
        )
        message = RelayMessage(type=MessageType.BLOB_HINT, topic=topic, payload=hint.encode())
        drained = siege.desk.message(siege.attacker, topic, message.signed_by(forger).encode())
        for validate in drained.validate:
            judged += 1
            verdict = judge_hint(validate.message, NOW_MS)
            assert verdict.kind is VerdictKind.REJECT
            assert siege.desk.verdict(validate, verdict.kind).frames == {}

    assert siege.desk.router.stats().delivered == siege.desk.router.stats().forwarded == 0
    assert siege.score < -2_500
    assert judged < 40
    honest = SigningKey.from_seed(SignatureScheme.ED25519, b"h" * 32)
    true = BlobAvailabilityHint(
        commitment=(7).to_bytes(32),
        blob_len=1,
        providers=(peer_id_of(honest.public_field[1:]),),
        expires_at_ms=NOW_MS + 1,
    )
    data = RelayMessage(type=MessageType.BLOB_HINT, topic=topic, payload=true.encode())
    (validate,) = siege.desk.message(
        siege.honest[0], topic, data.signed_by(honest).encode()
    ).validate
    assert judge_hint(validate.message, NOW_MS).accepted
    assert siege.desk.verdict(validate, VerdictKind.ACCEPT).receivers(validate.data)


def test_oversized_control_messages_are_malformed_frames(kit: Kit, siege: Siege) -> None:
    """Too many entries or bytes make a frame unreadable, and 23 of them end it (20-36)."""
    topic = siege.topic
    too_many = kit.frame(graft=[topic] * (siege.desk.params.controls_max + 1))
    too_long = kit.frame(ihave=[(topic, [bytes(32)] * 40_000)])
    names = kit.frame(subscribe=[topic] * (siege.desk.params.subscriptions_max + 1))
    assert len(too_long) > siege.desk.params.frame_max

    drained = siege.attack(*[too_many, too_long, names] * 8)

    assert [d for step in drained for d in step.frames] == []
    assert sum(len(step.disconnect) for step in drained) == 1
    assert siege.score == float("-inf")
    assert siege.serves()


def test_a_frame_of_half_a_million_messages_is_not_looked_through(
    kit: Kit, siege: Siege, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bytes make a message: what a MiB of them costs is one refusal (20-36, 20-58)."""
    empty = b"\x12\x00" * (siege.desk.params.frame_max // 2)
    tiny = kit.frame(messages=[(siege.topic, b"x")]) * (siege.desk.params.messages_max + 1)
    looked: list[str] = []
    flow = siege.desk.router._flow
    monkeypatch.setattr(flow, "on_message", lambda *_: looked.append("message"))

    siege.attack(empty, tiny)

    assert not looked
    assert siege.desk.router.stats().malformed == 2
    monkeypatch.undo()
    whole = kit.frame(messages=[(siege.topic, b"x")]) * siege.desk.params.messages_max
    siege.attack(whole)
    assert siege.desk.router.stats().received == siege.desk.params.messages_max
    assert siege.serves()


def test_a_graft_flood_is_answered_once_a_topic_and_scored(kit: Kit, siege: Siege) -> None:
    """GRAFTs in a back-off cost 2 each; what the router writes stays bounded (20-36)."""
    siege.attack(kit.frame(prune=[(siege.topic, 3_600)]))

    written = [
        len(data)
        for step in siege.attack(*[kit.frame(graft=[siege.topic] * 200)] * 50)
        for frames in step.frames.values()
        for data in frames
    ]

    assert siege.attacker not in siege.desk.router._mesh.topics[siege.topic]
    assert sum(written) < 10_000
    assert siege.score == float("-inf")
    assert siege.serves()


def test_grafts_of_unknown_topics_write_and_keep_nothing(kit: Kit, siege: Siege) -> None:
    """A GRAFT, PRUNE or subscription of a topic that is not ours leaves no trace beyond a bound."""
    strange = [kit.topic_of(number) for number in range(100, 4_000)]

    drained = siege.attack(
        kit.frame(graft=strange),
        kit.frame(prune=[(topic, 2**63) for topic in strange]),
        *[kit.frame(subscribe=strange[n : n + 2_000]) for n in range(0, 4_000, 2_000)],
    )

    assert all(step.frames == {} for step in drained)
    assert len(siege.desk.router._mesh.backoffs) == 0
    state = siege.desk.router._peers.get(siege.attacker)
    assert len(state.topics) == siege.desk.params.topics_max
    assert siege.serves()


def test_iwant_spam_is_served_a_few_times_and_then_scored(kit: Kit, siege: Siege) -> None:
    """A message goes three times to a peer, ids beyond the cap are an offence (20-36)."""
    data = kit.envelope(siege.topic, 1, blob=bytes(40_000))
    siege.desk.accept(siege.honest[0], siege.topic, data)
    ask = kit.frame(iwant=[[kit.id_of(data)] * 2_000])

    served = 0
    for _ in range(30):
        for step in siege.attack(*[ask] * 10):
            served += sum(m == data for _, m in step.rpc(siege.attacker).messages)
        siege.desk.heartbeat()
        assert siege.desk.router.stats().mesh[siege.topic] >= 3

    assert served <= siege.desk.params.iwant_retransmit_max
    assert siege.desk.router.stats().control_floods > 3
    assert siege.score < 0
    assert siege.attacker not in siege.desk.router._mesh.topics[siege.topic]
    assert siege.serves()


def test_ihave_spam_asks_for_little_and_costs_the_mesh(kit: Kit, siege: Siege) -> None:
    """Made-up ids: what we ask and remember is bounded, broken promises add up (20-36)."""
    rng = random.Random(3)
    params = siege.desk.params
    asked = 0
    for _ in range(40):
        frames = [
            kit.frame(ihave=[(siege.topic, [rng.randbytes(32) for _ in range(400)])])
            for _ in range(20)
        ]
        for step in siege.attack(*frames):
            asked += len(step.rpc(siege.attacker).iwant)
            assert len(siege.desk.router._lazy) <= params.wanted_peer_max
        siege.desk.heartbeat()

    assert asked < 40 * 20 * 400 / 10
    assert siege.attacker not in siege.desk.router._mesh.topics[siege.topic]
    assert siege.desk.router.explain(siege.attacker, siege.desk.now).offences > 5
    assert siege.serves()


def test_a_squatter_of_ids_does_not_keep_the_true_message_away(kit: Kit, siege: Siege) -> None:
    """Forged first copies, announcements of the slots and a decline suppress nothing (20-22)."""
    true = [kit.envelope(siege.topic, seq) for seq in range(1, 31)]
    delivered = 0
    for seq, data in enumerate(true, 1):
        forged = kit.envelope(siege.topic, seq, salt=666)
        step = siege.desk.receive(
            siege.attacker,
            kit.frame(
                messages=[(siege.topic, forged)],
                ihave=[(siege.topic, [kit.id_of(data)])],
                idontwant=[[kit.id_of(data)]],
            ),
        )
        (validate,) = siege.desk.message(siege.honest[0], siege.topic, data).validate
        spread = siege.desk.verdict(validate, VerdictKind.ACCEPT)
        delivered += len(spread.deliver)
        assert set(siege.honest[1:]) <= spread.receivers(data)
        for found in step.validate:
            siege.desk.verdict(found, VerdictKind.REJECT)

    assert delivered == 30
    assert siege.score < -1_000
    assert siege.serves()


def test_candidates_of_a_slot_are_bounded(kit: Kit) -> None:
    """An authorised writer that signs a slot a hundred times occupies four places (G1; 20-22)."""
    siege = Siege(kit, kit.topic_of(1))
    forwarded = 0
    for salt in range(100):
        data = kit.envelope(siege.topic, 5, salt=salt)
        for validate in siege.desk.message(siege.attacker, siege.topic, data).validate:
            spread = siege.desk.verdict(validate, VerdictKind.ACCEPT)
            forwarded += bool(spread.receivers(data))

    assert forwarded == siege.desk.params.digests_max
    assert siege.desk.router.stats().delivered == 1
    assert siege.serves()


def test_random_and_mutated_frames_never_hurt(kit: Kit) -> None:
    """Five thousand frames of chance and of bit flips: nothing is raised, and all goes on."""
    rng = random.Random(20)
    siege = Siege(kit, kit.topic_of(1))
    true = kit.frame(
        subscribe=[siege.topic],
        messages=[(siege.topic, kit.envelope(siege.topic, 3))],
        ihave=[(siege.topic, [bytes(32)])],
        graft=[siege.topic],
        prune=[(kit.topic_of(2), 9)],
        suggest=[(b"p", b"r")],
        idontwant=[[bytes(32)]],
    )
    outcasts = 0
    for number in range(5_000):
        if number % 3 == 0:
            data = rng.randbytes(rng.randrange(200))
        else:
            broken = bytearray(true)
            for _ in range(rng.randrange(1, 6)):
                broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
            data = bytes(broken[: rng.randrange(1, len(broken) + 1)])
        drained = siege.desk.receive(siege.attacker, data)
        for validate in drained.validate:
            siege.desk.verdict(validate, VerdictKind.REJECT)
        if siege.score == float("-inf"):
            outcasts += 1
            siege.attacker = PeerId(b"attacker-%d" % outcasts)
            siege.desk.router.peer_connected(
                siege.attacker, "/meshsub/1.2.0", False, siege.desk.now
            )

    assert outcasts > 50
    assert len(siege.desk.router._scores) <= outcasts + 5
    assert siege.serves()


def test_messages_in_validation_leave_room_for_others(kit: Kit) -> None:
    """A peer that fills its share of the validation queue does not take anybody else's (G20)."""
    params = replace(GossipParams(), pending_max=64, pending_peer_max=16)
    siege = Siege(kit, kit.topic_of(1), params)
    flood = [(siege.topic, kit.envelope(siege.topic, seq)) for seq in range(500)]

    (step,) = siege.attack(kit.frame(messages=flood))

    assert len(step.validate) == 16
    assert siege.desk.router.stats().busy == 484
    assert siege.score >= 0
    assert siege.serves()


def test_sybils_of_one_network_neither_connect_nor_stay(kit: Kit) -> None:
    """Sixty identities of one /16: four connect, and four of one host have no more (20-30)."""
    siege = Siege(kit, kit.topic_of(1), diversity=DiversityParams())
    for number in range(60):
        sybil = PeerId(b"sybil-%d" % number)
        siege.desk.router.peer_connected(
            sybil, "/meshsub/1.1.0", False, siege.desk.now, address="203.0.113.9"
        )
        siege.desk.receive(sybil, kit.frame(subscribe=[siege.topic], graft=[siege.topic]))

    sybils = [p for p in siege.desk.router.stats().peers if p.startswith(b"sybil")]
    assert len(sybils) == 4
    assert siege.serves()


def test_made_up_announcements_leave_room_for_true_ones(kit: Kit) -> None:
    """Ten peers announce all that may be wanted; what an honest one announces is asked (20-36)."""
    topic = kit.topic_of(1)
    desk = kit.Desk(GossipParams(wanted_max=1_000, wanted_peer_max=200))
    desk.router.subscribe(topic, desk.now)
    *liars, honest = desk.peers(11, topic)
    for number, liar in enumerate(liars):
        made_up = [(number * 1_000 + step).to_bytes(32) for step in range(200)]
        desk.receive(liar, kit.frame(ihave=[(topic, made_up)]))
    assert 500 <= desk.router.stats().wanted <= 1_000

    asked = desk.receive(honest, kit.frame(ihave=[(topic, [b"\xff" * 32] * 2)]))

    assert asked.rpc(honest).iwant == [b"\xff" * 32]


def test_all_that_is_wanted_is_bounded(kit: Kit) -> None:
    """Fifty peers that take their shares as well fill the table and no more (20-58)."""
    topic = kit.topic_of(1)
    desk = kit.Desk(GossipParams(wanted_max=1_000, wanted_peer_max=400))
    desk.router.subscribe(topic, desk.now)
    peers = desk.peers(desk.params.peers_max, topic)
    for number, peer in enumerate(peers):
        ids = [(number * 1_000 + step).to_bytes(32) for step in range(500)]
        desk.receive(peer, kit.frame(ihave=[(topic, ids)]))

    assert 900 <= desk.router.stats().wanted <= 1_000
    assert all(desk.router._peers.get(peer).wanted >= 10 for peer in peers)


def test_coming_back_does_not_wash_offences_away(kit: Kit, siege: Siege) -> None:
    """Who floods a little, leaves in time and returns is found like one that stayed (20-36)."""
    router = siege.desk.router
    for round_ in range(10):
        for beat in range(2):
            ids = [bytes([round_, beat]) * 16] * (siege.desk.params.iwant_ids_max + 1)
            siege.attack(kit.frame(iwant=[ids]))
            siege.desk.heartbeat()
        if siege.score < 0:
            break
        router.peer_disconnected(siege.attacker, siege.desk.now)
        router.peer_connected(siege.attacker, "/meshsub/1.1.0", outbound=False, now=siege.desk.now)
        siege.attack(kit.frame(subscribe=[siege.topic]))

    assert siege.score < 0
    assert siege.serves()


def test_credit_spent_on_forgeries_is_gone_after_coming_back(kit: Kit) -> None:
    """Invalid messages that credit made up for are still known when the peer returns (20-26)."""
    topic = kit.topic_of(1)
    desk = kit.Desk()
    desk.router.subscribe(topic, desk.now)
    (peer,) = desk.peers(1, topic)
    for seq in range(60):
        desk.accept(peer, topic, kit.envelope(topic, seq))
    (forged,) = desk.message(peer, topic, kit.envelope(topic, 1_000)).validate
    desk.verdict(forged, VerdictKind.REJECT)
    assert desk.router.explain(peer, desk.now).score > 0

    desk.router.peer_disconnected(peer, desk.now)
    desk.router.peer_connected(peer, "/meshsub/1.1.0", outbound=False, now=desk.now)

    assert desk.router.explain(peer, desk.now).topic_penalty > 0


def test_a_slow_lier_is_found_by_its_promises(kit: Kit, siege: Siege) -> None:
    """One announcement a heartbeat that is never kept: out of the mesh within a minute (20-36)."""
    beats = 0
    while siege.attacker in siege.desk.router._mesh.topics[siege.topic] and beats < 100:
        beats += 1
        siege.attack(kit.frame(ihave=[(siege.topic, [beats.to_bytes(32)])]))
        siege.desk.heartbeat()

    assert beats * siege.desk.params.heartbeat_interval_s < 60
    assert siege.serves()


def test_nobody_is_made_to_write_more_than_it_reads(kit: Kit, siege: Siege) -> None:
    """A subscription storm, prunes and grafts of one frame cause at most a frame or two (20-58)."""
    topics = [kit.topic_of(number) for number in range(2, 60)]
    for topic in topics:
        siege.desk.router.subscribe(topic, siege.desk.now)
    siege.desk.drain()
    storm = kit.frame(
        subscribe=topics, unsubscribe=topics, graft=topics * 20, prune=[(t, 1) for t in topics]
    )

    (step,) = siege.attack(storm)

    assert sum(len(data) for frames in step.frames.values() for data in frames) <= len(storm)
    assert siege.serves()


def test_what_was_rejected_is_not_validated_again(kit: Kit, siege: Siege) -> None:
    """The same forged bytes cost one validation, and each further copy costs its sender (G1)."""
    forged = kit.envelope(siege.topic, 3, salt=9)
    validations: list[Validate] = []
    for _ in range(40):
        for validate in siege.desk.message(siege.attacker, siege.topic, forged).validate:
            validations.append(validate)
            siege.desk.verdict(validate, VerdictKind.REJECT)

    assert len(validations) == 1
    assert siege.score < -2_500
    assert siege.serves()
