"""Segment files, written and read."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from luxrelay.archive.schema import RAW
from luxrelay.archive.segment_files import (
    BATCH_ROWS,
    read_segment,
    stamp_of,
    write_segments,
)
from luxrelay.archive.slot_lookup import slots_of
from luxrelay.errors import ArchiveArgumentError, ArchiveError
from luxrelay.sync import WireMessage


def _batch(forge: Callable[..., WireMessage], first: int, count: int) -> pa.RecordBatch:
    message = forge()
    rows = [
        {"relay": "a:1", "namespace": b"n" * 20, "seq": seq, "header": message.header,
         "received_at": 1, "expires_at": 2}
        for seq in range(first, first + count)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=RAW.arrow())


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_what_is_written_is_read(
    kind: str, forge: Callable[..., WireMessage], tmp_path: Path
) -> None:
    """Every row comes back, in pieces of bounded size, and names ascend."""
    batches = [_batch(forge, 1, BATCH_ROWS + 5), _batch(forge, 9_000, 3)]

    paths = write_segments(tmp_path / "out", batches, prefix="0001", kind=kind)

    assert [path.name for path in paths] == [f"0001-00000{n}.{kind}" for n in (0, 1)]
    read = [list(read_segment(path)) for path in paths]
    assert [piece.num_rows for piece in read[0]] == [BATCH_ROWS, 5]
    assert [pa.Table.from_batches(pieces).to_pylist() for pieces in read] == [
        batch.to_pylist() for batch in batches
    ]
    assert not list((tmp_path / "out").glob("*.new"))


def test_a_segment_of_an_earlier_version_has_no_sidecars(
    forge: Callable[..., WireMessage], tmp_path: Path
) -> None:
    """The column that it lacks is null."""
    path = tmp_path / "1.parquet"
    pq.write_table(pa.Table.from_batches([_batch(forge, 1, 2)]).drop(["sidecar"]), path)

    (piece,) = read_segment(path)

    assert piece.schema.equals(RAW.arrow())
    assert piece.column("sidecar").to_pylist() == [None, None]


def test_a_segment_that_is_gone_or_broken_is_named(tmp_path: Path) -> None:
    """Loss and damage have their own codes; the file's name is in the error."""
    broken = tmp_path / "1.arrow"
    broken.write_bytes(b"no arrow")
    empty = pa.RecordBatch.from_pylist([{"relay": "a:1", "received_at": 1}], schema=RAW.arrow())
    (lacking,) = write_segments(tmp_path / "3", [empty], prefix="3")
    other = tmp_path / "2.parquet"
    pq.write_table(pa.table({"x": [1]}), other)

    for path, code in (
        (tmp_path / "0.arrow", "archive.data_loss"),
        (tmp_path / "0.parquet", "archive.data_loss"),
        (broken, "archive.segment"),
        (other, "archive.segment"),
        (lacking, "archive.segment"),
    ):
        with pytest.raises(ArchiveError, match=path.name) as caught:
            list(read_segment(path))
        assert caught.value.code == code


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_rows_stay_as_they_were_read(
    kind: str, forge: Callable[..., WireMessage], tmp_path: Path
) -> None:
    """Checked rows wait for their task's end; whoever writes into the file then is too late."""
    batch = _batch(forge, 1, 50)
    (path,) = write_segments(tmp_path, [batch], prefix="1", kind=kind)
    rows = list(read_segment(path))
    with path.open("r+b") as file:
        file.write(b"X" * path.stat().st_size)
        file.truncate(100)

    assert pa.Table.from_batches(rows).to_pylist() == batch.to_pylist()


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_segment_is_the_one_that_was_looked_at(
    kind: str, forge: Callable[..., WireMessage], tmp_path: Path
) -> None:
    """Another file under its name, or one that was written into, is refused."""
    (path,) = write_segments(tmp_path, [_batch(forge, 1, 3)], prefix="1", kind=kind)
    stamp = stamp_of(path)
    assert len(list(read_segment(path, stamp))) == 1

    write_segments(tmp_path, [_batch(forge, 1, 3)], prefix="1", kind=kind)
    with pytest.raises(ArchiveError, match="has changed") as caught:
        list(read_segment(path, stamp))
    assert caught.value.code == "archive.segment"
    path.unlink()
    with pytest.raises(ArchiveError, match="gone"):
        stamp_of(path)


def _flipped(data: bytes, rng: random.Random) -> bytes:
    flipped = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def test_a_damaged_segment_is_an_error_or_rows(
    forge: Callable[..., WireMessage], tmp_path: Path
) -> None:
    """Its offsets may lead anywhere: they are looked at before anything follows them."""
    (path,) = write_segments(tmp_path, [_batch(forge, 1, 40)], prefix="1")
    whole, rng, refused = path.read_bytes(), random.Random(7), []
    for _ in range(300):
        path.write_bytes(_flipped(whole, rng))
        try:
            for rows in read_segment(path):
                assert slots_of(rows, 1).num_rows >= rows.num_rows
                rows.to_pylist()
        except ArchiveError as error:
            refused.append(error.code)

    assert 0 < len(refused) < 300
    assert set(refused) == {"archive.segment"}


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """Nobody says which of the two is meant."""
    names = [*RAW.names, "seq"]
    arrays = [pa.nulls(1, field.type) for field in RAW.arrow()] + [pa.array([1])]
    table = pa.Table.from_arrays(arrays, names)
    path = tmp_path / "1.arrow"
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)

    with pytest.raises(ArchiveError, match="seq") as caught:
        list(read_segment(path))
    assert caught.value.code == "archive.segment"


def test_refuse_other_kinds_and_names(tmp_path: Path) -> None:
    """A name cannot leave the folder."""
    for prefix, kind in (("a", "csv"), ("../a", "arrow"), ("", "arrow")):
        with pytest.raises(ArchiveArgumentError):
            write_segments(tmp_path, [], prefix=prefix, kind=kind)


def test_a_time_before_1970_is_refused(tmp_path: Path) -> None:
    """It has no day in the tables, and no form on the wire."""
    for number, name in enumerate(("received_at", "expires_at")):
        row = {"relay": "a:1", "received_at": 1, "expires_at": 1} | {name: -1}
        batch = pa.RecordBatch.from_pylist([row], schema=RAW.arrow())
        (path,) = write_segments(tmp_path, [batch], prefix=str(number))

        with pytest.raises(ArchiveError, match=name) as caught:
            list(read_segment(path))
        assert caught.value.code == "archive.segment"
