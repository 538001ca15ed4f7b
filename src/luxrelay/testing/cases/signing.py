"""Signatures that come out the same every time, also of ML-DSA.

FIPS 204 signs hedged or deterministically. The library we sign with offers hedged only, so vectors
are signed by dilithium-py in deterministic mode; verifiers cannot tell the two apart. dilithium-py
is needed to write vectors, never to check them.

Source: FIPS 204 §3.4; H26; 11-50.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from luxrelay.bus import MsgHeader, SignatureScheme, SigningKey
from luxrelay.bus.schemes import SCHEMES, SIGNATURE_FLAGS
from luxrelay.testing.messages import signing_key

_ED25519_SIGNATURE = 64


def sign_header(header: MsgHeader, scheme: SignatureScheme) -> MsgHeader:
    """Return ``header`` with the flags, key and signature of the scheme's `signing_key`."""
    key = signing_key(scheme)
    flags = (header.flags & ~SIGNATURE_FLAGS) | SCHEMES[scheme].flags
    unsigned = replace(header, flags=flags, sender_pub_key=key.public_field)
    return replace(unsigned, signature=signature(scheme, unsigned.header_hash))


@cache
def signature(scheme: SignatureScheme, message: bytes) -> bytes:
    """Return the deterministic signature of the scheme's `signing_key` over 32 bytes."""
    key = signing_key(scheme)
    if scheme in {SignatureScheme.ED25519, SignatureScheme.SECP256K1}:
        return key.sign(message)
    if scheme is SignatureScheme.HYBRID_ED25519_ML_DSA_65:
        classical = SigningKey.from_seed(SignatureScheme.ED25519, key.seed[:32])
        return classical.sign(message) + _ml_dsa(SignatureScheme.ML_DSA_65, key.seed[32:], message)
    return _ml_dsa(scheme, key.seed, message)


def _ml_dsa(scheme: SignatureScheme, seed: bytes, message: bytes) -> bytes:
    # Only writing vectors needs it, and it has no types.
    from dilithium_py.ml_dsa import (  # type: ignore[import-untyped]  # noqa: PLC0415
        ML_DSA_65,
        ML_DSA_87,
    )

    algorithm = {SignatureScheme.ML_DSA_65: ML_DSA_65, SignatureScheme.ML_DSA_87: ML_DSA_87}[scheme]
    _, secret = algorithm.key_derive(seed)
    made: bytes = algorithm.sign(secret, message, deterministic=True)
    return made
