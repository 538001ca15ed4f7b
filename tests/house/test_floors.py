"""The floors of the house, as import-linter sees them."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_imports_go_down_only() -> None:
    """Every contract of pyproject.toml is kept: floors, pure cores, one door a library."""
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name", ["luxrelay", "luxrelay.bus", "luxrelay.archive", "luxrelay.cli.main"]
)
def test_core_imports_without_extras(name: str) -> None:
    """The core imports while Spark, Delta, pyarrow, matplotlib and KZG are not to be had."""
    script = (
        "import sys\n"
        "for missing in ('pyspark', 'delta', 'pyarrow', 'pandas', 'matplotlib', 'ckzg'):\n"
        "    sys.modules[missing] = None\n"
        f"import {name}\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr


def test_every_module_of_a_mixed_room_is_in_one_list() -> None:
    """No module of a mixed room escapes the contract on cores, and none is in both."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    cores = next(c for c in settings["contracts"] if c["name"] == "Cores do no I/O")
    pure, impure = set(cores["source_modules"]), set(cores["forbidden_modules"])
    for room in ("store", "sync", "archive", "channel"):
        folder = ROOT / "src" / "luxrelay" / room
        modules = {f"luxrelay.{room}.{p.stem}" for p in folder.glob("*.py") if p.stem != "__init__"}
        modules |= {
            f"luxrelay.{room}.{p.name}" for p in folder.iterdir() if (p / "__init__.py").exists()
        }
        assert not modules - pure - impure
        assert not modules & pure & impure
