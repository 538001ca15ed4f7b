"""Heads and holes: a node's reach in a namespace, and the gaps below it.

A head moves contiguously only: it is the highest sequence below which nothing is missing, never
merely the highest one seen. What is missing is kept as ascending, disjoint, inclusive ranges.

Source: decisions P22, P25, P26, J6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from luxrelay.bus.header import NamespaceId


class SeqRange(NamedTuple):
    """Sequences from ``first`` to ``last``, both included."""

    first: int
    """Lowest sequence, 1 or more."""
    last: int
    """Highest sequence, ``first`` or more."""

    @property
    def size(self) -> int:
        """How many sequences the range holds."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerHead:
    """What a store holds of one namespace (P22); zeros and empty bytes for an unknown one."""

    namespace_id: NamespaceId
    """The namespace, 20 bytes."""
    parent_id: NamespaceId
    """Its parent when it is a lane, else the namespace itself (J6)."""
    earliest_seq: int = 0
    """Lowest sequence held; 0 when nothing is."""
    contiguous_seq: int = 0
    """Highest sequence without a hole below it (P25)."""
    latest_seq: int = 0
    """Highest sequence held."""
    finalized_seq: int = 0
    """Highest finalized sequence; 0 without a finality oracle."""
    latest_header_hash: bytes = b""
    """headerHash of the latest message, 32 bytes; empty when nothing is held."""
    latest_timestamp: int = 0
    """Timestamp of the latest message, Unix milliseconds."""
    messages: int = 0
    """Messages held."""
    size_bytes: int = 0
    """Bytes they take, headers and blobs."""
    window_start_ms: int = 0
    """Messages older than this have expired at the holder; 0 when it does not say."""
    watermark: int | None = None
    """Up to where the archive has read; None when none reads the namespace (J8)."""
    floor_seq: int = 0
    """Nothing at or below is expected any more; 0 when the holder does not say."""

    @property
    def plausible(self) -> bool:
        """True when the bounds of what is held do not contradict each other."""
        return self.earliest_seq <= self.latest_seq

    @property
    def reach(self) -> SeqRange | None:
        """What may be asked for: from the earliest to the latest; None when nothing is held."""
        return SeqRange(self.earliest_seq, self.latest_seq) if self.earliest_seq else None


class Disagreement(NamedTuple):
    """Two peers whose latest message has one sequence and two hashes (P26)."""

    namespace_id: NamespaceId
    """The namespace concerned."""
    seq: int
    """The sequence both report as their latest."""
    peers: tuple[str, ...]
    """Who took part, one peer for each hash, in the order given."""


def holes_between(first: int, last: int, held: Iterable[int]) -> list[SeqRange]:
    """Return what of ``first``…``last`` is absent from the ascending sequences ``held``.

    Repeated sequences (candidates of one slot) and those outside the range are allowed.
    """
    holes: list[SeqRange] = []
    expected = first
    for seq in held:
        if seq < expected:
            continue
        if seq > last:
            break
        if seq > expected:
            holes.append(SeqRange(expected, seq - 1))
        expected = seq + 1
    if expected <= last:
        holes.append(SeqRange(expected, last))
    return holes


def overlap(left: SeqRange, right: SeqRange) -> SeqRange | None:
    """Return the sequences in both ranges, or None when there is none."""
    first, last = max(left.first, right.first), min(left.last, right.last)
    return SeqRange(first, last) if first <= last else None


def missing_up_to(own: PeerHead | None, gaps: Sequence[SeqRange], latest: int) -> list[SeqRange]:
    """Return the sequences from 1 to ``latest`` that we do not hold, ascending.

    Args:
        own: Our head; None when we have never seen the namespace.
        gaps: Our holes between our contiguous head and our latest sequence, ascending.
        latest: The highest sequence anybody reports.

    """
    contiguous = own.contiguous_seq if own else 0
    reached = max(own.latest_seq if own else 0, contiguous)
    holes = [
        SeqRange(max(gap.first, contiguous + 1), min(gap.last, latest))
        for gap in gaps
        if gap.last > contiguous and gap.first <= latest
    ]
    if latest > reached:
        holes.append(SeqRange(reached + 1, latest))
    return holes


def disagreements(heads: Mapping[str, PeerHead]) -> list[Disagreement]:
    """Return where peers name one latest sequence with different hashes; the keys are peers.

    A difference is no proof of a lie: several writers may sign one sequence (H17, J11). It says
    that both answers are worth fetching.

    Source: P26.
    """
    seen: dict[int, dict[bytes, str]] = {}
    namespaces: dict[int, NamespaceId] = {}
    for peer, head in heads.items():
        if head.latest_seq and head.latest_header_hash:
            seen.setdefault(head.latest_seq, {}).setdefault(head.latest_header_hash, peer)
            namespaces.setdefault(head.latest_seq, head.namespace_id)
    return [
        Disagreement(namespaces[seq], seq, tuple(by_hash.values()))
        for seq, by_hash in seen.items()
        if len(by_hash) > 1
    ]
