"""Plots of a report."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from luxrelay.errors import SimulationError
from luxrelay.sim import Scenario, simulate
from luxrelay.sim.plots import write_plots

Small = Callable[..., Scenario]


@pytest.mark.slow
def test_two_plots_are_written(small: Small, tmp_path: Path) -> None:
    """Both are PNG files, also when deliveries are missing."""
    pytest.importorskip("matplotlib")
    report = simulate(small(nodes=4, duration_s=5.0, messages=2))
    report = replace(report, latencies_ms=(1.0, 2.0, float("inf")))

    paths = write_plots(report, tmp_path)

    assert [path.name for path in paths] == ["small-latency.png", "small-mesh.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    with pytest.raises(SimulationError, match="cannot write the plot"):
        write_plots(report, tmp_path / "nowhere")


def test_without_matplotlib_it_says_what_to_install(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    report = simulate(small(nodes=4, duration_s=0.5, messages=0))

    with pytest.raises(SimulationError, match=r"luxrelay\[plots\]"):
        write_plots(report, tmp_path)
