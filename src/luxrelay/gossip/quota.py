"""Bytes that may be accepted on a topic in a second, so that none takes all of the node.

A message is measured before its validation and paid for when it is accepted: forged ones cost the
topic nothing, and many at once may pass before the first is paid for, which the bounds of what is
in validation limit.

Source: LP-6420, Security Considerations; decision G24; 20-47.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 3.0
"""Seconds' worth of bytes that a topic may take at once (S1)."""


class TopicQuota:
    """One bucket of bytes for each topic in use; a rate of 0 limits nothing."""

    __slots__ = ("_buckets", "_rate")

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._buckets: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def exceeded(self, topic: str, now: float) -> bool:
        """Return True while nothing is left for a topic."""
        return bool(self._rate) and self._left(topic, now) <= 0

    def take(self, topic: str, size: int, now: float) -> None:
        """Pay for an accepted message; the last one may overdraw."""
        if self._rate:
            bucket = self._buckets.get(topic)
            # Messages of one instant find nothing to add.
            left = bucket[0] if bucket is not None and bucket[1] == now else self._left(topic, now)
            self._buckets[topic] = (left - size, now)

    def forget(self, topic: str) -> None:
        """Forget a topic that we left."""
        self._buckets.pop(topic, None)

    def _left(self, topic: str, now: float) -> float:
        full = self._rate * BURST_S
        bucket = self._buckets.get(topic)
        if bucket is None:
            return full
        return min(full, bucket[0] + self._rate * max(0.0, now - bucket[1]))
