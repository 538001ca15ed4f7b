"""`GossipRouter`: events of the network in, actions for the driver out.

What a frame says besides messages: subscriptions, mesh, announcements, suggested peers.

Source: LP-6420 §4, §5, §6, §7.2, §8.2; LP-6420 §1.2, §7.2; decisions G1, G2, G5, G13, G14, G16,
G21, G25, G26, G29.
"""

# Theory of operation
#
# Decides: which bytes are a frame, who is heard, and when a heartbeat is due. It leaves who may be
#   here to `peer_admission`, hands messages to `flow`, everything else in a frame through
#   `Control` to `mesh` and `lazy`, and gathers what they leave in the peers' outboxes. What peers
#   did is counted in `score`.
# Does not know: sockets, streams, clocks, signatures, stores. Whether a message is valid is asked
#   of the driver with `Validate`.
# Machines and their states:
#   a peer     unknown -> connected -> unknown; what it sends while unknown is counted and dropped.
#   a message  unknown -> in validation -> accepted | failed -> unknown. Accepted means in the seen
#              set, in the cache, sent on, delivered. Failed means in the failure cache, by its
#              bytes alone. While in validation further copies wait for the same verdict.
#   `mesh` and `lazy` describe theirs.
# Inputs and what they may cause:
#   peer_connected      Send (our subscriptions) or Disconnect (too many, foreign protocol, refused)
#   peer_disconnected, peer_record   nothing
#   app_score           Disconnect (score)
#   peer_role           Send (PRUNE to a light node)
#   received            Validate, Send (GRAFT, PRUNE, IWANT, messages), Dial, Disconnect (score),
#                       Echo
#   subscribe, unsubscribe   Send (subscription, GRAFT or PRUNE)
#   publish             Send, Echo
#   validated           Send (forward), Deliver, Disconnect (score)
#   wake                Send (GRAFT, PRUNE, IWANT, IHAVE), Disconnect (score, rotation), Discover
# Timers: the heartbeat, and `mesh.hurry_at`. A late `wake` runs one heartbeat, not those that were
#   missed. All other times (back-off, fan-out, seen, promises, validation) are looked at in the
#   heartbeat. When a whole heartbeat was missed, the process stood still: verdicts and promised
#   messages get the time back, because what came meanwhile waits unread behind this `wake`.
# Bounds: all in `GossipParams`. Peers, topics a peer, entries a frame, frames in bytes, messages in
#   validation, ids known, failures, cache, ids wanted, back-offs, bytes waiting for a peer. Beyond
#   a bound the oldest memory or the newest work goes, and a counter says so.
# Deviations from the specification: the id enters the seen set after ACCEPT only, and up to
#   digests_max envelopes share an id (G1); the seen key has the topic in it (G2); the `0x` spelling
#   of a namespace topic is the same topic, and a peer is answered in the spelling it uses (G5);
#   control travels as libp2p's, not as LP-6420 §7.2's codes (G6, G29). A score is counted anew at
#   each heartbeat and after each offence; credit waits for the heartbeat.
# What else to change when you change this: `luxrelay.net.driver` and `luxrelay.sim` drive it;
#   tests/property/test_router.py holds the invariants.

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import TYPE_CHECKING

from luxrelay.bus import VerdictKind
from luxrelay.errors import RpcError
from luxrelay.gossip.actions import Action, Send
from luxrelay.gossip.diversity import DiversityParams
from luxrelay.gossip.envelope import PeerId, fold_topic, parse_topic
from luxrelay.gossip.flow import Flow
from luxrelay.gossip.lazy import Lazy
from luxrelay.gossip.location import PlaceResolver
from luxrelay.gossip.mesh import Mesh
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.peer_admission import Doorkeeper, Guards, NewPeer
from luxrelay.gossip.peers import PeerState, PeerTable
from luxrelay.gossip.roles import NodeRole
from luxrelay.gossip.rpc import Rpc, check_rpc, decode_rpc
from luxrelay.gossip.score import Scores, ScoreTerms
from luxrelay.gossip.score_params import ScoreParams
from luxrelay.gossip.seen import Memory
from luxrelay.gossip.stats import GossipStats

if TYPE_CHECKING:
    from random import Random
from luxrelay.gossip.actions import Dial
from luxrelay.gossip.envelope import PEER_ID_MAX


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
                state.pulls_until = 0.0  # it takes part again
                self._mesh.on_graft(topic, state, now)
        if rpc.pulls_s:
            until = now + min(rpc.pulls_s, self._params.backoff_max_s)
            self._mesh.peer_pulls(state, until, now)
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
        if self._mesh.pulls:
            # Catching up brings it; what waited for our own link comes at once, and is no flood.
            self._stats.ihave_left += sum(len(ids) for _, ids in rpc.ihave)
        elif self._lazy.hears(state):
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


class GossipRouter:
    """LP-6420's gossip as a machine without I/O.

    Feed inputs; after each, `drain()` and do the actions in order; sleep until `wake_at()`;
    `wake(now)`; never call the router from inside one of its own actions.

    Args:
        params: Degrees, timers, bounds.
        rng: The only chance the router draws from; seeded, the router is deterministic.
        own_id: Our peer id; a connection to ourselves is refused.
        scores: What peers' behaviour is worth; the defaults of the decisions when None.
        diversity: How different peers have to be and how often they change; None turns both off.
        resolver: Knows autonomous systems and regions; for ``diversity``.
        validators: Key fields of the validators, by which a peer can prove to be one (G24).

    """

    def __init__(
        self,
        params: GossipParams,
        *,
        rng: Random,
        own_id: PeerId,
        scores: ScoreParams | None = None,
        diversity: DiversityParams | None = None,
        resolver: PlaceResolver | None = None,
        validators: Container[bytes] = frozenset(),
    ) -> None:
        self._params = params
        stats = self._stats = GossipStats()
        actions = self._actions = list[Action]()
        peers = self._peers = PeerTable(params, stats)
        memory = self._memory = Memory(params)
        self._score_params = scores or ScoreParams()
        beat_s, topics_max = params.heartbeat_interval_s, params.topics_max
        ledgers = Scores(self._score_params, heartbeat_s=beat_s, topics_max=topics_max)
        self._scores = ledgers
        mesh = self._mesh = Mesh(params, rng, peers=peers, scores=ledgers, stats=stats)
        lazy = self._lazy = Lazy(
            params, rng, peers=peers, mesh=mesh, memory=memory, scores=ledgers, stats=stats
        )
        self._flow = Flow(
            params,
            peers=peers,
            mesh=mesh,
            lazy=lazy,
            memory=memory,
            scores=ledgers,
            stats=stats,
            actions=actions,
        )
        self._control = Control(
            params,
            own_id=own_id,
            peers=peers,
            mesh=mesh,
            lazy=lazy,
            scores=ledgers,
            stats=stats,
            actions=actions,
        )
        self._doorkeeper = Doorkeeper(
            params,
            rng,
            own_id=own_id,
            peers=peers,
            mesh=mesh,
            lazy=lazy,
            scores=ledgers,
            stats=stats,
            actions=actions,
            guards=Guards(diversity, resolver, validators),
        )
        self._heartbeat_at: float | None = None

    # Inputs.

    def peer_connected(
        self,
        peer: PeerId,
        protocol: str,
        outbound: bool,
        now: float,
        *,
        address: str = "",
        protected: bool = False,
    ) -> None:
        """Greet a peer with our subscriptions, or ask for its disconnection.

        Args:
            peer: Who; a second call for a connected peer updates it, greets again, and tells it
                again in which meshes it is.
            protocol: The negotiated stream protocol, one of `PROTOCOLS`.
            outbound: True when we dialed.
            now: Monotonic seconds.
            address: Its IP address, by which crowds and networks are counted; empty when unknown.
            protected: True for a peer that the operator chose: it is let in wherever it is, not
                rotated, and what it suggests is followed.

        """
        self._start(now)
        arrival = NewPeer(protocol, address, outbound=outbound, protected=protected)
        state = self._doorkeeper.let_in(peer, arrival, now)
        if state is not None:
            for topic, mesh in self._mesh.topics.items():
                state.outbox.subscription(topic, subscribe=True)
                if peer in mesh:  # a second call: what it knew of us may be gone
                    state.outbox.graft(topic)

    def peer_disconnected(self, peer: PeerId, now: float) -> None:
        """Forget a peer; its back-offs, its penalties and the messages it brought stay."""
        self._start(now)
        self._doorkeeper.see_off(peer, now)

    def peer_record(self, peer: PeerId, record: bytes) -> bool:
        """Remember the signed peer record of a connected peer, to suggest it to others (20-03).

        Args:
            peer: Whose it is.
            record: As the peer signed it; the driver has checked signature and peer id, and that
                the peer can be reached at its addresses.

        Returns:
            False when the peer is not connected or the record is above ``px_record_max``.

        """
        state = self._peers.get(peer)
        if state is None or len(record) > self._params.px_record_max:
            return False
        state.record = record
        return True

    def peer_role(self, peer: PeerId, role: NodeRole, now: float, *, proof: bytes = b"") -> bool:
        """Note what a connected peer says it is (G24, G26; 20-48).

        Args:
            peer: Who, as its connection has proven.
            role: What it claims; a light node leaves every mesh, other claims alone change nothing.
            now: Monotonic seconds.
            proof: Of a validator, made with `validator_proof`; any bytes.

        Returns:
            True when the peer has proven to be a validator.

        """
        state = self._peers.get(peer)
        if state is None:
            return False
        if role is NodeRole.LIGHT:
            self.peer_is_light(peer, now)
        elif proof:  # whatever its role: a validator's relay need not follow blocks itself
            self._doorkeeper.hear_proof(state, proof, now)
        return state.ledger.validator

    def peer_passes_on(self, peer: PeerId) -> None:
        """Note that a connected peer makes headers on ``headers/global`` from namespaces' (G34)."""
        state = self._peers.get(peer)
        if state is not None:
            state.passes_on = True

    def peer_room(self, peer: PeerId, room: int | None, now: float) -> None:
        """Note how much a connected peer's link takes (G39).

        A peer that becomes slow leaves every mesh and fan-out. It is told ids in place of messages,
        as many as fit, and is sent those that it asks for.

        Args:
            peer: Whose.
            room: Bytes of messages that it may be sent now, 0 or more; None when it is not slow.
            now: Monotonic seconds.

        """
        state = self._peers.get(peer)
        if state is None:
            return
        became_slow = state.room is None and room is not None
        state.room = room
        if became_slow:
            self._stats.slowed += 1
            self._mesh.peer_is_slow(state, now)

    def pull(self, *, pulls: bool, now: float) -> None:
        """Note whether our own link is slow, so that messages are fetched by catching up (G41).

        We are in no mesh then, ask for nothing that is announced, and tell every peer.
        """
        if pulls == self._mesh.pulls:
            return
        self._stats.pulled += pulls
        self._mesh.pull(pulls=pulls, now=now)

    def peer_pulls(self, peer: PeerId) -> bool:
        """Return True while a connected peer said that it fetches messages by catching up."""
        state = self._peers.get(peer)
        return state is not None and state.pulls_until > 0

    def app_score(self, peer: PeerId, score: float, now: float) -> None:
        """Set what the application thinks of a connected peer (P5); 0 until it says so."""
        state = self._peers.get(peer)
        if state is not None:
            state.ledger.app = score
            self._doorkeeper.judge(state, now)

    def peer_is_light(self, peer: PeerId, now: float) -> None:
        """Take a peer that said it is a light node out of every mesh (G26)."""
        state = self._peers.get(peer)
        if state is not None and not state.light:
            state.light = True
            self._mesh.peer_is_light(state, now)

    def received(self, peer: PeerId, rpc_bytes: bytes, now: float) -> None:
        """Take in one RPC; whatever it holds, nothing is raised.

        Args:
            peer: A connected peer; frames of others are counted and dropped.
            rpc_bytes: One RPC without its length prefix.
            now: Monotonic seconds.

        """
        self._start(now)
        state = self._peers.get(peer)
        if state is None:
            self._stats.strangers += 1
            return
        state.heard_at = now
        rpc = None
        try:
            if state.score >= self._score_params.accept_threshold:
                rpc = decode_rpc(rpc_bytes, self._params)
            else:
                check_rpc(rpc_bytes, self._params)
                self._unheard(state)
        except RpcError:
            self._flow.malformed(state)
        if rpc is not None:
            self._hear(state, rpc, now)
        if state.suspect:
            self._doorkeeper.judge(state, now)

    def subscribe(self, topic: str, now: float) -> None:
        """Follow a topic; does nothing when we do already (20-41).

        Raises:
            TopicError: it is no topic of LP-6420 §2.
            GossipArgumentError: we follow ``topics_max`` topics already.

        """
        self._start(now)
        name = parse_topic(topic).name
        if self._mesh.join(name, now):
            self._stats.follow(name, 2 * self._params.topics_max)
            for state in self._peers:
                state.outbox.subscription(name, subscribe=True)

    def unsubscribe(self, topic: str, now: float) -> None:
        """Follow a topic no longer; does nothing when we do not (20-41)."""
        self._start(now)
        name = fold_topic(topic)
        if name is not None and self._mesh.leave(name, now):
            self._lazy.topic_left(name)
            self._flow.quota.forget(name)
            self._stats.topics.pop(name, None)
            for state in self._peers:
                state.outbox.subscription(name, subscribe=False)

    def follows(self, topic: str) -> bool:
        """Return True when we follow a topic, in whatever spelling."""
        return fold_topic(topic) in self._mesh.topics

    def publish(self, topic: str, data: bytes, now: float) -> int:
        """Send a message of ours and return to how many peers it goes.

        The message counts as accepted: whoever publishes has validated it (LP-6420 §4.2). 0 also
        when exactly these bytes were published or received before.

        Args:
            topic: The topic, ours or not.
            data: An encoded `RelayMessage` that names this topic.
            now: Monotonic seconds.

        Raises:
            TopicError: it is no topic of LP-6420 §2.
            GossipArgumentError: ``data`` is no envelope for this topic.

        """
        self._start(now)
        return self._flow.publish(parse_topic(topic).name, data, now)

    def validated(self, token: int, kind: VerdictKind, now: float) -> None:
        """Let the verdict on a `Validate` have its effect; an unknown token is counted only."""
        self._start(now)
        for state in self._flow.on_verdict(token, kind, now):
            self._doorkeeper.judge(state, now)

    def wake(self, now: float) -> None:
        """Run the heartbeat and the mesh's early grafting when they are due."""
        self._start(now)
        if self._mesh.hurry_at is not None and now >= self._mesh.hurry_at:
            self._mesh.hurry(now)
        if self._heartbeat_at is None or now < self._heartbeat_at:
            return
        interval = self._params.heartbeat_interval_s
        late = now - self._heartbeat_at
        self._heartbeat_at += interval
        if self._heartbeat_at <= now:
            self._heartbeat_at = now + interval
            self._memory.pending.postpone(late, now)
            self._lazy.postpone(late, now)
        self._memory.expire(now)
        for token in self._memory.pending.overdue(now):
            self._flow.on_verdict(token, VerdictKind.IGNORE, now)
        self._control.heartbeat()
        self._scores.decay(now)
        for state in list(self._peers):
            state.new_heartbeat(now)
            self._doorkeeper.judge(state, now)
        self._doorkeeper.rotate(now)
        self._mesh.heartbeat(now)
        self._lazy.heartbeat(now)
        self._memory.cache.shift()

    # Outputs.

    def wake_at(self) -> float | None:
        """Return when to call `wake`; None before the first input."""
        if self._heartbeat_at is None or self._mesh.hurry_at is None:
            return self._heartbeat_at
        return min(self._heartbeat_at, self._mesh.hurry_at)

    def drain(self) -> list[Action]:
        """Return what is to be done since the last call, in order.

        Everything that waits for a peer is put into as few `Send` as ``rpc_max`` allows; they
        stand last, so that the driver starts validations first.
        """
        actions = self._actions.copy()
        self._actions.clear()
        actions += self._memory.echoes.take()
        for state in self._peers.take_waiting():
            for frame in state.outbox.take_urgent():
                actions.append(Send(peer=state.peer, data=frame, urgent=True))
            for frame in state.outbox.take_frames():
                actions.append(Send(peer=state.peer, data=frame))
        return actions

    def mesh_peers(self, topic: str) -> tuple[PeerId, ...]:
        """Return the mesh peers of a canonical topic; empty when we do not follow it."""
        return tuple(self._mesh.topics.get(topic, ()))

    def stats(self) -> GossipStats:
        """Return a copy of all counters and sizes; cost grows with peers and topics."""
        memory = self._memory
        return replace(
            self._stats,
            pending=len(memory.pending),
            seen=len(memory.seen) + len(memory.hints),
            failures=len(memory.failures),
            cached=len(memory.cache),
            cached_bytes=memory.cache.size_bytes,
            wanted=len(self._lazy),
            slow=sum(state.room is not None for state in self._peers),
            pulling=self._mesh.pulls,
            pulling_peers=sum(state.pulls_until > 0 for state in self._peers),
            mesh={topic: len(mesh) for topic, mesh in self._mesh.topics.items()},
            forward_ms=self._stats.forward_ms.copy(),
            durations_s=self._stats.durations_s.copy(),
            topics={topic: replace(found) for topic, found in self._stats.topics.items()},
            peers={
                state.peer: replace(
                    state.stats,
                    score=state.score,
                    since=state.since,
                    slow=state.slow,
                )
                for state in self._peers
            },
            departed=dict(self._stats.departed),
        )

    def explain(self, peer: PeerId, now: float) -> ScoreTerms | None:
        """Return the score of a connected peer with each of its terms; None for a stranger."""
        state = self._peers.get(peer)
        return None if state is None else self._scores.explain(state.ledger, now)

    def refuses(self, address: str, *, outbound: bool) -> str:
        """Return why a peer at an IP address would not be let in now, empty when it would.

        For the driver, before it dials and before it answers; a protected peer is always let in.
        """
        return self._doorkeeper.refuses(address, outbound=outbound)

    # What serves them.

    def _start(self, now: float) -> None:
        if self._heartbeat_at is None:
            self._heartbeat_at = now + self._params.heartbeat_initial_s

    def _hear(self, state: PeerState, rpc: Rpc, now: float) -> None:
        """Take in what a frame holds, its control messages only from a peer of fair score (G16)."""
        if rpc.malformed:
            self._flow.malformed(state, rpc.malformed)
        self._control.subscriptions(state, rpc, now)
        for topic, data in rpc.messages:
            self._flow.on_message(state, topic, data, now)
        if state.score >= self._score_params.graylist_threshold:
            self._control.hear(state, rpc, now)
        elif rpc.has_control():
            self._unheard(state)

    def _unheard(self, state: PeerState) -> None:
        self._stats.unheard += 1
        state.stats.unheard += 1
