"""The three charts of the report as inline SVG, each for a wide and a narrow screen.

Text stays text, so that it is sharp, can be selected and takes the page's font. An SVG that is
merely scaled down to a telephone cannot be read; so each chart is drawn twice and the page shows
the one that fits.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from luxrelay.archive.chart_data import Chart, Outage, Series

WIDE: Final = (1040, 330)
"""Width and height in CSS pixels: fits a page of 1,200 pixels."""
NARROW: Final = (352, 300)
"""Fits a page of 400 pixels."""
BINS: Final = 48
"""Bars of a distribution."""
LOG_FROM: Final = 30.0
"""A distribution whose 99.9 % point is this many times its median gets a logarithmic axis."""

_UNITS_PER_INCH: Final = 72.0
"""Matplotlib's SVG has 72 units an inch; here a unit is a CSS pixel."""
_AXES_SHARE: Final = 0.85
_GLYPH: Final = 7.0
"""About a letter's width at 12 pixels."""
_UNITS: Final[tuple[tuple[str, int], ...]] = (
    ("days", 86_400),
    ("hours", 3_600),
    ("minutes", 60),
    ("seconds", 1),
)
_UNITS_MIN: Final = 4
"""So much of a unit is there at least, before time is told in it."""
_INK: Final = "#1d2733"
_SOFT: Final = "#5b6875"
_GRID: Final = "#e3e8ee"
_SHADE: Final = "#f3d9b1"
# Distinguishable with every common colour vision (Okabe and Ito), and by their dashes.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#8250c4", "#b58900", "#56606b")
_DASHES: Final = ("-", (0, (5, 1.6)), (0, (1.6, 1.4)), (0, (7, 1.5, 1.5, 1.5)))
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "font.size": 12.5,
    "axes.edgecolor": "#b8c2cc",
    "axes.labelcolor": _SOFT,
    "axes.linewidth": 0.8,
    "text.color": _INK,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "legend.frameon": False,
}


def lines_chart(
    series: Sequence[Series], *, label: str, outages: Sequence[Outage] = (), filled: bool = False
) -> Chart:
    """Return lines over time, with outages shaded.

    Args:
        series: The lines, drawn in order.
        label: What the vertical axis shows, with its unit.
        outages: Shaded and named.
        filled: Fill the area below the first line.

    """
    unit, unit_s = _time_unit(series)

    def draw(axes: Any) -> None:
        for outage in outages:
            axes.axvspan(
                outage.start_s / unit_s, outage.end_s / unit_s, color=_SHADE, alpha=0.65, lw=0
            )
            middle = (outage.start_s + outage.end_s) / 2 / unit_s
            axes.annotate(
                outage.name, (middle, 1.0), xycoords=("data", "axes fraction"), xytext=(0, -15),
                textcoords="offset points", ha="center", fontsize=12, color="#7a4b00",
            )  # fmt: skip
        for number, line in enumerate(series):
            times = [point[0] / unit_s for point in line.points]
            values = [point[1] for point in line.points]
            colour = _COLOURS[number % len(_COLOURS)]
            dashes = _DASHES[number % len(_DASHES)]
            axes.plot(times, values, color=colour, ls=dashes, lw=2, label=line.name)
            if filled and number == 0:
                axes.fill_between(times, values, color=colour, alpha=0.12, lw=0)
        axes.set_xlabel(f"{unit} since the start")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0, top=_headroom(series))
        axes.margins(x=0.01)
        axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        if len(series) > 1:
            axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3, fontsize=12,
                        columnspacing=1.4, handlelength=2.2, borderaxespad=0.2)  # fmt: skip

    return _both(draw, label)


def _time_unit(series: Sequence[Series]) -> tuple[str, int]:
    """Return the unit in which the whole time has a number that can be read, and its seconds."""
    last = max((line.points[-1][0] for line in series if line.points), default=0)
    return next((found for found in _UNITS if last >= _UNITS_MIN * found[1]), _UNITS[-1])


def distribution_chart(values_ms: Sequence[float], *, label: str) -> Chart:
    """Return a histogram of durations with their median, 95th and 99th percentile marked.

    Args:
        values_ms: Durations, milliseconds; at least one.
        label: What is counted, for the vertical axis.

    """
    values = np.maximum(np.asarray(values_ms, dtype=float), 0.0)
    marks = [(name, float(np.percentile(values, name))) for name in (50, 95, 99)]
    top = float(np.percentile(values, 99.9))
    logarithmic = top > LOG_FROM * max(marks[0][1], 1.0)

    def draw(axes: Any) -> None:
        if logarithmic:
            shown = np.maximum(values, 1.0)
            bins = np.geomspace(1.0, max(float(shown.max()), 10.0), BINS + 1)
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(base=10))
            axes.xaxis.set_minor_formatter(NullFormatter())
        else:
            shown = values
            bins = np.linspace(0.0, max(float(values.max()), 1.0), BINS + 1)
        axes.hist(shown, bins=bins, color=_COLOURS[0], alpha=0.85, edgecolor="white", lw=0.6)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_ylabel(label)
        axes.set_xlabel("time, logarithmic scale" if logarithmic else "time")
        axes.margins(x=0.01)
        axes.set_ylim(top=axes.get_ylim()[1] * 1.32)
        for height, (name, value) in enumerate(marks):
            place = 0.97 - 0.085 * height
            axes.axvline(value, ymax=place - 0.02, color=_INK, lw=1, ls=(0, (3, 2)))
            text = f"{name} % within {duration(value)}"
            right = _crowds(axes, value, text)
            axes.annotate(
                text, (value, place),
                xycoords=("data", "axes fraction"), xytext=(-5 if right else 5, 0),
                textcoords="offset points", ha="right" if right else "left", va="center",
                fontsize=12,
            )  # fmt: skip

    return _both(draw, label)


def duration(value_ms: float) -> str:
    """Return a duration for people: milliseconds below one second, else seconds or minutes."""
    if value_ms < 1_000:
        return f"{value_ms:,.0f} ms"
    seconds = value_ms / 1_000
    return (
        f"{seconds:,.1f} s".replace(".0 s", " s") if seconds < 120 else f"{seconds / 60:,.0f} min"
    )


def _crowds(axes: Any, value: float, text: str) -> bool:
    """Return True when ``text`` to the right of ``value`` would leave the chart."""
    width = axes.figure.get_size_inches()[0] * _UNITS_PER_INCH * _AXES_SHARE
    place = axes.transAxes.inverted().transform(axes.transData.transform((value, 0)))[0]
    return bool(place * width + len(text) * _GLYPH > width)


def _headroom(series: Sequence[Series]) -> float:
    highest = max((point[1] for line in series for point in line.points), default=1.0)
    return max(1.0, highest) * 1.18


def _both(draw: Callable[[Any], None], label: str) -> Chart:
    return Chart(_drawn(draw, WIDE, label), _drawn(draw, NARROW, label))


def _drawn(draw: Callable[[Any], None], size: tuple[int, int], label: str) -> str:
    # The salt makes equal input give equal bytes; charts of one page must not share ids.
    with mpl.rc_context({**_STYLE, "svg.hashsalt": f"{label} {size}"}):
        inches = (size[0] / _UNITS_PER_INCH, size[1] / _UNITS_PER_INCH)
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=_GRID, lw=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(length=3)
        if size is NARROW:
            axes.locator_params(axis="x", nbins=5)
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), label)


def _inline(svg: str, label: str) -> str:
    """Return the SVG element alone, without what only a file of its own needs."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r"<(metadata|style)\b.*?</\1>", "", element, flags=re.DOTALL)
    element = re.sub(r'\sxmlns(?::\w+)?="[^"]*"', "", element)
    element = re.sub(r"font-family:[^;\"]*;?\s*", "", element)  # the page's font
    element = re.sub(r'<g id="[^"]*">', "<g>", element)  # the same in every chart
    element = re.sub(r'(<svg) width="[^"]*" height="[^"]*"', r"\1", element, count=1)
    return element.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)
