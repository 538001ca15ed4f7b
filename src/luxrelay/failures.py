"""`FailureLog`: failures counted by kind, each kind due for a line of log once in a while.

What fails may fail a thousand times a second, at a stranger's will. Each failure is counted; a line
is due for the first of a kind and then once in ``every_s``, with the number since the last one.

*Bounds*: `KINDS_MAX` kinds are told apart, a further one counts as ``other``.

Source: architecture, rules 4 and 9.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

KINDS_MAX: Final = 64
"""Kinds that are told apart; a further one counts as ``other``."""
EVERY_S: Final = 60.0
"""Seconds between two lines of log about one kind."""


class FailureLog:
    """Counts failures and says which are due for a line; any thread may note one.

    Args:
        clock: Monotonic seconds.
        every_s: Seconds between two lines about one kind.

    """

    def __init__(self, clock: Callable[[], float], every_s: float = EVERY_S) -> None:
        self._clock = clock
        self._every_s = every_s
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._told: dict[str, tuple[float, int]] = {}
        """When a kind was due last, and how many there were by then."""

    def counts(self) -> dict[str, int]:
        """Return how many failures of each kind there were."""
        with self._lock:
            return dict(self._counts)

    def note(self, kind: str) -> tuple[str, int]:
        """Count a failure.

        Args:
            kind: What failed, from a closed set of the program's own words.

        Returns:
            The kind as it is counted, and how many of it a line of log has to tell; 0 for no line.

        """
        now = self._clock()
        with self._lock:
            if kind not in self._counts and len(self._counts) >= KINDS_MAX:
                kind = "other"
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
            at, told = self._told.get(kind, (float("-inf"), 0))
            if now - at < self._every_s:
                return kind, 0
            self._told[kind] = now, count
            return kind, count - told
