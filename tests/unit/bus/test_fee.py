"""Fee proofs: layouts and the binding to one header."""

from dataclasses import replace

import pytest

from luxrelay.bus import (
    FeeKind,
    FeeProof,
    Identity,
    IdentityType,
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
)
from luxrelay.bus.authorization import key_address
from luxrelay.bus.constants import MAX_FEE_PROOF_BYTES
from luxrelay.bus.fee import (
    FEE_SIGNATURE_BYTES,
    STAKE_DEPTH_MAX,
    FeeBody,
    OnChain,
    Prepaid,
    Stake,
    StateChannel,
    known_body,
    stake_leaf,
    stake_node,
    verify_digest,
)
from luxrelay.errors import BusArgumentError, FeeError

ISSUER = SigningKey.from_seed(SignatureScheme.SECP256K1, b"\x0a" * 32)
PAYER = SigningKey.from_seed(SignatureScheme.ED25519, b"\x0b" * 32)
NETWORK = "devnet"


def payer_address() -> bytes:
    """Return the payer's address."""
    address = key_address(PAYER.public_field)
    assert address is not None
    return address


QUOTA = Prepaid(
    owner=Identity(IdentityType.WALLET, payer_address()),
    namespace_id=NamespaceId(bytes(20)),
    messages=10,
    bytes_total=10_000,
    expires_at=1_704_067_300_000,
    nonce=b"\x01" * 16,
    issuer=ISSUER.public_field,
).issued_by(ISSUER, NETWORK)
PAYMENT = OnChain(
    chain_id=96_369, contract=b"\x0c" * 20, tx_hash=b"\x0d" * 32, log_index=7, amount=10**15
)
VOUCHER = StateChannel(channel_id=b"\x0e" * 32, cumulative=3000).signed_by(PAYER, NETWORK)
STAKE = Stake(amount=500, valid_until=2**41, root=b"\x0f" * 32, index=5, path=(b"\x01" * 32,) * 3)
BODIES: list[FeeBody] = [QUOTA, PAYMENT, VOUCHER, STAKE]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_proof_comes_back(signed: MsgHeader, body: FeeBody) -> None:
    """Every kind decodes to what was encoded and begins with its number (11-33)."""
    proof = FeeProof.signed(body, signed, PAYER, NETWORK)
    data = proof.encode()

    assert FeeProof.decode(data) == proof
    assert data[0] == proof.kind
    assert len(data) <= 820  # what an ML-DSA-87 header with a sidecar leaves (H8)


def test_layout_of_prepaid(signed: MsgHeader) -> None:
    """A prepaid proof is kind, version, length, quota, payer and signature."""
    proof = FeeProof.signed(QUOTA, signed, PAYER, NETWORK)
    body = b"".join(
        (
            b"\x01\x00\x14" + payer_address(),
            bytes(20),
            (10).to_bytes(8, "big"),
            (10_000).to_bytes(8, "big"),
            (1_704_067_300_000).to_bytes(8, "big"),
            b"\x01" * 16,
            b"\x22" + ISSUER.public_field,
            QUOTA.issuer_signature,
        )
    )

    assert proof.encode() == b"".join(
        (
            b"\x01\x02" + len(body).to_bytes(2, "big"),
            body,
            b"\x21" + PAYER.public_field,
            proof.signature,
        )
    )


def test_layouts_of_the_others(signed: MsgHeader) -> None:
    """The other bodies stand on the wire as documented."""
    assert PAYMENT.encode().hex() == (
        "0000000000017871" + "0c" * 20 + "0d" * 32 + "00000007" + f"{10**15:064x}"
    )
    assert VOUCHER.encode() == (
        b"\x0e" * 32 + (3000).to_bytes(32, "big") + VOUCHER.voucher_signature
    )
    assert STAKE.encode().hex() == (
        f"{500:016x}{2**41:016x}" + "0f" * 32 + "00000005" + "03" + "01" * 96
    )
    assert FeeProof.signed(STAKE, signed, PAYER, NETWORK).encode()[:4].hex() == "04010095"


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_proof_is_bound_to_its_header(signed: MsgHeader, key: SigningKey, body: FeeBody) -> None:
    """Moved to another header, sender or network, the payer's signature fails (11-34)."""
    proof = FeeProof.signed(body, signed, PAYER, NETWORK)
    other = SigningKey.generate().sign_header(signed)

    assert proof.bound_to(signed, NETWORK)
    assert proof.bound_to(replace(signed, fee_proof=proof.encode()), NETWORK)
    assert not proof.bound_to(key.sign_header(replace(signed, seq=2)), NETWORK)
    assert other.header_hash == signed.header_hash
    assert not proof.bound_to(other, NETWORK)
    assert not proof.bound_to(signed, "mainnet")
    assert not replace(proof, payer=key.public_field).bound_to(signed, NETWORK)


def test_reject_every_cut(signed: MsgHeader) -> None:
    """Cut anywhere, or longer by a byte, a proof is none (11-33)."""
    for body in BODIES:
        data = FeeProof.signed(body, signed, PAYER, NETWORK).encode()
        for size in range(len(data)):
            with pytest.raises(FeeError):
                FeeProof.decode(data[:size])
        with pytest.raises(FeeError):
            FeeProof.decode(data + b"\x00")
    with pytest.raises(FeeError):
        FeeProof.decode(bytes(MAX_FEE_PROOF_BYTES + 1))


@pytest.mark.parametrize(
    ("kind", "version", "known"),
    [
        (0, 1, False),
        (1, 0, False),
        (1, 1, True),
        (1, 2, True),
        (1, 3, False),
        (2, 1, True),
        (2, 2, False),
        (3, 1, True),
        (3, 2, False),
        (4, 1, True),
        (5, 1, False),
        (255, 1, False),
    ],
)
def test_known_kinds_and_versions(signed: MsgHeader, kind: int, version: int, known: bool) -> None:
    """Kinds 1 to 4 of known versions decode; None and 5 and above are no proof (11-33)."""
    assert known_body(kind, version) is known
    data = FeeProof.signed(QUOTA, signed, PAYER, NETWORK).encode()
    if not known:
        with pytest.raises(FeeError):
            FeeProof.decode(bytes([kind, version]) + data[2:])


def test_quota_hash_names_the_quota() -> None:
    """Any change, another network or another unit is another quota; a signature is not (S7)."""
    name = QUOTA.quota_hash(NETWORK)

    assert replace(QUOTA, issuer_signature=bytes(64)).quota_hash(NETWORK) == name
    others = {
        QUOTA.quota_hash("mainnet"),
        replace(QUOTA, nonce=bytes(16)).quota_hash(NETWORK),
        replace(QUOTA, version=1).quota_hash(NETWORK),
        replace(QUOTA, messages=11).quota_hash(NETWORK),
    }
    assert len(others | {name}) == 5


def test_expiry_counts_in_the_unit_of_its_version() -> None:
    """Version 1 counts seconds, version 2 milliseconds (S7)."""
    assert replace(QUOTA, version=1, expires_at=5).expires_ms == 5000
    assert replace(QUOTA, version=2, expires_at=5).expires_ms == 5


def test_stake_path_leads_to_the_root() -> None:
    """The path holds for the payer's leaf at its place, and for nothing else."""
    leaves = [stake_leaf(bytes([i]) * 20, 10, 99) for i in range(4)]
    left, right = stake_node(leaves[0], leaves[1]), stake_node(leaves[2], leaves[3])
    root = stake_node(left, right)
    stake = Stake(amount=10, valid_until=99, root=root, index=2, path=(leaves[3], left))

    assert stake.leads_to_root(b"\x02" * 20)
    assert not stake.leads_to_root(b"\x03" * 20)
    assert not replace(stake, index=3).leads_to_root(b"\x02" * 20)
    assert not replace(stake, amount=11).leads_to_root(b"\x02" * 20)


@pytest.mark.parametrize(
    ("body", "change"),
    [
        (QUOTA, {"messages": 0}),
        (QUOTA, {"bytes_total": 2**64}),
        (QUOTA, {"expires_at": -1}),
        (QUOTA, {"nonce": b""}),
        (QUOTA, {"issuer": b"\x03" + bytes(1952)}),
        (QUOTA, {"namespace_id": b""}),
        (QUOTA, {"version": 3}),
        (PAYMENT, {"chain_id": 2**64}),
        (PAYMENT, {"contract": b""}),
        (PAYMENT, {"tx_hash": b""}),
        (PAYMENT, {"log_index": 2**32}),
        (PAYMENT, {"amount": 2**256}),
        (VOUCHER, {"channel_id": b""}),
        (VOUCHER, {"cumulative": -1}),
        (STAKE, {"amount": -1}),
        (STAKE, {"valid_until": 2**64}),
        (STAKE, {"root": b""}),
        (STAKE, {"index": 8}),
        (STAKE, {"path": (b"",) * 3}),
        (STAKE, {"path": (bytes(32),) * (STAKE_DEPTH_MAX + 1)}),
    ],
)
def test_reject_argument(body: FeeBody, change: dict[str, object]) -> None:
    """A value without an encoding is the caller's error."""
    with pytest.raises(BusArgumentError):
        replace(body, **change)  # type: ignore[type-var]


def test_reject_stake_deeper_than_the_bound(signed: MsgHeader) -> None:
    """A path longer than ``STAKE_DEPTH_MAX`` is refused before its hashes are read."""
    data = bytearray(FeeProof.signed(STAKE, signed, PAYER, NETWORK).encode())
    data[4 + 8 + 8 + 32 + 4] = STAKE_DEPTH_MAX + 1

    with pytest.raises(FeeError, match="at most 20"):
        FeeProof.decode(bytes(data))


def test_post_quantum_keys_do_not_pay(signed: MsgHeader) -> None:
    """A kibibyte has no room for an ML-DSA signature, and the builder says so early (H8)."""
    with pytest.raises(BusArgumentError):
        FeeProof.signed(PAYMENT, signed, SigningKey.generate(SignatureScheme.ML_DSA_65), NETWORK)
    unsigned = FeeProof(body=PAYMENT, payer=PAYER.public_field, signature=b"")
    with pytest.raises(BusArgumentError):
        unsigned.encode()
    with pytest.raises(BusArgumentError):
        unsigned.bound_to(signed, "")
    assert FeeKind(unsigned.kind) is FeeKind.ON_CHAIN


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [
        (3, 0xFF, "length"),
        (4 + 23 + 20 + 7, 0, "messages"),
        (4 + 23 + 20 + 24 + 16 + 1, 0x03, "key field"),
        (4, 0x09, "IdentityType"),
    ],
)
def test_reject_values_in_bytes(signed: MsgHeader, offset: int, value: int, words: str) -> None:
    """A wrong length, an empty quota, a key that does not fit and an unknown owner are refused."""
    data = bytearray(FeeProof.signed(QUOTA, signed, PAYER, NETWORK).encode())
    data[offset] = value

    with pytest.raises(FeeError, match=words):
        FeeProof.decode(bytes(data))


def test_no_key_verifies_nothing() -> None:
    """Bytes that are no key field verify nothing, without an exception."""
    assert not verify_digest(b"", bytes(32), bytes(FEE_SIGNATURE_BYTES))
    assert not verify_digest(b"\x01short", bytes(32), bytes(FEE_SIGNATURE_BYTES))
