"""Measure two trees of this project one after the other, and how their results compare.

Each program of a part is run by turns in both trees, ``--times`` times each, with this interpreter.
Of each result the best run counts, because a neighbour can only slow one down. A line of Markdown
tells both and this tree over the other, higher is better; exit code 1 when one is below
``--floor``.

With ``--cpu`` the programs measure the CPU time of their own process in place of the clock: other
work on the machine hardly changes it, but waits for a disk and other processes are not seen.

Usage: ``python bench/compare.py OTHER_TREE [PART ...] [--times 3] [--floor 0.95] [--cpu]``; parts
as in `measure`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from measure import PARTS, TIMEOUT_S

HERE = Path(__file__).resolve().parents[1]
BY_CPU = (
    "import runpy, sys, time; time.perf_counter = time.monotonic = time.process_time; "
    "sys.path.insert(0, sys.argv[1].rpartition('/')[0]); "
    "runpy.run_path(sys.argv[1], run_name='__main__')"
)
"""Runs a program to which the CPU time of its process is the clock."""
Results = dict[str, tuple[float, str]]
"""Value and unit by name."""


def run(tree: Path, program: str, *, cpu: bool = False) -> Results:
    """Return the results of one program in one tree; none of a program that is not there."""
    path = tree / "bench" / f"{program}.py"
    if not path.exists():
        return {}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *(("-c", BY_CPU) if cpu else ()), str(path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        sys.stderr.write(f"{program} in {tree} ended with {done.returncode}\n{done.stderr[-800:]}")
    return {row["name"]: (row["value"], row["unit"]) for row in rows}


def is_rate(unit: str) -> bool:
    """Whether more is better."""
    return unit.endswith("/s") or unit == "share"


def better(one: tuple[float, str], other: tuple[float, str]) -> tuple[float, str]:
    """Return the better of two results of one name."""
    return max(one, other) if is_rate(one[1]) else min(one, other)


def best(runs: Sequence[Results]) -> Results:
    """Return the best of each result."""
    found: Results = {}
    for each in runs:
        for name, result in each.items():
            found[name] = better(found.get(name, result), result)
    return found


def main() -> int:
    """Measure and print; return 1 when a result is below the floor."""
    parser = argparse.ArgumentParser(description="results of two trees beside each other")
    parser.add_argument("other", type=Path, help="the other tree, with a bench folder of its own")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--times", type=int, default=3, help="runs of each program in each tree")
    parser.add_argument("--floor", type=float, default=0.95)
    parser.add_argument("--cpu", action="store_true", help="CPU time in place of the clock")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    below = []
    print("| result | unit | other | here | here / other |\n|---|---|---|---|---|", flush=True)
    for part in options.parts or PARTS:
        for program in PARTS[part]:
            turns = [
                (run(options.other, program, cpu=options.cpu), run(HERE, program, cpu=options.cpu))
                for _ in range(options.times)
            ]
            theirs, ours = best([each for each, _ in turns]), best([each for _, each in turns])
            for name, (value, unit) in theirs.items():
                if name not in ours:
                    continue
                mine = ours[name][0]
                above, below_it = (mine, value) if is_rate(unit) else (value, mine)
                ratio = above / below_it if below_it else 1.0
                print(
                    f"| {part}: {name} | {unit} | {value:,.4g} | {mine:,.4g} | {ratio:.2f} |",
                    flush=True,
                )
                if ratio < options.floor:
                    below.append(f"{part}: {name} {ratio:.2f}")
    for each in below:
        print("below the floor:", each, file=sys.stderr)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
