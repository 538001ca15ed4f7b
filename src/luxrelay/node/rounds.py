"""Background rounds of a node: a deadline for each, and restarts after failures.

Theory of operation
-------------------
Catching up, reconciling, fetching blobs, forgetting by the clock and reading what consensus has
decided come round again and again, in worker threads, and wait for peers and for the disk.
`Rounds.run` gives one round to a thread and watches how it moves on: a round whose ``progress`` has
not changed for ``stall_s`` is *cut* (its connections are closed), and when that does not end it
either, the thread is left behind and the next round begins without it. At most ``left_max`` threads
of a kind may be left behind: beyond that the kind rests and health says so, because each of them
holds memory.
*Failure*: whatever a round raises is counted and logged once a minute; its loop goes on after a
pause that doubles.
*Tells* for each kind how long ago a round came to its end, by the monotonic clock.

Source: LP-6490; LP-6421 §2.3.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import trio

from luxrelay.net.guarded import Faults
from luxrelay.node.logs import log
from luxrelay.pause import doubled

KINDS: Final = ("catch-up", "reconcile", "blobs", "retention", "finality")
"""Rounds that a node tells of."""
LOOK_S: Final = 0.5
"""Seconds between two looks at how a round moves on."""
CUT_S: Final = 5.0
"""Seconds that a round has to end after it was cut."""
LEFT_MAX: Final = 4
"""Threads of one kind that may be left behind."""


@dataclass(slots=True)
class _Kind:
    """What is known of one kind of round."""

    ended_at: float | None = None
    """When a round last came to its end, monotonic seconds."""
    began_at: float | None = None
    """When the running one began; None while none runs."""
    rounds: int = 0
    failed: int = 0
    cut: int = 0
    left: int = 0
    """Threads left behind that have not come back."""
    failures: int = 0
    """Rounds in a row that did not come to their end."""


class Rounds:
    """Runs rounds, each kind in one loop of the node's; the counts may be read from any thread.

    Args:
        faults: Counts and logs what rounds raise.
        clock: Monotonic seconds.
        stall_s: Seconds without progress after which a round is cut.
        kinds: Those of `KINDS` that this node runs.
        left_max: Threads of a kind that may be left behind.

    """

    def __init__(
        self,
        faults: Faults,
        *,
        clock: Callable[[], float] = time.monotonic,
        stall_s: float,
        kinds: Iterable[str] = KINDS,
        left_max: int = LEFT_MAX,
    ) -> None:
        self.faults = faults
        """What counts failures of rounds and loops."""
        self._clock = clock
        self._stall_s = stall_s
        self._left_max = left_max
        self._since = clock()
        self._lock = threading.Lock()
        self._kinds = {kind: _Kind() for kind in kinds}
        # Of our own: rounds must not take the places of message groups, nor wait for them.
        self._limiter = trio.CapacityLimiter(len(KINDS) * (left_max + 1))

    async def run(
        self,
        kind: str,
        work: Callable[[], object],
        *,
        progress: Callable[[], object] = lambda: None,
        cut: Callable[[], object] = lambda: None,
        stall_s: float | None = None,
    ) -> bool:
        """Run one round; True when it came to its end.

        Args:
            kind: One of `KINDS`.
            work: The round, called in a thread.
            progress: Returns another value whenever the round has moved on; called on the loop.
            cut: Lets go whatever the round waits for; called in a thread, may be called while a
                later round runs.
            stall_s: Seconds without progress, where they differ from those of all.

        """
        known = self._kinds[kind]
        if known.left >= self._left_max:
            known.failures += 1
            self.faults.note(kind, RuntimeError(f"{known.left} threads hang; restart the node"))
            return False
        known.began_at = self._clock()
        whole = False
        try:
            with self.faults.contained(kind):
                whole = await self._watched(kind, work, progress, cut, stall_s or self._stall_s)
        finally:
            known.began_at = None
        known.rounds += 1
        if whole:
            known.ended_at, known.failures = self._clock(), 0
        else:
            known.failed += 1
            known.failures += 1
        return whole

    def pause_s(self, kind: str, pause_s: float, longest_s: float = 60.0) -> float:
        """Return the pause before the next round: it doubles with each one that failed."""
        failures = self._kinds[kind].failures
        if not failures:
            return pause_s
        return max(pause_s, doubled(2 * max(pause_s, 0.5), failures, longest_s))

    def ages_s(self) -> dict[str, float]:
        """Return how long ago a round of each kind came to its end, seconds.

        Before the first one: how long the node has run.
        """
        now = self._clock()
        return {
            name: now - (self._since if kind.ended_at is None else kind.ended_at)
            for name, kind in self._kinds.items()
        }

    def view(self) -> dict[str, dict[str, Any]]:
        """Return what `status` shows of each kind."""
        now, ages = self._clock(), self.ages_s()
        return {
            name: {
                "ended_s": round(ages[name], 1) if kind.ended_at is not None else None,
                "running_s": None if kind.began_at is None else round(now - kind.began_at, 1),
                "rounds": kind.rounds,
                "failed": kind.failed,
                "cut": kind.cut,
                "left_behind": kind.left,
            }
            for name, kind in list(self._kinds.items())
        }

    def hanging(self) -> list[str]:
        """Return the kinds of which threads are left behind, with their number."""
        return [f"{name} ({kind.left})" for name, kind in self._kinds.items() if kind.left]

    async def _watched(
        self,
        kind: str,
        work: Callable[[], object],
        progress: Callable[[], object],
        cut: Callable[[], object],
        stall_s: float,
    ) -> bool:
        known = self._kinds[kind]
        done, left = [False], [False]
        ended = trio.Event()

        def threaded() -> None:
            try:
                work()
            finally:
                with self._lock:
                    done[0] = True
                    if left[0]:  # it came back after all
                        known.left -= 1

        async def in_thread() -> None:
            try:
                # A thread that hangs is left behind, also when the node stops.
                await abandoned_on_cancel(threaded, self._limiter)
            finally:
                ended.set()

        whole = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread)
            if not await self._moves_on(ended, progress, stall_s):
                known.cut += 1
                whole = False
                log(logging.WARNING, "a round stands still and is cut", round=kind,
                    seconds=round(stall_s, 1))  # fmt: skip
                nursery.start_soon(self._cut, cut)
                with trio.move_on_after(CUT_S):
                    await ended.wait()
                with self._lock:
                    left[0] = not done[0]
                    known.left += left[0]
                if left[0]:
                    log(logging.ERROR, "a thread hangs and is left behind", round=kind,
                        left_behind=known.left)  # fmt: skip
                nursery.cancel_scope.cancel()
        return whole

    async def _moves_on(
        self, ended: trio.Event, progress: Callable[[], object], stall_s: float
    ) -> bool:
        """Wait for the end of a round; False when it stood still for too long."""
        seen, at = progress(), self._clock()
        while not ended.is_set():
            with trio.move_on_after(LOOK_S):
                await ended.wait()
            now_seen = progress()
            if now_seen != seen:
                seen, at = now_seen, self._clock()
            elif self._clock() - at >= stall_s and not ended.is_set():
                return False
        return True

    async def _cut(self, cut: Callable[[], object]) -> None:
        with self.faults.contained("cutting a round"):
            await abandoned_on_cancel(cut, self._limiter)


async def abandoned_on_cancel(
    work: Callable[[], object], limiter: trio.CapacityLimiter | None = None
) -> None:
    """Do the work in a thread; when this is cancelled, the thread is left to itself."""
    await trio.to_thread.run_sync(  # type: ignore[call-arg]  # the installed stubs are older
        work, abandon_on_cancel=True, limiter=limiter
    )
