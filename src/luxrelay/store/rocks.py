"""The only door to rocksdict: families, atomic batches, scans; its errors become ours here.

rocksdict raises plain ``Exception`` with RocksDB's text. A handle that is still referenced keeps
the database open behind a closed one, so every handle lives in this module and goes with `close`.

Source: architecture, rule 8; decisions P9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


class Batch:
    """Rows that are written all or none, in the order they were given."""

    __slots__ = ("_handles", "native")

    def __init__(self, handles: dict[str, object]) -> None:
        self._handles = handles
        self.native = WriteBatch(raw_mode=True)

    def __len__(self) -> int:
        return len(self.native)

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Add a row."""
        self.native.put(key, value, self._handles[family])  # type: ignore[arg-type]  # opaque here

    def put_rows(self, rows: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Add rows given as family, key and value."""
        put, handles = self.native.put, self._handles
        for family, key, value in rows:
            put(key, value, handles[family])  # type: ignore[arg-type]  # opaque here

    def delete_rows(self, rows: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Remove rows given as family, key and value; the value does not matter."""
        delete, handles = self.native.delete, self._handles
        for family, key, _ in rows:
            delete(key, handles[family])  # type: ignore[arg-type]  # opaque here

    def delete(self, family: str, key: bytes) -> None:
        """Remove a row; nothing when there is none."""
        self.native.delete(key, self._handles[family])  # type: ignore[arg-type]  # opaque here


class Database:
    """An open RocksDB whose keys and values are bytes."""

    __slots__ = ("_families", "_handles", "_path", "_root")

    def __init__(self, root: Rdict, path: Path, families: Sequence[str]) -> None:
        self._root = root
        self._path = path
        self._families = {name: root.get_column_family(name) for name in families}
        self._handles: dict[str, object] = {
            name: root.get_column_family_handle(name) for name in families
        }

    @classmethod
    def open(
        cls,
        path: Path,
        families: Sequence[str],
        *,
        point_families: Iterable[str] = (),
        write_buffer_bytes: int,
        block_cache_bytes: int,
        read_only: bool = False,
    ) -> Database:
        """Return the database in ``path``, created when there is none.

        Args:
            path: Folder of RocksDB's files.
            families: Every column family; missing ones are created.
            point_families: Those read by whole keys, which get Bloom filters.
            write_buffer_bytes: Memory for rows not yet in table files.
            block_cache_bytes: Memory for blocks of table files.
            read_only: Show the database as it is now, beside a process that writes it; nothing is
                created or changed, and later writes are not seen.

        Raises:
            StoreError: ``store.locked``, ``store.corrupt`` or ``store.io``.

        """
        cache = Cache(block_cache_bytes)
        points = frozenset(point_families)
        access = AccessType.read_only() if read_only else AccessType.read_write()
        try:
            root = Rdict(
                str(path),
                _database_options(write_buffer_bytes, read_only=read_only),
                {
                    name: _family_options(cache, write_buffer_bytes, bloom=name in points)
                    for name in families
                },
                access,
            )
        except Exception as error:
            raise _ours(error, path) from error
        return cls(root, path, families)

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of ``key``, None without one."""
        try:
            value: bytes | None = self._families[family].get(key)
        except Exception as error:
            raise _ours(error, self._path) from error
        return value

    def scan(self, family: str, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield rows from ``start`` to below ``stop`` (empty: to the end), as of the first row.

        Close the iterator, or use it up, before the database is closed.

        Raises:
            StoreError: ``store.corrupt`` or ``store.io``; a damaged block never looks like the
                end, as it does to rocksdict's own ``items``.

        """
        try:
            rows = self._families[family].iter(_below(stop))
            rows.seek(start)
            while rows.valid():
                yield rows.key(), rows.value()
                rows.next()
            rows.status()
        except Exception as error:
            raise _ours(error, self._path) from error

    def keys(self, family: str, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield the keys that `scan` would yield."""
        try:
            rows = self._families[family].iter(_below(stop))
            rows.seek(start)
            while rows.valid():
                yield rows.key()
                rows.next()
            rows.status()
        except Exception as error:
            raise _ours(error, self._path) from error

    def batch(self) -> Batch:
        """Return an empty batch for this database."""
        return Batch(self._handles)

    def write(self, batch: Batch) -> None:
        """Every row of ``batch`` is in the database and in the operating system's hands."""
        try:
            self._root.write(batch.native)
        except Exception as error:
            raise _ours(error, self._path) from error

    def sync(self) -> None:
        """Everything written before the call is on the disk.

        The interpreter lock is free meanwhile; a write with ``sync`` set would hold it.
        """
        try:
            self._root.flush_wal(sync=True)
        except Exception as error:
            raise _ours(error, self._path) from error

    def close(self) -> None:
        """The files are free for the next to open them."""
        self._handles.clear()
        try:
            for family in self._families.values():
                family.close()
            self._root.close()
        except Exception as error:
            raise _ours(error, self._path) from error
        finally:
            self._families.clear()


def _below(stop: bytes) -> ReadOptions:
    options = ReadOptions()
    if stop:
        options.set_iterate_upper_bound(stop)
    return options


def _database_options(write_buffer_bytes: int, *, read_only: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=not read_only)
    options.create_missing_column_families(create_missing_cfs=not read_only)
    options.set_db_write_buffer_size(write_buffer_bytes)
    options.set_max_total_wal_size(WAL_BYTES_MAX)
    # A reader beside a writer opens every table file at once: the writer may remove its name.
    options.set_max_open_files(-1 if read_only else OPEN_FILES_MAX)
    options.set_keep_log_file_num(LOG_FILES_MAX)
    options.set_max_log_file_size(LOG_FILE_BYTES_MAX)
    return options


def _family_options(cache: Cache, write_buffer_bytes: int, *, bloom: bool) -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    if bloom:
        blocks.set_bloom_filter(BLOOM_BITS_PER_KEY, block_based=False)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_compression_type(DBCompressionType.lz4())
    return options


_BY_TEXT: Final = (
    ("lock hold by", "store.locked"),
    ("While lock file", "store.locked"),
    ("Corruption", "store.corrupt"),
    ("DB instance already closed", "store.closed"),
)
"""RocksDB's words for a fault and our code; the first that occurs in the text decides."""


def _ours(error: Exception, path: Path) -> StoreError:
    if isinstance(error, KeyError):  # `close` forgets the families
        return StoreError("the database is closed", where=str(path), code="store.closed")
    text = str(error)
    code = next((code for words, code in _BY_TEXT if words in text), "store.io")
    return StoreError(f"RocksDB reports: {text.strip()}", where=str(path), code=code)
