"""`follow`: run after run until somebody says stop.

Each run reads up to the heads of its start, so that a long-lived archive is a row of short ones:
its tables are complete after each, and a run that fails is followed by the next. Stop is obeyed
between two micro-batches; whatever is cut off is written by the next start, once.

Source: decisions J8, P42: the relay window is the longest a run may be late.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from luxrelay.archive.pipeline import IngestReport
from luxrelay.errors import LuxRelayError, SyncRemoteError, SyncUnreachableError

FAILURES_MAX: Final = 10
"""Runs in a row that may fail because relays do not answer, or not usably; then it ends."""


def follow(
    run: Callable[[], IngestReport],
    *,
    every_s: float,
    stop: threading.Event,
    told: Callable[[IngestReport | LuxRelayError], None],
) -> None:
    """Call ``run`` again and again, ``every_s`` seconds after it ended, until ``stop`` is set.

    Args:
        run: One run of `ingest`.
        every_s: Pause between two runs, seconds; well below the window of the relays.
        stop: Set by whoever wants an end.
        told: Is told of each run: its report, or the error that it ended with.

    Raises:
        SyncUnreachableError: no relay answered for ``FAILURES_MAX`` runs in a row.
        SyncRemoteError: that long, the only one that answered said what cannot be used.
        ArchiveError: anything else that a run ends with.

    """
    failures = 0
    while not stop.is_set():
        try:
            told(run())
            failures = 0
        except (SyncUnreachableError, SyncRemoteError) as error:
            failures += 1
            told(error)
            if failures >= FAILURES_MAX:
                raise
        stop.wait(every_s)
