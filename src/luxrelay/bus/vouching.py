"""A key that vouches for something that another key proves, such as a relay's peer id.

    proof := keyLen u16 ‖ key field ‖ signature over SHA3-256(tag ‖ subject)

The subject is what the other side authenticates by itself: a peer id by its connection, a TLS key
by its handshake. So a proof is no secret, and worth nothing to anybody else.

Source: LP-6420 §1.1, LP-6421 §6.2; decisions G24, P33.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container
from struct import Struct
from typing import Final

from luxrelay.bus.constants import MAX_KEY_FIELD_BYTES
from luxrelay.bus.keys import SigningKey, VerifyKey
from luxrelay.errors import KeyFormatError

PROOF_MAX: Final = 16 * 1024
"""Longest proof, bytes."""
TAG_TLS: Final = b"lux.validator.tls.v1\x00"
"""Domain of a proof for a TLS key; the subject is SHA-256 of its SubjectPublicKeyInfo."""
TLS_PROOF_MAX: Final = 2_048
"""Longest proof for a TLS key, bytes: it travels in the metadata of a call, which other gRPC
libraries end at 8 KiB."""

_U16: Final = Struct(">H")


def vouch(key: SigningKey, tag: bytes, subject: bytes) -> bytes:
    """Return the proof that the holder of ``key`` vouches for ``subject``."""
    field = key.public_field
    return _U16.pack(len(field)) + field + key.sign(_signed(tag, subject))


def who_vouches(proof: bytes) -> bytes:
    """Return the key field that a proof names, empty for bytes that are none; checks nothing."""
    if not 2 < len(proof) <= PROOF_MAX:
        return b""
    (size,) = _U16.unpack_from(proof)
    field = proof[2 : 2 + size]
    return field if len(field) == size <= MAX_KEY_FIELD_BYTES else b""


def vouches(proof: bytes, tag: bytes, subject: bytes, keys: Container[bytes]) -> bool:
    """Return True when one of ``keys`` vouches for ``subject``; never raises.

    Args:
        proof: What the other side sent, any bytes.
        tag: Domain of the signature.
        subject: What is vouched for.
        keys: Key fields that count.

    """
    field = who_vouches(proof)
    if not field or field not in keys:
        return False
    try:
        key = VerifyKey.from_field(field)
    except KeyFormatError:
        return False
    return key.verify(_signed(tag, subject), proof[2 + len(field) :])


def _signed(tag: bytes, subject: bytes) -> bytes:
    return hashlib.sha3_256(tag + subject).digest()
