"""The data folder: is it ours, is it free, may this version touch it?

A marker file names the format and the layout version, so that all three questions are answered
before RocksDB is asked: opening a database changes files even when it then fails. The marker also
carries the lock, which two opens in one process respect as well (`flock`).

Source: decisions P43; store rows of the error catalogue.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path
from typing import Final

from luxrelay.errors import StoreError
from luxrelay.files import holder, make_folder, read_bounded, sync_folder

MARKER: Final = "luxrelay-store"
DATABASE: Final = "db"
"""RocksDB's own folder below ours."""
MARKER_BYTES_MAX: Final = 256

_FORM: Final = re.compile(rb"luxrelay store, layout ([0-9]{1,9})\n")


class Folder:
    """A data folder: claimed, so that nobody else writes it until `release`, or looked at only."""

    __slots__ = ("_lock", "path")

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock

    @property
    def database(self) -> Path:
        """Where RocksDB's files are."""
        return self.path / DATABASE

    @classmethod
    def claim(cls, path: Path, layout_version: int) -> Folder:
        """Return the folder, marked and locked; a missing or empty one becomes ours.

        Raises:
            StoreError: ``store.foreign``, ``store.version``, ``store.locked`` or ``store.io``;
                an existing folder is then as it was.

        """
        try:
            fresh = _is_fresh(path)
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if fresh else 0)
            lock = os.open(path / MARKER, flags, 0o600)
        except OSError as error:
            raise _refused(error, path) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _check_marker(lock, path, layout_version)
        except BlockingIOError as error:
            who = holder(lock)
            os.close(lock)
            raise StoreError(
                f"the store is open already, in {who}", where=str(path), code="store.locked"
            ) from error
        except OSError as error:
            os.close(lock)
            raise _refused(error, path) from error
        except StoreError:
            os.close(lock)
            raise
        return cls(path, lock)

    @classmethod
    def look(cls, path: Path, layout_version: int) -> Folder:
        """Return the folder without a claim; it has exactly this layout, whoever writes it.

        Raises:
            StoreError: ``store.foreign``, ``store.version`` or ``store.io``.

        """
        try:
            text = read_bounded(path / MARKER, MARKER_BYTES_MAX)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise (_foreign(path) if path.exists() else _missing(path)) from error
        except OSError as error:
            if error.errno in {errno.EFBIG, errno.EINVAL, errno.EISDIR}:
                raise _foreign(path) from error
            raise _refused(error, path) from error
        form = _FORM.fullmatch(text)
        if form is None:
            raise _foreign(path)
        if int(form[1]) != layout_version:
            raise StoreError(
                f"the store has layout {int(form[1])}, this version reads {layout_version}",
                where=str(path),
                code="store.version",
                hint="an older store is upgraded when a node opens it; a newer one needs a newer "
                "LuxRelay",
            )
        return cls(path, None)

    def mark(self, layout_version: int) -> None:
        """Older versions refuse the folder from now on.

        Raises:
            StoreError: ``store.io``.

        """
        assert self._lock is not None
        try:
            os.pwrite(self._lock, _marker_text(layout_version), 0)
            os.fsync(self._lock)
        except OSError as error:
            raise _refused(error, self.path) from error

    def release(self) -> None:
        """The folder is free for the next to claim it."""
        if self._lock is not None:
            os.close(self._lock)


def holds_no_store(path: Path) -> bool:
    """Return True for a folder with something in it that is no relay store; nothing is changed.

    Raises:
        OSError: it cannot be listed.

    """
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    return bool(names) and MARKER not in names


def _is_fresh(path: Path) -> bool:
    """Return True for a folder that may become ours; make it when it is missing."""
    try:
        names = {entry.name for entry in path.iterdir()}
    except FileNotFoundError:
        make_folder(path)
        return True
    except NotADirectoryError as error:
        raise StoreError(
            "the data path is not a folder", where=str(path), code="store.foreign"
        ) from error
    if names and MARKER not in names:
        raise _foreign(path)
    return not names


def _check_marker(lock: int, path: Path, layout_version: int) -> None:
    text = os.pread(lock, MARKER_BYTES_MAX, 0)
    form = _FORM.fullmatch(text)
    if form is None:
        # A crash right after creation leaves an empty or zeroed marker and nothing else.
        if text.strip(b"\x00") or list(path.iterdir()) != [path / MARKER]:
            raise _foreign(path)
        os.ftruncate(lock, 0)
        os.pwrite(lock, _marker_text(layout_version), 0)
        os.fsync(lock)
        sync_folder(path)
    elif int(form[1]) > layout_version:
        raise StoreError(
            f"the store has layout {int(form[1])}, this version knows {layout_version}",
            where=str(path),
            code="store.version",
        )


def _marker_text(layout_version: int) -> bytes:
    return f"luxrelay store, layout {layout_version}\n".encode()


def _missing(path: Path) -> StoreError:
    return StoreError(
        "there is no such folder",
        where=str(path),
        code="store.foreign",
        hint="give a node's data folder, or the store in it",
    )


def _foreign(path: Path) -> StoreError:
    return StoreError(
        "the folder holds something that is not a LuxRelay store",
        where=str(path),
        code="store.foreign",
    )


def _refused(error: OSError, path: Path) -> StoreError:
    return StoreError(f"the data folder cannot be used: {error.strerror}", where=str(path))
