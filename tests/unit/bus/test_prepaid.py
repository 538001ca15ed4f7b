"""The payer's half of prepaid quotas: their file, and who pays messages from them."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import (
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
    lane,
    sha3_commitment,
    verify_header,
)
from luxrelay.bus.authorization import key_address
from luxrelay.bus.bound import sign_header_bound, verify_header_bound
from luxrelay.bus.fee import Prepaid
from luxrelay.bus.fee_verifiers import PrepaidVerifier
from luxrelay.bus.prepaid import TAG_QUOTA_FILE, UNSETTLED_MAX, PrepaidPayer, SignedQuota
from luxrelay.client import LaneSigner, Receipt
from luxrelay.errors import BusArgumentError, FeeError, QuotaError

NETWORK = "devnet"
PARENT = NamespaceId(b"\x22" * 20)
ISSUER = SigningKey.from_seed(SignatureScheme.ED25519, b"\x0a" * 32)
PAYER = SigningKey.from_seed(SignatureScheme.ED25519, b"\x0b" * 32)
SENDER = SigningKey.from_seed(SignatureScheme.ML_DSA_65, b"\x0c" * 32)
NOW = 1_704_067_200_000


def quota(*, network: str = NETWORK, **changes: object) -> SignedQuota:
    """Return an issued quota of three messages and 1,000 bytes."""
    fields: dict[str, object] = {
        "owner": Identity(IdentityType.RAW_KEY, PAYER.public_field),
        "namespace_id": PARENT,
        "messages": 3,
        "bytes_total": 1000,
        "expires_at": NOW + 1000,
        "nonce": b"\x01" * 16,
        "issuer": ISSUER.public_field,
        **changes,
    }
    body = Prepaid(**fields).issued_by(ISSUER, network)  # type: ignore[arg-type]
    return SignedQuota(network=network, quota=body)


def unpaid(key: SigningKey = PAYER, seq: int = 1, blob: bytes = b"x") -> MsgHeader:
    """Return a header of the lane of a key, not signed."""
    return MsgHeader(
        namespace_id=lane(PARENT, key.public_field),
        seq=seq,
        timestamp=NOW,
        blob_commitment=sha3_commitment(blob),
        blob_len=len(blob),
        policy_hash=b"\x01" * 32,
    )


def verifiers() -> FeeVerifiers:
    """Return what a node that honours the issuer asks."""
    kinds = {FeeKind.PREPAID: PrepaidVerifier(NETWORK, [ISSUER.public_field])}
    return FeeVerifiers(NETWORK, kinds, book=QuotaLedger(), free_tier=False)


def test_a_file_has_one_encoding() -> None:
    """It comes back whole, and every cut, added byte, other tag or version is refused."""
    signed = quota()
    data = signed.encode()

    assert SignedQuota.decode(data) == signed
    assert signed.verify()
    assert not replace(signed, network="mainnet").verify()
    for wrong in (*(data[:n] for n in range(len(data))), data + b"\0", b"X" + data[1:]):
        with pytest.raises(FeeError):
            SignedQuota.decode(wrong)
    at = data.index(NETWORK.encode()) + len(NETWORK)
    for version in (0, 3):
        with pytest.raises(FeeError, match=f"version {version}"):
            SignedQuota.decode(data[:at] + bytes([version]) + data[at + 1 :])
    with pytest.raises(FeeError, match="1024"):
        SignedQuota.decode(bytes(1025))


@pytest.mark.parametrize("key", [PAYER, SENDER])
@pytest.mark.parametrize("bound", ["", "devnet"])
def test_a_node_takes_what_was_paid(key: SigningKey, bound: str) -> None:
    """In either way of signing, also when the sender's key cannot pay and another one does."""
    payer, fees = PrepaidPayer(PAYER, [quota()]), verifiers()

    paid = payer.pay(unpaid(key), key.public_field)
    signed = sign_header_bound(key, paid, bound) if bound else key.sign_header(paid)

    assert verify_header_bound(signed, bound) if bound else verify_header(signed)
    assert fees.form(signed, PARENT).accepted
    assert fees.prove(signed).accepted
    assert fees.reserve(signed, NOW).accepted


def test_a_signed_header_stays_valid_with_its_proof() -> None:
    """LP-6411's own signature does not cover the fee."""
    signed = PAYER.sign_header(unpaid())
    paid = PrepaidPayer(PAYER, [quota()]).pay(signed, PAYER.public_field)

    assert verify_header(paid)
    assert paid.content_id == signed.content_id
    assert FeeProof.decode(paid.fee_proof).bound_to(paid, NETWORK)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"namespace_id": NamespaceId(b"\x55" * 20)}, f"it is for namespace {'55' * 20}"),
        ({"expires_at": NOW - 7}, f"it ended at {NOW - 7} (Unix ms), 7 ms before the message"),
        ({"bytes_total": 0}, "3 of 3 messages and 0 of 0 bytes are left, the message takes 1 and"),
    ],
)
def test_what_no_quota_pays_is_refused_with_numbers(changes: dict[str, object], words: str) -> None:
    """Another namespace, a past end, too few bytes; nothing is counted."""
    payer = PrepaidPayer(PAYER, [quota(**changes)])

    with pytest.raises(QuotaError) as refused:
        payer.pay(unpaid(), PAYER.public_field)

    assert words in str(refused.value)
    assert payer.left(payer.quotas[0].account)[0] == 3


def test_the_next_quota_pays_when_one_is_spent() -> None:
    """In the order given; when all are, the text has each one's numbers."""
    second = quota(nonce=b"\x02" * 16, messages=1)
    payer = PrepaidPayer(PAYER, [quota(), second])

    paid = [payer.pay(unpaid(seq=n), PAYER.public_field) for n in range(1, 5)]

    bodies = [FeeProof.decode(each.fee_proof).body for each in paid]
    assert [body == second.quota for body in bodies] == [False, False, False, True]
    with pytest.raises(QuotaError) as refused:
        payer.pay(unpaid(seq=5), PAYER.public_field)
    assert "0 of 3 messages and 997 of 1,000 bytes are left" in str(refused.value)
    assert "0 of 1 messages and 999 of 1,000 bytes are left" in str(refused.value)


def test_a_payer_pays_from_its_own_quotas_only() -> None:
    """Somebody else's quota, a forged one, several networks and none at all are refused."""
    with pytest.raises(QuotaError, match=PAYER.public_field.hex()):
        PrepaidPayer(ISSUER, [quota()])
    forged = quota()
    forged = replace(forged, quota=replace(forged.quota, messages=4))
    with pytest.raises(QuotaError, match="issuer's signature"):
        PrepaidPayer(PAYER, [forged])
    for quotas in ([], [quota(), quota(network="other")]):
        with pytest.raises(BusArgumentError, match="one network"):
            PrepaidPayer(PAYER, quotas)
    address = key_address(PAYER.public_field)
    assert address is not None
    PrepaidPayer(PAYER, [quota(owner=Identity(IdentityType.WALLET, address))])


def receipt(message_digest: bytes, *, stored: bool) -> Receipt:
    """Return a node's answer."""
    return Receipt(
        verdict="accept" if stored else "ignore",
        code=0 if stored else 1208,
        reason="",
        stored=stored,
        peers_sent=0,
        expected_seq=0 if stored else 9,
        digest=message_digest,
    )


def test_a_signer_burns_no_sequence_for_a_spent_quota() -> None:
    """It says so before it signs, and what the node did not store is not counted."""
    payer = PrepaidPayer(PAYER, [quota(messages=2)])
    signer = LaneSigner(PAYER, PARENT, fee=payer)
    account = payer.quotas[0].account

    one = MsgHeader.decode(signer.sign(b"one", NOW).header)
    two = MsgHeader.decode(signer.sign(b"two", NOW).header)
    with pytest.raises(QuotaError, match="0 of 2 messages"):
        signer.sign(b"three", NOW)
    assert signer.next_seq == 3
    assert not signer.lost(receipt(one.digest, stored=True))
    assert signer.lost(receipt(two.digest, stored=False))
    assert payer.left(account) == (1, 997)
    assert MsgHeader.decode(signer.sign(b"two", NOW).header).seq == 9
    payer.follow(account, 0, 0)
    assert payer.left(account) == (2, 1000)


def test_a_payer_remembers_so_many_messages() -> None:
    """Of the ones sent longest ago it does not learn that they were not stored."""
    payer = PrepaidPayer(PAYER, [quota(messages=UNSETTLED_MAX + 1, bytes_total=10**6)])
    account = payer.quotas[0].account
    first = replace(payer.pay(unpaid(), PAYER.public_field), signature=bytes(64))
    payer.sent(first)
    for n in range(UNSETTLED_MAX):
        payer.sent(replace(first, seq=n + 2))

    payer.settle(first.digest, stored=False)
    assert payer.left(account)[0] == UNSETTLED_MAX
    payer.settle(replace(first, seq=2).digest, stored=False)
    assert payer.left(account)[0] == UNSETTLED_MAX + 1


@given(st.binary(max_size=300), st.data())
def test_any_bytes_are_a_quota_or_an_error(data: bytes, drawn: st.DataObject) -> None:
    """Also those of a quota with one byte changed, which is another quota or none."""
    for each in (data, TAG_QUOTA_FILE + data):
        with contextlib.suppress(FeeError):
            assert SignedQuota.decode(each).encode() == each
    good = quota().encode()
    at = drawn.draw(st.integers(0, len(good) - 1))
    changed = good[:at] + bytes([good[at] ^ drawn.draw(st.integers(1, 255))]) + good[at + 1 :]
    with contextlib.suppress(FeeError):
        found = SignedQuota.decode(changed)
        assert found.encode() == changed
        assert not found.verify()
