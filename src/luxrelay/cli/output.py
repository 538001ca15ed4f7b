"""Tables, JSON and progress for people and programs.

Results go to standard output, progress and errors to standard error, so that a pipe sees results
only. Progress redraws one line on a terminal and writes plain lines elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, TextIO

from luxrelay.text import clean, json_text

PRINTED_MAX: Final = 100_000
"""Characters of one text on a terminal."""


def print_json(value: object) -> None:
    """Write one JSON document, indented, keys in the order given; a terminal acts on none of it."""
    print(json_text(value, indent=2))


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with aligned columns; numbers stand right, text left."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [
        max(len(heading), *(len(row[i]) for row in cells)) if cells else len(heading)
        for i, heading in enumerate(headings)
    ]
    numeric = [all(_is_number(row[i]) for row in rows) and bool(rows) for i in range(len(widths))]

    def line(values: Sequence[str]) -> str:
        aligned = (
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        )
        return "  ".join(aligned).rstrip()

    rule = "  ".join("─" * width for width in widths)
    return "\n".join([line(list(headings)), rule, *(line(row) for row in cells)])


class Progress:
    """Says how far long work is, without slowing it."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to ``stream`` (standard error by default) at most ten times a second."""
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._period = 0.1 if self._terminal else 5.0
        self._next = 0.0
        self._open = False

    def step(self, text: str) -> None:
        """Begin a new step; always written."""
        self._write(text, final=True)

    def update(self, text: str) -> None:
        """Say how the step goes; dropped when the last line is too recent."""
        now = self._clock()
        if now >= self._next:
            self._next = now + self._period
            self._write(text, final=False)

    def _write(self, text: str, *, final: bool) -> None:
        if self._quiet:
            return
        if not self._terminal:
            self._stream.write(text + "\n")
        else:
            end = "\n" if final else ""
            self._stream.write(f"\r\x1b[2K{text}{end}")
            self._open = not final
        self._stream.flush()

    def close(self) -> None:
        """Leave the cursor on a fresh line."""
        if self._open:
            self._stream.write("\n")
            self._open = False


def printable(text: str) -> str:
    """Return the text with a dot for whatever would steer a terminal; peers choose such text."""
    return clean(text, PRINTED_MAX)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return printable(str(value))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
