"""The archive folder: marker file, places of the tables, and the writer's lock.

    <folder>/luxrelay-archive.json   the marker: format, version, the checkpoint in use
    <folder>/messages, rejects       Delta tables
    <folder>/checkpoints/<name>      how far the stream has read

A folder that holds anything else is refused before anything is changed. One process writes at a
time; the lock goes with the process, so a killed one leaves nothing to clear away.
"""

from __future__ import annotations

import fcntl
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, TextIO

from luxrelay import files
from luxrelay.archive.schema import Table
from luxrelay.errors import ArchiveArgumentError, ArchiveError

MARKER: Final = "luxrelay-archive.json"
FORMAT: Final = "luxrelay-archive"
VERSION: Final = 1
_LOCK: Final = ".luxrelay-archive.lock"
_DRAFT: Final = f"{MARKER}.new"
_TEAM_MODE: Final = 0o644
"""Tables are meant for teams, and so is what says which they are."""
_SEGMENTS: Final = "-segments"
_TAKEN_OTHERWISE: Final = frozenset("%\\")
_NAME: Final = re.compile(r"[0-9A-Za-z_-]{0,64}")
"""A checkpoint's name; it becomes a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What the marker file says."""

    format: str = FORMAT
    """Always ``luxrelay-archive``."""
    version: int = VERSION
    """Layout of the folder."""
    checkpoint: str = ""
    """Name of the checkpoint folder in use."""
    checkpoints: int = 0
    """How many there have been; a second one may read again what the first has written."""


@dataclass(frozen=True, slots=True)
class ArchiveFolder:
    """An archive on disk."""

    path: Path
    """The folder."""
    marker: Marker
    """Its marker, as it was when the folder was opened."""

    @property
    def checkpoint(self) -> Path:
        """Where the stream keeps how far it has read."""
        return self.path / "checkpoints" / self.marker.checkpoint

    @property
    def segments_checkpoint(self) -> Path:
        """Where the stream of segment files keeps which it has read."""
        return self.checkpoint.with_name(f"{self.marker.checkpoint}{_SEGMENTS}")

    @property
    def mixed(self) -> bool:
        """True when segment files were read: they may hold what relays serve as well."""
        return any((self.path / "checkpoints").glob(f"*{_SEGMENTS}"))

    def table(self, table: Table) -> Path:
        """Return where a table lies."""
        return self.path / table.name

    def has_table(self, table: Table) -> bool:
        """Return True when the table has been written to."""
        # A process that was killed while it made a table leaves the folder without a version.
        log = self.table(table) / "_delta_log"
        return any(log.glob("*.json")) or any(log.glob("*.parquet"))


def open_folder(path: Path) -> ArchiveFolder:
    """Return the archive at ``path``, which nothing has changed.

    Raises:
        ArchiveError: ``archive.foreign``: there is no archive, or one of a newer version.

    """
    marker_path = path / MARKER
    try:
        value = json.loads(marker_path.read_text(encoding="utf-8"))
        marker = Marker(**value)
        text: object = marker.checkpoint  # of a file: of any type
        if not (isinstance(text, str) and _NAME.fullmatch(text) and int(marker.checkpoints) >= 0):
            raise ArchiveError(
                "the marker names no checkpoint", where=str(marker_path), code="archive.foreign"
            )
    except FileNotFoundError:
        raise ArchiveError(
            "this is no LuxRelay archive",
            where=str(path),
            hint="run `luxrelay archive ingest` first, or name the right folder",
            code="archive.foreign",
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise ArchiveError(
            f"the marker cannot be read: {error}", where=str(marker_path), code="archive.foreign"
        ) from None
    if marker.format != FORMAT or marker.version != VERSION:
        raise ArchiveError(
            f"the archive has format {marker.format} {marker.version}, this LuxRelay knows"
            f" {FORMAT} {VERSION}",
            where=str(marker_path),
            hint="use the LuxRelay that wrote it, or a newer one",
            code="archive.foreign",
        )
    return ArchiveFolder(path, marker)


@contextmanager
def writing(path: Path) -> Iterator[ArchiveFolder]:
    """Hold the archive at ``path`` for writing; an absent or empty folder becomes one.

    What is yielded has an absolute path, without links.

    Raises:
        ArchiveArgumentError: no table can lie in a folder of this name.
        ArchiveError: ``archive.foreign``: the folder holds something else, nothing was changed;
            ``archive.busy``: another process writes here; ``archive.failed``: the folder cannot
            be written to.

    """
    path = path.resolve()  # executors and a Spark Connect server work in folders of their own
    try:
        lock = _opened(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ArchiveError(
                "another process writes to this archive",
                where=str(path),
                hint="wait for it to end, or stop it",
                code="archive.busy",
            ) from None
        try:
            folder = _with_checkpoint(path)
        except OSError as error:
            raise _unwritable(path, error) from None
        yield folder


def _opened(path: Path) -> TextIO:
    """Return the lock file of a folder that is an archive or may become one."""
    for odd in sorted(_TAKEN_OTHERWISE & set(str(path))):
        raise ArchiveArgumentError(
            f"a folder with {odd} in its path holds no tables: delta-rs reads another name",
            where=str(path),
            hint="name a folder without it",
        )
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    if path.exists() and not path.is_dir():
        raise ArchiveError("this is a file", where=str(path), code="archive.foreign")
    drafts = {name for name in names if name == _DRAFT or name.startswith(f".{MARKER}.")}
    if names - {_LOCK} - drafts and MARKER not in names:
        raise ArchiveError(
            "the folder is not empty and is no LuxRelay archive",
            where=str(path),
            code="archive.foreign",
        )
    if MARKER in names:
        open_folder(path)  # refuse a newer one before the lock file is touched
    path.mkdir(parents=True, exist_ok=True)
    return (path / _LOCK).open("a")


def _unwritable(path: Path, error: OSError) -> ArchiveError:
    return ArchiveError(
        f"the folder cannot be written to: {error.strerror}",
        where=str(error.filename or path),
        hint="name a folder that is yours, on a disk with room",
        code="archive.failed",
    )


def _with_checkpoint(path: Path) -> ArchiveFolder:
    """Return the archive with a checkpoint that exists; a new name when the old one is gone.

    The tables remember the batches of a checkpoint by its name. A new one under the old name
    would count its batches from zero, and they would be taken for written.
    """
    marker = open_folder(path).marker if (path / MARKER).exists() else Marker()
    if not marker.checkpoint or not (path / "checkpoints" / marker.checkpoint).is_dir():
        marker = replace(marker, checkpoint=uuid.uuid4().hex, checkpoints=marker.checkpoints + 1)
        _write_marker(path, marker)  # first, so that a crash here leaves an archive
        (path / "checkpoints" / marker.checkpoint).mkdir(parents=True)
    return ArchiveFolder(path, marker)


def _write_marker(path: Path, marker: Marker) -> None:
    write_whole(path / MARKER, json.dumps(asdict(marker), indent=2))


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole, durably, or as it was before."""
    files.write_whole(path, text.encode(), mode=_TEAM_MODE)
