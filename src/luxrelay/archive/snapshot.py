"""The table ``messages`` as it was at the last look, read by delta-rs.

Files that no version needs any more are removed from under a reader: by `compact` and `retain`
after a week, by `erase` at once. A read that finds one gone looks at the table as it is now and
reads again; when a file of the newest version is gone too, the archive is damaged and the error
says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from luxrelay.archive.folder import ArchiveFolder
from luxrelay.archive.schema import MAX_I64, MESSAGES, Table
from luxrelay.archive.tables import open_table
from luxrelay.errors import ArchiveError

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset, Expression

_ERROR_CHARS: Final = 200
_BATCH_ROWS: Final = 4_096


class Snapshot:
    """One version of ``messages``; one thread at a time.

    Args:
        folder: The archive.

    Raises:
        ArchiveError: ``archive.foreign``: there is no such table, or it lacks a column;
            ``archive.setup``: `deltalake` is not installed.

    """

    def __init__(self, folder: ArchiveFolder) -> None:
        self._folder = folder
        self.version = -1
        """The version of the table that is read."""
        self.refresh()

    def refresh(self) -> bool:
        """Look at the table as it is now; return whether it has changed."""
        table = open_table(self._folder, MESSAGES)
        if table.version() == self.version:
            return False
        messages: Dataset = table.to_pyarrow_dataset()
        lacking = [name for name in MESSAGES.names if name not in messages.schema.names]
        if lacking:
            raise ArchiveError(
                f"the archive is older: its messages have no column {lacking[0]}",
                where=str(self._folder.path),
                hint="run `luxrelay archive ingest` or `compact` once, which adds it",
                code="archive.foreign",
            )
        actions = pa.table(table.get_add_actions(flatten=True))
        days = actions.column("partition.date").cast(pa.date32())
        highest = actions.column("max.seq").to_pylist() if len(actions) else []
        known = all(seq is not None for seq in highest)
        self._messages, self.version = messages, table.version()
        self.days: list[date] = sorted(set(days.to_pylist()))
        """Days that have messages."""
        self.files = len(actions)
        """Files of the table."""
        self.last_seq: int = max(highest, default=0) if known else MAX_I64
        """No sequence is above it."""
        return True

    def rows(self, columns: Sequence[str], condition: Expression | None = None) -> pa.Table:
        """Return columns of the rows that fit.

        Raises:
            ArchiveError: ``archive.failed``: a file of the newest version is gone or broken.

        """
        try:
            return self._read(columns, condition)
        except FileNotFoundError:
            self.refresh()
        except (OSError, pa.ArrowException) as error:
            raise _damaged(self._folder, MESSAGES, error) from None
        try:
            return self._read(columns, condition)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(self._folder, MESSAGES, error) from None

    def _read(self, columns: Sequence[str], condition: Expression | None) -> pa.Table:
        """Return the rows; a column that an older archive has not got yet is null."""
        there = set(self._messages.schema.names)
        known = [name for name in columns if name in there]
        table = self._messages.to_table(columns=known, filter=condition)
        for place, name in enumerate(columns):
            if name not in there:
                kind = MESSAGES.arrow().field(name).type
                table = table.add_column(place, name, pa.nulls(table.num_rows, kind))
        return table

    def files_of(self, condition: Expression) -> int:
        """Return how many files bounds do not rule out."""
        return sum(1 for _ in self._messages.get_fragments(filter=condition))


def table_rows(
    folder: ArchiveFolder, table: Table, columns: Sequence[str], condition: Expression
) -> pa.Table:
    """Return columns of the rows of any table as it is now that fit.

    Raises:
        ArchiveError: as `Snapshot.rows`.

    """
    dataset = open_table(folder, table).to_pyarrow_dataset()
    try:
        return dataset.to_table(columns=list(columns), filter=condition)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(folder, table, error) from None


def table_batches(
    folder: ArchiveFolder, table: Table, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield columns of every row of a table as it is now, a few thousand rows at a time.

    Raises:
        ArchiveError: as `Snapshot.rows`.

    """
    dataset = open_table(folder, table).to_pyarrow_dataset()
    try:
        yield from dataset.to_batches(
            columns=list(columns), batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1
        )
    except (OSError, pa.ArrowException) as error:
        raise _damaged(folder, table, error) from None


def _damaged(folder: ArchiveFolder, table: Table, error: Exception) -> ArchiveError:
    lines = str(error).splitlines() or [type(error).__name__]
    return ArchiveError(
        f"a file of the table cannot be read: {lines[0][:_ERROR_CHARS]}",
        where=str(folder.table(table)),
        hint="put the file back, or ingest into a new folder what relays and segments still hold",
        code="archive.failed",
    )
