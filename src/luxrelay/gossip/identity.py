"""Peer ids: the bytes of a libp2p peer id, with the Ed25519 key inside.

Source: LP-6420 §3; decisions G7.
"""

from __future__ import annotations

from typing import Final, NewType

from luxrelay.bus import SignatureScheme, VerifyKey

PeerId = NewType("PeerId", bytes)
"""A libp2p peer id; 38 bytes when it carries an Ed25519 key, which ours do (G7)."""

PEER_ID_MAX: Final = 64
"""Longest peer id that a payload of ours may carry, bytes."""
SIGNATURE_MAX: Final = 64
"""Longest signature by a peer's identity key, bytes: Ed25519."""

_KEY_BYTES: Final = 32
# An identity multihash (0x00, 36 bytes) around a libp2p public key message: type 1 (Ed25519), then
# 32 bytes of key.
_ED25519_PREFIX: Final = bytes.fromhex("002408011220")


def peer_id_of(public_key: bytes) -> PeerId:
    """Return the peer id that contains the 32-byte Ed25519 ``public_key``."""
    return PeerId(_ED25519_PREFIX + public_key)


def verify_by_peer(peer: bytes, message: bytes, signature: bytes) -> bool:
    """Return True when ``signature`` over ``message`` is by the key inside ``peer``; never raises.

    False also for a peer id without an Ed25519 key inside: nobody could check such a signature
    without asking for the key first (G7).
    """
    if len(peer) != len(_ED25519_PREFIX) + _KEY_BYTES or not peer.startswith(_ED25519_PREFIX):
        return False
    field = bytes([SignatureScheme.ED25519]) + peer[len(_ED25519_PREFIX) :]
    return VerifyKey.from_field(field).verify(message, signature)
