"""node init and node check: a file that works, and all that is wrong with one that does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from luxrelay.cli.main import main
from luxrelay.node.config import load_config
from luxrelay.node.folder import IDENTITY_FILE


def test_init_writes_a_file_that_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The two commands of the first minute."""
    path = tmp_path / "relay.toml"
    arguments = ["--profile", "messenger", "--topic", "/chat/1/room", "--out", str(path)]
    assert main(["node", "init", *arguments]) == 0
    assert main(["node", "check", "--config", str(path)]) == 0
    said = capsys.readouterr().out
    assert "profile messenger, 1 namespace\n" in said
    assert load_config(path).data_dir == tmp_path / "data"
    identity = tmp_path / "data" / IDENTITY_FILE
    assert str(identity) in said
    assert identity.stat().st_mode & 0o777 == 0o600


def test_init_beside_a_folder_that_is_not_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither file nor folder is touched, and the command may be given again."""
    path, thesis = tmp_path / "relay.toml", tmp_path / "data" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("precious")

    assert main(["node", "init", "--out", str(path)]) == 1
    assert "thesis.tex" in capsys.readouterr().err
    assert not path.exists()
    thesis.unlink()
    assert main(["node", "init", "--out", str(path)]) == 0


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is there stays as it is."""
    path = tmp_path / "relay.toml"
    path.write_text("mine")
    assert main(["node", "init", "--out", str(path)]) == 1
    assert path.read_text() == "mine"
    assert "exists already" in capsys.readouterr().err
    assert main(["node", "init", "--out", str(tmp_path / "no" / "relay.toml")]) == 1


def test_check_says_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each mistake, exit code 1."""
    path = tmp_path / "relay.toml"
    path.write_text('[node]\ndata_dir = "d"\nname = 3\n[store]\nttl_ms = 1\n')
    assert main(["node", "check", "--config", str(path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "relay.toml:3" in lines[0]
    assert "relay.toml:5" in lines[1]


def test_check_sees_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that does not fit is found before the node is started with it."""
    path = tmp_path / "relay.toml"
    path.write_text('[node]\ndata_dir = "d"\n')
    monkeypatch.setenv("LUXRELAY_STORE_TTL_MS", "soon")
    assert main(["node", "check", "--config", str(path)]) == 1
    assert "LUXRELAY_STORE_TTL_MS" in capsys.readouterr().err


def test_check_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json each problem is an object with its line; a right file has none."""
    path = tmp_path / "relay.toml"
    assert main(["node", "init", "--topic", "/chat/1/room", "--out", str(path)]) == 0
    capsys.readouterr()
    assert main(["node", "check", "--config", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"problems": [], "doubts": []}
    path.write_text("[node]\nnmae = 1\n[store]\nttl_ms = 0\n")

    assert main(["node", "check", "--config", str(path), "--json"]) == 1

    problems = json.loads(capsys.readouterr().out)["problems"]
    assert len(problems) >= 2
    assert any(":2" in each["where"] for each in problems)
    assert all(each["what"] for each in problems)


def test_check_says_that_nothing_is_carried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node without namespaces is well-formed, and takes nothing."""
    path = tmp_path / "relay.toml"
    path.write_text('[node]\ndata_dir = "data"\n')

    assert main(["node", "check", "--config", str(path)]) == 0
    assert "takes no messages until one is listed or followed" in capsys.readouterr().out


def test_a_token_for_a_gateway_that_is_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is made, and its owner is told why it is of no use yet."""
    path = tmp_path / "relay.toml"
    path.write_text('[node]\ndata_dir = "data"\n')
    new = ["node", "token", "new", "--config", str(path), "--scope", "read", "phone"]

    assert main(new) == 0
    said = capsys.readouterr()
    assert said.out.startswith("lrt_")
    assert "[gateway] listen" in said.err
    path.write_text('[node]\ndata_dir = "data"\n[gateway]\nlisten = "127.0.0.1:0"\n')
    assert main(new) == 0
    assert not capsys.readouterr().err
