"""A histogram with fixed buckets; any thread may observe."""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import Final

BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000)
"""Upper bounds, milliseconds; one more bucket takes what lies above."""


class LatencyHistogram:
    """Counts observations by bucket and keeps their sum."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._counts = [0] * (len(BUCKETS_MS) + 1)
        self._sum = 0

    def observe(self, value_ms: int) -> None:
        """Count one value; a negative one, from a peer's clock ahead of ours, counts as 0."""
        value = max(0, value_ms)
        with self._lock:
            self._counts[bisect_left(BUCKETS_MS, value)] += 1
            self._sum += value

    def snapshot(self) -> tuple[list[tuple[str, int]], int]:
        """Return cumulative (upper bound, count) pairs ending with ``+Inf``, and the sum in ms."""
        with self._lock:
            counts, total_ms = list(self._counts), self._sum
        cumulative, running = [], 0
        for bound, count in zip((*map(str, BUCKETS_MS), "+Inf"), counts, strict=True):
            running += count
            cumulative.append((bound, running))
        return cumulative, total_ms
