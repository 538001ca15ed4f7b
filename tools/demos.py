"""The demonstration as its help shows it, ten times: five alone, five beside two busy loops.

Usage: ``python tools/demos.py [--times 5] [--busy 5] [--folder FOLDER] [WORD ...]``; further words,
after ``--``, are added to the demonstration's own. Each run has to end with 0 and an account of
every broken message, and may leave no process. Exit code 1 when one does not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from first_hour import ACCOUNTS, RUN_S, example, left_behind, loops

ROOT = Path(__file__).resolve().parents[1]
LOOPS = 2
"""Busy loops beside a run of the second kind."""


def faults_of(folder: Path, words: Sequence[str], busy: int) -> list[str]:
    """Run the demonstration in a new folder; return what did not hold."""
    command = example(Path(sys.executable))
    command[0] = str(Path(sys.executable).with_name(command[0]))
    command += words
    out = folder / command[command.index("--out") + 1]
    with (folder / "log").open("w") as log, loops(busy):
        try:
            ended = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                timeout=RUN_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return [f"not over within {RUN_S} s"]
    faults = [] if ended.returncode == 0 else [f"exit code {ended.returncode}"]
    try:
        report = json.loads((out / "report.json").read_text())
    except (OSError, ValueError):
        return [*faults, "no report"]
    faults += report["faults"]
    corrupt = report["corrupt"]
    faults += [f"{corrupt[name]} broken messages {name}" for name in ACCOUNTS if corrupt[name]]
    return faults + [f"process {pid} is left" for pid in left_behind(out)]


def main(words: Sequence[str]) -> int:
    """Run all of them; one line each, then how many held."""
    parser = argparse.ArgumentParser(description="the demonstration, again and again")
    parser.add_argument("--times", type=int, default=5, help="runs alone (default %(default)s)")
    parser.add_argument(
        "--busy", type=int, default=5, help="runs beside busy loops (default %(default)s)"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "demos")
    parser.add_argument("words", nargs="*", metavar="WORD", help="added to the demonstration's")
    arguments = parser.parse_args(words)
    shutil.rmtree(arguments.folder, ignore_errors=True)
    failed = 0
    kinds = [0] * arguments.times + [LOOPS] * arguments.busy
    for number, busy in enumerate(kinds, 1):
        folder = arguments.folder / str(number)
        folder.mkdir(parents=True)
        began = time.monotonic()
        faults = faults_of(folder.resolve(), arguments.words, busy)
        failed += bool(faults)
        words_of = "; ".join(faults) or "held"
        seconds = time.monotonic() - began
        print(f"{number:3} {seconds:6.1f} s  {busy} busy loops  {words_of}", flush=True)
    print(f"{len(kinds) - failed} of {len(kinds)} runs held")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
