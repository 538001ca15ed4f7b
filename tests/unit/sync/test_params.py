"""Bounds of a catch-up."""

from __future__ import annotations

from dataclasses import fields

import pytest

from luxrelay.errors import SyncArgumentError
from luxrelay.sync.params import CatchUpConfig


@pytest.mark.parametrize(
    "name", [each.name for each in fields(CatchUpConfig) if each.name != "transfer"]
)
def test_refuse_what_is_not_positive(name: str) -> None:
    """Every bound is positive; the error names the one that is not."""
    with pytest.raises(SyncArgumentError, match=name):
        CatchUpConfig(**{name: 0})
