"""SELECTs over the tables of an archive, without a JVM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from luxrelay.archive.folder import ArchiveFolder, open_folder
from luxrelay.archive.query import answer
from luxrelay.errors import ArchiveError
from luxrelay.sync import WireMessage


@pytest.fixture
def folder(
    archive_of: Callable[..., Path], forge: Callable[..., WireMessage], tmp_path: Path
) -> ArchiveFolder:
    """An archive of 34 messages."""
    return open_folder(archive_of(tmp_path / "archive", [forge(seq=seq) for seq in range(1, 35)]))


def _content(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) AS n, count(DISTINCT seq) AS s FROM messages",
        "  with m AS (SELECT seq FROM messages) SELECT count(*) AS n, count(*) AS s FROM m",
        "-- how many\n(SELECT count(*) AS n, max(seq) AS s FROM messages)",
    ],
)
def test_selects_are_answered(folder: ArchiveFolder, statement: str) -> None:
    """With a comment before them, in brackets, and over tables that are empty."""
    assert answer(folder, statement).to_pylist() == [{"n": 34, "s": 34}]
    assert answer(folder, "SELECT * FROM gaps").num_rows == 0


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE messages",
        "COPY messages TO 'stolen.csv'",
        "-- SELECT\nCOPY messages TO 'stolen.csv'",
        "(COPY messages TO 'stolen.csv')",
        "WITH m AS (SELECT 1) INSERT INTO messages SELECT * FROM m",
        "WITH m AS (SELECT 1) COPY m TO 'stolen.csv'",
        "SELECT 1; COPY messages TO 'stolen.csv'",
        "SELECT * FROM 'luxrelay-archive.json'",
        "SELECT * FROM read_csv('luxrelay-archive.json')",
        "SELECT * FROM nothing",
        "SELECT",
        "",
    ],
)
def test_whatever_else_is_refused_and_writes_and_reads_no_file(
    folder: ArchiveFolder, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mistakes name the tables there are; the folder stays as it is."""
    monkeypatch.chdir(folder.path)
    before = _content(folder.path)

    with pytest.raises(ArchiveError, match="tables: raw, messages") as caught:
        answer(folder, statement)

    assert caught.value.code == "archive.failed"
    assert _content(folder.path) == before


def test_answers_have_a_bound(folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is not longer than SQL_ROWS_MAX, and says so."""
    monkeypatch.setattr("luxrelay.archive.query.SQL_ROWS_MAX", 33)

    with pytest.raises(ArchiveError, match="LIMIT"):
        answer(folder, "SELECT seq FROM messages")
