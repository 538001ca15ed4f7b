"""Rows of the table ``passed``: sequences that were read and are not archived. Pure.

A message of the class Ephemeral is checked like any other and then passed over (J2); of it only the
sequence is kept, so that it does not look like a loss. A batch writes the ranges it has met, and
`retain` makes one row of those that touch.

Source: decision J2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from luxrelay.archive.rules import CODE_EPHEMERAL
from luxrelay.archive.schema import PASSED


@dataclass(frozen=True, slots=True, order=True)
class PassedRow:
    """One row of the table ``passed``."""

    namespace_id: bytes
    """20 bytes."""
    first: int
    """Lowest sequence."""
    last: int
    """Highest sequence."""
    ingested_at: int
    """When its batch was written, ms; of merged rows the latest."""


def merged(rows: Iterable[PassedRow]) -> list[PassedRow]:
    """Return the same sequences in as few rows as they take, in order."""
    found: list[PassedRow] = []
    for row in sorted(rows):
        before = found[-1] if found else None
        if before and before.namespace_id == row.namespace_id and row.first <= before.last + 1:
            last, latest = max(before.last, row.last), max(before.ingested_at, row.ingested_at)
            found[-1] = PassedRow(row.namespace_id, before.first, last, latest)
        else:
            found.append(row)
    return found


def passed_of(checked: pa.Table, now_ms: int) -> pa.Table:
    """Return the rows of ``passed`` that some checked rows make.

    Args:
        checked: Rows of ``schema.CHECKED``.
        now_ms: When their batch is written.

    """
    # A file may hold a row that was asked for under no sequence: it stands for none.
    asked = pc.is_valid(checked.column("served_seq"))
    some = checked.filter(pc.and_(pc.equal(checked.column("code"), CODE_EPHEMERAL), asked))
    names, seqs = (some.column(name).to_pylist() for name in ("namespace_id", "served_seq"))
    singles = (PassedRow(name, seq, seq, now_ms) for name, seq in zip(names, seqs, strict=True))
    rows = merged(singles)
    values = {name: [getattr(row, name) for row in rows] for name in PASSED.names}
    return pa.table(values, schema=PASSED.arrow())
