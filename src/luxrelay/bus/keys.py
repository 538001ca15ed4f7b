"""Keys that sign and verify headers.

Ed25519 goes through libsodium, which is strict: canonical S, canonical points, no small-order
keys (H25). It signs the 32-byte header hash as its message, without a further hash (H26).

Source: LP-6411 §2.7, §2.8; decisions H5, H6, H25, H26.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nacl import bindings
from nacl.exceptions import CryptoError

from luxrelay.bus.schemes import SCHEMES, SIGNATURE_FLAGS, SignatureScheme
from luxrelay.errors import BusArgumentError, KeyFormatError

if TYPE_CHECKING:
    from luxrelay.bus.header import MsgHeader

SEED_BYTES: Final = 32
SIGNING_SCHEMES: Final = frozenset({SignatureScheme.ED25519})
"""Schemes this build signs with and verifies; the others are known by their lengths only."""


class SigningKey:
    """A secret key; never shown by ``repr`` and never logged."""

    __slots__ = ("_secret", "_seed", "public_field", "scheme")

    def __init__(self, scheme: SignatureScheme, seed: bytes) -> None:
        """Derive the pair of ``seed``; use `generate` or `from_seed`."""
        if scheme not in SIGNING_SCHEMES:
            raise BusArgumentError(
                f"scheme {scheme!r} cannot sign here", where="SigningKey", hint="use ED25519"
            )
        if len(seed) != SEED_BYTES:
            raise BusArgumentError(f"a seed has {SEED_BYTES} bytes", where="SigningKey")
        public, self._secret = bindings.crypto_sign_seed_keypair(seed)
        self._seed = seed
        self.scheme = scheme
        self.public_field: bytes = bytes([scheme]) + public
        """The senderPubKey field: scheme byte and public key."""

    @classmethod
    def generate(cls, scheme: SignatureScheme = SignatureScheme.ED25519) -> SigningKey:
        """Return a new key from libsodium's generator, the one chance this room draws from."""
        return cls(scheme, bindings.randombytes(SEED_BYTES))

    @classmethod
    def from_seed(cls, scheme: SignatureScheme, seed: bytes) -> SigningKey:
        """Return the key of a 32-byte seed.

        Raises:
            BusArgumentError: the seed has another length or the scheme cannot sign here.

        """
        return cls(scheme, seed)

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes, for key files."""
        return self._seed

    def sign(self, message: bytes) -> bytes:
        """Return the detached signature over ``message``."""
        signed: bytes = bindings.crypto_sign(message, self._secret)
        return signed[:64]

    def sign_header(self, header: MsgHeader) -> MsgHeader:
        """Return ``header`` with this key, its signature flags and its signature.

        Source: LP-6411 §2.8, H7.
        """
        flags = (header.flags & ~SIGNATURE_FLAGS) | SCHEMES[self.scheme].flags
        unsigned = replace(header, flags=flags, sender_pub_key=self.public_field, signature=b"")
        return replace(unsigned, signature=self.sign(unsigned.header_hash))

    def __repr__(self) -> str:
        return f"SigningKey({self.scheme.name}, public={self.public_field.hex()})"


class VerifyKey:
    """A public key as a header carries it."""

    __slots__ = ("_public", "field", "scheme")

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
        self._public = self.field[1:]

    @classmethod
    def from_field(cls, field: bytes) -> VerifyKey:
        """Return the key of a senderPubKey field (scheme byte and key).

        Raises:
            KeyFormatError: unknown scheme or wrong length.

        """
        return cls(field)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return True when ``signature`` over ``message`` holds; never raises.

        False also for a scheme that this build cannot verify.
        """
        if self.scheme is not SignatureScheme.ED25519 or len(signature) != 64:
            return False
        try:
            bindings.crypto_sign_open(signature + message, self._public)
        except (CryptoError, ValueError, TypeError):
            return False
        return True

    def __repr__(self) -> str:
        return f"VerifyKey({self.scheme.name}, {self._public[:8].hex()}…)"


def verify_header(header: MsgHeader) -> bool:
    """Return True when the header's signature over its hash holds; never raises.

    Source: LP-6411 §2.8; 11-28.
    """
    try:
        key = VerifyKey(header.sender_pub_key)
    except KeyFormatError:
        return False
    return key.verify(header.header_hash, header.signature)


def verify_headers(headers: Iterable[MsgHeader]) -> list[bool]:
    """Return `verify_header` of each; libsodium releases the GIL, so groups run on threads."""
    return [verify_header(header) for header in headers]
