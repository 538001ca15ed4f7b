"""The deletion cycle: expired messages go, in chunks.

Theory of operation
-------------------
*Decides* how much one cycle removes and whether the next should come soon.
*Does not know* when it runs; the node calls it every GC_INTERVAL, or after GC_SHORT_INTERVAL when
``hit_limit`` is true.
*Machine*: a slice whose whole span is past goes as one, whatever it holds: one batch for its sums,
then its table is dropped (`slices`). Then the slice that is partly past is swept, ``gc_chunk_size``
messages at a time: their rows go in one batch, writers are let in, repeat. The same with what a
shortened retention window has aged out although its expiry says later, and with what stands above
the low-water mark of a quota, or of the store, that was full since the last cycle (P13).
*An archive that has not read a message yet* keeps it past its TTL, not past the retention window:
it gets a row of kind ``held``, is served to the archive only, and goes with the first cycle after
the watermark has passed it (J8). Its slice is swept instead of dropped.
*Thinned namespaces* lose most of what is older than five minutes, if there are any
(`special_batches`).
*A clock that jumps* deletes nothing by age (`ClockGuard`); making room goes on, it asks for no
time.
*Cost*: of a slice, proportional to its namespaces; of a sweep, to what has expired in one slice,
not to what is stored (P12).
*Timers*: none. *Bounds*: gc_batch_limit a cycle, save that a slice goes whole; gc_chunk_size
messages, or the namespaces of a slice, a hold of the writer's lock.
*Deviations*: the document finds expired messages by a scan of the id index and range-deletes the
rest, for every namespace known; here slices name them, only their namespaces count, and each
message's rows go together, so no index row can outlive its message (P9).
*What else to change when you change this*: `batch.forget`, the metrics of the node.

`ClockGuard`: may the wall clock be believed about the age of messages? Pure.

A wall clock that is set forward by a year makes every message expired at once. The monotonic clock
does not move when the wall clock is set, so the two drift apart exactly then. While they do,
nothing is deleted for its age, and the operator is told. A jump that was right (a wrong clock
corrected, a machine that slept) is believed once the clock has stood by it for ``settle_ms``.

Only clocks of one run can be compared, from the opening on: a clock that was wrong before goes
unnoticed.

Source: retention document, "GC Cycle"; 21-14; decisions J2, P9, P12, P13, P14, P43, J8.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final

from luxrelay.bus import NamespaceId
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.stats import GcStats
from luxrelay.store.writing.writer import Writer, WriterRun


class ClockGuard:
    """Compares the wall clock with the monotonic one at each call."""

    __slots__ = ("_candidate", "_jump_ms", "_offset", "_settle_ms", "_since", "alarms", "moved_ms")

    def __init__(self, *, jump_ms: int, settle_ms: int) -> None:
        self._jump_ms = jump_ms
        self._settle_ms = settle_ms
        self._offset: float | None = None
        """Wall minus monotonic as it was believed."""
        self._candidate: float | None = None
        self._since = 0.0
        self.moved_ms = 0
        """How far the wall clock stands from where it was believed; 0 while it is trusted."""
        self.alarms = 0
        """Jumps seen."""

    def trusts(self, now_ms: int, now: float) -> bool:
        """Return True when ages may be computed from ``now_ms``.

        Args:
            now_ms: Wall clock, Unix milliseconds.
            now: Monotonic clock, seconds.

        """
        offset = now_ms - now * 1000
        if self._offset is None:
            self._offset = offset
        if abs(offset - self._offset) <= self._jump_ms:
            self._candidate = None
            self.moved_ms = 0
            return True
        if self._candidate is None or abs(offset - self._candidate) > self._jump_ms:
            self._candidate = offset
            self._since = now
            self.alarms += 1
        elif (now - self._since) * 1000 >= self._settle_ms:
            self._offset = offset
            self._candidate = None
            self.moved_ms = 0
            return True
        self.moved_ms = round(offset - self._offset)
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleStats:
    """What one deletion cycle did."""

    removed_count: int
    """Messages removed."""
    namespaces_processed: int
    """Namespaces they belonged to."""
    hit_limit: bool
    """True when messages to remove remain: the next cycle should come soon
    (`RelayStoreConfig.cycle_interval_ms`)."""
    paused: bool = False
    """True when the wall clock is not believed and nothing went for its age (P43)."""


DURATION_BOUNDS_S: Final = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, inf)


class Collector:
    """Runs the cycles, one at a time, and counts them."""

    def __init__(self, writer: Writer, config: RelayStoreConfig) -> None:
        self._writer = writer
        self._config = config
        self._guard = ClockGuard(jump_ms=config.clock_jump_ms, settle_ms=config.clock_settle_ms)
        self._turn = threading.Lock()
        self._running = False
        self._deleted = self._namespaces = self._cutoff_ms = 0
        self._durations = [0] * len(DURATION_BOUNDS_S)
        self._duration_sum_s = 0.0

    def serve(self, writer: Writer) -> None:
        """Work with another writer from now on."""
        self._writer = writer

    def compare_from(self, now_ms: int, now: float) -> None:
        """Believe both clocks as they stand: the first cycle may be ten minutes away."""
        self._guard.trusts(now_ms, now)
        self._writer.believed_ms = now_ms

    def cycle(self, now_ms: int, now: float | None) -> CycleStats:
        """Run one cycle; ``now`` is the monotonic clock in seconds, None to believe ``now_ms``.

        Raises:
            StoreError: chunks before the failing one are gone, the failing one is whole.

        """
        with self._turn:
            self._running = True
            began = time.perf_counter()
            try:
                trusted = now is None or self._guard.trusts(now_ms, now)
                self._writer.trusts_clock = trusted
                if trusted:
                    self._writer.believed_ms = None if now is None else now_ms
                    self._cutoff_ms = self._config.cutoff_ms(now_ms)
                stats = run_cycle(self._writer, self._config, now_ms)
                self._deleted += stats.removed_count
                self._namespaces += stats.namespaces_processed
                return stats
            finally:
                spent = time.perf_counter() - began
                self._durations[bisect_left(DURATION_BOUNDS_S, spent)] += 1
                self._duration_sum_s += spent
                self._running = False

    def stats(self) -> GcStats:
        """Return the counters."""
        running = list(accumulate(self._durations))
        return GcStats(
            cycles=running[-1],
            running=self._running,
            messages_deleted=self._deleted,
            namespaces_processed=self._namespaces,
            cutoff_ms=self._cutoff_ms,
            duration_buckets=tuple(zip(DURATION_BOUNDS_S, running, strict=True)),
            duration_sum_s=self._duration_sum_s,
            clock_moved_ms=self._guard.moved_ms,
            clock_alarms=self._guard.alarms,
        )


def run_cycle(writer: Writer, config: RelayStoreConfig, now_ms: int) -> CycleStats:
    """Every message expired at ``now_ms`` is gone, or gc_batch_limit of them are.

    Raises:
        StoreError: chunks before the failing one are gone, the failing one is whole.

    """
    removed = worked = 0
    namespaces: set[NamespaceId] = set()
    steps: list[Callable[[int], WriterRun]] = [
        lambda limit: writer.trim_blobs(None, limit),
        writer.relieve,
        writer.forget_idle,
    ]
    if writer.trusts_clock:
        cutoff_ms = config.cutoff_ms(now_ms)
        steps = [
            lambda _: writer.drop_past(now_ms, cutoff_ms),
            lambda limit: writer.remove_expired(now_ms, limit),
            lambda limit: writer.remove_aged(cutoff_ms, limit),
            writer.remove_released,
            lambda limit: writer.trim_blobs(now_ms, limit),
            lambda limit: writer.thin(now_ms, limit),
            writer.relieve,
            writer.forget_idle,
        ]
    while steps:
        chunk = min(config.gc_chunk_size, config.gc_batch_limit - worked)
        if chunk <= 0:
            break
        run = steps[0](chunk)
        worked += run.looked_at
        removed += run.removed
        namespaces.update(run.namespaces)
        if run.done:
            steps.pop(0)
    hit_limit = bool(steps) and writer.has_due(now_ms)
    return CycleStats(
        removed_count=removed,
        namespaces_processed=len(namespaces),
        hit_limit=hit_limit,
        paused=not writer.trusts_clock,
    )
