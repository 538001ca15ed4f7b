"""Claims on the global topics: believed when signed and of now; and what we claim ourselves."""

from dataclasses import replace
from typing import Any

import pytest

from luxrelay.bus import Code, SigningKey, VerdictKind
from luxrelay.bus.limits import LimitConfig, Rate
from luxrelay.gossip import (
    BlobAvailabilityHint,
    BlockAnnouncement,
    MessageType,
    RelayMessage,
    TopicKind,
    global_topic,
    judge_hint,
    peer_id_of,
)
from luxrelay.node.rates import NodeRates
from luxrelay.node.stages.global_topics import HINT_LIFE_MS
from luxrelay.sync import PublishItem

ACCEPT, IGNORE, REJECT = VerdictKind.ACCEPT, VerdictKind.IGNORE, VerdictKind.REJECT
PROPOSED = global_topic("test", TopicKind.BLOCKS_PROPOSED)
FINALIZED = global_topic("test", TopicKind.BLOCKS_FINALIZED)
HINTS = global_topic("test", TopicKind.BLOBS_AVAILABLE)


def peer(key: SigningKey) -> bytes:
    """Return the peer id of a key."""
    return peer_id_of(key.public_field[1:])


def block(bench: Any, key: SigningKey, topic: str = FINALIZED, **changes: Any) -> RelayMessage:
    """Return a signed block announcement."""
    announcement = BlockAnnouncement(
        block_hash=b"\x07" * 32, height=7, proposer=peer(key), timestamp_ms=bench.now
    )
    message = RelayMessage(
        type=MessageType.BLOCK, topic=topic, payload=replace(announcement, **changes).encode()
    )
    return message.signed_by(key)


def hint(bench: Any, key: SigningKey, *, commitment: bytes = b"\x08" * 32) -> RelayMessage:
    """Return a signed hint that the key's peer has a blob."""
    claim = BlobAvailabilityHint(
        commitment=commitment,
        blob_len=5,
        providers=(peer(key),),
        expires_at_ms=bench.now + 60_000,
    )
    message = RelayMessage(type=MessageType.BLOB_HINT, topic=HINTS, payload=claim.encode())
    return message.signed_by(key)


def judged(bench: Any, message: RelayMessage, topic: str | None = None) -> VerdictKind:
    """Return the verdict on an envelope."""
    (kind,) = bench.doors.gossip([bench.validate(message, topic=topic or message.topic)])
    return kind  # type: ignore[no-any-return]


def test_blocks_are_judged_and_posted(bench: Any) -> None:
    """A signed announcement of now is passed on and on the board, by what was announced (20-12)."""
    key = SigningKey.generate()

    assert judged(bench, block(bench, key, PROPOSED)) is ACCEPT
    assert judged(bench, block(bench, key)) is ACCEPT

    board = bench.globals.blocks
    assert board.totals() == {"proposed": 1, "finalized": 1, "conflicts": 0, "height": 7}
    assert bench.doors.counts.snapshot()["claims", ACCEPT, Code.OK] == 2
    assert bench.doors.counts.total("gossip", ACCEPT) == 0


def test_false_blocks_leave_the_board_alone(bench: Any) -> None:
    """Another signer, another time, another topic in the envelope, no announcement (G10, G12)."""
    key, other = SigningKey.generate(), SigningKey.generate()
    garbage = RelayMessage(type=MessageType.BLOCK, topic=FINALIZED, payload=b"x" * 40)

    assert judged(bench, block(bench, key).signed_by(other)) is REJECT
    assert judged(bench, block(bench, key, timestamp_ms=bench.now - 61_000)) is IGNORE
    assert judged(bench, block(bench, key, PROPOSED), FINALIZED) is REJECT
    assert judged(bench, garbage.signed_by(key)) is REJECT
    assert bench.globals.blocks.recent() == []


def test_only_listed_proposers_are_taken(bench: Any) -> None:
    """With a list of proposers everybody else's blocks are ignored, not punished (G12)."""
    key, other = SigningKey.generate(), SigningKey.generate()
    bench.globals._proposers = frozenset({peer(key)})

    assert judged(bench, block(bench, other)) is IGNORE
    assert judged(bench, block(bench, key)) is ACCEPT
    assert len(bench.globals.blocks.recent()) == 1


def test_a_hint_costs_its_peer_as_many_messages_as_it_names_providers(bench: Any) -> None:
    """Sixteen keys to try the signature with are paid for as sixteen messages (20-46, G20)."""
    limits = LimitConfig(peer=Rate(20), burst_factor=1.0)
    bench.doors._judge._rates = NodeRates(limits, lambda: 0.0)
    key = SigningKey.generate()
    strangers = tuple(peer_id_of(bytes([number]) * 32) for number in range(15))

    def named(commitment: bytes, others: tuple[bytes, ...]) -> VerdictKind:
        plain = hint(bench, key, commitment=commitment)
        claim = BlobAvailabilityHint.decode(plain.payload)
        wide = replace(claim, providers=(*others, peer(key)))
        return judged(bench, replace(plain, payload=wide.encode()).signed_by(key))

    assert named(b"\x01" * 32, strangers) is ACCEPT
    assert named(b"\x02" * 32, strangers) is IGNORE
    bench.doors._judge._rates = NodeRates(limits, lambda: 0.0)
    assert [named(bytes([number]) * 32, ()) for number in range(3, 24)] == [ACCEPT] * 20 + [IGNORE]


def test_hints_are_remembered_and_make_a_blob_due(bench: Any) -> None:
    """A hint names who is asked, and a wanted blob is asked for at once (20-11, G3)."""
    header = bench.header(1)
    bench.doors.gossip([bench.validate(bench.envelope(header.encode(), None))])
    bench.wanted.take(9, bench.now)
    assert bench.wanted.take(9, bench.now) == []
    key = SigningKey.generate()

    assert judged(bench, hint(bench, key, commitment=header.blob_commitment)) is ACCEPT

    assert len(bench.wanted.take(9, bench.now)) == 1
    assert bench.globals.hints.providers(header.blob_commitment, bench.now) == [peer(key)]


def test_forged_hints_are_not_remembered(bench: Any) -> None:
    """A hint that none of its providers signed aims at nobody (20-11, G10)."""
    forged = hint(bench, SigningKey.generate()).signed_by(SigningKey.generate())

    assert judged(bench, forged) is REJECT
    assert len(bench.globals.hints) == 0


def test_true_claims_on_another_topic_are_rejected(bench: Any) -> None:
    """A signed hint where blocks are announced, and a signed block among hints (20-08)."""
    key = SigningKey.generate()
    claim = replace(hint(bench, key), topic=FINALIZED).signed_by(key)
    announcement = block(bench, key, HINTS)

    assert judged(bench, claim) is REJECT
    assert judged(bench, announcement) is REJECT
    assert len(bench.globals.hints) == 0
    assert bench.globals.blocks.recent() == []


def test_an_operator_may_name_others(bench: Any) -> None:
    """A listed DA operator's hint may name providers that did not sign (G10)."""
    operator, provider = SigningKey.generate(), SigningKey.generate()
    bench.globals._operators = (peer(operator),)

    assert judged(bench, hint(bench, provider).signed_by(operator)) is ACCEPT


@pytest.mark.parametrize(("size", "hints"), [(1024, 0), (1025, 1)])
def test_publishing_a_large_blob_hints_at_it(bench: Any, size: int, hints: int) -> None:
    """What does not travel inside its announcement is hinted at, in a hint that others believe."""
    blob = bytes(size)
    header = bench.header(1, blob)
    bench.doors.publish([PublishItem(header=header.encode(), blob=blob, parent_id=bench.parent)])

    found = [RelayMessage.decode(data) for topic, data in bench.spread if topic == HINTS]

    assert len(found) == hints
    for message in found:
        claim = BlobAvailabilityHint.decode(message.payload)
        assert (claim.commitment, claim.blob_len) == (header.blob_commitment, size)
        assert claim.providers == (peer(bench.identity),)
        assert claim.expires_at_ms == bench.now + HINT_LIFE_MS
        assert judge_hint(message, bench.now).accepted


def test_headers_that_come_alone_name_who_may_have_the_blob(bench: Any) -> None:
    """The announcer is asked first, then who brought the header."""
    header = bench.header(1)
    bench.doors.gossip([bench.validate(bench.envelope(header.encode(), None))])

    (wanted,) = bench.wanted.take(9, bench.now)

    assert wanted.holders == (peer(bench.identity), b"peer")
