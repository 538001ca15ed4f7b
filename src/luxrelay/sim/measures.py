"""Measures of a run.

A pair of a message and a node counts as owed when the node was up `join_s` before the message was
published and still up `settle_s` after, and the network was not partitioned then. Latencies are
over all owed pairs; one that never arrived is later than all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from luxrelay.gossip import GossipStats
from luxrelay.sim.checks import MeshState

if TYPE_CHECKING:
    from luxrelay.sim.node import Life
    from luxrelay.sim.run import SimRun

Measures = dict[str, float | None]
"""Name to value; None when there is nothing to measure, or it has not happened."""

LATE_MS: Final = 500.0
"""What LP-6400 and LP-6491 ask for, milliseconds."""

MEANINGS: Final[dict[str, str]] = {
    "nodes": "nodes, hostile ones included",
    "hostile_nodes": "hostile nodes",
    "messages": "messages published",
    "owed": "pairs of message and node that count",
    "delivered_share": "share of these that gossip delivered",
    "stored_share": "share of all messages that the honest nodes hold in the end, sync included",
    "p50_ms": "latency from publication to delivery, median",
    "p90_ms": "the same, 90th percentile",
    "p99_ms": "the same, 99th percentile; nothing when more than 1 % never arrived",
    "max_ms": "the same, largest; nothing when one never arrived",
    "within_500ms_share": "share of the pairs delivered within 500 ms",
    "message_p90_ms_max": "the slowest message's time to reach 90 % of the nodes it is owed to",
    "duplicates_mean": "copies that a node received of a message beyond the first",
    "rejected": "messages that honest nodes rejected, each copy",
    "invalid_delivered": "forged messages delivered to an application",
    "iwant_served": "messages sent on request",
    "promises_broken": "messages announced, asked for and not delivered in time",
    "disconnects": "disconnections that routers asked for",
    "refused": "connections refused",
    "frames_lost": "frames lost on links",
    "bytes_per_node_s": "bytes that a node sent, a second",
    "mesh_degree_min": "fewest mesh peers of an honest node at the end, honest ones counted",
    "mesh_degree_mean": "the same, on average",
    "mesh_degree_max": "the same, most",
    "mesh_within_share": "share of honest nodes with a degree in [d_lo, d_hi] at the end",
    "mesh_components": "parts of the mesh without an edge between them at the end",
    "start_whole_s": "seconds from the start until the mesh was whole",
    "crash_whole_heartbeats": "heartbeats from the crash until the mesh was whole",
    "contact_s": "seconds from the end of the partition to the first connection across",
    "contact_healed_heartbeats": "heartbeats from contact until whatever is published reaches all",
    "victim_delivered_share": "share of the pairs owed to victims that gossip delivered",
    "victim_honest_mesh_min": "fewest honest mesh peers of a victim after the attack began",
    "victim_honest_mesh_end": "fewest honest mesh peers of a victim at the end",
    "victim_hostile_links_max": "most connections of a victim to attackers",
    "synced": "messages that came by catching up",
    "catch_ups": "catch-ups that ended",
    "calm_p50_ms": "p50_ms of the same run without faults",
    "calm_p99_ms": "p99_ms of the same run without faults",
    "p99_ratio": "p99_ms over calm_p99_ms",
}
"""Every measure and what it means; docs/reference/scenario.md is made from it."""


@dataclass(frozen=True, slots=True)
class SimPublished:
    """One message of the traffic."""

    number: int
    """Which one."""
    node: int
    """Who published it."""
    at_s: float
    """When."""
    parted: bool
    """True when the network was partitioned then."""
    sent_to: int
    """Peers it was sent to at once."""


@dataclass(slots=True)
class Milestone:
    """A moment from which on something is waited for."""

    name: str
    """What happened: start, crash or contact."""
    at_s: float
    """When."""
    whole_at: float | None = None
    """When the mesh was whole after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at the network."""

    at_s: float
    """When."""
    mesh: MeshState
    """The mesh of the honest nodes."""
    bytes_sent: int
    """Bytes sent so far."""
    victim_honest_mesh: int | None
    """Fewest honest mesh peers of a victim; None without victims."""
    victim_hostile_links: int | None
    """Most connections of a victim to attackers."""


def measure(run: SimRun) -> Measures:
    """Return every measure of a run that has ended."""
    network = run.network
    lives = [*network.ended, *(node.life for node in network.nodes if node.alive)]
    honest = [life for life in lives if not network.nodes[life.node].hostile]
    victims = {node.index for node in run.victims}
    latencies, per_message = _latencies(run, honest)
    totals = _totals([life.stats for life in honest])
    delivered = sum(len(life.got) for life in honest)
    seconds = max(1e-9, network.clock.now)
    mesh = run.mesh()
    found: Measures = {
        "nodes": len(network.nodes),
        "hostile_nodes": sum(node.hostile for node in network.nodes),
        "messages": len(run.published),
        "owed": latencies.size,
        "delivered_share": _share(np.isfinite(latencies)),
        "stored_share": _stored(run),
        **{f"p{part}_ms": _percentile(latencies, part) for part in (50, 90, 99)},
        "max_ms": _percentile(latencies, 100),
        "within_500ms_share": _share(latencies <= LATE_MS),
        "message_p90_ms_max": _worst([_percentile(each, 90) for each in per_message]),
        "duplicates_mean": totals["duplicates"] / delivered if delivered else None,
        "rejected": totals["rejected"],
        "invalid_delivered": network.invalid_delivered,
        "iwant_served": totals["iwant_served"],
        "promises_broken": totals["promises_broken"],
        "disconnects": network.router_disconnects,
        "refused": network.refusals,
        "frames_lost": network.weather.lost,
        "bytes_per_node_s": network.bytes_sent / len(network.nodes) / seconds,
        "mesh_degree_min": mesh.degree_min,
        "mesh_degree_mean": mesh.degree_mean,
        "mesh_degree_max": mesh.degree_max,
        "mesh_within_share": mesh.within,
        "mesh_components": mesh.components,
        "synced": network.synced,
        "catch_ups": network.catch_ups,
    }
    if victims:
        theirs, _ = _latencies(run, [life for life in honest if life.node in victims])
        found |= {"victim_delivered_share": _share(np.isfinite(theirs))} | _victims(run)
    return found | _marks(run, honest)


def quantiles(run: SimRun, count: int = 1000) -> tuple[float, ...]:
    """Return ``count`` + 1 evenly spaced quantiles of the latencies, milliseconds."""
    network = run.network
    lives = [*network.ended, *(node.life for node in network.nodes if node.alive)]
    latencies, _ = _latencies(run, [n for n in lives if not network.nodes[n.node].hostile])
    if not latencies.size:
        return ()
    ordered = np.sort(latencies)
    places = np.linspace(0, ordered.size - 1, count + 1).astype(int)
    return tuple(float(value) for value in ordered[places])


def _latencies(run: SimRun, lives: list[Life]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the milliseconds of all owed pairs, and the same for each message."""
    plan = run.scenario.measure
    end_s = run.network.clock.now
    per_message = []
    for message in run.published:
        if message.parted or message.at_s + plan.settle_s > end_s:
            continue
        begun, over = message.at_s - plan.join_s, message.at_s + plan.settle_s
        arrived = [
            life.got.get(message.number, float("inf"))
            for life in lives
            if life.born_at <= begun and life.died_at >= over and life.node != message.node
        ]
        per_message.append((np.array(arrived, dtype=float) - message.at_s) * 1000)
    joined = np.concatenate(per_message) if per_message else np.empty(0)
    return joined, per_message


def _stored(run: SimRun) -> float | None:
    """Return the share of messages that honest nodes hold; those that just came back count too."""
    nodes = [node for node in run.network.nodes if node.alive and not node.hostile]
    settle_s, end_s = run.scenario.measure.settle_s, run.network.clock.now
    due = [message for message in run.published if message.at_s + settle_s <= end_s]
    wanted = len(due) * len(nodes)
    # Stores hold traffic only, and what is not due yet is at most a few messages more.
    held = sum(min(node.store.size, len(due)) for node in nodes)
    return held / wanted if wanted else None


_TOTALS: Final = ("duplicates", "rejected", "iwant_served", "promises_broken")
"""Counters of `GossipStats` that are summed over the honest nodes."""


def _totals(stats: list[GossipStats]) -> dict[str, int]:
    return {name: sum(getattr(each, name) for each in stats) for name in _TOTALS}


def _percentile(latencies: np.ndarray, part: float) -> float | None:
    """Return a percentile by the nearest rank above, so that it is a value that was measured."""
    if not latencies.size:
        return None
    value = float(np.percentile(latencies, part, method="higher"))
    return value if np.isfinite(value) else None


def _worst(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def _share(holds: np.ndarray) -> float | None:
    return float(np.mean(holds)) if holds.size else None


def _marks(run: SimRun, lives: list[Life]) -> Measures:
    heartbeat_s = run.network.params.heartbeat_interval_s
    found: Measures = {}
    for mark in run.marks:
        whole_s = None if mark.whole_at is None else mark.whole_at - mark.at_s
        if mark.name == "start":
            found["start_whole_s"] = whole_s
        elif mark.name == "crash":
            found["crash_whole_heartbeats"] = None if whole_s is None else whole_s / heartbeat_s
        elif mark.name == "contact":
            contact_at = run.network.contact_at
            found["contact_s"] = None if contact_at is None else contact_at - mark.at_s
            healed_at = _healed_at(run, lives, mark.at_s)
            both = contact_at is not None and healed_at is not None
            found["contact_healed_heartbeats"] = (
                max(0.0, healed_at - contact_at) / heartbeat_s  # type: ignore[operator]
                if both
                else None
            )
    return found


def _healed_at(run: SimRun, lives: list[Life], after_s: float) -> float | None:
    """Return from when on everything that was published reached every node."""
    end_s, settle_s = run.network.clock.now, run.scenario.measure.settle_s
    healed: float | None = None
    for message in run.published:
        if message.at_s < after_s or message.at_s + settle_s > end_s:
            continue
        complete = all(
            message.number in life.got
            for life in lives
            if life.died_at > end_s and life.born_at < message.at_s and life.node != message.node
        )
        if not complete:
            healed = None
        elif healed is None:
            healed = message.at_s
    return healed


def _victims(run: SimRun) -> Measures:
    """Return how far the victims were surrounded, from a few seconds after they restarted on."""
    settled_s = run.scenario.measure.join_s + max(
        (node.life.born_at for node in run.victims), default=0.0
    )
    later = [sample for sample in run.samples if sample.at_s >= settled_s]
    honest = [s.victim_honest_mesh for s in later if s.victim_honest_mesh is not None]
    hostile = [s.victim_hostile_links for s in later if s.victim_hostile_links is not None]
    return {
        "victim_honest_mesh_min": min(honest, default=None),
        "victim_honest_mesh_end": honest[-1] if honest else None,
        "victim_hostile_links_max": max(hostile, default=None),
    }
