"""Meshes and fan-outs of topics: GRAFT, PRUNE, and their back-offs.

Source: LP-6420 §1.2, §4.1, §5.3; decisions G13, G14, G16, G21, G26; gossipsub v1.1.
"""

# Theory of operation
#
# Decides: which subscribers of a topic exchange full messages with us (the mesh), which ones get
#   our own messages on topics we do not subscribe to (the fan-out), and when a GRAFT is refused.
# Does not know: messages, ids, bytes, drivers. It writes GRAFT and PRUNE into the outbox of a peer.
# Machines and their states: for each topic we subscribe to, each subscriber is out, in, or out and
#   in back-off:
#     out      -> in        we graft it, or its GRAFT is taken
#     in       -> back-off  we prune it, it prunes us, or we leave the topic
#     in       -> back-off  its score is below zero at a heartbeat, or its link is slow (G39)
#     in       -> out       it disconnects, unsubscribes, or turns out to be a light node
#     back-off -> out       the time is over; GRAFTs before that start the time anew
#   A fan-out exists from the first publish until `fanout_ttl_s` after the last, or until we join.
# Inputs and what they may cause: `join` grafts; `leave` prunes; `peer_subscribed` may set
#   `hurry_at`; `peer_unsubscribed` and `peer_left` forget; `on_graft` takes or prunes; `on_prune`
#   takes the peer out; `hurry` grafts; `heartbeat` grafts and prunes towards the degree, and now
#   and then grafts better peers into a poor mesh.
# Timers: `hurry_at`, graft_delay_s after a subscriber appeared while a mesh was below d_lo.
#   `heartbeat(now)` is called at each heartbeat; back-offs and fan-outs expire there, a back-off
#   one heartbeat late when it is we who graft, because clocks differ.
# Bounds: a mesh ends each heartbeat with at most d_hi peers; between heartbeats only peers that we
#   dialed ourselves can exceed it. Topics and fan-outs: topics_max each. Back-offs: backoffs_max.
# Deviations from the specification: LP-6420 calls d an outbound degree; it is the mesh degree of
#   gossipsub (G13). While a mesh is below d_lo new subscribers are grafted after graft_delay_s,
#   up to d_lo, not at the next heartbeat: a small network works soon. (Tried: grafting each at
#   once, in the order they appear. When many nodes start together all take the same first ones,
#   which then prune most of them into a back-off.) A GRAFT from a peer that does not subscribe is
#   refused. Light nodes are in no mesh (G26). A PRUNE suggests other subscribers whose signed
#   records we have, never to a peer of low score (G21); one without a record is not suggested.
# What else to change when you change this: `lazy` announces to subscribers outside mesh and
#   fan-out; tests/property/test_router.py states the bounds.

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

from luxrelay.errors import GossipArgumentError
from luxrelay.gossip.envelope import PeerId
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.peers import PeerState, PeerTable
from luxrelay.gossip.score import Scores
from luxrelay.gossip.stats import GossipStats

if TYPE_CHECKING:
    from random import Random

MeshPeers = dict[PeerId, PeerState]


class Backoffs:
    """Until when which peer must not graft which topic; bounded, the oldest entry goes first."""

    __slots__ = ("_entries", "_entries_max")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: dict[tuple[str, PeerId], float] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def set(self, topic: str, peer: PeerId, until: float) -> None:
        """Start a back-off, or extend a running one; it outlives the connection."""
        key = (topic, peer)
        if key not in self._entries and len(self._entries) >= self._entries_max:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = max(until, self._entries.get(key, until))

    def left(self, topic: str, peer: PeerId, now: float) -> float:
        """Return the seconds left, 0 when there is no back-off."""
        return max(0.0, self._entries.get((topic, peer), now) - now)

    def waits(self, topic: str, peer: PeerId) -> bool:
        """Return True while an entry exists, the slack of `expire` included."""
        return (topic, peer) in self._entries

    def expire(self, before: float) -> None:
        """Forget what was over before a time."""
        over = [key for key, until in self._entries.items() if until <= before]
        for key in over:
            del self._entries[key]


class Fanout:
    """The peers that get what we publish to a topic without subscribing to it."""

    __slots__ = ("last_publish", "peers")

    def __init__(self, now: float) -> None:
        self.peers: MeshPeers = {}
        self.last_publish = now


class Mesh:
    """The meshes, the fan-outs and the back-offs of a router."""

    def __init__(
        self,
        params: GossipParams,
        rng: Random,
        *,
        peers: PeerTable,
        scores: Scores,
        stats: GossipStats,
    ) -> None:
        self._params = params
        self._scores = scores
        self._beats = 0
        self._rng = rng
        self._peers = peers
        self._stats = stats
        self.topics: dict[str, MeshPeers] = {}
        """Mesh peers of each topic we subscribe to."""
        self.fanouts: dict[str, Fanout] = {}
        """Fan-out of each topic we only publish to."""
        self.hurry_at: float | None = None
        """When to call `hurry`."""
        self.backoffs = Backoffs(params.backoffs_max)
        self.pulls = False
        """Whether our own link is slow: we are in no mesh, and say so (G41)."""
        self._renew_at = 0.0

    def join(self, topic: str, now: float) -> bool:
        """Start the mesh of a topic, with its fan-out first; False when we are in it already.

        Raises:
            GossipArgumentError: we are in ``topics_max`` topics already.

        """
        if topic in self.topics:
            return False
        if len(self.topics) >= self._params.topics_max:
            raise GossipArgumentError(
                f"{len(self.topics)} topics are subscribed to already", where="subscribe"
            )
        mesh = self.topics[topic] = {}
        fanout = self.fanouts.pop(topic, None)
        for state in list(fanout.peers.values()) if fanout else ():
            if len(mesh) < self._params.d and self._welcome(topic, state):
                self._graft(topic, mesh, state, now)
        self._graft_some(topic, mesh, self._params.d - len(mesh), now)
        return True

    def leave(self, topic: str, now: float) -> bool:
        """Prune the mesh of a topic and forget it; False when we are not in it."""
        mesh = self.topics.pop(topic, None)
        if mesh is None:
            return False
        for state in mesh.values():
            self._scores.pruned(state.ledger, topic, now)
            self._send_prune(topic, state, self._params.unsubscribe_backoff_s, now)
        return True

    def peer_subscribed(self, topic: str, now: float) -> None:
        """Graft soon when a topic with a new subscriber has too few mesh peers."""
        mesh = self.topics.get(topic)
        if mesh is not None and len(mesh) < self._params.d_lo and self.hurry_at is None:
            self.hurry_at = now + self._params.graft_delay_s

    def hurry(self, now: float) -> None:
        """Graft up to ``d_lo`` where there are fewer."""
        self.hurry_at = None
        for topic, mesh in self.topics.items():
            self._graft_some(topic, mesh, self._params.d_lo - len(mesh), now)

    def peer_unsubscribed(self, topic: str, state: PeerState, now: float) -> None:
        """Forget a peer on a topic it left."""
        if topic in self.topics:
            self._take_out(topic, state, now)
        if topic in self.fanouts:
            self.fanouts[topic].peers.pop(state.peer, None)

    def peer_left(self, peer: PeerId) -> None:
        """Forget a peer that disconnected; its back-offs stay."""
        for mesh in self.topics.values():
            mesh.pop(peer, None)
        for fanout in self.fanouts.values():
            fanout.peers.pop(peer, None)

    def peer_is_light(self, state: PeerState, now: float) -> None:
        """Take a light node out of every mesh (G26)."""
        for topic in self.topics:
            if self._take_out(topic, state, now):
                self._send_prune(topic, state, self._params.prune_backoff_s, now)

    def peer_is_slow(self, state: PeerState, now: float) -> None:
        """Take a slow peer out of every mesh and fan-out, for a while as short as ours (G39)."""
        for topic in self._spare(state, now):
            wait_s = self._params.unsubscribe_backoff_s
            self._send_prune(topic, state, wait_s, now, suggest=False)

    def _spare(self, state: PeerState, now: float) -> list[str]:
        """Take a peer out of every mesh and fan-out for a slow link; return whose meshes."""
        for fanout in self.fanouts.values():
            fanout.peers.pop(state.peer, None)
        return [each for each in self.topics if self._take_out(each, state, now, forgiven=True)]

    def pull(self, *, pulls: bool, now: float) -> None:
        """Be in no mesh while our own link is slow, and tell every peer; or take part again."""
        self.pulls = pulls
        if not pulls:
            return
        for topic, mesh in self.topics.items():
            for state in list(mesh.values()):
                self._take_out(topic, state, now, forgiven=True)
                self._send_prune(topic, state, self._params.unsubscribe_backoff_s, now)
        self._renew_pull(now)

    def _renew_pull(self, now: float) -> None:
        """Tell every peer, on one topic that we share with it, in time before it forgets."""
        wait_s = self._params.unsubscribe_backoff_s
        self._renew_at = now + wait_s / 2
        for state in self._peers:
            topic = next((each for each in state.topics if each in self.topics), None)
            if topic is not None:
                self._send_prune(topic, state, wait_s, now)

    def peer_pulls(self, state: PeerState, until: float, now: float) -> None:
        """Take a peer out of every mesh and fan-out that said its own link is slow (G41)."""
        state.pulls_until = until
        for topic in self._spare(state, now):
            self.backoffs.set(topic, state.peer, until)

    def on_graft(self, topic: str, state: PeerState, now: float) -> None:
        """Take the peer into the mesh, or answer with a PRUNE (LP-6420 §7.2; 20-35).

        A GRAFT for a topic that we do not follow is passed over, so that nobody can make us write.
        """
        mesh = self.topics.get(topic)
        if mesh is None or state.peer in mesh:
            return
        if self.backoffs.left(topic, state.peer, now) > 0:
            state.stats.grafts_refused += 1
            self._scores.misbehaved(state.ledger, self._scores.params.graft_in_backoff)
            state.suspect = True
            suggest = False
        elif not self._fit(state):
            suggest = False
        elif state.peer in self._peers.subscribers(topic) and (
            len(mesh) < self._params.d_hi or state.outbound
        ):
            mesh[state.peer] = state
            self._scores.grafted(state.ledger, topic, now)
            return
        else:
            suggest = True
        self._stats.grafts_refused += 1
        params = self._params
        wait_s = params.unsubscribe_backoff_s if self.pulls else params.prune_backoff_s
        self._send_prune(topic, state, wait_s, now, suggest=suggest)

    def on_prune(self, topic: str, state: PeerState, backoff_s: int, now: float) -> bool:
        """Take the peer out of the mesh and keep to its back-off (LP-6420 §7.2; 20-35).

        Args:
            topic: Canonical topic.
            state: The peer that pruned us.
            backoff_s: What it asks for, seconds; 0 means our own default.
            now: Monotonic seconds.

        Returns:
            False for a topic that we do not follow; then nothing is done.

        """
        if topic not in self.topics:
            return False
        self._take_out(topic, state, now)
        wait_s = min(backoff_s or self._params.prune_backoff_s, self._params.backoff_max_s)
        self.backoffs.set(topic, state.peer, now + wait_s)
        return True

    def publish_peers(self, topic: str, now: float) -> Mapping[PeerId, PeerState]:
        """Return who gets a message of ours, and keep the fan-out alive (LP-6420 §4.1).

        The mesh when we follow the topic, else the fan-out; with ``flood_publish`` all subscribers.
        A light node has no mesh and floods.
        """
        mesh = self.topics.get(topic)
        if mesh is None:
            mesh = self._fan_out(topic, now)
        flood = self._params.flood_publish or self._params.light
        return self._peers.subscribers(topic) if flood else mesh

    def near(self, topic: str) -> Mapping[PeerId, PeerState]:
        """Return the mesh or fan-out of a topic: the peers that need no announcements."""
        mesh = self.topics.get(topic)
        if mesh is not None:
            return mesh
        fanout = self.fanouts.get(topic)
        return fanout.peers if fanout is not None else {}

    def heartbeat(self, now: float) -> None:
        """Bring each mesh and fan-out towards the degree; let fan-outs and back-offs expire.

        The scores of the peers are those of this heartbeat.
        """
        self._beats += 1
        look = self._beats % self._params.opportunistic_graft_heartbeats == 0
        self.backoffs.expire(now - self._params.heartbeat_interval_s)
        if self.pulls and now >= self._renew_at:
            self._renew_pull(now)
        for topic, mesh in self.topics.items():
            self._expel(topic, mesh, now)
            if len(mesh) < self._params.d_lo:
                self._graft_some(topic, mesh, self._params.d - len(mesh), now)
            elif len(mesh) > self._params.d_hi:
                self._shrink(topic, mesh, now)
            self._top_up_outbound(topic, mesh, now)
            if look:
                self._enrich(topic, mesh, now)
        for topic, fanout in list(self.fanouts.items()):
            if now - fanout.last_publish >= self._params.fanout_ttl_s:
                del self.fanouts[topic]
            else:
                self._fill_fanout(topic, fanout)

    def _fan_out(self, topic: str, now: float) -> MeshPeers:
        fanout = self.fanouts.get(topic)
        if fanout is None:
            fanout = Fanout(now)
            # Beyond the limit a message still goes out; only the choice is not remembered.
            if len(self.fanouts) < self._params.topics_max:
                self.fanouts[topic] = fanout
        fanout.last_publish = now
        self._fill_fanout(topic, fanout)
        return fanout.peers

    def _fill_fanout(self, topic: str, fanout: Fanout) -> None:
        threshold = self._scores.params.publish_threshold
        for state in [state for state in fanout.peers.values() if state.score < threshold]:
            del fanout.peers[state.peer]
        lacking = self._params.d - len(fanout.peers)
        if lacking > 0:
            others = [
                state
                for peer, state in self._peers.subscribers(topic).items()
                if peer not in fanout.peers and not state.slow and state.score >= threshold
            ]
            for state in self._sample(others, lacking):
                fanout.peers[state.peer] = state

    def _expel(self, topic: str, mesh: MeshPeers, now: float) -> None:
        """Prune the peers whose score is below the gossip threshold (20-27; G16)."""
        threshold = self._scores.params.gossip_threshold
        for state in [state for state in mesh.values() if state.score < threshold]:
            self._take_out(topic, state, now)
            self._send_prune(topic, state, self._params.prune_backoff_s, now, suggest=False)

    def _enrich(self, topic: str, mesh: MeshPeers, now: float) -> None:
        """Graft a few better peers when half of the mesh is hardly better than strangers (G14).

        Judged without the credit for time in the mesh: with it, mute peers that surround us look
        good before the first look, and honest ones outside never look better.

        Source: gossipsub v1.1, opportunistic grafting.
        """
        if len(mesh) < 2:
            return
        middle = median(self._scores.merit(state.ledger, now) for state in mesh.values())
        if middle < self._scores.params.opportunistic_graft_threshold:
            before = len(mesh)
            count = min(self._params.opportunistic_graft_peers, self._params.d_hi - before)
            self._graft_some(topic, mesh, count, now, above=middle)
            self._stats.grafts_opportunistic += len(mesh) - before

    def _shrink(self, topic: str, mesh: MeshPeers, now: float) -> None:
        """Prune down to ``d``: the ``d_score`` best stay, then chance, then outbound peers (20-15).

        Source: LP-6420 §4.1, G13; gossipsub v1.1, mesh maintenance.
        """
        ranked = list(mesh.values())
        self._rng.shuffle(ranked)
        ranked.sort(key=lambda state: -state.score)
        best, rest = ranked[: self._params.d_score], ranked[self._params.d_score :]
        self._rng.shuffle(rest)
        ranked = best + rest
        kept, spare = ranked[: self._params.d], ranked[self._params.d :]
        missing = self._params.d_out - sum(state.outbound for state in kept)
        for state in [state for state in spare if state.outbound][: max(0, missing)]:
            # The last inbound peer that chance kept gives up its place.
            place = max(i for i, other in enumerate(kept) if not other.outbound)
            spare.append(kept[place])
            spare.remove(state)
            kept[place] = state
        for state in spare:
            self._take_out(topic, state, now)
            self._send_prune(topic, state, self._params.prune_backoff_s, now)

    def _top_up_outbound(self, topic: str, mesh: MeshPeers, now: float) -> None:
        """Graft outbound peers while a mesh has fewer than ``d_out`` and room for more."""
        missing = self._params.d_out - sum(state.outbound for state in mesh.values())
        room = self._params.d_hi - len(mesh)
        self._graft_some(topic, mesh, min(missing, room), now, outbound=True)

    def _graft_some(
        self,
        topic: str,
        mesh: MeshPeers,
        count: int,
        now: float,
        *,
        outbound: bool = False,
        above: float | None = None,
    ) -> None:
        """Graft up to ``count`` subscribers chosen by chance among those that may be.

        Args:
            topic: Canonical topic.
            mesh: Its mesh.
            count: How many are wanted; none when below 1.
            now: Monotonic seconds.
            outbound: Only peers that we dialed.
            above: Only peers whose merit is above this.

        """
        if count <= 0:
            return
        candidates = [
            state
            for peer, state in self._peers.subscribers(topic).items()
            if peer not in mesh
            and (state.outbound or not outbound)
            and (above is None or self._scores.merit(state.ledger, now) > above)
            and self._welcome(topic, state)
        ]
        for state in self._sample(candidates, count):
            self._graft(topic, mesh, state, now)

    def _welcome(self, topic: str, state: PeerState) -> bool:
        """Return True when we may graft the peer."""
        return self._fit(state) and not self.backoffs.waits(topic, state.peer)

    def _fit(self, state: PeerState) -> bool:
        """Return True when the peer may be in a mesh of ours at all (G16, G26, G39, G41)."""
        return (
            not state.slow
            and not self.pulls
            and state.score >= self._scores.params.gossip_threshold
            and not state.light
            and not self._params.light
        )

    def _sample(self, states: list[PeerState], count: int) -> list[PeerState]:
        return self._rng.sample(states, min(count, len(states)))

    def _graft(self, topic: str, mesh: MeshPeers, state: PeerState, now: float) -> None:
        mesh[state.peer] = state
        self._scores.grafted(state.ledger, topic, now)
        state.outbox.graft(state.spell(topic))

    def _take_out(
        self, topic: str, state: PeerState, now: float, *, forgiven: bool = False
    ) -> bool:
        """Take a peer out of a mesh; False when it was not in it."""
        if self.topics[topic].pop(state.peer, None) is None:
            return False
        self._scores.pruned(state.ledger, topic, now, forgiven=forgiven)
        return True

    def _send_prune(
        self, topic: str, state: PeerState, backoff_s: float, now: float, *, suggest: bool = True
    ) -> None:
        self.backoffs.set(topic, state.peer, now + backoff_s)
        suggested = self._suggestions(topic, state) if suggest and not self.pulls else []
        self._stats.px_suggested += len(suggested)
        state.outbox.prune(state.spell(topic), backoff_s, suggested, pulls=self.pulls)

    def _suggestions(self, topic: str, pruned: PeerState) -> list[tuple[PeerId, bytes]]:
        """Return other subscribers with their signed records, for a peer that has to go (20-03)."""
        threshold = self._scores.params.gossip_threshold
        if not self._params.peer_exchange or pruned.score < threshold:
            return []
        others = [
            state
            for state in self._peers.subscribers(topic).values()
            if state is not pruned and state.record and state.score >= threshold
        ]
        chosen = self._sample(others, self._params.px_peers_max)
        return [(state.peer, state.record) for state in chosen]
