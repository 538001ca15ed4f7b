"""A peer's score, term by term, with decay, memory and `Scores.explain`.

Source: LP-6420 §5; decisions G16, G17, G18, G19 and the table of score defaults.
"""

# Theory of operation
#
# Decides: what a peer's behaviour adds up to. What follows from a score (graft, gossip, publish,
#   hear, disconnect) is decided where it happens, by the thresholds of `ScoreParams`.
# Does not know: messages, meshes, outboxes. It is told of joins, grafts, prunes, deliveries and
#   offences, and counts.
# The formula, in the order of `ScoreTerms`:
#   topic credit    Σ weight × (P1 time in mesh + P2 first deliveries), at most topic_credit_cap
#   topic penalty   Σ weight × (P3 mesh deficit² + P3b mesh failures + P4 invalid²)
#   application     P5, app_weight × what the application or a validator's proof gives
#   colocation      P6, the squared excess of peers at one address
#   behaviour       P7, the squared excess of offences
#   score = credit − topic penalty + application − colocation − behaviour
# Machines and their states: a ledger is live while the peer is connected, kept for retain_s after
#   it left when its score was below zero, and gone otherwise. A peer that comes back gets its kept
#   ledger back, faded by the time it was away.
# Inputs and what they may cause: none causes an action.
# Timers: none of its own; `decay(now)` is called at each heartbeat and takes the time since the
#   last call into account, so late heartbeats forgive no less and no more.
# Bounds: ledgers: connected peers and retained_max. Counters of a ledger: topics_max and one for
#   what names no topic. Messages whose late copies count: window_messages_max.
# Deviations from the specification: penalties are squares of what exceeds a threshold and never
#   negative (G17); P3b exists (G18); the cap limits credit before penalties, so that nobody earns
#   room for offences beyond the cap; frames that name no topic count as invalid messages of a
#   topic of their own, with weight 1 (the verdict table says REJECT for malformed).
# What else to change when you change this: docs/reference of scores; `GossipRouter.explain`.

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from luxrelay.gossip.envelope import PeerId, TopicKind, parse_topic
from luxrelay.gossip.score_params import ScoreParams, TopicScoreParams
from luxrelay.gossip.seen import EnvelopeDigest

UNREADABLE: Final = ""
"""Stands for a topic where the bytes name none."""


@lru_cache(maxsize=4096)
def _kind(topic: str) -> TopicKind:
    return parse_topic(topic).kind


class TopicCounters:
    """What a peer did on one topic."""

    __slots__ = ("failures", "first", "grafted_at", "invalid", "mesh", "params")

    def __init__(self, params: TopicScoreParams) -> None:
        self.params = params
        self.grafted_at: float | None = None
        """Since when it has been in our mesh."""
        self.first = 0.0
        self.mesh = 0.0
        self.failures = 0.0
        self.invalid = 0.0

    def idle(self) -> bool:
        """Return True when forgetting it changes no score."""
        return self.grafted_at is None and not (
            self.first or self.mesh or self.failures or self.invalid
        )

    def time_in_mesh(self, now: float) -> float:
        """Return P1."""
        if self.grafted_at is None:
            return 0.0
        params = self.params
        quanta = max(0.0, now - self.grafted_at) / params.time_in_mesh_quantum_s
        return min(quanta, params.time_in_mesh_cap) * params.time_in_mesh_weight

    def deficit(self, now: float) -> float:
        """Return how many deliveries in the mesh are missing, 0 before the activation time."""
        params = self.params
        if (
            self.grafted_at is None
            or now - self.grafted_at < params.mesh_deliveries_activation_s
            or self.mesh >= params.mesh_deliveries_threshold
        ):
            return 0.0
        return params.mesh_deliveries_threshold - self.mesh

    def penalty(self, now: float) -> float:
        """Return P3 + P3b + P4."""
        params = self.params
        total = params.invalid_weight * self.invalid * self.invalid
        if params.mesh_deliveries_weight:
            total += params.mesh_deliveries_weight * self.deficit(now) ** 2
        return total + params.mesh_failures_weight * self.failures


class PeerLedger:
    """Everything that counts for or against one peer."""

    __slots__ = ("address", "app", "offences", "peer", "refused_until", "topics", "validator")

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer
        self.address = ""
        """What stands for its address, empty when unknown or exempt."""
        self.topics: dict[str, TopicCounters] = {}
        self.offences = 0.0
        self.app = 0.0
        self.validator = False
        self.refused_until = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTerms:
    """What a topic contributes, already multiplied by its weight; penalties are positive."""

    time_in_mesh: float
    """P1."""
    first_deliveries: float
    """P2."""
    mesh_deficit: float
    """P3."""
    mesh_failures: float
    """P3b."""
    invalid: float
    """P4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTerms:
    """A score taken apart; `score` is the sum with the signs of LP-6420 §5.1."""

    score: float
    """credit − topic_penalty + application − colocation − behaviour."""
    credit: float
    """Credit of all topics, after the cap."""
    topic_penalty: float
    """Penalties of all topics."""
    application: float
    """P5."""
    colocation: float
    """P6."""
    behaviour: float
    """P7."""
    offences: float
    """The counter behind `behaviour`."""
    topics: dict[str, TopicTerms] = field(default_factory=dict)
    """By topic; the empty one stands for frames that named none."""


class Scores:
    """The ledgers of a router.

    Args:
        params: Weights and bounds.
        heartbeat_s: Seconds that the decays of `TopicScoreParams` are meant for.
        topics_max: Topics counted for one peer.

    """

    def __init__(self, params: ScoreParams, *, heartbeat_s: float, topics_max: int) -> None:
        self.params = params
        self._heartbeat_s = heartbeat_s
        self._topics_max = topics_max
        self._live: dict[PeerId, PeerLedger] = {}
        # When it was kept, until when, and what; in order of age.
        self._kept: dict[PeerId, tuple[float, float, PeerLedger]] = {}
        self._at_address: dict[str, int] = {}
        self._window: dict[EnvelopeDigest, tuple[float, tuple[str, ...], set[PeerId]]] = {}
        self._decayed_at: float | None = None

    def __len__(self) -> int:
        return len(self._live) + len(self._kept)

    # Peers.

    def joined(self, peer: PeerId, now: float) -> PeerLedger:
        """Return the ledger of a peer that connected; a kept one has faded meanwhile."""
        ledger = self._live.get(peer)
        if ledger is None:
            kept = self._kept.pop(peer, None)
            if kept is None or kept[1] <= now:
                ledger = PeerLedger(peer)
            else:
                ledger = kept[2]
                self._fading(now - kept[0]).ledger(ledger)
            self._live[peer] = ledger
        return ledger

    def at(self, ledger: PeerLedger, address: str) -> None:
        """Note what stands for the address of a connected peer; empty for none."""
        self._leave_address(ledger)
        ledger.address = address
        if address:
            self._at_address[address] = self._at_address.get(address, 0) + 1

    def left(self, ledger: PeerLedger, now: float) -> None:
        """Let a ledger go, or keep it for a while when it speaks against its peer."""
        if self._live.pop(ledger.peer, None) is None:
            return
        for topic in list(ledger.topics):
            self.pruned(ledger, topic, now)
        self._leave_address(ledger)
        ledger.app, ledger.validator = 0.0, False
        # Offences that cost nothing yet, and those that credit made up for, stay counted as well:
        # whoever leaves before they add up comes back to them.
        faults = ledger.offences or any(c.invalid or c.failures for c in ledger.topics.values())
        if faults or ledger.refused_until > now or self.score(ledger, now) < 0:
            if len(self._kept) >= self.params.retained_max:
                del self._kept[next(iter(self._kept))]
            until = max(now + self.params.retain_s, ledger.refused_until)
            self._kept[ledger.peer] = (now, until, ledger)

    def refuse(self, ledger: PeerLedger, now: float) -> None:
        """Note that a peer is to be refused from now on (G16)."""
        ledger.refused_until = now + self.params.refuse_s

    def refused_s(self, peer: PeerId, now: float) -> float:
        """Return for how many more seconds a peer that is not connected is refused."""
        kept = self._kept.get(peer)
        return max(0.0, kept[2].refused_until - now) if kept is not None else 0.0

    # What peers do.

    def grafted(self, ledger: PeerLedger, topic: str, now: float) -> None:
        """Start the time in the mesh; it earns nothing on a topic beyond the bound."""
        counters = self._counters(ledger, topic)
        if counters.grafted_at is None and topic in ledger.topics:
            counters.grafted_at = now

    def pruned(self, ledger: PeerLedger, topic: str, now: float, *, forgiven: bool = False) -> None:
        """End the time in the mesh, and keep a deficit with which it ends (P3b).

        Args:
            ledger: Whose.
            topic: Canonical topic.
            now: Monotonic seconds.
            forgiven: Whether a slow link is to blame, the peer's or our own (G38).

        """
        counters = ledger.topics.get(topic)
        if counters is not None and counters.grafted_at is not None:
            if counters.params.mesh_failures_weight and not forgiven:
                counters.failures += counters.deficit(now) ** 2
            counters.grafted_at = None

    def accepted(
        self,
        ledgers: list[PeerLedger],
        topic: str,
        digest: EnvelopeDigest,
        now: float,
        *,
        beside: str = "",
    ) -> None:
        """Count an accepted message for those that brought it, the first one first (P2, P3).

        Args:
            ledgers: Theirs.
            topic: The topic that brought it.
            digest: Of its bytes.
            now: Monotonic seconds.
            beside: A topic on which its header then need not come; empty when there is none (G34).

        """
        counters = self._counters(ledgers[0], topic)
        params = counters.params
        counters.first = min(counters.first + 1, params.first_deliveries_cap)
        watched = () if not _watches(params) else (topic,)
        if beside and _watches(self.params.headers_global):
            watched, params = (*watched, beside), self.params.headers_global
        if watched:
            for ledger in ledgers:
                for each in watched:
                    self._delivered(ledger, each)
            if len(self._window) >= self.params.window_messages_max:
                del self._window[next(iter(self._window))]
            until = now + params.mesh_deliveries_window_s
            self._window[digest] = (until, watched, {ledger.peer for ledger in ledgers})

    def duplicate(self, ledger: PeerLedger, digest: EnvelopeDigest, now: float) -> None:
        """Count a late copy of an accepted message, once a peer and within the window (P3)."""
        entry = self._window.get(digest)
        if entry is not None and now < entry[0] and ledger.peer not in entry[2]:
            entry[2].add(ledger.peer)
            for topic in entry[1]:
                self._delivered(ledger, topic)

    def invalid(self, ledger: PeerLedger, topic: str, count: int = 1) -> None:
        """Count invalid messages (P4); `UNREADABLE` where they name no topic."""
        self._counters(ledger, topic).invalid += count

    def misbehaved(self, ledger: PeerLedger, offences: float) -> None:
        """Count offences of behaviour (P7)."""
        ledger.offences += offences

    # Scores.

    def score(self, ledger: PeerLedger, now: float) -> float:
        """Return the score; cost grows with the topics on which something counts."""
        credit = penalty = 0.0
        for counters in ledger.topics.values():
            topic = counters.params
            if counters.grafted_at is not None or counters.first:
                credit += topic.weight * (
                    counters.time_in_mesh(now) + topic.first_deliveries_weight * counters.first
                )
            if counters.invalid or counters.failures or topic.mesh_deliveries_weight:
                penalty += topic.weight * counters.penalty(now)
        params = self.params
        total = min(credit, params.topic_credit_cap) - penalty
        # Each heartbeat counts every peer: terms that are zero are not worth a call.
        if ledger.app or ledger.validator:
            total += self._application(ledger)
        if ledger.address and self._at_address[ledger.address] > params.colocation_threshold:
            total -= self._colocation(ledger)
        if ledger.offences:
            total -= self._behaviour(ledger)
        return total

    def merit(self, ledger: PeerLedger, now: float) -> float:
        """Return the score without the credit for time in our meshes (P1).

        A peer has that credit for doing nothing, so it says nothing of whether a mesh is good.
        """
        standing = sum(
            counters.params.weight * counters.time_in_mesh(now)
            for counters in ledger.topics.values()
        )
        return self.score(ledger, now) - standing

    def explain(self, ledger: PeerLedger, now: float) -> ScoreTerms:
        """Return the score with each term that it is made of."""
        topics = {
            topic: TopicTerms(
                time_in_mesh=counters.params.weight * counters.time_in_mesh(now),
                first_deliveries=counters.params.weight
                * counters.params.first_deliveries_weight
                * counters.first,
                mesh_deficit=counters.params.weight
                * counters.params.mesh_deliveries_weight
                * counters.deficit(now) ** 2,
                mesh_failures=counters.params.weight
                * counters.params.mesh_failures_weight
                * counters.failures,
                invalid=counters.params.weight
                * counters.params.invalid_weight
                * counters.invalid**2,
            )
            for topic, counters in ledger.topics.items()
        }
        credit = sum(terms.time_in_mesh + terms.first_deliveries for terms in topics.values())
        return ScoreTerms(
            score=self.score(ledger, now),
            credit=min(credit, self.params.topic_credit_cap),
            topic_penalty=sum(
                terms.mesh_deficit + terms.mesh_failures + terms.invalid
                for terms in topics.values()
            ),
            application=self._application(ledger),
            colocation=self._colocation(ledger),
            behaviour=self._behaviour(ledger),
            offences=ledger.offences,
            topics=topics,
        )

    def decay(self, now: float) -> None:
        """Let counters fade by the time that has passed, and forget what is over."""
        last = now - self._heartbeat_s if self._decayed_at is None else self._decayed_at
        self._decayed_at = now
        fading = self._fading(now - last)
        for ledger in self._live.values():
            if ledger.topics or ledger.offences:
                fading.ledger(ledger)
        while self._kept:
            peer = next(iter(self._kept))
            if self._kept[peer][1] > now:
                break
            del self._kept[peer]
        while self._window:
            digest = next(iter(self._window))
            if self._window[digest][0] > now:
                break
            del self._window[digest]

    # What serves them.

    def _fading(self, elapsed_s: float) -> _Fading:
        return _Fading(max(0.0, elapsed_s), self._heartbeat_s, self.params)

    def _counters(self, ledger: PeerLedger, topic: str) -> TopicCounters:
        counters = ledger.topics.get(topic)
        if counters is None:
            # One place is kept for what names no topic; beyond the bound it takes everything in.
            if topic != UNREADABLE and len(ledger.topics) >= self._topics_max:
                return self._counters(ledger, UNREADABLE)
            params = self.params.unreadable
            if topic != UNREADABLE:
                params = self.params.of(_kind(topic))
            counters = ledger.topics[topic] = TopicCounters(params)
        return counters

    def _delivered(self, ledger: PeerLedger, topic: str) -> None:
        """Count a delivery of a mesh peer."""
        counters = ledger.topics.get(topic)
        if counters is not None and counters.grafted_at is not None:
            counters.mesh = min(counters.mesh + 1, counters.params.mesh_deliveries_cap)

    def _leave_address(self, ledger: PeerLedger) -> None:
        if ledger.address:
            left = self._at_address[ledger.address] - 1
            if left:
                self._at_address[ledger.address] = left
            else:
                del self._at_address[ledger.address]
        ledger.address = ""

    def _application(self, ledger: PeerLedger) -> float:
        given = ledger.app + (self.params.validator_credit if ledger.validator else 0.0)
        return self.params.app_weight * given

    def _colocation(self, ledger: PeerLedger) -> float:
        """Return P6."""
        if not ledger.address:
            return 0.0
        excess = self._at_address[ledger.address] - self.params.colocation_threshold
        return self.params.colocation_weight * excess * excess if excess > 0 else 0.0

    def _behaviour(self, ledger: PeerLedger) -> float:
        """Return P7."""
        excess = ledger.offences - self.params.behaviour_threshold
        return self.params.behaviour_weight * excess * excess if excess > 0 else 0.0


class _Fading:
    """One step of decay: the powers are taken once for each kind of topic, not for each peer."""

    __slots__ = ("_beats", "_factors", "_minimum", "_offences")

    def __init__(self, elapsed_s: float, heartbeat_s: float, params: ScoreParams) -> None:
        self._beats = elapsed_s / heartbeat_s
        self._minimum = params.counter_min
        self._offences = params.behaviour_decay_per_s**elapsed_s
        self._factors: dict[int, tuple[float, float, float, float]] = {}

    def ledger(self, ledger: PeerLedger) -> None:
        """Let a ledger fade, and forget the topics on which nothing counts any more."""
        if ledger.offences:
            ledger.offences = self._left(ledger.offences, self._offences)
        idle = None
        for topic, counters in ledger.topics.items():
            if counters.first or counters.mesh or counters.failures or counters.invalid:
                self._counters(counters)
            if counters.grafted_at is None and counters.idle():
                idle = [*(idle or ()), topic]
        for topic in idle or ():
            del ledger.topics[topic]

    def _counters(self, counters: TopicCounters) -> None:
        params = counters.params
        factors = self._factors.get(id(params))
        if factors is None:
            factors = self._factors[id(params)] = (
                params.first_deliveries_decay**self._beats,
                params.mesh_deliveries_decay**self._beats,
                params.mesh_failures_decay**self._beats,
                params.invalid_decay**self._beats,
            )
        # Most have one counter that is not zero.
        if counters.first:
            counters.first = self._left(counters.first, factors[0])
        if counters.mesh:
            counters.mesh = self._left(counters.mesh, factors[1])
        if counters.failures:
            counters.failures = self._left(counters.failures, factors[2])
        if counters.invalid:
            counters.invalid = self._left(counters.invalid, factors[3])

    def _left(self, value: float, factor: float) -> float:
        value *= factor
        return value if value >= self._minimum else 0.0


def _watches(params: TopicScoreParams) -> bool:
    """Whether deliveries in a topic's mesh are counted (P3, P3b)."""
    return bool(params.mesh_deliveries_weight or params.mesh_failures_weight)
