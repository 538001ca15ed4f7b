"""What somebody meets in the first hour, from an installed wheel: the demonstration of the help.

A wheel is built and installed into an environment of its own, once as it is and once with the extra
``archive``; in each the example of ``luxrelay demo --help`` is run to the letter, in a new folder.
The one without the archive runs beside two processes that do nothing but compute: there the relays
are most of the work. The report has to say that all held, and nothing of a run may be left.

Usage: ``python tools/first_hour.py [FOLDER]``; exit code 1 when something does not hold.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUN_S = 1200
"""Longest time of one command, seconds; a bound for a hang, not for a slow machine."""
ACCOUNTS = ("stored", "unaccounted")
"""What must be 0 of the broken messages."""


def main(words: Sequence[str]) -> int:
    """Build, install and run; say what took how long."""
    folder = Path(words[0]).resolve() if words else ROOT / "build" / "first-hour"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT],
        folder, "build the wheel",
    )  # fmt: skip
    (wheel,) = folder.glob("luxrelay-*.whl")
    faults = demonstrate(folder / "core", wheel, "", busy=2)
    faults += demonstrate(folder / "archive", wheel, "archive", busy=0)
    for fault in faults:
        print(f"FAULT {fault}", flush=True)
    return 1 if faults else 0


def demonstrate(folder: Path, wheel: Path, extra: str, *, busy: int) -> list[str]:
    """Install the wheel into a fresh environment and run the help's example; return faults."""
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    run(
        [python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wanted],
        folder, f"install {wheel.name}{f' with {extra}' if extra else ''}",
    )  # fmt: skip
    if extra:
        run([python, "-m", "luxrelay.archive.jars"], folder, "fetch the jars, as the README says")
    work = folder / "work"
    work.mkdir()
    command, *rest = example(python)
    with loops(busy):
        told = run(
            [python.with_name(command), *rest], work, f"{command} {shlex.join(rest)}, {busy} busy"
        )
    out = work / rest[rest.index("--out") + 1]
    report = json.loads((out / "report.json").read_text())
    faults = [f"{folder.name}: {fault}" for fault in report["faults"]]
    faults += [
        f"{folder.name}: {report['corrupt'][name]} broken messages {name}"
        for name in ACCOUNTS
        if report["corrupt"][name]
    ]
    if (report["archive"] is not None) != bool(extra):
        faults.append(f"{folder.name}: the archive is {report['archive']}")
    if not extra and "pip install 'luxrelay[archive]'" not in told:
        faults.append(f"{folder.name}: nothing says how to get the archive")
    if not report["seconds"]["catch_up"]:
        faults.append(f"{folder.name}: catching up took no time at all")
    return faults + [f"{folder.name}: process {pid} is left" for pid in left_behind(out)]


def example(python: Path) -> list[str]:
    """Return the example of the command's help, as words."""
    text = subprocess.run(
        [python.with_name("luxrelay"), "demo", "--help"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"example: (luxrelay demo .*)", text)
    if found is None:
        raise SystemExit("luxrelay demo --help shows no example")
    return shlex.split(found[1])


def run(command: Sequence[str | Path], folder: Path, what: str) -> str:
    """Run a command and return what it said; end here when it fails or ends in a traceback."""
    began = time.monotonic()
    environ = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)
    if done.returncode or "Traceback" in done.stdout:
        print(done.stdout, flush=True)
        raise SystemExit(f"exit code {done.returncode}: {what}")
    return done.stdout


BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
"""Keeps a processor busy for as long as whoever started it is there, however that ends."""


@contextmanager
def loops(count: int) -> Iterator[None]:
    """Keep so many processors busy."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def left_behind(out: Path) -> Iterator[int]:
    """Yield processes whose command names the demonstration's folder, where there is /proc."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(out) in command:
            yield int(entry.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
