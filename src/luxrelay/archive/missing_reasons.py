"""Reasons of missing sequences: rejected rows and Ephemeral ranges.

Theory of operation
-------------------
*Decides* which sequences have rejected rows, and which ranges ``passed`` names.
*Does not know* Spark and relays: delta-rs reads the two tables, a few thousand rows at a time. Of a
row in ``rejects`` the bytes of its header say which sequence it was served for: a relay's rows are
taken for the range they were asked for alone.
*Bounds*: one number a namespace, the codes of each range asked for, and the merged ranges of
``passed``. A row that was served for a sequence more than ``LEAP_MAX`` above the highest archived
one says nothing about those between.
*What else to change when you change this*: `gaps`, `derived`, `completeness`.

Source: decisions P25, J2, J8.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from luxrelay.archive.ephemeral_ranges import PassedRow, merged
from luxrelay.archive.folder import ArchiveFolder
from luxrelay.archive.offsets import LEAP_MAX, Span
from luxrelay.archive.schema import MAX_I64, NAMESPACES, PASSED, REJECTS
from luxrelay.archive.snapshot import table_batches
from luxrelay.archive.tables import open_table, replace_rows, retired
from luxrelay.bus import constants as c

_SEQ_BYTES: Final = 8


def passed_rows(folder: ArchiveFolder) -> list[PassedRow]:
    """Return the rows of the table ``passed`` as they are; none in an archive without it."""
    if not folder.has_table(PASSED):
        return []  # an archive of a version before, that was not written to since
    rows = open_table(folder, PASSED).to_pyarrow_table(columns=list(PASSED.names)).to_pylist()
    return [PassedRow(**row) for row in rows]


def passed_spans(folder: ArchiveFolder) -> list[Span]:
    """Return what was read and passed over, as ranges that do not touch."""
    return [Span(row.namespace_id, row.first, row.last) for row in merged(passed_rows(folder))]


def gather_passed(folder: ArchiveFolder) -> bool:
    """Write ``passed`` anew when ranges of several batches have become one; return whether it was.

    Whoever calls holds the archive's lock.

    Raises:
        ArchiveError: ``archive.failed``: the table cannot be written.

    """
    rows = passed_rows(folder)
    fewer = merged(rows)
    if len(fewer) == len(rows):
        return False
    values = [asdict(row) for row in fewer]
    replace_rows(folder, PASSED, pa.Table.from_pylist(values, schema=PASSED.arrow()))
    return True


def last_seqs(folder: ArchiveFolder) -> dict[bytes, int]:
    """Return the highest sequence of each namespace, archived or deleted on purpose.

    Reads the table ``namespaces``, which is as old as the last refresh.
    """
    rows = open_table(folder, NAMESPACES).to_pyarrow_table(columns=["namespace_id", "last_seq"])
    grouped = rows.group_by("namespace_id").aggregate([("last_seq", "max")]).to_pylist()
    found = retired(folder)
    for row in grouped:
        name, last = row["namespace_id"], row["last_seq_max"]
        found[name] = max(last, found.get(name, 0))
    return found


def rejected_tops(folder: ArchiveFolder, lasts: Mapping[bytes, int]) -> dict[bytes, int]:
    """Return the highest sequence above ``lasts`` that has rows, all of them rejected.

    Args:
        folder: The archive.
        lasts: The highest sequence archived; namespaces that are not in it are not looked at.

    Raises:
        ArchiveError: the table cannot be read.

    """
    tops: dict[bytes, int] = {}
    for name, seq, _ in _rejected(folder):
        last = lasts.get(name)
        if last is not None and max(last, tops.get(name, 0)) < seq <= last + LEAP_MAX:
            tops[name] = seq
    return tops


def rejected_codes(folder: ArchiveFolder, spans: Sequence[Span]) -> dict[Span, tuple[int, ...]]:
    """Return by which codes rows of each range were rejected; ranges without any are left out.

    Args:
        folder: The archive.
        spans: Ranges that do not overlap.

    Raises:
        ArchiveError: the table cannot be read.

    """
    if not spans:
        return {}
    places: dict[bytes, list[Span]] = {}
    for span in sorted(spans):
        places.setdefault(span.namespace, []).append(span)
    codes: dict[Span, set[int]] = {}
    for name, seq, code in _rejected(folder):
        held = places.get(name, [])
        at = bisect_right(held, seq, key=lambda span: span.first)
        if at and seq <= held[at - 1].last:
            codes.setdefault(held[at - 1], set()).add(code)
    return {span: tuple(sorted(found)) for span, found in codes.items()}


def _rejected(folder: ArchiveFolder) -> Iterator[tuple[bytes, int, int]]:
    """Yield namespace, sequence and code of rejected rows whose bytes name a sequence."""
    if not folder.has_table(REJECTS):
        return
    for batch in table_batches(folder, REJECTS, ("namespace", "header", "code")):
        names, headers, codes = batch.columns
        seqs = pc.binary_slice(headers, c.OFFSET_SEQ, c.OFFSET_SEQ + _SEQ_BYTES)
        rows = set(zip(*(each.to_pylist() for each in (names, seqs, codes)), strict=True))
        for name, seq, code in rows:
            number = int.from_bytes(seq, "big")
            if name is not None and len(seq) == _SEQ_BYTES and 0 < number <= MAX_I64:
                yield name, number, code
