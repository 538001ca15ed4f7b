"""Settings: dataclass fields that know their sentence, unit and bounds, read from tables.

A scenario's sections and faults are frozen dataclasses; reading, messages and the reference page
are made from their fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any, TypeVar

from luxrelay.errors import ScenarioError

T = TypeVar("T")


def setting(
    default: Any,
    sentence: str,
    *,
    unit: str = "",
    low: float = 0,
    high: float = 1e12,
) -> Any:
    """Return a dataclass field with its documentation and bounds.

    Args:
        default: Its value when a file does not say; its type is the type of the setting.
        sentence: What it means.
        unit: Of numbers.
        low: Smallest number that fits.
        high: Largest number that fits.

    """
    about = {"sentence": sentence, "unit": unit, "low": low, "high": high}
    return field(default=default, metadata=about)


def read_table(kind: type[T], table: object, where: str) -> T:
    """Return the dataclass that a TOML table describes; what it does not name has its default.

    Args:
        kind: A dataclass whose fields were made with `setting`.
        table: The table.
        where: Its name, for messages.

    Raises:
        ScenarioError: it is no table, a key is unknown, or a value does not fit.

    """
    if not isinstance(table, Mapping):
        raise ScenarioError("expected a table", where=where)
    known: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    unknown = [name for name in table if name not in known]
    if unknown:
        raise ScenarioError(
            f"unknown key {unknown[0]!r}",
            where=where,
            hint=f"known are {', '.join(known)}",
        )
    return kind(**{name: _fitting(known[name], value, where) for name, value in table.items()})


def check_fields(value: object, where: str) -> None:
    """Refuse a dataclass whose fields are out of bounds, however it was made.

    Raises:
        ScenarioError: says which field and what fits.

    """
    for each in fields(value):  # type: ignore[arg-type]
        _fitting(each, getattr(value, each.name), where)


def _fitting(about: Field[Any], value: object, where: str) -> Any:
    """Return a value of the field's type within its bounds."""
    place = f"{where}.{about.name}"
    default = about.default
    assert default is not MISSING
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        raise ScenarioError("expected true or false", where=place)
    if isinstance(default, str):
        if isinstance(value, str):
            return value
        raise ScenarioError("expected text", where=place)
    kinds = (int,) if isinstance(default, int) else (int, float)
    low, high = about.metadata["low"], about.metadata["high"]
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        words = "a whole number" if isinstance(default, int) else "a number"
        raise ScenarioError(f"expected {words} from {low:g} to {high:g}", where=place)
    return type(default)(value)
