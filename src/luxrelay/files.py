"""Files: whole durable writes, bounded reads, locks with a deadline, private folders.

*Write*: beside the target under a name of its own, mode 0600, fsync of the file, rename, fsync of
the folder. Whatever happens, the old file or the new one is there, whole; a draft that a killed
process left is removed at the next write of that file, because nobody holds its lock any more.
*Read*: regular files to a bound; opening a pipe does not wait.
*Lock*: `flock` on a file of mode 0600, waited for with a deadline; the error names the holder.
*Private*: a folder and all in it belong to this user and nobody else may open them.

Everything raises OSError with a text for people in ``strerror``; callers say whose file it was.

Source: docs/explanation/threat-model.md.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LOCK_WAIT_S: Final = 5.0
"""Seconds that a lock is waited for."""
PRIVATE_UMASK: Final = 0o077
"""Files that a process of ours makes are its user's only."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_LOCK_PAUSE_S: Final = 0.05
_HOLDERS: Final = Path("/proc/locks")
_HOLDERS_MAX: Final = 1024 * 1024


class Disk:
    """The calls of the operating system that a whole write makes, in one place for tests."""

    def create(self, path: Path) -> int:
        """Open a new file of mode 0600."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, handle: int, data: bytes | memoryview) -> int:
        """Write some of the bytes; return how many."""
        return os.write(handle, data)

    def sync(self, handle: int) -> None:
        """Wait until the disk has the file."""
        os.fsync(handle)

    def rename(self, draft: Path, path: Path) -> None:
        """The draft takes the place of ``path``."""
        draft.replace(path)

    def link(self, draft: Path, path: Path) -> None:
        """The draft gets the name ``path``, which nothing may have."""
        os.link(draft, path)

    def sync_folder(self, folder: Path) -> None:
        """Wait until the disk has the names of a folder."""
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


DISK: Final = Disk()


def write_whole(
    path: Path,
    data: bytes | Iterable[bytes | memoryview],
    *,
    fresh: bool = False,
    mode: int = 0o600,
    disk: Disk = DISK,
) -> None:
    """Write a file that is there whole and durably, or as it was before.

    Args:
        path: The file; its folder exists.
        data: Its bytes, or parts of them.
        fresh: Refuse a file that exists already.
        mode: Who may open it.
        disk: The operating system.

    Raises:
        OSError: It cannot be written; FileExistsError: ``fresh`` and it exists. No draft is left.

    """
    _forget_drafts(path)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    handle = disk.create(draft)
    try:
        with suppress(OSError):  # a disk without locks keeps drafts of killed processes
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for part in (data,) if isinstance(data, bytes) else data:
            rest = memoryview(part)
            while rest:
                rest = rest[disk.write(handle, rest) :]
        if mode != 0o600:
            os.fchmod(handle, mode)
        disk.sync(handle)
        if fresh:  # unlike rename, link refuses to replace
            disk.link(draft, path)
            draft.unlink()
        else:
            disk.rename(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    finally:
        os.close(handle)
    disk.sync_folder(path.parent)


def move_whole(draft: Path, path: Path, *, disk: Disk = DISK) -> None:
    """Give a file that was written in parts its name, durably: the file first, then the folder.

    Args:
        draft: The file, closed by its writer, in the same folder or file system.
        path: Its name from now on; what has it goes.
        disk: The operating system.

    Raises:
        OSError: It cannot be done; the draft stays.

    """
    handle = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
    try:
        disk.sync(handle)
    finally:
        os.close(handle)
    disk.rename(draft, path)
    disk.sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names of a folder.

    Raises:
        OSError: The folder cannot be opened, or the disk refuses.

    """
    DISK.sync_folder(folder)


def read_bounded(
    path: Path,
    bytes_max: int,
    *,
    private: bool = False,
) -> bytes:
    """Return the bytes of a regular file; what is checked is what is read.

    Args:
        path: The file.
        bytes_max: Its most bytes.
        private: Refuse a file that others may open, as ssh does with keys.

    Raises:
        OSError: It cannot be read, is no regular file, too large, or open to others.

    """
    # without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if private and found.st_mode & _OTHERS:
            shown = f"others may open it (mode {stat.S_IMODE(found.st_mode):04o}): chmod 600 it"
            raise PermissionError(errno.EPERM, shown, str(path))
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(bytes_max + 1)
    finally:
        os.close(handle)
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"it is larger than {bytes_max} bytes", str(path))
    return data


@contextmanager
def locked(
    path: Path,
    *,
    wait_s: float = LOCK_WAIT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Keep others out who lock the same file, in this process and in others.

    Args:
        path: The lock file, made when it is missing; nobody else may open it.
        wait_s: Seconds that the lock is waited for.
        clock: Monotonic seconds.
        sleep: How the time passes.

    Raises:
        TimeoutError: Somebody has it; ``strerror`` says who and what to do.
        OSError: The lock file cannot be used.

    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    handle = os.open(path, flags, 0o600)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if found.st_mode & _OTHERS:
            os.fchmod(handle, 0o600)  # who cannot open it cannot lock it
        _wait_for(handle, path, wait_s, clock, sleep)
        yield
    finally:
        os.close(handle)


def _wait_for(
    handle: int,
    path: Path,
    wait_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    until = clock() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock() >= until:
                words = f"{holder(handle)} has locked it for {wait_s:g} s: wait for it or end it"
                raise TimeoutError(errno.ETIMEDOUT, words, str(path)) from None
            sleep(_LOCK_PAUSE_S)
        else:
            return


def holder(handle: int) -> str:
    """Return which process holds the lock on an open file, as far as the system tells."""
    found = os.fstat(handle)
    name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with suppress(OSError), _HOLDERS.open("rb") as file:
        text = file.read(_HOLDERS_MAX).decode("ascii", "replace")
        held = re.search(rf"^\d+: FLOCK +\S+ +\S+ +([1-9]\d*) {name} ", text, re.MULTILINE)
        if held:
            return f"process {held[1]}"
    return "another process"


def make_private(
    folder: Path, *, owner: int | None = None, apart: Collection[Path] = ()
) -> list[str]:
    """Return what of a folder others could open, and no longer can; the folder itself is ``.``.

    A link is left as it is when what it points to is private.

    Args:
        folder: The folder.
        owner: The user it has to belong to; this process's user by default.
        apart: Folders below it that are somebody else's and stay as they are.

    Raises:
        OSError: Something belongs to another user, or its mode cannot be changed, or a link
            points to what others may open; ``strerror`` says what to do.

    """
    user = os.geteuid() if owner is None else owner
    mended = [] if _made_private(folder, folder.stat(), user) else ["."]
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                if path in apart:
                    continue
                try:
                    found = entry.stat(follow_symlinks=False)
                    if entry.is_symlink():
                        _check_link(path)
                        continue
                    if not _made_private(path, found, user):
                        mended.append(str(path.relative_to(folder)))
                except FileNotFoundError:  # a database removes files while it runs
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
    return sorted(mended)


def make_folder(folder: Path) -> None:
    """Make a folder and what is missing above it; the folder itself is this user's only.

    Raises:
        OSError: It cannot be made.

    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)


def _made_private(path: Path, found: os.stat_result, user: int) -> bool:
    """Return whether only ``user`` could open it before; now nobody else can."""
    if found.st_uid != user:
        words = f"it belongs to user {found.st_uid}, not to {user}: run as that user, or chown it"
        raise PermissionError(errno.EPERM, words, str(path))
    if not found.st_mode & _OTHERS or stat.S_ISSOCK(found.st_mode):
        return True
    path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
    return False


def _check_link(path: Path) -> None:
    found = path.stat()
    if found.st_mode & _OTHERS:
        words = "it is a link to what others may open: chmod that, or put the file itself here"
        raise PermissionError(errno.EPERM, words, str(path))


def _forget_drafts(path: Path) -> None:
    """Remove what killed processes left of earlier writes of this file."""
    form = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.new")
    with suppress(OSError):
        for name in [each.name for each in path.parent.iterdir() if form.fullmatch(each.name)]:
            draft = path.with_name(name)
            with suppress(OSError):
                handle = os.open(draft, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    draft.unlink()
                finally:
                    os.close(handle)
