"""Answers that their clients have not taken yet, in bytes; who holds most loses its oldest. Pure.

A client that asks for pages and reads nothing leaves them with this node until ``stall_ms``. All
such answers have one budget, those of clients without token a quarter of it. An answer that finds
no room ends the oldest one of whoever holds most, which may be its own client: an honest reader
loses nothing beside one that hoards. One answer always fits.

Source: architecture, rule 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Answer:
    def __init__(self, owner: bytes, size: int, end: Callable[[], object]) -> None:
        self.owner = owner
        self.size = size
        self.end = end


class Unread:
    """Counts answers on their way."""

    def __init__(self, bytes_max: int) -> None:
        """Start with none of ``bytes_max``."""
        self._max = bytes_max
        self._answers: dict[_Answer, None] = {}
        self._of: dict[bytes, int] = {}
        """Bytes by owner."""
        self.ended = 0
        """Answers that made room for others."""

    @property
    def held(self) -> int:
        """Bytes held now."""
        return sum(self._of.values())

    @contextmanager
    def holding(self, owner: bytes, size: int, end: Callable[[], object]) -> Iterator[None]:
        """Count an answer of ``owner`` while it is taken; ``end`` is called if it loses its room.

        Units: bytes.
        """
        answer = _Answer(owner, size, end)
        self._of[owner] = self._of.get(owner, 0) + size
        while self._answers and self.held > self._max:
            self._make_room()
        self._answers[answer] = None
        try:
            yield
        finally:
            if answer in self._answers:
                self._leave(answer)

    def _make_room(self) -> None:
        holders = {each.owner for each in self._answers}
        most = max(holders, key=lambda owner: self._of[owner])
        oldest = next(each for each in self._answers if each.owner == most)
        self._leave(oldest)
        self.ended += 1
        oldest.end()

    def _leave(self, answer: _Answer) -> None:
        del self._answers[answer]
        self._of[answer.owner] -= answer.size
        if not self._of[answer.owner]:
            del self._of[answer.owner]
