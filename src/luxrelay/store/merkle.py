"""`MerkleTree`: is my set of messages yours, and if not, in which 1/65,536 of it? Pure.

Theory of operation
-------------------
*Decides* nothing; it sums up which content ids are held.
*Shape* (J4): a bucket is (XOR of its ids, their number), chosen by the first two bytes of an id;
256 buckets under each of 256 level-1 nodes, these under one root. Node = SHA3-256 of its buckets in
order, each as 32 bytes XOR ‖ count, u64 big-endian; root = SHA3-256 of the nodes in order.
*Changing* is XOR and counting only; nodes are hashed when somebody asks, those that changed since.
Ids that come wait until there are WAITING_MAX of them or somebody asks: a table that was last used
a moment ago costs a tenth of one that other work has pushed out of the processor's cache.
*Asking*: root, then nodes, then the buckets of nodes that differ, then the ids of buckets that
differ, which the store reads from its rows.
*Threads*: the caller keeps writers and `changed` apart with one lock, readers of the hashes with
another; hashing itself needs no writer to wait.
*Bounds*: 2.8 MB whatever is held, and WAITING_MAX ids with one batch more.
*No proof*: who chooses ids can make two sets of as many ids look equal. It is good for repair
between peers, and for nothing else.
*Deviations*: the document hashes at every change; here a chunk of 1,000 ids holds the lock for less
than 100 microseconds.

Source: retention document, "Merkle Tree Implications"; decisions J4, J11.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha3_256
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from luxrelay.errors import StoreArgumentError

NODES: Final = 256
BUCKETS: Final = 65_536
_PER_NODE: Final = BUCKETS // NODES
_ID_BYTES: Final = 32
BUCKET_BYTES: Final = _ID_BYTES + 8
"""One bucket on the wire: XOR ‖ count, u64 big-endian."""
TABLE_BYTES: Final = BUCKETS * BUCKET_BYTES
"""Bytes of a whole tree's buckets."""
NODE_BUCKETS_BYTES: Final = _PER_NODE * BUCKET_BYTES

WAITING_MAX: Final = 4_096
"""Ids that wait to be XORed into a tree."""
_CHUNK: Final = 4_096
"""Ids changed at a time, below 65,536: each is numbered in two bytes."""
_WORDS: Final = BUCKET_BYTES // 8
_XOR_WORDS: Final = _ID_BYTES // 8
_ROW: Final = f"V{BUCKET_BYTES}"


def bucket_of(content_id: bytes) -> int:
    """Return the bucket of an id: its first two bytes."""
    return content_id[0] << 8 | content_id[1]


def bucket_prefix(bucket: int) -> bytes:
    """Return the two bytes with which every id of ``bucket`` begins."""
    return bucket.to_bytes(2, "big")


def root_of(nodes: Sequence[bytes]) -> bytes:
    """Return the root over 256 level-1 hashes."""
    return sha3_256(b"".join(nodes)).digest()


def differing_nodes(ours: Sequence[bytes], theirs: Sequence[bytes]) -> list[int]:
    """Return which level-1 nodes differ.

    Raises:
        StoreArgumentError: either is not 256 hashes.

    """
    if len(ours) != NODES or len(theirs) != NODES:
        raise StoreArgumentError(f"a tree has {NODES} nodes", where="differing_nodes")
    return [index for index in range(NODES) if ours[index] != theirs[index]]


def differing_buckets(node: int, ours: bytes, theirs: bytes) -> list[int]:
    """Return which buckets of a node differ, by XOR or by count.

    Raises:
        StoreArgumentError: either has not the length of 256 buckets.

    """
    if len(ours) != NODE_BUCKETS_BYTES or len(theirs) != NODE_BUCKETS_BYTES:
        raise StoreArgumentError("a node has 256 buckets of 40 bytes", where="differing_buckets")
    shape = (_PER_NODE, BUCKET_BYTES)
    mine = np.frombuffer(ours, np.uint8).reshape(shape)
    other = np.frombuffer(theirs, np.uint8).reshape(shape)
    found: list[int] = np.flatnonzero((mine != other).any(axis=1)).tolist()
    return [node * _PER_NODE + index for index in found]


class MerkleTree:
    """The content ids held, as 65,536 sums; the caller keeps threads apart."""

    __slots__ = ("_cells", "_dirty", "_last", "_nodes", "_waiting")

    def __init__(self, content_ids: Iterable[bytes] = ()) -> None:
        """Hold ``content_ids``, each once."""
        self._cells: NDArray[np.uint64] = np.zeros((BUCKETS, _WORDS), np.uint64)
        self._last: NDArray[np.uint16] = np.empty(BUCKETS, np.uint16)
        """Which id of a chunk was the last for a bucket: how those that share one are found."""
        self._waiting = bytearray()
        self._nodes: list[bytes] = [b""] * NODES
        self._dirty: NDArray[np.bool_] = np.ones(NODES, np.bool_)
        ids = iter(content_ids)
        while chunk := list(islice(ids, _CHUNK)):
            self.xor_batch(chunk)

    def __eq__(self, other: object) -> bool:
        """Two trees are equal when every bucket is."""
        return isinstance(other, MerkleTree) and bool(np.array_equal(self._table(), other._table()))

    __hash__ = None  # type: ignore[assignment]  # a tree changes

    def insert(self, content_id: bytes) -> None:
        """Hold one id more."""
        self.xor_batch((content_id,))

    def remove(self, content_id: bytes) -> None:
        """Hold one id less."""
        self.xor_batch((content_id,), removed=True)

    def xor_batch(self, content_ids: Sequence[bytes], *, removed: bool = False) -> None:
        """Hold ``content_ids``, or hold them no longer; XOR is its own inverse.

        The caller gives no id that is held already, and removes none that is not: neither could be
        seen here.
        """
        self._settle()
        self._xor(b"".join(content_ids), removed=removed)

    def extend(self, joined: bytes) -> None:
        """Hold the ids in ``joined`` as well, 32 bytes each; many calls with few cost little."""
        self._waiting += joined
        if len(self._waiting) >= WAITING_MAX * _ID_BYTES:
            self._settle()

    def _settle(self) -> None:
        waiting, self._waiting = self._waiting, bytearray()
        self._xor(waiting)

    def _table(self) -> NDArray[np.uint64]:
        """Return the buckets as rows of words, with everything that waited."""
        if self._waiting:
            self._settle()
        return self._cells

    def _xor(self, joined: bytes | bytearray, *, removed: bool = False) -> None:
        words = np.frombuffer(joined, np.uint64).reshape(-1, _XOR_WORDS)
        buckets = np.frombuffer(joined, ">u2")[:: _ID_BYTES // 2].astype(np.intp)
        for start in range(0, len(buckets), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            self._xor_chunk(buckets[chunk], words[chunk], removed=removed)

    def _xor_chunk(
        self, buckets: NDArray[np.intp], words: NDArray[np.uint64], *, removed: bool
    ) -> None:
        """Change each bucket as one row: ids that share one go into the row of the last of them."""
        change: Any = np.subtract if removed else np.add
        self._dirty[buckets >> 8] = True
        rows = self._cells.take(buckets, axis=0)
        sums, counts = rows[:, :_XOR_WORDS], rows[:, _XOR_WORDS]
        sums ^= words
        change(counts, np.uint64(1), out=counts)
        # Several ids of one bucket in one chunk would overwrite each other: all go into the row of
        # the last, found by writing each place over the one before.
        order = np.arange(len(buckets), dtype=np.uint16)
        self._last[buckets] = order
        last = self._last[buckets]
        shared = np.flatnonzero(last != order)
        if len(shared):
            into = last[shared]
            np.bitwise_xor.at(sums, into, words[shared])
            change.at(counts, into, np.uint64(1))
            rows[shared] = rows[into]
        # A row as one value of 40 bytes is written in half the time of a row of five.
        self._cells.view(_ROW)[:, 0][buckets] = rows.view(_ROW)[:, 0]

    def dump(self) -> bytes:
        """Return the buckets, `TABLE_BYTES` in this machine's order of bytes."""
        return self._table().tobytes()

    @classmethod
    def of_dump(cls, data: bytes | memoryview) -> MerkleTree:
        """Return the tree of a `dump`."""
        tree = cls()
        tree._cells = np.frombuffer(data, np.uint64).reshape(BUCKETS, _WORDS).copy()
        return tree

    def subtract(self, other: MerkleTree) -> None:
        """Hold none of the ids that ``other`` holds; all of them are held here."""
        ids, mine, theirs = _XOR_WORDS, self._table(), other._table()
        np.bitwise_xor(mine[:, :ids], theirs[:, :ids], out=mine[:, :ids])
        self._dirty |= (theirs[:, ids].reshape(NODES, _PER_NODE) != 0).any(axis=1)
        mine[:, ids] -= theirs[:, ids]

    def add(self, other: MerkleTree) -> None:
        """Hold the ids that ``other`` holds as well; none of them is held here."""
        ids, mine, theirs = _XOR_WORDS, self._table(), other._table()
        np.bitwise_xor(mine[:, :ids], theirs[:, :ids], out=mine[:, :ids])
        self._dirty |= (theirs[:, ids].reshape(NODES, _PER_NODE) != 0).any(axis=1)
        mine[:, ids] += theirs[:, ids]

    def __len__(self) -> int:
        """How many ids are held."""
        return int(self._table()[:, _XOR_WORDS].sum())

    def buckets(self, node: int) -> bytes:
        """Return the 256 buckets of a level-1 node, each XOR ‖ count.

        Raises:
            StoreArgumentError: there is no such node.

        """
        if not 0 <= node < NODES:
            raise StoreArgumentError(f"node must be 0 to {NODES - 1}", where="MerkleTree.buckets")
        rows = self._table()[node * _PER_NODE : (node + 1) * _PER_NODE].copy()
        counts = rows[:, _XOR_WORDS]
        rows[:, _XOR_WORDS] = counts.astype(">u8").view(np.uint64)
        return rows.tobytes()

    def changed(self) -> list[tuple[int, bytes]]:
        """Return the nodes that changed since the last call, each with its buckets."""
        self._table()
        indexes: list[int] = np.flatnonzero(self._dirty).tolist()
        self._dirty[:] = False
        return [(index, self.buckets(index)) for index in indexes]

    def rehash(self, changed: Iterable[tuple[int, bytes]]) -> list[bytes]:
        """Return the 256 level-1 hashes, those of ``changed`` made anew.

        Touches nothing that `xor_batch` touches: the tree may change meanwhile.
        """
        for index, buckets in changed:
            self._nodes[index] = sha3_256(buckets).digest()
        return self._nodes.copy()

    def nodes(self) -> list[bytes]:
        """Return the 256 level-1 hashes; hashes what changed since the last call."""
        return self.rehash(self.changed())

    def root(self) -> bytes:
        """Return the hash of everything; equal roots mean equal sets between honest peers."""
        return root_of(self.nodes())
