"""State in SQLite: what a file may be like, and what a crash leaves."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from luxrelay.channel import ChannelScope, Row, SqlitePersistence, StateTable
from luxrelay.errors import ChannelError

SCOPE = ChannelScope("chan", "alice")


def test_files_are_ours_alone(tmp_path: Path) -> None:
    """Folder and file cannot be read by others, and the name tells nothing."""
    persistence = SqlitePersistence(tmp_path / "state")
    persistence.open(SCOPE).close()
    path = persistence.path(SCOPE)

    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    assert "alice" not in path.name


@pytest.mark.parametrize("content", [b"not a database, by far" * 100, None])
def test_foreign_files_are_refused_and_kept(tmp_path: Path, content: bytes | None) -> None:
    """A file that is no database, or of another layout, is refused and not changed."""
    persistence = SqlitePersistence(tmp_path)
    path = persistence.path(SCOPE)
    if content is None:
        database = sqlite3.connect(path)
        database.execute("PRAGMA user_version = 7")
        database.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()

    with pytest.raises(ChannelError) as caught:
        persistence.open(SCOPE)

    assert caught.value.code == "channel.state"
    assert str(path) in str(caught.value)
    if content is not None:
        assert path.read_bytes() == before


def test_rows_of_an_unknown_table_are_refused(tmp_path: Path) -> None:
    """A row of a table that a newer version knows is not guessed at."""
    persistence = SqlitePersistence(tmp_path)
    persistence.open(SCOPE).close()
    database = sqlite3.connect(persistence.path(SCOPE))
    database.execute("INSERT INTO rows VALUES (99, x'00', x'00')")
    database.commit()
    database.close()

    with pytest.raises(ChannelError) as caught:
        list(persistence.open(SCOPE).load())
    assert caught.value.code == "channel.state"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A path that is in the way is said, as the machine's fault."""
    (tmp_path / "file").write_text("here already")

    with pytest.raises(ChannelError) as caught:
        SqlitePersistence(tmp_path / "file" / "state").open(SCOPE)
    assert caught.value.code == "channel.state"


def test_a_failed_commit_applies_nothing(tmp_path: Path) -> None:
    """A commit that fails half-way leaves the rows as they were, and the next one works."""
    rows = SqlitePersistence(tmp_path).open(SCOPE)
    rows.commit([Row(StateTable.META, b"a", b"1")])

    with pytest.raises(ChannelError):
        rows.commit([Row(StateTable.META, b"a", b"2"), Row(StateTable.META, b"b", object())])  # type: ignore[arg-type]
    assert list(rows.load()) == [Row(StateTable.META, b"a", b"1")]

    rows.commit([Row(StateTable.META, b"a", b"3")])
    assert list(rows.load()) == [Row(StateTable.META, b"a", b"3")]


def test_a_blocking_file_may_be_called_in_the_loop(tmp_path: Path) -> None:
    """Calls go to worker threads unless the program says otherwise."""
    assert SqlitePersistence(tmp_path).blocking
    assert not SqlitePersistence(tmp_path, blocking=False).blocking


WRITER = """
import sys
from luxrelay.channel import ChannelScope, Row, SqlitePersistence, StateTable
rows = SqlitePersistence(sys.argv[1]).open(ChannelScope("chan", "alice"))
number = 0
while True:
    number += 1
    value = number.to_bytes(8, "big")
    rows.commit([Row(StateTable.META, b"first", value), Row(StateTable.META, b"second", value)])
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_commits(tmp_path: Path) -> None:
    """After SIGKILL every commit that returned is there, whole, and the lock is free."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = 0
    for line in process.stdout:
        said = int(line)
        if said >= 40:
            break
    with pytest.raises(ChannelError):
        SqlitePersistence(tmp_path).open(SCOPE)
    os.kill(process.pid, signal.SIGKILL)
    said = max([said, *(int(line) for line in process.stdout if line.endswith("\n"))])
    process.wait()
    process.stdout.close()

    rows = {row.key: row.value for row in SqlitePersistence(tmp_path).open(SCOPE).load()}

    assert rows[b"first"] == rows[b"second"]
    assert int.from_bytes(rows[b"first"] or b"", "big") >= said
