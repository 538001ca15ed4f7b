"""What `store export` writes is there whole or not at all."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from luxrelay.cli.store import _write_lines
from luxrelay.errors import InputError, StoreError


def broken() -> Iterator[bytes]:
    """Lines of a store that breaks."""
    yield b"one\n"
    raise StoreError("broken")


def test_an_export_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """No half of a new one, and no draft."""
    out = tmp_path / "out"
    out.write_bytes(b"old")

    with pytest.raises(StoreError):
        _write_lines(out, broken())

    assert out.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_link_stays_and_a_pipe_is_written_into(tmp_path: Path) -> None:
    """Neither is replaced by a file."""
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()

    _write_lines(link, iter([b"one\n", b"two\n"]))
    _write_lines(pipe, iter([b"one\n", b"two\n"]))
    reader.join(60)

    assert link.is_symlink()
    assert target.read_bytes() == b"one\ntwo\n"
    assert read == [b"one\ntwo\n"]
    assert pipe.is_fifo()


def test_where_nothing_can_be_written_the_error_names_the_path(tmp_path: Path) -> None:
    """An error of ours, in one line."""
    with pytest.raises(InputError, match="cannot write it"):
        _write_lines(tmp_path / "nowhere" / "out", iter([b"one\n"]))
