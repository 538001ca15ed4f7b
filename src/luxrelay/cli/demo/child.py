"""A relay that ends with the demonstration, however that ends: ``python -m`` this, and a config.

Two ways, because neither is enough: the demonstration holds the other end of the standard input,
which ends with it on every system; and Linux sends SIGKILL when the parent is gone, to a relay that
is stopped as well.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import Final

GRACE_S: Final = 10.0
"""Seconds a relay has to stop in order once the demonstration is gone."""
_PR_SET_PDEATHSIG: Final = 1


def main() -> int:
    """Run the relay of the given configuration until it is told to stop, or the input ends."""
    threading.Thread(target=_end_with_input, name="parent", daemon=True).start()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A parent that went before this line has closed the input, which the thread sees.
    from luxrelay.cli.main import main as run  # noqa: PLC0415  it takes a second to import

    return run(["node", "run", "--config", sys.argv[1]])


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass  # nothing is ever said here
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
