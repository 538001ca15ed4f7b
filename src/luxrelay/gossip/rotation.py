"""Against eclipse: now and then peers have to go, so that others get their chance.

Source: LP-6420 §6.2; decisions G21, G22.
"""

# Theory of operation
#
# Decides: which connected peers a rotation drops. First those whose score is below the rotation
#   threshold, the lowest first; then at most one outbound peer, by chance out of the lowest quarter
#   of the outbound ones that are neither protected nor proven, however good it is: an eclipse is
#   built on stale connections.
# Does not know: where new peers come from; the driver is asked for rotation_count of them.
# A peer stays when it is protected or a proven validator (G22), when fewer than peers_min peers
#   would be left, when it is in the mesh of a topic that would have fewer than d_lo left, or when a
#   topic would have fewer than d_lo subscribers left that may be grafted.
# Timers: `due_at`, every rotation_interval_s from the first heartbeat on; a late one is not made
#   up for.
# What else to change when you change this: `diversity`, whose params these are.

from __future__ import annotations

from typing import TYPE_CHECKING

from luxrelay.gossip.diversity import DiversityParams
from luxrelay.gossip.mesh import Mesh
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.peers import PeerState, PeerTable
from luxrelay.gossip.score_params import ScoreParams

if TYPE_CHECKING:
    from random import Random


class Rotation:
    """Chooses whom to drop."""

    def __init__(
        self,
        params: DiversityParams,
        *,
        gossip: GossipParams,
        scores: ScoreParams,
        rng: Random,
        peers: PeerTable,
        mesh: Mesh,
    ) -> None:
        self._params = params
        self._gossip = gossip
        self._scores = scores
        self._rng = rng
        self._peers = peers
        self._mesh = mesh
        self._due_at: float | None = None

    def due(self, now: float) -> bool:
        """Return True when a rotation is due, and set the time of the next one."""
        if self._due_at is not None and now < self._due_at:
            return False
        first = self._due_at is None
        self._due_at = now + self._params.rotation_interval_s
        return not first

    def choose(self) -> list[PeerState]:
        """Return who has to go, in order (20-32)."""
        gone: list[PeerState] = []
        threshold = self._scores.rotation_threshold
        poor = [state for state in self._peers if state.score < threshold]
        for state in sorted(poor, key=lambda state: state.score):
            if self._spared(state, gone):
                gone.append(state)
        outbound = [
            state
            for state in self._peers
            if state.outbound and state not in gone and not _chosen(state)
        ]
        outbound.sort(key=lambda state: state.score)
        lowest = outbound[: -(-len(outbound) // 4)]
        candidates = [state for state in lowest if self._spared(state, gone)]
        if candidates:
            gone.append(self._rng.choice(candidates))
        return gone

    def wanted(self) -> int:
        """Return how many new peers to ask for, once those that have to go are gone."""
        room = self._gossip.peers_max - len(self._peers)
        return min(self._params.rotation_count, room)

    def _spared(self, state: PeerState, gone: list[PeerState]) -> bool:
        """Return True when the node can do without the peer."""
        if _chosen(state):
            return False
        if len(self._peers) - len(gone) <= self._params.peers_min:
            return False
        return all(
            self._topic_spares(topic, state, gone)
            for topic in state.topics
            if topic in self._mesh.topics
        )

    def _topic_spares(self, topic: str, state: PeerState, gone: list[PeerState]) -> bool:
        mesh = self._mesh.topics[topic]
        if state.peer in mesh:
            left = len(mesh) - sum(other.peer in mesh for other in gone) - 1
            if left < self._gossip.d_lo:
                return False
        if state.score < self._scores.gossip_threshold or state.light:
            return True
        fit = sum(
            other.score >= self._scores.gossip_threshold
            and not other.light
            and other is not state
            and other not in gone
            for other in self._peers.subscribers(topic).values()
        )
        return fit >= self._gossip.d_lo


def _chosen(state: PeerState) -> bool:
    """Return True for a peer that is not rotated, whatever it does (G22)."""
    return state.protected or state.ledger.validator
