"""The tests are found without the plugins that only make them faster."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_without_xdist() -> None:
    """`pytest -p no:xdist` collects: debuggers and small machines do without it."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-q", "--collect-only", "tests/unit/client"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_exchange.py" in done.stdout
