"""Whole durable writes, bounded reads, locks with a deadline, private folders."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from luxrelay.files import (
    Disk,
    locked,
    make_folder,
    make_private,
    move_whole,
    read_bounded,
    write_whole,
)


class Recorder(Disk):
    """The operating system, its calls noted; one of them may fail."""

    def __init__(self, failing: str = "") -> None:
        """``failing`` is the call that a full disk refuses."""
        self.calls: list[str] = []
        self._failing = failing

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if name == self._failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def create(self, path: Path) -> int:
        """Note and do."""
        self._note("create")
        return super().create(path)

    def write(self, handle: int, data: bytes | memoryview) -> int:
        """Note and do, a few bytes at a time."""
        if "write" not in self.calls:
            self._note("write")
        return super().write(handle, memoryview(data)[:3])

    def sync(self, handle: int) -> None:
        """Note and do."""
        self._note("sync")
        super().sync(handle)

    def rename(self, draft: Path, path: Path) -> None:
        """Note and do."""
        self._note("rename")
        super().rename(draft, path)

    def link(self, draft: Path, path: Path) -> None:
        """Note and do."""
        self._note("link")
        super().link(draft, path)

    def sync_folder(self, folder: Path) -> None:
        """Note and do."""
        self._note("sync folder")
        super().sync_folder(folder)


@pytest.mark.parametrize(("fresh", "named"), [(False, "rename"), (True, "link")])
def test_a_whole_write_reaches_the_disk_with_its_name(
    tmp_path: Path, fresh: bool, named: str
) -> None:
    """File before name, name before the return; a loss of power keeps the old or the new one."""
    disk = Recorder()
    write_whole(tmp_path / "a", b"0123456789", fresh=fresh, disk=disk)

    assert disk.calls == ["create", "write", "sync", named, "sync folder"]
    assert (tmp_path / "a").read_bytes() == b"0123456789"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


@pytest.mark.trial
@pytest.mark.parametrize("failing", ["create", "write", "sync", "rename"])
def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path, failing: str) -> None:
    """A full disk at any call: the old file stays whole."""
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "a", b"new", disk=Recorder(failing))

    assert (tmp_path / "a").read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_fresh_file_replaces_none(tmp_path: Path) -> None:
    """An existing file is refused as it is."""
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "a", b"new", fresh=True)

    assert (tmp_path / "a").read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_drafts_of_killed_writers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    """Who still writes holds the lock on its draft."""
    dead = tmp_path / ".a.0123456789abcdef.new"
    alive = tmp_path / ".a.fedcba9876543210.new"
    other = tmp_path / ".b.0123456789abcdef.new"
    for each in (dead, alive, other):
        each.write_bytes(b"x")
    with alive.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_whole(tmp_path / "a", b"new")

    assert {each.name for each in tmp_path.iterdir()} == {"a", alive.name, other.name}


@pytest.mark.trial
def test_a_pipe_a_device_and_a_folder_are_no_files(tmp_path: Path) -> None:
    """Each is an error at once, not a wait and not an endless read."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"regular file|folder"):
            read_bounded(path, 10)


def test_reads_are_bounded_and_may_ask_for_privacy(tmp_path: Path) -> None:
    """A byte too many, or a bit of the mode."""
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    path.chmod(0o640)
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_bounded(path, 4)
    with pytest.raises(PermissionError, match=r"0640.*chmod 600"):
        read_bounded(path, 5, private=True)
    path.chmod(0o600)
    assert read_bounded(path, 5, private=True) == b"12345"


HOLD = (
    "import fcntl, sys\n"
    "file = open(sys.argv[1], 'a')\n"
    "fcntl.flock(file, fcntl.LOCK_EX)\n"
    "print('locked', flush=True)\n"
    "sys.stdin.read()\n"
)


@pytest.mark.trial
def test_a_lock_that_another_process_holds_ends_with_its_number(tmp_path: Path) -> None:
    """Waited for to the deadline, on an injected clock; then who has it and what to do."""
    path = tmp_path / "lock"
    path.write_bytes(b"")
    path.chmod(0o666)
    now = [0.0]

    def sleep(pause_s: float) -> None:
        now[0] += pause_s

    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with (
            pytest.raises(TimeoutError, match=f"process {process.pid} has locked it for 5 s"),
            locked(path, clock=lambda: now[0], sleep=sleep),
        ):
            pytest.fail("it is locked")
        assert 5 <= now[0] < 6
        process.stdin.close()
    with locked(path, clock=lambda: now[0], sleep=sleep):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_lock_file_is_no_link_and_no_pipe(tmp_path: Path) -> None:
    """Neither leads elsewhere nor waits."""
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError), locked(tmp_path / name):  # noqa: PT011  any
            pytest.fail("it is no file")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.trial
def test_what_others_could_open_is_mended(tmp_path: Path) -> None:
    """Folder, files and folders in it; what was private is not named."""
    folder = tmp_path / "data"
    (folder / "store" / "db").mkdir(parents=True)
    (folder / "store" / "db" / "1.sst").write_bytes(b"x")
    (folder / "key").write_bytes(b"x")
    for path, mode in (
        (folder, 0o755),
        (folder / "store", 0o700),
        (folder / "store" / "db", 0o775),
        (folder / "store" / "db" / "1.sst", 0o644),
        (folder / "key", 0o600),
    ):
        path.chmod(mode)

    assert make_private(folder) == [".", "store/db", "store/db/1.sst"]
    assert make_private(folder) == []
    assert stat.S_IMODE((folder / "store" / "db" / "1.sst").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    """Nobody can make it private for us."""
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(PermissionError, match=r"it belongs to user \d+, not to 4242"):
        make_private(tmp_path, owner=4242)


def test_a_link_to_what_others_may_open_is_refused(tmp_path: Path) -> None:
    """A link to a private file may stay."""
    (tmp_path / "elsewhere").write_bytes(b"x")
    (tmp_path / "elsewhere").chmod(0o600)
    folder = tmp_path / "data"
    make_folder(folder)
    (folder / "key").symlink_to(tmp_path / "elsewhere")
    assert make_private(folder) == []
    (tmp_path / "elsewhere").chmod(0o644)
    with pytest.raises(PermissionError, match="it is a link to what others may open"):
        make_private(folder)


def test_a_new_folder_is_its_users_only(tmp_path: Path) -> None:
    """Whatever the mask says; one that is there stays as it is."""
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_a_file_written_in_parts_is_on_the_disk_before_it_has_its_name(tmp_path: Path) -> None:
    """The file first, then its name, then the folder; a failure leaves the draft."""
    disk, draft = Recorder(), tmp_path / "draft"
    draft.write_bytes(b"parts")
    (tmp_path / "a").write_bytes(b"old")

    move_whole(draft, tmp_path / "a", disk=disk)

    assert disk.calls == ["sync", "rename", "sync folder"]
    assert (tmp_path / "a").read_bytes() == b"parts"
    draft.write_bytes(b"more")
    with pytest.raises(OSError, match="No space"):
        move_whole(draft, tmp_path / "a", disk=Recorder("sync"))
    assert (tmp_path / "a").read_bytes() == b"parts"
    assert draft.exists()
