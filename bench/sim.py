"""Simulator: events and node-seconds a second, beside the routers' own work in the same run.

Run: ``python bench/sim.py``. Prints one JSON object a line with part, name, value, unit, against,
ratio and aim. `LUXRELAY_BENCH_NODES` sets the number of nodes (200).

The limit: the time that the run spends inside of the routers, which are the product's. A simulator
that costs nothing would take that time alone, so the ratio is the routers' share, of one timed run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Final

from luxrelay.gossip import GossipRouter
from luxrelay.sim import load_scenario, simulate

NODES = int(os.environ.get("LUXRELAY_BENCH_NODES", "200"))
AIM_SHARE = 0.5
"""Share of the processor time that the routers are to have."""
INPUTS: Final = ("received", "validated", "wake", "drain", "publish", "peer_connected")
"""Where a run's time in routers goes."""


class Watch:
    """Adds up the processor time spent in some methods of a class, which do not call each other."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def over(self, kind: type, name: str) -> None:
        """Replace a method by one that is timed."""
        inner: Callable[..., object] = getattr(kind, name)
        clock = time.process_time

        def timed(*arguments: object, **named: object) -> object:
            began = clock()
            try:
                return inner(*arguments, **named)
            finally:
                self.spent_s += clock() - began

        setattr(kind, name, timed)


def main() -> None:
    """Measure one propagation run as it is, then one in which the routers are timed."""
    scenario = load_scenario("propagation").resized(NODES)
    report = simulate(scenario)
    assert report.passed, report.failed
    events = report.events / report.cpu_s
    node_seconds = report.nodes * report.virtual_s / report.cpu_s
    watch = Watch()
    for name in INPUTS:
        watch.over(GossipRouter, name)
    again = simulate(scenario)
    assert again.digest == report.digest
    share = watch.spent_s / again.cpu_s
    for name, value, unit, against, ratio, aim in (
        (
            f"events, {NODES} nodes, 100 messages",
            events,
            "events/s",
            f"the routers alone: {events / share:.0f}/s",
            share,
            AIM_SHARE,
        ),
        (f"node-seconds, {NODES} nodes", node_seconds, "node-s/s", "", None, None),
    ):
        print(
            json.dumps(
                {
                    "part": "sim",
                    "name": name,
                    "value": value,
                    "unit": unit,
                    "against": against,
                    "ratio": ratio,
                    "aim": aim,
                }
            )
        )


if __name__ == "__main__":
    main()
