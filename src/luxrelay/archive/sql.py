"""One SELECT over the tables of an archive, answered by delta-rs without a JVM.

Source: LP-6440.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from luxrelay.archive.folder import ArchiveFolder
from luxrelay.archive.schema import TABLES
from luxrelay.archive.tables import open_table
from luxrelay.errors import ArchiveError

SQL_ROWS_MAX: Final = 1_000_000
"""Rows of one answer to SQL at most."""
_SELECT: Final = re.compile(r"(\s|\(|--[^\n]*\n)*(select|with)\b", re.IGNORECASE)


def answer(folder: ArchiveFolder, statement: str) -> pa.Table:
    """Return what a SELECT over the tables yields; tables are named as in the folder.

    Raises:
        ArchiveError: ``archive.failed``: the statement is wrong, or its answer too long;
            ``archive.setup``: `deltalake` is not installed.

    """
    if not _SELECT.match(statement):
        raise _wrong("only SELECT is answered")  # COPY would write files
    opened = [(table.name, open_table(folder, table)) for table in TABLES]
    from deltalake import QueryBuilder  # noqa: PLC0415  # with the extra only, as was seen above

    builder = QueryBuilder()
    for name, table in opened:
        builder = builder.register(name, table)
    batches, rows = [], 0
    try:
        for batch in builder.execute(statement):
            batches.append(pa.record_batch(batch))
            rows += batches[-1].num_rows
            if rows > SQL_ROWS_MAX:
                break
    except Exception as error:  # noqa: BLE001  # delta-rs raises bare Exception for SQL
        raise _wrong(str(error)[:400]) from None
    if rows > SQL_ROWS_MAX:
        raise _wrong(f"more than {SQL_ROWS_MAX:,} rows; add a LIMIT")
    return pa.Table.from_batches(batches) if batches else pa.table({})


def _wrong(reason: str) -> ArchiveError:
    names = ", ".join(table.name for table in TABLES)
    return ArchiveError(
        f"the query cannot be answered: {reason}",
        where="SQL",
        hint=f"tables: {names}; their columns are in docs/reference/tables.md",
        code="archive.failed",
    )
