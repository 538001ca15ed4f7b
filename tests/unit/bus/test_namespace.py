"""Namespace ids and lanes."""

import hashlib
import random

import pytest

from luxrelay.bus import (
    NamespaceId,
    Naming,
    SigningKey,
    create_namespace,
    derived_namespace,
    direct_namespace,
    dkg_namespace,
    group_namespace,
    is_reserved,
    lane,
    namespace_id,
    topic_namespace,
)
from luxrelay.bus.namespace import (
    RESERVED_FIRST_BYTES_6495,
    Intent,
    intent_namespace,
    key_directory_namespace,
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
        lambda: direct_namespace(OWNER, SALT),
        lambda: direct_namespace(b"", b""),
        lambda: direct_namespace(b"alice", b"carol", naming=Naming.SPEC),
        lambda: group_namespace(b"short"),
        lambda: group_namespace(b"", naming=Naming.SPEC),
        lambda: dkg_namespace(naming=Naming.SPEC),
        lambda: dkg_namespace(NamespaceId(b"short")),
    ):
        with pytest.raises(BusArgumentError):
            call()


def sha3(data: bytes) -> bytes:
    """Return the first 20 bytes of SHA3-256."""
    return hashlib.sha3_256(data).digest()[:20]


def test_direct_messages_have_one_id() -> None:
    """Both parties derive the same id, under LuxChat's name unless told otherwise (S5)."""
    first, second = b"\x01" * 20, b"\x02" * 20

    assert direct_namespace(second, first) == sha3(b"lux.dm.v1" + first + second)
    assert direct_namespace(first, second) == direct_namespace(second, first)
    spec = direct_namespace(second, first, naming=Naming.SPEC)
    assert spec == sha3(b"lux.ns.dm.v1" + first + second)
    assert direct_namespace(b"carol", b"alice") == sha3(b"lux.dm.v1alicecarol")


def test_groups_and_ceremonies_have_both_names() -> None:
    """Groups and key ceremonies derive under LP-6410's names and LuxChat's (S5)."""
    group, parent = b"\x09" * 32, NamespaceId(b"\x08" * 20)

    assert group_namespace(group) == sha3(b"lux.group.v1" + group)
    assert group_namespace(b"any", naming=Naming.SPEC) == sha3(b"lux.ns.group.v1any")
    assert dkg_namespace(parent) == sha3(b"lux.dkg.v1" + parent)
    assert dkg_namespace() == sha3(b"lux.dkg.v1")
    assert dkg_namespace(parent, naming=Naming.SPEC) == sha3(b"lux.ns.dkg.v1" + parent)


def test_network_wide_namespaces() -> None:
    """The key directory and the three kinds of intents have ids of their own (S5)."""
    assert key_directory_namespace() == sha3(b"lux.keydir.v1")
    assert intent_namespace(Intent.SWAP) == sha3(b"lux.intent.swap.v1")
    assert intent_namespace(Intent.BRIDGE) == sha3(b"lux.intent.bridge.v1")
    assert intent_namespace(Intent.LEND) == sha3(b"lux.intent.lend.v1")


def test_creator_rolls_past_reserved_ids() -> None:
    """The salt that comes back gives the id, and the id is in no reserved range (S2)."""
    rng = random.Random(6410)
    for block in range(200):
        namespace, salt = create_namespace(OWNER, block, rng, reserved=RESERVED_FIRST_BYTES_6495)

        assert namespace == namespace_id(OWNER, salt, block)
        assert not is_reserved(namespace, RESERVED_FIRST_BYTES_6495)


def test_creator_gives_up() -> None:
    """When every first byte is reserved, the creator says so instead of rolling for ever."""
    with pytest.raises(BusArgumentError):
        create_namespace(OWNER, 1, random.Random(1), reserved=frozenset(range(256)))


@pytest.mark.parametrize(
    "count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)], ids=str
)
def test_ids_are_unique(count: int) -> None:
    """Random inputs give ids that never meet (11-12)."""
    rng = random.Random(11_12)
    owners = rng.randbytes(20 * 64)
    seen = set()
    for block in range(count):
        place = 20 * (block % 64)
        salt = block.to_bytes(8, "big") * 4
        seen.add(namespace_id(owners[place : place + 20], salt, block))

    assert len(seen) == count
