"""Counters of the server, for the metrics of LP-6421 §8.

Source: LP-6421 §8 (`relay_sync_requests`, `relay_sync_latency_ms`).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from luxrelay.sync.rpc.mishaps import Mishaps

LATENCY_BOUNDS_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000)
"""Upper bounds of the latency buckets, milliseconds, inclusive; one more bucket takes the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long the calls of one method took."""

    counts: tuple[int, ...]
    """Calls in each bucket of `LATENCY_BOUNDS_MS`, not cumulative; one more than bounds."""
    sum_ms: float
    """All durations together, milliseconds."""

    @property
    def count(self) -> int:
        """Calls, all together."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncServerStats:
    """A snapshot of the server's counters; they only grow, except the last ones named *now*."""

    requests: dict[tuple[str, str], int]
    """Finished calls by method and gRPC status name, refused ones included."""
    latency: dict[str, Latency]
    """Durations by method; a stream counts until it ends."""
    messages_sent: int
    """Messages in pages and GetMessages answers."""
    bytes_sent: int
    """Their header and blob bytes."""
    heads_sent: int
    """Heads in answers."""
    items_published: int
    """Items handed to the publisher."""
    validator_pages: int
    """Pages that a proven validator asked for (P33)."""
    active: int
    """Calls being answered now."""
    waiting: int = 0
    """Calls that wait for their turn at the store now."""
    held_bytes: int = 0
    """Bytes read and not yet taken by their readers, now."""
    stalled: int = 0
    """Calls ended because their reader took nothing."""
    cost_refused: int = 0
    """Pieces of work refused because their caller had cost too much, at every door."""
    cost_waited: int = 0
    """Pieces of work that had to wait for it."""
    cost_strangers_s: float = 0.0
    """CPU time that callers without a token were charged, seconds."""
    cost_payers: int = 0
    """Callers whose cost is remembered now."""
    cost_pace: float = 1.0
    """How many times as long this machine takes as the one on which prices were measured."""
    connections: int = 0
    """Connections to the port now."""
    connections_refused: int = 0
    """Connections closed because their address has or opens too many."""
    connections_crowded: int = 0
    """Connections that gave their place to a newcomer."""
    connections_silent: int = 0
    """Connections closed because they said nothing in time."""
    streams_crowded: int = 0
    """Streams that gave their place to a newcomer when all were taken."""

    mishaps: Mapping[str, int] = field(default_factory=dict)
    """Calls that ended by an exception nobody expected, by call and class of the exception."""

    @property
    def errors(self) -> int:
        """Calls that ended with anything but OK or a client that left."""
        good = {"OK", "CANCELLED"}
        return sum(count for (_, code), count in self.requests.items() if code not in good)


class SyncCounters:
    """The counters themselves; any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str], int] = {}
        self._latency: dict[str, list[int]] = {}
        self._sum_ms: dict[str, float] = {}
        self.mishaps = Mishaps()
        """Exceptions that nobody expected."""
        self._messages = self._bytes = self._heads = self._items = self._active = 0
        self._validator_pages = 0

    def began(self) -> None:
        """Count a call that is being answered."""
        with self._lock:
            self._active += 1

    def ended(self, method: str, code: str, seconds: float) -> None:
        """Count how a call ended."""
        milliseconds = seconds * 1000.0
        with self._lock:
            self._active -= 1
            self._requests[method, code] = self._requests.get((method, code), 0) + 1
            buckets = self._latency.setdefault(method, [0] * (len(LATENCY_BOUNDS_MS) + 1))
            buckets[bisect_left(LATENCY_BOUNDS_MS, milliseconds)] += 1
            self._sum_ms[method] = self._sum_ms.get(method, 0.0) + milliseconds

    def validator(self) -> None:
        """Count a page that a proven validator asks for."""
        with self._lock:
            self._validator_pages += 1

    def sent(self, *, messages: int = 0, size_bytes: int = 0, heads: int = 0) -> None:
        """Count what was sent."""
        with self._lock:
            self._messages += messages
            self._bytes += size_bytes
            self._heads += heads

    def published(self, items: int) -> None:
        """Count items handed to the publisher."""
        with self._lock:
            self._items += items

    def snapshot(self) -> SyncServerStats:
        """Return the counters as they stand."""
        with self._lock:
            return SyncServerStats(
                requests=dict(self._requests),
                latency={
                    method: Latency(counts=tuple(buckets), sum_ms=self._sum_ms[method])
                    for method, buckets in self._latency.items()
                },
                messages_sent=self._messages,
                bytes_sent=self._bytes,
                heads_sent=self._heads,
                items_published=self._items,
                validator_pages=self._validator_pages,
                active=self._active,
                mishaps=self.mishaps.counts(),
            )
