"""`StreamGate`: how many streams run at once, and for how long.

A gRPC stream holds a thread of the server while its reader is slow. The gate refuses streams above
its number at once, so that short calls always find a thread, and ends those that outlive theirs.

Source: decision P34; architecture, rule 4.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class StreamGate:
    """Admits ``streams_max`` streams; cancels each after ``life_s`` seconds.

    One thread watches, started with the first stream and ended by `close`.
    """

    def __init__(self, streams_max: int, life_s: float, *, name: str) -> None:
        self._max = streams_max
        self._life_s = life_s
        self._name = name
        self._changed = threading.Condition()
        self._active: dict[int, tuple[float, Callable[[], object]]] = {}
        self._next = 0
        self._closed = False
        self._watcher: threading.Thread | None = None

    def enter(self, cancel: Callable[[], object]) -> int | None:
        """Return a ticket for a stream that ``cancel`` ends, or None when all places are taken."""
        with self._changed:
            if len(self._active) >= self._max or self._closed:
                return None
            self._next += 1
            self._active[self._next] = (time.monotonic() + self._life_s, cancel)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name=self._name, daemon=True)
                self._watcher.start()
            self._changed.notify()
            return self._next

    def renew(self, ticket: int) -> None:
        """Begin the life of a stream anew; one that has outlived it is not saved."""
        with self._changed:
            end, cancel = self._active[ticket]
            if end != float("inf"):
                self._active[ticket] = (time.monotonic() + self._life_s, cancel)

    def leave(self, ticket: int) -> None:
        """Give the place back."""
        with self._changed:
            self._active.pop(ticket, None)
            self._changed.notify()

    @property
    def active(self) -> int:
        """Streams that run now."""
        with self._changed:
            return len(self._active)

    def close(self) -> None:
        """Admit nobody any more and end the watcher."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._watcher is not None:
            self._watcher.join()

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                overdue = [key for key, (end, _) in self._active.items() if end <= now]
                cancels = [self._active[key][1] for key in overdue]
                for key in overdue:  # its place stays taken until its thread is back
                    self._active[key] = (float("inf"), self._active[key][1])
                if not overdue:
                    soonest = min((end for end, _ in self._active.values()), default=float("inf"))
                    self._changed.wait(None if soonest == float("inf") else soonest - now)
            for cancel in cancels:
                cancel()
