"""Waiting by progress: a deadline that starts anew with each step."""

from __future__ import annotations

import time
from collections.abc import Callable


class DemoPatience:
    """Ends when what is watched has stood still for so long; a busy machine only makes it longer.

    Args:
        idle_s: Seconds without a change after which there is no more hope.
        clock: Monotonic seconds.

    """

    def __init__(self, idle_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.idle_s = idle_s
        self._clock = clock
        self._seen: object = None
        self._since = clock()

    def lost(self, seen: object) -> bool:
        """Return True when ``seen`` has been the same for ``idle_s``."""
        now = self._clock()
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since >= self.idle_s
