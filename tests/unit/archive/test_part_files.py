"""A task's rows as files of the tables, without Spark: what is written, and what readers see."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from luxrelay.archive.decode import check_batch, checker
from luxrelay.archive.folder import ArchiveFolder, writing
from luxrelay.archive.jvm_errors import recover
from luxrelay.archive.part_files import AHEAD_MAX_MS, PartReport, PartWriter, TableWriter
from luxrelay.archive.rules import CODE_EPHEMERAL, ArchiveRules
from luxrelay.archive.schema import (
    MESSAGES,
    MS_PER_DAY,
    PASSED,
    RAW,
    REJECTS,
    ROOTS,
    SERVED,
    WRITTEN,
    Table,
)
from luxrelay.archive.tables import (
    append_files,
    has_batch,
    open_table,
    prepare_tables,
    replace_files,
    require_checkpoint,
)
from luxrelay.bus import Code, TFHESidecarRef
from luxrelay.errors import ArchiveError
from luxrelay.sync import WireMessage

Forge = Callable[..., WireMessage]
NOW = 1_704_067_200_000 + 3 * MS_PER_DAY
N, M = b"n" * 20, b"m" * 20


def _check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check by the bus's rules; a function of a module, which pickles."""
    for batch in batches:
        yield check_batch(batch)


def _row(message: WireMessage, relay: str = "a:1", **changed: Any) -> dict[str, Any]:
    return {
        "relay": relay,
        "namespace": message.namespace_id,
        "parent": message.namespace_id,
        "seq": message.seq,
        "header": message.header,
        "blob": message.blob,
        "received_at": message.received_at,
        "expires_at": message.expires_at,
        "finality": 3,
    } | changed


def _batches(rows: Iterable[Mapping[str, Any]], size: int = 2) -> list[pa.RecordBatch]:
    table = pa.Table.from_pylist(list(rows), schema=RAW.arrow())
    return table.to_batches(max_chunksize=size)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ArchiveFolder]:
    """An archive with empty tables."""
    with writing(tmp_path / "archive") as made:
        prepare_tables(made)
        yield made


def _written(
    folder: ArchiveFolder, rows: Iterable[Mapping[str, Any]], batch: int = 0, **changed: Any
) -> PartReport:
    """Write rows as one task would, and commit them as the driver would."""
    fields = {"folder": folder.path, "check": _check, "now_ms": NOW} | changed
    parts = [
        PartReport.decode(text)
        for part in PartWriter(**fields)(_batches(rows))
        for text in part.column("part").to_pylist()
    ]
    made = PartReport.total(parts)
    for table in WRITTEN:
        files = [file for file in made.files if file.table == table.name]
        if files:
            append_files(folder, table, files, ("check", batch))
    return made


def _rows(folder: ArchiveFolder, table: Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = open_table(folder, table).to_pyarrow_table().to_pylist()
    return rows


def test_rows_go_to_the_tables_that_are_theirs(forge: Forge, folder: ArchiveFolder) -> None:
    """Good ones to messages, bad ones to rejects, all to raw; unread relays nowhere."""
    good, bad = forge(), forge(seq=2)
    unread = {"relay": "b:1", "namespace": N, "seq": 1}

    made = _written(folder, [_row(good), _row(bad, blob=b"jello"), unread])

    mismatch = int(Code.BLOB_MISMATCH)
    assert made.messages == 1
    assert set(made.counts) == {("a:1", 0, 1), ("a:1", mismatch, 1), ("b:1", -1, 1)}
    (message,) = _rows(folder, MESSAGES)
    assert (message["seq"], message["blob"], message["copies"]) == (1, b"hello", 1)
    assert (message["relays"], message["finality"]) == (["a:1"], 0)
    assert message["latency_ms"] == good.received_at - message["timestamp"] == 40
    assert message["ingested_at"] == NOW
    raw = {row["seq"]: row for row in _rows(folder, SERVED)}
    assert {seq: row["code"] for seq, row in raw.items()} == {1: 0, 2: mismatch}
    assert (raw[1]["blob_bytes"], raw[1]["finality"], raw[1]["header"]) == (5, 3, good.header)
    assert {str(row["date"]) for row in raw.values()} == {"2024-01-04"}
    (reject,) = _rows(folder, REJECTS)
    assert (reject["namespace"], reject["header"], reject["blob"]) == (N, bad.header, b"jello")


def test_ephemeral_rows_leave_their_sequence_alone(forge: Forge, folder: ArchiveFolder) -> None:
    """Nothing of the message is kept, and the sequence is known to have been read (J2)."""

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            checked = check_batch(batch)
            codes = [CODE_EPHEMERAL if seq > 1 else 0 for seq in checked["seq"].to_pylist()]
            place = checked.schema.get_field_index("code")
            yield checked.set_column(
                place, checked.schema.field(place), pa.array(codes, pa.int32())
            )

    made = _written(folder, [_row(forge(seq=seq)) for seq in (1, 2, 3, 5)], check=check)

    assert (made.messages, len(_rows(folder, SERVED)), _rows(folder, REJECTS)) == (1, 1, [])
    passed = [(row["first"], row["last"], row["ingested_at"]) for row in _rows(folder, PASSED)]
    assert sorted(passed) == [(2, 3, NOW), (5, 5, NOW)]


def test_copies_become_one_row(forge: Forge, folder: ArchiveFolder) -> None:
    """The first received copy that has its payload; all who had one, each once."""
    one, two = forge(), forge(seq=2)
    rows = [
        _row(one, "c:1", received_at=50, expires_at=70),
        _row(two, "a:1"),
        _row(one, "a:1", received_at=40, expires_at=60, blob=None),
        _row(one, "b:1", received_at=45, expires_at=90),
        _row(one, "b:1", received_at=48),
    ]

    made = _written(folder, rows)

    assert made.messages == 2
    first, second = sorted(_rows(folder, MESSAGES), key=lambda row: row["seq"])
    assert (first["relays"], first["copies"]) == (["a:1", "b:1", "c:1"], 3)
    assert (first["received_at"], first["blob"]) == (40, b"hello")
    assert first["expires_at"] == one.expires_at
    assert first["latency_ms"] == 40 - first["timestamp"]
    assert (second["relays"], second["copies"]) == (["a:1"], 1)
    assert len(_rows(folder, SERVED)) == 5


def test_every_column_is_what_was_checked(forge: Forge, folder: ArchiveFolder) -> None:
    """Types of every kind come back from the files: an epoch of all of u64, dates, nulls."""
    reference = TFHESidecarRef(commitment=b"s" * 32, epoch=2**64 - 1)
    rows = [_row(forge(flags=1, tfhe_sidecar=reference)), _row(forge(seq=2))]
    (checked,) = _check(_batches(rows))
    wanted = {row["seq"]: row for row in checked.to_pylist()}

    _written(folder, rows)

    found = {row["seq"]: row for row in _rows(folder, MESSAGES)}
    assert found[1]["sidecar_epoch"] == 2**64 - 1
    carried = [name for name in MESSAGES.names if name in checked.schema.names]
    assert len(carried) == len(MESSAGES.names) - 4
    for seq, row in found.items():
        assert {name: row[name] for name in carried} == {
            name: wanted[seq][name] for name in carried
        } | {"finality": 0}


def test_a_message_whose_payload_nobody_had_is_kept(forge: Forge, folder: ArchiveFolder) -> None:
    """Its blob is null; one that has no payload by its header has an empty one."""
    _written(folder, [_row(forge(), blob=None), _row(forge(seq=2, blob=b""), blob=None)])

    assert {row["seq"]: row["blob"] for row in _rows(folder, MESSAGES)} == {1: None, 2: b""}


def test_a_row_that_a_file_repeats_is_written_once(forge: Forge, folder: ArchiveFolder) -> None:
    """Two exports may overlap: what is counted is what was read, raw and rejects hold each once."""
    bad = _row(forge(seq=2), blob=b"jello")
    rows = [_row(forge()), bad, _row(forge(), "b:1"), _row(forge(), received_at=7), bad]

    made = _written(folder, rows, distinct=True, file_bytes=1)

    assert set(made.counts) == {("a:1", 0, 2), ("b:1", 0, 1), ("a:1", int(Code.BLOB_MISMATCH), 2)}
    assert sorted(row["relay"] for row in _rows(folder, SERVED)) == ["a:1", "a:1", "b:1"]
    assert len(_rows(folder, REJECTS)) == 1
    (message,) = _rows(folder, MESSAGES)
    assert (message["relays"], message["received_at"]) == (["a:1", "b:1"], 7)


@pytest.mark.parametrize("bounds", [{"held_bytes": 1}, {"file_bytes": 1}, {"held_bytes": 4_000}])
def test_bounds_change_files_and_no_row(
    forge: Forge, folder: ArchiveFolder, tmp_path: Path, bounds: dict[str, int]
) -> None:
    """Rows beyond the memory of a task lie in a mapped file; copies meet all the same."""
    messages = [forge(name, seq, b"%d" % seq) for name in (N, M) for seq in range(1, 12)]
    rows = [_row(each, relay) for relay in ("a:1", "b:1") for each in messages]
    rows[7]["blob"] = b"jello"
    with writing(tmp_path / "other") as other:
        prepare_tables(other)
        plain = _written(other, rows)

        bounded = _written(folder, rows, **bounds)

        assert (bounded.messages, bounded.counts) == (plain.messages, plain.counts)
        for table in WRITTEN:
            found = [sorted(map(str, _rows(each, table))) for each in (folder, other)]
            assert found[0] == found[1]
            assert found[0] or table is PASSED
    if "file_bytes" in bounds:
        assert len(bounded.files) > len(plain.files)


def test_each_day_has_its_own_file_and_bounds(forge: Forge, folder: ArchiveFolder) -> None:
    """A query reads the files whose bounds hold what it asks for."""
    begin = 1_704_067_200_000
    rows = [
        _row(forge(name, seq, timestamp=begin + day * MS_PER_DAY + seq))
        for seq, name, day in ((5, N, 1), (4, M, 1), (9, N, 0), (7, N, 1))
    ]

    made = _written(folder, rows)

    files = {file.day: file for file in made.files if file.table == MESSAGES.name}
    assert {day: file.rows for day, file in files.items()} == {"2024-01-01": 1, "2024-01-02": 3}
    actions = pa.table(open_table(folder, MESSAGES).get_add_actions(flatten=True)).to_pylist()
    bounds = {str(each["partition.date"]): (each["min.seq"], each["max.seq"]) for each in actions}
    assert bounds == {"2024-01-01": (9, 9), "2024-01-02": (4, 7)}
    assert {each["num_records"] for each in actions} == {1, 3}
    table = open_table(folder, MESSAGES).to_pyarrow_table(filters=[("seq", ">", 7)])
    assert table.column("seq").to_pylist() == [9]


def test_an_erased_namespace_is_not_taken_up(forge: Forge, folder: ArchiveFolder) -> None:
    """Neither what was asked for under it nor what names it; unread relays still count."""
    kept, erased = forge(M), forge(N)
    unread = {"relay": "b:1", "namespace": M, "seq": 1}
    rows = [_row(kept), _row(erased), _row(erased, namespace=M), _row(kept, namespace=N), unread]

    made = _written(folder, rows, barred=(N,))

    assert set(made.counts) == {("a:1", 0, 1), ("b:1", -1, 1)}
    assert [row["namespace_id"] for row in _rows(folder, MESSAGES)] == [M]
    assert [row["namespace"] for row in _rows(folder, SERVED)] == [M]


def test_no_relay_receives_long_after_now(forge: Forge, folder: ArchiveFolder) -> None:
    """A clock at the end of time would keep its message for ever."""
    _written(folder, [_row(forge(), received_at=2**63 - 1)])

    assert [row["received_at"] for row in _rows(folder, MESSAGES)] == [NOW + AHEAD_MAX_MS]
    assert [row["received_at"] for row in _rows(folder, SERVED)] == [NOW + AHEAD_MAX_MS]


def test_a_table_that_has_the_batch_is_left_out(forge: Forge, folder: ArchiveFolder) -> None:
    """A run that was cut off between two commits goes on where it stopped."""
    rows = [_row(forge())]
    assert not has_batch(folder, SERVED, "check", 4)
    first = _written(folder, rows, 4, written=frozenset({MESSAGES.name, REJECTS.name}))
    assert (len(first.files), has_batch(folder, SERVED, "check", 4)) == (1, True)
    assert has_batch(folder, SERVED, "check", 3)
    assert not has_batch(folder, SERVED, "check", 5)
    assert not has_batch(folder, SERVED, "other", 4)

    again = _written(folder, rows, 4, written=frozenset({SERVED.name}))

    assert {file.table for file in again.files} == {MESSAGES.name}
    assert again.messages == 1
    assert len(_rows(folder, SERVED)) == len(_rows(folder, MESSAGES)) == 1


def test_a_checkpoint_that_was_emptied_is_refused(forge: Forge, folder: ArchiveFolder) -> None:
    """Its batches would begin at 0 again, be taken for written, and be lost."""
    name = folder.marker.checkpoint
    require_checkpoint(folder)  # new, nothing written
    _written(folder, [_row(forge())], written=frozenset({MESSAGES.name}))
    append_files(folder, REJECTS, [], (name, 0))

    with pytest.raises(ArchiveError, match="the checkpoint is empty") as caught:
        require_checkpoint(folder)

    assert (caught.value.code, caught.value.where) == ("archive.foreign", str(folder.checkpoint))
    (folder.checkpoint / "metadata").write_text("{}")
    require_checkpoint(folder)


def test_nothing_read_is_nothing_written(folder: ArchiveFolder) -> None:
    """An empty task returns no row, and an empty batch makes no commit."""
    assert _written(folder, []) == PartReport(files=(), counts=(), messages=0)
    assert open_table(folder, MESSAGES).version() == 0


def test_a_file_that_cannot_be_written_is_told(forge: Forge, folder: ArchiveFolder) -> None:
    """The error travels through Spark with its remedy."""
    (folder.table(SERVED) / "date=2024-01-04").write_text("in the way")

    with pytest.raises(ArchiveError, match="rows cannot be written") as caught:
        _written(folder, [_row(forge())])

    noted = recover("\n".join(caught.value.__notes__))
    assert noted is not None
    assert (noted.code, noted.hint) == ("archive.failed", caught.value.hint)


def test_a_row_without_what_a_table_requires_is_told(forge: Forge, folder: ArchiveFolder) -> None:
    """A null would make the table one that no reader opens."""
    with pytest.raises(ArchiveError, match="a row has no expires_at"):
        _written(folder, [_row(forge(), expires_at=None)])


@pytest.mark.parametrize("damage", ["gone", "short"])
def test_a_file_that_the_driver_does_not_see_is_no_part_of_a_table(
    forge: Forge, folder: ArchiveFolder, damage: str
) -> None:
    """Executors on another machine, whose folder is another one."""
    (part,) = PartWriter(folder=folder.path, check=_check, now_ms=NOW)(_batches([_row(forge())]))
    made = PartReport.decode(part.column("part")[0].as_py())
    (file,) = (file for file in made.files if file.table == MESSAGES.name)
    path = folder.table(MESSAGES) / file.path
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(ArchiveError, match="is not here") as caught:
        append_files(folder, MESSAGES, [file])

    assert "share" in caught.value.hint
    assert open_table(folder, MESSAGES).version() == 0


def _day_rows(*days: int, messages: int = 1) -> pa.RecordBatch:
    rows = [
        {"date": date(2024, 1, day), "namespace_id": N, "messages": messages, "root": b"r" * 32}
        for day in days
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ROOTS.arrow())


def _replaced(
    folder: ArchiveFolder, rows: Iterable[pa.RecordBatch], days: list[date] | None, **bounds: int
) -> list[tuple[int, int]]:
    """Put rows in the place of others; return day and messages of each row there is then."""
    write = TableWriter(folder=folder.path, table=ROOTS, **bounds)
    made = PartReport.total(
        PartReport.decode(text) for part in write(rows) for text in part.column(0).to_pylist()
    )
    replace_files(folder, ROOTS, made.files, days)
    return sorted((row["date"].day, row["messages"]) for row in _rows(folder, ROOTS))


def test_days_are_replaced_whole_and_others_stay(folder: ArchiveFolder) -> None:
    """What is made from other tables is made anew by days; a day may have lost its rows."""
    first = [_day_rows(3, 1, 2), _day_rows(1)]

    assert _replaced(folder, first, None) == [(1, 1), (1, 1), (2, 1), (3, 1)]
    days = [date(2024, 1, 1), date(2024, 1, 2)]
    assert _replaced(folder, [_day_rows(1, messages=7)], days) == [(1, 7), (3, 1)]
    assert _replaced(folder, [_day_rows(9, 8, 9)], None, file_bytes=1) == [(8, 1), (9, 1), (9, 1)]
    files = open_table(folder, ROOTS).file_uris()
    assert len(files) == 2
    assert _replaced(folder, [], None) == []
    version = open_table(folder, ROOTS).version()
    assert _replaced(folder, [], None) == []
    assert open_table(folder, ROOTS).version() == version  # nothing to do is no commit


def test_a_writer_travels_by_value(folder: ArchiveFolder) -> None:
    """Spark sends it to executors; what checks rows goes with it."""
    writer = PartWriter(folder=folder.path, check=_check, now_ms=NOW)

    assert pickle.loads(pickle.dumps(writer)) == writer  # noqa: S301  our own bytes
    assert checker(ArchiveRules())


def test_a_row_that_names_another_sequence_is_rejected_once(
    forge: Forge, folder: ArchiveFolder
) -> None:
    """Two files may name a broken row differently: ``rejects`` knows it by its bytes."""
    bad = _row(forge(), blob=b"jello")

    _written(folder, [bad, bad | {"seq": 2}], distinct=True)

    assert sorted(row["seq"] for row in _rows(folder, SERVED)) == [1, 2]
    assert len(_rows(folder, REJECTS)) == 1


@pytest.mark.parametrize("bounds", [{}, {"file_bytes": 1}])
def test_a_task_that_fails_leaves_no_file(
    forge: Forge, folder: ArchiveFolder, bounds: dict[str, int]
) -> None:
    """It runs again, and a disk that is full must not fill further."""
    later = forge(seq=2, timestamp=1_704_067_200_000 + MS_PER_DAY)
    (folder.table(MESSAGES) / "date=2024-01-02").write_text("in the way")

    with pytest.raises(ArchiveError, match="rows cannot be written"):
        _written(folder, [_row(forge()), _row(forge(seq=2), blob=b"-"), _row(later)], **bounds)

    assert list(folder.path.rglob("*.parquet")) == []


def test_a_file_that_breaks_off_is_gone(
    forge: Forge, folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when its last bytes are to be kept."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("luxrelay.archive.part_files.os.fsync", full)

    with pytest.raises(ArchiveError, match="No space left"):
        _written(folder, [_row(forge())])

    assert list(folder.path.rglob("*.parquet")) == []


def test_a_time_that_nobody_said_is_not_made_up(forge: Forge, folder: ArchiveFolder) -> None:
    """A rejected row may lack it; the latest one allowed is no time of receipt."""
    _written(folder, [_row(forge(), received_at=None, blob=b"jello")])

    (reject,) = _rows(folder, REJECTS)
    assert reject["received_at"] is None


def test_headers_of_every_length_are_kept(forge: Forge, folder: ArchiveFolder) -> None:
    """Bytes that name no slot, sequences beyond a column, days at both ends of time."""
    ends = {1: 0, 2: 253_402_300_799_999}
    odd = [b"", b"\x01", forge(seq=3).header[:21], forge(seq=2**63, timestamp=1).header]
    times = {"received_at": 9, "expires_at": 9}
    rows = [_row(forge(seq=seq, timestamp=at)) for seq, at in ends.items()]
    rows += [_row(forge(seq=7), header=header, **times) for header in odd]
    rows.append(_row(forge(seq=4), namespace=None, seq=None))

    _written(folder, rows, barred=(M,))

    assert {row["seq"]: str(row["date"]) for row in _rows(folder, MESSAGES)} == {
        1: "1970-01-01", 2: "9999-12-31", 4: "2024-01-01",
    }  # fmt: skip
    assert {row["header"] for row in _rows(folder, REJECTS)} == set(odd)
    held = {(row["namespace"], row["seq"]) for row in _rows(folder, SERVED)}
    assert held == {(N, 1), (N, 2), (N, 7), (N, None)}


def test_what_the_log_is_told_of_a_file(forge: Forge, tmp_path: Path) -> None:
    """Bounds, also of negative numbers, and nulls: what has none is not left out of a query."""
    for table in WRITTEN:
        (tmp_path / table.name).mkdir()
    rows = [_row(forge(b"\xff" * 20, 9)), _row(forge(seq=7)), _row(forge(seq=8)), _row(forge(M))]
    rows[1] |= {"namespace": None, "seq": None}

    (part,) = PartWriter(folder=tmp_path, check=_check, now_ms=NOW)(_batches(rows))

    made = PartReport.decode(part.column("part")[0].as_py())
    files = {file.table: file for file in made.files}
    served, messages = (json.loads(files[each.name].stats) for each in (SERVED, MESSAGES))
    assert (served["numRecords"], served["nullCount"]["seq"]) == (4, 1)
    assert (served["minValues"]["seq"], served["maxValues"]["seq"]) == (1, 9)
    assert messages["nullCount"] == {name: 4 * (name == "retention") for name in MESSAGES.bounds}
    assert messages["minValues"].keys() == set(MESSAGES.bounds) - {"retention"}
    assert messages["minValues"]["namespace_key"] == -1
    with pq.ParquetFile(tmp_path / MESSAGES.name / files[MESSAGES.name].path) as file:
        held = file.read(["namespace_id", "seq"]).to_pylist()
        column = file.schema_arrow.get_field_index("seq")
        bounds = file.metadata.row_group(0).column(column).statistics
        assert (bounds.min, bounds.max) == (1, 9)
    assert [(row["namespace_id"], row["seq"]) for row in held] == [
        (b"\xff" * 20, 9), (M, 1), (N, 7), (N, 8),
    ]  # fmt: skip


@pytest.mark.parametrize(("ms", "day"), [(0, "2024-01-04"), (-1, "2024-01-03")])
def test_a_day_ends_with_its_last_millisecond(
    forge: Forge, tmp_path: Path, ms: int, day: str
) -> None:
    """Days are those of UTC, wherever a task runs."""
    for table in WRITTEN:
        (tmp_path / table.name).mkdir()

    (part,) = PartWriter(folder=tmp_path, check=_check, now_ms=NOW + ms)(
        _batches([_row(forge(timestamp=NOW + ms))])
    )

    made = PartReport.decode(part.column("part")[0].as_py())
    assert {file.table: file.day for file in made.files} == {"raw": day, "messages": day}
