"""A run: from a scenario over simulated time to a report."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from luxrelay.errors import ScenarioError
from luxrelay.sim.checks import MeshState, check_node, look_at_mesh
from luxrelay.sim.measures import Measures, Milestone, Sample, SimPublished, measure
from luxrelay.sim.network import Network
from luxrelay.sim.node import Role, SimNode
from luxrelay.sim.report import SimReport, make_report
from luxrelay.sim.scenario import Scenario
from luxrelay.sim.traffic import TOPIC, Author

Progress = Callable[[float, float], None]
"""Told how far a run is: virtual seconds done, virtual seconds in all."""
_STEP_S = 1.0


def simulate(
    scenario: Scenario,
    *,
    progress: Progress | None = None,
    recorders: Mapping[int, Callable[[str], None]] | None = None,
) -> SimReport:
    """Return the report of a run; the same scenario gives the same one, bit for bit.

    Args:
        scenario: What to run.
        progress: Called about once a virtual second.
        recorders: By index of a node, what takes the lines of a recording of its router
            (`luxrelay.sim.record`).

    Raises:
        ScenarioError: a node that is to be recorded is none of the network.
        SimulationError: the run needs more than it may take.

    """
    began, began_cpu = time.perf_counter(), time.process_time()
    before: Measures = {}
    if scenario.measure.calm:
        # Measured and let go before the next one needs the memory.
        before = measure(_executed(SimRun(replace(scenario, faults=(), expect=())), progress))
    run = SimRun(scenario)
    for index, write in (recorders or {}).items():
        if not 0 <= index < len(run.network.nodes):
            raise ScenarioError(f"there is no node {index}", where="recorders")
        run.network.recorders[index] = write
    _executed(run, progress)
    measures = measure(run)
    if before:
        measures |= {f"calm_{name}": before[name] for name in ("p50_ms", "p99_ms")}
        calm_p99, p99 = before["p99_ms"], measures["p99_ms"]
        measures["p99_ratio"] = p99 / calm_p99 if calm_p99 and p99 is not None else None
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    return make_report(run, measures, wall_s=wall_s, cpu_s=cpu_s)


def _executed(run: SimRun, progress: Progress | None) -> SimRun:
    run.execute(progress)
    return run


@dataclass(slots=True)
class _Choice:
    """Who is who."""

    publishers: list[SimNode]
    victims: list[SimNode]


class SimRun:
    """One scenario under way.

    Args:
        scenario: What to run.

    Raises:
        ScenarioError: there are fewer honest nodes than publishers and victims.

    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.network = Network(scenario, scenario.params())
        self.published: list[SimPublished] = []
        self.marks: list[Milestone] = []
        self.samples: list[Sample] = []
        self.parted = False
        """True while the network is partitioned."""
        self._rng = random.Random(f"{scenario.seed}/run")
        chosen = self._populate()
        self.publishers, self.victims = chosen.publishers, chosen.victims
        self._authors = {node.index: Author(node.index) for node in self.publishers}

    def execute(self, progress: Progress | None = None) -> None:
        """Run it to its end."""
        network, plan = self.network, self.scenario
        end_s = plan.measure.duration_s
        for node in network.nodes:
            network.call_at(self._rng.random() * plan.network.start_spread_s, network.start, node)
        self.mark("start")
        for fault in plan.faults:
            fault.schedule(self)
        for number in range(plan.traffic.messages):
            network.call_at(plan.traffic.start_s + number / plan.traffic.rate, self._publish)
        network.call_at(plan.measure.sample_s, self._sample)
        network.call_at(plan.measure.check_s, self._check)
        done_s = 0.0
        while done_s < end_s:
            done_s = min(end_s, done_s + _STEP_S)
            network.run(done_s)
            if progress is not None:
                progress(done_s, end_s)
        for node in network.nodes:
            check_node(network, node)
            if node.router is not None:
                node.life.stats = node.router.stats()

    # What faults use.

    def draw(self, share: float) -> list[SimNode]:
        """Return a share of all nodes, drawn from the honest ones that run, publishers spared."""
        return self.draw_some(round(share * len(self.network.nodes)))

    def draw_some(self, count: int) -> list[SimNode]:
        """Return up to ``count`` nodes, drawn in the same way."""
        spared = {node.index for node in (*self.publishers, *self.victims)}
        able = [
            node
            for node in self.network.nodes
            if node.alive and not node.hostile and node.index not in spared
        ]
        return self._rng.sample(able, min(count, len(able)))

    def mark(self, name: str) -> None:
        """Measure from now on how long the mesh takes to be whole."""
        self.marks.append(Milestone(name, self.network.clock.now))

    # What happens by the clock.

    def _publish(self) -> None:
        network, number = self.network, len(self.published)
        node = self.publishers[number % len(self.publishers)]
        if node.router is None:
            return
        now = network.clock.now
        blob = self._rng.randbytes(self.scenario.traffic.blob_bytes)
        data = self._authors[node.index].write(blob, node.peer, now)
        message_id = network.judge.message_id(data)
        network.numbers[message_id] = number
        sent_to = node.router.publish(TOPIC, data, now)
        self.published.append(
            SimPublished(number, node.index, now, parted=self.parted, sent_to=sent_to)
        )
        network.keep(node, data)
        network.touch(node)

    def _sample(self) -> None:
        network, now = self.network, self.network.clock.now
        state = look_at_mesh(network)
        for mark in self.marks:
            if mark.whole_at is None and state.whole:
                mark.whole_at = now
        victims = [self._look_at_victim(node) for node in self.victims if node.alive]
        self.samples.append(
            Sample(
                at_s=now,
                mesh=state,
                bytes_sent=network.bytes_sent,
                victim_honest_mesh=min((honest for honest, _ in victims), default=None),
                victim_hostile_links=max((hostile for _, hostile in victims), default=None),
            )
        )
        network.call_at(now + self.scenario.measure.sample_s, self._sample)

    def _look_at_victim(self, node: SimNode) -> tuple[int, int]:
        """Return its honest mesh peers and its connections to hostile nodes."""
        assert node.router is not None
        honest = {p for p, (link, _) in node.links.items() if not link.target.hostile}
        mesh = node.router.mesh_peers(TOPIC)
        return sum(peer in honest for peer in mesh), len(node.links) - len(honest)

    def _check(self) -> None:
        network = self.network
        for node in network.nodes:
            check_node(network, node)
        network.call_at(network.clock.now + self.scenario.measure.check_s, self._check)

    def mesh(self) -> MeshState:
        """Return the state of the mesh at the last look."""
        return self.samples[-1].mesh

    # Who is who.

    def _populate(self) -> _Choice:
        plan, network, rng = self.scenario, self.network, self._rng
        count = plan.network.nodes
        settled = [self._new_node(index, Role.HONEST) for index in range(count)]
        self._give_books(settled)
        # Nothing of an attack is drawn before, so a run without it has the same publishers.
        order = rng.sample(settled, count)
        publishers, left = self._take(order, plan.traffic.publishers)
        victims, left = self._take(left, sum(fault.victims for fault in plan.faults))
        extra = sum(fault.extra_hostile for fault in plan.faults)
        added = [self._new_node(count + place, Role.HOSTILE) for place in range(extra)]
        network.nodes += [*settled, *added]
        for fault in plan.faults:
            hostile, left = self._take(left, round(fault.hostile_share * count))
            own = added[: fault.extra_hostile]
            added = added[fault.extra_hostile :]
            for node in hostile:
                node.role = Role.HOSTILE
            fault.enlist(network, [*hostile, *own], victims)
        for node in victims:
            node.role = Role.VICTIM
            attackers = [other for other in network.nodes[count:] if node in other.book]
            node.book += rng.sample(attackers, min(len(attackers), len(node.book)))
            node.kept = rng.sample(node.book, min(len(node.kept), len(node.book)))
        for node in network.nodes[count:]:
            node.kept = list(node.book)
        return _Choice(publishers, victims)

    def _new_node(self, index: int, role: Role) -> SimNode:
        address = ".".join(str(self._rng.randint(11, 198)) for _ in range(4))
        dials = self.scenario.network.dials
        return SimNode(index, self.scenario.seed, address=address, role=role, dials=dials)

    def _give_books(self, nodes: list[SimNode]) -> None:
        plan, rng = self.scenario.network, self._rng
        for node in nodes:
            known = nodes[: plan.seeds] if plan.seeds else nodes
            book = rng.sample(known, min(len(known), plan.book + 1))
            node.book = [other for other in book if other is not node][: plan.book]
            node.kept = node.book[: node.dials]

    def _take(self, nodes: list[SimNode], count: int) -> tuple[list[SimNode], list[SimNode]]:
        if count > len(nodes):
            raise ScenarioError(
                f"{count} nodes are to be drawn from {len(nodes)}",
                where="network.nodes",
                hint="have more nodes, or fewer publishers and attackers",
            )
        return nodes[:count], nodes[count:]
