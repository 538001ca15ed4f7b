"""Run after run, until somebody says stop."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from luxrelay.archive.continuous import FAILURES_MAX, follow
from luxrelay.archive.pipeline import IngestReport
from luxrelay.errors import ArchiveError, SyncRemoteError, SyncUnreachableError

REPORT = IngestReport(batches=(), rows_by_relay={}, rejected_by_code={}, unread={}, seconds=0.1)


class Runs:
    """Runs that end as they are told, and set stop with the last one."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)
        self.stop = threading.Event()
        self.told: list[Any] = []

    def __call__(self) -> IngestReport:
        """End as the next one is told to."""
        end = self.ends.pop(0)
        if not self.ends:
            self.stop.set()
        if end is not None:
            raise end
        return REPORT


def test_runs_follow_one_another_until_stop() -> None:
    """Each is told of; after stop there is none."""
    runs = Runs(None, None, None)

    follow(runs, every_s=0, stop=runs.stop, told=runs.told.append)

    assert runs.told == [REPORT] * 3


def test_relays_that_do_not_answer_are_waited_for() -> None:
    """An outage is told of and outlived; one run that works starts the count anew (P26)."""
    silence = SyncUnreachableError("silence", where="a:1")
    runs = Runs(*[silence] * (FAILURES_MAX - 1), None, silence, None)

    follow(runs, every_s=0, stop=runs.stop, told=runs.told.append)

    assert runs.told.count(REPORT) == 2
    assert runs.told.count(silence) == FAILURES_MAX


def test_silence_ends_after_a_bound() -> None:
    """FAILURES_MAX runs in a row without a relay are an error."""
    runs = Runs(*[SyncUnreachableError("silence", where="a:1")] * (FAILURES_MAX + 1))

    with pytest.raises(SyncUnreachableError):
        follow(runs, every_s=0, stop=runs.stop, told=runs.told.append)
    assert len(runs.told) == FAILURES_MAX


def test_loss_ends_it_at_once() -> None:
    """What relays have forgotten is for a person to decide about."""
    runs = Runs(ArchiveError("gone", code="archive.data_loss"), None)

    with pytest.raises(ArchiveError, match="gone"):
        follow(runs, every_s=0, stop=runs.stop, told=runs.told.append)


def test_a_relay_that_answers_nonsense_does_not_end_it() -> None:
    """One that lies is as good as one that is away: told of, and asked again later."""
    nonsense = SyncRemoteError("a message of another namespace", where="a:1")
    runs = Runs(nonsense, None, nonsense, None)

    follow(runs, every_s=0, stop=runs.stop, told=runs.told.append)

    assert runs.told == [nonsense, REPORT, nonsense, REPORT]
