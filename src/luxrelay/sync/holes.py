"""`HoleList`: what is missing in one namespace, and who has been asked for it in vain.

Peers are bits of an integer, so that a hole and its history are three numbers.

Source: P25: holes are tracked and asked for again from other peers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from luxrelay.sync.heads import SeqRange, overlap


class Hole(NamedTuple):
    """Missing sequences that share one history."""

    first: int
    """Lowest missing sequence."""
    last: int
    """Highest missing sequence."""
    tried: int
    """Bit *i* is set when peer *i* was asked and did not deliver."""

    @property
    def span(self) -> SeqRange:
        """The sequences alone."""
        return SeqRange(self.first, self.last)


class HoleList:
    """Ascending, disjoint holes, at most ``holes_max`` of them.

    When there would be more, the highest ones are forgotten and counted in `dropped`; the next
    catch-up finds them again, because the store still knows that they are missing.
    """

    __slots__ = ("_holes", "_max", "dropped")

    def __init__(self, holes_max: int) -> None:
        self._holes: list[Hole] = []
        self._max = holes_max
        self.dropped = 0

    def __iter__(self) -> Iterator[Hole]:
        return iter(self._holes)

    def __len__(self) -> int:
        return len(self._holes)

    def __getitem__(self, index: int) -> Hole:
        return self._holes[index]

    def add(self, spans: Iterable[SeqRange]) -> None:
        """Append ascending spans above everything held so far, untried."""
        self._keep(self._holes + [Hole(span.first, span.last, 0) for span in spans])

    def remove(self, span: SeqRange) -> None:
        """Forget what lies in ``span``: it is held now, or gone everywhere."""
        if self._holes and self._holes[0].first <= span.last:
            self.settle(span, [span], 0)

    def settle(self, covered: SeqRange, delivered: Sequence[SeqRange], bit: int) -> None:
        """Take the answer of one peer into account.

        Args:
            covered: What the answer speaks about.
            delivered: What it brought, ascending; gone from the holes afterwards.
            bit: The peer; set on whatever of ``covered`` is still missing.

        """
        holes: list[Hole] = []
        start = 0  # both lists ascend, so what ends before a hole is passed over once
        for hole in self._holes:
            inside = overlap(hole.span, covered)
            if inside is None:
                holes.append(hole)
                continue
            if hole.first < inside.first:
                holes.append(Hole(hole.first, inside.first - 1, hole.tried))
            while start < len(delivered) and delivered[start].last < inside.first:
                start += 1
            expected = inside.first
            for index in range(start, len(delivered)):
                span = delivered[index]
                if span.first > inside.last:
                    break
                if span.first > expected:
                    holes.append(Hole(expected, span.first - 1, hole.tried | bit))
                expected = span.last + 1
            if expected <= inside.last:
                holes.append(Hole(expected, inside.last, hole.tried | bit))
            if hole.last > inside.last:
                holes.append(Hole(inside.last + 1, hole.last, hole.tried))
        self._keep(holes)

    def _keep(self, holes: list[Hole]) -> None:
        merged: list[Hole] = []
        for hole in holes:
            before = merged[-1] if merged else None
            if before and before.last + 1 == hole.first and before.tried == hole.tried:
                merged[-1] = Hole(before.first, hole.last, hole.tried)
            else:
                merged.append(hole)
        self.dropped += max(0, len(merged) - self._max)
        self._holes = merged[: self._max]


def spans_of(seqs: Iterable[int]) -> list[SeqRange]:
    """Return ascending sequences, repeats allowed, as ranges."""
    spans: list[SeqRange] = []
    for seq in seqs:
        if spans and seq <= spans[-1].last + 1:
            spans[-1] = SeqRange(spans[-1].first, max(seq, spans[-1].last))
        else:
            spans.append(SeqRange(seq, seq))
    return spans
