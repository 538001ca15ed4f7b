"""What of the pipeline needs no Spark; the rest is in tests/integration/archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from luxrelay.archive.batches import BatchReport
from luxrelay.archive.pipeline import IngestReport, ingest, run_when_started
from luxrelay.archive.session import ArchiveSession, SessionConfig
from luxrelay.errors import ArchiveArgumentError, ArchiveError


def _batch(number: int) -> BatchReport:
    return BatchReport(batch=number, rows=10, messages=4, rejected=1, seconds=0.5)


def test_a_run_is_the_sum_of_its_batches() -> None:
    """Rows, messages and rejects add up."""
    run = IngestReport(
        batches=(_batch(0), _batch(1)),
        rows_by_relay={"a:1": 20},
        rejected_by_code={1005: 2},
        unread={},
        seconds=1.0,
    )

    assert (run.rows, run.messages, run.rejected) == (20, 8, 2)


def test_wrong_options_touch_nothing(tmp_path: Path) -> None:
    """Mistakes are found before the folder is made."""
    session = ArchiveSession.__new__(ArchiveSession)
    session.config = SessionConfig()
    session._work = None

    with pytest.raises(ArchiveArgumentError, match="relays"):
        ingest(session, relays=["nonsense"], out=tmp_path / "out")

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("said", "begun", "runs"),
    [
        (["slow", "slow"], False, 3),
        (["slow"] * 19, False, 10),
        (["slow", "slow"], True, 1),
        (["other", "slow"], False, 1),
    ],
)
def test_a_server_that_starts_python_slowly_is_asked_again(
    said: list[str], begun: bool, runs: int
) -> None:
    """Ten times at most, for that reason alone, and never after a batch was written."""
    errors = {
        "slow": ArchiveError("Spark ended ingest: Python worker failed to connect back"),
        "other": ArchiveError("Spark ended ingest: no space left"),
    }
    left, count = list(said), 0

    def run() -> None:
        nonlocal count
        count += 1
        if left:
            raise errors[left.pop(0)]

    if runs == len(said) + 1:
        run_when_started(run, lambda: begun)
    else:
        with pytest.raises(ArchiveError):
            run_when_started(run, lambda: begun)

    assert count == runs
