"""The two encryption hooks."""

from __future__ import annotations

import pytest

from luxrelay.channel.encryption import Encryption, SealedBoxEncryption, SharedKeyEncryption
from luxrelay.errors import ChannelArgumentError, CipherError

KEY = bytes(range(32))


def pair() -> tuple[SealedBoxEncryption, SealedBoxEncryption]:
    """Return the two ends of sealed boxes."""
    alice = SealedBoxEncryption(bytes(31) + b"\1", bytes(32))
    bob = SealedBoxEncryption(bytes(31) + b"\2", alice.public_key)
    return SealedBoxEncryption(bytes(31) + b"\1", bob.public_key), bob


@pytest.mark.parametrize("content", [b"", b"x", bytes(102_400)])
def test_round_trip(content: bytes) -> None:
    """What one end encrypts the other decrypts, and it grows by the overhead."""
    alice, bob = pair()
    shared = SharedKeyEncryption(KEY)
    ends: list[tuple[Encryption, Encryption]] = [(shared, SharedKeyEncryption(KEY)), (alice, bob)]
    for one, other in ends:
        payload = one.encrypt(content)
        assert other.decrypt(payload) == content
        assert len(payload) == len(content) + one.overhead_bytes  # type: ignore[attr-defined]


def test_equal_contents_look_different() -> None:
    """Nonces and ephemeral keys are fresh."""
    shared, (alice, _) = SharedKeyEncryption(KEY), pair()

    assert shared.encrypt(b"same") != shared.encrypt(b"same")
    assert alice.encrypt(b"same") != alice.encrypt(b"same")


def test_published_test_vector() -> None:
    """The construction is XChaCha20-Poly1305 as drafted (draft-irtf-cfrg-xchacha-03, A.3.1)."""
    key = bytes(range(0x80, 0xA0))
    nonce = bytes(range(0x40, 0x58))
    context = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    sealed = bytes.fromhex(
        "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb"
        "731c7f1b0b4aa6440bf3a82f4eda7e39ae64c6708c54c216cb96b72e1213b452"
        "2f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff9"
        "21f9664c97637da9768812f615c68b13b52ec0875924c1c7987947deafd8780a"
        "cf49"
    )

    content = SharedKeyEncryption(key, context).decrypt(nonce + sealed)

    assert content.startswith(b"Ladies and Gentlemen of the class of '99")


@pytest.mark.parametrize("change", ["bit", "cut", "empty", "key", "context"])
def test_what_does_not_fit_is_refused(change: str) -> None:
    """Another key or context, and any change, raise the one error."""
    alice, bob = pair()
    shared = SharedKeyEncryption(KEY, b"chan")
    sealed, boxed = shared.encrypt(b"secret"), alice.encrypt(b"secret")
    reader: Encryption = shared
    opener: Encryption = bob
    if change == "bit":
        sealed, boxed = sealed[:-1] + bytes([sealed[-1] ^ 1]), boxed[:-1] + bytes([boxed[-1] ^ 1])
    elif change == "cut":
        sealed, boxed = sealed[:-1], boxed[:-1]
    elif change == "empty":
        sealed = boxed = b""
    elif change == "key":
        reader, opener = SharedKeyEncryption(bytes(32), b"chan"), alice
    else:
        reader, opener = SharedKeyEncryption(KEY, b"other"), alice

    with pytest.raises(CipherError):
        reader.decrypt(sealed)
    with pytest.raises(CipherError):
        opener.decrypt(boxed)


def test_keys_of_another_length_are_refused() -> None:
    """A key that is too short or long is the caller's fault."""
    with pytest.raises(ChannelArgumentError):
        SharedKeyEncryption(bytes(31))
    with pytest.raises(ChannelArgumentError):
        SealedBoxEncryption(bytes(32), bytes(33))
