"""sim run, list, replay: a network of simulated nodes, and the recording of one of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from luxrelay.cli.arguments import SubParsers, add_command, whole_number
from luxrelay.cli.output import Progress, print_json, table
from luxrelay.errors import InputError, UsageError
from luxrelay.sim.plots import write_plots
from luxrelay.sim.record import LINE_BYTES_MAX, replay
from luxrelay.sim.report import SimReport, write_report
from luxrelay.sim.run import simulate
from luxrelay.sim.scenario import NODES_MAX, NODES_MIN, load_scenario, shipped

BASELINE_BYTES_MAX = 64 * 1024 * 1024
"""Largest report that is compared with."""


def register(commands: SubParsers) -> None:
    """Add the command."""
    sim = commands.add_parser("sim", help="simulate a network of many nodes")
    actions = sim.add_subparsers(dest="action", metavar="ACTION", required=True)
    run = add_command(
        actions,
        "run",
        "run a scenario in virtual time and say what came out",
        "luxrelay sim run propagation --nodes 200 --out sim-out",
        _run,
    )
    run.add_argument(
        "scenario", metavar="SCENARIO", help="a name that `luxrelay sim list` shows, or a TOML file"
    )
    run.add_argument("--seed", type=int, metavar="N", help="another seed than the scenario's")
    run.add_argument(
        "--nodes",
        type=whole_number(NODES_MIN, NODES_MAX),
        metavar="N",
        help="another number of nodes than the scenario's",
    )
    run.add_argument("--json", action="store_true", help="print the whole report as JSON")
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="write the report and its plots into this folder"
    )
    run.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="an earlier report; print what differs from it",
    )
    run.add_argument(
        "--record",
        metavar="NODE:FILE",
        help="write the inputs of one node's router to a file, for `sim replay`",
    )
    shown = add_command(actions, "list", "list the scenarios that ship", "luxrelay sim list", _list)
    shown.add_argument("--json", action="store_true", help="print JSON")
    again = add_command(
        actions,
        "replay",
        "feed a recording to a fresh router and compare what it does",
        "luxrelay sim replay node-7.jsonl",
        _replay,
    )
    again.add_argument("file", type=Path, metavar="FILE", help="the recording")


def _list(arguments: argparse.Namespace) -> int:
    rows = [(name, load_scenario(name).sentence) for name in shipped()]
    if arguments.json:
        print_json([{"scenario": name, "sentence": sentence} for name, sentence in rows])
        return 0
    print(table(("scenario", "what it shows"), rows))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    scenario = load_scenario(arguments.scenario)
    if arguments.seed is not None:
        scenario = replace(scenario, seed=arguments.seed)
    if arguments.nodes is not None:
        scenario = scenario.resized(arguments.nodes)
    baseline = _read_baseline(arguments.baseline) if arguments.baseline else None
    progress = Progress(quiet=arguments.json)
    with ExitStack() as stack:
        report = simulate(
            scenario,
            progress=lambda done, end: progress.update(f"{done:.0f} of {end:.0f} virtual seconds"),
            recorders=_recorders(arguments.record, stack),
        )
    progress.close()
    if arguments.json:
        print_json(report.to_json())
    else:
        _print(report)
    if baseline is not None and not arguments.json:
        rows = [(name, f"{old:g}", f"{new:g}") for name, old, new in report.differences(baseline)]
        print("\n" + (table(("measure", "before", "now"), rows) if rows else "as the baseline"))
    if arguments.out is not None:
        written = [write_report(report, arguments.out), *write_plots(report, arguments.out)]
        if not arguments.json:
            print("\nwritten: " + ", ".join(str(path) for path in written))
    return 0 if report.passed else 1


def _print(report: SimReport) -> None:
    print(f"{report.name}: {report.sentence}\n")
    values = report.measures.items()
    print(table(("measure", "value"), [(name, _value(value)) for name, value in values]))
    print()
    for each in report.expected:
        verdict = "FAILED" if each in report.failed else "holds"
        bounds = []
        if each.at_least != float("-inf"):
            bounds.append(f"at least {each.at_least:g}")
        if each.at_most != float("inf"):
            bounds.append(f"at most {each.at_most:g}")
        print(f"{verdict:7} {each.measure} {' and '.join(bounds)}")
    for violation in report.violations:
        print(f"VIOLATED at {violation.at_s:.3f} s, node {violation.node}: {violation.what}")
    if report.violation_count > len(report.violations):
        print(f"and {report.violation_count - len(report.violations)} more")
    print(
        f"\n{report.nodes:,} nodes, {report.virtual_s:g} virtual seconds, {report.events:,} events "
        f"in {report.wall_s:.1f} s, {report.cpu_s:.1f} s of them processor time\n"
        f"seed {report.seed}, digest {report.digest[:16]}"
    )


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:,.6g}"


def _recorders(text: str | None, stack: ExitStack) -> dict[int, Callable[[str], None]]:
    """Return the recorder that NODE:FILE asks for, its file open."""
    if text is None:
        return {}
    number, _, name = text.partition(":")
    if not number.isdecimal() or not name:
        raise UsageError("expected NODE:FILE, such as 7:node-7.jsonl", where="--record")
    try:
        file = stack.enter_context(open(name, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror}", where=name) from error
    return {int(number): lambda line: print(line, file=file)}


def _read_baseline(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            data = file.read(BASELINE_BYTES_MAX + 1)
        if len(data) > BASELINE_BYTES_MAX:
            raise InputError("the report is too large", where=str(path))
        loaded = json.loads(data)
    except OSError as error:
        raise InputError(f"cannot read the report: {error.strerror}", where=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise InputError("not a JSON report", where=str(path)) from error
    if not isinstance(loaded, dict) or not isinstance(loaded.get("measures"), dict):
        raise InputError("not a report of a simulation", where=str(path))
    return loaded


def _replay(arguments: argparse.Namespace) -> int:
    try:
        with arguments.file.open("rb") as file:
            lines = iter(lambda: file.readline(LINE_BYTES_MAX + 1), b"")
            found = replay(lines)
    except OSError as error:
        raise InputError(
            f"cannot read the recording: {error.strerror}", where=str(arguments.file)
        ) from error
    counted = f"{found.inputs:,} inputs, {found.drains:,} answers compared"
    if found.differs_at is None:
        print(f"the same: {counted}")
        return 0
    print(f"differs at line {found.differs_at}; {counted}")
    return 1
