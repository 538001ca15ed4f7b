"""Keys of every scheme: what they sign, what they refuse."""

import json
from dataclasses import replace

import pytest
from coincurve import PrivateKey

from luxrelay.bus import (
    MsgHeader,
    SignatureScheme,
    SigningKey,
    VerifyKey,
    sender_address,
    verify_header,
)
from luxrelay.bus.keys import ALGORITHMS, SECP256K1_ORDER, SIGNING_SCHEMES
from luxrelay.bus.schemes import SCHEMES
from luxrelay.errors import BusArgumentError, KeyFormatError

EVERY = list(SignatureScheme)
SMALL_ORDER_KEYS = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
]
P_FIELD = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
KEYS = {
    scheme: SigningKey.from_seed(scheme, bytes(range(1, 1 + ALGORITHMS[scheme].seed_bytes)))
    for scheme in EVERY
}


def by_name(scheme: object) -> str:
    """Name a parametrised scheme."""
    return scheme.name.lower() if isinstance(scheme, SignatureScheme) else str(scheme)


every_scheme = pytest.mark.parametrize("scheme", EVERY, ids=by_name)


@every_scheme
def test_sign_header_verifies(unsigned: MsgHeader, scheme: SignatureScheme) -> None:
    """A header signed with any scheme verifies, alone and after decoding (11-28)."""
    signed = KEYS[scheme].sign_header(unsigned)
    decoded = MsgHeader.decode(signed.encode())

    assert verify_header(signed)
    assert verify_header(decoded)
    assert (len(signed.sender_pub_key), len(signed.signature)) == (
        SCHEMES[scheme].key_field_bytes,
        SCHEMES[scheme].signature_bytes,
    )


@every_scheme
def test_every_scheme_signs(scheme: SignatureScheme) -> None:
    """No scheme of the table is without its algorithm (11-28)."""
    assert scheme in SIGNING_SCHEMES
    assert VerifyKey.from_field(KEYS[scheme].public_field).scheme is scheme


@every_scheme
def test_reject_flipped_bit_of_signature(scheme: SignatureScheme) -> None:
    """One flipped bit anywhere in the signature breaks it (11-28)."""
    message = bytes(range(32))
    signature = KEYS[scheme].sign(message)
    key = VerifyKey.from_field(KEYS[scheme].public_field)
    step = max(1, len(signature) // 64)

    for position in {*range(0, len(signature), step), len(signature) - 1}:
        flipped = bytearray(signature)
        flipped[position] ^= 1 << position % 8
        assert not key.verify(message, bytes(flipped)), position


@every_scheme
def test_reject_flipped_bit_of_hash(scheme: SignatureScheme) -> None:
    """One flipped bit of the hash breaks the signature (11-28)."""
    message = bytes(range(32))
    signature = KEYS[scheme].sign(message)
    key = VerifyKey.from_field(KEYS[scheme].public_field)

    for position in range(0, 32, 5):
        changed = bytearray(message)
        changed[position] ^= 1 << position % 8
        assert not key.verify(bytes(changed), signature)


@every_scheme
def test_reject_flipped_bit_of_key(unsigned: MsgHeader, scheme: SignatureScheme) -> None:
    """One flipped bit of the key is False or no key at all, never another exception (11-28)."""
    signed = KEYS[scheme].sign_header(unsigned)
    size = len(signed.sender_pub_key)

    for position in range(1, size, max(1, size // 40)):
        changed = bytearray(signed.sender_pub_key)
        changed[position] ^= 1 << position % 8
        assert not verify_header(replace(signed, sender_pub_key=bytes(changed)))


@every_scheme
def test_reject_other_key(unsigned: MsgHeader, scheme: SignatureScheme) -> None:
    """A signature belongs to one key (11-28)."""
    signed = KEYS[scheme].sign_header(unsigned)
    other = SigningKey.generate(scheme).public_field

    assert not verify_header(replace(signed, sender_pub_key=other))


@every_scheme
@pytest.mark.parametrize("change", [-1, 1])
def test_reject_key_field_of_other_length(scheme: SignatureScheme, change: int) -> None:
    """A key field one byte longer or shorter is a KeyFormatError (11-25)."""
    field = KEYS[scheme].public_field

    with pytest.raises(KeyFormatError, match=f"takes {len(field)} bytes"):
        VerifyKey.from_field((field + b"\0")[: len(field) + change])


@every_scheme
def test_reject_signature_of_other_length(scheme: SignatureScheme) -> None:
    """A signature of another length is False, not an exception (11-28)."""
    signature = KEYS[scheme].sign(bytes(32))
    key = VerifyKey.from_field(KEYS[scheme].public_field)

    for other in (b"", signature[:-1], signature + b"\0", signature * 2):
        assert not key.verify(bytes(32), other)


@pytest.mark.parametrize("field", [b"", b"\x00" + bytes(32), b"\x06" + bytes(32), b"\xff"])
def test_reject_unknown_scheme(unsigned: MsgHeader, field: bytes) -> None:
    """A scheme byte that is none of 1 to 5 is a KeyFormatError, and its header False (11-25)."""
    with pytest.raises(KeyFormatError, match="none of 1 to 5"):
        VerifyKey.from_field(field)
    assert not verify_header(replace(unsigned, sender_pub_key=field))


def test_schemes_do_not_verify_each_other(unsigned: MsgHeader) -> None:
    """The first half of a hybrid header is no Ed25519 header: the flags and lengths differ."""
    hybrid = KEYS[SignatureScheme.HYBRID_ED25519_ML_DSA_65].sign_header(unsigned)
    stripped = replace(
        hybrid,
        flags=0,
        sender_pub_key=b"\x01" + hybrid.sender_pub_key[1:33],
        signature=hybrid.signature[:64],
    )

    assert not verify_header(stripped)


@pytest.mark.parametrize("prefix", [0, 1, 4, 5, 6, 7, 255])
def test_reject_secp256k1_prefix(prefix: int) -> None:
    """A compressed key begins with 02 or 03 (11-26)."""
    field = KEYS[SignatureScheme.SECP256K1].public_field

    with pytest.raises(KeyFormatError, match="02 or 03"):
        VerifyKey.from_field(bytes([2, prefix]) + field[2:])


@pytest.mark.parametrize("x", [0, 5, 2**256 - 2**32 - 977, 2**256 - 1])
def test_reject_point_off_the_curve(unsigned: MsgHeader, x: int) -> None:
    """An x without a y, or one that is not reduced, is no key and its header is False (11-26)."""
    field = b"\x02\x02" + x.to_bytes(32, "big")

    with pytest.raises(KeyFormatError, match="no point"):
        VerifyKey.from_field(field)
    assert not verify_header(replace(unsigned, sender_pub_key=field, signature=bytes(64)))
    with pytest.raises(BusArgumentError, match="no point"):
        sender_address(field)


def test_reject_secp256k1_key_of_65_bytes() -> None:
    """The uncompressed form that the library would take is refused by its length (11-26)."""
    point = PrivateKey(b"\x01" * 32).public_key.format(compressed=False)

    with pytest.raises(KeyFormatError):
        VerifyKey.from_field(b"\x02" + point)


def test_reject_high_s() -> None:
    """The twin (r, n - s) of a signature is refused; ours is always the low one (11-31, H25)."""
    pair = KEYS[SignatureScheme.SECP256K1]
    key = VerifyKey.from_field(pair.public_field)

    for number in range(20):
        digest = bytes([number]) * 32
        signature = pair.sign(digest)
        s = int.from_bytes(signature[32:], "big")
        twin = signature[:32] + (SECP256K1_ORDER - s).to_bytes(32, "big")

        assert s <= SECP256K1_ORDER // 2
        assert key.verify(digest, signature)
        assert not key.verify(digest, twin)


@pytest.mark.parametrize("value", [0, SECP256K1_ORDER, 2**256 - 1])
@pytest.mark.parametrize("half", ["r", "s"])
def test_reject_r_or_s_out_of_range(half: str, value: int) -> None:
    """0 and n are neither r nor s (11-31, H25)."""
    pair = KEYS[SignatureScheme.SECP256K1]
    signature, wrong = pair.sign(bytes(32)), value.to_bytes(32, "big")
    forged = wrong + signature[32:] if half == "r" else signature[:32] + wrong

    assert not VerifyKey.from_field(pair.public_field).verify(bytes(32), forged)


def test_secp256k1_takes_digests_only() -> None:
    """What is signed is 32 bytes; nothing is hashed on the way (11-29, H26)."""
    pair = KEYS[SignatureScheme.SECP256K1]
    key = VerifyKey.from_field(pair.public_field)

    for message in (b"", bytes(31), bytes(33)):
        with pytest.raises(BusArgumentError, match="32 bytes"):
            pair.sign(message)
        assert not key.verify(message, pair.sign(bytes(32)))


def test_reject_s_that_is_not_canonical(signed: MsgHeader) -> None:
    """S + L is the same scalar and still refused (11-31, H25)."""
    scalar = int.from_bytes(signed.signature[32:], "little") + ORDER
    forged = signed.signature[:32] + scalar.to_bytes(32, "little")

    assert not VerifyKey.from_field(signed.sender_pub_key).verify(signed.header_hash, forged)


@pytest.mark.parametrize("public", SMALL_ORDER_KEYS)
def test_reject_small_order_key(public: str) -> None:
    """A key of small order verifies nothing, not even the all-zero signature (11-31)."""
    key = VerifyKey.from_field(b"\x01" + bytes.fromhex(public))

    assert not key.verify(b"message", bytes.fromhex(public) + bytes(32))


@pytest.mark.parametrize("y", [P_FIELD, P_FIELD + 1, 2**255 - 1])
def test_reject_key_that_is_not_canonical(y: int) -> None:
    """A y of p or above names a point that another encoding names too (11-31, H25)."""
    key = VerifyKey.from_field(b"\x01" + y.to_bytes(32, "little"))

    assert not key.verify(b"message", y.to_bytes(32, "little") + bytes(32))


@pytest.mark.parametrize("start", [0, 32, 64, 2000])
def test_hybrid_needs_both_halves(unsigned: MsgHeader, start: int) -> None:
    """A hybrid signature with one wrong half does not hold (11-30, H26)."""
    pair = KEYS[SignatureScheme.HYBRID_ED25519_ML_DSA_65]
    signed = pair.sign_header(unsigned)
    forged = bytearray(signed.signature)
    forged[start] ^= 4

    assert verify_header(signed)
    assert not verify_header(replace(signed, signature=bytes(forged)))


def test_hybrid_is_its_two_halves() -> None:
    """Key, seed and signature of the hybrid are those of Ed25519, then of ML-DSA-65 (11-30)."""
    pair = KEYS[SignatureScheme.HYBRID_ED25519_ML_DSA_65]
    classical = SigningKey.from_seed(SignatureScheme.ED25519, pair.seed[:32])
    quantum = SigningKey.from_seed(SignatureScheme.ML_DSA_65, pair.seed[32:])
    message = bytes(range(32))
    other = classical.sign(message) + quantum.sign(message)

    assert pair.public_field[1:] == classical.public_field[1:] + quantum.public_field[1:]
    assert VerifyKey.from_field(pair.public_field).verify(message, other)
    assert not VerifyKey.from_field(pair.public_field).verify(
        message, classical.sign(message) + quantum.sign(bytes(32))
    )
    assert not VerifyKey.from_field(pair.public_field).verify(
        message, classical.sign(bytes(32)) + quantum.sign(message)
    )


def test_ml_dsa_signs_hedged() -> None:
    """Two ML-DSA signatures over one message differ, and both hold (11-28)."""
    pair = KEYS[SignatureScheme.ML_DSA_65]
    first, second = pair.sign(bytes(32)), pair.sign(bytes(32))
    key = VerifyKey.from_field(pair.public_field)

    assert first != second
    assert key.verify(bytes(32), first)
    assert key.verify(bytes(32), second)


@every_scheme
@pytest.mark.parametrize("change", [-1, 1])
def test_reject_seed_of_other_length(scheme: SignatureScheme, change: int) -> None:
    """A seed of another length is the caller's error."""
    size = ALGORITHMS[scheme].seed_bytes

    with pytest.raises(BusArgumentError, match=f"has {size} bytes"):
        SigningKey.from_seed(scheme, bytes(size + change))


@pytest.mark.parametrize("scalar", [0, SECP256K1_ORDER, 2**256 - 1])
def test_reject_seed_that_is_no_scalar(scalar: int) -> None:
    """A secp256k1 seed is a scalar from 1 to n - 1."""
    with pytest.raises(BusArgumentError, match="no scalar"):
        SigningKey.from_seed(SignatureScheme.SECP256K1, scalar.to_bytes(32, "big"))


def test_reject_scheme_that_is_none() -> None:
    """A scheme that does not exist is the caller's error."""
    with pytest.raises(BusArgumentError, match="none of 1 to 5"):
        SigningKey.from_seed(9, bytes(32))  # type: ignore[arg-type]  # the caller's mistake


@every_scheme
def test_repr_hides_the_secret(scheme: SignatureScheme) -> None:
    """Neither the seed nor any part of it is ever shown; the text stays short."""
    pair = KEYS[scheme]

    assert pair.seed.hex()[:64] not in repr(pair)
    assert len(repr(pair)) < 100
    assert len(repr(VerifyKey.from_field(pair.public_field))) < 100


@every_scheme
def test_generated_keys_differ(scheme: SignatureScheme) -> None:
    """Two new keys are two keys; the halves of a hybrid seed are independent."""
    first, second = SigningKey.generate(scheme), SigningKey.generate(scheme)

    assert first.seed != second.seed
    assert first.seed[:32] != first.seed[32:]


def test_json_carries_every_scheme(unsigned: MsgHeader) -> None:
    """A header of any scheme goes through JSON and still verifies (11-28)."""
    for pair in KEYS.values():
        text = json.dumps(pair.sign_header(unsigned).to_json())
        assert verify_header(MsgHeader.from_json(json.loads(text)))
