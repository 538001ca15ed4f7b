"""A forge for messages and a way to run a script with the store in another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load_oracle() -> ModuleType:
    path = Path(__file__).parents[2] / "oracle" / "store.py"
    spec = spec_from_file_location("store_oracle", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


ORACLE = _load_oracle()


@pytest.fixture
def now() -> int:
    """The wall clock of the store tests, milliseconds."""
    return ORACLE.NOW


@pytest.fixture
def forge() -> Any:
    """Makes signed messages."""
    return ORACLE.Forge()


@pytest.fixture
def run_elsewhere() -> Callable[..., str]:
    """Run a script in a process of its own; return what it printed."""

    def run(script: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
