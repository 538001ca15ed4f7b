"""Why a sequence has no message, read from tables that delta-rs wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from luxrelay.archive.ephemeral_ranges import merged
from luxrelay.archive.folder import ArchiveFolder, Marker
from luxrelay.archive.missing_reasons import (
    gather_passed,
    last_seqs,
    passed_rows,
    passed_spans,
    rejected_codes,
    rejected_tops,
)
from luxrelay.archive.offsets import LEAP_MAX, Span
from luxrelay.archive.schema import PASSED, REJECTS, RETIRED
from luxrelay.errors import ArchiveError

A, B = b"a" * 20, b"b" * 20
Absent = Callable[..., ArchiveFolder]


def test_ranges_that_were_passed_over(absent_of: Absent) -> None:
    """Batches that touch are one range, and one row when the table is gathered."""
    folder = absent_of(passed=[(A, 4, 6), (B, 1, 1), (A, 1, 3), (A, 9, 9)])
    spans, rows = passed_spans(folder), passed_rows(folder)

    gathered = gather_passed(folder), gather_passed(folder)

    assert (spans, len(rows)) == ([Span(A, 1, 6), Span(A, 9, 9), Span(B, 1, 1)], 4)
    assert gathered == (True, False)
    assert sorted(passed_rows(folder)) == merged(rows)
    assert merged(rows)[0].ingested_at == max(row.ingested_at for row in rows if row.last <= 6)


def test_a_table_that_cannot_be_gathered_is_an_error_of_ours(absent_of: Absent) -> None:
    """And stays as it was."""
    folder = absent_of(passed=[(A, 1, 1), (A, 2, 2)])
    log = folder.table(PASSED) / "_delta_log"
    (log / "00000000000000000002.json").mkdir()

    with pytest.raises(ArchiveError, match="log cannot be written") as caught:
        gather_passed(folder)

    assert caught.value.code == "archive.failed"
    (log / "00000000000000000002.json").rmdir()
    assert len(passed_rows(folder)) == 2


def test_an_archive_of_a_version_before_passed_nothing_over(tmp_path: Path) -> None:
    """It has no such table until it is next written to."""
    folder = ArchiveFolder(tmp_path / "older", Marker(checkpoint="made", checkpoints=1))

    assert passed_rows(folder) == []
    assert rejected_tops(folder, {A: 1}) == {}


def test_last_sequences_are_of_any_day_or_deleted(absent_of: Absent) -> None:
    """What retention took counts as archived once."""
    folder = absent_of(lasts=[(A, 7), (A, 9), (B, 3)])
    retired = [
        {"namespace_id": name, "up_to": last, "retired_at": 1, "cause": "retention"}
        for name, last in ((B, 5), (b"c" * 20, 2))
    ]
    frame = pa.Table.from_pylist(retired, schema=RETIRED.arrow())
    write_deltalake(str(folder.table(RETIRED)), frame, mode="append")

    assert last_seqs(folder) == {A: 9, B: 5, b"c" * 20: 2}


def test_the_highest_rejected_sequence_above_all_messages(absent_of: Absent) -> None:
    """Of namespaces with messages alone, and no further than a relay is followed."""
    far = 5 + LEAP_MAX
    folder = absent_of(
        rejected=[
            (A, 3, 1005),
            (A, 7, 1005),
            (A, 6, 1201),
            (A, far + 1, 1005),
            (A, 2**64 - 1, 1005),
            (A, None, 1001),
            (B, 9, 1005),
        ],
    )

    assert rejected_tops(folder, {A: 5, b"c" * 20: 1}) == {A: 7}
    assert rejected_tops(folder, {A: 6 + LEAP_MAX}) == {}
    assert rejected_tops(folder, {A: 6}) == {A: far + 1}


def test_codes_of_ranges(absent_of: Absent) -> None:
    """Each code once, in order, both ends included; of a range with none, nothing."""
    folder = absent_of(
        rejected=[(A, seq, code) for seq, code in ((3, 1201), (5, 1005), (5, 1201), (6, 1))]
    )
    spans = [Span(A, 3, 5), Span(A, 7, 9), Span(B, 1, 9), Span(A, 1, 2)]

    assert rejected_codes(folder, spans) == {Span(A, 3, 5): (1005, 1201)}
    assert rejected_codes(folder, []) == {}


def test_a_file_that_is_gone_is_an_error_of_ours(absent_of: Absent) -> None:
    """And names the table."""
    folder = absent_of(rejected=[(A, 3, 1005)])
    for file in folder.table(REJECTS).rglob("*.parquet"):
        file.unlink()

    with pytest.raises(ArchiveError, match="cannot be read"):
        rejected_tops(folder, {A: 1})
