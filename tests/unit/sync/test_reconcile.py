"""Merkle sync: two trees, each filtered by its own cut-off."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luxrelay.errors import ReconcileError, SyncArgumentError
from luxrelay.store.merkle import MerkleTree, bucket_of
from luxrelay.sync.reconcile import NODE_BYTES, TreeConfig, TreeInitiator, TreeResponder


class Tree:
    """A store that is a set; ids in ``aged`` are in the tree and past the cut-off."""

    def __init__(self, ids: Sequence[bytes], aged: Sequence[bytes] = ()) -> None:
        self.held = sorted(ids)
        self.aged = set(aged)
        self.tree = MerkleTree(self.held)

    def nodes(self) -> Sequence[bytes]:
        """Return the hashes."""
        return self.tree.nodes()

    def buckets(self, node: int) -> bytes:
        """Return a node's buckets."""
        return self.tree.buckets(node)

    def ids(self, bucket: int, limit: int) -> Sequence[bytes]:
        """Return a bucket's ids that are past no cut-off."""
        found = [each for each in self.held if bucket_of(each) == bucket and each not in self.aged]
        return found[:limit]


def ids(count: int, seed: int) -> list[bytes]:
    """Return random ids."""
    rng = random.Random(seed)
    return [rng.randbytes(32) for _ in range(count)]


def sync(ours: Tree, theirs: Tree, config: TreeConfig | None = None) -> TreeInitiator:
    """Run to the end; return the initiator."""
    initiator, responder = TreeInitiator(ours, config), TreeResponder(theirs, config)
    message: bytes | None = initiator.start()
    while message is not None:
        message = initiator.receive(responder.receive(message))
    return initiator


@settings(max_examples=30)
@given(st.integers(0, 60), st.integers(0, 20), st.integers(0, 20))
def test_both_differences_are_found(common: int, ours: int, theirs: int) -> None:
    """Retention document: whatever differs is found, on both sides."""
    base, mine, other = ids(common, 1), ids(ours, 2), ids(theirs, 3)

    found = sync(Tree(base + mine), Tree(base + other))

    assert set(found.have) == set(mine)
    assert set(found.need) == set(other)


def test_equal_trees_take_one_question() -> None:
    """33 bytes and an empty answer say that two stores are equal."""
    base = ids(100, 1)

    found = sync(Tree(base), Tree(base))

    assert (found.rounds, found.need, found.have, found.cut) == (1, {}, {}, False)
    assert len(TreeInitiator(Tree(base)).start()) == 33


def test_what_is_aged_is_neither_asked_nor_told() -> None:
    """Retention document: each side's own cut-off filters, so nothing aged moves either way."""
    base = ids(50, 1)
    gone_here, gone_there = ids(2, 2)

    found = sync(Tree([*base, gone_here], [gone_here]), Tree([*base, gone_there], [gone_there]))

    assert found.need == found.have == {}


def test_questions_are_bounded() -> None:
    """Nodes and buckets are asked for in as many messages as the bounds ask."""
    found = sync(Tree(ids(50, 1)), Tree(ids(50, 2)), TreeConfig(nodes_max=7, buckets_max=9))

    assert len(found.need) == len(found.have) == 50
    assert found.rounds > 10


def test_rounds_and_finds_are_bounded() -> None:
    """rounds_max and found_max end an exchange, which says that it was cut."""
    ours, theirs = Tree(ids(50, 1)), Tree(ids(50, 2))

    assert sync(ours, theirs, TreeConfig(rounds_max=2)).cut
    few = sync(ours, theirs, TreeConfig(found_max=3))
    assert few.cut
    assert len(few.need) == 3


def test_a_full_bucket_is_cut_off() -> None:
    """Who chooses ids fills a bucket; an answer names bucket_ids_max of them."""
    crowd = [b"\x01\x02" + each[2:] for each in ids(20, 1)]

    found = sync(Tree([]), Tree(crowd), TreeConfig(bucket_ids_max=5))

    assert set(found.need) == set(sorted(crowd)[:5])


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"\x01" + bytes(31),
        b"\x02",
        b"\x03",
        b"\x03\x00",
        b"\x04" + bytes(4),
        b"\x02" + bytes(129),
        b"\x03" + bytes(2 * 2_048 + 2),
    ],
)
def test_a_responder_refuses_what_is_no_question(message: bytes) -> None:
    """Bytes that break the protocol are an error."""
    with pytest.raises(ReconcileError):
        TreeResponder(Tree([])).receive(message)


def test_an_initiator_refuses_what_is_no_answer() -> None:
    """An answer of the wrong size, or of another bucket, is an error at every step."""
    ours, theirs = Tree([]), Tree(ids(5, 1))
    responder = TreeResponder(theirs)

    initiator = TreeInitiator(ours)
    nodes = responder.receive(initiator.start())
    with pytest.raises(ReconcileError, match="256 hashes"):
        initiator.receive(nodes[:-1])
    ask = initiator.receive(nodes)
    assert ask is not None
    with pytest.raises(ReconcileError, match="nodes"):
        initiator.receive(bytes(NODE_BYTES))
    ask = initiator.receive(responder.receive(ask))
    assert ask is not None
    answer = responder.receive(ask)
    for broken, why in (
        (answer[:-1], "middle"),
        (answer + b"\0", "after the last"),
        (answer[:2] + b"\xff\xff" + answer[4:], "another bucket"),
    ):
        with pytest.raises(ReconcileError, match=why):
            initiator.receive(broken)


@pytest.mark.parametrize(
    "name", ["nodes_max", "buckets_max", "bucket_ids_max", "rounds_max", "found_max"]
)
def test_refuse_bounds_that_cannot_work(name: str) -> None:
    """Every bound is positive, and there are 256 nodes."""
    with pytest.raises(SyncArgumentError):
        TreeConfig(**{name: 0})
    with pytest.raises(SyncArgumentError):
        TreeConfig(nodes_max=257)
