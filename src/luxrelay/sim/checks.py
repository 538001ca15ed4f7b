"""Invariants of a run: bounds at every look, and the state of the mesh.

A violation is a fault of the router or of the simulator, never of the scenario; a run that has one
has failed, whatever its measures say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from luxrelay.gossip import GossipParams, GossipStats
from luxrelay.sim.traffic import TOPIC

if TYPE_CHECKING:
    from luxrelay.sim.network import Network
    from luxrelay.sim.node import SimNode


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must hold and did not."""

    at_s: float
    """When, virtual seconds."""
    node: int
    """At which node; -1 for the network."""
    what: str
    """In one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshState:
    """The mesh of the honest nodes that run; edges to others do not count."""

    nodes: int
    """Honest nodes that run."""
    degree_min: int
    """Fewest mesh peers of a node, by its own view; so for the next two."""
    degree_mean: float
    """Mesh peers of a node on average."""
    degree_max: int
    """Most mesh peers of a node."""
    within: float
    """Share of nodes with a degree within [d_lo, d_hi]."""
    components: int
    """Parts of the mesh between which there is no edge."""

    @property
    def whole(self) -> bool:
        """True when the mesh is one and every node has a degree within its bounds."""
        return self.components == 1 and self.within == 1.0


def look_at_mesh(network: Network) -> MeshState:
    """Return the state of the mesh now; costs one pass over its edges."""
    params = network.params
    nodes = [node for node in network.nodes if node.alive and not node.hostile]
    known = {node.peer: place for place, node in enumerate(nodes)}
    parent = list(range(len(nodes)))
    degrees = []
    parts = len(nodes)
    for place, node in enumerate(nodes):
        assert node.router is not None
        degree = 0
        for peer in node.router.mesh_peers(TOPIC):
            other = known.get(peer)
            if other is None:
                continue
            degree += 1
            first, second = _root(parent, place), _root(parent, other)
            if first != second:
                parent[first] = second
                parts -= 1
        degrees.append(degree)
    low, high = params.d_lo, params.d_hi
    return MeshState(
        nodes=len(nodes),
        degree_min=min(degrees, default=0),
        degree_mean=sum(degrees) / max(1, len(degrees)),
        degree_max=max(degrees, default=0),
        within=sum(low <= degree <= high for degree in degrees) / max(1, len(degrees)),
        components=parts,
    )


def _root(parent: list[int], place: int) -> int:
    while parent[place] != place:
        parent[place] = parent[parent[place]]
        place = parent[place]
    return place


def check_node(network: Network, node: SimNode) -> None:
    """Note each bound of a node's router that does not hold."""
    if node.router is None:
        return
    stats = node.router.stats()
    for what in broken_bounds(stats, network.params):
        network.violated(node, what)


def broken_bounds(stats: GossipStats, params: GossipParams) -> list[str]:
    """Return which bounds of the parameters a router's numbers break."""
    bounds = (
        ("peers", len(stats.peers), params.peers_max),
        ("seen ids", stats.seen, 2 * params.seen_max),
        ("messages in validation", stats.pending, params.pending_max),
        ("failed digests", stats.failures, params.failures_max),
        ("messages cached", stats.cached, params.cache_messages_max),
        ("bytes cached", stats.cached_bytes, params.cache_bytes_max),
        ("ids wanted", stats.wanted, params.wanted_max),
    )
    return [f"{value} {name}, above {limit}" for name, value, limit in bounds if value > limit]
