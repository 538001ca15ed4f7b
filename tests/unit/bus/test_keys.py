"""Ed25519 keys: what they sign, what they refuse."""

import gzip
import json
from pathlib import Path

import pytest

from luxrelay.bus import (
    MsgHeader,
    SignatureScheme,
    SigningKey,
    VerifyKey,
    verify_header,
    verify_headers,
)
from luxrelay.errors import BusArgumentError, KeyFormatError

SMALL_ORDER_KEYS = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
]
ORDER = 2**252 + 27742317777372353535851937790883648493


def test_sign_header_verifies(signed: MsgHeader) -> None:
    """A signed header verifies, alone and in a group (11-28)."""
    assert verify_header(signed)
    assert verify_headers([signed, signed]) == [True, True]


@pytest.mark.parametrize("position", [0, 31, 32, 63])
def test_reject_flipped_signature_bit(signed: MsgHeader, position: int) -> None:
    """One flipped bit of the signature breaks it (11-28)."""
    key = VerifyKey.from_field(signed.sender_pub_key)
    flipped = bytearray(signed.signature)
    flipped[position] ^= 1

    assert not key.verify(signed.header_hash, bytes(flipped))


def test_reject_other_message_and_other_key(signed: MsgHeader) -> None:
    """Another hash or another key does not verify (11-28)."""
    key = VerifyKey.from_field(signed.sender_pub_key)
    other = VerifyKey.from_field(SigningKey.generate().public_field)

    assert not key.verify(bytes(32), signed.signature)
    assert not other.verify(signed.header_hash, signed.signature)


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


@pytest.mark.parametrize("size", [0, 1, 63, 65])
def test_reject_signature_of_other_length(signed: MsgHeader, size: int) -> None:
    """A signature that is not 64 bytes long is False, not an exception."""
    assert not VerifyKey.from_field(signed.sender_pub_key).verify(b"", bytes(size))


@pytest.mark.parametrize("field", [b"", b"\x00" + bytes(32), b"\x06" + bytes(32), b"\x01" * 32])
def test_reject_key_field(field: bytes) -> None:
    """An unknown scheme or a wrong length is a KeyFormatError (11-25)."""
    with pytest.raises(KeyFormatError):
        VerifyKey.from_field(field)


def test_scheme_without_verifier_is_false(signed: MsgHeader) -> None:
    """A scheme this build cannot verify is False for any signature."""
    key = VerifyKey.from_field(b"\x03" + bytes(1952))

    assert not key.verify(signed.header_hash, bytes(3309))


def test_reject_seed_and_scheme() -> None:
    """A seed of 31 bytes and a scheme that cannot sign are the caller's errors."""
    with pytest.raises(BusArgumentError):
        SigningKey.from_seed(SignatureScheme.ED25519, bytes(31))
    with pytest.raises(BusArgumentError):
        SigningKey.from_seed(SignatureScheme.ML_DSA_65, bytes(32))


def test_repr_hides_the_secret(key: SigningKey) -> None:
    """Neither the seed nor the secret scalar is ever shown."""
    assert key.seed.hex() not in repr(key)


def test_generated_keys_differ() -> None:
    """Two new keys are two keys."""
    assert SigningKey.generate().seed != SigningKey.generate().seed


def test_agrees_with_wycheproof(wycheproof_ed25519: Path) -> None:
    """Every valid vector verifies and every invalid one does not (11-29)."""
    vectors = json.loads(gzip.decompress(wycheproof_ed25519.read_bytes()))
    checked = 0
    for group in vectors["testGroups"]:
        key = VerifyKey.from_field(b"\x01" + bytes.fromhex(group["publicKey"]["pk"]))
        for case in group["tests"]:
            verdict = key.verify(bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"]))
            assert verdict == (case["result"] == "valid"), case["tcId"]
            checked += 1
    assert checked > 50
