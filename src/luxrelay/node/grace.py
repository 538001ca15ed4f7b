"""The end of a process that hangs: after its grace it ends, whatever a thread waits for.

Everything that was acknowledged is on the disk before its acknowledgement leaves, so nothing is
lost by ending at once; what is not done is an orderly word to peers and clients.

Source: LP-6490.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final

from luxrelay.node.logs import log

FORCED: Final = 3
"""Exit code of a node that had to be ended because something hung."""


class Grace:
    """Ends the process when it has not ended by itself.

    Args:
        seconds: How long an orderly end may take.
        hanging: Names what has not ended; called when the time is over.
        end: Ends the process with a code.

    """

    def __init__(
        self,
        seconds: float,
        hanging: Callable[[], Sequence[str]],
        *,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._seconds = seconds
        self._hanging = hanging
        self._end = end
        self._over = threading.Event()
        self._begun = False

    def begin(self) -> None:
        """Begin to count; a second call changes nothing."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._watch, name="grace", daemon=True).start()

    @property
    def begun(self) -> bool:
        """Whether it counts."""
        return self._begun

    def spare(self) -> None:
        """Count no longer: the process goes on, or has ended in order."""
        self._over.set()

    def _watch(self) -> None:
        if self._over.wait(self._seconds):
            return
        threads = sorted(thread.name for thread in threading.enumerate() if thread.name != "grace")
        log(
            logging.ERROR,
            "the end takes too long; ended at once",
            seconds=self._seconds,
            hanging=list(self._hanging()),
            threads=threads[:32],
        )
        _flush()
        self._end(FORCED)


def hurry(number: int, *, end: Callable[[int], object] = os._exit) -> None:
    """Answer a signal to a node that is stopping: a second one to stop ends the process at once."""
    if number == signal.SIGHUP:
        return  # what is read again would not be used any more
    name = signal.Signals(number).name
    log(logging.WARNING, "a second signal; ended at once", signal=name, code=FORCED)
    _flush()
    end(FORCED)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, RuntimeError):
            continue  # nobody reads it, or a handler of signals interrupted its write
