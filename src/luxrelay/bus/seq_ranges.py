"""Ascending, disjoint ranges of sequences, such as gaps that were told and may still be filled.

Pure functions over lists of ``(first, last)``, both inclusive, and what a subscriber keeps of them.

Source: LP-6421 §2.3; decisions P25, P48.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from luxrelay.bus.header import NamespaceId

SeqRanges = Sequence[tuple[int, int]]
"""Ascending and disjoint, each with its first and last sequence."""
GAPS_MAX: Final = 1024
"""Told gaps of one namespace that a subscriber remembers."""


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


@dataclass(slots=True)
class ToldGaps:
    """Gaps that a subscriber was told and that may be filled still; a copy is all that it needs."""

    ranges: dict[NamespaceId, list[tuple[int, int]]] = field(default_factory=dict)
    """By namespace, ascending; `GAPS_MAX` of each, the oldest are forgotten."""
    _filled: tuple[NamespaceId, int] | None = None

    def tell(self, namespace_id: NamespaceId, first: int, last: int) -> None:
        """Remember a gap, both ends inclusive."""
        gaps = self.ranges.setdefault(namespace_id, [])
        if gaps and first <= gaps[-1][1] + 1:  # told again, from an earlier begin
            gaps[:] = _merged(sorted((*gaps, (first, last))))
        else:
            gaps.append((first, last))
        del gaps[:-GAPS_MAX]

    def fill(self, namespace_id: NamespaceId, seq: int) -> bool:
        """Take a sequence out of the gaps; False when it was in none a moment ago."""
        gaps = self.ranges.get(namespace_id, [])
        if not inside(gaps, seq):
            return self._filled == (namespace_id, seq)  # another candidate of the slot
        self._filled = namespace_id, seq
        rest = without(gaps, seq)
        if rest:
            self.ranges[namespace_id] = rest[-GAPS_MAX:]
        else:
            del self.ranges[namespace_id]
        return True

    def spans(self) -> Iterator[tuple[NamespaceId, int, int]]:
        """Yield what to ask for: namespace, first and last sequence, as they stand now."""
        for namespace_id, gaps in list(self.ranges.items()):
            for first, last in list(gaps):
                yield namespace_id, first, last


def _merged(ranges: SeqRanges) -> list[tuple[int, int]]:
    """Return ascending ranges, those joined that meet."""
    found: list[tuple[int, int]] = []
    for first, last in ranges:
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def _first(part: tuple[int, int]) -> int:
    return part[0]
