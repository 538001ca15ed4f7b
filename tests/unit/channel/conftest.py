"""What the tests of channels share: participants and sessions in virtual time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from luxrelay.channel.params import SdsConfig


def load(name: str) -> ModuleType:
    """Return a module of `tests/oracle`, the same one each time."""
    known = f"{name}_oracle"
    if known not in sys.modules:
        path = Path(__file__).parents[2] / "oracle" / f"{name}.py"
        spec = spec_from_file_location(known, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[known] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]


@pytest.fixture
def new_net() -> Any:
    """The network of participants; call it with names."""
    return load("participants").Net


@pytest.fixture
def quick() -> Callable[..., SdsConfig]:
    """A maker of small configurations."""
    small: SdsConfig = load("participants").QUICK

    def made(**changes: object) -> SdsConfig:
        return replace(small, **changes)  # type: ignore[arg-type]

    return made


@pytest.fixture(scope="session")
def channels() -> ModuleType:
    """`tests/oracle/channels.py`: sessions on an unkind network in virtual time."""
    return load("channels")
