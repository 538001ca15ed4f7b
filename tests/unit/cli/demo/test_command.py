"""The demonstration's folder."""

import fcntl
from pathlib import Path

import pytest

from luxrelay.cli.demo.command import MARKER
from luxrelay.cli.main import main

pytestmark = pytest.mark.slow


def test_folder_of_a_running_demo_is_refused_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second demo in the same folder says so and does not empty it under the first."""
    (tmp_path / "relays").mkdir()
    with (tmp_path / MARKER).open("a") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)

        assert main(["demo", "--out", str(tmp_path)]) == 1

    captured = capsys.readouterr()
    assert "another demo is running" in captured.err
    assert captured.err.count("\n") == 2  # it said before that it starts
    assert (tmp_path / "relays").exists()
