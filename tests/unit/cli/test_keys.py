"""The keys command."""

import json
from pathlib import Path

import pytest

from luxrelay.cli.main import main


def test_new_then_show(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A new key is shown by its public half, the same each time."""
    path = str(tmp_path / "alice.pem")

    assert main(["keys", "new", path, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert main(["keys", "show", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == made
    assert made["senderPubKey"].startswith("0x01")
    assert len(made["senderPubKey"]) == 2 + 66


def test_new_refuses_an_existing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An existing file is exit code 1 and stays."""
    path = tmp_path / "alice.pem"
    path.write_text("precious")

    assert main(["keys", "new", str(path)]) == 1
    assert "there already" in capsys.readouterr().err
    assert path.read_text() == "precious"
