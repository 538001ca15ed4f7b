"""Batches whose rows may have been read before: what is known, and what a crash leaves."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from luxrelay.archive import ArchiveSession
from luxrelay.archive.batches import BatchTables
from luxrelay.archive.decode import checker
from luxrelay.archive.folder import ArchiveFolder, writing
from luxrelay.archive.jvm_errors import recover
from luxrelay.archive.merging import holds_any, holds_or_shares
from luxrelay.archive.part_files import PartReport, PartWriter
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.schema import MESSAGES, RAW, REJECTS, SERVED, WRITTEN, Table
from luxrelay.archive.segment_files import write_segments
from luxrelay.archive.segments import SegmentTask
from luxrelay.archive.tables import append_files, open_table, prepare_tables
from luxrelay.archive.task_source import TASKS_DDL, held_tasks
from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, sha3_commitment

pytestmark = [pytest.mark.spark, pytest.mark.slow]
N, M = b"n" * 20, b"m" * 20
KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"\x21" * 32)
NOW = int(time.time() * 1000)


def _row(slot: int, name: bytes = N, /, **changed: Any) -> dict[str, Any]:
    header = KEY.sign_header(
        MsgHeader(
            namespace_id=NamespaceId(name),
            seq=slot,
            timestamp=NOW,
            blob_commitment=sha3_commitment(b"hello"),
            blob_len=5,
            policy_hash=b"p" * 32,
        )
    )
    return {
        "relay": "a:1",
        "namespace": name,
        "seq": slot,
        "header": header.encode(),
        "blob": b"hello",
        "received_at": NOW,
        "expires_at": NOW,
        "finality": 0,
    } | changed


def _raw(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=RAW.arrow())


def _commit(folder: ArchiveFolder, rows: Iterable[Mapping[str, Any]], *tables: Table) -> None:
    """Write rows as a batch does that is killed when it has committed these tables alone."""
    write = PartWriter(folder=folder.path, check=checker(ArchiveRules()), now_ms=NOW, distinct=True)
    (part,) = write(_raw(rows).to_batches())
    made = PartReport.decode(part.column("part")[0].as_py())
    for table in tables:
        append_files(folder, table, [file for file in made.files if file.table == table.name])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ArchiveFolder]:
    """An archive with empty tables, in a folder that many programs would read otherwise."""
    with writing(tmp_path / "ar chive #1?ü") as made:
        prepare_tables(made)
        yield made


def test_a_slot_that_was_read_is_known(spark: ArchiveSession, folder: ArchiveFolder) -> None:
    """By raw, or by messages when raw has passed its time, or the other way round after a crash."""
    bad = _row(4, blob=b"jello")
    _commit(folder, [bad, _row(5, namespace=None, seq=6)], SERVED)
    _commit(folder, [_row(7, M)], MESSAGES)

    unknown = [
        _row(8), _row(4, M), _row(9, namespace=None), _row(9, seq=None),
        _row(2**63, seq=9), _row(2**64 - 1, seq=9),
        _row(9, header=b""), _row(9, header=b"\x01" * 25),
        {"relay": "b:1", "namespace": N, "seq": 3},
    ]  # fmt: skip
    known = {
        "another message": _row(4, blob=None),
        "of the header": _row(4, seq=9),
        "of the row": _row(9, header=b"", seq=4),
        "asked for under none": _row(5, namespace=None, seq=6),
        "without raw": _row(7, M, namespace=None, seq=None),
    }

    def holds(*rows: Mapping[str, Any]) -> bool:
        return holds_any(folder, spark.spark.createDataFrame(_raw(rows)))

    assert not holds(*unknown)
    assert [name for name, row in known.items() if not holds(unknown[0], row)] == []
    assert not holds_any(folder, spark.spark.createDataFrame(_raw(unknown)).where("seq < 0"))


def _tasks(spark: ArchiveSession, folder: Path, *files: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return a task for each file that is written with its rows."""
    batches = [pa.RecordBatch.from_pylist(list(rows), schema=RAW.arrow()) for rows in files]
    paths = write_segments(folder, batches, prefix=f"{len(list(folder.glob('*'))):03}")
    rows = [(bytearray(pickle.dumps(SegmentTask(path))),) for path in paths]
    return spark.spark.createDataFrame(rows, TASKS_DDL)


def test_tasks_that_share_a_slot_or_read_a_known_one(
    spark: ArchiveSession, folder: ArchiveFolder, tmp_path: Path
) -> None:
    """Slots are looked for without their rows, and also between files."""
    _commit(folder, [_row(4)], SERVED)

    def holds(*files: Sequence[Mapping[str, Any]]) -> bool:
        return holds_or_shares(folder, _tasks(spark, tmp_path / "segments", *files))

    assert not holds([_row(5), _row(5, relay="b:1")], [_row(6)])
    assert not holds([_row(7, header=b"")], [_row(2**63, seq=8)])
    assert holds([_row(5)], [_row(4)])
    assert holds([_row(5)], [_row(5, relay="b:1")])
    assert holds([_row(9, seq=5)], [_row(5, M), _row(5)])
    assert holds([_row(9, seq=8)], [_row(7, seq=8)])


def test_a_file_that_changes_between_two_looks_is_refused(
    spark: ArchiveSession, folder: ArchiveFolder, tmp_path: Path
) -> None:
    """Its slots were looked for, so its rows and no others may be written."""
    write_segments(tmp_path / "in", [_raw([_row(1)]).to_batches()[0]], prefix="1")
    source = spark.spark.read.format("luxrelay-segments").option("path", str(tmp_path / "in"))
    tasks = held_tasks(source.option("deliver", "tasks").load())
    assert not holds_or_shares(folder, tasks)
    write_segments(tmp_path / "in", [_raw([_row(2)]).to_batches()[0]], prefix="1")

    with pytest.raises(PySparkException) as caught:
        BatchTables(folder=folder).write(tasks, 0)
    found = recover(str(caught.value))
    assert found is not None
    assert (found.code, "has changed" in found.what) == ("archive.segment", True)
    assert open_table(folder, SERVED).to_pyarrow_table().num_rows == 0


@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_files_make_the_same_tables_however_their_slots_lie(
    spark: ArchiveSession, folder: ArchiveFolder, tmp_path: Path, *, shared: bool
) -> None:
    """Tasks write what they read, or rows come together first; a second time adds nothing."""
    second = [_row(3, relay="b:1"), _row(2 if shared else 4, relay="b:1")]
    files = [_row(1), _row(2), _row(1)], second
    tables = BatchTables(folder=folder, again=True, rereads=True)

    counts = [tables.write(_tasks(spark, tmp_path / "segments", *files), 0) for _ in range(2)]

    held = open_table(folder, MESSAGES).to_pyarrow_table().to_pylist()
    messages = sorted((row["seq"], row["relays"]) for row in held)
    both = [(2, ["a:1", "b:1"]), (3, ["b:1"])]
    apart = [(2, ["a:1"]), (3, ["b:1"]), (4, ["b:1"])]
    assert messages == [(1, ["a:1"]), *(both if shared else apart)]
    served = open_table(folder, SERVED).to_pyarrow_table().to_pylist()
    assert len(served) == 4
    assert [each.report.messages for each in counts] == [3 if shared else 4] * 2
    assert [each.report.rows for each in counts] == [5, 5]


@pytest.mark.parametrize(
    "committed",
    [
        (SERVED,),
        pytest.param((), marks=pytest.mark.long),
        pytest.param((SERVED, MESSAGES), marks=pytest.mark.long),
        pytest.param(WRITTEN, marks=pytest.mark.long),
    ],
)
def test_a_batch_that_was_cut_off_is_whole_in_the_end(
    spark: ArchiveSession, folder: ArchiveFolder, committed: tuple[Table, ...]
) -> None:
    """Nothing of it stands in the log, and still nothing doubles."""
    rows = [_row(1), _row(1, relay="b:1"), _row(2), _row(3, blob=b"jello"), _row(1)]
    if committed:
        _commit(folder, rows, *committed)

    counts = BatchTables(folder=folder, again=True).write(
        spark.spark.createDataFrame(_raw(rows)), 0
    )

    held = {
        table.name: open_table(folder, table).to_pyarrow_table().to_pylist() for table in WRITTEN
    }
    assert sorted((row["relay"], row["seq"]) for row in held[SERVED.name]) == [
        ("a:1", 1), ("a:1", 2), ("a:1", 3), ("b:1", 1),
    ]  # fmt: skip
    messages = sorted((row["seq"], row["relays"]) for row in held[MESSAGES.name])
    assert messages == [(1, ["a:1", "b:1"]), (2, ["a:1"])]
    assert [row["blob"] for row in held[REJECTS.name]] == [b"jello"]
    assert (counts.report.rows, counts.report.messages, counts.report.rejected) == (5, 2, 1)
