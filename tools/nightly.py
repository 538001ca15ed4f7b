"""The longer runs one after another, and a summary of what held.

Each part is a make target of its own; one that fails stops none of the others. What a part says
goes to a file under ``build/nightly``, the summary to standard output and ``summary.txt`` there.

With ``--go-on`` a part that held at this very commit, without a change in the tree, is not run
again: its result stands in ``held.json``, so that a night may be done in pieces.

Usage: ``python tools/nightly.py [--make MAKE] [--go-on] [PART ...]``; exit code 1 when a part
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "nightly"
PARTS: dict[str, tuple[str, ...]] = {
    "strangers": ("strangers",),
    "demos": ("demos",),
    "adversary": ("adversary",),
    "trials": ("trials",),
    "mutants": ("mutants",),
    "interop": ("interop", "MESSAGES=1000"),
    "fuzz": ("fuzz", "FUZZ_S=600"),
    "netlab": ("netlab",),
    "long": ("long",),
    "floors": ("floors",),
}
"""Each part and what make is told, in the order of a night; ratios first, which need quiet."""
SHORTER = {
    "strangers": ("STRANGERS_S",),
    "adversary": ("SEQUENCES", "SEED"),
    "netlab": ("SCENARIO",),
    "floors": ("BENCH",),
}
"""Values of the environment by which a part is another, beside those that make is told."""
PART_S = 4 * 3600
"""Longest time of a part, seconds; one that hangs does not cost the rest."""
END_S = 30
"""Seconds that a part which has had its time gets to end by itself."""
HELD = "held.json"
"""Which parts held at which commit, in the folder of the log files."""
UNKNOWN = "of no known commit"
LINES_SHOWN = 15
"""Last lines of a part that failed, as the summary repeats them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a part ended."""

    name: str
    code: int | None
    """Exit code; None when it had its time and was ended."""
    seconds: float
    log: Path
    began: str
    """Date and time, UTC."""

    @property
    def held(self) -> bool:
        """Whether everything in it held."""
        return self.code == 0

    def line(self) -> str:
        """Return its line of the summary."""
        state = "held" if self.held else "FAILED"
        why = "" if self.held else f" ({'too long' if self.code is None else self.code})"
        return f"{state:6} {self.name:10} {self.seconds:8.0f} s  {self.began}  {self.log}{why}"


def given(words: Sequence[str]) -> list[str]:
    """Return what make is told; a value of the environment comes before the night's own."""
    named = (word.partition("=") for word in words)
    return [
        f"{name}{is_}{os.environ.get(name, value) if is_ else ''}" for name, is_, value in named
    ]


def values(name: str) -> list[str]:
    """Return what a part is run with: its result says nothing of one with other values."""
    shorter = [f"{each}={os.environ[each]}" for each in SHORTER.get(name, ()) if each in os.environ]
    return given(PARTS[name]) + shorter


def run_part(name: str, command: Sequence[str], folder: Path, limit_s: float = PART_S) -> Result:
    """Run one part with its output in a file; return how it ended, whatever happened."""
    log = folder / f"{name}.log"
    began, stamp = time.monotonic(), f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    code: int | None
    with log.open("w") as out:
        out.write(f"$ {shlex.join(command)}\n")
        out.flush()
        try:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            out.write(f"it cannot be run: {error.strerror}\n")
            return Result(name=name, code=127, seconds=0.0, log=log, began=stamp)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
    spent = time.monotonic() - began
    return Result(name=name, code=code, seconds=spent, log=log, began=stamp)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a part and all that it started, first by asking."""
    for number, wait_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue


def summary(results: Sequence[Result]) -> str:
    """Return what held and what did not, with the last lines of what did not."""
    lines = [f"nightly of {datetime.now(UTC):%Y-%m-%d}, {commit()}", ""]
    lines += [each.line() for each in results]
    total = sum(each.seconds for each in results)
    held = sum(each.held for each in results)
    lines += ["", f"{held} of {len(results)} parts held, {total:.0f} s"]
    for each in results:
        if not each.held:
            last = each.log.read_text(errors="replace").splitlines()[-LINES_SHOWN:]
            lines += ["", f"{each.name}:", *(f"  {line[:200]}" for line in last)]
    return "\n".join(lines) + "\n"


def commit() -> str:
    """Return the commit that is run, or that it is not known."""
    try:
        asked = ["git", "describe", "--always", "--dirty"]
        told = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return f"commit {told.stdout.strip()}"


def held_before(folder: Path) -> dict[str, Result]:
    """Return the parts that held at this commit; none when the tree has changes."""
    try:
        kept = json.loads((folder / HELD).read_text())
    except (OSError, ValueError):
        return {}
    now = commit()
    if kept.get("commit") != now or now.endswith("-dirty") or now == UNKNOWN:
        return {}
    return {
        name: Result(name=name, code=0, seconds=seconds, log=folder / f"{name}.log", began=began)
        for name, (words, seconds, began) in kept["parts"].items()
        if words == values(name)
    }


def keep(folder: Path, held: dict[str, Result]) -> None:
    """Write down which parts held, for `held_before`."""
    parts = {name: (values(name), each.seconds, each.began) for name, each in held.items()}
    (folder / HELD).write_text(json.dumps({"commit": commit(), "parts": parts}, indent=1))


def main(words: Sequence[str]) -> int:
    """Run the parts that are named, or all; say what held."""
    parser = argparse.ArgumentParser(description="the longer runs, and what held")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--make", default="make", help="the program (default %(default)s)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where log files go")
    parser.add_argument(
        "--go-on", action="store_true", help="leave out what held at this commit before"
    )
    arguments = parser.parse_args(words)
    unknown = sorted(set(arguments.parts) - set(PARTS))
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
        return 2
    arguments.folder.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    held = held_before(arguments.folder) if arguments.go_on else {}
    for name in arguments.parts or PARTS:
        if name in held:
            results.append(held[name])
            continue
        print(f"{datetime.now(UTC):%H:%M:%S} {name} …", flush=True)
        command = [arguments.make, "--no-print-directory", *given(PARTS[name])]
        before = commit()
        results.append(run_part(name, command, arguments.folder))
        print(results[-1].line(), flush=True)
        if results[-1].held and commit() == before:  # else it is of two commits
            held[name] = results[-1]
            keep(arguments.folder, held)
    told = summary(results)
    (arguments.folder / "summary.txt").write_text(told)
    print(f"\n{told}", end="", flush=True)
    return 0 if all(each.held for each in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
