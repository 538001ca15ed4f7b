"""How each signature scheme signs and verifies: one table from scheme to library.

A row turns a seed into a public key and a function that signs, and a public key into a function
that verifies. `keys` checks every length against the table of schemes first. A verifying
function answers True or False and never raises; a public key that its library cannot parse is a
KeyFormatError, and a seed that gives no key a BusArgumentError.

What each scheme signs is the 32-byte header hash: Ed25519 and ML-DSA take it as their message
(pure mode, ML-DSA with the empty context), ECDSA takes it as the digest, without a further hash.

Parsed keys of secp256k1 and ML-DSA are kept in bounded caches, because parsing costs a sixth of
a secp256k1 verification and a twentieth of an ML-DSA-65 one. libsodium parses an Ed25519 key in
each verification and has no form to keep. The libraries only read a parsed key, so threads share
it; they release the interpreter lock while they verify.

Source: LP-6411 §2.7, §2.8; decisions H5, H25, H26.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from coincurve import PrivateKey, PublicKey

# coincurve's own verify takes DER only; these C functions take the 64 bytes a header carries
from coincurve._libsecp256k1 import ffi, lib  # type: ignore[import-not-found]  # no stubs
from coincurve.context import GLOBAL_CONTEXT
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import mldsa
from nacl import bindings
from nacl.exceptions import CryptoError

from luxrelay.bus.schemes import SignatureScheme
from luxrelay.errors import BusArgumentError, KeyFormatError

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
