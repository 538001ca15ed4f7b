"""`Mishaps`: exceptions that nobody expected of a servicer, counted by kind, logged at times.

The caller is told a number, which stands in the log as well, and nothing of the exception: its text
may hold what is another caller's. A kind is the call and the exception's class; each is logged once
a minute with how many there were since.

*Bounds*: `KINDS_MAX` kinds are told apart, a further one counts as ``other``.

Source: decisions J10; architecture, rule 9.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

KINDS_MAX: Final = 64
"""Kinds that are told apart."""
EVERY_S: Final = 60.0
"""Seconds between two lines of log about one kind."""
_NUMBER_BYTES: Final = 4
_LOG: Final = logging.getLogger("luxrelay.sync")


class Mishaps:
    """Exceptions of servicers; any thread may note one.

    Args:
        clock: Monotonic seconds.
        every_s: Seconds between two lines about one kind.

    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, every_s: float = EVERY_S
    ) -> None:
        self._clock = clock
        self._every_s = every_s
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._told: dict[str, tuple[float, int]] = {}
        """When a kind was logged last, and how many there had been."""

    def counts(self) -> dict[str, int]:
        """Return how many there were of each kind."""
        with self._lock:
            return dict(self._counts)

    def note(self, method: str, error: BaseException) -> str:
        """Count an exception, log it when its kind is due; return what to tell the caller."""
        number = secrets.token_hex(_NUMBER_BYTES)
        now = self._clock()
        kind = f"{method} {type(error).__name__}"
        with self._lock:
            if kind not in self._counts and len(self._counts) >= KINDS_MAX:
                kind = "other"
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
            at, told = self._told.get(kind, (float("-inf"), 0))
            due = now - at >= self._every_s
            if due:
                self._told[kind] = now, count
        if due:
            fields = {"kind": kind, "failures": count - told, "number": number}
            _LOG.error("a call failed", exc_info=error, extra={"fields": fields})
        return f"a fault of this relay, number {number}; its log tells one of each kind a minute"
