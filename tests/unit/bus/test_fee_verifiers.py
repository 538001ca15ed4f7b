"""Who checks which fee proofs, and what is counted."""

from dataclasses import replace

import pytest

from luxrelay.bus import (
    Code,
    FeeKind,
    FeeProof,
    FeeVerifiers,
    Identity,
    IdentityType,
    MsgHeader,
    NamespaceId,
    QuotaLedger,
    SignatureScheme,
    SigningKey,
    VerdictKind,
)
from luxrelay.bus.authorization import key_address
from luxrelay.bus.fee import FeeBody, OnChain, Prepaid, Stake, StateChannel, stake_leaf
from luxrelay.bus.fee_verifiers import (
    ChannelTerms,
    OnChainVerifier,
    PrepaidVerifier,
    StakeVerifier,
    StateChannelVerifier,
    stake_allowance,
)

NETWORK = "devnet"
PARENT = NamespaceId(b"\x22" * 20)
ISSUER = SigningKey.from_seed(SignatureScheme.ED25519, b"\x0a" * 32)
PAYER = SigningKey.from_seed(SignatureScheme.ED25519, b"\x0b" * 32)
ADDRESS = key_address(PAYER.public_field) or b""
NOW = 1_704_067_200_000


def quota(**changes: object) -> Prepaid:
    """Return an issued quota of three messages."""
    fields: dict[str, object] = {
        "owner": Identity(IdentityType.WALLET, ADDRESS),
        "namespace_id": NamespaceId(bytes(20)),
        "messages": 3,
        "bytes_total": 1000,
        "expires_at": NOW + 1000,
        "nonce": b"\x01" * 16,
        "issuer": ISSUER.public_field,
        **changes,
    }
    return Prepaid(**fields).issued_by(ISSUER, NETWORK)  # type: ignore[arg-type]


def paid(header: MsgHeader, body: FeeBody, payer: SigningKey = PAYER) -> MsgHeader:
    """Return the header with a proof of ``payer``."""
    return replace(header, fee_proof=FeeProof.signed(body, header, payer, NETWORK).encode())


@pytest.fixture
def prepaid() -> FeeVerifiers:
    """A node that honours one issuer's quotas."""
    verifier = PrepaidVerifier(NETWORK, [ISSUER.public_field])
    return FeeVerifiers(NETWORK, {FeeKind.PREPAID: verifier}, book=QuotaLedger())


def judged(fees: FeeVerifiers, header: MsgHeader) -> tuple[VerdictKind, Code]:
    """Return what both steps say."""
    verdict = fees.form(header, PARENT)
    if verdict.accepted:
        verdict = fees.prove(header)
    return verdict.kind, verdict.code


OK = (VerdictKind.ACCEPT, Code.OK)
UNCHECKED = (VerdictKind.IGNORE, Code.FEE_TOO_LOW)
INVALID = (VerdictKind.REJECT, Code.FEE_TOO_LOW)


def test_default_takes_kind_0_and_ignores_the_rest(signed: MsgHeader) -> None:
    """Without verifiers no fee is free, kinds 1 to 4 and unknown ones are ignored (11-33)."""
    fees = FeeVerifiers(NETWORK)

    assert judged(fees, signed) == OK
    for kind in (1, 2, 3, 4, 5, 255):
        assert judged(fees, replace(signed, fee_proof=bytes([kind]) + b"x")) == UNCHECKED
    assert judged(FeeVerifiers(NETWORK, free_tier=False), signed) == UNCHECKED


def test_prepaid_quota_pays(signed: MsgHeader, prepaid: FeeVerifiers) -> None:
    """A quota of a known issuer pays anywhere, in its namespace, and in a lane of it (S6)."""
    assert judged(prepaid, paid(signed, quota())) == OK
    here = quota(namespace_id=signed.namespace_id)
    assert judged(prepaid, paid(signed, here)) == OK
    assert judged(prepaid, paid(signed, quota(namespace_id=PARENT))) == OK
    key_owner = quota(owner=Identity(IdentityType.RAW_KEY, PAYER.public_field))
    assert judged(prepaid, paid(signed, key_owner)) == OK


@pytest.mark.parametrize(
    "body",
    [
        quota(namespace_id=NamespaceId(b"\x55" * 20)),
        quota(expires_at=NOW - 1),
        quota(expires_at=NOW // 1000 - 1, version=1),
        quota(owner=Identity(IdentityType.WALLET, b"\x01" * 20)),
        replace(quota(), issuer_signature=bytes(64)),
        replace(quota(), messages=4),
    ],
)
def test_reject_quota(signed: MsgHeader, prepaid: FeeVerifiers, body: Prepaid) -> None:
    """Another place, a past end, another owner or a forged issue is wrong for everybody."""
    assert judged(prepaid, paid(signed, body)) == INVALID


def test_reject_quota_smaller_than_the_blob(
    unsigned: MsgHeader, key: SigningKey, prepaid: FeeVerifiers
) -> None:
    """A blob larger than the whole quota can never be paid by it."""
    large = key.sign_header(replace(unsigned, blob_len=1001, blob_commitment=b"\x01" * 32))
    assert judged(prepaid, paid(large, quota())) == INVALID


def test_quota_to_its_last_byte_and_millisecond(
    unsigned: MsgHeader, key: SigningKey, prepaid: FeeVerifiers
) -> None:
    """The end is inclusive, and a quota may pay one blob of its whole size."""
    whole = key.sign_header(replace(unsigned, blob_len=1000, blob_commitment=b"\x01" * 32))
    bill = paid(whole, quota(expires_at=whole.timestamp))

    assert judged(prepaid, bill) == OK
    assert prepaid.reserve(bill, NOW).accepted


def test_ignore_quota_whose_owner_cannot_be_resolved(
    signed: MsgHeader, prepaid: FeeVerifiers
) -> None:
    """An owner by name may be the payer; a node that resolves no names blames nobody."""
    named = quota(owner=Identity(IdentityType.ENS, b"alice.eth"))
    assert judged(prepaid, paid(signed, named)) == UNCHECKED


def test_ignore_quota_of_an_unknown_issuer(signed: MsgHeader) -> None:
    """Another node may know the issuer, so the peer is not to blame."""
    fees = FeeVerifiers(NETWORK, {FeeKind.PREPAID: PrepaidVerifier(NETWORK, [])})
    assert judged(fees, paid(signed, quota())) == UNCHECKED


def test_reject_moved_and_malformed_proofs(
    signed: MsgHeader, key: SigningKey, prepaid: FeeVerifiers
) -> None:
    """A proof of another header, a cut one, and one of another payer are rejected (11-34)."""
    good = paid(signed, quota())
    moved = replace(key.sign_header(replace(signed, seq=2)), fee_proof=good.fee_proof)

    assert judged(prepaid, moved) == INVALID
    assert judged(prepaid, replace(good, fee_proof=good.fee_proof[:-1])) == INVALID
    assert judged(prepaid, replace(good, fee_proof=b"\x01")) == INVALID
    assert judged(prepaid, paid(signed, quota(), ISSUER)) == INVALID
    assert judged(prepaid, replace(good, fee_proof=b"\x01\x03" + good.fee_proof[2:])) == UNCHECKED


def test_quota_is_not_overdrawn(signed: MsgHeader, key: SigningKey, prepaid: FeeVerifiers) -> None:
    """Three messages fit a quota of three; what was given back can be spent again (S7)."""
    headers = [paid(key.sign_header(replace(signed, seq=n)), quota()) for n in range(1, 6)]

    assert all(prepaid.reserve(header, NOW).accepted for header in headers[:3])
    assert prepaid.reserve(headers[0], NOW).code is Code.DUPLICATE
    assert prepaid.reserve(headers[3], NOW).code is Code.FEE_TOO_LOW
    assert prepaid.settle(headers[0], stored=True)
    assert prepaid.settle(headers[1], stored=False)
    assert prepaid.reserve(headers[3], NOW).accepted
    assert prepaid.reserve(headers[4], NOW).code is Code.FEE_TOO_LOW


def test_free_messages_are_not_charged(signed: MsgHeader, prepaid: FeeVerifiers) -> None:
    """Kind 0 takes nothing from any account, nor does a node without a ledger."""
    assert prepaid.reserve(signed, NOW).accepted
    assert prepaid.settle(signed, stored=True)
    bookless = FeeVerifiers(NETWORK, {FeeKind.PREPAID: PrepaidVerifier(NETWORK, [])})
    assert bookless.reserve(paid(signed, quota()), NOW).accepted
    assert bookless.settle(paid(signed, quota()), stored=True)


def test_late_commit_is_reported(signed: MsgHeader, key: SigningKey, prepaid: FeeVerifiers) -> None:
    """A message stored after its reservation ran out is known to be unpaid."""
    late = paid(signed, quota())
    other = paid(key.sign_header(replace(signed, seq=2)), quota())
    prepaid.reserve(late, NOW)
    prepaid.reserve(other, NOW + 60_000)

    assert not prepaid.settle(late, stored=True)
    assert prepaid.settle(other, stored=True)


class Channels:
    """One channel with a deposit."""

    def __init__(self, terms: ChannelTerms | None) -> None:
        self.answer = terms

    def terms(self, channel_id: bytes, payer: bytes) -> ChannelTerms | None:
        """Return the terms."""
        assert channel_id == b"\x0e" * 32
        assert payer
        return self.answer


def voucher(cumulative: int) -> StateChannel:
    """Return a voucher signed by the payer."""
    return StateChannel(channel_id=b"\x0e" * 32, cumulative=cumulative).signed_by(PAYER, NETWORK)


def test_vouchers_pay_what_they_promise(signed: MsgHeader, key: SigningKey) -> None:
    """Vouchers may come in any order; what they pay never exceeds the highest one."""
    channels = Channels(ChannelTerms(deposit=1000, closes_ms=NOW + 1000))
    verifier = StateChannelVerifier(NETWORK, channels, price=10)
    fees = FeeVerifiers(NETWORK, {FeeKind.STATE_CHANNEL: verifier}, book=QuotaLedger())
    headers = [key.sign_header(replace(signed, seq=n)) for n in range(1, 6)]
    amounts = [20, 10, 20, 15, 30]

    outcomes = []
    for header, amount in zip(headers, amounts, strict=True):
        bill = paid(header, voucher(amount))
        assert judged(fees, bill) == OK
        outcomes.append(fees.reserve(bill, NOW).accepted)
        if outcomes[-1]:
            assert fees.settle(bill, stored=True)

    assert outcomes == [True, True, False, False, True]


def test_channel_never_meets_a_quota_in_the_ledger(signed: MsgHeader, key: SigningKey) -> None:
    """A channel whose id is a quota's hash has an account of its own (S7)."""
    bought = quota(messages=1)
    named = StateChannel(channel_id=bought.quota_hash(NETWORK), cumulative=1000)

    class AnyChannel:
        def terms(self, channel_id: bytes, payer: bytes) -> ChannelTerms:
            assert (channel_id, payer) == (named.channel_id, PAYER.public_field)
            return ChannelTerms(deposit=1000, closes_ms=NOW + 1000)

    fees = FeeVerifiers(
        NETWORK,
        {
            FeeKind.PREPAID: PrepaidVerifier(NETWORK, [ISSUER.public_field]),
            FeeKind.STATE_CHANNEL: StateChannelVerifier(NETWORK, AnyChannel(), price=1),
        },
        book=QuotaLedger(),
    )
    headers = [key.sign_header(replace(signed, seq=n)) for n in range(1, 4)]
    bodies = [bought, named.signed_by(PAYER, NETWORK), bought]

    outcomes = [
        fees.reserve(paid(header, body), NOW).accepted
        for header, body in zip(headers, bodies, strict=True)
    ]

    assert outcomes == [True, True, False]


def test_vouchers_nobody_covers(signed: MsgHeader) -> None:
    """Below the price, above the deposit, unknown, or with a forged signature."""
    terms = ChannelTerms(deposit=100, closes_ms=NOW)
    for body, answer, expected in (
        (voucher(9), terms, UNCHECKED),
        (voucher(100), terms, OK),
        (voucher(101), terms, UNCHECKED),
        (voucher(50), None, UNCHECKED),
        (replace(voucher(50), cumulative=60), terms, INVALID),
    ):
        verifier = StateChannelVerifier(NETWORK, Channels(answer), price=10)
        fees = FeeVerifiers(NETWORK, {FeeKind.STATE_CHANNEL: verifier}, book=QuotaLedger())
        assert judged(fees, paid(signed, body)) == expected
        if answer is None:
            assert fees.reserve(paid(signed, body), NOW).accepted


@pytest.mark.parametrize(("answer", "expected"), [(True, OK), (False, INVALID), (None, UNCHECKED)])
def test_payments_are_looked_up(
    signed: MsgHeader, answer: bool | None, expected: tuple[VerdictKind, Code]
) -> None:
    """A payment on a chain is what the check for that chain says."""
    payment = OnChain(chain_id=1, contract=bytes(20), tx_hash=bytes(32), log_index=0, amount=5)

    class Chain:
        def paid(self, found: OnChain, payer: bytes, header: MsgHeader) -> bool | None:
            assert (found, payer, header.seq) == (payment, PAYER.public_field, 1)
            return answer

    fees = FeeVerifiers(NETWORK, {FeeKind.ON_CHAIN: OnChainVerifier(Chain())}, book=QuotaLedger())
    bill = paid(signed, payment)
    assert judged(fees, bill) == expected
    assert fees.reserve(bill, NOW).accepted


@pytest.mark.parametrize(
    ("change", "answer", "expected"),
    [
        ({}, True, OK),
        ({}, False, INVALID),
        ({}, None, UNCHECKED),
        ({"amount": 49}, True, INVALID),
        ({"valid_until": NOW - 1}, True, INVALID),
        ({"root": bytes(32)}, True, INVALID),
    ],
)
def test_stakes(
    signed: MsgHeader,
    change: dict[str, object],
    answer: bool | None,
    expected: tuple[VerdictKind, Code],
) -> None:
    """A stake holds until its end, under a root that the network knows."""
    root = stake_leaf(ADDRESS, 50, NOW)
    stake = Stake(amount=50, valid_until=NOW, root=root, index=0, path=())

    class Roots:
        def known(self, found: bytes) -> bool | None:
            assert found == root
            return answer

    fees = FeeVerifiers(NETWORK, {FeeKind.STAKE: StakeVerifier(Roots())}, book=QuotaLedger())
    bill = paid(signed, replace(stake, **change))  # type: ignore[arg-type]
    assert judged(fees, bill) == expected
    assert fees.reserve(bill, NOW).accepted
    dear = FeeVerifiers(NETWORK, {FeeKind.STAKE: StakeVerifier(Roots(), amount_min=51)})
    if expected == OK:
        assert judged(dear, bill) == UNCHECKED


def test_stake_earns_a_rate() -> None:
    """One LUX earns a message and a kibibyte a second, up to a cap (LP-6422)."""
    assert stake_allowance(5, 100) == (5, 5120)
    assert stake_allowance(500, 100) == (100, 102_400)
