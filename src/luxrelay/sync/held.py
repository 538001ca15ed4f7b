"""Interval lists: which sequences a relay holds of a namespace, in a few bytes.

Sequences are dense, so what is held of a namespace is nearly always one interval; a node that
compares interval lists learns in one answer everything that it lacks, except forks of a slot.

Source: ADR 0006 §8; decisions P25, P26, J6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from luxrelay.bus import constants as c
from luxrelay.bus.header import NamespaceId
from luxrelay.sync.heads import SeqRange

BLOCK_SEQS: Final = 256
"""Sequences that one digest sums up (P26)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLane:
    """What a relay holds of one namespace."""

    namespace_id: NamespaceId
    """The namespace."""
    parent_id: NamespaceId
    """Its parent when it is a lane, else the namespace itself (J6)."""
    spans: tuple[SeqRange, ...]
    """Held sequences as ascending intervals, never adjacent."""
    cut: bool = False
    """There are more intervals above these than the relay names."""
    wire_bytes: int = 0
    """Bytes it took on the wire."""


def to_steps(spans: Iterable[SeqRange]) -> list[int]:
    """Return ascending intervals as steps: the lowest sequence, further sequences of the interval,
    sequences missing after it, further sequences of the next interval, and so on.
    """  # noqa: D205 - one definition
    steps: list[int] = []
    end = 0
    for span in spans:
        steps += (span.first - end - (1 if end else 0), span.last - span.first)
        end = span.last
    return steps


def from_steps(steps: Sequence[int]) -> tuple[SeqRange, ...]:
    """Return the intervals of some steps.

    Raises:
        ValueError: the number of steps is odd, two intervals touch, or a sequence is no u64 or 0.

    """
    if len(steps) % 2:
        raise ValueError("an interval without an end")
    spans: list[SeqRange] = []
    end = 0
    for index in range(0, len(steps), 2):
        if not steps[index]:
            raise ValueError("two intervals that touch, or sequence 0")
        first = end + steps[index] + (1 if end else 0)
        end = first + steps[index + 1]
        if end > c.MAX_U64:
            raise ValueError("a sequence above 2^64-1")
        spans.append(SeqRange(first, end))
    return tuple(spans)


def held_spans(
    earliest: int, latest: int, gaps: Sequence[tuple[int, int]], limit: int
) -> tuple[tuple[SeqRange, ...], bool]:
    """Return what lies between ``earliest`` and ``latest`` outside ``gaps``, and whether it is cut.

    Args:
        earliest: Lowest sequence held; 0 when nothing is.
        latest: Highest sequence held.
        gaps: Ascending missing ranges; ``limit`` of them or more may be a part only.
        limit: Intervals at most.

    """
    if not earliest:
        return (), False
    spans: list[SeqRange] = []
    begin = earliest
    for first, last in gaps[:limit]:
        if first > begin:
            spans.append(SeqRange(begin, min(first - 1, latest)))
        begin = max(begin, last + 1)
    if len(gaps) >= limit:
        return tuple(spans), True  # what follows may have holes that were not named
    if begin <= latest:
        spans.append(SeqRange(begin, latest))
    return tuple(spans), False


def lacking(theirs: Iterable[SeqRange], ours: Sequence[SeqRange]) -> list[SeqRange]:
    """Return what is in ``theirs`` and not in ``ours``; both ascend and are disjoint."""
    found: list[SeqRange] = []
    at = 0
    for span in theirs:
        first = span.first
        while at < len(ours) and ours[at].last < first:
            at += 1
        index = at
        while index < len(ours) and ours[index].first <= span.last:
            if ours[index].first > first:
                found.append(SeqRange(first, ours[index].first - 1))
            first = max(first, ours[index].last + 1)
            index += 1
        if first <= span.last:
            found.append(SeqRange(first, span.last))
    return found
