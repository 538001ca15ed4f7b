"""Ascending, disjoint ranges of sequences, such as gaps that were told and may still be filled.

Pure functions over lists of ``(first, last)``, both inclusive.

Source: LP-6421 §2.3; decisions P25, P48.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

SeqRanges = Sequence[tuple[int, int]]
"""Ascending and disjoint, each with its first and last sequence."""


def inside(ranges: SeqRanges, seq: int) -> bool:
    """Return True when a sequence lies in one of the ranges."""
    index = bisect_right(ranges, seq, key=_first) - 1
    return index >= 0 and seq <= ranges[index][1]


def without(ranges: SeqRanges, seq: int) -> list[tuple[int, int]]:
    """Return the ranges without one sequence; they may be one more."""
    if not inside(ranges, seq):
        return list(ranges)
    index = bisect_right(ranges, seq, key=_first) - 1
    first, last = ranges[index]
    parts = [(first, seq - 1), (seq + 1, last)]
    rest = [part for part in parts if part[0] <= part[1]]
    return [*ranges[:index], *rest, *ranges[index + 1 :]]


def _first(part: tuple[int, int]) -> int:
    return part[0]
