"""A folder is claimed only when it is ours and free; otherwise it is as it was."""

from pathlib import Path

import pytest

from luxrelay.errors import StoreError
from luxrelay.store.durability.folder import MARKER, Folder


def picture(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file below ``path`` with its modification time and bytes."""
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in path.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize("made", [False, True])
def test_claim_a_missing_or_empty_folder(tmp_path: Path, made: bool) -> None:
    """A missing folder is made, an empty one marked; both can be claimed again later."""
    path = tmp_path / "deep" / "store"
    if made:
        path.mkdir(parents=True)

    for _ in range(2):
        folder = Folder.claim(path, 3)
        assert folder.database == path / "db"
        folder.release()
    assert (path / MARKER).read_text() == "luxrelay store, layout 3\n"


def test_refuse_a_foreign_folder(tmp_path: Path) -> None:
    """A folder with anything else in it is refused and not touched."""
    (tmp_path / "letters.txt").write_text("private")
    before = picture(tmp_path)

    with pytest.raises(StoreError) as caught:
        Folder.claim(tmp_path, 1)

    assert caught.value.code == "store.foreign"
    assert picture(tmp_path) == before


def test_refuse_a_file(tmp_path: Path) -> None:
    """A path that is a file is not ours."""
    path = tmp_path / "file"
    path.write_bytes(b"private")

    with pytest.raises(StoreError) as caught:
        Folder.claim(path, 1)

    assert caught.value.code == "store.foreign"
    assert path.read_bytes() == b"private"


def test_a_folder_that_is_missing_is_not_called_foreign(tmp_path: Path) -> None:
    """A mistyped path is named as what it is, and one of another program as that."""
    with pytest.raises(StoreError, match="there is no such folder"):
        Folder.look(tmp_path / "none", 1)
    with pytest.raises(StoreError, match="not a LuxRelay store"):
        Folder.look(tmp_path, 1)


@pytest.mark.parametrize("text", [b"somebody else's marker", b"luxrelay store, layout x\n"])
def test_refuse_a_marker_with_other_words(tmp_path: Path, text: bytes) -> None:
    """A marker that we did not write makes the folder foreign."""
    (tmp_path / MARKER).write_bytes(text)

    with pytest.raises(StoreError) as caught:
        Folder.claim(tmp_path, 1)

    assert caught.value.code == "store.foreign"
    assert (tmp_path / MARKER).read_bytes() == text


@pytest.mark.parametrize("text", [b"", bytes(25)])
def test_finish_a_creation_that_was_cut(tmp_path: Path, text: bytes) -> None:
    """An empty or zeroed marker alone is ours: a crash left it so."""
    (tmp_path / MARKER).write_bytes(text)

    Folder.claim(tmp_path, 1).release()

    assert (tmp_path / MARKER).read_bytes() == b"luxrelay store, layout 1\n"


def test_an_empty_marker_beside_other_files_is_foreign(tmp_path: Path) -> None:
    """A doubtful marker never makes other people's files ours."""
    (tmp_path / MARKER).write_bytes(b"")
    (tmp_path / "other").write_bytes(b"data")

    with pytest.raises(StoreError) as caught:
        Folder.claim(tmp_path, 1)
    assert caught.value.code == "store.foreign"


def test_refuse_a_newer_layout(tmp_path: Path) -> None:
    """A folder of a newer version is not touched; an older one is opened."""
    Folder.claim(tmp_path, 2).release()
    before = picture(tmp_path)

    with pytest.raises(StoreError) as caught:
        Folder.claim(tmp_path, 1)

    assert caught.value.code == "store.version"
    assert picture(tmp_path) == before
    Folder.claim(tmp_path, 3).release()


def test_refuse_a_claimed_folder(tmp_path: Path) -> None:
    """A second claim is refused until the first is released, in one process as well."""
    first = Folder.claim(tmp_path, 1)
    before = picture(tmp_path)

    with pytest.raises(StoreError) as caught:
        Folder.claim(tmp_path, 1)

    assert caught.value.code == "store.locked"
    assert picture(tmp_path) == before
    first.release()
    Folder.claim(tmp_path, 1).release()


def test_refuse_a_path_that_cannot_be_made(tmp_path: Path) -> None:
    """A folder that the system will not make is an I/O error with its path."""
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / "file" / "store"

    with pytest.raises(StoreError) as caught:
        Folder.claim(path, 1)

    assert caught.value.code in {"store.io", "store.foreign"}
    assert str(path) in str(caught.value)
