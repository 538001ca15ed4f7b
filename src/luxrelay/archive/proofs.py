"""Day roots and proofs of inclusion: that a message stands in the archive of its day. Pure.

A day of a namespace is a Merkle tree over the content ids of its messages, in order of sequence
and content id:

    leaf   := SHA3-256(0x00 ‖ seq u64 ‖ content id)
    node   := SHA3-256(0x01 ‖ left ‖ right)        the left side is the largest power of two
    root   := SHA3-256(0x02 ‖ "lux.archive.day.v1" ‖ namespace 20 ‖ day u32 ‖ count u64 ‖ top node)

The tree is that of RFC 9162 with another hash: leaves, nodes and roots cannot be taken for one
another, no leaf is repeated, and a proof names its place. A day is its number since 1970-01-01.
Whoever holds a day's root can check that a message belongs to it without trusting the archive.

Source: LP-6440's proofs of inclusion; decision J11.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from luxrelay.errors import ArchiveArgumentError

TAG: Final = b"lux.archive.day.v1"
DEPTH_MAX: Final = 64
"""Longest proof, nodes: a day has at most 2⁶⁴ messages."""
_LEAF, _NODE, _ROOT = b"\x00", b"\x01", b"\x02"
_U64: Final = Struct(">Q")
_HEAD: Final = Struct(">20sIQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class InclusionProof:
    """That a message is the one at ``index`` of its namespace's day."""

    namespace: bytes
    """The namespace, 20 bytes."""
    day: int
    """Days since 1970-01-01 UTC."""
    count: int
    """Messages of that day."""
    index: int
    """Place of the message, from 0, in order of sequence and content id."""
    path: tuple[bytes, ...]
    """The siblings from the leaf up, 32 bytes each."""

    def root(self, seq: int, content_id: bytes) -> bytes | None:
        """Return the day's root that this proof leads to; None when its shape is impossible."""
        if not 0 <= self.index < self.count or len(self.path) > DEPTH_MAX:
            return None
        node, place, last = leaf(seq, content_id), self.index, self.count - 1
        for sibling in self.path:
            if last == 0 or len(sibling) != 32:
                return None
            if place & 1 or place == last:
                node = _join(sibling, node)
                while place and not place & 1:
                    place, last = place >> 1, last >> 1
            else:
                node = _join(node, sibling)
            place, last = place >> 1, last >> 1
        return None if last else seal(self.namespace, self.day, self.count, node)

    def holds(self, seq: int, content_id: bytes, root: bytes) -> bool:
        """Return True when the message stands under ``root``."""
        return self.root(seq, content_id) == root


def leaf(seq: int, content_id: bytes) -> bytes:
    """Return the leaf of one message."""
    return hashlib.sha3_256(_LEAF + _U64.pack(seq) + content_id).digest()


def day_root(namespace: bytes, day: int, messages: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the root over (sequence, content id) pairs, in whatever order they come.

    Raises:
        ArchiveArgumentError: there are none: a day without messages has no root.

    """
    leaves = _leaves(messages)
    return seal(namespace, day, len(leaves), _top(leaves))


def prove(
    namespace: bytes, day: int, messages: Iterable[tuple[int, bytes]], wanted: tuple[int, bytes]
) -> InclusionProof:
    """Return the proof that ``wanted`` is one of ``messages``.

    Raises:
        ArchiveArgumentError: it is none of them.

    """
    ordered = sorted(messages)
    if wanted not in ordered:
        raise ArchiveArgumentError("the message is not of that day", where="prove")
    index = ordered.index(wanted)
    path = tuple(_path([leaf(*each) for each in ordered], index))
    return InclusionProof(namespace=namespace, day=day, count=len(ordered), index=index, path=path)


def seal(namespace: bytes, day: int, count: int, top: bytes) -> bytes:
    """Return the root of a day: its top node, bound to namespace, day and count."""
    head = _HEAD.pack(namespace, day, count)
    return hashlib.sha3_256(_ROOT + TAG + head + top).digest()


def _leaves(messages: Iterable[tuple[int, bytes]]) -> list[bytes]:
    leaves = [leaf(*each) for each in sorted(messages)]
    if not leaves:
        raise ArchiveArgumentError("a day without messages has no root", where="day_root")
    return leaves


def _join(left: bytes, right: bytes) -> bytes:
    return hashlib.sha3_256(_NODE + left + right).digest()


def _level(nodes: Sequence[bytes]) -> list[bytes]:
    """Return the next level; an odd last node rises as it is."""
    joined = [_join(*nodes[at : at + 2]) for at in range(0, len(nodes) - 1, 2)]
    return joined + list(nodes[len(joined) * 2 :])


def _top(nodes: Sequence[bytes]) -> bytes:
    while len(nodes) > 1:
        nodes = _level(nodes)
    return nodes[0]


def _path(nodes: Sequence[bytes], index: int) -> list[bytes]:
    path = []
    while len(nodes) > 1:
        sibling = index ^ 1
        if sibling < len(nodes):
            path.append(nodes[sibling])
        nodes, index = _level(nodes), index >> 1
    return path
