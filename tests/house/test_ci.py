"""Continuous integration does what the README tells a newcomer to do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci" / "run"


def test_ci_runs_the_readmes_commands_to_the_letter() -> None:
    """The commands of its first section, and the demonstration from an installed wheel."""
    tried = (ROOT / "README.md").read_text().split("## Try it")[1].split("##")[0]
    commands = [line.strip() for line in tried.splitlines() if line.startswith("    ")]
    lines = SCRIPT.read_text().splitlines()

    assert commands == ["make demo", "make test"]
    assert {*commands, "make first-hour"} <= set(lines)


@pytest.mark.parametrize(
    ("able", "made", "code", "last"),
    [
        (0, 0, 0, "made netlab-short"),
        (0, 2, 2, "made netlab-short"),
        (3, 0, 0, "NETLAB NOT RUN: network namespaces need root"),
        (1, 0, 1, ""),
    ],
)
def test_the_last_line_says_when_the_lab_did_not_run(
    able: int, made: int, code: int, last: str, tmp_path: Path
) -> None:
    """It runs, or is not permitted and said to be; whatever else goes wrong is a failure."""
    end = SCRIPT.read_text().partition("# Needs root and TUN devices.")[2]
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python, make = tmp_path / ".venv" / "bin" / "python", tmp_path / "make"
    python.write_text(f"#!/bin/sh\necho network namespaces need root\nexit {able}\n")
    make.write_text(f"#!/bin/sh\necho made $1\nexit {made}\n")
    for program in (python, make):
        program.chmod(0o700)

    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"#{end}"],  # noqa: S607  wherever bash is
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code, done.stderr
    assert "".join(done.stdout.splitlines()[-1:]) == last
