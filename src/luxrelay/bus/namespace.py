"""Namespace ids: derivations, content topics and lanes.

Source: LP-6410 §2; decisions J6, S2, S3, S5; lux-family facts on namespace ids.
"""

import hashlib
from struct import Struct
from typing import Final

from luxrelay.bus import constants as c
from luxrelay.bus.header import NamespaceId
from luxrelay.errors import BusArgumentError

_U64: Final = Struct(">Q")

RESERVED_FIRST_BYTES: Final = frozenset({0x00, 0x01, 0xFF})
"""System, chain-specific and test ranges of LP-6410, by first byte (S3)."""
MAX_PATH_BYTES: Final = 4096
"""Longest path or content topic that is hashed into an id."""


def namespace_id(owner: bytes, salt: bytes, block: int) -> NamespaceId:
    """Return the standard id: the first 20 bytes of SHA3-256(tag ‖ owner ‖ salt ‖ block).

    Args:
        owner: Owner address, 20 bytes.
        salt: 32 bytes; an owner whose id falls into a reserved range rolls another (S2).
        block: Creation block, u64, big-endian.

    Raises:
        BusArgumentError: a length or range is wrong.

    """
    _check_length("owner", owner, c.ADDRESS_BYTES)
    _check_length("salt", salt, c.SALT_BYTES)
    if not 0 <= block <= c.MAX_U64:
        raise BusArgumentError("block must be a u64", where="namespace_id")
    return _first20(c.TAG_NAMESPACE + owner + salt + _U64.pack(block))


def derived_namespace(parent: NamespaceId, path: bytes) -> NamespaceId:
    """Return the id derived from a parent and a path: SHA3-256(tag ‖ parent ‖ path)[:20]."""
    _check_length("parent", parent, c.NAMESPACE_BYTES)
    _check_path(path)
    return _first20(c.TAG_DERIVED + parent + path)


def lane(parent: NamespaceId, sender_pub_key: bytes) -> NamespaceId:
    """Return the sender's own lane under ``parent`` (J6).

    One writer a lane, so sequence numbers never collide; whoever sees a message checks the
    derivation against the key in its header.

    Args:
        parent: The parent namespace, 20 bytes.
        sender_pub_key: The header's senderPubKey field, scheme byte included.

    """
    return derived_namespace(parent, sender_pub_key)


def topic_namespace(content_topic: str) -> NamespaceId:
    """Return the parent namespace of a content topic: SHA3-256(tag ‖ topic)[:20] (J6)."""
    encoded = content_topic.encode()
    _check_path(encoded)
    return _first20(c.TAG_TOPIC + encoded)


def is_reserved(namespace: NamespaceId) -> bool:
    """Return True for an id in a reserved range (LP-6410, S3)."""
    return namespace[0] in RESERVED_FIRST_BYTES


def _first20(preimage: bytes) -> NamespaceId:
    return NamespaceId(hashlib.sha3_256(preimage).digest()[: c.NAMESPACE_BYTES])


def _check_length(name: str, value: bytes, length: int) -> None:
    if len(value) != length:
        raise BusArgumentError(f"{name} must be {length} bytes", where="namespace")


def _check_path(path: bytes) -> None:
    if not 0 < len(path) <= MAX_PATH_BYTES:
        raise BusArgumentError(f"a path has 1 to {MAX_PATH_BYTES} bytes", where="namespace")
