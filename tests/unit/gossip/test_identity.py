"""Peer ids with the key inside."""

from __future__ import annotations

import pytest

from luxrelay.bus import SignatureScheme, SigningKey
from luxrelay.gossip import peer_id_of, verify_by_peer

KEY = SigningKey.from_seed(SignatureScheme.ED25519, bytes(range(32)))


def test_a_peer_id_is_the_key_in_libp2ps_frame() -> None:
    """38 bytes: identity multihash, libp2p key message, key (G7)."""
    peer = peer_id_of(KEY.public_field[1:])

    assert len(peer) == 38
    assert peer.hex() == "002408011220" + KEY.public_field[1:].hex()


def test_a_signature_verifies_by_the_peer_alone() -> None:
    """No other information than the peer id is needed (G7)."""
    peer = peer_id_of(KEY.public_field[1:])
    signature = KEY.sign(b"message")

    assert verify_by_peer(peer, b"message", signature)
    assert not verify_by_peer(peer, b"massage", signature)
    assert not verify_by_peer(peer, b"message", signature[:-1])


@pytest.mark.parametrize(
    "peer",
    [
        b"",
        bytes.fromhex("002408021220") + KEY.public_field[1:],
        bytes.fromhex("1220") + bytes(32),
        bytes(100),
    ],
    ids=["nothing", "other key type", "hash", "too long"],
)
def test_a_peer_without_a_key_inside_verifies_nothing(peer: bytes) -> None:
    """A hashed or broken peer id says False and raises nothing (G7)."""
    assert not verify_by_peer(peer, b"message", KEY.sign(b"message"))
