"""The context rules: each row of the tables, their order, and the document's own test plan."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from luxrelay.bus import (
    Code,
    ContentId,
    FeeKind,
    FeeProof,
    FeeVerifiers,
    Identity,
    IdentityType,
    MsgHeader,
    NamespaceId,
    NamespacePolicy,
    SignatureScheme,
    SigningKey,
    TFHESidecarRef,
    TokenGate,
    ValidationContext,
    VerdictKind,
    WritersMode,
    lane,
    semantics,
    validate,
    validate_structure,
)
from luxrelay.bus.constants import FLAG_KZG_COMMITMENT, FLAG_TFHE_SIDECAR, MAX_U64
from luxrelay.bus.fee import OnChain, Prepaid
from luxrelay.bus.fee_verifiers import OnChainVerifier, PrepaidVerifier
from luxrelay.bus.policy import EncryptionMode, PqMode, TokenKind, encode_custom
from luxrelay.bus.semantics import (
    LIVE_RULES,
    PROVEN_RULES,
    SLOT_SENDERS_MAX,
    SYNC_RULES,
    VALIDATOR_RULES,
    SlotRival,
    check_context,
    equivocates,
)

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


def test_ignore_what_this_node_cannot_check(header: MsgHeader, context: ValidationContext) -> None:
    """KZG, another scheme and a fee proof are ignored, never penalised (11-10, 11-33)."""
    only_ed25519 = replace(context, schemes=frozenset({int(SignatureScheme.ED25519)}))
    kzg = replace(header, flags=FLAG_KZG_COMMITMENT)
    scheme = replace(header, sender_pub_key=b"\x02" + header.sender_pub_key[1:])
    scheme = replace(scheme, namespace_id=lane(PARENT, scheme.sender_pub_key))
    fee = replace(header, fee_proof=b"\x01voucher")

    assert validate(kzg, only_ed25519).code is Code.UNSUPPORTED_COMMITMENT
    assert validate(scheme, only_ed25519).code is Code.UNSUPPORTED_SCHEME
    assert validate(fee, only_ed25519).code is Code.FEE_TOO_LOW
    for odd in (kzg, scheme, fee):
        assert validate(odd, only_ed25519).kind is VerdictKind.IGNORE
    assert validate(kzg, replace(context, kzg=True)).code is Code.INVALID_SIGNATURE


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
    oldest = replace(header, timestamp=NOW - 630_000)
    gone = replace(header, timestamp=NOW - 630_001)
    newest = replace(header, timestamp=NOW + 30_000)
    future = replace(header, timestamp=NOW + 30_001)

    assert validate(old, context, SYNC_RULES).accepted
    assert check_context(oldest, context, SYNC_RULES).accepted
    assert check_context(newest, context, SYNC_RULES).accepted
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


IGNORE, REJECT = VerdictKind.IGNORE, VerdictKind.REJECT


def judged(
    header: MsgHeader, context: ValidationContext, rules: tuple[semantics.ContextRule, ...]
) -> tuple[VerdictKind, Code]:
    """Return kind and code of the full verdict."""
    verdict = validate(header, context, rules)
    return verdict.kind, verdict.code


OK = (VerdictKind.ACCEPT, Code.OK)


def under(context: ValidationContext, policy: NamespacePolicy) -> ValidationContext:
    """Return the context with a full policy in force under the tests' hash."""
    return replace(context, policies={POLICY: policy})


STRANGER = Identity(IdentityType.WALLET, b"\x77" * 20)
GATE = TokenGate(kind=TokenKind.FUNGIBLE, chain_id=1, contract=b"\x0c" * 20, min_balance=5)


@pytest.mark.parametrize("rules", [LIVE_RULES, SYNC_RULES, VALIDATOR_RULES])
def test_writers_are_enforced(
    header: MsgHeader, context: ValidationContext, rules: tuple[semantics.ContextRule, ...]
) -> None:
    """Under a full policy only its writers pass, in every profile (11-39)."""
    own = Identity(IdentityType.WALLET, header.sender_address)
    cases = [
        (NamespacePolicy(owner=STRANGER), OK),
        (NamespacePolicy(owner=own, writers_mode=WritersMode.OWNER_ONLY), OK),
        (
            NamespacePolicy(owner=STRANGER, writers_mode=WritersMode.OWNER_ONLY),
            (REJECT, Code.POLICY_VIOLATION),
        ),
        (
            NamespacePolicy(owner=STRANGER, writers_mode=WritersMode.ALLOWLIST, writers=(own,)),
            OK,
        ),
        (
            NamespacePolicy(owner=own, writers_mode=WritersMode.ALLOWLIST),
            (REJECT, Code.POLICY_VIOLATION),
        ),
        (
            NamespacePolicy(
                owner=Identity(IdentityType.ENS, b"a.eth"), writers_mode=WritersMode.OWNER_ONLY
            ),
            (IGNORE, Code.UNCHECKABLE),
        ),
        (
            NamespacePolicy(owner=own, writers_mode=WritersMode.TOKEN_GATED, token_gate=GATE),
            (IGNORE, Code.UNCHECKABLE),
        ),
    ]
    for policy, expected in cases:
        assert judged(header, under(context, policy), rules) == expected


@pytest.mark.parametrize(
    ("answer", "expected"), [(True, OK), (False, (REJECT, Code.POLICY_VIOLATION))]
)
def test_balances_are_asked_of_proven_senders_only(
    header: MsgHeader,
    context: ValidationContext,
    answer: bool,
    expected: tuple[VerdictKind, Code],
) -> None:
    """A token gate is looked up after the signature: a forger costs no look-up (11-38, 11-39)."""
    asked: list[bytes] = []

    class Balances:
        def holds(self, address: bytes, gate: TokenGate) -> bool | None:
            assert gate == GATE
            asked.append(address)
            return answer

    policy = NamespacePolicy(owner=STRANGER, writers_mode=WritersMode.TOKEN_GATED, token_gate=GATE)
    gated = replace(under(context, policy), balances=Balances())

    assert judged(replace(header, signature=bytes(64)), gated, LIVE_RULES) == (
        REJECT,
        Code.INVALID_SIGNATURE,
    )
    assert not asked
    assert judged(header, gated, LIVE_RULES) == expected
    assert set(asked) == {header.sender_address}


@pytest.mark.parametrize("scheme", list(SignatureScheme))
@pytest.mark.parametrize("mode", list(PqMode))
def test_pq_mode_is_enforced(
    unsigned: MsgHeader, context: ValidationContext, scheme: SignatureScheme, mode: PqMode
) -> None:
    """A scheme outside the policy's mode is rejected before its signature is looked at (11-40)."""
    key = SigningKey.generate(scheme)
    header = key.sign_header(
        replace(unsigned, namespace_id=PARENT, seq=6, timestamp=NOW, policy_hash=POLICY)
    )
    policy = NamespacePolicy(owner=STRANGER, pq_mode=mode)
    fits = {
        PqMode.CLASSICAL: {SignatureScheme.ED25519, SignatureScheme.SECP256K1},
        PqMode.HYBRID: {SignatureScheme.HYBRID_ED25519_ML_DSA_65},
        PqMode.PQ_ONLY: {SignatureScheme.ML_DSA_65, SignatureScheme.ML_DSA_87},
    }

    expected = OK if scheme in fits[mode] else (REJECT, Code.POLICY_VIOLATION)
    assert judged(header, under(context, policy), LIVE_RULES) == expected


@pytest.mark.parametrize(
    ("mode", "carried", "accepted"),
    [
        ((EncryptionMode.TFHE, True), True, True),
        ((EncryptionMode.TFHE, True), False, False),
        ((EncryptionMode.TFHE, False), True, True),
        ((EncryptionMode.PLAINTEXT, False), True, False),
    ],
)
def test_sidecar_rule_is_enforced(
    unsigned: MsgHeader, context: ValidationContext, mode: object, carried: bool, accepted: bool
) -> None:
    """A sidecar stands where the policy demands or allows it, and nowhere else (11-37)."""
    encryption, orchestrated = mode  # type: ignore[misc]
    policy = NamespacePolicy(owner=STRANGER, encryption_mode=encryption, tfhe_orch=orchestrated)
    header = replace(unsigned, namespace_id=PARENT, seq=6, timestamp=NOW, policy_hash=POLICY)
    if carried:
        reference = TFHESidecarRef(commitment=b"\x01" * 32, epoch=1)
        header = replace(header, flags=FLAG_TFHE_SIDECAR, tfhe_sidecar=reference)

    verdict = validate(SigningKey.generate().sign_header(header), under(context, policy))
    assert verdict.accepted is accepted
    if not accepted:
        assert (verdict.kind, verdict.code) == (REJECT, Code.POLICY_VIOLATION)


def test_hash_without_a_policy_is_all_that_is_checked(
    header: MsgHeader, context: ValidationContext
) -> None:
    """Where only the hash is known, writers and modes are not this node's to judge (H20)."""
    closed = NamespacePolicy(owner=STRANGER, writers_mode=WritersMode.OWNER_ONLY)
    assert validate(header, replace(context, policies={b"other": closed})).accepted


def test_policy_of_the_header_judges_it(
    header: MsgHeader, context: ValidationContext, key: SigningKey
) -> None:
    """During the grace each header is judged by the policy it binds to (11-24, H19)."""
    before, after = b"\x34" * 32, POLICY
    closed = NamespacePolicy(owner=STRANGER, writers_mode=WritersMode.OWNER_ONLY, version=2)
    grace = replace(
        context,
        policy_hashes=frozenset({before, after}),
        policies={before: NamespacePolicy(owner=STRANGER), after: closed},
    )
    old = key.sign_header(replace(header, policy_hash=before))

    assert validate(old, grace).accepted
    assert validate(header, grace).code is Code.POLICY_VIOLATION


def test_one_bit_of_the_policy_hash(header: MsgHeader, context: ValidationContext) -> None:
    """A policy hash with one bit changed is not ours: relays ignore, validators reject (11-23)."""
    other = replace(header, policy_hash=bytes([POLICY[0] ^ 1]) + POLICY[1:])

    assert judged(other, context, LIVE_RULES) == (IGNORE, Code.POLICY_VIOLATION)
    assert judged(other, context, SYNC_RULES) == (IGNORE, Code.POLICY_VIOLATION)
    assert judged(other, context, VALIDATOR_RULES) == (REJECT, Code.POLICY_VIOLATION)


def test_unknown_namespace_in_every_profile(header: MsgHeader, context: ValidationContext) -> None:
    """Relays ignore an unknown namespace, validators reject it (11-11)."""
    unknown = replace(context, policy_hashes=frozenset())

    assert judged(header, unknown, LIVE_RULES) == (IGNORE, Code.INVALID_NAMESPACE)
    assert judged(header, unknown, SYNC_RULES) == (IGNORE, Code.INVALID_NAMESPACE)
    assert judged(header, unknown, VALIDATOR_RULES) == (REJECT, Code.INVALID_NAMESPACE)


@pytest.mark.parametrize(("seq", "accepted"), [(5, False), (6, True), (7, False), (4, False)])
def test_validator_takes_the_next_only(
    header: MsgHeader, context: ValidationContext, key: SigningKey, seq: int, accepted: bool
) -> None:
    """In order, a gap, a repeat and a step back are rejected (11-14)."""
    other = key.sign_header(replace(header, seq=seq))

    expected = OK if accepted else (REJECT, Code.SEQUENCE_GAP)
    assert judged(other, context, VALIDATOR_RULES) == expected


def test_first_sequence_is_1(
    header: MsgHeader, context: ValidationContext, key: SigningKey
) -> None:
    """A namespace begins at 1; a relay parks a 2 that comes first, a validator does not (11-13)."""
    fresh = replace(context, contiguous_seq=0)
    first, second = (key.sign_header(replace(header, seq=n)) for n in (1, 2))

    assert judged(first, fresh, VALIDATOR_RULES) == OK
    assert judged(second, fresh, VALIDATOR_RULES) == (REJECT, Code.SEQUENCE_GAP)
    assert judged(second, fresh, LIVE_RULES) == OK
    zero = replace(header, seq=0).encode()
    assert validate_structure(zero).code is Code.ZERO_SEQUENCE


def test_largest_sequence(header: MsgHeader, context: ValidationContext, key: SigningKey) -> None:
    """The last sequence of all is judged like any other (11-15)."""
    last = key.sign_header(replace(header, seq=MAX_U64))
    near = replace(context, contiguous_seq=MAX_U64 - 1)

    assert judged(last, near, VALIDATOR_RULES) == OK
    assert judged(last, near, LIVE_RULES) == OK


@pytest.mark.parametrize(("offset", "regresses"), [(-1, True), (0, False), (1, False)])
def test_timestamp_against_the_predecessor(
    header: MsgHeader,
    context: ValidationContext,
    key: SigningKey,
    offset: int,
    regresses: bool,
) -> None:
    """Equal timestamps are fine, earlier ones are not; who is certain rejects (11-16, H13)."""
    later = key.sign_header(replace(header, timestamp=NOW + offset))
    pending = replace(context, predecessor_ms=NOW)
    final = replace(pending, predecessor_final=True)

    wrong = Code.TIMESTAMP_INVALID
    assert judged(later, pending, LIVE_RULES) == ((IGNORE, wrong) if regresses else OK)
    assert judged(later, final, LIVE_RULES) == ((REJECT, wrong) if regresses else OK)
    assert judged(later, pending, SYNC_RULES) == OK  # or stores would never agree
    assert judged(later, pending, VALIDATOR_RULES) == ((REJECT, wrong) if regresses else OK)


def test_validator_clock_is_strict(header: MsgHeader, context: ValidationContext) -> None:
    """More than 30 s from the median a validator rejects what a relay ignores (11-17)."""
    late = replace(context, now_ms=NOW + 30_001)

    assert judged(header, replace(context, now_ms=NOW + 30_000), VALIDATOR_RULES) == OK
    assert judged(header, late, VALIDATOR_RULES) == (REJECT, Code.TIMESTAMP_INVALID)
    assert judged(header, late, LIVE_RULES) == (IGNORE, Code.TIMESTAMP_INVALID)


@pytest.mark.parametrize(
    ("timestamp", "epoch"), [(0, 0), (3_599_999, 0), (3_600_000, 1), (NOW, 473_352)]
)
def test_epoch_of_a_timestamp(timestamp: int, epoch: int) -> None:
    """An epoch is an hour of milliseconds (11-19, H24)."""
    header = MsgHeader(
        namespace_id=PARENT, seq=1, timestamp=timestamp, blob_commitment=bytes(32), blob_len=0,
        policy_hash=POLICY,
    )  # fmt: skip
    assert header.epoch == epoch


def test_finalized_sequences_are_past(header: MsgHeader, context: ValidationContext) -> None:
    """A sequence at or below the finalized head is nobody's fault and not wanted (J9)."""
    assert judged(header, replace(context, finalized_seq=5), LIVE_RULES) == OK
    behind = replace(context, finalized_seq=6)
    assert judged(header, behind, LIVE_RULES) == (IGNORE, Code.DUPLICATE)


def test_duplicates(header: MsgHeader, context: ValidationContext) -> None:
    """What is stored already is ignored, and rejected where order is kept (11-46)."""
    again = replace(context, duplicate=True)

    assert judged(header, again, LIVE_RULES) == (IGNORE, Code.DUPLICATE)
    assert judged(header, again, SYNC_RULES) == (IGNORE, Code.DUPLICATE)
    assert judged(header, again, VALIDATOR_RULES) == (REJECT, Code.DUPLICATE)


def rival(number: int, sender: bytes) -> SlotRival:
    """Return a rival whose content id begins with ``number``."""
    return SlotRival(ContentId(bytes([number]) * 32), sender)


def test_two_writers_contend_for_a_slot(header: MsgHeader, context: ValidationContext) -> None:
    """A slot keeps the four senders with the lowest content ids, one content each (11-46, J11)."""
    lower = [rival(0, bytes([n])) for n in range(SLOT_SENDERS_MAX)]
    higher = [rival(255, bytes([n])) for n in range(SLOT_SENDERS_MAX)]
    contended = (IGNORE, Code.CONTENTION)

    assert judged(header, replace(context, slot=tuple(lower[:3])), LIVE_RULES) == OK
    assert judged(header, replace(context, slot=tuple(lower)), LIVE_RULES) == contended
    assert judged(header, replace(context, slot=tuple(higher)), LIVE_RULES) == OK
    two_of_one = (*lower[:3], rival(1, lower[0].sender))
    assert judged(header, replace(context, slot=two_of_one), LIVE_RULES) == OK


def test_equivocation_is_seen(header: MsgHeader, context: ValidationContext) -> None:
    """Two contents of one sender in one slot are evidence, and the lower one stays (H17)."""
    own = (rival(255, header.sender_pub_key),)
    better = (rival(0, header.sender_pub_key),)

    assert equivocates(header, own)
    assert not equivocates(header, (rival(1, b"other"),))
    same = SlotRival(header.content_id, header.sender_pub_key)
    assert not equivocates(header, (same,))
    assert judged(header, replace(context, slot=own), LIVE_RULES) == OK
    expected = (IGNORE, Code.CONTENTION)
    assert judged(header, replace(context, slot=better), LIVE_RULES) == expected
    assert judged(header, replace(context, slot=(same,)), LIVE_RULES) == expected


@pytest.mark.parametrize("rules", [LIVE_RULES, SYNC_RULES, VALIDATOR_RULES])
def test_rates_are_peeked_at(
    header: MsgHeader, context: ValidationContext, rules: tuple[semantics.ContextRule, ...]
) -> None:
    """Over the limit a message is ignored, never rejected (LP-6422)."""
    over = replace(context, over_limit=lambda _: True)

    assert judged(header, over, rules) == (IGNORE, Code.RATE_LIMITED)
    assert judged(header, replace(context, over_limit=lambda _: False), rules) == OK


def test_fee_signatures_come_after_the_senders(
    header: MsgHeader, context: ValidationContext
) -> None:
    """A fee proof is proven once the header is; wrong for all is a REJECT (11-33, 11-34, 11-38)."""
    purse = SigningKey.generate()
    body = OnChain(chain_id=1, contract=bytes(20), tx_hash=bytes(32), log_index=0, amount=1)
    looked: list[OnChain] = []

    class Chain:
        def paid(self, payment: OnChain, payer: bytes, header: MsgHeader) -> bool | None:
            assert (payer, header.seq) == (purse.public_field, 6)
            looked.append(payment)
            return True

    fees = FeeVerifiers("devnet", {FeeKind.ON_CHAIN: OnChainVerifier(Chain())})
    paying = replace(context, fees=fees)
    proof = FeeProof.signed(body, header, purse, "devnet").encode()
    elsewhere = FeeProof.signed(body, replace(header, seq=9), purse, "devnet").encode()

    assert judged(header, paying, LIVE_RULES) == OK
    forged = replace(header, fee_proof=proof, signature=bytes(64))
    assert judged(forged, paying, LIVE_RULES) == (REJECT, Code.INVALID_SIGNATURE)
    assert not looked
    assert judged(replace(header, fee_proof=proof), paying, LIVE_RULES) == OK
    moved = replace(header, fee_proof=elsewhere)
    assert judged(moved, paying, LIVE_RULES) == (REJECT, Code.FEE_TOO_LOW)
    malformed = replace(header, fee_proof=proof[:-1])
    assert judged(malformed, paying, LIVE_RULES) == (REJECT, Code.FEE_TOO_LOW)
    unknown = replace(header, fee_proof=b"\x07x")
    assert judged(unknown, paying, LIVE_RULES) == (IGNORE, Code.FEE_TOO_LOW)
    paid_only = replace(context, fees=FeeVerifiers("devnet", free_tier=False))
    assert judged(header, paid_only, LIVE_RULES) == (IGNORE, Code.FEE_TOO_LOW)


# One change a row that breaks it and nothing before it: the table of verdicts, row by row.
_Case = tuple[Callable[[MsgHeader, ValidationContext], tuple[MsgHeader, ValidationContext]], Code]
BREAKERS: list[_Case] = [
    (lambda h, c: (h, replace(c, policy_hashes=frozenset())), Code.INVALID_NAMESPACE),
    (lambda h, c: (replace(h, namespace_id=NamespaceId(b"\x44" * 20)), c), Code.WRONG_TOPIC),
    (lambda h, c: (replace(h, flags=FLAG_KZG_COMMITMENT), c), Code.UNSUPPORTED_COMMITMENT),
    (lambda h, c: (h, replace(c, schemes=frozenset())), Code.UNSUPPORTED_SCHEME),
    (lambda h, c: (replace(h, fee_proof=b"\x09"), c), Code.FEE_TOO_LOW),
    (lambda h, c: (replace(h, policy_hash=bytes(32)), c), Code.POLICY_VIOLATION),
    (lambda h, c: (replace(h, timestamp=NOW + 30_001), c), Code.TIMESTAMP_INVALID),
    (lambda h, c: (replace(h, seq=c.contiguous_seq + 1025), c), Code.SEQUENCE_GAP),
    (lambda h, c: (h, replace(c, finalized_seq=h.seq)), Code.DUPLICATE),
    (lambda h, c: (h, replace(c, predecessor_ms=NOW + 1)), Code.TIMESTAMP_INVALID),
    (lambda h, c: (h, replace(c, duplicate=True)), Code.DUPLICATE),
    (lambda h, c: (h, replace(c, over_limit=lambda _: True)), Code.RATE_LIMITED),
    (
        lambda h, c: (
            h,
            under(c, NamespacePolicy(owner=STRANGER, writers_mode=WritersMode.OWNER_ONLY)),
        ),
        Code.POLICY_VIOLATION,
    ),
]


@pytest.mark.parametrize(("breaks", "code"), BREAKERS, ids=lambda x: getattr(x, "name", None))
def test_signature_is_not_verified_for_what_is_broken_before(
    header: MsgHeader,
    context: ValidationContext,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[MsgHeader, ValidationContext], tuple[MsgHeader, ValidationContext]],
    code: Code,
) -> None:
    """Each cheap rule has a stable code and answers before any signature is verified (11-38)."""
    calls: list[int] = []
    real = semantics.verify_header
    monkeypatch.setattr(semantics, "verify_header", lambda h: calls.append(1) or real(h))
    broken_header, broken_context = breaks(header, context)

    assert validate(broken_header, broken_context).code is code
    assert not calls
    assert validate(header, context).accepted
    assert len(calls) == 1


def test_structure_comes_before_everything(
    header: MsgHeader, context: ValidationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header that breaks the structure never reaches the signature (11-38)."""
    calls: list[int] = []
    monkeypatch.setattr(semantics, "verify_header", lambda _: calls.append(1) or True)
    data = bytearray(header.encode())
    data[1] |= 0x80

    assert whole(bytes(data), context)[1] is Code.RESERVED_FLAGS
    assert not calls


def test_every_row_has_a_code_and_a_source() -> None:
    """Rows of all tables say why in words, and name the section they come from (11-38)."""
    for rules in (LIVE_RULES, SYNC_RULES, VALIDATOR_RULES, PROVEN_RULES):
        for rule in rules:
            assert rule.code is not Code.OK
            assert rule.kind is not VerdictKind.ACCEPT
            assert rule.section
            assert rule.reason


def whole(
    data: bytes, context: ValidationContext, rules: tuple[semantics.ContextRule, ...] | None = None
) -> tuple[VerdictKind, Code]:
    """Return the verdict on bytes: structure first, then the ordered view of a namespace."""
    verdict = validate_structure(data)
    if verdict.accepted:
        verdict = validate(MsgHeader.decode(data), context, rules or VALIDATOR_RULES)
    return verdict.kind, verdict.code


class TestPlan:
    """The six validation tests that LP-6411 lists, one to one (11-47)."""

    def test_1_valid_header(self, header: MsgHeader, context: ValidationContext) -> None:
        """All fields correct: accepted (11-47)."""
        assert whole(header.encode(), context) == OK

    def test_2_wrong_version(self, header: MsgHeader, context: ValidationContext) -> None:
        """Version 2: rejected (11-47, 11-07)."""
        data = b"\x02" + header.encode()[1:]
        assert whole(data, context) == (REJECT, Code.UNSUPPORTED_VERSION)

    def test_3_reserved_flags(self, header: MsgHeader, context: ValidationContext) -> None:
        """Flag bit 7 set: rejected (11-47, 11-08)."""
        data = bytearray(header.encode())
        data[1] |= 0x80
        assert whole(bytes(data), context) == (REJECT, Code.RESERVED_FLAGS)

    def test_4_sequence_gap(
        self, header: MsgHeader, context: ValidationContext, key: SigningKey
    ) -> None:
        """A sequence that jumps: rejected (11-47, 11-14)."""
        jumped = key.sign_header(replace(header, seq=header.seq + 1))
        assert whole(jumped.encode(), context) == (REJECT, Code.SEQUENCE_GAP)

    def test_5_timestamp_regression(
        self, header: MsgHeader, context: ValidationContext, key: SigningKey
    ) -> None:
        """A timestamp that decreases: rejected (11-47, 11-16)."""
        earlier = key.sign_header(replace(header, timestamp=NOW - 1))
        after = replace(context, predecessor_ms=NOW)
        assert whole(earlier.encode(), after) == (REJECT, Code.TIMESTAMP_INVALID)

    def test_6_invalid_signature(self, header: MsgHeader, context: ValidationContext) -> None:
        """The signature of another key: rejected (11-47, 11-28)."""
        stranger = SigningKey.generate()
        forged = replace(header, signature=stranger.sign(header.header_hash))
        assert whole(forged.encode(), context) == (REJECT, Code.INVALID_SIGNATURE)


def test_a_policy_may_want_each_message_prepaid(
    context: ValidationContext, header: MsgHeader, key: SigningKey
) -> None:
    """By a quota of an issuer that it names; kind 0 and other issuers' are ignored (11-33, S7)."""
    issuer, other = (SigningKey.from_seed(SignatureScheme.ED25519, b"%d" % n * 32) for n in (1, 2))
    policy = NamespacePolicy(
        owner=Identity(IdentityType.RAW_KEY, key.public_field),
        custom=encode_custom({"prepaidIssuers": ["0x" + issuer.public_field.hex(), "zz", 7]}),
    )
    kinds = PrepaidVerifier("devnet", [issuer.public_field, other.public_field])
    context = replace(
        context,
        policy_hashes=frozenset({policy.policy_hash}),
        policies={policy.policy_hash: policy},
        fees=FeeVerifiers("devnet", {FeeKind.PREPAID: kinds}),
    )

    def paid(by: SigningKey | None) -> MsgHeader:
        signed = key.sign_header(replace(header, policy_hash=policy.policy_hash))
        if by is None:
            return signed
        quota = Prepaid(
            owner=Identity(IdentityType.RAW_KEY, key.public_field), namespace_id=PARENT,
            messages=1, bytes_total=10**6, expires_at=NOW, nonce=bytes(16), issuer=by.public_field,
        ).issued_by(by, "devnet")  # fmt: skip
        return replace(signed, fee_proof=FeeProof.signed(quota, signed, key, "devnet").encode())

    assert check_context(paid(issuer), context).accepted
    for wrong, words in ((None, "kind 0"), (other, other.public_field.hex())):
        verdict = check_context(paid(wrong), context)
        assert (verdict.kind, verdict.code) == (VerdictKind.IGNORE, Code.FEE_TOO_LOW)
        assert "one of 1 issuers" in verdict.reason
        assert words in verdict.reason
        assert not check_context(paid(wrong), context, SYNC_RULES).accepted
    nobody = replace(policy, custom=encode_custom({"prepaidIssuers": "anybody"}))
    assert nobody.prepaid_issuers == frozenset()
    assert replace(policy, custom=b"").prepaid_issuers is None
