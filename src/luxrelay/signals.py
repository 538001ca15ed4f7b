"""Signals that come before a node can heed them: while its libraries are loaded and its file read.

Loading takes seconds, in which the system's own answer would end the process without a word:
SIGHUP with code 129, SIGTERM and Ctrl-C in the midst. Until the node takes the signals over,
SIGTERM and SIGINT end the process at once with 0, because nothing is open yet, and SIGHUP is
remembered for the node, which reads its file again when it is ready.

Source: LP-6490; docs/how-to/operate.md.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

HEARD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What a node heeds."""
_STANDARD_ERROR: Final = 2


class EarlySignals:
    """What came before the node heeded signals itself."""

    def __init__(self, end: Callable[[int], object] = os._exit) -> None:
        """Nothing came yet; ``end`` ends the process with a code."""
        self.reload = False
        """SIGHUP came."""
        self._end = end

    def note(self, number: int, frame: FrameType | None = None) -> None:  # noqa: ARG002
        """Answer one signal; a handler for `signal.signal`."""
        name = signal.Signals(number).name
        if number == signal.SIGHUP:
            self.reload = True
            _say(f"luxrelay: {name} during the start: the file is read again once it is ready")
            return
        _say(f"luxrelay: {name} during the start: nothing was open yet; stopped")
        self._end(0)


@contextmanager
def early_signals(end: Callable[[int], object] = os._exit) -> Iterator[EarlySignals]:
    """Note signals until the node takes them over; afterwards they are as they were before.

    Outside the main thread, where nobody may set handlers, nothing is noted.
    """
    early = EarlySignals(end)
    if threading.current_thread() is not threading.main_thread():
        yield early
        return
    before = {number: signal.signal(number, early.note) for number in HEARD}
    try:
        yield early
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) == early.note:  # else the node's own, to its very end
                signal.signal(number, handler)


def _say(line: str) -> None:
    with suppress(OSError):  # not through the buffer, whose write this may interrupt
        os.write(_STANDARD_ERROR, f"{line}\n".encode())
