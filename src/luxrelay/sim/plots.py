"""Plots of a report, by matplotlib, which is an extra."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from luxrelay.errors import SimulationError
from luxrelay.sim.measures import LATE_MS

if TYPE_CHECKING:
    from luxrelay.sim.report import SimReport

_INK: Final = "#1f4e79"
_ACCENT: Final = "#c0504d"


def write_plots(report: SimReport, folder: Path) -> list[Path]:
    """Write ``<name>-latency.png`` and ``<name>-mesh.png`` into a folder; return their paths.

    Raises:
        SimulationError: matplotlib is missing, or the folder cannot be written to.

    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  an extra, and slow to import
    except ImportError as error:
        raise SimulationError(
            "plots need matplotlib, which is not installed", where="--out", code="sim.plots"
        ) from error
    written = []
    for name, draw in (("latency", _draw_latency), ("mesh", _draw_mesh)):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        draw(figure, report)
        path = folder / f"{report.name}-{name}.png"
        try:
            figure.savefig(path, dpi=110, metadata={"Software": None})
        except OSError as error:
            raise SimulationError(
                f"cannot write the plot: {error.strerror}", where=str(path)
            ) from error
        written.append(path)
    return written


def _draw_latency(figure: Any, report: SimReport) -> None:
    axes = figure.subplots()
    known = [value for value in report.latencies_ms if math.isfinite(value)]
    count = max(1, len(report.latencies_ms) - 1)
    axes.plot(known, [place / count for place in range(len(known))], color=_INK)
    axes.axvline(LATE_MS, color=_ACCENT, linestyle="--", linewidth=1, label="500 ms (LP-6491)")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("milliseconds from publication")
    axes.set_ylabel("share of deliveries")
    axes.set_title(f"{report.name}: {report.nodes:,} nodes, seed {report.seed}")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)


def _draw_mesh(figure: Any, report: SimReport) -> None:
    above, below = figure.subplots(2, 1, sharex=True)
    times = [sample.at_s for sample in report.samples]
    above.fill_between(
        times,
        [sample.mesh.degree_min for sample in report.samples],
        [sample.mesh.degree_max for sample in report.samples],
        color=_INK,
        alpha=0.2,
        step="post",
        label="fewest to most",
    )
    above.plot(
        times, [sample.mesh.degree_mean for sample in report.samples], color=_INK, label="mean"
    )
    above.set_ylabel("mesh peers of a node")
    above.set_title(f"{report.name}: the mesh of the honest nodes")
    above.legend(loc="lower right")
    below.step(
        times, [sample.mesh.components for sample in report.samples], color=_ACCENT, where="post"
    )
    below.set_yscale("log")
    below.set_ylabel("parts of the mesh")
    below.set_xlabel("virtual seconds")
    for axes in (above, below):
        axes.grid(alpha=0.3)
