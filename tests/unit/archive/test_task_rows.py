"""What a task holds until it writes: counts, copies and repeats, in memory and in mapped files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest

from luxrelay.archive.schema import CHECKED, REJECTS, SERVED
from luxrelay.archive.task_rows import TaskRows

A, B = b"a" * 32, b"b" * 32


def _row(content: bytes | None = A, **changed: Any) -> dict[str, Any]:
    return {
        "relay": "r:1",
        "code": 0,
        "namespace_id": b"n" * 20,
        "served_seq": 1,
        "digest": content,
        "content_id": content,
        "blob": b"hello",
        "received_at": 50,
        "expires_at": 90,
    } | changed


def _held(*batches: list[dict[str, Any]], held_bytes: int = 1 << 30) -> TaskRows:
    rows = TaskRows(held_bytes)
    for batch in batches:
        rows.add(pa.RecordBatch.from_pylist(batch, schema=CHECKED.arrow()))
    return rows


def _values(rows: TaskRows, name: str, file_bytes: int = 1 << 30) -> list[list[Any]]:
    return [chunk.column(name).to_pylist() for chunk in rows.chunks(file_bytes)]


def test_rows_are_counted_by_relay_and_code() -> None:
    """Each message once however many rows carry it; rows that are none are counted as well."""
    unread = {"relay": "r:2", "code": -1}
    rows = _held([_row(), _row(B, code=1005), unread], [], [_row(), _row(relay="r:2"), _row(B)])

    assert rows.counts == {("r:1", 0): 3, ("r:1", 1005): 1, ("r:2", -1): 1, ("r:2", 0): 1}
    assert rows.good - len(rows.copies().left_out) == 2


def test_a_chunk_ends_with_the_batch_that_fills_it() -> None:
    """In order, each row in one chunk; a bound of a batch's size gives a chunk for each."""
    batches = [[_row(served_seq=2 * n), _row(served_seq=2 * n + 1)] for n in range(3)]
    size = pa.RecordBatch.from_pylist(batches[0], schema=CHECKED.arrow()).nbytes

    assert _values(_held(*batches), "served_seq", size) == [[0, 1], [2, 3], [4, 5]]
    assert _values(_held(*batches), "served_seq", size + 1) == [[0, 1, 2, 3], [4, 5]]
    assert _values(_held(*batches), "served_seq") == [[0, 1, 2, 3, 4, 5]]
    assert _values(_held(), "served_seq") == []


@pytest.mark.parametrize("variable", ["", "{0}", "{0},/nowhere"])
def test_rows_beyond_the_bound_lie_in_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Spark's folder or the machine's own; nothing of them is left when a task is killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", variable.format(tmp_path))
    names, folders = [], []
    real = pa.ipc.new_file

    def watched(sink: Any, schema: pa.Schema) -> Any:
        names.append([path.name for path in tmp_path.iterdir()])
        folders.append(Path(f"/proc/self/fd/{sink.fileno()}").readlink().parent)
        return real(sink, schema)

    monkeypatch.setattr(pa.ipc, "new_file", watched)
    batches = [[_row(served_seq=n, blob=b"%d" % n)] for n in range(4)]
    size = pa.RecordBatch.from_pylist(batches[0], schema=CHECKED.arrow()).nbytes

    rows = _held(*batches, held_bytes=2 * size)

    assert names == [[], []]
    assert folders == [tmp_path, tmp_path]
    assert _values(rows, "blob") == [[b"0", b"1", b"2", b"3"]]
    assert rows.good == 4
    assert rows.copies().left_out == {1, 2, 3}


def test_no_copies_cost_no_look() -> None:
    """Messages that stand in one row each have nothing to be joined."""
    copies = _held([_row(), _row(B), _row(B, code=1005)]).copies()

    assert (copies.left_out, copies.kept) == (frozenset(), {})
    assert _held().copies().left_out == frozenset()


def test_ids_that_only_begin_alike_are_two_messages() -> None:
    """Whoever searches for such a pair costs the task a look, and no message."""
    alike = A[:8] + b"c" * 24

    assert _held([_row(), _row(alike)]).copies().left_out == frozenset()
    assert _held([_row(), _row(alike)], [_row(), _row(B)]).copies().left_out == {2}


@pytest.mark.parametrize("held_bytes", [1, 1 << 30])
@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ({"blob": None, "received_at": 1}, {}, 1),
        ({}, {"blob": None, "received_at": 1}, 0),
        ({"received_at": 51}, {}, 1),
        ({}, {"received_at": 51}, 0),
        ({"digest": B}, {}, 1),
        ({}, {"digest": B}, 0),
        ({}, {}, 0),
    ],
)
def test_the_copy_that_stays(
    first: Mapping[str, Any], second: Mapping[str, Any], kept: int, held_bytes: int
) -> None:
    """With its payload before without, then the first received, then by digest, then the first."""
    other = _row(b"c" * 32)
    batches = [[other, _row(**first)], [_row(b"d" * 32), _row(**second, relay="r:2")]]

    copies = _held(*batches, held_bytes=held_bytes).copies()

    rows = (1, 3)
    assert copies.left_out == {rows[1 - kept]}
    assert copies.kept[rows[kept]].relays == {"r:1", "r:2"}
    assert set(copies.kept) == {0, 2, rows[kept]}


def test_a_message_has_the_times_of_all_its_copies() -> None:
    """First received, last forgotten, by whichever; a row that was rejected says nothing."""
    rejected = _row(code=1005, received_at=1, expires_at=999, relay="r:9")
    copies = _held(
        [_row(received_at=60, expires_at=70), rejected],
        [_row(received_at=50, relay="r:2"), _row(received_at=70, expires_at=99, relay="r:3")],
    ).copies()

    (found,) = copies.kept.values()
    assert (found.row, found.received_at, found.expires_at) == (2, 50, 99)
    assert found.relays == {"r:1", "r:2", "r:3"}


@pytest.mark.parametrize("held_bytes", [1, 1 << 30])
def test_a_repeat_is_one_by_the_key_of_its_table(held_bytes: int) -> None:
    """``rejects`` does not look at the sequence that a file names beside the header, raw does."""
    rows = _held(
        [_row(), _row(served_seq=2), _row(relay="r:2")],
        [_row(), _row(B), _row(code=1005), _row(namespace_id=None), _row(namespace_id=None)],
        [_row(None, code=1005), _row(None, code=1005)],
        held_bytes=held_bytes,
    )

    assert rows.repeats(SERVED) == {3, 7, 9}
    assert rows.repeats(REJECTS) == {1, 3, 7, 9}
