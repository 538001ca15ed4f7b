"""Data of a report's charts, with titles and units; `charts` draws them.

Apart from `charts`, so that a page can be described where matplotlib is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line over time."""

    name: str
    """Shown in the legend."""
    points: tuple[tuple[float, float], ...]
    """(seconds since the start, value), ascending in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A time in which something was down."""

    name: str
    """Shown above the shaded area."""
    start_s: float
    """Seconds since the start."""
    end_s: float
    """Seconds since the start."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart in its two sizes."""

    wide: str
    """SVG for a wide screen."""
    narrow: str
    """SVG for a narrow screen."""
