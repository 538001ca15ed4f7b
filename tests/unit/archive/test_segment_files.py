"""Segment files, written and read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from luxrelay.archive.schema import RAW
from luxrelay.archive.segment_files import BATCH_ROWS, read_segment, write_segments
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
