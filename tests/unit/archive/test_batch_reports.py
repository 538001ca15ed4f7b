"""Reports of micro-batches as files, without Spark."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from luxrelay.archive.batches import BatchCounts, BatchReport, BatchTables, BatchWriter
from luxrelay.archive.folder import ArchiveFolder, Marker
from luxrelay.archive.pipeline import BatchReports, ReportingTables, read_counts
from luxrelay.errors import ArchiveError


def _counts(number: int) -> BatchCounts:
    return BatchCounts(
        report=BatchReport(batch=number, rows=7, messages=5, rejected=2, seconds=0.5),
        rows_by_relay={"a:1": 7},
        rejected_by_code={1005: 2},
        unread={},
        ephemeral=1,
    )


def _write(self: BatchTables, checked: object, batch: int) -> BatchCounts:
    del self, checked
    return _counts(batch)


@pytest.fixture
def writer(tmp_path: Path) -> BatchWriter:
    """A writer of an empty folder."""
    return BatchWriter(ArchiveFolder(tmp_path, Marker()), None)


def test_reports_reach_the_one_who_asked(
    writer: BatchWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once and in order of their numbers, whatever process wrote them."""
    monkeypatch.setattr(BatchTables, "write", _write)
    tables = pickle.loads(pickle.dumps(ReportingTables(writer.tables)))  # noqa: S301  our own bytes

    with BatchReports(writer.folder, writer) as reports:
        for batch in (10, 9):
            tables(cast("Any", None), batch)
        reports.take()
        reports.take()
        tables(cast("Any", None), 11)
        reports.take()

    assert [batch.batch for batch in writer.batches] == [9, 10, 11]
    assert writer.batches[0] == _counts(9).report
    assert (writer.rows_by_relay, writer.rejected_by_code) == ({"a:1": 21}, {1005: 6})
    assert writer.ephemeral == 3


def test_a_run_leaves_no_reports_and_sees_none_of_others(writer: BatchWriter) -> None:
    """What a killed run has left is not counted again."""
    path = writer.folder.path / ".reports"
    path.mkdir()
    (path / f"{3:019d}.json").write_text(json.dumps(asdict(_counts(3))))

    with BatchReports(writer.folder, writer) as reports:
        reports.take()

    assert writer.batches == []
    assert not path.exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"report": {}}', '{"report": 1, "rejected_by_code": {"a": 1}}'],
)
def test_refuse_what_is_no_report(tmp_path: Path, text: str) -> None:
    """A file of another form is named."""
    path = tmp_path / "1.json"
    path.write_text(text)

    with pytest.raises(ArchiveError, match="report of a batch") as caught:
        read_counts(path)

    assert caught.value.code == "archive.failed"
