"""The context rules: each row of the relay's tables."""

from dataclasses import replace

import pytest

from luxrelay.bus import (
    Code,
    MsgHeader,
    NamespaceId,
    SigningKey,
    ValidationContext,
    VerdictKind,
    lane,
    validate,
)
from luxrelay.bus.constants import FLAG_KZG_COMMITMENT
from luxrelay.bus.semantics import LIVE_RULES, SYNC_RULES, check_context

PARENT = NamespaceId(b"\x22" * 20)
POLICY = b"\x33" * 32
NOW = 1_704_067_200_000


@pytest.fixture
def context() -> ValidationContext:
    """A relay that knows one namespace and stands at sequence 5."""
    return ValidationContext(
        now_ms=NOW, parent=PARENT, policy_hashes=frozenset({POLICY}), contiguous_seq=5
    )


@pytest.fixture
def header(unsigned: MsgHeader, key: SigningKey) -> MsgHeader:
    """The next message of a lane, signed."""
    return key.sign_header(
        replace(
            unsigned,
            namespace_id=lane(PARENT, key.public_field),
            seq=6,
            timestamp=NOW,
            policy_hash=POLICY,
        )
    )


def test_accept_lane_and_parent(
    header: MsgHeader, context: ValidationContext, key: SigningKey
) -> None:
    """A message in its sender's lane, or in the parent itself, is accepted (J6)."""
    assert validate(header, context).accepted
    assert validate(key.sign_header(replace(header, namespace_id=PARENT)), context).accepted


def test_ignore_unknown_namespace(header: MsgHeader, context: ValidationContext) -> None:
    """A namespace without a policy here is nobody's fault (11-11)."""
    verdict = validate(header, replace(context, policy_hashes=frozenset()))
    assert (verdict.kind, verdict.code) == (VerdictKind.IGNORE, Code.INVALID_NAMESPACE)


def test_reject_wrong_topic(header: MsgHeader, context: ValidationContext) -> None:
    """A namespace that is neither the topic's nor the sender's lane is rejected (G28)."""
    other = replace(header, namespace_id=NamespaceId(b"\x44" * 20))
    verdict = validate(other, context)
    assert (verdict.kind, verdict.code) == (VerdictKind.REJECT, Code.WRONG_TOPIC)


def test_reject_lane_of_another_key(header: MsgHeader, context: ValidationContext) -> None:
    """Nobody writes in another sender's lane (J6)."""
    thief = SigningKey.generate().sign_header(header)
    assert validate(thief, context).code is Code.WRONG_TOPIC


def test_ignore_other_policy(header: MsgHeader, context: ValidationContext) -> None:
    """A policy hash that is not in force is ignored, in case we are behind (11-23, H19)."""
    verdict = validate(replace(header, policy_hash=bytes(32)), context)
    assert (verdict.kind, verdict.code) == (VerdictKind.IGNORE, Code.POLICY_VIOLATION)


def test_ignore_what_this_build_cannot_check(header: MsgHeader, context: ValidationContext) -> None:
    """KZG, another scheme and a fee proof are ignored, never penalised (11-10, 11-33)."""
    kzg = replace(header, flags=FLAG_KZG_COMMITMENT)
    scheme = replace(header, sender_pub_key=b"\x02" + header.sender_pub_key[1:])
    scheme = replace(scheme, namespace_id=lane(PARENT, scheme.sender_pub_key))
    fee = replace(header, fee_proof=b"\x01voucher")

    assert validate(kzg, context).code is Code.UNSUPPORTED_COMMITMENT
    assert validate(scheme, context).code is Code.UNSUPPORTED_SCHEME
    assert validate(fee, context).code is Code.FEE_TOO_LOW
    for odd in (kzg, scheme, fee):
        assert validate(odd, context).kind is VerdictKind.IGNORE


@pytest.mark.parametrize(
    ("offset", "code"),
    [
        (-30_001, Code.TIMESTAMP_INVALID),
        (-30_000, Code.OK),
        (0, Code.OK),
        (30_000, Code.OK),
        (30_001, Code.TIMESTAMP_INVALID),
    ],
)
def test_live_clock_tolerance(
    header: MsgHeader, context: ValidationContext, key: SigningKey, offset: int, code: Code
) -> None:
    """Live messages are within ±30 s of our clock (11-17)."""
    shifted = key.sign_header(replace(header, timestamp=NOW + offset))
    assert validate(shifted, context).code is code


def test_history_is_not_held_to_the_live_clock(
    header: MsgHeader, context: ValidationContext, key: SigningKey
) -> None:
    """Nine-minute-old history is fine, history past its life is not wanted (11-18, H14)."""
    old = key.sign_header(replace(header, timestamp=NOW - 540_000))
    gone = replace(header, timestamp=NOW - 630_001)
    future = replace(header, timestamp=NOW + 30_001)

    assert validate(old, context, SYNC_RULES).accepted
    assert check_context(gone, context, SYNC_RULES).code is Code.EXPIRED
    verdict = check_context(future, context, SYNC_RULES)
    assert (verdict.kind, verdict.code) == (VerdictKind.REJECT, Code.TIMESTAMP_INVALID)


def test_parks_1024_ahead_and_ignores_more(header: MsgHeader, context: ValidationContext) -> None:
    """A gap is accepted up to ``ahead_max`` (11-13, H16)."""
    assert check_context(replace(header, seq=5 + 1024), context).accepted
    verdict = check_context(replace(header, seq=5 + 1025), context)
    assert (verdict.kind, verdict.code) == (VerdictKind.IGNORE, Code.SEQUENCE_GAP)


def test_reject_signature_last(header: MsgHeader, context: ValidationContext) -> None:
    """A bad signature is rejected, and only once every cheaper rule holds (11-38)."""
    forged = replace(header, signature=bytes(64))
    verdict = validate(forged, context)
    assert (verdict.kind, verdict.code) == (VerdictKind.REJECT, Code.INVALID_SIGNATURE)
    elsewhere = replace(forged, policy_hash=bytes(32))
    assert validate(elsewhere, context).code is Code.POLICY_VIOLATION


def test_cheap_rules_are_shared() -> None:
    """Both profiles ask the same rules before they differ on time."""
    assert LIVE_RULES[:6] == SYNC_RULES[:6]
