"""The tree is what J4 says it is, and finds what differs."""

import random
from functools import reduce
from hashlib import sha3_256

import pytest

from luxrelay.errors import StoreArgumentError
from luxrelay.store.merkle import (
    BUCKET_BYTES,
    BUCKETS,
    NODES,
    WAITING_MAX,
    MerkleTree,
    bucket_of,
    bucket_prefix,
    differing_buckets,
    differing_nodes,
)


def ids(count: int, seed: int = 1) -> list[bytes]:
    """Return distinct ids."""
    rng = random.Random(seed)
    return [rng.randbytes(32) for _ in range(count)]


def slow_root(content_ids: list[bytes]) -> bytes:
    """Return the root by the definition, bucket by bucket."""
    members: dict[int, list[bytes]] = {}
    for content in content_ids:
        members.setdefault(bucket_of(content), []).append(content)
    nodes = []
    for node in range(NODES):
        text = b""
        for bucket in range(node * 256, node * 256 + 256):
            found = members.get(bucket, [])
            mixed = reduce(lambda a, b: a ^ int.from_bytes(b, "big"), found, 0)
            text += mixed.to_bytes(32, "big") + len(found).to_bytes(8, "big")
        nodes.append(sha3_256(text).digest())
    return sha3_256(b"".join(nodes)).digest()


def test_the_root_is_the_definition() -> None:
    """Root, nodes and buckets are those of J4, byte for byte."""
    content_ids = ids(300)
    tree = MerkleTree(content_ids)

    assert tree.root() == slow_root(content_ids)
    assert tree.root() == sha3_256(b"".join(tree.nodes())).digest()
    assert tree.nodes()[7] == sha3_256(tree.buckets(7)).digest()
    assert len(tree) == 300


def test_an_empty_tree_has_a_root() -> None:
    """Nothing held is a set too."""
    assert MerkleTree().root() == slow_root([])
    assert len(MerkleTree()) == 0


def test_the_order_of_arrival_does_not_matter() -> None:
    """Ids one by one, in a batch, and backwards give one tree."""
    content_ids = ids(50)
    single = MerkleTree()
    for content in content_ids:
        single.insert(content)

    assert single == MerkleTree(content_ids) == MerkleTree(content_ids[::-1])
    assert single.root() == MerkleTree(content_ids).root()


def test_removing_undoes_inserting() -> None:
    """A chunk removed leaves the tree of the others (retention document)."""
    content_ids = ids(40)
    tree = MerkleTree(content_ids)
    before = tree.root()
    tree.xor_batch(content_ids[:15], removed=True)
    tree.remove(content_ids[15])

    assert tree == MerkleTree(content_ids[16:])
    assert tree.root() == MerkleTree(content_ids[16:]).root() != before
    tree.xor_batch([])
    assert len(tree) == 24


def test_hash_only_what_changed() -> None:
    """After a change only the nodes it touched are hashed again."""
    content_ids = ids(10)
    tree = MerkleTree(content_ids)
    tree.root()
    assert not tree._dirty.any()
    tree.insert(b"\x05" + bytes(31))

    assert [index for index in range(NODES) if tree._dirty[index]] == [5]
    assert tree.root() == slow_root([*content_ids, b"\x05" + bytes(31)])


def test_the_count_sees_what_xor_does_not() -> None:
    """Ids that cancel one another out are seen by their number (J4)."""
    a, b = b"\x01\x02" + bytes(29) + b"a", b"\x01\x02" + bytes(29) + b"b"
    mixed = bytes(x ^ y for x, y in zip(a[2:], b[2:], strict=True))
    c, d = b"\x01\x02" + mixed, b"\x01\x02" + bytes(30)
    tree = MerkleTree([a, b, c, d])

    assert tree.buckets(1)[2 * BUCKET_BYTES :][:BUCKET_BYTES] == bytes(39) + b"\x04"
    assert tree.root() != MerkleTree().root()


def test_find_the_buckets_that_differ() -> None:
    """From nodes to buckets, the way leads to exactly the ids that one side lacks."""
    content_ids = ids(2_000)
    ours, theirs = MerkleTree(content_ids), MerkleTree(content_ids[5:])
    found = [
        bucket
        for node in differing_nodes(ours.nodes(), theirs.nodes())
        for bucket in differing_buckets(node, ours.buckets(node), theirs.buckets(node))
    ]

    assert sorted(found) == sorted({bucket_of(content) for content in content_ids[:5]})
    assert differing_nodes(ours.nodes(), ours.nodes()) == []


@pytest.mark.parametrize("bucket", [0, 1, 255, 256, BUCKETS - 1])
def test_a_bucket_is_a_prefix(bucket: int) -> None:
    """A bucket's ids begin with its two bytes."""
    assert bucket_of(bucket_prefix(bucket) + bytes(30)) == bucket


def test_refuse_what_is_no_tree() -> None:
    """Another peer's answer of the wrong size is refused, not compared."""
    tree = MerkleTree()
    with pytest.raises(StoreArgumentError):
        differing_nodes(tree.nodes(), tree.nodes()[:-1])
    with pytest.raises(StoreArgumentError):
        differing_buckets(0, tree.buckets(0), tree.buckets(0)[:-1])
    for node in (-1, NODES):
        with pytest.raises(StoreArgumentError):
            tree.buckets(node)


def test_a_tree_is_no_key_and_equals_trees_only() -> None:
    """A tree changes, so it cannot be hashed."""
    assert MerkleTree() != "tree"
    with pytest.raises(TypeError):
        hash(MerkleTree())


def test_ids_that_wait_show_in_every_answer() -> None:
    """Whatever is asked first after ids have come, the answer has them (J4)."""
    content_ids = ids(20)
    expected = MerkleTree(content_ids)

    def fresh() -> MerkleTree:
        tree = MerkleTree(content_ids[:10])
        for content in content_ids[10:]:
            tree.extend(content)
        return tree

    assert fresh() == expected
    assert len(fresh()) == 20
    assert fresh().root() == expected.root()
    node = content_ids[-1][0]
    assert fresh().buckets(node) == expected.buckets(node)
    other = MerkleTree()
    other.add(fresh())
    assert other == expected
    other.subtract(fresh())
    assert other == MerkleTree()
    removed = fresh()
    removed.xor_batch(content_ids[15:], removed=True)
    assert removed == MerkleTree(content_ids[:15])


def test_few_ids_wait() -> None:
    """At WAITING_MAX ids the table takes them in (style: every bound is reached by a test)."""
    tree = MerkleTree()
    content_ids = ids(WAITING_MAX)
    tree.extend(b"".join(content_ids[:-1]))
    assert len(tree._waiting) == 32 * (WAITING_MAX - 1)
    tree.extend(content_ids[-1])

    assert len(tree._waiting) == 0
    assert tree == MerkleTree(content_ids)
