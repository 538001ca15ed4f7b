"""The archive folder: marker, checkpoint and lock."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from luxrelay.archive.folder import MARKER, open_folder, writing
from luxrelay.archive.schema import MESSAGES
from luxrelay.errors import ArchiveError


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
