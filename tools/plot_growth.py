"""Draw how the store's cost grows, and write the table that stands beside the drawing.

Reads ``docs/explanation/store-growth.json``, which `bench/store_growth.py` has measured, and writes
``docs/explanation/store-growth.svg`` and the rows between the marks in
``docs/explanation/performance.md``. Both axes are logarithmic: a flat line is a cost that does not
depend on what is stored. Usage:

    python tools/plot_growth.py
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "explanation"
FIGURES = FOLDER / "store-growth.json"
DRAWING = FOLDER / "store-growth.svg"
PAGE = FOLDER / "performance.md"
BEGIN, END = "<!-- growth: made by tools/plot_growth.py -->", "<!-- /growth -->"
PANEL_W, PANEL_H, GAP = 210, 130, 46
COLUMNS = 3
STYLE = """
text { font: 11px sans-serif; fill: #333 }
.name { font-weight: bold }
.line { fill: none; stroke: #1f6fb2; stroke-width: 2 }
.dot { fill: #1f6fb2 }
.frame { fill: none; stroke: #999 }
"""

Sizes = dict[int, dict[str, float]]


def decades(values: list[float]) -> tuple[float, float]:
    """Return the powers of ten that hold every value, at least one decade apart."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def panel(name: str, unit: str, sizes: Sizes, at: int) -> list[str]:
    """Return one figure over the sizes."""
    left = GAP + at % COLUMNS * (PANEL_W + GAP)
    top = GAP + at // COLUMNS * (PANEL_H + 2 * GAP)
    counts, values = list(sizes), [figures[name] for figures in sizes.values()]
    (low_x, high_x), (low_y, high_y) = decades([float(each) for each in counts]), decades(values)

    def place(count: float, value: float) -> tuple[float, float]:
        across = (math.log10(count) - low_x) / (high_x - low_x)
        up = (math.log10(value) - low_y) / (high_y - low_y)
        return round(left + across * PANEL_W, 1), round(top + (1 - up) * PANEL_H, 1)

    points = [place(count, value) for count, value in zip(counts, values, strict=True)]
    path = " ".join(f"{x},{y}" for x, y in points)
    parts = [
        f'<text class="name" x="{left}" y="{top - 8}">{name}, {unit}</text>',
        f'<rect class="frame" x="{left}" y="{top}" width="{PANEL_W}" height="{PANEL_H}"/>',
        f'<polyline class="line" points="{path}"/>',
    ]
    for (x, y), count, value in zip(points, counts, values, strict=True):
        end = "start" if count == counts[0] else "end"
        parts += [
            f'<circle class="dot" cx="{x}" cy="{y}" r="3"/>',
            f'<text x="{x}" y="{y - 6}" text-anchor="{end}">{value:,.0f}</text>',
            f'<text x="{x}" y="{top + PANEL_H + 14}" text-anchor="{end}">{count:,}</text>',
        ]
    return parts


def drawing(sizes: Sizes, units: dict[str, str]) -> str:
    """Return the whole drawing."""
    lines = math.ceil(len(units) / COLUMNS)
    width, height = GAP + COLUMNS * (PANEL_W + GAP), GAP + lines * (PANEL_H + 2 * GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for at, (name, unit) in enumerate(units.items()):
        parts += panel(name, unit, sizes, at)
    return "\n".join([*parts, "</svg>"]) + "\n"


def table(sizes: Sizes, units: dict[str, str], machine: str, load: float) -> str:
    """Return the table of the page."""
    lines = [
        "| messages stored | " + " | ".join(f"{count:,}" for count in sizes) + " |",
        "|---" * (1 + len(sizes)) + "|",
    ]
    for name, unit in units.items():
        values = " | ".join(f"{figures[name]:,.0f}" for figures in sizes.values())
        lines.append(f"| {name}, {unit} | {values} |")
    said = f"Measured on {machine}, load average {load:.1f}."
    return "\n".join([*lines, "", said, "", "![the same, drawn](store-growth.svg)"])


def main() -> None:
    """Write drawing and table."""
    report = json.loads(FIGURES.read_text())
    sizes = {int(count): figures for count, figures in report["sizes"].items()}
    DRAWING.write_text(drawing(sizes, report["units"]))
    page = PAGE.read_text()
    if BEGIN not in page or END not in page:
        sys.exit(f"{PAGE} has no place for the table: {BEGIN} … {END}")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    made = table(sizes, report["units"], report["machine"], report["load"])
    PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}")


if __name__ == "__main__":
    main()
