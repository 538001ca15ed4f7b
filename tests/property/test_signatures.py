"""Whatever bytes arrive as key or signature, there is an answer and no other exception."""

from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import SignatureScheme, SigningKey, VerifyKey
from luxrelay.bus.keys import ALGORITHMS
from luxrelay.bus.schemes import SCHEMES
from luxrelay.errors import KeyFormatError

EVERY = list(SignatureScheme)
CLASSICAL = [SignatureScheme.ED25519, SignatureScheme.SECP256K1]


@given(field=st.binary(max_size=80), message=st.binary(max_size=64), signature=st.binary())
def test_any_bytes_give_an_answer(field: bytes, message: bytes, signature: bytes) -> None:
    """Whatever the bytes, a key is a KeyFormatError or answers False (11-25, 11-31)."""
    try:
        key = VerifyKey.from_field(field)
    except KeyFormatError:
        return
    assert not key.verify(message, signature)


@given(
    scheme=st.sampled_from(EVERY),
    data=st.data(),
)
def test_any_key_of_right_length_gives_an_answer(
    scheme: SignatureScheme, data: st.DataObject
) -> None:
    """Random bytes of the right lengths never verify and never raise (11-25, 11-31)."""
    size = SCHEMES[scheme].key_field_bytes - 1
    chance = data.draw(st.randoms(use_true_random=False))
    public = chance.randbytes(size)
    if scheme is SignatureScheme.SECP256K1:
        public = bytes([data.draw(st.sampled_from((2, 3)))]) + public[1:]
    try:
        key = VerifyKey.from_field(bytes([scheme]) + public)
    except KeyFormatError:
        assert scheme is SignatureScheme.SECP256K1
        return
    assert not key.verify(bytes(32), chance.randbytes(SCHEMES[scheme].signature_bytes))


@given(
    scheme=st.sampled_from(CLASSICAL),
    seed=st.binary(min_size=32, max_size=32).filter(any).filter(lambda seed: seed[0] < 0xFF),
    digest=st.binary(min_size=32, max_size=32),
    place=st.integers(0, 64 * 8 - 1),
)
def test_signature_holds_and_its_changes_do_not(
    scheme: SignatureScheme, seed: bytes, digest: bytes, place: int
) -> None:
    """Any key signs any digest; any one bit of the signature changed breaks it (11-28)."""
    pair = SigningKey.from_seed(scheme, seed)
    key = VerifyKey.from_field(pair.public_field)
    signature = pair.sign(digest)
    changed = bytearray(signature)
    changed[place // 8] ^= 1 << place % 8

    assert key.verify(digest, signature)
    assert not key.verify(digest, bytes(changed))


@given(data=st.data())
def test_hybrid_is_the_conjunction(data: st.DataObject) -> None:
    """A hybrid signature holds exactly when both halves are over this digest (11-30)."""
    seed = bytes(range(64))
    pair = SigningKey.from_seed(SignatureScheme.HYBRID_ED25519_ML_DSA_65, seed)
    digest, other = bytes(32), bytes(31) + b"\x01"
    first = data.draw(st.sampled_from((digest, other)))
    second = data.draw(st.sampled_from((digest, other)))
    signature = pair.sign(first)[:64] + pair.sign(second)[64:]

    holds = VerifyKey.from_field(pair.public_field).verify(digest, signature)

    assert holds == (first == second == digest)
    assert ALGORITHMS[pair.scheme].seed_bytes == len(seed)
