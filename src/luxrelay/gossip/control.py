"""What a frame says besides messages: subscriptions, mesh, announcements, suggested peers.

Source: LP-6420 §1.2, §7.2; decisions G5, G14, G16, G21, G29.
"""

from __future__ import annotations

from luxrelay.gossip.actions import Action, Dial
from luxrelay.gossip.identity import PEER_ID_MAX, PeerId
from luxrelay.gossip.lazy import Lazy
from luxrelay.gossip.mesh import Mesh
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.peers import PeerState, PeerTable
from luxrelay.gossip.rpc import Rpc
from luxrelay.gossip.score import Scores
from luxrelay.gossip.stats import GossipStats
from luxrelay.gossip.topics import fold_topic


class Control:
    """Hands the entries of a frame to the machines they are for."""

    def __init__(
        self,
        params: GossipParams,
        *,
        own_id: PeerId,
        peers: PeerTable,
        mesh: Mesh,
        lazy: Lazy,
        scores: Scores,
        stats: GossipStats,
        actions: list[Action],
    ) -> None:
        self._params = params
        self._own_id = own_id
        self._peers = peers
        self._mesh = mesh
        self._lazy = lazy
        self._scores = scores
        self._stats = stats
        self._actions = actions
        self._dials = 0

    def subscriptions(self, state: PeerState, rpc: Rpc, now: float) -> None:
        """Note what the peer follows and no longer follows."""
        for subscribe, spelled in rpc.subscriptions:
            if subscribe:
                topic = self._peers.subscribe(state, spelled)
                if topic is not None:
                    self._mesh.peer_subscribed(topic, now)
            else:
                topic = self._peers.unsubscribe(state, spelled)
                if topic is not None:
                    self._mesh.peer_unsubscribed(topic, state, now)

    def hear(self, state: PeerState, rpc: Rpc, now: float) -> None:
        """Take in the control messages of a frame."""
        for spelled in rpc.graft:
            topic = fold_topic(spelled)
            if topic is not None:
                self._mesh.on_graft(topic, state, now)
        for spelled, backoff_s in rpc.prune:
            topic = fold_topic(spelled)
            if topic is not None:
                self._mesh.on_prune(topic, state, backoff_s, now)
        if rpc.suggested and self._params.peer_exchange:
            self._exchange(state, rpc, now)
        if rpc.idontwant:
            self._lazy.on_idontwant(state, rpc.idontwant)
        if rpc.iwant:
            self._lazy.on_iwant(state, rpc.iwant)
        if rpc.ihave:
            self._ihave(state, rpc, now)

    def heartbeat(self) -> None:
        """Renew the allowance of dials."""
        self._dials = 0

    def _ihave(self, state: PeerState, rpc: Rpc, now: float) -> None:
        if self._lazy.hears(state):
            for spelled, ids in rpc.ihave:
                topic = fold_topic(spelled)
                if topic in self._mesh.topics:
                    self._lazy.on_ihave(topic, state, ids, now)

    def _exchange(self, state: PeerState, rpc: Rpc, now: float) -> None:
        """Ask the driver to dial suggested peers, of peers that we trust so far (20-03; G21)."""
        trusted = state.protected or state.score >= self._scores.params.px_threshold
        for spelled, peer, record in rpc.suggested:
            suggested = PeerId(peer)
            if (
                trusted
                and fold_topic(spelled) in self._mesh.topics
                and 0 < len(peer) <= PEER_ID_MAX
                and 0 < len(record) <= self._params.px_record_max
                and self._dials < self._params.px_dials_max
                and suggested != self._own_id
                and self._peers.get(suggested) is None
                and not self._peers.full()
                and not self._scores.refused_s(suggested, now)
            ):
                self._dials += 1
                self._stats.px_dials += 1
                self._actions.append(Dial(peer=suggested, record=record, by=state.peer))
            else:
                self._stats.px_refused += 1
