"""`Turn`: a lock whose waiter goes next.

Python's lock lets whoever asks first after a release have it, which is the thread that has just
released it: a deletion cycle would keep it over all its chunks while a put waits. Here a waiter
holds the place in front of the lock, so the one that releases must queue behind it.

Source: retention document, "Why GC writes via direct Arc"; ADR 0006 §1.
"""

from __future__ import annotations

import threading
from types import TracebackType


class Turn:
    """A context manager; the one that waits longest in front goes in next."""

    __slots__ = ("_busy", "_next")

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._busy = threading.Lock()

    def is_wanted(self) -> bool:
        """Return True when somebody waits."""
        return self._next.locked()

    def __enter__(self) -> None:
        with self._next:
            self._busy.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._busy.release()
