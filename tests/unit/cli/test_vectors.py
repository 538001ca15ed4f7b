"""The vectors command."""

import json
import sys
from pathlib import Path

import pytest

from luxrelay.cli.main import main

ROOT = Path(__file__).resolve().parents[3]


def test_check_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """The committed vectors are right, exit code 0."""
    assert main(["vectors", "check", "--dir", str(ROOT / "vectors")]) == 0
    assert " right, 0 wrong, 0 skipped" in capsys.readouterr().out


def test_check_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json the counts and the wrong answers are one object."""
    assert main(["vectors", "check", "--dir", str(ROOT / "vectors"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["right"] > 100
    assert told["wrong"] == []


def test_wrong_answers_are_exit_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Wrong cases are named, twenty of them, and counted."""
    program = tmp_path / "program.py"
    program.write_text("import sys\nfor _ in sys.stdin: print('{\"odd\": 1}')\n")
    command = f"{sys.executable} {program}"

    assert main(["vectors", "check", "--dir", str(ROOT / "vectors"), "--against", command]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 22
    assert lines[0].endswith("odd was not asked for")
    assert lines[-2].endswith(" more")


@pytest.mark.parametrize("command", ["", " "])
def test_no_program_is_no_answer(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """An empty command, as from an unset variable, does not pass for a program that agrees."""
    assert main(["vectors", "check", "--dir", str(ROOT / "vectors"), "--against", command]) == 1
    assert "the program failed" in capsys.readouterr().err


@pytest.mark.slow
def test_write_is_idempotent(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The second time nothing changes."""
    assert main(["vectors", "write", "--dir", str(tmp_path)]) == 0
    assert "changed header/valid-v1.json" in capsys.readouterr().out
    assert main(["vectors", "write", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0 of the files changed\n"


def test_write_where_nothing_can_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A folder that cannot be made is one line on standard error."""
    (tmp_path / "file").write_text("")

    assert main(["vectors", "write", "--dir", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_write_without_dilithium_says_what_to_install(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only writing needs dilithium-py, and it says so."""

    def missing(_: Path) -> None:
        raise ModuleNotFoundError(name="dilithium_py")

    monkeypatch.setattr("luxrelay.cli.vectors.write_vectors", missing)

    assert main(["vectors", "write", "--dir", str(tmp_path)]) == 1
    assert "pip install dilithium-py" in capsys.readouterr().err
