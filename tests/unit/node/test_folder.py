"""The data folder."""

import os
from dataclasses import fields
from pathlib import Path

import pytest

from luxrelay.errors import NodeError
from luxrelay.node.folder import DataFolder, Runtime, read_runtime


def test_makes_and_takes_its_own_folder(tmp_path: Path) -> None:
    """A new folder is made, and taken again with the same identity."""
    first = DataFolder(tmp_path / "data").identity()

    assert DataFolder(tmp_path / "data").identity().seed == first.seed


def test_refuse_foreign_folder_unchanged(tmp_path: Path) -> None:
    """A folder with other things in it is refused and stays as it was."""
    (tmp_path / "thesis.tex").write_text("precious")

    with pytest.raises(NodeError) as caught:
        DataFolder(tmp_path)
    assert caught.value.code == "store.foreign"
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_takes_a_folder_whose_first_start_was_killed(tmp_path: Path) -> None:
    """An identity that was never finished does not lock its owner out."""
    (tmp_path / ".identity.pem.123.new").write_bytes(b"")

    assert DataFolder(tmp_path).identity().seed == DataFolder(tmp_path).identity().seed


def test_refuse_file_and_impossible_place(tmp_path: Path) -> None:
    """A file is no folder, and a folder below a file cannot be made."""
    file = tmp_path / "file"
    file.write_text("")

    with pytest.raises(NodeError, match="is a file"):
        DataFolder(file)
    with pytest.raises(NodeError):
        DataFolder(file / "data")


def test_runtime_is_written_and_withdrawn(tmp_path: Path) -> None:
    """What a node writes can be read back, and goes when it stops."""
    folder = DataFolder(tmp_path / "data")
    places = {
        name: f"{name}:1" for name in ("sync", "http", "gateway", "admin", "grpc", "grpc_admin")
    }
    runtime = Runtime(pid=os.getpid(), peer_id="12D3", gossip=("/ip4/…",), **places)
    assert all(getattr(runtime, each.name) for each in fields(Runtime))

    folder.announce(runtime)
    assert read_runtime(folder.path) == runtime
    folder.withdraw()
    assert read_runtime(folder.path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x"}', "\x00"])
def test_broken_runtime_reads_as_none(tmp_path: Path, text: str) -> None:
    """A broken file says nothing instead of failing."""
    (tmp_path / "runtime.json").write_text(text)
    assert read_runtime(tmp_path) is None


def test_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    """A disk that refuses the file with the addresses is named; nothing else is raised."""
    folder = DataFolder(tmp_path / "data")
    (tmp_path / "data" / "runtime.json").mkdir()  # even root cannot write over a folder

    with pytest.raises(NodeError, match="cannot write the data folder"):
        folder.announce(Runtime(pid=1, peer_id="", gossip=(), sync="", http=""))
