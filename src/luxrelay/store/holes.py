"""`HeldRuns`: the sequences held beyond the contiguous head, and the holes between. Pure.

Runs are disjoint, never adjacent, sorted. There is at most one per stored message, so their number
is bounded by ``max_storage_bytes``. Adding costs O(log runs) and one list insertion.

Source: decisions P25; LP-6421 §2.3.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class HeldRuns:
    """A set of sequence numbers as sorted runs ``[first, last]``."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self._firsts, seq) - 1
        return at >= 0 and seq <= self._lasts[at]

    def runs(self) -> list[tuple[int, int]]:
        """Return the runs in ascending order."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def copy(self) -> HeldRuns:
        """Return an independent copy."""
        twin = HeldRuns()
        twin._firsts = self._firsts.copy()
        twin._lasts = self._lasts.copy()
        return twin

    def add(self, seq: int) -> None:
        """Hold ``seq``, joined to the runs it touches."""
        firsts, lasts = self._firsts, self._lasts
        at = bisect_right(firsts, seq)
        if at and seq <= lasts[at - 1]:
            return
        joins_before = at > 0 and lasts[at - 1] + 1 == seq
        joins_after = at < len(firsts) and firsts[at] == seq + 1
        if joins_before and joins_after:
            lasts[at - 1] = lasts.pop(at)
            del firsts[at]
        elif joins_before:
            lasts[at - 1] = seq
        elif joins_after:
            firsts[at] = seq
        else:
            firsts.insert(at, seq)
            lasts.insert(at, seq)

    def take_from(self, head: int) -> int:
        """Give up every run that begins at or below ``head + 1``; return the head they lead to."""
        taken = 0
        while taken < len(self._firsts) and self._firsts[taken] <= head + 1:
            head = max(head, self._lasts[taken])
            taken += 1
        del self._firsts[:taken]
        del self._lasts[:taken]
        return head

    def gaps(self, first: int, last: int, limit: int) -> list[tuple[int, int]]:
        """Return the lowest ``limit`` maximal gaps within ``[first, last]``."""
        found: list[tuple[int, int]] = []
        at = bisect_left(self._lasts, first)
        while first <= last and len(found) < limit:
            if at == len(self._firsts):
                found.append((first, last))
                break
            if first < self._firsts[at]:
                found.append((first, min(self._firsts[at] - 1, last)))
            first = self._lasts[at] + 1
            at += 1
        return found
