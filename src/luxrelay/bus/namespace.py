"""Namespace ids: every derivation, content topics, lanes, reserved ranges.

Each id is the first 20 bytes of SHA3-256 over an ASCII tag and its inputs, joined as they are. The
documents name one concept twice: LP-6410 lists ``lux.ns.dm.v1`` and its like, the LuxChat documents
``lux.dm.v1``. Both are here (S5), and the LuxChat names are what applications use.

Source: LP-6410 §2, LP-6461, LP-6462, LP-6473, LP-6495; decisions J6, S2, S3, S4, S5.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Final

from luxrelay.bus import constants as c
from luxrelay.bus.header import NamespaceId
from luxrelay.errors import BusArgumentError

if TYPE_CHECKING:
    from random import Random

_U64: Final = Struct(">Q")

RESERVED_FIRST_BYTES: Final = frozenset({0x00, 0x01, 0xFF})
"""System, chain-specific and test ranges of LP-6410, by first byte (S3): 1.2 % of all hashes."""
RESERVED_FIRST_BYTES_6495: Final = RESERVED_FIRST_BYTES | frozenset(range(0x10))
"""The same with the ranges that LP-6495 keeps for chains to come: 6.6 % of all hashes (S2)."""
MAX_PATH_BYTES: Final = 4096
"""Longest path, identifier or content topic that is hashed into an id."""
ROLLS_MAX: Final = 64
"""Most salts that `create_namespace` tries; 64 reserved ids in a row do not happen by chance."""
GROUP_ID_BYTES: Final = 32
"""Length of a LuxChat group id (LP-6462)."""


class Naming(Enum):
    """Whose names derived ids use (S5); the value is what stands before ``dm.v1`` and the like."""

    SPEC = b"lux.ns."
    """The examples of LP-6410."""
    CHAT = b"lux."
    """The names of the LuxChat documents; the default."""


class Intent(Enum):
    """What an intent namespace is for (LP-6496)."""

    SWAP = b"lux.intent.swap.v1"
    BRIDGE = b"lux.intent.bridge.v1"
    LEND = b"lux.intent.lend.v1"


TAG_KEY_DIRECTORY: Final = b"lux.keydir.v1"
"""Name of the key directory (LP-6460)."""


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


def create_namespace(
    owner: bytes,
    block: int,
    rng: Random,
    *,
    reserved: frozenset[int] = RESERVED_FIRST_BYTES,
) -> tuple[NamespaceId, bytes]:
    """Return a standard id outside the reserved ranges, and the salt that gives it (S2).

    Args:
        owner: Owner address, 20 bytes.
        block: Creation block, u64.
        rng: Where salts come from; at most ``ROLLS_MAX`` are drawn.
        reserved: First bytes that are not taken.

    Raises:
        BusArgumentError: a length or range is wrong, or every salt gave a reserved id.

    """
    for _ in range(ROLLS_MAX):
        salt = rng.randbytes(c.SALT_BYTES)
        namespace = namespace_id(owner, salt, block)
        if not is_reserved(namespace, reserved):
            return namespace, salt
    raise BusArgumentError(
        f"{ROLLS_MAX} salts gave reserved ids only", where="create_namespace", hint="check rng"
    )


def derived_namespace(parent: NamespaceId, path: bytes) -> NamespaceId:
    """Return the id derived from a parent and a path: SHA3-256(tag ‖ parent ‖ path)[:20]."""
    _check_length("parent", parent, c.NAMESPACE_BYTES)
    _check_path(path)
    return _first20(c.TAG_DERIVED + parent + path)


def direct_namespace(first: bytes, second: bytes, *, naming: Naming = Naming.CHAT) -> NamespaceId:
    """Return the id of the direct messages of two parties; their order does not matter.

    SPEC takes two addresses of 20 bytes; CHAT takes two identifiers of one length. The documents
    join them without a separator, so identifiers of different lengths could meet in one id and
    are refused.

    Source: LP-6410, LP-6461; S5.
    """
    if naming is Naming.SPEC:
        _check_length("address", first, c.ADDRESS_BYTES)
    _check_path(first)
    _check_length("the second party", second, len(first))
    return _first20(naming.value + b"dm.v1" + b"".join(sorted((first, second))))


def group_namespace(group_id: bytes, *, naming: Naming = Naming.CHAT) -> NamespaceId:
    """Return the id of a group; CHAT takes a group id of 32 bytes (LP-6410, LP-6462; S5)."""
    if naming is Naming.CHAT:
        _check_length("group_id", group_id, GROUP_ID_BYTES)
    _check_path(group_id)
    return _first20(naming.value + b"group.v1" + group_id)


def dkg_namespace(
    parent: NamespaceId | None = None, *, naming: Naming = Naming.CHAT
) -> NamespaceId:
    """Return the id of a key ceremony: of a parent, or the global one under CHAT names.

    Source: LP-6410 and LP-6473 with a parent, LP-2214 without; S5.
    """
    if parent is None and naming is Naming.SPEC:
        raise BusArgumentError("LP-6410 derives it from a parent", where="dkg_namespace")
    if parent is not None:
        _check_length("parent", parent, c.NAMESPACE_BYTES)
    return _first20(naming.value + b"dkg.v1" + (parent or b""))


def key_directory_namespace() -> NamespaceId:
    """Return the id of the key directory, of which a network has one (LP-6460)."""
    return _first20(TAG_KEY_DIRECTORY)


def intent_namespace(intent: Intent) -> NamespaceId:
    """Return the id of a network's intents of one kind (LP-6496)."""
    return _first20(intent.value)


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


def is_reserved(namespace: NamespaceId, reserved: frozenset[int] = RESERVED_FIRST_BYTES) -> bool:
    """Return True for an id in a reserved range (LP-6410, S3)."""
    return namespace[0] in reserved


def _first20(preimage: bytes) -> NamespaceId:
    return NamespaceId(hashlib.sha3_256(preimage).digest()[: c.NAMESPACE_BYTES])


def _check_length(name: str, value: bytes, length: int) -> None:
    if len(value) != length:
        raise BusArgumentError(f"{name} must be {length} bytes", where="namespace")


def _check_path(path: bytes) -> None:
    if not 0 < len(path) <= MAX_PATH_BYTES:
        raise BusArgumentError(f"a path has 1 to {MAX_PATH_BYTES} bytes", where="namespace")
