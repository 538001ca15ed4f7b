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
        write_buffer_bytes=1 << 20,
        block_cache_bytes=1 << 20,
    )


def test_read_what_a_batch_wrote(tmp_path: Path) -> None:
    """Rows of a batch are there after `write`, in their families, later rows winning."""
    database = open_at(tmp_path / "db")
    batch = database.batch()
    batch.put("a", b"k", b"1")
    batch.put_rows(database.table("b"), [(b"k", b"2")])
    batch.put_rows(database.table("a"), [(b"k", b"3"), (b"gone", b"")])
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
    batch.put_rows(database.table("a"), [(bytes([n]), bytes([n, n])) for n in range(1, 6)])
    database.write(batch)

    assert list(database.keys("a", b"\x02", b"\x04")) == [b"\x02", b"\x03"]
    assert list(database.scan("a", b"\x05", b"")) == [(b"\x05", b"\x05\x05")]
    assert list(database.keys("b", b"", b"")) == []
    database.close()


def test_a_scan_sees_the_moment_it_began(tmp_path: Path) -> None:
    """Rows written after the first row was read do not turn up in the scan."""
    database = open_at(tmp_path / "db")
    batch = database.batch()
    batch.put_rows(database.table("a"), [(b"1", b""), (b"2", b"")])
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
    rows = [(n.to_bytes(4, "big"), rng.randbytes(100)) for n in range(500)]
    batch.put_rows(database.table("a"), rows)
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


def test_a_scan_of_a_kind_sees_no_other(tmp_path: Path) -> None:
    """Rows whose keys begin with another byte are not there, and the byte is not yielded."""
    database = open_at(tmp_path / "db")
    table, batch = database.table("a"), database.batch()
    batch.put_rows(table, [(b"g9", b""), (b"h1", b"1"), (b"h2", b"2"), (b"h3", b"3"), (b"i0", b"")])
    database.write(batch)

    assert list(table.scan(b"", b"", b"h")) == [(b"1", b"1"), (b"2", b"2"), (b"3", b"3")]
    assert list(table.keys(b"2", b"", b"h")) == [b"2", b"3"]
    assert list(table.keys(b"1", b"3", b"h")) == [b"1", b"2"]
    assert table.last_key(b"", b"", b"h") == b"3"
    assert table.last_key(b"", b"3", b"h") == b"2"
    assert table.last_key(b"4", b"", b"h") is None
    assert table.last_key(b"", b"", b"f") is None
    database.close()


def test_the_end_of_a_scan_lives_as_long_as_the_scan(tmp_path: Path) -> None:
    """Rocksdict keeps no copy of a bound: one that is freed early would end a scan anywhere."""
    database = open_at(tmp_path / "db")
    table, batch = database.table("a"), database.batch()
    batch.put_rows(table, [(b"k" + n.to_bytes(32, "big"), b"") for n in range(100)])
    database.write(batch)

    for _ in range(50):
        scan = table.keys(bytes(32), b"\x01" + bytes(31), b"k")
        rubbish = [bytes([n]) * 33 for n in range(100)]
        assert len(list(scan)) == len(rubbish)
    database.close()


def test_a_table_comes_and_goes(tmp_path: Path) -> None:
    """A new table is there after a restart; a dropped one is gone, but its reader reads on."""
    database = open_at(tmp_path / "db")
    table, batch = database.create("new"), database.batch()
    batch.put_rows(table, [(bytes([n]), b"") for n in range(5)])
    database.write(batch)
    database.close()
    database = open_at(tmp_path / "db")
    table = database.table("new")
    scan = table.keys(b"", b"")
    first = next(scan)

    database.drop("new")

    assert "new" not in database.names
    assert len([first, *scan]) == 5
    with pytest.raises(StoreError, match="no table new"):
        database.table("new")
    del table
    database.close()
    open_at(tmp_path / "db").close()
