"""Names that come due, in order of time.

Source: architecture, rule 2 (`wake_at`, `wake`).
"""

from __future__ import annotations

import heapq


class Schedule:
    """At most one time for each name."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, name: str) -> bool:
        return name in self._at

    def put(self, name: str, at: float) -> None:
        """Have ``name`` come due at ``at``, and not when it would have before."""
        self._at[name] = at
        heapq.heappush(self._heap, (at, name))
        if len(self._heap) > 64 + 4 * len(self._at):
            self._heap = [(time, one) for one, time in self._at.items()]
            heapq.heapify(self._heap)

    def remove(self, name: str) -> None:
        """Forget a name, if it is there."""
        self._at.pop(name, None)

    def when(self, name: str) -> float | None:
        """Return when a name comes due."""
        return self._at.get(name)

    def next(self) -> float | None:
        """Return the earliest time."""
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float, limit: int | None = None) -> list[str]:
        """Return and forget names that are due, earliest first, ``limit`` at most."""
        out: list[str] = []
        while (limit is None or len(out) < limit) and (at := self.next()) is not None and at <= now:
            name = heapq.heappop(self._heap)[1]
            del self._at[name]
            out.append(name)
        return out

    def furthest(self) -> str | None:
        """Return the name that comes due last."""
        return max(self._at, key=self._at.__getitem__) if self._at else None
