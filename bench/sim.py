"""Simulator: events and node-seconds a second, beside the routers' own work in the same run.

Run: ``python bench/sim.py``. Prints one JSON object a line with part, name, value, unit, against,
ratio and aim. `LUXRELAY_BENCH_NODES` sets the number of nodes (200).

The limit: every frame of the run is decoded by `decode_rpc`, once, in a loop. No simulator that
drives the real router can do without that.
"""

from __future__ import annotations

import json
import os
import time

from luxrelay.gossip import GossipParams
from luxrelay.gossip.rpc import decode_rpc
from luxrelay.sim import load_scenario, simulate
from luxrelay.sim.run import Run

NODES = int(os.environ.get("LUXRELAY_BENCH_NODES", "200"))
AIM_EVENTS = 0.1
"""Share of the decoding's rate that the whole simulation is to reach."""


def frames_of_a_run() -> list[bytes]:
    """Return the frames that a smaller run sends."""
    run = Run(load_scenario("propagation").resized(50))
    frames: list[bytes] = []
    send = run.network.send_raw

    def noting(link: object, data: bytes) -> None:
        frames.append(data)
        send(link, data)  # type: ignore[arg-type]

    run.network.send_raw = noting  # type: ignore[method-assign]
    run.execute()
    return frames


def main() -> None:
    """Measure one propagation run."""
    frames = frames_of_a_run()
    params = GossipParams()
    began = time.process_time()
    for frame in frames:
        decode_rpc(frame, params)
    limit = len(frames) / (time.process_time() - began)
    report = simulate(load_scenario("propagation").resized(NODES))
    assert report.passed, report.failed
    events = report.events / report.cpu_s
    node_seconds = report.nodes * report.virtual_s / report.cpu_s
    for name, value, unit, against, ratio, aim in (
        (
            f"events, {NODES} nodes, 100 messages",
            events,
            "events/s",
            f"decoding the frames only: {limit:.0f}/s",
            events / limit,
            AIM_EVENTS,
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
