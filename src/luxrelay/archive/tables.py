"""The Delta tables on disk: made, brought up to date, and looked into without a JVM.

delta-rs (`deltalake`) reads and writes the same log as Spark in milliseconds, so what concerns the
log alone is done by it: creating tables, adding columns, versions, which days have changed,
removing files that no version needs, and commits of files that executors have written
(`part_files`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from luxrelay.archive.folder import ArchiveFolder
from luxrelay.archive.part_files import PartFile, TableWriter
from luxrelay.archive.schema import ERASED, RETIRED, TABLES, WRITTEN, Table
from luxrelay.errors import ArchiveError

if TYPE_CHECKING:
    from deltalake import DeltaTable

_BOUNDS: Final = "delta.dataSkippingStatsColumns"
"""Delta's name for the columns whose bounds stand in the log."""
_NEWER: Final = "use the LuxRelay that wrote it, or a newer one"


def prepare_tables(folder: ArchiveFolder) -> list[str]:
    """Make the tables that are absent and add the columns that are new; return what was done.

    Raises:
        ArchiveError: ``archive.foreign``: a column has another type than here;
            ``archive.failed``: the folder cannot be written to.

    """
    done = []
    for table in TABLES:
        try:
            if not folder.has_table(table):
                _create(folder, table)
                done.append(f"{table.name} made")
            else:
                done += [f"{table.name}.{name} added" for name in _evolve(folder, table)]
        except _faults() as error:
            raise ArchiveError(
                f"the table cannot be made or changed: {str(error)[:200]}",
                where=str(folder.table(table)),
                hint="run it again when the disk has room and the folder is yours",
                code="archive.failed",
            ) from None
    return done


def _faults() -> tuple[type[Exception], ...]:
    """Return what delta-rs raises when a table cannot be written."""
    try:
        from deltalake.exceptions import DeltaError  # noqa: PLC0415  # with the extra only
    except ImportError:
        return (OSError,)
    return (OSError, DeltaError)


def open_table(folder: ArchiveFolder, table: Table, version: int | None = None) -> DeltaTable:
    """Return a table of the archive, as it is or as it was at a version.

    Raises:
        ArchiveError: ``archive.setup``: `deltalake` is not installed; ``archive.foreign``: there
            is no such table or no such version any more.

    """
    try:
        from deltalake import DeltaTable  # noqa: PLC0415  # with the extra only
        from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: PLC0415
    except ImportError:
        raise ArchiveError(
            "Python package deltalake is not installed", hint="pip install 'luxrelay[archive]'"
        ) from None
    path = folder.table(table)
    try:
        return DeltaTable(str(path), version=version)
    except (DeltaError, TableNotFoundError, OSError) as error:
        raise ArchiveError(
            f"the table cannot be opened: {str(error)[:200]}",
            where=str(path),
            hint="run `luxrelay archive ingest`, which makes absent tables",
            code="archive.foreign",
        ) from None


def table_name(folder: ArchiveFolder, table: Table) -> str:
    """Return the name of a table in SQL."""
    path = str(folder.table(table).resolve()).replace("`", "``")
    return f"delta.`{path}`"


def target_name(folder: ArchiveFolder, table: Table) -> str:
    """Return `table_name` for SQL that has a frame in braces."""
    return table_name(folder, table).replace("{", "{{").replace("}", "}}")


def version_of(folder: ArchiveFolder, table: Table) -> int:
    """Return the version of a table, which rises with each change."""
    return open_table(folder, table).version()


def has_batch(folder: ArchiveFolder, table: Table, checkpoint: str, batch: int) -> bool:
    """Return True when a table's log holds a micro-batch, or a later one, of a checkpoint."""
    return _holds(open_table(folder, table), checkpoint, batch)


def _holds(there: DeltaTable, checkpoint: str, batch: int) -> bool:
    last = there.transaction_version(checkpoint)
    return last is not None and last >= batch


def require_checkpoint(folder: ArchiveFolder) -> None:
    """Refuse a checkpoint that was emptied: its batches would begin at 0 and be taken for written.

    Raises:
        ArchiveError: ``archive.foreign``: tables hold batches of a checkpoint that is empty.

    """
    checkpoint = folder.checkpoint
    if (checkpoint / "metadata").exists():  # what Spark writes first
        return
    if any(has_batch(folder, table, folder.marker.checkpoint, 0) for table in WRITTEN):
        raise ArchiveError(
            "the checkpoint is empty, and the tables hold batches of it",
            where=str(checkpoint),
            hint="remove this folder: the next run reads everything again and doubles nothing",
            code="archive.foreign",
        )


def append_files(
    folder: ArchiveFolder,
    table: Table,
    files: Sequence[PartFile],
    mark: tuple[str, int] | None = None,
) -> None:
    """Make files part of a table, and note whose micro-batch they are, in one commit.

    Does nothing when the table has the micro-batch: a Spark Connect server may still write what
    its client, killed meanwhile, had begun. Of two commits at the same time one fails.

    Args:
        folder: The archive.
        table: One of its tables.
        files: What executors have written below the table's folder.
        mark: Name of a checkpoint and number of the micro-batch in it; None notes nothing.

    Raises:
        ArchiveError: ``archive.failed``: a file is not there, or the log cannot be written.

    """
    _commit(folder, table, files, mark=mark)


def replace_files(
    folder: ArchiveFolder, table: Table, files: Sequence[PartFile], days: Sequence[date] | None
) -> None:
    """Let files take the place of those of some days, or of all rows, in one commit.

    Whoever calls holds the archive's lock.

    Args:
        folder: The archive.
        table: One of its tables.
        files: What executors have written below the table's folder; of these days alone.
        days: Days of a table that is partitioned by date; None for all there is.

    Raises:
        ArchiveError: as `append_files`.

    """
    there = open_table(folder, table)
    actions = pa.table(there.get_add_actions(flatten=True)).to_pylist()
    gone = [
        each for each in actions if days is None or str(each["partition.date"]) in map(str, days)
    ]
    if gone or files:
        _commit(folder, table, files, gone=gone)


def replace_rows(folder: ArchiveFolder, table: Table, rows: pa.Table) -> None:
    """Write rows in the place of all that a small table has, in one commit; needs no Spark.

    Whoever calls holds the archive's lock.

    Args:
        folder: The archive.
        table: One of its tables.
        rows: Its rows, with its columns.

    Raises:
        ArchiveError: as `append_files`; the rows that were there stay.

    """
    write = TableWriter(folder=folder.path, table=table)
    replace_files(folder, table, write.write(rows).files if rows.num_rows else (), None)


def _commit(
    folder: ArchiveFolder,
    table: Table,
    files: Sequence[PartFile],
    *,
    mark: tuple[str, int] | None = None,
    gone: Sequence[dict[str, Any]] = (),
) -> None:
    from deltalake.exceptions import DeltaError  # noqa: PLC0415  # with the extra only
    from deltalake.transaction import (  # noqa: PLC0415  # as above
        AddAction,
        CommitProperties,
        RemoveAction,
        Transaction,
    )

    there = open_table(folder, table)
    if mark and _holds(there, *mark):
        return
    changes: list[AddAction | RemoveAction] = []
    for file in files:
        path = folder.table(table) / file.path
        try:
            found = path.stat()
        except OSError:
            raise _unseen(path) from None
        if found.st_size != file.size:
            raise _unseen(path)
        days = {"date": file.day} if table.partition_by else {}
        changed = int(found.st_mtime * 1000)
        changes.append(AddAction(file.path, file.size, days, changed, True, file.stats))
    now_ms = int(time.time() * 1000)
    for each in gone:
        day: dict[str, str | None] = {}
        if table.partition_by:
            day["date"] = str(each["partition.date"])
        changes.append(RemoveAction(each["path"], True, now_ms, each["size_bytes"], day))
    try:
        there.create_write_transaction(
            changes,
            "append",
            there.schema(),
            list(table.partition_by),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(*mark)] if mark else None
            ),
        )
    except (DeltaError, OSError) as error:
        raise ArchiveError(
            f"the table's log cannot be written: {str(error)[:200]}",
            where=str(folder.table(table)),
            hint="run it again when the disk has room and the folder is yours",
            code="archive.failed",
        ) from None


def _unseen(path: Path) -> ArchiveError:
    return ArchiveError(
        "a file that an executor has written is not here",
        where=str(path),
        hint="the archive's folder must be one that the driver and every executor share",
        code="archive.failed",
    )


def days_since(folder: ArchiveFolder, table: Table, version: int | None) -> list[date] | None:
    """Return the days of a table partitioned by date whose files differ from a version's.

    None stands for all days: there was no version, or its log is gone.
    """
    if version is None:
        return None
    try:
        before = _files(open_table(folder, table, version))
    except ArchiveError:
        return None
    now = _files(open_table(folder, table))
    changed = before.items() ^ now.items()
    return sorted({day for _, day in changed})


def file_counts(folder: ArchiveFolder, table: Table) -> dict[date | None, int]:
    """Return how many files each day of a table has; the day None for a table without days."""
    actions = pa.table(open_table(folder, table).get_add_actions(flatten=True))
    if "partition.date" not in actions.column_names:
        return {None: actions.num_rows} if actions.num_rows else {}
    days = actions.column("partition.date").cast(pa.date32()).to_pylist()
    return dict(Counter(days))


def files_with(
    folder: ArchiveFolder, table: Table, column: str, low: int | None, high: int | None
) -> list[str]:
    """Return the files of a table, below its folder, in which a column may lie within bounds.

    Args:
        folder: The archive.
        table: One of its tables.
        column: A column of whole numbers whose bounds the log keeps.
        low: The lowest value; None for a null, which any bounds have within them.
        high: The highest.

    """
    actions = pa.table(open_table(folder, table).get_add_actions(flatten=True))
    least, most, nulls = (
        actions.column(name).to_pylist()
        if (name := f"{kind}.{column}") in actions.column_names
        else [None] * actions.num_rows
        for kind in ("min", "max", "null_count")
    )

    def fits(least: int | None, most: int | None, nulls: int | None) -> bool:
        if nulls is None or nulls > 0:
            return True  # nobody knows, or there is one
        if low is None or high is None:
            return False
        return least is None or most is None or (least <= high and low <= most)

    paths: list[str] = actions.column("path").to_pylist()
    bounds = zip(least, most, nulls, strict=True)
    return [path for path, known in zip(paths, bounds, strict=True) if fits(*known)]


def vacuum(folder: ArchiveFolder, table: Table, hours: int) -> int:
    """Remove files that no version of the last hours needs; return how many.

    Whoever calls holds the archive's lock: with 0 hours the files of a write under way would go.

    Args:
        folder: The archive.
        table: One of its tables.
        hours: How long older versions stay readable; 0 keeps the newest version alone.

    Raises:
        ArchiveError: ``archive.failed``: a file could not be removed, or the log not written.

    """
    there = open_table(folder, table)
    from deltalake.exceptions import DeltaError  # noqa: PLC0415  # with the extra only

    try:
        gone = there.vacuum(
            hours,
            dry_run=False,
            enforce_retention_duration=False,
            full=True,  # files of writes that were killed as well, which no log names
        )
    except (DeltaError, OSError) as error:
        raise ArchiveError(
            f"old files cannot be removed: {str(error)[:200]}",
            where=str(folder.table(table)),
            hint="look at the folder's permissions and run it again",
            code="archive.failed",
        ) from None
    return len(gone)


def retired(folder: ArchiveFolder) -> dict[bytes, int]:
    """Return up to which sequence each namespace was deleted on purpose."""
    return {row["namespace_id"]: row["up_to"] for row in _retired(folder)}


def erased(folder: ArchiveFolder) -> list[bytes]:
    """Return the namespaces that were deleted by law."""
    return sorted(row["namespace_id"] for row in _retired(folder) if row["cause"] == ERASED)


def _retired(folder: ArchiveFolder) -> list[dict[str, Any]]:
    if not folder.has_table(RETIRED):
        return []  # an archive of a version before, that was not written to since
    rows: list[dict[str, Any]] = open_table(folder, RETIRED).to_pyarrow_table().to_pylist()
    return rows


def _files(table: DeltaTable) -> dict[str, date]:
    actions = pa.table(table.get_add_actions(flatten=True))
    days = actions.column("partition.date").cast(pa.date32()).to_pylist()
    return dict(zip(actions.column("path").to_pylist(), days, strict=True))


def _create(folder: ArchiveFolder, table: Table) -> None:
    from deltalake import DeltaTable, Schema  # noqa: PLC0415  # with the extra only

    DeltaTable.create(
        str(folder.table(table)),
        schema=Schema.from_arrow(_delta_schema(table)),
        partition_by=list(table.partition_by),
        name=table.name,
        description=table.meaning,
        configuration=_properties(table),
    )


def _evolve(folder: ArchiveFolder, table: Table) -> list[str]:
    from deltalake import Schema  # noqa: PLC0415  # with the extra only

    there = open_table(folder, table)
    held = {field.name: str(field.type) for field in there.schema().fields}
    wanted = Schema.from_arrow(_delta_schema(table)).fields
    for field in wanted:
        if held.get(field.name, str(field.type)) != str(field.type):
            raise ArchiveError(
                f"column {field.name} of {table.name} is {held[field.name]}, not {field.type}",
                where=str(folder.table(table)),
                hint=_NEWER,
                code="archive.foreign",
            )
    absent = [field for field in wanted if field.name not in held]
    if any(not field.nullable for field in absent):
        raise ArchiveError(
            f"{table.name} lacks a column that is never null: {absent[0].name}",
            where=str(folder.table(table)),
            hint="ingest into a new folder",
            code="archive.foreign",
        )
    if absent:
        there.alter.add_columns(absent)
    wanted_properties = _properties(table)
    if wanted_properties.items() - there.metadata().configuration.items():
        there.alter.set_table_properties(wanted_properties)
    return [field.name for field in absent]


def _properties(table: Table) -> dict[str, str]:
    return {_BOUNDS: ",".join(table.bounds)} if table.bounds else {}


def _delta_schema(table: Table) -> pa.Schema:
    return pa.schema(
        [
            pa.field(
                column.name,
                column.kind.arrow,
                nullable=not column.required,
                metadata={"comment": column.meaning},
            )
            for column in table.columns
        ]
    )
