"""A forge for messages and a way to open small stores, shared by the store tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from luxrelay.store import RelayStore, RelayStoreConfig
from luxrelay.store.layout import FAMILIES
from luxrelay.store.rocks import Database


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
def parent() -> bytes:
    """The namespace that messages and lanes stand under."""
    return ORACLE.PARENT


@pytest.fixture
def forge() -> Any:
    """Makes signed messages."""
    return ORACLE.Forge()


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[..., RelayStore]]:
    """Opens stores with the small configuration, changed by keyword; closes them."""
    with ExitStack() as stores:

        def open_one(
            name: str = "store", *, now: float | None = None, **changes: Any
        ) -> RelayStore:
            config = replace(RelayStoreConfig.small(), **changes)
            store = RelayStore.open(tmp_path / name, config, now_ms=ORACLE.NOW, now=now)
            stores.callback(store.close)
            return store

        yield open_one


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An empty database with our families."""
    opened = Database.open(
        tmp_path / "db", FAMILIES, write_buffer_bytes=1 << 22, block_cache_bytes=1 << 20
    )
    yield opened
    opened.close()
