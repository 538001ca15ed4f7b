"""The rows of one task as Parquet files of the tables; runs on executors.

Theory of operation
-------------------
*Decides* which rows of a task go to which table, how copies of one message become one row, and
what a file holds. *Does not know* where rows come from, how they are checked, or the tables' logs:
the driver commits the files that a whole batch returned (`batches`), and what no commit names is
as if it had never been written.
Rows are checked, kept until the task's last one, and then written by columns, from Arrow straight
to Parquet. They would otherwise travel back into the JVM, be kept there, be shuffled, and be made
from rows to columns once more: that was three quarters of what ingest cost.
*Bounds*: ``HELD_BYTES`` of rows in memory; what comes after lies in a temporary file that is mapped
and has no name. One file of a table and a day is made of ``FILE_BYTES`` of rows. A task remembers
eight bytes of the content id of each of its messages, and those of its digest when rows of files
may repeat.
*What else to change when you change this*: `schema`, `merging`, which does the same to batches that
may have been read before.

Source: Delta transaction protocol, "Add File" and "Per-file Statistics"; decisions J8, J11, P42.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from luxrelay.archive.ephemeral_ranges import passed_of
from luxrelay.archive.jvm_errors import carry
from luxrelay.archive.schema import MESSAGES, MS_PER_DAY, PASSED, REJECTS, SERVED, Table
from luxrelay.archive.task_rows import Copies, TaskRows
from luxrelay.bus import constants as c
from luxrelay.bus.finality import FinalityState
from luxrelay.errors import ArchiveError

Check = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Raw batches in, checked batches out (`decode.checker`)."""

HELD_BYTES: Final = 128 * 1024 * 1024
"""Rows that a task keeps in memory; more go to a temporary file."""
FILE_BYTES: Final = 64 * 1024 * 1024
"""Rows of one file, as they lie in memory."""
ROW_GROUP_ROWS: Final = 32_768
AHEAD_MAX_MS: Final = 366 * MS_PER_DAY
"""A relay's word for when it received something is kept up to so long after the archive's own."""
PARTS_DDL: Final = "part STRING"
"""What a task returns: one JSON object a row, see `PartReport`."""

_PARTS: Final = pa.schema([pa.field("part", pa.string())])
_EPOCH: Final = date(1970, 1, 1)
_LONG: Final = frozenset({
    "header", "blob", "blob_commitment", "signature", "header_hash", "digest", "message_id",
    "content_id", "timestamp", "seq", "received_at", "expires_at", "sidecar",
})  # fmt: skip
"""Columns whose values hardly repeat: a dictionary of them would be built and thrown away."""
_COUNTED: Final = frozenset({pa.int32(), pa.int64()})
"""Types whose bounds stand in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """A file that a task has written; nothing refers to it until the batch is committed."""

    table: str
    """Which table it belongs to."""
    path: str
    """Below the table's folder."""
    day: str | None
    """Its partition, as an ISO date; None for a table without days."""
    rows: int
    """Rows in it."""
    size: int
    """Bytes."""
    stats: str
    """Rows and bounds as the log keeps them, JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReport:
    """What one task did, or several together."""

    files: tuple[PartFile, ...]
    """What it wrote."""
    counts: tuple[tuple[str, int, int], ...]
    """Relay, code, and how many rows have both."""
    messages: int
    """Messages, each counted once."""

    def encode(self) -> pa.RecordBatch:
        """Return it as a row of ``PARTS_DDL``."""
        return pa.RecordBatch.from_pylist([{"part": json.dumps(asdict(self))}], schema=_PARTS)

    @classmethod
    def decode(cls, text: str) -> PartReport:
        """Return what `encode` made."""
        value = json.loads(text)
        return cls(
            files=tuple(PartFile(**each) for each in value["files"]),
            counts=tuple((relay, code, rows) for relay, code, rows in value["counts"]),
            messages=value["messages"],
        )

    @classmethod
    def total(cls, reports: Iterable[PartReport]) -> PartReport:
        """Return the sum of the reports of a batch."""
        files: list[PartFile] = []
        counts: Counter[tuple[str, int]] = Counter()
        messages = 0
        for report in reports:
            files += report.files
            messages += report.messages
            for relay, code, rows in report.counts:
                counts[relay, code] += rows
        summed = tuple((relay, code, rows) for (relay, code), rows in sorted(counts.items()))
        return cls(files=tuple(files), counts=summed, messages=messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWriter:
    """Checks and writes the rows of one task; a value that travels to executors.

    Raises:
        ArchiveError: ``archive.failed``: a file cannot be written.

    """

    folder: Path
    """The archive's folder, which every executor must see under this path."""
    check: Check
    """Raw rows into checked ones."""
    now_ms: int
    """When the batch is written."""
    barred: tuple[bytes, ...] = ()
    """Namespaces that were erased: nothing of them is taken up."""
    written: frozenset[str] = frozenset()
    """Tables that have the batch already, from a run that was cut off."""
    distinct: bool = False
    """A row that a relay's file repeats is written once to ``raw`` and ``rejects``."""
    held_bytes: int = HELD_BYTES
    """As ``HELD_BYTES``."""
    file_bytes: int = FILE_BYTES
    """As ``FILE_BYTES``."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the raw rows of a task and yield what was written, when there were any."""
        rows = TaskRows(self.held_bytes)
        for checked in self.check(batches):
            with _told(self.folder):
                rows.add(self._timed(self._admitted(checked)))
        if rows.counts:
            with _told(self.folder):
                made = self._write(rows)
            yield made.encode()

    def _admitted(self, checked: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out what was asked for under, or names, a namespace that was erased."""
        if not self.barred:
            return checked
        names = pa.array(self.barred, pa.binary())
        named = pc.binary_slice(
            checked.column("header"), c.OFFSET_NAMESPACE, c.OFFSET_NAMESPACE + c.NAMESPACE_BYTES
        )
        held = (
            pc.is_in(column, value_set=names) for column in (checked.column("namespace_id"), named)
        )
        return checked.filter(pc.invert(pc.or_(*held)))

    def _timed(self, checked: pa.RecordBatch) -> pa.RecordBatch:
        """See to it that no relay has received a row long after now, whatever it says.

        A time at the end of its type would have no day, and keep a message for ever.
        """
        place = checked.schema.get_field_index("received_at")
        latest = pa.scalar(self.now_ms + AHEAD_MAX_MS, pa.int64())
        times = pc.min_element_wise(checked.column(place), latest, skip_nulls=False)
        return checked.set_column(place, checked.schema.field(place), times)

    def _write(self, rows: TaskRows) -> PartReport:
        copies = rows.copies()
        with _all_or_none(self.folder) as files:
            for table, frame in self._frames(rows, copies):
                if frame.num_rows and table.name not in self.written:
                    files.extend(_files(self.folder, table, frame))
        counts = tuple((relay, code, number) for (relay, code), number in rows.counts.items())
        messages = rows.good - len(copies.left_out)
        return PartReport(files=tuple(files), counts=counts, messages=messages)

    def _frames(self, rows: TaskRows, copies: Copies) -> Iterator[tuple[Table, pa.Table]]:
        """Yield what each table gets, chunk by chunk."""
        served, rejected = (
            rows.repeats(table) if self.distinct else frozenset() for table in (SERVED, REJECTS)
        )
        first = 0
        for chunk in rows.chunks(self.file_bytes):
            yield SERVED, _served_of(_without(chunk, served, first), self.now_ms)
            yield MESSAGES, _messages_of(chunk, self.now_ms, copies, first)
            yield REJECTS, _rejects_of(_without(chunk, rejected, first), self.now_ms)
            yield PASSED, passed_of(chunk, self.now_ms)
            first += chunk.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWriter:
    """Writes rows that have a table's columns already; a value that travels to executors.

    Raises:
        ArchiveError: ``archive.failed``: a file cannot be written.

    """

    folder: Path
    """The archive's folder, which every executor must see under this path."""
    table: Table
    """Whose rows these are."""
    file_bytes: int = FILE_BYTES
    """As ``FILE_BYTES``."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the rows of a task and yield what was written, a report for each file's rows."""
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            waiting.append(batch)
            size += batch.nbytes
            if size >= self.file_bytes:
                yield self.write(pa.Table.from_batches(waiting)).encode()
                waiting, size = [], 0
        if size:
            yield self.write(pa.Table.from_batches(waiting)).encode()

    def write(self, rows: pa.Table) -> PartReport:
        """Write rows as one file of each day."""
        with _told(self.folder), _all_or_none(self.folder) as files:
            files.extend(_files(self.folder, self.table, _shaped(self.table, rows, {})))
        return PartReport(files=tuple(files), counts=(), messages=0)


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into ours, with what to do."""
    try:
        yield
    except OSError as error:
        raise carry(
            ArchiveError(
                f"rows cannot be written: {error.strerror or error}",
                where=str(error.filename or folder),
                hint="make room, and see that every executor may write to the archive's folder",
                code="archive.failed",
            )
        ) from None


@contextmanager
def _all_or_none(folder: Path) -> Iterator[list[PartFile]]:
    """Gather files, which are gone again when one fails: the task may run again on a full disk."""
    files: list[PartFile] = []
    try:
        yield files
    except BaseException:
        for file in files:
            (folder / file.table / file.path).unlink(missing_ok=True)
        raise


def _without(chunk: pa.Table, rows: frozenset[int], first: int) -> pa.Table:
    """Return a chunk without some rows, which are counted from ``first``."""
    if not rows:
        return chunk
    kept = [row for row in range(chunk.num_rows) if row + first not in rows]
    return chunk.take(pa.array(kept, pa.int64()))


def _only(chunk: pa.Table, wanted: pa.ChunkedArray) -> pa.Table:
    """Return the rows that are wanted; without a copy when that is all of them."""
    return chunk if pc.all(wanted).as_py() else chunk.filter(wanted)


def _served_of(chunk: pa.Table, now_ms: int) -> pa.Table:
    served = _only(chunk, pc.greater_equal(chunk.column("code"), 0))
    day = _EPOCH + timedelta(days=now_ms // MS_PER_DAY)
    made = {
        "date": pa.repeat(pa.scalar(day, pa.date32()), served.num_rows),
        "namespace": served.column("namespace_id"),
        "seq": served.column("served_seq"),
        "blob_bytes": pc.binary_length(served.column("blob")).cast(pa.int64()),
        "ingested_at": _repeated(now_ms, pa.int64(), served.num_rows),
    }
    return _shaped(SERVED, served, made)


def _rejects_of(chunk: pa.Table, now_ms: int) -> pa.Table:
    rejected = chunk.filter(pc.greater(chunk.column("code"), 0))
    made = {
        "namespace": rejected.column("namespace_id"),
        "ingested_at": _repeated(now_ms, pa.int64(), rejected.num_rows),
    }
    return _shaped(REJECTS, rejected, made)


def _messages_of(chunk: pa.Table, now_ms: int, copies: Copies, first: int) -> pa.Table:
    """Return one row a content id: the copy that came first, and who had one.

    Copies may differ in unsigned bytes; the first valid one stays (J11). One with its payload is
    preferred, because a relay may hold the header alone.
    """
    if not copies.left_out:
        good = _only(chunk, pc.equal(chunk.column("code"), 0))
        relays = good.column("relay").combine_chunks()
        alone = pa.array(range(len(relays) + 1), pa.int32())
        made: dict[str, pa.Array] = {
            "relays": pa.ListArray.from_arrays(alone, relays),
            "copies": _repeated(1, pa.int32(), len(relays)),
        }
    else:
        codes = chunk.column("code").to_pylist()
        rows = [
            row for row, code in enumerate(codes) if not code and row + first not in copies.left_out
        ]
        good = chunk.take(pa.array(rows, pa.int64()))
        kept = [copies.kept[row + first] for row in rows]
        made = {
            "received_at": pa.array([each.received_at for each in kept], pa.int64()),
            "expires_at": pa.array([each.expires_at for each in kept], pa.int64()),
            "relays": pa.array([sorted(each.relays) for each in kept], pa.list_(pa.string())),
            "copies": pa.array([len(each.relays) for each in kept], pa.int32()),
        }
    received_at = made.get("received_at", good.column("received_at"))
    made["latency_ms"] = pc.subtract(received_at, good.column("timestamp"))
    # What relays claim stands in raw; statements alone move it here.
    made["finality"] = _repeated(int(FinalityState.PENDING), pa.int32(), good.num_rows)
    made["ingested_at"] = _repeated(now_ms, pa.int64(), good.num_rows)
    return _shaped(MESSAGES, good, made)


def _repeated(value: int, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)


def _shaped(table: Table, rows: pa.Table, made: Mapping[str, pa.Array]) -> pa.Table:
    """Return the columns of a table, from ``made`` where it has them."""
    columns = [made[name] if name in made else rows.column(name) for name in table.names]
    for column, values in zip(table.columns, columns, strict=True):
        if column.required and values.null_count:
            raise carry(
                ArchiveError(
                    f"a row has no {column.name}, which {table.name} requires",
                    where=table.name,
                    hint="the source gave it as null",
                    code="archive.failed",
                )
            )
    return pa.table(columns, names=list(table.names)).cast(table.arrow())


def _files(folder: Path, table: Table, rows: pa.Table) -> Iterator[PartFile]:
    """Write rows as one file a day; yield what the log has to know of each."""
    by = [*table.partition_by, *table.cluster_by]
    if table.cluster_by or (by and len(rows.column("date").unique()) > 1):
        rows = rows.sort_by([(name, "ascending") for name in by])
    for day, some in _days(table, rows):
        below = "" if day is None else f"date={day.isoformat()}/"
        path = f"{below}part-{uuid.uuid4().hex}.snappy.parquet"
        target = folder / table.name / path
        target.parent.mkdir(exist_ok=True)
        _write_file(target, table, some)
        yield PartFile(
            table=table.name,
            path=path,
            day=None if day is None else day.isoformat(),
            rows=some.num_rows,
            size=target.stat().st_size,
            stats=json.dumps(_bounds(table, some)),
        )


def _days(table: Table, rows: pa.Table) -> Iterator[tuple[date | None, pa.Table]]:
    """Yield the rows of each day, without the column of days, which is the folder."""
    if not table.partition_by:
        yield None, rows
        return
    days = rows.column("date").combine_chunks()
    rows = rows.drop_columns("date")
    first = 0
    for run in pc.run_end_encode(days).run_ends.to_pylist():
        yield days[first].as_py(), rows.slice(first, run - first)
        first = run


def _write_file(target: Path, table: Table, rows: pa.Table) -> None:
    bounded = [name for name in _bounded(table) if name in rows.column_names]
    with _whole(target) as file:
        pq.write_table(
            rows, file, row_group_size=ROW_GROUP_ROWS, compression="snappy", store_schema=False,
            use_dictionary=[name for name in rows.column_names if name not in _LONG],
            write_statistics=bounded, write_page_index=True,
        )  # fmt: skip
        file.flush()
        os.fsync(file.fileno())  # before a log names it


@contextmanager
def _whole(target: Path) -> Iterator[BinaryIO]:
    """Open a new file, which is gone again when it cannot be written to its end."""
    with target.open("xb") as file:
        try:
            yield file
        except BaseException:
            target.unlink(missing_ok=True)
            raise


def _bounded(table: Table) -> Sequence[str]:
    return table.bounds or [
        column.name for column in table.columns if column.kind.arrow in _COUNTED
    ]


def _bounds(table: Table, rows: pa.Table) -> dict[str, Any]:
    """Return what the log keeps of a file."""
    lowest, highest, nulls = {}, {}, {}
    for name in _bounded(table):
        if name not in rows.column_names:
            continue
        found = pc.min_max(rows.column(name)).as_py()
        nulls[name] = rows.column(name).null_count
        if found["min"] is not None:
            lowest[name], highest[name] = found["min"], found["max"]
    return {
        "numRecords": rows.num_rows,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": nulls,
    }
