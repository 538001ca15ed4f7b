"""The command of the lab: run scenarios, write the report, say what did not hold."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from luxrelay.errors import ScenarioError
from netlab import report, scenario
from netlab.lab import LabNotPermittedError, remove_leftovers, require_permission
from netlab.prediction import CannotSimulateError, predict
from netlab.run import CaseResult, run_scenario

NOT_PERMITTED: Final = 3
"""Exit code where the machine permits no lab."""
OUT: Final = report.ROOT / "build" / "netlab"


def main(words: Sequence[str]) -> int:
    """Run what is asked for; 0 when everything held.

    Returns:
        1 when an expectation did not hold, 2 for wrong arguments, `NOT_PERMITTED` where the machine
        permits no lab.

    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="names, or TOML files")
    parser.add_argument("--short", action="store_true", help=f"those: {', '.join(scenario.SHORT)}")
    parser.add_argument("--able", action="store_true", help="say whether a lab can be made here")
    parser.add_argument("--list", action="store_true", help="say what scenarios there are")
    parser.add_argument(
        "--publish", action="store_true", help="write the last report into the documentation"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="folder of report and nodes")
    asked = parser.parse_args(words)
    if asked.list:
        for name in scenario.names():
            print(f"{name:20} {scenario.load_scenario(name).sentence}")
        return 0
    if asked.publish:
        report.publish(json.loads((asked.out / "report.json").read_text()))
        return 0
    try:
        require_permission()
    except LabNotPermittedError as error:
        print(error if asked.able else f"the network lab cannot run here: {error}", flush=True)
        return NOT_PERMITTED
    if asked.able:
        return 0
    names = asked.scenarios or (scenario.SHORT if asked.short else scenario.names())
    try:
        chosen = [scenario.load_scenario(name) for name in names]
    except ScenarioError as error:
        print(error)
        return 2
    return _run(chosen, asked.out)


def _run(chosen: Sequence[scenario.LabScenario], out: Path) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        # As an interrupt does: the network is removed on the way out.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    where = report.Circumstances.now()
    for name in remove_leftovers():
        _say(f"removed {name}, which a run that was killed had left")
    results: list[CaseResult] = []
    for each in chosen:
        results += [_predicted(result) for result in run_scenario(each, out / "nodes", _say)]
        written = report.to_json(results, where)
        report.write(written, out)  # what was measured stays when a later scenario is broken off
    print(f"\n{report.to_markdown(json.loads((out / 'report.json').read_text()))}", end="")
    failed = [result.name for result in results if not result.held]
    print(f"\n{len(results) - len(failed)} of {len(results)} held; {out / 'report.json'}")
    return 1 if failed else 0


def _predicted(result: CaseResult) -> CaseResult:
    """Return the result with the simulator's prediction beside it."""
    try:
        return replace(result, simulated=predict(result.scenario, result.case))
    except CannotSimulateError as error:
        return replace(result, not_simulated=str(error))


def _say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)
