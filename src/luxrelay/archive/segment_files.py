"""Segment files: messages that a relay has written to files.

A segment is an Arrow IPC file or a Parquet file with the rows of ``schema.RAW``; its name ends in
``.arrow`` or ``.parquet`` and is above the names before it, and it appears whole, by a rename.
`luxrelay store export --format arrow` writes such files; the source ``luxrelay-segments``
(`segments`) reads them.

Source: decisions J8, P42; LP-6440.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from luxrelay.archive.schema import RAW
from luxrelay.errors import ArchiveArgumentError, ArchiveError

SUFFIXES: Final = (".arrow", ".parquet")
SEGMENT_ROWS: Final = 50_000
"""Rows of a segment when nobody says otherwise."""
SEGMENT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of headers and payloads after which a segment ends."""
BATCH_ROWS: Final = 4_096
"""Rows that a reader is handed at once."""
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


class SegmentStamp(NamedTuple):
    """Which file it was: a segment is whole when it appears and never changes."""

    inode: int
    modified_ns: int
    size: int

    @classmethod
    def of(cls, found: os.stat_result) -> SegmentStamp:
        """Return the stamp that the disk's word makes."""
        return cls(found.st_ino, found.st_mtime_ns, found.st_size)


def stamp_of(path: Path) -> SegmentStamp:
    """Return the stamp of a segment.

    Raises:
        ArchiveError: ``archive.data_loss`` when it is gone, ``archive.segment`` when the disk does
            not tell.

    """
    with _named(path):
        return SegmentStamp.of(path.stat())


def read_segment(path: Path, stamp: SegmentStamp | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment in batches.

    They are copies: what has been checked stays as it was, whoever writes into the file.

    Args:
        path: The file.
        stamp: What it was when somebody looked at it before; unknown when not given.

    Raises:
        ArchiveError: ``archive.data_loss`` when it is gone, ``archive.segment`` when it cannot be
            read, is another one than before, has other columns, or lacks a value that every row
            has.

    """
    with _named(path), path.open("rb") as file:
        if stamp not in {None, SegmentStamp.of(os.fstat(file.fileno()))}:
            raise unreadable(path, "it has changed since it was first looked at")
        if path.suffix == ".arrow":
            with pa.ipc.open_file(pa.PythonFile(file, mode="r")) as source:
                for number in range(source.num_record_batches):
                    yield from _pieces(source.get_batch(number), path)
        else:
            with pq.ParquetFile(file) as parquet:
                for batch in parquet.iter_batches(BATCH_ROWS):
                    yield from _pieces(batch, path)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn what readers raise at a file into ours, with its name."""
    try:
        yield
    except FileNotFoundError:
        raise ArchiveError(
            "a segment is gone that was not read yet", where=str(path), code="archive.data_loss"
        ) from None
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise unreadable(path, str(error)) from None


def _pieces(batch: pa.RecordBatch, path: Path) -> Iterator[pa.RecordBatch]:
    batch.validate(full=True)  # a damaged file may say that values lie outside of it
    missing = [name for name in RAW.names if name not in {*batch.schema.names, *_ADDED}]
    if missing:
        raise unreadable(path, f"it lacks the column {missing[0]}")
    columns = [
        batch.column(name).cast(column.kind.arrow)
        if name in batch.schema.names
        else pa.nulls(batch.num_rows, column.kind.arrow)
        for name, column in _COLUMNS.items()
    ]
    whole = pa.RecordBatch.from_arrays(columns, schema=RAW.arrow())
    for name in _NEVER_NULL:
        if nulls := whole.column(name).null_count:
            raise unreadable(path, f"{nulls} of its rows say nothing in the column {name}")
    for name in _TIMES:
        if pc.any(pc.less(whole.column(name), 0)).as_py():
            raise unreadable(path, f"a time before 1970 in the column {name}")
    for first in range(0, whole.num_rows, BATCH_ROWS):
        yield whole.slice(first, BATCH_ROWS)


_ADDED: Final = ("sidecar",)
"""Columns that segments of an earlier version have not got; null then."""
_TIMES: Final = ("received_at", "expires_at")
_NEVER_NULL: Final = ("relay", "received_at", "expires_at")
"""What a table needs of each row, and only the writer of a segment knows."""
_COLUMNS: Final = {column.name: column for column in RAW.columns}


def unreadable(path: Path, reason: str) -> ArchiveError:
    """Return the error for a segment, or a folder of them, that cannot be read."""
    return ArchiveError(
        f"a segment cannot be read: {reason[:200]}",
        where=str(path),
        hint="move it out of the folder, or replace it by a whole one",
        code="archive.segment",
    )
