"""Keys that sign and verify headers.

A key knows its scheme and the senderPubKey field; what its scheme does stands in `algorithms`.
The exact lengths of key and signature are checked here, before any library sees the bytes.

Source: LP-6411 §2.7, §2.8; decisions H5, H6, H7, H25, H26.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nacl import bindings

from luxrelay.bus.algorithms import ALGORITHMS
from luxrelay.bus.schemes import SCHEMES, SIGNATURE_FLAGS, SignatureScheme
from luxrelay.errors import BusArgumentError, KeyFormatError

if TYPE_CHECKING:
    from luxrelay.bus.header import MsgHeader

SIGNING_SCHEMES: Final = frozenset(ALGORITHMS)
"""Schemes this build signs with and verifies: all of them."""


class SigningKey:
    """A secret key; never shown by ``repr`` and never logged."""

    __slots__ = ("_seed", "_sign", "public_field", "scheme")

    def __init__(self, scheme: SignatureScheme, seed: bytes) -> None:
        """Derive the pair of ``seed``; use `generate` or `from_seed`."""
        algorithm = ALGORITHMS.get(scheme)
        if algorithm is None:
            raise BusArgumentError(
                f"scheme {scheme!r} is none of 1 to 5", where="SigningKey", hint="use ED25519"
            )
        if len(seed) != algorithm.seed_bytes:
            raise BusArgumentError(
                f"a seed of {SignatureScheme(scheme).name} has {algorithm.seed_bytes} bytes",
                where="SigningKey",
            )
        self._seed = bytes(seed)
        pair = algorithm.key_pair(self._seed)
        self._sign = pair.sign
        self.scheme = SignatureScheme(scheme)
        self.public_field: bytes = bytes([scheme]) + pair.public
        """The senderPubKey field: scheme byte and public key."""

    @classmethod
    def generate(cls, scheme: SignatureScheme = SignatureScheme.ED25519) -> SigningKey:
        """Return a new key from libsodium's generator, the one chance this room draws from.

        The two halves of a hybrid key are drawn independently.
        """
        return cls(scheme, bindings.randombytes(ALGORITHMS[scheme].seed_bytes))

    @classmethod
    def from_seed(cls, scheme: SignatureScheme, seed: bytes) -> SigningKey:
        """Return the key of a seed.

        Args:
            scheme: Which scheme.
            seed: 32 bytes: the seed of Ed25519 and ML-DSA, the secret scalar of secp256k1; 64
                bytes for the hybrid: the Ed25519 seed, then the one of ML-DSA-65.

        Raises:
            BusArgumentError: the seed has another length, or is no scalar from 1 to n - 1.

        """
        return cls(scheme, seed)

    @property
    def seed(self) -> bytes:
        """The secret bytes that `from_seed` takes, for key files."""
        return self._seed

    def sign(self, message: bytes) -> bytes:
        """Return the detached signature over ``message``.

        ML-DSA signatures are hedged: two over one message differ and both verify.

        Raises:
            BusArgumentError: secp256k1 and ``message`` is not 32 bytes long: it signs a digest.

        """
        return self._sign(message)

    def sign_header(self, header: MsgHeader) -> MsgHeader:
        """Return ``header`` with this key, its signature flags and its signature.

        Source: LP-6411 §2.8, H7.
        """
        flags = (header.flags & ~SIGNATURE_FLAGS) | SCHEMES[self.scheme].flags
        unsigned = replace(header, flags=flags, sender_pub_key=self.public_field, signature=b"")
        return replace(unsigned, signature=self.sign(unsigned.header_hash))

    def __repr__(self) -> str:
        return f"SigningKey({self.scheme.name}, {_short(self.public_field)})"


class VerifyKey:
    """A public key as a header carries it."""

    __slots__ = ("_signature_bytes", "_verify", "field", "scheme")

    def __init__(self, field: bytes) -> None:
        """Take a senderPubKey field apart; see `from_field`."""
        spec = SCHEMES.get(field[0]) if field else None
        if spec is None:
            raise KeyFormatError("sigType is none of 1 to 5", where="senderPubKey")
        if len(field) != spec.key_field_bytes:
            raise KeyFormatError(
                f"{spec.scheme.name} takes {spec.key_field_bytes} bytes, found {len(field)}",
                where="senderPubKey",
            )
        self.field = bytes(field)
        self.scheme = spec.scheme
        self._signature_bytes = spec.signature_bytes
        self._verify = ALGORITHMS[spec.scheme].verifier(self.field[1:])

    @classmethod
    def from_field(cls, field: bytes) -> VerifyKey:
        """Return the key of a senderPubKey field (scheme byte and key).

        Raises:
            KeyFormatError: unknown scheme, wrong length, or a secp256k1 key that is no compressed
                point of the curve. An Ed25519 key of small order is found by `verify`.

        Source: LP-6411 §2.7; 11-25, 11-26.

        """
        return cls(field)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return True when ``signature`` over ``message`` holds; never raises.

        A secp256k1 key takes ``message`` as the 32-byte digest itself.

        Source: LP-6411 §2.8, H25, H26; 11-28, 11-31.
        """
        return len(signature) == self._signature_bytes and self._verify(message, signature)

    def __repr__(self) -> str:
        return f"VerifyKey({self.scheme.name}, {_short(self.field)})"


def verify_header(header: MsgHeader) -> bool:
    """Return True when the header's signature over its hash holds; never raises.

    Source: LP-6411 §2.8; 11-28.
    """
    field, signature = header.sender_pub_key, header.signature
    spec = SCHEMES.get(field[0]) if field else None
    if spec is None or len(field) != spec.key_field_bytes:
        return False
    if len(signature) != spec.signature_bytes:
        return False
    try:  # without a VerifyKey: making one costs a fiftieth of a secp256k1 verification
        verify = ALGORITHMS[spec.scheme].verifier(field[1:])
    except KeyFormatError:
        return False
    return verify(header.header_hash, signature)


def verify_headers(headers: Iterable[MsgHeader]) -> list[bool]:
    """Return `verify_header` of each; the libraries release the GIL, so groups run on threads."""
    return [verify_header(header) for header in headers]


def _short(field: bytes) -> str:
    return f"{field[:17].hex()}{'…' if len(field) > 17 else ''}"
