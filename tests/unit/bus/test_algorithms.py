"""The table of algorithms, against second implementations."""

import hashlib

import pytest
from coincurve import PublicKey
from Crypto.Hash import keccak
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, utils
from dilithium_py.ml_dsa import ML_DSA_65, ML_DSA_87

from luxrelay.bus import SignatureScheme, SigningKey, VerifyKey, sender_address
from luxrelay.bus.keys import (
    ALGORITHMS,
    ML_DSA_KEYS_MAX,
    SECP256K1_KEYS_MAX,
    _secp256k1_verifier,
    parse_secp256k1,
)
from luxrelay.errors import KeyFormatError

SEED = bytes(range(7, 39))
HASH = hashlib.sha3_256(b"a header").digest()
ORACLES = [
    (SignatureScheme.ML_DSA_65, ML_DSA_65),
    (SignatureScheme.ML_DSA_87, ML_DSA_87),
]


def key_of(scheme: SignatureScheme) -> SigningKey:
    """Return the key of the seed that all tests here use."""
    return SigningKey.from_seed(scheme, SEED)


def test_table_is_complete() -> None:
    """Every scheme has one row."""
    assert list(ALGORITHMS) == list(SignatureScheme)


def test_ed25519_is_pure(key: SigningKey) -> None:
    """Signatures are those of another Ed25519 over the hash itself, in both ways (11-29, H26)."""
    other = ed25519.Ed25519PrivateKey.from_private_bytes(key.seed)
    public = ed25519.Ed25519PublicKey.from_public_bytes(key.public_field[1:])

    assert key.public_field[1:] == other.public_key().public_bytes_raw()
    assert key.sign(HASH) == other.sign(HASH)
    public.verify(key.sign(HASH), HASH)
    assert VerifyKey.from_field(key.public_field).verify(HASH, other.sign(HASH))
    with pytest.raises(InvalidSignature):
        public.verify(key.sign(HASH), HASH[::-1])


def test_rfc8032_first_vector(key: SigningKey) -> None:
    """The empty message of RFC 8032's first test gives its signature (11-29)."""
    expected = (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39"
        "701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )
    assert key.sign(b"").hex() == expected


def test_ecdsa_signs_the_digest() -> None:
    """Another library verifies our ECDSA with the hash as digest, and we its own (11-29, H26)."""
    key = key_of(SignatureScheme.SECP256K1)
    scheme = ec.ECDSA(utils.Prehashed(hashes.SHA256()))
    other = ec.derive_private_key(int.from_bytes(SEED, "big"), ec.SECP256K1())
    public = other.public_key()

    signature = key.sign(HASH)
    r, s = (int.from_bytes(half, "big") for half in (signature[:32], signature[32:]))
    public.verify(utils.encode_dss_signature(r, s), HASH, scheme)
    with pytest.raises(InvalidSignature):  # hashed a second time it is another message
        public.verify(utils.encode_dss_signature(r, s), HASH, ec.ECDSA(hashes.SHA256()))

    r, s = utils.decode_dss_signature(other.sign(HASH, scheme))
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    low = r.to_bytes(32, "big") + min(s, order - s).to_bytes(32, "big")
    assert VerifyKey.from_field(key.public_field).verify(HASH, low)


def test_ecdsa_is_deterministic() -> None:
    """The nonce is that of RFC 6979: one digest, one signature."""
    key = key_of(SignatureScheme.SECP256K1)

    assert key.sign(HASH) == key.sign(HASH)


def test_ecdsa_agrees_with_the_librarys_own_verify() -> None:
    """The compact form gives what coincurve's verify gives for the DER form (11-29)."""
    key = key_of(SignatureScheme.SECP256K1)
    point, verify = PublicKey(key.public_field[1:]), VerifyKey.from_field(key.public_field).verify
    for number in range(50):
        digest = hashlib.sha3_256(bytes([number])).digest()
        signature = key.sign(digest)
        for candidate in (signature, signature[:-1] + bytes([signature[-1] ^ 1])):
            r, s = (int.from_bytes(half, "big") for half in (candidate[:32], candidate[32:]))
            expected = point.verify(utils.encode_dss_signature(r, s), digest, hasher=None)
            assert verify(digest, candidate) == expected


def test_secp256k1_reads_no_further_than_its_input() -> None:
    """The function itself refuses other lengths, and what is no bytes, before the library."""
    verify = ALGORITHMS[SignatureScheme.SECP256K1].verifier(
        key_of(SignatureScheme.SECP256K1).public_field[1:]
    )

    for digest, signature in ((bytes(31), b"\x01" * 64), (bytes(32), b"\x01" * 63)):
        assert not verify(digest, signature)
    assert not verify(HASH, "x" * 64)  # type: ignore[arg-type]  # the caller's mistake
    assert not verify("x" * 32, b"\x01" * 64)  # type: ignore[arg-type]  # the caller's mistake


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "oracle"), ORACLES, ids=["65", "87"])
def test_ml_dsa_agrees_with_the_oracle(scheme: SignatureScheme, oracle: object) -> None:
    """Key of the seed, our signature and the oracle's agree with the empty context (11-29)."""
    assert isinstance(oracle, type(ML_DSA_65))
    key = key_of(scheme)
    public, secret = oracle.key_derive(SEED)
    signature = oracle.sign(secret, HASH, ctx=b"", deterministic=True)
    other_context = oracle.sign(secret, HASH, ctx=b"lux", deterministic=True)
    verify = VerifyKey.from_field(key.public_field).verify

    assert key.public_field[1:] == public
    assert oracle.verify(public, HASH, key.sign(HASH), ctx=b"")
    assert verify(HASH, signature)
    assert not verify(HASH, other_context)


def test_address_of_secp256k1_is_ethereums() -> None:
    """The secret 1 has the address that Ethereum's tools give it; the key's form does not matter.

    Source: H27.
    """
    key = SigningKey.from_seed(SignatureScheme.SECP256K1, (1).to_bytes(32, "big"))

    assert sender_address(key.public_field).hex() == "7e5f4552091a69125d5dfcb7b8c2659029395bdf"


@pytest.mark.slow
def test_address_agrees_with_eth_keys() -> None:
    """Address and key of another implementation of the Ethereum rule are ours (H27)."""
    eth_keys = pytest.importorskip("eth_keys")
    other = eth_keys.keys.PrivateKey(SEED).public_key
    key = key_of(SignatureScheme.SECP256K1)

    assert key.public_field[1:] == other.to_compressed_bytes()
    assert sender_address(key.public_field) == other.to_canonical_address()


@pytest.mark.parametrize(
    "scheme", [s for s in SignatureScheme if s is not SignatureScheme.SECP256K1]
)
def test_address_of_other_schemes(scheme: SignatureScheme) -> None:
    """All other keys: the last 20 bytes of Keccak-256 over the key without scheme byte (H27)."""
    key = SigningKey.from_seed(scheme, SEED * (ALGORITHMS[scheme].seed_bytes // 32))
    hashed = keccak.new(digest_bits=256, data=key.public_field[1:]).digest()

    assert sender_address(key.public_field) == hashed[12:]


def test_parsed_keys_are_bounded() -> None:
    """However many keys arrive, the cache of parsed ones keeps its bound."""
    _secp256k1_verifier.cache_clear()
    base = parse_secp256k1(key_of(SignatureScheme.SECP256K1).public_field[1:])
    point = base
    for _ in range(SECP256K1_KEYS_MAX + 50):
        point = PublicKey.combine_keys([point, base])
        VerifyKey.from_field(b"\x02" + point.format())

    assert _secp256k1_verifier.cache_info().currsize == SECP256K1_KEYS_MAX
    _secp256k1_verifier.cache_clear()


def test_parsed_ml_dsa_keys_are_bounded() -> None:
    """However many ML-DSA keys arrive, the cache of parsed ones keeps its bound."""
    verifier = ALGORITHMS[SignatureScheme.ML_DSA_65].verifier
    for number in range(ML_DSA_KEYS_MAX + 10):
        VerifyKey.from_field(b"\x03" + number.to_bytes(2, "big") * 976)

    assert verifier.cache_info().currsize == ML_DSA_KEYS_MAX  # type: ignore[attr-defined]  # lru_cache
    verifier.cache_clear()  # type: ignore[attr-defined]  # lru_cache


def test_a_key_that_fails_is_not_kept() -> None:
    """Keys that do not parse leave nothing behind."""
    _secp256k1_verifier.cache_clear()

    with pytest.raises(KeyFormatError):
        VerifyKey.from_field(b"\x02\x02" + bytes(32))

    assert _secp256k1_verifier.cache_info().currsize == 0
