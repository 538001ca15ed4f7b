"""Run the benchmarks, write bench/results.json and print it as a table.

Each part is a program of its own that prints one JSON line a result. A ratio is ours over theirs,
higher is better, both measured in the same run. Usage:

    python bench/measure.py [part ...]
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
TIMEOUT_S = 2_400
"""Longest that a program may take on a machine that has other work."""


def measure(program: str) -> list[dict[str, Any]]:
    """Return the results of one program.

    Raises:
        SystemExit: it failed; says what it said.

    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(FOLDER / f"{program}.py")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        sys.exit(f"benchmark {program} failed:\n{done.stderr[-2000:]}")
    sys.stderr.write(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


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
    parts = sys.argv[1:] or [part for part in PARTS if part not in ON_REQUEST]
    unknown = set(parts) - set(PARTS)
    if unknown:
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    results = []
    for part in parts:
        print(f"measuring {part} …", file=sys.stderr)
        for program in PARTS[part]:
            results += measure(program)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    report = {"machine": machine, "commit": commit(), "results": results}
    (FOLDER / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"{machine}, commit {report['commit']}\n")
    for row in results:
        value = f"{row['value']:,.0f}" if row["value"] >= 100 else f"{row['value']:,.2f}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f} of"
        measured = f"{row['part']:8} {row['name']:44} {value:>10} {row['unit']:14}"
        print(f"{measured} {ratio:8} {row['against']}")


if __name__ == "__main__":
    main()
