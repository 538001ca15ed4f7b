"""The archive folder: marker, checkpoint and lock."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from luxrelay.archive.folder import MARKER, open_folder, writing
from luxrelay.archive.schema import MESSAGES, TABLES
from luxrelay.archive.tables import prepare_tables
from luxrelay.errors import ArchiveArgumentError, ArchiveError


def _content(path: Path) -> list[str]:
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))


def test_an_absent_or_empty_folder_becomes_an_archive(tmp_path: Path) -> None:
    """The marker says what it is; the checkpoint folder exists."""
    with writing(tmp_path / "deep" / "archive") as folder:
        assert folder.checkpoint.is_dir()
        assert folder.marker.checkpoints == 1
        assert not folder.has_table(MESSAGES)

    assert open_folder(tmp_path / "deep" / "archive").marker == folder.marker


def test_opening_again_keeps_the_checkpoint(tmp_path: Path) -> None:
    """A run goes on where the last one ended."""
    with writing(tmp_path / "a") as first:
        pass
    with writing(tmp_path / "a") as second:
        pass

    assert first.marker == second.marker


def test_a_lost_checkpoint_gets_a_new_name(tmp_path: Path) -> None:
    """The tables must not take its batches for those of the old one."""
    with writing(tmp_path / "a") as first:
        shutil.rmtree(first.checkpoint)
    with writing(tmp_path / "a") as second:
        pass

    assert second.marker.checkpoint != first.marker.checkpoint
    assert second.marker.checkpoints == 2


def test_refuse_foreign_folder(tmp_path: Path) -> None:
    """A folder with other content is refused, and nothing in it is changed."""
    (tmp_path / "holiday.jpg").write_bytes(b"sea")
    before = _content(tmp_path)

    with pytest.raises(ArchiveError, match="not empty") as caught, writing(tmp_path):
        pass

    assert caught.value.code == "archive.foreign"
    assert _content(tmp_path) == before


def test_refuse_file(tmp_path: Path) -> None:
    """A file is no folder."""
    (tmp_path / "file").write_text("x")

    with pytest.raises(ArchiveError, match="this is a file"), writing(tmp_path / "file"):
        pass


@pytest.mark.parametrize(
    "marker",
    [
        {"format": "luxrelay-archive", "version": 2},
        {"format": "something", "version": 1},
        {"colour": "blue"},
        "{",
    ],
)
def test_refuse_marker(tmp_path: Path, marker: object) -> None:
    """A newer archive, another format and a broken marker are left alone."""
    text = marker if isinstance(marker, str) else json.dumps(marker)
    (tmp_path / MARKER).write_text(text)

    with pytest.raises(ArchiveError) as caught, writing(tmp_path):
        pass

    assert caught.value.code == "archive.foreign"
    assert _content(tmp_path) == [MARKER]


def test_reading_needs_an_archive(tmp_path: Path) -> None:
    """An audit of nothing says what to do."""
    with pytest.raises(ArchiveError, match="archive ingest"):
        open_folder(tmp_path)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """The second one is told, and may come when the first has ended."""
    with writing(tmp_path / "a"):
        with (
            pytest.raises(ArchiveError, match="another process") as caught,
            writing(tmp_path / "a"),
        ):
            pass
        assert caught.value.code == "archive.busy"
    with writing(tmp_path / "a"):
        pass


def test_a_crash_before_the_checkpoint_leaves_an_archive(tmp_path: Path) -> None:
    """A marker without its checkpoint folder, or a draft of a marker, is no foreign folder."""
    path = tmp_path / "a"
    path.mkdir()
    (path / f"{MARKER}.new").write_text("{")

    with writing(path) as folder:
        assert folder.marker.checkpoints == 1


@pytest.mark.parametrize("value", ["5", "null", '"../../away"', '"a/b"', '""', "[]"])
def test_refuse_a_marker_that_names_no_checkpoint(tmp_path: Path, value: str) -> None:
    """A damaged or a hostile marker leads nowhere, and nothing is changed."""
    text = f'{{"format": "luxrelay-archive", "version": 1, "checkpoint": {value}}}'
    (tmp_path / MARKER).write_text(text)
    if value == '""':
        assert open_folder(tmp_path).marker.checkpoint == ""
        return

    with pytest.raises(ArchiveError) as caught, writing(tmp_path):
        pass

    assert caught.value.code == "archive.foreign"
    assert _content(tmp_path) == [MARKER]


def test_a_folder_that_cannot_be_written_to_is_our_error(tmp_path: Path) -> None:
    """What the system says, and what to do."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ArchiveError, match="cannot be written") as caught:  # noqa: SIM117
        with writing(tmp_path / "file" / "archive"):
            pass

    assert caught.value.code == "archive.failed"


def test_refuse_a_path_that_delta_rs_reads_as_another(tmp_path: Path) -> None:
    """Tables would come to lie in a folder of another name; spaces and letters are welcome."""
    for odd in ("%", "\\"):
        with (
            pytest.raises(ArchiveArgumentError, match=f"folder with {re.escape(odd)}"),
            writing(tmp_path / f"a{odd}20b"),
        ):
            pass
    assert _content(tmp_path) == []

    with writing(tmp_path / "über all's #1 {x}") as folder:
        assert len(prepare_tables(folder)) == len(TABLES)
        assert prepare_tables(folder) == []


def test_segments_have_been_read_once_their_checkpoint_is_there(tmp_path: Path) -> None:
    """From then on what relays serve may be here already, also after a checkpoint was lost."""
    with writing(tmp_path / "a") as folder:
        assert not folder.mixed
        folder.segments_checkpoint.mkdir()
        assert folder.mixed
        shutil.rmtree(folder.checkpoint)
    with writing(tmp_path / "a") as folder:
        assert folder.mixed


def test_a_folder_is_known_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors and a Spark Connect server work in other folders than whoever began."""
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    with writing(Path("link/archive")) as folder:
        monkeypatch.chdir("/")
        assert folder.path == tmp_path / "there" / "archive"
        assert prepare_tables(folder)
    assert (tmp_path / "there" / "archive" / "messages").is_dir()
