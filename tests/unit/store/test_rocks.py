"""The door to RocksDB: batches are atomic, scans are bounded, errors are ours."""

import random
from pathlib import Path

import pytest

from luxrelay.errors import StoreError
from luxrelay.store.rocks import Database

FAMILIES = ("default", "a", "b")


def open_at(path: Path) -> Database:
    """Return a small database in ``path``."""
    return Database.open(
        path,
        FAMILIES,
        point_families=("b",),
        write_buffer_bytes=1 << 20,
        block_cache_bytes=1 << 20,
    )


def test_read_what_a_batch_wrote(tmp_path: Path) -> None:
    """Rows of a batch are there after `write`, in their families, later rows winning."""
    database = open_at(tmp_path / "db")
    batch = database.batch()
    batch.put("a", b"k", b"1")
    batch.put_rows([("b", b"k", b"2"), ("a", b"k", b"3"), ("a", b"gone", b"")])
    batch.delete("a", b"gone")

    assert len(batch) == 5
    assert database.get("a", b"k") is None
    database.write(batch)

    assert (database.get("a", b"k"), database.get("b", b"k")) == (b"3", b"2")
    assert database.get("a", b"gone") is None
    database.close()


def test_scan_from_start_to_below_stop(tmp_path: Path) -> None:
    """A scan includes its start, excludes its stop, and an empty stop means the end."""
    database = open_at(tmp_path / "db")
    batch = database.batch()
    batch.put_rows([("a", bytes([n]), bytes([n, n])) for n in range(1, 6)])
    database.write(batch)

    assert list(database.keys("a", b"\x02", b"\x04")) == [b"\x02", b"\x03"]
    assert list(database.scan("a", b"\x05", b"")) == [(b"\x05", b"\x05\x05")]
    assert list(database.keys("b", b"", b"")) == []
    database.close()


def test_a_scan_sees_the_moment_it_began(tmp_path: Path) -> None:
    """Rows written after the first row was read do not turn up in the scan."""
    database = open_at(tmp_path / "db")
    batch = database.batch()
    batch.put_rows([("a", b"1", b""), ("a", b"2", b"")])
    database.write(batch)
    scan = database.keys("a", b"", b"")
    first = next(scan)
    later = database.batch()
    later.put("a", b"3", b"")
    later.delete("a", b"2")
    database.write(later)

    assert [first, *scan] == [b"1", b"2"]
    database.close()


def test_rows_outlive_a_close(tmp_path: Path) -> None:
    """A closed database can be opened again at once, with its rows."""
    database = open_at(tmp_path / "db")
    batch = database.batch()
    batch.put("a", b"k", b"v")
    database.write(batch)
    database.sync()
    database.close()
    again = open_at(tmp_path / "db")

    assert again.get("a", b"k") == b"v"
    again.close()


def test_refuse_a_second_open(tmp_path: Path) -> None:
    """A database that is open says so with our code."""
    database = open_at(tmp_path / "db")

    with pytest.raises(StoreError) as caught:
        open_at(tmp_path / "db")
    assert caught.value.code == "store.locked"
    database.close()


def test_refuse_a_path_that_cannot_hold_files(tmp_path: Path) -> None:
    """RocksDB's complaint becomes ours, with the path."""
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StoreError) as caught:
        open_at(tmp_path / "file" / "db")
    assert caught.value.code == "store.io"
    assert str(tmp_path) in caught.value.where


def test_a_closed_database_says_so(tmp_path: Path) -> None:
    """Every call after `close` raises ``store.closed``."""
    database = open_at(tmp_path / "db")
    batch = database.batch()
    database.close()

    for call in (
        lambda: database.get("a", b"k"),
        lambda: list(database.scan("a", b"", b"")),
        lambda: list(database.keys("a", b"", b"")),
        lambda: database.write(batch),
        database.sync,
        database.close,
    ):
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.code == "store.closed"


@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_a_flipped_byte_is_corruption_not_the_end(tmp_path: Path, position: float) -> None:
    """A damaged block raises ``store.corrupt``; a scan never just ends before it."""
    database = open_at(tmp_path / "db")
    batch = database.batch()
    rng = random.Random(1)
    batch.put_rows([("a", n.to_bytes(4, "big"), rng.randbytes(100)) for n in range(500)])
    database.write(batch)
    database.close()
    (table,) = (tmp_path / "db").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[int(len(data) * position)] ^= 0xFF
    table.write_bytes(data)
    damaged = open_at(tmp_path / "db")

    for read in (damaged.scan, damaged.keys):
        with pytest.raises(StoreError) as caught:
            list(read("a", b"", b""))
        assert caught.value.code == "store.corrupt"
    damaged.close()
