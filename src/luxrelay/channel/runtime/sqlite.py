"""State in SQLite: one file for each participant in each channel.

The only file that imports sqlite3. A commit is one transaction, synced before it returns (with a
write-ahead log and ``synchronous = FULL``). A file is locked by whoever has it open, until it
closes it or dies; a second opener, in this process or another, is told so.

Source: reliable-channel-api (Persistence); decision C7.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from luxrelay.channel.state import ChannelScope, Row, RowStore, StateTable
from luxrelay.errors import ChannelError

_SCHEMA_VERSION: Final = 1
_SUFFIXES: Final = ("", "-wal", "-journal", "-shm")


class SqlitePersistence:
    """A folder of SQLite files.

    Args:
        folder: Made with mode 0700 when it is not there.
        topic: A content topic whose files are kept in a folder of their own inside; what was not
            acknowledged on one topic must not be sent on another. Empty for ``folder`` itself.
        blocking: Make calls in worker threads; a program without other work may say False.

    """

    def __init__(self, folder: Path | str, *, topic: str = "", blocking: bool = True) -> None:
        self._folder = Path(folder)
        if topic:
            self._folder /= hashlib.sha256(topic.encode()).hexdigest()[:32]
        self._blocking = blocking

    @property
    def blocking(self) -> bool:
        """A commit waits for the disk."""
        return self._blocking

    def open(self, scope: ChannelScope) -> RowStore:
        """Return the rows of a scope, locked against every other opener.

        Raises:
            ChannelError: ``channel.locked``: somebody has the file open; ``channel.state``: it
                cannot be opened, or is not ours.

        """
        path = self.path(scope)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            return _SqliteRows(path)
        except (sqlite3.Error, OSError) as error:
            raise _ours(error, path) from error

    def drop(self, scope: ChannelScope) -> None:
        """Delete the file of a scope that is not open.

        Raises:
            ChannelError: as for `open`.

        """
        path = self.path(scope)
        if not path.exists():
            return
        self.open(scope).close()
        for suffix in _SUFFIXES:
            path.with_name(path.name + suffix).unlink(missing_ok=True)

    def path(self, scope: ChannelScope) -> Path:
        """Return the file of a scope; its name tells neither channel nor participant."""
        text = f"{len(scope.channel_id)}:{scope.channel_id}:{scope.sender_id}"
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.db"


class _SqliteRows:
    """The rows of one scope."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare()
        except BaseException:
            self._database.close()
            raise

    def _prepare(self) -> None:
        """Lock the file and see that it is ours."""
        run = self._database.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run("BEGIN EXCLUSIVE")
        (version,) = run("PRAGMA user_version").fetchone()
        if version not in (0, _SCHEMA_VERSION):
            raise ChannelError(
                f"the file has layout {version}, not {_SCHEMA_VERSION}",
                where=str(self._path),
                code="channel.state",
            )
        run(
            "CREATE TABLE IF NOT EXISTS rows (part INTEGER NOT NULL, name BLOB NOT NULL,"
            " value BLOB NOT NULL, UNIQUE (part, name))"
        )
        run(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        run("COMMIT")

    def load(self) -> Iterable[Row]:
        """Return every row in order.

        Raises:
            ChannelError: ``channel.state``: the file cannot be read, or holds foreign rows.

        """
        try:
            found = self._database.execute(
                "SELECT part, name, value FROM rows ORDER BY part, name"
            ).fetchall()
            return [Row(StateTable(part), bytes(name), bytes(value)) for part, name, value in found]
        except (sqlite3.Error, ValueError) as error:
            raise _ours(error, self._path) from error

    def commit(self, rows: Sequence[Row]) -> None:
        """Apply all rows in one transaction, synced when this returns.

        Raises:
            ChannelError: ``channel.state``: nothing was applied.

        """
        gone = [(row.table, row.key) for row in rows if row.value is None]
        kept = [(row.table, row.key, row.value) for row in rows if row.value is not None]
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("DELETE FROM rows WHERE part = ? AND name = ?", gone)
            self._database.executemany(
                "INSERT INTO rows VALUES (?, ?, ?)"
                " ON CONFLICT (part, name) DO UPDATE SET value = excluded.value",
                kept,
            )
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise _ours(error, self._path) from error

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()


def _ours(error: Exception, path: Path) -> ChannelError:
    """Return our error for one of SQLite or the system."""
    busy = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
    return ChannelError(
        "the file is open elsewhere" if busy else f"{type(error).__name__}: {error}",
        where=str(path),
        code="channel.locked" if busy else "channel.state",
    )
