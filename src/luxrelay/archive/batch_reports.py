"""What a micro-batch did, as a file: how a Spark Connect server tells the process that asked.

Through Spark Connect a stream's batches are written by a Python process of the server. It shares
nothing with the one that started the run but the archive's folder, so there it leaves a report of
each batch, and the other looks for them. A report is told, never relied on: what has been written
stands in the tables' logs.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from luxrelay.archive.batches import BatchCounts, BatchReport, BatchTables, BatchWriter
from luxrelay.archive.folder import ArchiveFolder, write_whole
from luxrelay.errors import ArchiveError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FOLDER: Final = ".reports"
_DIGITS: Final = 19
"""Width of a number in a file's name, so that names sort as numbers."""


@dataclass(frozen=True, slots=True)
class ReportingTables:
    """Writes a micro-batch and reports it; pickles by value, Spark's server calls it."""

    tables: BatchTables
    """Where rows go."""

    def __call__(self, checked: DataFrame, batch: int) -> None:
        """Write one micro-batch, then its report."""
        counts = self.tables.write(checked, batch)
        path = self.tables.folder.path / _FOLDER / f"{batch:0{_DIGITS}d}.json"
        write_whole(path, json.dumps(asdict(counts)))


class BatchReports:
    """The reports of one run; a context manager that leaves none behind."""

    def __init__(self, folder: ArchiveFolder, writer: BatchWriter) -> None:
        self._path = folder.path / _FOLDER
        self._writer = writer

    def __enter__(self) -> Self:
        shutil.rmtree(self._path, ignore_errors=True)  # of a run that was killed
        self._path.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)

    def take(self) -> None:
        """Hand every report that is new to the writer, in order; each once."""
        for path in sorted(self._path.glob("[0-9]*.json")):
            self._writer.take(read_counts(path))
            path.unlink()


def read_counts(path: Path) -> BatchCounts:
    """Return a report.

    Raises:
        ArchiveError: ``archive.failed``: the file is none.

    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        codes = {int(code): number for code, number in value.pop("rejected_by_code").items()}
        report = BatchReport(**value.pop("report"))
        return BatchCounts(report=report, rejected_by_code=codes, **value)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArchiveError(
            f"the report of a batch cannot be read: {error!r}",
            where=str(path),
            code="archive.failed",
        ) from None
