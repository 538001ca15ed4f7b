"""What of the pipeline needs no Spark; the rest is in tests/integration/test_archive.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from luxrelay.archive.batches import BatchReport
from luxrelay.archive.folder import ArchiveFolder, Marker
from luxrelay.archive.pipeline import IngestReport, failure, ingest, table_name
from luxrelay.archive.schema import MESSAGES
from luxrelay.archive.session import ArchiveSession, SessionConfig
from luxrelay.archive.transit import carry
from luxrelay.errors import ArchiveArgumentError, ArchiveError, SyncUnreachableError


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


def test_our_errors_come_back_from_spark() -> None:
    """An error a worker carried is raised as itself."""
    inner = carry(SyncUnreachableError("silence", where="a:1"))
    text = "\n".join(["Job aborted", *inner.__notes__])

    found = failure(RuntimeError(text), "ingest")

    assert isinstance(found, SyncUnreachableError)


def test_other_errors_are_named() -> None:
    """Anything else says that Spark failed, in its first line, and what to do."""
    found = failure(RuntimeError("\n  Disk is full \n at java"), "ingest")

    assert isinstance(found, ArchiveError)
    assert found.code == "archive.failed"
    assert "Disk is full; " in str(found)
    assert "java" not in str(found)


def test_wrong_options_touch_nothing(tmp_path: Path) -> None:
    """Mistakes are found before the folder is made."""
    session = ArchiveSession.__new__(ArchiveSession)
    session.config = SessionConfig()
    session._work = None

    with pytest.raises(ArchiveArgumentError, match="relays"):
        ingest(session, relays=["nonsense"], out=tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_table_names_quote_paths(tmp_path: Path) -> None:
    """A backtick in a path cannot end the name."""
    folder = ArchiveFolder(tmp_path / "a`b", Marker())

    assert table_name(folder, MESSAGES) == f"delta.`{tmp_path}/a``b/messages`"
