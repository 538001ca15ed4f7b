"""`CallScope`: lets one thread end the calls that others are waiting in."""

from __future__ import annotations

import threading
from collections.abc import Callable


class CallScope:
    """The calls started under it; `cancel` ends them and every later one at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: list[Callable[[], object]] = []
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """True after `cancel`."""
        return self._cancelled

    def cancel(self) -> None:
        """End every call under this scope; their threads get `SyncUnreachableError`."""
        with self._lock:
            self._cancelled = True
            active = list(self._active)
        for end in active:
            end()

    def enter(self, end: Callable[[], object]) -> None:
        """Remember how to end a call; a cancelled scope ends it at once."""
        with self._lock:
            self._active.append(end)
            cancelled = self._cancelled
        if cancelled:
            end()

    def leave(self, end: Callable[[], object]) -> None:
        """Forget a call that is over."""
        with self._lock:
            if end in self._active:
                self._active.remove(end)
