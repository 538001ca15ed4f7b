"""Tables made and brought up to date without Spark."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from luxrelay.archive import tables
from luxrelay.archive.folder import ArchiveFolder, Marker
from luxrelay.archive.part_files import PartFile
from luxrelay.archive.schema import GAPS, MESSAGES, NAMESPACES, TABLES, Column, ColumnKind
from luxrelay.archive.tables import (
    append_files,
    days_since,
    has_batch,
    open_table,
    prepare_tables,
    table_name,
    version_of,
)
from luxrelay.errors import ArchiveError


@pytest.fixture
def folder(tmp_path: Path) -> ArchiveFolder:
    """A folder with every table, all empty."""
    folder = ArchiveFolder(tmp_path, Marker())
    assert prepare_tables(folder) == [f"{table.name} made" for table in TABLES]
    return folder


def _day(day: date, namespace: bytes) -> pa.Table:
    row = {
        "date": day, "namespace_id": namespace, "messages": 1, "slots": 1, "senders": 1,
        "first_seq": 1, "last_seq": 1, "blob_bytes": 1, "copies": 1,
    }  # fmt: skip
    return pa.Table.from_pylist([row], schema=NAMESPACES.arrow())


def test_tables_say_what_they_hold(folder: ArchiveFolder) -> None:
    """Names, types, partitions, meanings and what is never null are in the table itself."""
    for table in TABLES:
        there = open_table(folder, table)
        fields = {field.name: field for field in there.schema().fields}
        assert tuple(fields) == table.names
        assert there.metadata().partition_columns == list(table.partition_by)
        for column in table.columns:
            assert fields[column.name].metadata["comment"] == column.meaning
            assert fields[column.name].nullable is not column.required


def _file(folder: ArchiveFolder, name: str, stats: dict[str, object]) -> PartFile:
    day = date(1970, 1, 2)
    path = f"date={day.isoformat()}/{name}"
    target = folder.table(MESSAGES) / path
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(b"x")
    return PartFile(
        table=MESSAGES.name, path=path, day=day.isoformat(), rows=1, size=1, stats=json.dumps(stats)
    )


def test_files_with_values_within_bounds(folder: ArchiveFolder) -> None:
    """By what the log knows; a file of which it knows nothing may have anything."""
    assert tables.files_with(folder, MESSAGES, "seq", 0, 9) == []
    known = {
        "low": {"minValues": {"seq": 1}, "maxValues": {"seq": 4}, "nullCount": {"seq": 0}},
        "high": {"minValues": {"seq": 5}, "maxValues": {"seq": 9}, "nullCount": {"seq": 0}},
        "nulls": {"minValues": {"seq": 5}, "maxValues": {"seq": 9}, "nullCount": {"seq": 2}},
        "all-null": {"minValues": {}, "maxValues": {}, "nullCount": {"seq": 1}},
        "unknown": {},
    }
    files = [_file(folder, name, {"numRecords": 9} | bounds) for name, bounds in known.items()]
    append_files(folder, MESSAGES, files, None)

    def found(low: int | None, high: int | None) -> set[str]:
        paths = tables.files_with(folder, MESSAGES, "seq", low, high)
        return {path.rpartition("/")[2] for path in paths}

    always = {"nulls", "all-null", "unknown"}
    assert found(None, None) == always
    assert found(10, 12) == always
    assert found(4, 4) == always | {"low"}
    assert found(9, 30) == always | {"high"}
    assert found(0, 5) == always | {"low", "high"}


def test_preparing_again_does_nothing(folder: ArchiveFolder) -> None:
    """What is up to date gets no new version."""
    assert prepare_tables(folder) == []
    assert {version_of(folder, table) for table in TABLES} == {0}


def test_a_new_column_is_added_to_an_old_table(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of an older version keep and read null; new rows fill it."""
    write_deltalake(str(folder.table(GAPS)), _gap({}), mode="append")
    newer = replace(GAPS, columns=(*GAPS.columns, Column("cause", ColumnKind.STRING, "why")))
    monkeypatch.setattr(tables, "TABLES", (newer,))

    assert prepare_tables(folder) == ["gaps.cause added"]
    write_deltalake(str(folder.table(GAPS)), _gap({"cause": "thinned"}), mode="append")

    rows = DeltaTable(str(folder.table(GAPS))).to_pyarrow_table().to_pylist()
    assert sorted(str(row["cause"]) for row in rows) == ["None", "thinned"]
    assert len(rows) == 2


def _gap(more: dict[str, str]) -> pa.Table:
    row = {"namespace_id": b"n" * 20, "first": 1, "last": 2, "seen_at": 3} | more
    schema = GAPS.arrow()
    for name in more:
        schema = schema.append(pa.field(name, pa.string()))
    return pa.Table.from_pylist([row], schema=schema)


def test_bounds_of_a_few_columns_stand_in_the_log(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of new tables, and from now on of those that a version before made; said once."""
    old = tuple(replace(table, bounds=()) for table in TABLES)
    key = "delta.dataSkippingStatsColumns"
    with monkeypatch.context() as before:
        before.setattr(tables, "TABLES", old)
        older = ArchiveFolder(folder.path / "older", Marker())
        tables.prepare_tables(older)
        assert key not in open_table(older, MESSAGES).metadata().configuration

    tables.prepare_tables(older)
    tables.prepare_tables(older)

    for kept in (folder, older):
        held = open_table(kept, MESSAGES).metadata().configuration
        assert held[key].split(",") == list(MESSAGES.bounds)
    assert version_of(older, MESSAGES) == 1
    assert set(MESSAGES.cluster_by) <= set(MESSAGES.bounds) <= set(MESSAGES.names)


def test_refuse_a_table_of_another_shape(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A type that differs, or a new column that may not be null, changes nothing."""
    other = replace(
        GAPS, columns=(*GAPS.columns[:-1], Column("filled_at", ColumnKind.STRING, "when"))
    )
    strict = replace(GAPS, columns=(*GAPS.columns, Column("cause", ColumnKind.STRING, "why", True)))

    for changed in (other, strict):
        monkeypatch.setattr(tables, "TABLES", (changed,))
        with pytest.raises(ArchiveError) as caught:
            prepare_tables(folder)
        assert caught.value.code == "archive.foreign"
    assert version_of(folder, GAPS) == 0


def test_days_that_changed_are_those_whose_files_differ(folder: ArchiveFolder) -> None:
    """Added, removed and rewritten days count; the rest is left alone."""
    path = str(folder.table(NAMESPACES))
    first, second, third = date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 3)
    for day in (first, second):
        write_deltalake(path, _day(day, b"a" * 20), mode="append")
    before = version_of(folder, NAMESPACES)

    assert days_since(folder, NAMESPACES, before) == []
    write_deltalake(path, _day(third, b"a" * 20), mode="append")
    DeltaTable(path).delete("date = '2026-01-01'")

    assert days_since(folder, NAMESPACES, before) == [first, third]
    assert days_since(folder, NAMESPACES, None) is None
    assert days_since(folder, NAMESPACES, 99) is None


def test_removing_files_keeps_what_recent_versions_need(folder: ArchiveFolder) -> None:
    """Files of older versions stay for their hours; with none, and what no log names, they go."""
    path, day = folder.table(NAMESPACES), date(2026, 1, 1)
    for name in (b"a", b"b"):
        write_deltalake(path, _day(day, name * 20), mode="overwrite")
    (path / "killed.parquet").write_bytes(b"of a write that was killed")

    kept = tables.vacuum(folder, NAMESPACES, 24)
    gone = tables.vacuum(folder, NAMESPACES, 0)

    assert (kept, gone) == (0, 2)
    assert len(list(path.rglob("[!.]*.parquet"))) == 1
    held = DeltaTable(str(path)).to_pyarrow_table()
    assert held.column("namespace_id").to_pylist() == [b"b" * 20]


def _part(folder: ArchiveFolder, name: str) -> PartFile:
    """Write a file of the table ``gaps``, of one row, that no log names yet."""
    path = folder.table(GAPS) / name
    pq.write_table(_gap({}), path)
    stats = json.dumps({"numRecords": 1})
    size = path.stat().st_size
    return PartFile(table=GAPS.name, path=name, day=None, rows=1, size=size, stats=stats)


def _count(folder: ArchiveFolder) -> int:
    return open_table(folder, GAPS).to_pyarrow_table().num_rows


def test_a_batch_is_committed_once(folder: ArchiveFolder) -> None:
    """Also when two ask at the same time: the second finds it, and of two commits one fails."""
    before = open_table(folder, GAPS)
    append_files(folder, GAPS, [_part(folder, "a.parquet")], ("check", 4))
    append_files(folder, GAPS, [_part(folder, "b.parquet")], ("check", 4))
    append_files(folder, GAPS, [_part(folder, "c.parquet")], ("check", 3))
    assert (_count(folder), version_of(folder, GAPS)) == (1, 1)
    log = (folder.table(GAPS) / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    (added,) = (json.loads(line)["add"] for line in log if '"add"' in line)
    written = (folder.table(GAPS) / "a.parquet").stat().st_mtime
    assert (added["path"], added["dataChange"]) == ("a.parquet", True)
    assert added["modificationTime"] == int(written * 1000)

    with pytest.MonkeyPatch.context() as at_once:
        at_once.setattr(tables, "open_table", lambda *_: before)
        with pytest.raises(ArchiveError, match="log cannot be written"):
            append_files(folder, GAPS, [_part(folder, "d.parquet")], ("check", 5))

    assert (_count(folder), has_batch(folder, GAPS, "check", 5)) == (1, False)
    append_files(folder, GAPS, [_part(folder, "e.parquet")], ("check", 5))
    append_files(folder, GAPS, [_part(folder, "f.parquet")], ("other", 0))
    append_files(folder, GAPS, [_part(folder, "g.parquet")])
    assert _count(folder) == 4


def test_batches_are_known_when_their_log_is_gone(folder: ArchiveFolder) -> None:
    """A checkpoint of the table's log carries them, and the files, on."""
    append_files(folder, GAPS, [_part(folder, "a.parquet")], ("check", 4))
    open_table(folder, GAPS).create_checkpoint()
    for path in (folder.table(GAPS) / "_delta_log").glob("*.json"):
        path.unlink()

    assert [has_batch(folder, GAPS, "check", batch) for batch in (4, 5)] == [True, False]
    assert _count(folder) == 1


def test_files_that_no_log_names_go_from_every_day(folder: ArchiveFolder) -> None:
    """A task that was killed may leave rows of a namespace that is erased later."""
    left = [
        folder.table(MESSAGES) / f"date={day}" / "part-killed.snappy.parquet"
        for day in ("1970-01-01", "2026-01-01", "9999-12-31")
    ]
    for path in left:
        path.parent.mkdir()
        path.write_bytes(b"of a task that was killed")

    assert tables.vacuum(folder, MESSAGES, 0) == 3
    assert not any(path.exists() for path in left)


def test_say_what_is_missing(tmp_path: Path) -> None:
    """A folder without the table is named with what to do."""
    for call in (open_table, lambda folder, table: tables.vacuum(folder, table, 0)):
        with pytest.raises(ArchiveError, match="archive ingest") as caught:
            call(ArchiveFolder(tmp_path, Marker()), GAPS)

        assert caught.value.code == "archive.foreign"


def test_table_names_quote_paths(tmp_path: Path) -> None:
    """A backtick in a path cannot end the name."""
    folder = ArchiveFolder(tmp_path / "a`b", Marker())

    assert table_name(folder, MESSAGES) == f"delta.`{tmp_path}/a``b/messages`"


def test_a_table_that_was_half_made_is_made(folder: ArchiveFolder) -> None:
    """A process that is killed in between leaves a log without a version."""
    log = folder.table(GAPS) / "_delta_log"
    for path in log.iterdir():
        path.unlink()

    assert not folder.has_table(GAPS)
    assert prepare_tables(folder) == ["gaps made"]
    assert version_of(folder, GAPS) == 0


def test_a_disk_that_refuses_is_our_error(folder: ArchiveFolder) -> None:
    """Whatever delta-rs raises, it says which table and that a further run makes it good."""
    shutil.rmtree(folder.table(GAPS))
    folder.table(GAPS).write_text("in the way")

    with pytest.raises(ArchiveError, match="cannot be made") as caught:
        prepare_tables(folder)

    assert caught.value.code == "archive.failed"
    assert caught.value.where == str(folder.table(GAPS))
