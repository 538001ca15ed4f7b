"""The encryption hook of a channel, and two that are ready to use.

A channel gives its hook one message or segment at a time (`EncryptionPosition`). The hook decides
on scheme and keys; the channel knows neither. What does not decrypt is counted and dropped: it is
not delivered and not acknowledged.

Both ready hooks draw a fresh nonce or key for each message from libsodium. Neither proves who sent
a message: with a shared key it was somebody who has the key, with a sealed box anybody who has the
recipient's public key.

Source: reliable-channel-api (encryption hook); decision C1.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from nacl import bindings
from nacl.exceptions import CryptoError

from luxrelay.errors import ChannelArgumentError, CipherError

DEFAULT_OVERHEAD_BYTES: Final = 256
"""What encryption is taken to add when a hook has no ``overhead_bytes``."""


@runtime_checkable
class Encryption(Protocol):
    """Turns bytes into other bytes and back.

    A hook with an attribute ``overhead_bytes`` says how many bytes it adds at most. Calls must not
    block; they are made from the channel's loop, one at a time.
    """

    def encrypt(self, content: bytes) -> bytes:
        """Return the encrypted bytes; an exception fails the message with its text."""
        ...

    def decrypt(self, payload: bytes) -> bytes:
        """Return what was encrypted.

        Raises:
            CipherError: the bytes were not made with this key. Other exceptions count the same.

        """
        ...


class SharedKeyEncryption:
    """XChaCha20-Poly1305 with one key that all participants hold.

    Payload: 24 bytes of nonce, then ciphertext and tag.

    Args:
        key: 32 secret bytes.
        context: Bound to each message, such as the channel's id; all must use the same.

    Raises:
        ChannelArgumentError: the key has another length.

    """

    overhead_bytes: Final = (
        bindings.crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
        + bindings.crypto_aead_xchacha20poly1305_ietf_ABYTES
    )

    def __init__(self, key: bytes, context: bytes = b"") -> None:
        if len(key) != bindings.crypto_aead_xchacha20poly1305_ietf_KEYBYTES:
            raise ChannelArgumentError(f"a key of {len(key)} bytes", where="SharedKeyEncryption")
        self._key = key
        self._context = context

    def encrypt(self, content: bytes) -> bytes:
        """Return nonce, ciphertext and tag."""
        nonce = bindings.randombytes(bindings.crypto_aead_xchacha20poly1305_ietf_NPUBBYTES)
        return nonce + bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(
            content, self._context, nonce, self._key
        )

    def decrypt(self, payload: bytes) -> bytes:
        """Return the content.

        Raises:
            CipherError: another key or context, or bytes that were changed.

        """
        size = bindings.crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
        if len(payload) < self.overhead_bytes:
            raise CipherError("too short to be encrypted", where="SharedKeyEncryption")
        try:
            return bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(
                payload[size:], self._context, payload[:size], self._key
            )
        except CryptoError:
            raise CipherError("the tag does not fit", where="SharedKeyEncryption") from None


class SealedBoxEncryption:
    """Sealed boxes between two participants, each with an X25519 key pair.

    Every message is sealed to the other's public key with a key pair made for it alone.

    Args:
        private_key: Our 32 secret bytes.
        peer_public_key: The other's 32 public bytes.

    Raises:
        ChannelArgumentError: a key has another length.

    """

    overhead_bytes: Final = bindings.crypto_box_SEALBYTES

    def __init__(self, private_key: bytes, peer_public_key: bytes) -> None:
        if len(private_key) != 32 or len(peer_public_key) != 32:
            raise ChannelArgumentError("keys have 32 bytes", where="SealedBoxEncryption")
        self._private = private_key
        self._public = bindings.crypto_scalarmult_base(private_key)
        self._peer = peer_public_key

    @property
    def public_key(self) -> bytes:
        """The 32 bytes to give to the other participant."""
        return self._public

    def encrypt(self, content: bytes) -> bytes:
        """Return a box that only the peer can open; we cannot."""
        return bindings.crypto_box_seal(content, self._peer)

    def decrypt(self, payload: bytes) -> bytes:
        """Return the content of a box sealed to us.

        Raises:
            CipherError: it was sealed to somebody else, or changed.

        """
        if len(payload) < self.overhead_bytes:
            raise CipherError("too short to be a box", where="SealedBoxEncryption")
        try:
            return bindings.crypto_box_seal_open(payload, self._public, self._private)
        except CryptoError:
            raise CipherError("the box does not open", where="SealedBoxEncryption") from None
