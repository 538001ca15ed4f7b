"""Keys as PKCS #8 PEM."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, mldsa, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from luxrelay.bus import SignatureScheme, SigningKey
from luxrelay.bus.keys import ALGORITHMS
from luxrelay.errors import KeyFileError
from luxrelay.node.keyfile import decode_pem, encode_pem


def key_of(scheme: SignatureScheme) -> SigningKey:
    """Return the same key each time."""
    return SigningKey.from_seed(scheme, bytes(range(1, 1 + ALGORITHMS[scheme].seed_bytes)))


ED25519 = encode_pem(key_of(SignatureScheme.ED25519))
ML_DSA_65 = encode_pem(key_of(SignatureScheme.ML_DSA_65))
ML_DSA_87 = encode_pem(key_of(SignatureScheme.ML_DSA_87))


@pytest.mark.parametrize("scheme", list(SignatureScheme))
def test_round_trip(scheme: SignatureScheme) -> None:
    """A key of any scheme comes back from its text."""
    key = key_of(scheme)

    back = decode_pem(encode_pem(key), "here")

    assert (back.scheme, back.seed, back.public_field) == (scheme, key.seed, key.public_field)


def test_scheme_in_seed_form_has_the_public_key_of_another_program() -> None:
    """Another reader of PKCS #8 finds the same public keys."""
    expected = {
        scheme: load_pem_private_key(encode_pem(key_of(scheme)), None).public_key()
        for scheme in (SignatureScheme.ED25519, SignatureScheme.ML_DSA_65)
    }

    for scheme, public in expected.items():
        assert public.public_bytes_raw() == key_of(scheme).public_field[1:]


def test_hybrid_is_two_blocks() -> None:
    """A hybrid key is the Ed25519 block and the ML-DSA-65 block of its two seeds."""
    key = key_of(SignatureScheme.HYBRID_ED25519_ML_DSA_65)
    first = SigningKey.from_seed(SignatureScheme.ED25519, key.seed[:32])
    second = SigningKey.from_seed(SignatureScheme.ML_DSA_65, key.seed[32:])

    assert encode_pem(key) == encode_pem(first) + encode_pem(second)


@pytest.mark.parametrize(
    "text",
    [
        ML_DSA_65 + ED25519,
        ED25519 + ED25519,
        ED25519 + ML_DSA_87,
        ED25519 + ML_DSA_65 + ED25519,
        ED25519 + b"and more",
        b"before\n" + ED25519,
        b"",
        b"not a key",
        b"-----END PRIVATE KEY-----\n",
        b"-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n",
        ED25519[:40],
        ED25519.replace(b"PRIVATE", b"EC PRIVATE"),
        b"\xff" * 100,
    ],
    ids=range(13),
)
def test_refuse_other_text(text: bytes) -> None:
    """Other blocks, other order and other bytes are a KeyFileError that names the file."""
    with pytest.raises(KeyFileError, match="here"):
        decode_pem(text, "here")


def pkcs8(key: object, encryption: object = None) -> bytes:
    """Return a foreign key as PKCS #8."""
    assert hasattr(key, "private_bytes")
    text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())
    return text


@pytest.mark.slow
def test_refuse_keys_of_no_scheme() -> None:
    """Other curves, other sizes and other algorithms are not taken for ours."""
    keys = [
        ec.generate_private_key(ec.SECP256R1()),
        mldsa.MLDSA44PrivateKey.generate(),
        rsa.generate_private_key(65537, 2048),
    ]
    for key in keys:
        with pytest.raises(KeyFileError, match="no scheme of LP-6411"):
            decode_pem(pkcs8(key), "here")


def test_refuse_encryption_of_pkcs8() -> None:
    """A key under PKCS #8's own passphrase is refused with a way out."""
    key = mldsa.MLDSA65PrivateKey.generate()

    with pytest.raises(KeyFileError, match="keys new --passphrase"):
        decode_pem(pkcs8(key, BestAvailableEncryption(b"secret")), "here")
