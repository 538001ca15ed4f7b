"""`Recovery`: a store whose disk refused a write takes writes again when there is room.

Theory of operation
-------------------
*Decides* when the database is opened again.
*Machine*: a refused write or sync leaves RocksDB refusing every other one (its background error),
and rocksdict has no way to resume; opening the database again is the only one. The next call that
would write tries it: not more often than every RETRY_S, only when the folder has room for what has
to be written at opening, and alone, so that readers wait for it instead of failing.
*What is then held* is read anew from the database: a batch whose write failed may have reached the
log, and one that was written but not synced may not. Nothing of either kind was acknowledged.
*Until then* reading goes on, and writing fails with what the disk said.
*Bounds*: one attempt every RETRY_S; readers wait for one opening.

Source: ADR 0006 §7; docs/explanation/store.md.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from luxrelay.errors import StoreError
from luxrelay.store.gate import Gate
from luxrelay.store.rocks import Database

RETRY_S: Final = 1.0
"""Time between two attempts."""
ROOM_BYTES_MIN: Final = 4 * 1024 * 1024
"""Free space beyond twice the size of the log, which is written to table files at opening."""


class Recovery:
    """Opens a database again after a failure, at the right moment."""

    def __init__(
        self,
        database: Database,
        gate: Gate,
        *,
        release: Callable[[], None],
        attach: Callable[[], None],
    ) -> None:
        """Call ``release`` before each opening, and ``attach`` after it, to read it all anew."""
        self._database = database
        self._gate = gate
        self._release = release
        self._attach = attach
        self._turn = threading.Lock()
        self._next = 0.0
        self.recovered = 0
        """Times the database was opened again."""

    def try_again(self) -> None:
        """The database takes writes again, if it had stopped to and its disk has room.

        Called outside the gate, before a call that writes.

        Raises:
            StoreError: it cannot be opened; it is open for reading.

        """
        if not self._database.failed:
            return
        with self._turn:
            now = time.monotonic()
            if now < self._next or not self._is_due():
                return
            self._next = now + RETRY_S
            with self._gate.alone():
                self._release()
                try:
                    self._database.reopen()
                finally:
                    self._attach()
                self.recovered += 1

    def _is_due(self) -> bool:
        """Return True when nobody else has done it and there is room."""
        if not self._database.failed:
            return False
        folder = self._database.path
        try:
            log = sum(each.stat().st_size for each in folder.glob("*.log"))
            free = os.statvfs(folder)
        except OSError as error:
            raise StoreError(
                f"the data folder cannot be read: {error.strerror}", where=str(folder)
            ) from error
        return free.f_bavail * free.f_frsize >= 2 * log + ROOM_BYTES_MIN
