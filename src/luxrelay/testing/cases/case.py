"""A case of a vector file, and the interface of a kind of vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

Json: TypeAlias = dict[str, Any]
"""A JSON object; byte strings in it are 0x hex in lower case."""


class Case(NamedTuple):
    """What is given and what must be answered."""

    name: str
    """What the case is about; unique in its file."""
    given: Json
    """The question."""
    expect: Json
    """The answer, or as much of it as is known before it is asked for."""


class VectorKind(Protocol):
    """A module of cases."""

    def files(self) -> Iterator[tuple[str, list[Case]]]:
        """Yield the name of each file, without its ending, and its cases."""

    def answer(self, given: Json) -> Json:
        """Return our answer; never raises on what `files` gives."""
