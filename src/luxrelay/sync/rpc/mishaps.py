"""`Mishaps`: exceptions that nobody expected of a servicer, counted by kind, logged at times.

The caller is told a number, which stands in the log as well, and nothing of the exception: its text
may hold what is another caller's. A kind is the call and the exception's class; each is logged once
a minute with how many there were since.

*Bounds*: those of `luxrelay.failures`.

Source: decisions J10; architecture, rule 9.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Final

from luxrelay.failures import EVERY_S, FailureLog

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
        self._log = FailureLog(clock, every_s)

    def counts(self) -> dict[str, int]:
        """Return how many there were of each kind."""
        return self._log.counts()

    def note(self, method: str, error: BaseException) -> str:
        """Count an exception, log it when its kind is due; return what to tell the caller."""
        number = secrets.token_hex(_NUMBER_BYTES)
        kind, told = self._log.note(f"{method} {type(error).__name__}")
        if told:
            fields = {"kind": kind, "failures": told, "number": number}
            _LOG.error("a call failed", exc_info=error, extra={"fields": fields})
        return f"a fault of this relay, number {number}; its log tells one of each kind a minute"
