"""Namespace ids and lanes."""

import hashlib

import pytest

from luxrelay.bus import (
    NamespaceId,
    SigningKey,
    derived_namespace,
    is_reserved,
    lane,
    namespace_id,
    topic_namespace,
)
from luxrelay.errors import BusArgumentError

OWNER = bytes.fromhex("1234567890123456789012345678901234567890")
SALT = bytes.fromhex("abcd" + "00" * 30)


def test_namespace_id_vector_v2() -> None:
    """The standard derivation gives vector V2 (11-12)."""
    assert namespace_id(OWNER, SALT, 1_000_000).hex() == "9a37ec99238e5e156f7cdaca9ab0ed137bdc5fae"


def test_namespace_ids_differ_in_every_input() -> None:
    """A change of owner, salt or block is another namespace (11-12)."""
    ids = {
        namespace_id(OWNER, SALT, 1),
        namespace_id(OWNER, SALT, 2),
        namespace_id(OWNER, bytes(32), 1),
        namespace_id(bytes(20), SALT, 1),
    }
    assert len(ids) == 4


def test_lane_is_derived_from_parent_and_key(key: SigningKey) -> None:
    """A lane is SHA3-256(tag ‖ parent ‖ key field)[:20], as anyone can check (J6)."""
    parent = topic_namespace("/chat/1/room")
    preimage = b"lux.ns.derived.v1" + parent + key.public_field

    assert lane(parent, key.public_field) == hashlib.sha3_256(preimage).digest()[:20]
    assert lane(parent, key.public_field) == derived_namespace(parent, key.public_field)


def test_topic_namespace_is_tagged() -> None:
    """A content topic's parent is SHA3-256(tag ‖ topic)[:20] (J6)."""
    expected = hashlib.sha3_256(b"lux.topic.v1/chat/1/room").digest()[:20]
    assert topic_namespace("/chat/1/room") == expected


@pytest.mark.parametrize(("first", "reserved"), [(0, True), (1, True), (255, True), (2, False)])
def test_reserved_first_byte(first: int, reserved: bool) -> None:
    """System, chain and test ranges are prefixes (S3)."""
    assert is_reserved(NamespaceId(bytes([first]) + bytes(19))) is reserved


def test_reject_lengths_and_ranges() -> None:
    """A wrong length or a block that is no u64 is the caller's error."""
    for call in (
        lambda: namespace_id(OWNER[:19], SALT, 1),
        lambda: namespace_id(OWNER, SALT[:31], 1),
        lambda: namespace_id(OWNER, SALT, -1),
        lambda: namespace_id(OWNER, SALT, 2**64),
        lambda: derived_namespace(NamespaceId(OWNER[:5]), b"x"),
        lambda: derived_namespace(NamespaceId(OWNER), b""),
        lambda: derived_namespace(NamespaceId(OWNER), bytes(4097)),
        lambda: topic_namespace(""),
    ):
        with pytest.raises(BusArgumentError):
            call()
