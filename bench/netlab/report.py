"""One report of a run of the lab: JSON, and a table in Markdown."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from netlab.run import CaseResult

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "explanation" / "network.md"
"""The page with the table of a run, and `FIGURES`, what it was made from."""
FIGURES: Final = PAGE.with_suffix(".json")
BEGIN, END = "<!-- figures: made by bench/lab.py --publish -->", "<!-- /figures -->"
LOADED_ABOVE: Final = 0.5
"""Load average before the run above which its figures are called loaded."""
COLUMNS: Final = (
    "scenario",
    "delivered",
    "stored",
    "p50 ms",
    "p99 ms",
    "wire / useful MB",
    "recovery s",
    "of ideal",
    "told twice",
    "what did not hold",
    "simulated",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Where and when a report was made."""

    machine: str
    commit: str
    load: float
    """Load average before the run."""

    @property
    def loaded(self) -> bool:
        """Whether other work ran on the machine."""
        return self.load > LOADED_ABOVE

    @classmethod
    def now(cls) -> Circumstances:
        """Return those of this machine."""
        cores, system = os.cpu_count(), platform.system()
        return cls(
            machine=f"{cores} cores, Python {platform.python_version()}, {system}",
            commit=_commit(),
            load=round(os.getloadavg()[0], 2),
        )


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def to_json(results: Sequence[CaseResult], where: Circumstances) -> dict[str, Any]:
    """Return the report as a JSON object."""
    return {
        **asdict(where),
        "loaded": where.loaded,
        "held": all(each.held for each in results),
        "results": [_row(each) for each in results],
    }


def _row(result: CaseResult) -> dict[str, Any]:
    scenario = result.scenario
    return {
        "name": result.name,
        "sentence": scenario.sentence,
        "row": scenario.row,
        "seed": scenario.seed,
        "relays": scenario.network.relays,
        "seconds": round(result.seconds, 1),
        "held": result.held,
        "error": result.error,
        "expected": [
            {
                "measure": each.measure,
                "at_least": each.at_least if math.isfinite(each.at_least) else None,
                "at_most": each.at_most if math.isfinite(each.at_most) else None,
                "value": result.measures.get(each.measure),
                "held": each.holds(result.measures.get(each.measure)),
            }
            for each in scenario.expected
        ],
        "measures": {name: value for name, value in result.measures.items() if value is not None},
        "wire": result.wire,
        "refusals": result.refusals,
        "log": result.log,
        "simulated": result.simulated,
        "not_simulated": result.not_simulated,
    }


def to_markdown(report: Mapping[str, Any]) -> str:
    """Return the report's table, with where it was made above it."""
    load = f"; loaded: the load average before it was {report['load']}" if report["loaded"] else ""
    lines = [
        f"{report['machine']}; commit {report['commit']}{load}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    lines += [f"| {' | '.join(_cells(row))} |" for row in report["results"]]
    return "\n".join(lines) + "\n"


def _cells(row: Mapping[str, Any]) -> list[str]:
    found = row["measures"]

    def shown(name: str, digits: int) -> str:
        value = found.get(name)
        return "–" if value is None else f"{value:.{digits}f}"

    wire, useful = found.get("wire_bytes"), found.get("useful_bytes")
    octets = "–" if wire is None or not useful else f"{wire / 1e6:.2f} / {useful / 1e6:.2f}"
    return [
        row["name"],
        shown("delivered_share", 4),
        shown("stored_share", 4),
        shown("p50_ms", 0),
        shown("p99_ms", 0),
        octets,
        shown("recovery_s", 1),
        shown("recovery_ratio", 2),
        shown("told_twice", 0),
        _failures(row),
        _simulated(row),
    ]


def _failures(row: Mapping[str, Any]) -> str:
    if row["error"]:
        return f"not run to its end: {row['error'].splitlines()[-1][:120]}".replace("|", "/")
    failed = [each for each in row["expected"] if not each["held"]]
    return "; ".join(f"{each['measure']} {_value(each)}" for each in failed) or "–"


def _value(expected: Mapping[str, Any]) -> str:
    value = expected["value"]
    told = "not reached" if value is None else f"{value:.4g}"
    if expected["at_most"] is not None:
        return f"{told}, at most {expected['at_most']:g}"
    return f"{told}, at least {expected['at_least']:g}"


def _simulated(row: Mapping[str, Any]) -> str:
    found = row["simulated"]
    if found is None:
        return f"not simulated: {row['not_simulated']}"
    share, p50 = found.get("delivered_share"), found.get("p50_ms")
    shown = "–" if share is None else f"{share:.4f}"
    return shown + ("" if p50 is None else f", p50 {p50:.0f} ms")


def write(report: Mapping[str, Any], folder: Path) -> Path:
    """Write ``report.json`` and ``report.md`` into a folder; return the first one's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    (folder / "report.md").write_text(to_markdown(report))
    return path


def publish(report: Mapping[str, Any]) -> None:
    """Write a report's figures beside the page about the lab, and its table into the page."""
    FIGURES.write_text(json.dumps(report, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{to_markdown(report)}\n{END}{after}")
