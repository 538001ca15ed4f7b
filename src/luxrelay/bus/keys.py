"""Keys that sign and verify headers.

A key knows its scheme and the senderPubKey field; what its scheme does stands in one table, with a
row for each library. The exact lengths of key and signature are checked here, before any library
sees the bytes.

A row turns a seed into a public key and a function that signs, and a public key into a function
that verifies. A verifying function answers True or False and never raises; a public key that its
library cannot parse is a KeyFormatError, and a seed that gives no key a BusArgumentError.

What each scheme signs is the 32-byte header hash: Ed25519 and ML-DSA take it as their message
(pure mode, ML-DSA with the empty context), ECDSA takes it as the digest, without a further hash.

Parsed keys of secp256k1 and ML-DSA are kept in bounded caches, because parsing costs a sixth of
a secp256k1 verification and a twentieth of an ML-DSA-65 one. libsodium parses an Ed25519 key in
each verification and has no form to keep. The libraries only read a parsed key, so threads share
it; they release the interpreter lock while they verify.

Source: LP-6411 §2.7, §2.8; decisions H5, H6, H7, H25, H26.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nacl import bindings

from luxrelay.bus.schemes import SCHEMES, SIGNATURE_FLAGS, SignatureScheme
from luxrelay.errors import BusArgumentError, KeyFormatError

if TYPE_CHECKING:
    from luxrelay.bus.header import MsgHeader
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from coincurve import PrivateKey, PublicKey

# coincurve's own verify takes DER only; these C functions take the 64 bytes a header carries
from coincurve._libsecp256k1 import ffi, lib  # type: ignore[import-not-found]  # no stubs
from coincurve.context import GLOBAL_CONTEXT
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import mldsa
from nacl.exceptions import CryptoError

Sign: TypeAlias = Callable[[bytes], bytes]
"""Message to detached signature."""
Verify: TypeAlias = Callable[[bytes, bytes], bool]
"""Message and signature of the exact length to True or False."""

SECP256K1_KEYS_MAX: Final = 4096
"""Parsed secp256k1 keys kept, about 0.7 KiB each."""
ML_DSA_KEYS_MAX: Final = 1024
"""Parsed keys kept of each ML-DSA size, about 13 KiB each."""

SECP256K1_ORDER: Final = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141
"""n, the order of the group of secp256k1 (SEC 2, 2.4.1)."""
_ORDER: Final = SECP256K1_ORDER.to_bytes(32, "big")
_HALF_ORDER: Final = (SECP256K1_ORDER // 2).to_bytes(32, "big")
_ZERO: Final = bytes(32)
_ED25519_SEED: Final = 32
_ED25519_KEY: Final = 32
_ED25519_SIGNATURE: Final = 64


class KeyPair(NamedTuple):
    """What a seed gives."""

    public: bytes
    """The public key without its scheme byte."""
    sign: Sign
    """Signs with the secret half, which it alone holds."""


class Algorithm(NamedTuple):
    """One row of the table."""

    seed_bytes: int
    """Length of a seed."""
    key_pair: Callable[[bytes], KeyPair]
    """Seed to key pair; BusArgumentError when the seed gives none."""
    verifier: Callable[[bytes], Verify]
    """Public key without its scheme byte to verifying function; KeyFormatError when it is none."""


def _ed25519_pair(seed: bytes) -> KeyPair:
    public, secret = bindings.crypto_sign_seed_keypair(seed)

    def sign(message: bytes) -> bytes:
        signed: bytes = bindings.crypto_sign(message, secret)
        return signed[:_ED25519_SIGNATURE]

    return KeyPair(public, sign)


def _ed25519_verifier(public: bytes) -> Verify:
    """Return libsodium's verification: canonical S, A and R, no small order (H25)."""
    open_signed = bindings.crypto_sign_open

    def verify(message: bytes, signature: bytes) -> bool:
        try:
            open_signed(signature + message, public)
        except (CryptoError, ValueError, TypeError):
            return False
        return True

    return verify


def _secp256k1_pair(seed: bytes) -> KeyPair:
    try:
        secret = PrivateKey(seed)
    except ValueError as error:  # a chance of 2^-127 for a random seed
        raise BusArgumentError(
            "the seed is no scalar from 1 to n - 1", where="SigningKey", hint="draw another"
        ) from error

    def sign(digest: bytes) -> bytes:
        if len(digest) != 32:
            raise BusArgumentError("secp256k1 signs a digest of 32 bytes", where="SigningKey.sign")
        # r ‖ s ‖ recovery id; libsecp256k1 always signs with the low s of the two
        return secret.sign_recoverable(digest, hasher=None)[:64]

    return KeyPair(secret.public_key.format(compressed=True), sign)


def parse_secp256k1(public: bytes) -> PublicKey:
    """Return the point of a compressed key.

    Raises:
        KeyFormatError: not 33 bytes with prefix 02 or 03, or no point of the curve (11-26).

    """
    # libsecp256k1 also takes 65-byte keys with prefix 04, 06 or 07: one key, one encoding
    if len(public) != 33 or public[0] not in (2, 3):
        raise KeyFormatError(
            "a secp256k1 key has 33 bytes and begins with 02 or 03", where="senderPubKey"
        )
    try:
        return PublicKey(public)
    except ValueError as error:
        raise KeyFormatError("no point of secp256k1", where="senderPubKey") from error


@lru_cache(maxsize=SECP256K1_KEYS_MAX)
def _secp256k1_verifier(public: bytes) -> Verify:
    """Return ECDSA over the digest: 1 <= r < n and 1 <= s <= n/2 (H25, H26)."""
    point = parse_secp256k1(public).public_key
    context, signature_type = GLOBAL_CONTEXT.ctx, ffi.typeof("secp256k1_ecdsa_signature *")
    new, parse = ffi.new, lib.secp256k1_ecdsa_signature_parse_compact
    check = lib.secp256k1_ecdsa_verify

    def verify(digest: bytes, signature: bytes) -> bool:
        # the C functions read 64 and 32 bytes, however many there are
        if len(digest) != 32 or len(signature) != 64:
            return False
        parsed = new(signature_type)
        try:
            if not (_ZERO < signature[:32] < _ORDER and _ZERO < signature[32:] <= _HALF_ORDER):
                return False
            return bool(parse(context, parsed, signature) and check(context, parsed, digest, point))
        except TypeError:  # not bytes
            return False

    return verify


_MlDsaPrivate: TypeAlias = type[mldsa.MLDSA65PrivateKey] | type[mldsa.MLDSA87PrivateKey]
_MlDsaPublic: TypeAlias = type[mldsa.MLDSA65PublicKey] | type[mldsa.MLDSA87PublicKey]


def _ml_dsa(private_type: _MlDsaPrivate, public_type: _MlDsaPublic) -> Algorithm:
    """Return the row of one ML-DSA size: FIPS 204 pure mode with the empty context (H26)."""

    def key_pair(seed: bytes) -> KeyPair:
        try:
            secret = private_type.from_seed_bytes(seed)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise BusArgumentError(
                "the seed gives no ML-DSA key here", where="SigningKey"
            ) from error
        return KeyPair(secret.public_key().public_bytes_raw(), secret.sign)

    @lru_cache(maxsize=ML_DSA_KEYS_MAX)
    def verifier(public: bytes) -> Verify:
        try:
            check = public_type.from_public_bytes(public).verify
        except (ValueError, UnsupportedAlgorithm) as error:
            raise KeyFormatError("no ML-DSA key", where="senderPubKey") from error

        def verify(message: bytes, signature: bytes) -> bool:
            try:
                check(signature, message)
            except (InvalidSignature, ValueError, TypeError, RuntimeError):
                return False
            return True

        return verify

    return Algorithm(32, key_pair, verifier)


_ML_DSA_65: Final = _ml_dsa(mldsa.MLDSA65PrivateKey, mldsa.MLDSA65PublicKey)
_ML_DSA_87: Final = _ml_dsa(mldsa.MLDSA87PrivateKey, mldsa.MLDSA87PublicKey)


def _hybrid_pair(seed: bytes) -> KeyPair:
    """Return both pairs as one; the halves of the seed are independent secrets."""
    classical = _ed25519_pair(seed[:_ED25519_SEED])
    quantum = _ML_DSA_65.key_pair(seed[_ED25519_SEED:])

    def sign(message: bytes) -> bytes:
        return classical.sign(message) + quantum.sign(message)

    return KeyPair(classical.public + quantum.public, sign)


def _hybrid_verifier(public: bytes) -> Verify:
    """Return the conjunction: Ed25519 first, because it costs a third (H26; 11-30)."""
    classical = _ed25519_verifier(public[:_ED25519_KEY])
    quantum = _ML_DSA_65.verifier(public[_ED25519_KEY:])

    def verify(message: bytes, signature: bytes) -> bool:
        return classical(message, signature[:_ED25519_SIGNATURE]) and quantum(
            message, signature[_ED25519_SIGNATURE:]
        )

    return verify


ALGORITHMS: Final[dict[SignatureScheme, Algorithm]] = {
    SignatureScheme.ED25519: Algorithm(_ED25519_SEED, _ed25519_pair, _ed25519_verifier),
    SignatureScheme.SECP256K1: Algorithm(32, _secp256k1_pair, _secp256k1_verifier),
    SignatureScheme.ML_DSA_65: _ML_DSA_65,
    SignatureScheme.ML_DSA_87: _ML_DSA_87,
    SignatureScheme.HYBRID_ED25519_ML_DSA_65: Algorithm(64, _hybrid_pair, _hybrid_verifier),
}
"""By scheme."""


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


def _short(field: bytes) -> str:
    return f"{field[:17].hex()}{'…' if len(field) > 17 else ''}"
