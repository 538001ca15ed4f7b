"""Report of a run: measures, expectations, violations, difference from a baseline."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luxrelay import __version__
from luxrelay.errors import ScenarioError, SimulationError
from luxrelay.sim.checks import Violation
from luxrelay.sim.measures import Measures, Sample, quantiles
from luxrelay.sim.scenario import Expectation

if TYPE_CHECKING:
    from luxrelay.sim.run import SimRun


@dataclass(frozen=True, slots=True, kw_only=True)
class SimReport:
    """The outcome of a run."""

    name: str
    """Of the scenario."""
    sentence: str
    """What it shows."""
    seed: int
    """Of the run."""
    nodes: int
    """Nodes, hostile ones included."""
    measures: Measures
    """Every measure by name; `luxrelay.sim.measures.MEANINGS` explains them."""
    failed: tuple[Expectation, ...]
    """Expectations that do not hold."""
    expected: tuple[Expectation, ...]
    """All of them."""
    violations: tuple[Violation, ...]
    """What had to hold and did not, the first hundred."""
    violation_count: int
    """How many there were."""
    samples: tuple[Sample, ...]
    """The looks at the mesh."""
    latencies_ms: tuple[float, ...]
    """Latencies of the deliveries, a thousand quantiles; infinite where one never arrived."""
    virtual_s: float
    """How long the run lasted in the network."""
    events: int
    """Events dealt with."""
    wall_s: float
    """How long it took here; this and the next differ from run to run."""
    cpu_s: float
    """Processor time it took here."""

    @property
    def passed(self) -> bool:
        """True when every expectation holds and nothing was violated."""
        return not self.failed and not self.violation_count

    @property
    def digest(self) -> str:
        """SHA-256 over everything but the time it took: equal runs have equal digests."""
        body = {name: value for name, value in self.to_json().items() if name != "cost"}
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object; what could not be measured is null."""
        return {
            "scenario": self.name,
            "sentence": self.sentence,
            "luxrelay": __version__,
            "seed": self.seed,
            "nodes": self.nodes,
            "passed": self.passed,
            "measures": self.measures,
            "expect": [
                {
                    "measure": each.measure,
                    "at_least": _finite(each.at_least),
                    "at_most": _finite(each.at_most),
                    "holds": each not in self.failed,
                }
                for each in self.expected
            ],
            "violations": [
                {"at_s": each.at_s, "node": each.node, "what": each.what}
                for each in self.violations
            ],
            "violation_count": self.violation_count,
            "latency_quantiles_ms": [_finite(value) for value in self.latencies_ms],
            "samples": [
                {
                    "at_s": round(each.at_s, 6),
                    "nodes": each.mesh.nodes,
                    "degree_min": each.mesh.degree_min,
                    "degree_mean": each.mesh.degree_mean,
                    "degree_max": each.mesh.degree_max,
                    "components": each.mesh.components,
                    "bytes_sent": each.bytes_sent,
                }
                for each in self.samples
            ],
            "virtual_s": self.virtual_s,
            "events": self.events,
            "cost": {
                "wall_s": self.wall_s,
                "cpu_s": self.cpu_s,
                "events_per_cpu_s": self.events / self.cpu_s,
                "node_seconds_per_cpu_s": self.nodes * self.virtual_s / self.cpu_s,
            },
        }

    def differences(self, baseline: Mapping[str, object]) -> list[tuple[str, float, float]]:
        """Return the measures that differ from those of an earlier report: name, before, now."""
        before = baseline.get("measures")
        if not isinstance(before, Mapping):
            raise ScenarioError("the baseline is no report of a simulation", where="--baseline")
        found = []
        for name, value in self.measures.items():
            old = before.get(name)
            if value is not None and isinstance(old, (int, float)) and old != value:
                found.append((name, float(old), float(value)))
        return found


def make_report(run: SimRun, measures: Measures, *, wall_s: float, cpu_s: float) -> SimReport:
    """Return the report of a run that has ended."""
    scenario = run.scenario
    failed = tuple(each for each in scenario.expect if not each.holds(measures.get(each.measure)))
    return SimReport(
        name=scenario.name,
        sentence=scenario.sentence,
        seed=scenario.seed,
        nodes=len(run.network.nodes),
        measures=measures,
        failed=failed,
        expected=scenario.expect,
        violations=tuple(run.network.violations),
        violation_count=run.network.violation_count,
        samples=tuple(run.samples),
        latencies_ms=quantiles(run),
        virtual_s=run.network.clock.now,
        events=run.network.events,
        wall_s=wall_s,
        cpu_s=cpu_s,
    )


def write_report(report: SimReport, folder: Path) -> Path:
    """Write ``<name>.json`` into a folder, which is made when it is not there; return its path.

    Raises:
        SimulationError: the folder cannot be written to.

    """
    path = folder / f"{report.name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report.to_json(), indent=1) + "\n")
    except OSError as error:
        raise SimulationError(
            f"cannot write the report: {error.strerror}",
            where=str(path),
            hint="choose another --out",
        ) from error
    return path


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
