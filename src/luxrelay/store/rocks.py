"""The only door to rocksdict: tables, atomic batches, scans; its errors become ours here.

rocksdict raises plain ``Exception`` with RocksDB's text. A handle that is still referenced keeps
the database open behind a closed one, so every handle lives in this module and goes with `close`.

Source: architecture, rule 8; decisions P9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from luxrelay.errors import StoreError

MIB: Final = 1024 * 1024
OPEN_FILES_MAX: Final = 512
LOG_FILES_MAX: Final = 4
LOG_FILE_BYTES_MAX: Final = 4 * MIB
WAL_BYTES_MAX: Final = 256 * MIB
"""Above it the oldest rows in memory are written to table files and their log is dropped."""
BLOOM_BITS_PER_KEY: Final = 10
"""A message is looked for by its id in every slice: where it is not, this spares the read."""
_CURRENT: Final = "CURRENT"
"""RocksDB's own name for the file that says which manifest counts."""


class RocksTable:
    """One column family: rows of bytes in order of their keys.

    A table that has been dropped is still read by whoever holds it; its files go with the last.
    """

    __slots__ = ("_path", "_rows", "handle", "name")

    def __init__(self, root: Rdict, path: Path, name: str) -> None:
        self.name = name
        self._path = path
        self._rows: Rdict | None = None
        self.handle: object = None
        """Names the table in a batch."""
        self.attach(root)

    def attach(self, root: Rdict) -> None:
        """Read from ``root``, which has been opened again."""
        self._rows = root.get_column_family(self.name)
        self.handle = root.get_column_family_handle(self.name)

    @property
    def rows(self) -> Rdict:
        """Rocksdict's view of the table.

        Raises:
            StoreError: ``store.closed``.

        """
        if self._rows is None:
            raise StoreError("the database is closed", where=str(self._path), code="store.closed")
        return self._rows

    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key``, None without one."""
        rows = self.rows
        try:
            value: bytes | None = rows.get(key)
        except Exception as error:
            raise _ours(error, self._path) from error
        return value

    def scan(self, start: bytes, stop: bytes, kind: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield rows from ``start`` to below ``stop`` (empty: to the end), as of the first row.

        Close the iterator, or use it up, before the database is closed.

        Args:
            start: Where to begin.
            stop: Where to end.
            kind: One byte in front of every key that is meant; it is not part of ``start``, of
                ``stop``, or of the keys yielded. Empty for all rows.

        Raises:
            StoreError: ``store.corrupt`` or ``store.io``; a damaged block never looks like the
                end, as it does to rocksdict's own ``items``.

        """
        table, skip, bound = self.rows, len(kind), _bound(stop, kind)
        try:
            rows = table.iter(_below(bound))
            rows.seek(kind + start)
            while rows.valid():
                yield rows.key()[skip:], rows.value()
                rows.next()
            rows.status()
        except Exception as error:
            raise _ours(error, self._path) from error

    def keys(self, start: bytes, stop: bytes, kind: bytes = b"") -> Iterator[bytes]:
        """Yield the keys that `scan` would yield."""
        table, skip, bound = self.rows, len(kind), _bound(stop, kind)
        try:
            rows = table.iter(_below(bound))
            rows.seek(kind + start)
            while rows.valid():
                yield rows.key()[skip:]
                rows.next()
            rows.status()
        except Exception as error:
            raise _ours(error, self._path) from error

    def last_key(self, start: bytes, stop: bytes, kind: bytes) -> bytes | None:
        """Return the highest key from ``start`` to below ``stop``, None without one."""
        table = self.rows
        try:
            rows = table.iter(ReadOptions())
            end = _bound(stop, kind)
            rows.seek_for_prev(end)
            if rows.valid() and rows.key() == end:
                rows.prev()
            found = rows.key() if rows.valid() else b""
            rows.status()
        except Exception as error:
            raise _ours(error, self._path) from error
        return found[len(kind) :] if found >= kind + start else None

    def detach(self) -> None:
        """Nothing is read from the table any more; the last to do so frees its files."""
        rows, self._rows, self.handle = self._rows, None, None
        if rows is not None:
            rows.close()


class Batch:
    """Rows that are written all or none, in the order they were given."""

    __slots__ = ("_tables", "native")

    def __init__(self, tables: dict[str, RocksTable]) -> None:
        self._tables = tables
        self.native = WriteBatch(raw_mode=True)

    def __len__(self) -> int:
        return len(self.native)

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Add a row."""
        self.native.put(key, value, self._tables[family].handle)  # type: ignore[arg-type]  # opaque here

    def delete(self, family: str, key: bytes) -> None:
        """Remove a row; nothing when there is none."""
        self.native.delete(key, self._tables[family].handle)  # type: ignore[arg-type]  # opaque here

    def put_rows(self, table: RocksTable, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Add rows to one table."""
        put, handle = self.native.put, table.handle
        for key, value in rows:
            put(key, value, handle)  # type: ignore[arg-type]  # opaque here

    def delete_rows(self, table: RocksTable, keys: Iterable[bytes]) -> None:
        """Remove rows from one table."""
        delete, handle = self.native.delete, table.handle
        for key in keys:
            delete(key, handle)  # type: ignore[arg-type]  # opaque here


class Database:
    """An open RocksDB whose keys and values are bytes."""

    __slots__ = (
        "_cache",
        "_families",
        "_path",
        "_root",
        "_tables",
        "_write_buffer_bytes",
        "failed",
    )

    def __init__(
        self,
        path: Path,
        families: Sequence[str],
        *,
        write_buffer_bytes: int,
        block_cache_bytes: int,
        read_only: bool,
    ) -> None:
        """Use `open`."""
        self._path = path
        self._families = tuple(families)
        self._write_buffer_bytes = write_buffer_bytes
        self._cache = Cache(block_cache_bytes)
        self.failed = False
        """True once a write was refused: RocksDB refuses every other until `reopen`."""
        self._tables: dict[str, RocksTable] = {}
        self._root = self._open(read_only=read_only)

    @classmethod
    def open(
        cls,
        path: Path,
        families: Sequence[str],
        *,
        write_buffer_bytes: int,
        block_cache_bytes: int,
        read_only: bool = False,
    ) -> Database:
        """Return the database in ``path``, created when there is none.

        Args:
            path: Folder of RocksDB's files.
            families: Column families that are there afterwards; others that are found are opened
                as well.
            write_buffer_bytes: Memory for rows not yet in table files.
            block_cache_bytes: Memory for blocks of table files.
            read_only: Show the database as it is now, beside a process that writes it; nothing is
                created or changed, and later writes are not seen.

        Raises:
            StoreError: ``store.locked``, ``store.corrupt`` or ``store.io``.

        """
        return cls(
            path,
            families,
            write_buffer_bytes=write_buffer_bytes,
            block_cache_bytes=block_cache_bytes,
            read_only=read_only,
        )

    @property
    def path(self) -> Path:
        """The folder of its files."""
        return self._path

    def _open(self, *, read_only: bool) -> Rdict:
        access = AccessType.read_only() if read_only else AccessType.read_write()
        size = self._write_buffer_bytes
        try:
            names = dict.fromkeys(self._families)
            if read_only or (self._path / _CURRENT).exists():
                names |= dict.fromkeys(Rdict.list_cf(str(self._path), Options(raw_mode=True)))
            root = Rdict(
                str(self._path),
                _database_options(size, read_only=read_only),
                {name: _family_options(self._cache, size) for name in names},
                access,
            )
            for name, table in self._tables.items():
                if name in names:
                    table.attach(root)
            missing = [name for name in names if name not in self._tables]
            self._tables |= {name: RocksTable(root, self._path, name) for name in missing}
            self._tables = {name: self._tables[name] for name in names}
        except Exception as error:
            if _FILE_GONE in str(error) and self._path.is_dir():
                raise StoreError(
                    f"a file of the database is gone: RocksDB reports: {str(error).strip()}",
                    where=str(self._path),
                    code="store.corrupt",
                ) from error
            raise _ours(error, self._path) from error
        return root

    def reopen(self) -> None:
        """The database takes writes again; nobody else uses it meanwhile.

        What it holds may be more or less than before: what became of the last writes is known only
        now. When it cannot be opened for writing it is open for reading, and ``failed`` stays True.

        Raises:
            StoreError: ``store.corrupt`` or ``store.io``.

        """
        for close in [*(table.detach for table in self._tables.values()), self._root.close]:
            with suppress(Exception):  # it cannot flush; what it had not written is in its log
                close()
        try:
            self._root = self._open(read_only=False)
        except StoreError:
            self._root = self._open(read_only=True)
            raise
        self.failed = False

    @property
    def names(self) -> list[str]:
        """The tables that are open."""
        return list(self._tables)

    def table(self, name: str) -> RocksTable:
        """Return an open table.

        Raises:
            StoreError: ``store.closed``, or ``store.corrupt`` when there is none.

        """
        found = self._tables.get(name)
        if found is None:
            code = "store.corrupt" if self._tables else "store.closed"
            raise StoreError(f"there is no table {name}", where=str(self._path), code=code)
        return found

    def create(self, name: str) -> RocksTable:
        """Return a new, empty table."""
        try:
            self._root.create_column_family(
                name, _family_options(self._cache, self._write_buffer_bytes)
            ).close()
            table = self._tables[name] = RocksTable(self._root, self._path, name)
        except Exception as error:
            self.failed = True
            raise _ours(error, self._path) from error
        return table

    def drop(self, name: str) -> None:
        """The table is gone, and its files with the last who reads it."""
        self._tables.pop(name, None)
        try:
            self._root.drop_column_family(name)
        except Exception as error:
            self.failed = True
            raise _ours(error, self._path) from error

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of ``key``, None without one."""
        return self.table(family).get(key)

    def scan(self, family: str, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield what `RocksTable.scan` yields."""
        return self.table(family).scan(start, stop)

    def keys(self, family: str, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield what `RocksTable.keys` yields."""
        return self.table(family).keys(start, stop)

    def batch(self) -> Batch:
        """Return an empty batch for this database."""
        return Batch(self._tables)

    def write(self, batch: Batch) -> None:
        """Every row of ``batch`` is in the database and in the operating system's hands."""
        try:
            self._root.write(batch.native)
        except Exception as error:
            self.failed = True
            raise _ours(error, self._path) from error

    def sync(self) -> None:
        """Everything written before the call is on the disk.

        The interpreter lock is free meanwhile; a write with ``sync`` set would hold it.
        """
        try:
            self._root.flush_wal(sync=True)
        except Exception as error:
            self.failed = True
            raise _ours(error, self._path) from error

    def identity(self) -> bytes:
        """Return the name that RocksDB gave the database when it made it, 64 bytes at most."""
        try:
            with (self._path / "IDENTITY").open("rb") as file:
                return file.read(64)
        except OSError:
            return b""

    def sequence(self) -> int:
        """Return RocksDB's number of the last row written."""
        try:
            return int(self._root.latest_sequence_number())
        except Exception as error:
            raise _ours(error, self._path) from error

    def close(self) -> None:
        """The files are free for the next to open them."""
        try:
            for table in self._tables.values():
                table.detach()
            self._root.close()
        except Exception as error:
            raise _ours(error, self._path) from error
        finally:
            self._tables.clear()


def rebuild(path: Path) -> None:
    """The manifest in ``path`` is made anew from the table files and logs that are there.

    Raises:
        StoreError: ``store.io`` or ``store.corrupt``.

    """
    try:
        Rdict.repair(str(path), Options(raw_mode=True))
    except Exception as error:
        raise _ours(error, path) from error


def _below(bound: bytes) -> ReadOptions:
    """Return options for reading below ``bound``, which must live as long as the iterator.

    rocksdict hands RocksDB the address of the bytes and keeps no copy.
    """
    options = ReadOptions()
    if bound:
        options.set_iterate_upper_bound(bound)
    return options


def _bound(stop: bytes, kind: bytes) -> bytes:
    """Return the key at which a scan ends; empty for none."""
    if stop or not kind:
        return kind + stop
    return bytes([kind[0] + 1])


def _database_options(write_buffer_bytes: int, *, read_only: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=not read_only)
    options.create_missing_column_families(create_missing_cfs=not read_only)
    options.set_db_write_buffer_size(write_buffer_bytes)
    # One thread writes: what lets several insert side by side would only cost it time.
    options.set_allow_concurrent_memtable_write(allow=False)
    options.set_enable_write_thread_adaptive_yield(enabled=False)
    options.set_max_total_wal_size(WAL_BYTES_MAX)
    # A reader beside a writer opens every table file at once: the writer may remove its name.
    options.set_max_open_files(-1 if read_only else OPEN_FILES_MAX)
    options.set_keep_log_file_num(LOG_FILES_MAX)
    options.set_max_log_file_size(LOG_FILE_BYTES_MAX)
    return options


def _family_options(cache: Cache, write_buffer_bytes: int) -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_bloom_filter(BLOOM_BITS_PER_KEY, block_based=False)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_compression_type(DBCompressionType.lz4())
    return options


_FILE_GONE: Final = "No such file or directory"
"""RocksDB's words, at its opening, for a file that it names and does not find."""
_BY_TEXT: Final = (
    ("lock hold by", "store.locked"),
    ("While lock file", "store.locked"),
    ("Corruption", "store.corrupt"),
    ("DB instance already closed", "store.closed"),
)
"""RocksDB's words for a fault and our code; the first that occurs in the text decides."""


def _ours(error: Exception, path: Path) -> StoreError:
    if isinstance(error, StoreError):
        return error
    text = str(error)
    code = next((code for words, code in _BY_TEXT if words in text), "store.io")
    return StoreError(f"RocksDB reports: {text.strip()}", where=str(path), code=code)
