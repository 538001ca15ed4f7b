"""Virtual time and the one queue of everything that is to happen.

Time stands still while a tick is dealt with and then jumps to the next tick in which something
happens. Events of one tick keep the order in which they were scheduled, so that one seed gives one
run.
"""

from __future__ import annotations

import heapq
from typing import Final

from luxrelay.errors import SimulationError

EVENTS_MAX: Final = 50_000_000
"""Events that may wait at once unless told otherwise; a gigabyte or several."""

Event = tuple[object, ...]
"""What is to happen; the queue does not look into it."""


class EventQueue:
    """Virtual time in whole ticks, and what happens when.

    A heap holds the ticks, a dictionary the events of each: thousands of events share one entry of
    the heap, and those of one tick are dealt with as one batch, as a driver deals with what it
    finds ready.

    Args:
        tick_s: Length of a tick, seconds. An event happens at the first tick after its time, so
            never early and at most one tick late.
        events_max: Events that may wait at once.

    """

    __slots__ = ("_buckets", "_events_max", "_heap", "_rate", "_tick", "now", "size")

    def __init__(self, *, tick_s: float = 0.001, events_max: int = EVENTS_MAX) -> None:
        self._rate = 1 / tick_s
        self._events_max = events_max
        self._heap: list[int] = []
        self._buckets: dict[int, list[Event]] = {}
        self._tick = 0
        self.now = 0.0
        """Virtual seconds since the start."""
        self.size = 0
        """Events that wait."""

    def add(self, at_s: float, event: Event) -> None:
        """Let ``event`` happen at the first tick after ``at_s``, and after the current one.

        Raises:
            SimulationError: ``events_max`` events wait already.

        """
        tick = int(at_s * self._rate) + 1
        if tick <= self._tick:
            tick = self._tick + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            self._buckets[tick] = [event]
            heapq.heappush(self._heap, tick)
        else:
            bucket.append(event)
        self.size += 1
        if self.size > self._events_max:
            raise SimulationError(
                f"more than {self._events_max:,} events wait", where=f"{self.now:.3f} s"
            )

    def next_tick(self, until_s: float) -> list[Event]:
        """Move on to the next tick with events and return them; empty when none is before a time.

        Args:
            until_s: Virtual seconds; without an event up to there, time moves to it.

        """
        if not self._heap or self._heap[0] > until_s * self._rate:
            self.now = max(self.now, until_s)
            self._tick = max(self._tick, int(until_s * self._rate))
            return []
        self._tick = heapq.heappop(self._heap)
        self.now = self._tick / self._rate
        events = self._buckets.pop(self._tick)
        self.size -= len(events)
        return events
