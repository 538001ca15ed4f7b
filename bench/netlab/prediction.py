"""What the simulator predicts for a scenario of the lab, where it can.

The simulator knows delay, jitter, loss, reordering, corruption, and a network in two parts. It
knows no rates of single nodes, no payloads of their own transfer, no clocks, no processes that
stand still, no addresses. A frame that it loses is lost for good, where TCP sends it again: its
delivered share is a lower bound, and its latency knows no retransmission.
"""

from __future__ import annotations

from luxrelay.errors import ScenarioError, SimulationError
from luxrelay.sim import Scenario, simulate
from luxrelay.sim.faults import Partition
from luxrelay.sim.links import LinkPlan
from luxrelay.sim.recovery import RecoveryPlan
from luxrelay.sim.scenario import MeasurePlan, NetworkPlan
from luxrelay.sim.traffic import TrafficPlan
from netlab.measures import Measured
from netlab.scenario import CasePlan, LabScenario, StepPlan

PREDICTED = ("delivered_share", "stored_share", "p50_ms", "p99_ms")
"""What is taken of its report."""
_START_S = 8.0
"""Virtual seconds before the timeline, in which the mesh forms."""


class CannotSimulateError(Exception):
    """The simulator does not know something of a scenario; says what."""


def predict(scenario: LabScenario, case: CasePlan) -> Measured:
    """Return the simulator's measures for a scenario.

    Raises:
        CannotSimulateError: says what it does not know.

    """
    try:
        plan = translated(scenario, case)
        report = simulate(plan)
    except (ScenarioError, SimulationError) as error:
        raise CannotSimulateError(str(error)) from error
    found: Measured = {name: report.measures.get(name) for name in PREDICTED}
    seconds = plan.measure.duration_s
    sent = report.measures.get("bytes_per_node_s")
    found["wire_bytes"] = None if sent is None else sent * seconds * report.nodes
    return found


def translated(scenario: LabScenario, case: CasePlan) -> Scenario:
    """Return the simulator's scenario for one of the lab.

    Raises:
        CannotSimulateError: says what the simulator does not know.

    """
    network = scenario.network
    links = {**network.links, **case.links}
    if network.rates or case.rates:
        raise CannotSimulateError("rates of single nodes")
    if network.absent or scenario.relays or network.bootstrap:
        raise CannotSimulateError("relays that differ from one another")
    if len(scenario.loads) != 1:
        raise CannotSimulateError("several loads")
    (load,) = scenario.loads
    if load.lanes > 1 or load.batch > 1:
        raise CannotSimulateError("many senders of one application")
    unknown = {name for name, value in links.items() if value} - _KNOWN
    if unknown:
        raise CannotSimulateError(f"{', '.join(sorted(unknown))} of links")
    fault = _partition(scenario.steps, network.relays)
    seconds = scenario.seconds
    delay = links.get("delay_ms", 0.0) or 0.01
    return Scenario(
        name=scenario.name,
        seed=scenario.seed,
        network=NetworkPlan(
            nodes=network.relays,
            dials=max(1, len(network.chords)),
            book=max(1, network.relays - 1),
        ),
        links=LinkPlan(
            latency_ms=delay,
            latency_sigma=0.0,
            jitter_sigma=min(2.0, links.get("jitter_ms", 0.0) / delay / 3**0.5),
            bandwidth_bytes_s=0,
            loss=links.get("loss", 0.0),
            reorder=links.get("reorder", 0.0),
            reorder_ms=delay,
            corrupt=links.get("corrupt", 0.0),
        ),
        traffic=TrafficPlan(
            start_s=_START_S,
            messages=max(1, round(load.rate * ((load.until_s or seconds) - load.from_s))),
            rate=load.rate,
            publishers=len(load.publishers) or network.relays,
            blob_bytes=load.size_bytes,
        ),
        sync=RecoveryPlan(interval_s=5.0, peers=max(1, len(network.sync))),
        measure=MeasurePlan(duration_s=_START_S + seconds + scenario.measure.settle_s),
        faults=() if fault is None else (fault,),
    )


_KNOWN = frozenset({"delay_ms", "jitter_ms", "loss", "reorder", "corrupt"})


def _partition(steps: tuple[StepPlan, ...], relays: int) -> Partition | None:
    """Return the partition that two steps make, if they do."""
    if not steps:
        return None
    cuts = [step for step in steps if step.do == "links" and step.set == {"drop": True}]
    heals = [step for step in steps if step.do == "links" and step.set == {"drop": False}]
    plain = len(steps) == 2 and len(cuts) == len(heals) == 1
    if not plain or any(step.one_way or step.every_s for step in steps):
        raise CannotSimulateError("steps other than one cut of the network in two parts")
    sides = len(cuts[0].relays), len(cuts[0].to) or relays - len(cuts[0].relays)
    if sum(sides) != relays:
        raise CannotSimulateError("a cut of some links alone")
    return Partition(
        at_s=_START_S + cuts[0].at_s,
        for_s=heals[0].at_s - cuts[0].at_s,
        share=min(sides) / relays,
    )
