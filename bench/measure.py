"""Run the benchmarks, write bench/results.json and print it as a table.

Each part is a program of its own that prints one JSON line a result. A ratio is ours over theirs,
higher is better, both measured in the same run. With ``--floors`` a ratio below `FLOOR` of its aim
is a failure. Usage:

    python bench/measure.py [--floors] [part ...]
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
PARTS = {
    "bus": ("bus",),
    "gossip": ("gossip",),
    "store": ("store", "store_retention", "store_brokers"),
    "growth": ("store_growth",),
    "sync": ("sync", "sync_sets"),
    "net": ("net",),
    "sim": ("sim",),
    "node": ("node",),
    "archive": ("archive",),
    "channel": ("channel", "channel_relays"),
    "archive-spark": ("archive_spark",),
}
"""Each part's programs."""
ON_REQUEST = {"archive-spark"}
"""Parts that are measured only when they are named: minutes of Spark."""
FLOOR = 0.7
"""Share of its aim below which a ratio is a failure: machines differ by less than that."""
TIMEOUT_S = 2_400
"""Longest that a program may take on a machine that has other work."""


def measure(program: str) -> tuple[list[dict[str, Any]], str]:
    """Return the results of one program, and how it failed; empty when it did not."""
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(FOLDER / f"{program}.py")],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode() if isinstance(late.stdout, bytes) else ""
        failure = f"benchmark {program} was not done within {TIMEOUT_S} s"
    else:
        sys.stderr.write(done.stderr[-2000:])
        said = done.stdout
        failure = f"benchmark {program} ended with {done.returncode}" if done.returncode else ""
    rows = [line for line in said.splitlines() if line.startswith("{") and line.endswith("}")]
    return [json.loads(row) for row in rows], failure


def commit() -> str:
    """Return the commit that was measured, with a plus when the tree differs from it."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607  wherever git is
            cwd=FOLDER,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        dirty = subprocess.run(
            ["git", "status", "--porcelain"],  # noqa: S607  wherever git is
            cwd=FOLDER,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if dirty else "")


def main() -> None:
    """Measure the parts named on the command line, or all."""
    words = sys.argv[1:]
    floors = "--floors" in words
    parts = [word for word in words if word != "--floors"] or [
        part for part in PARTS if part not in ON_REQUEST
    ]
    unknown = set(parts) - set(PARTS)
    if unknown:
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    results, failures = [], []
    for part in parts:
        print(f"measuring {part} …", file=sys.stderr)
        for program in PARTS[part]:
            rows, failure = measure(program)
            results += rows
            failures += [failure] if failure else []
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    report = {"machine": machine, "commit": commit(), "results": results}
    (FOLDER / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"{machine}, commit {report['commit']}\n")
    for row in results:
        value = _figure(row["value"])
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f} of"
        measured = f"{row['part']:8} {row['name']:44} {value:>10} {row['unit']:14}"
        print(f"{measured} {ratio:8} {row['against']}")
    if floors:
        failures += [
            f"{row['part']} {row['name']}: {row['ratio']:.2f}, aim {row['aim']:.2f}"
            for row in results
            if row["ratio"] is not None and row["aim"] is not None
            if row["ratio"] < FLOOR * row["aim"]
        ]
    if failures:
        sys.exit("; ".join(failures))


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


if __name__ == "__main__":
    main()
