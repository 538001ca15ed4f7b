"""Segment files: messages that a relay has written to files, and the source ``luxrelay-segments``.

A segment is an Arrow IPC file or a Parquet file with the rows of ``schema.RAW``; its name ends in
``.arrow`` or ``.parquet`` and is above the names before it, and it appears whole, by a rename.
`luxrelay store export --format arrow` writes such files. Reading files costs a relay nothing, so
this is the way for rates that pulling should not carry.

A stream's offset is the name of the last file read. A file that is gone when it is to be read is
data loss, as with relays; one that cannot be read is an error that names it.

Source: decisions J8, P42; lux-family.md, long-term layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
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

from luxrelay.archive.schema import RAW
from luxrelay.archive.transit import carry
from luxrelay.errors import ArchiveArgumentError, ArchiveError

SUFFIXES: Final = (".arrow", ".parquet")
SEGMENT_ROWS: Final = 50_000
"""Rows of a segment when nobody says otherwise."""
FILES_PER_BATCH: Final = 16
"""Files of one micro-batch unless ``maxFilesPerTrigger`` says otherwise."""
FILES_MAX: Final = 100_000
"""Files in one folder."""
BATCH_ROWS: Final = 2_000
"""Rows that Spark is handed at once."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


def write_segments(
    folder: Path, batches: Iterable[pa.RecordBatch], *, prefix: str, kind: str = "arrow"
) -> list[Path]:
    """Write rows into numbered segments below ``folder`` and return their paths.

    Args:
        folder: Made when absent.
        batches: Rows of ``schema.RAW``; each batch becomes a file.
        prefix: Beginning of the names; must sort above those that are there.
        kind: ``arrow`` or ``parquet``.

    """
    if f".{kind}" not in SUFFIXES or not _NAME.fullmatch(prefix):
        raise ArchiveArgumentError("kind is arrow or parquet", where="write_segments")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, batch in enumerate(batches):
        path = folder / f"{prefix}-{number:06}.{kind}"
        draft = path.with_suffix(".new")
        table = pa.Table.from_batches([batch], RAW.arrow())
        if kind == "arrow":
            with pa.ipc.new_file(str(draft), table.schema) as file:
                file.write_table(table)
        else:
            pq.write_table(table, draft)
        paths.append(draft.replace(path))
    return paths


def read_segment(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment in batches.

    Raises:
        ArchiveError: ``archive.data_loss`` when it is gone, ``archive.segment`` when it cannot be
            read or has other columns.

    """
    try:
        if path.suffix == ".arrow":
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
                for number in range(file.num_record_batches):
                    yield from _pieces(file.get_batch(number), path)
        else:
            with pq.ParquetFile(path) as parquet:
                for batch in parquet.iter_batches(BATCH_ROWS):
                    yield from _pieces(batch, path)
    except FileNotFoundError:
        raise ArchiveError(
            "a segment is gone that was not read yet", where=str(path), code="archive.data_loss"
        ) from None
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, str(error)) from None


def _pieces(batch: pa.RecordBatch, path: Path) -> Iterator[pa.RecordBatch]:
    missing = [name for name in RAW.names if name not in batch.schema.names]
    if missing:
        raise _unreadable(path, f"it lacks the column {missing[0]}")
    columns = [batch.column(name).cast(column.kind.arrow) for name, column in _COLUMNS.items()]
    whole = pa.RecordBatch.from_arrays(columns, schema=RAW.arrow())
    for first in range(0, whole.num_rows, BATCH_ROWS):
        yield whole.slice(first, BATCH_ROWS)


_COLUMNS: Final = {column.name: column for column in RAW.columns}


def _unreadable(path: Path, reason: str) -> ArchiveError:
    return ArchiveError(
        f"a segment cannot be read: {reason[:200]}",
        where=str(path),
        hint="move it out of the folder, or replace it by a whole one",
        code="archive.segment",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOptions:
    """Options of the source ``luxrelay-segments``."""

    path: Path
    """``path``: the folder of the segments."""
    files_max: int = FILES_PER_BATCH
    """``maxFilesPerTrigger``: files of one micro-batch, 1 to 10,000."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SegmentOptions:
        """Return the checked options.

        Raises:
            ArchiveArgumentError: an option is unknown, missing or out of range.

        """
        given = {key.lower(): value for key, value in options.items()}
        unknown = sorted(set(given) - {"path", "maxfilespertrigger"})
        number = given.get("maxfilespertrigger", str(FILES_PER_BATCH))
        if unknown or "path" not in given:
            raise ArchiveArgumentError(
                f"unknown option {unknown[0]!r}" if unknown else "option path is missing",
                where="source luxrelay-segments",
                hint="known: path, maxFilesPerTrigger",
            )
        if not re.fullmatch(r"[0-9]{1,5}", number) or not 1 <= int(number) <= 10_000:
            raise ArchiveArgumentError(
                f"maxFilesPerTrigger={number!r:.40} cannot be used",
                where="source luxrelay-segments",
                hint="give a number from 1 to 10000",
            )
        return cls(path=Path(given["path"]), files_max=int(number))

    def names(self) -> list[str]:
        """Return the names of the segments there are, ascending.

        Raises:
            ArchiveError: ``archive.segment``: the folder is none, or holds too many.

        """
        try:
            names = sorted(entry.name for entry in self.path.iterdir() if entry.suffix in SUFFIXES)
        except OSError as error:
            raise _unreadable(self.path, str(error)) from None
        if len(names) > FILES_MAX:
            raise _unreadable(self.path, f"it holds more than {FILES_MAX} files")
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
        """Return the columns of the rows."""
        return RAW.plain_ddl()

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


def _read(options: SegmentOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, SegmentPartition):
        return  # Spark plans one empty task when there are no partitions at all
    try:
        yield from read_segment(options.path / partition.name)
    except ArchiveError as error:
        raise carry(error) from None
