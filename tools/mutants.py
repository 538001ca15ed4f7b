"""Take a defence out, and see that the named test misses it.

A patch under ``tests/mutants`` removes one defence; its first lines say which, and what notices::

    Defence: a ban counts steady seconds, not the wall clock's
    Row: a clock that jumps
    Test: tests/unit/net/test_bans.py::test_a_ban_lasts_as_long_whatever_the_clock_says

    --- a/src/luxrelay/net/bans.py
    ...

`Row` is the first cell of a row of the threat model, or ``-``; `Test` may stand several times, and
each must fail. The tree is copied, so that nothing is left behind however the run ends; each named
test must pass there before any patch counts.

With ``--go-on`` those that were found at this very commit, without a change in the tree, are not
tried again: all of them take more than an hour.

Usage: ``python tools/mutants.py [--jobs N] [--go-on] [NAME ...]``; exit code 1 when a mutant lives.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nightly import UNKNOWN, commit

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "mutants"
FOUND = ROOT / "build" / "mutants.json"
"""Which were found at which commit."""
LIMIT_S = 300
"""Longest run of one test, seconds; a mutant that makes it hang has been noticed."""
EACH_S = 30
"""Seconds more for each further test of a run."""
COPIED = ("src", "tests", "tools", "docs", "deploy", "vectors", "examples", "bench", "changelog.d")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "constraints.txt", "Makefile", "LICENSE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One defence that is taken out."""

    path: Path
    defence: str
    row: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its file without ending."""
        return self.path.stem


def read(path: Path) -> Mutant:
    """Return what a patch says of itself.

    Raises:
        ValueError: a line is missing.

    """
    said: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line.startswith(("--- ", "diff ")):
            break
        key, colon, value = line.partition(": ")
        if colon:
            said.setdefault(key, []).append(value.strip())
    missing = {"Defence", "Row", "Test"} - set(said)
    if missing:
        raise ValueError(f"{path.name} does not say {', '.join(sorted(missing))}")
    return Mutant(
        path=path, defence=said["Defence"][0], row=said["Row"][0], tests=tuple(said["Test"])
    )


def mutants() -> list[Mutant]:
    """Return all of them, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*.patch"))]


def copy_tree(target: Path) -> None:
    """Copy what tests need; the environment stays where it is."""
    for name in COPIED:
        ignored = shutil.ignore_patterns("__pycache__", "node_modules")
        shutil.copytree(ROOT / name, target / name, ignore=ignored)
    for name in FILES:
        shutil.copy2(ROOT / name, target / name)


def run(tree: Path, tests: tuple[str, ...], jobs: int = 0) -> tuple[int, str]:
    """Return pytest's exit code and output for ``tests`` in ``tree``; 1 when it took too long.

    What is compiled is kept beside the tree: each node that a test starts imports 400 modules.
    """
    limit_s = LIMIT_S + EACH_S * (len(tests) - 1)
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    if tree != ROOT:
        environment["PYTHONPYCACHEPREFIX"] = str(tree.parent / "pycache")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "--durations=0"]
    if jobs:
        options += ["-n", str(jobs), "--dist", "loadgroup"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        ended = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True,
            timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, f"above {limit_s} s"
    return ended.returncode, ended.stdout + ended.stderr


def trial(mutant: Mutant, place: Path) -> str:
    """Return what is wrong; nothing when every named test fails without the defence.

    Args:
        mutant: Which.
        place: A folder of which nobody else makes use meanwhile. A later mutant there finds what
            was compiled of the files that are no others': a patched file has another time.

    """
    tree = place / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    copy_tree(tree)
    applied = subprocess.run(
        ["git", "apply", "--unidiff-zero", "--recount", str(mutant.path)],  # noqa: S607
        cwd=tree, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if applied.returncode:
        return f"does not apply: {applied.stderr.strip()[:300]}"
    for test in mutant.tests:
        code, output = run(tree, (test,))
        if code != 1:
            said = "lives: its test passes" if code == 0 else f"pytest ended with {code}"
            return f"{said}: {test}\n{output[-600:] if code else ''}".strip()
    return ""


def trials(found: list[Mutant], jobs: int) -> Iterator[tuple[Mutant, str]]:
    """Yield each mutant with what is wrong, in order; ``jobs`` are tried at a time."""
    places: queue.SimpleQueue[Path] = queue.SimpleQueue()

    def tried(mutant: Mutant) -> str:
        place = places.get()
        try:
            return trial(mutant, place)
        finally:
            places.put(place)

    with (
        tempfile.TemporaryDirectory(prefix="luxrelay-mutants-") as folder,
        ThreadPoolExecutor(jobs) as pool,
    ):
        for number in range(jobs):
            places.put(Path(folder, str(number)))
        yield from zip(found, pool.map(tried, found), strict=True)


def found_before(now: str, kept: Path = FOUND) -> set[str]:
    """Return the names of those that were found at a commit; none in a tree with changes."""
    try:
        said = json.loads(kept.read_text())
    except (OSError, ValueError):
        return set()
    whole = now != UNKNOWN and not now.endswith("-dirty")
    return set(said["found"]) if whole and said.get("commit") == now else set()


def keep(now: str, found: set[str], kept: Path = FOUND) -> None:
    """Write down which were found, for `found_before`."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"commit": now, "found": sorted(found)}, indent=1))


def main() -> int:
    """Run the named mutants, or all."""
    parser = argparse.ArgumentParser(description="take defences out; the named tests must fail")
    parser.add_argument("names", nargs="*", metavar="NAME", help="file names without ending")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument(
        "--go-on", action="store_true", help="leave out what was found at this commit before"
    )
    arguments = parser.parse_args()
    now = commit()
    before = found_before(now) if arguments.go_on else set()
    found = [each for each in mutants() if not arguments.names or each.name in arguments.names]
    if not found:
        print("no such mutant")
        return 1
    if skipped := sum(each.name in before for each in found):
        print(f"{skipped} were found at this commit before", flush=True)
    found = [each for each in found if each.name not in before]
    if not found:
        return 0
    tests = tuple(sorted({test for each in found for test in each.tests}))
    code, output = run(ROOT, tests, arguments.jobs)
    if code:
        print(f"the named tests must pass first:\n{output[-3000:]}")
        return 1
    wrong = 0
    for mutant, fault in trials(found, arguments.jobs):
        wrong += bool(fault)
        if not fault and commit() == now:
            before.add(mutant.name)
            keep(now, before)
        print(
            f"{'ALIVE ' if fault else 'found '} {mutant.name}: {fault or mutant.defence}",
            flush=True,
        )
    print(f"{len(found) - wrong} passed, {wrong} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
