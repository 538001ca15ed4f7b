"""What hints and block announcements claim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luxrelay.bus import Code, SignatureScheme, SigningKey, VerdictKind
from luxrelay.errors import GossipArgumentError
from luxrelay.gossip import (
    BlobAvailabilityHint,
    BlockAnnouncement,
    ClaimParams,
    MessageType,
    PeerId,
    RelayMessage,
    TopicKind,
    global_topic,
    judge_block,
    judge_hint,
    peer_id_of,
)

NOW = 1_700_000_000_000
KEYS = [SigningKey.from_seed(SignatureScheme.ED25519, bytes([n]) * 32) for n in range(1, 5)]
IDS = [peer_id_of(key.public_field[1:]) for key in KEYS]
HINT = BlobAvailabilityHint(
    commitment=b"c" * 32, blob_len=9, providers=(IDS[0], IDS[1]), expires_at_ms=NOW + 600_000
)
BLOCK = BlockAnnouncement(block_hash=b"h" * 32, height=7, proposer=IDS[0], timestamp_ms=NOW)


def hint_message(hint: BlobAvailabilityHint = HINT, signer: SigningKey = KEYS[1]) -> RelayMessage:
    """Return a signed hint."""
    topic = global_topic("net", TopicKind.BLOBS_AVAILABLE)
    return RelayMessage(type=MessageType.BLOB_HINT, topic=topic, payload=hint.encode()).signed_by(
        signer
    )


def block_message(block: BlockAnnouncement = BLOCK, signer: SigningKey = KEYS[0]) -> RelayMessage:
    """Return a signed block announcement."""
    topic = global_topic("net", TopicKind.BLOCKS_FINALIZED)
    return RelayMessage(type=MessageType.BLOCK, topic=topic, payload=block.encode()).signed_by(
        signer
    )


def test_accept_a_hint_of_one_of_its_providers() -> None:
    """Whoever signs is among the providers (20-11, G10)."""
    assert judge_hint(hint_message(), NOW).accepted
    assert judge_hint(hint_message(signer=KEYS[0]), NOW).accepted


def test_accept_a_hint_of_a_trusted_operator() -> None:
    """An operator we trust may sign for others, up to operators_max of them (20-11, G10)."""
    message = hint_message(signer=KEYS[3])

    assert judge_hint(message, NOW, operators=[IDS[2], IDS[3]]).accepted
    few = ClaimParams(operators_max=1)
    assert not judge_hint(message, NOW, params=few, operators=[IDS[2], IDS[3]]).accepted


@pytest.mark.parametrize(
    ("message", "kind", "code"),
    [
        (hint_message(signer=KEYS[2]), VerdictKind.REJECT, Code.SOURCE_SIGNATURE),
        (replace(hint_message(), signature=b""), VerdictKind.REJECT, Code.SOURCE_SIGNATURE),
        (
            replace(hint_message(), topic=global_topic("other", TopicKind.BLOBS_AVAILABLE)),
            VerdictKind.REJECT,
            Code.SOURCE_SIGNATURE,
        ),
        (replace(hint_message(), payload=b"x"), VerdictKind.REJECT, Code.MALFORMED_PAYLOAD),
        (
            hint_message(replace(HINT, expires_at_ms=NOW)),
            VerdictKind.IGNORE,
            Code.EXPIRED,
        ),
        (
            hint_message(replace(HINT, expires_at_ms=NOW + 600_001)),
            VerdictKind.IGNORE,
            Code.TIMESTAMP_INVALID,
        ),
        (
            hint_message(replace(HINT, providers=(b"no key inside", b"x"))),
            VerdictKind.REJECT,
            Code.SOURCE_SIGNATURE,
        ),
    ],
    ids=[
        "foreign signer",
        "unsigned",
        "replayed elsewhere",
        "malformed",
        "over",
        "long",
        "keyless",
    ],
)
def test_refuse_a_hint(message: RelayMessage, kind: VerdictKind, code: Code) -> None:
    """A forged hint is rejected, one out of its time ignored (20-11, 20-34, G10)."""
    verdict = judge_hint(message, NOW)

    assert (verdict.kind, verdict.code) == (kind, code)


@pytest.mark.parametrize("shift", [-60_000, 0, 60_000])
def test_accept_a_block_of_its_proposer(shift: int) -> None:
    """The proposer signs, within a minute of now (20-12, G12)."""
    assert judge_block(block_message(), NOW + shift).accepted


@pytest.mark.parametrize(
    ("message", "now_ms", "kind", "code"),
    [
        (block_message(signer=KEYS[1]), NOW, VerdictKind.REJECT, Code.SOURCE_SIGNATURE),
        (
            replace(block_message(), signature=b""),
            NOW,
            VerdictKind.REJECT,
            Code.SOURCE_SIGNATURE,
        ),
        (
            replace(block_message(), payload=replace(BLOCK, height=8).encode()),
            NOW,
            VerdictKind.REJECT,
            Code.SOURCE_SIGNATURE,
        ),
        (replace(block_message(), payload=b""), NOW, VerdictKind.REJECT, Code.MALFORMED_PAYLOAD),
        (block_message(), NOW + 60_001, VerdictKind.IGNORE, Code.TIMESTAMP_INVALID),
        (block_message(), NOW - 60_001, VerdictKind.IGNORE, Code.TIMESTAMP_INVALID),
    ],
    ids=["foreign signer", "unsigned", "tampered", "malformed", "old", "ahead"],
)
def test_refuse_a_block(message: RelayMessage, now_ms: int, kind: VerdictKind, code: Code) -> None:
    """A tampered announcement is rejected, one sent round again later ignored (20-12)."""
    verdict = judge_block(message, now_ms)

    assert (verdict.kind, verdict.code) == (kind, code)


def test_bounds_of_claims_hold_something() -> None:
    """Each bound begins at 1."""
    with pytest.raises(GossipArgumentError, match="operators_max"):
        ClaimParams(operators_max=0)
    assert ClaimParams().hint_life_max_ms == 600_000
    assert PeerId(IDS[0]) in HINT.providers
