"""The source ``luxrelay-segments``: segment files as a stream and as a batch for Spark.

Reading files costs a relay nothing, so this is the way for rates that pulling should not carry. A
stream's offset is the name of the last file read. A file that is gone when it is to be read is
data loss, as with relays; one that cannot be read is an error that names it.

Source: LP-6440; decisions J8, P42.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from luxrelay.archive.jvm_errors import carry
from luxrelay.archive.options import DELIVERIES, Delivery
from luxrelay.archive.schema import RAW
from luxrelay.archive.segment_files import (
    SUFFIXES,
    SegmentStamp,
    read_segment,
    stamp_of,
    unreadable,
)
from luxrelay.archive.task_source import TASKS_DDL, deliver
from luxrelay.errors import ArchiveArgumentError, ArchiveError

if TYPE_CHECKING:
    import pyarrow as pa

FILES_PER_BATCH: Final = 16
"""Files of one micro-batch unless ``maxFilesPerTrigger`` says otherwise."""
FILES_MAX: Final = 100_000
"""Files in one folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOptions:
    """Options of the source ``luxrelay-segments``."""

    path: Path
    """``path``: the folder of the segments."""
    files_max: int = FILES_PER_BATCH
    """``maxFilesPerTrigger``: files of one micro-batch, 1 to 10,000."""
    deliver: Delivery = "rows"
    """``deliver``: ``rows``, or ``tasks`` as in `options.SourceOptions`."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SegmentOptions:
        """Return the checked options.

        Raises:
            ArchiveArgumentError: an option is unknown, missing or out of range.

        """
        given = {key.lower(): value for key, value in options.items()}
        unknown = sorted(set(given) - {"path", "maxfilespertrigger", "deliver"})
        number = given.get("maxfilespertrigger", str(FILES_PER_BATCH))
        if unknown or "path" not in given:
            raise ArchiveArgumentError(
                f"unknown option {unknown[0]!r}" if unknown else "option path is missing",
                where="source luxrelay-segments",
                hint="known: path, maxFilesPerTrigger, deliver",
            )
        if not re.fullmatch(r"[0-9]{1,5}", number) or not 1 <= int(number) <= 10_000:
            raise ArchiveArgumentError(
                f"maxFilesPerTrigger={number!r:.40} cannot be used",
                where="source luxrelay-segments",
                hint="give a number from 1 to 10000",
            )
        delivered = given.get("deliver", "rows")
        if delivered not in DELIVERIES:
            raise ArchiveArgumentError(
                f"deliver={delivered!r:.40} cannot be used",
                where="source luxrelay-segments",
                hint="give rows or tasks",
            )
        return cls(
            path=Path(given["path"]),
            files_max=int(number),
            deliver="tasks" if delivered == "tasks" else "rows",
        )

    def names(self) -> list[str]:
        """Return the names of the segments there are, ascending.

        Raises:
            ArchiveError: ``archive.segment``: the folder is none, or holds too many.

        """
        try:
            names = sorted(entry.name for entry in self.path.iterdir() if entry.suffix in SUFFIXES)
        except OSError as error:
            raise unreadable(self.path, str(error)) from None
        if len(names) > FILES_MAX:
            raise unreadable(self.path, f"it holds more than {FILES_MAX} files")
        return names


@dataclass
class SegmentPartition(InputPartition):
    """One file, for one task."""

    name: str


class SegmentSource(DataSource):
    """The format ``luxrelay-segments``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checked = SegmentOptions.parse(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "luxrelay-segments"

    def schema(self) -> str:
        """Return the columns of the rows, or of tasks."""
        return TASKS_DDL if self._checked.deliver == "tasks" else RAW.plain_ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of every file there is now."""
        del schema
        return SegmentReader(self._checked)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # PySpark's
        """Return a reader that goes on where it ended."""
        del schema
        return SegmentStreamReader(self._checked)


class SegmentReader(DataSourceReader):
    """Reads every file once."""

    def __init__(self, options: SegmentOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return a task for each file."""
        try:
            return [SegmentPartition(name) for name in self._options.names()]
        except ArchiveError as error:
            raise carry(error) from None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file."""
        return _read(self._options, partition)


class SegmentStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads files in the order of their names; an offset is ``{"segment": name}``."""

    def __init__(self, options: SegmentOptions) -> None:
        self._options = options
        self._end: str | None = None

    def initialOffset(self) -> dict[str, str]:  # noqa: N802  # PySpark's name
        """Return the place before the first file."""
        return {"segment": ""}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # PySpark's name
        """Return the limit of a micro-batch."""
        return ReadMaxFiles(self._options.files_max)

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802
        """Return the end of the next micro-batch: ``start`` itself when nothing is new."""
        new = self._new(start, self._end)
        if isinstance(limit, ReadMaxFiles):
            new = new[: limit.max_files]
        return {"segment": new[-1]} if new else start

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # PySpark's name
        """Fix the end of this run at the files of now."""
        names = self._names()
        self._end = names[-1] if names else ""

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Return a task for each file of a micro-batch."""
        return [SegmentPartition(name) for name in self._new(start, end["segment"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file."""
        return _read(self._options, partition)

    def _names(self) -> list[str]:
        try:
            return self._options.names()
        except ArchiveError as error:
            raise carry(error) from None

    def _new(self, start: dict[str, str], end: str | None) -> list[str]:
        after = start.get("segment", "")
        return [name for name in self._names() if name > after and (end is None or name <= end)]


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """What a partition reads, wherever that is done."""

    path: Path
    """The file."""
    stamp: SegmentStamp | None = None
    """What it was when the task was made."""

    def rows(self) -> Generator[pa.RecordBatch]:
        """Yield its rows as Arrow batches."""
        try:
            yield from read_segment(self.path, self.stamp)
        except ArchiveError as error:
            raise carry(error) from None


def _read(options: SegmentOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, SegmentPartition):
        return iter(())  # Spark plans one empty task when there are no partitions at all
    path = options.path / partition.name
    return _delivered(path) if options.deliver == "tasks" else SegmentTask(path).rows()


def _delivered(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        yield from deliver(SegmentTask(path, stamp_of(path)))
    except ArchiveError as error:
        raise carry(error) from None
