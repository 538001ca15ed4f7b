"""The way of a message: from bytes to `Validate`, and from a verdict to everybody else.

Bytes that may be accepted on a topic in a second, so that none takes all of the node.

A message is measured before its validation and paid for when it is accepted: forged ones cost the
topic nothing, and many at once may pass before the first is paid for, which the bounds of what is
in validation limit.

A header has two topics, its namespace's and ``headers/global``. It crosses a connection once: who
follows both is sent the namespace's message, which holds the header and maybe the blob, and from it
each relay that follows both makes the other one for those that follow ``headers/global`` alone.

Source: LP-6420 §2.2, §4.2, §4.3, §5; LP-6420, Security Considerations; 20-47; decisions G1, G2, G3,
G4, G16, G19, G24, G34; ADR 0009.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from luxrelay.bus import VerdictKind
from luxrelay.errors import EnvelopeError, GossipArgumentError
from luxrelay.gossip.actions import Action, Deliver, Validate
from luxrelay.gossip.announcements import BlobAvailabilityHint, for_headers_global, parent_named
from luxrelay.gossip.envelope import (
    CARRIED,
    VERSION,
    MessageType,
    PeerId,
    RelayMessage,
    TopicKind,
    fold_topic,
    global_topic,
    parse_topic,
    relay_message_id,
    topic_for_namespace,
)
from luxrelay.gossip.lazy import Lazy
from luxrelay.gossip.mesh import Mesh
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.peers import PeerState, PeerTable
from luxrelay.gossip.rpc import encode_message
from luxrelay.gossip.score import UNREADABLE, Scores
from luxrelay.gossip.seen import CachedMessage, EnvelopeDigest, Memory, Pending, Slot
from luxrelay.gossip.stats import GossipStats

BURST_S: Final = 3.0
"""Seconds' worth of bytes that a topic may take at once (S1)."""


class TopicQuota:
    """One bucket of bytes for each topic in use; a rate of 0 limits nothing."""

    __slots__ = ("_buckets", "_rate")

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._buckets: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def exceeded(self, topic: str, now: float) -> bool:
        """Return True while nothing is left for a topic."""
        return bool(self._rate) and self._left(topic, now) <= 0

    def take(self, topic: str, size: int, now: float) -> None:
        """Pay for an accepted message; the last one may overdraw."""
        if self._rate:
            bucket = self._buckets.get(topic)
            # Messages of one instant find nothing to add.
            left = bucket[0] if bucket is not None and bucket[1] == now else self._left(topic, now)
            self._buckets[topic] = (left - size, now)

    def forget(self, topic: str) -> None:
        """Forget a topic that we left."""
        self._buckets.pop(topic, None)

    def _left(self, topic: str, now: float) -> float:
        full = self._rate * BURST_S
        bucket = self._buckets.get(topic)
        if bucket is None:
            return full
        return min(full, bucket[0] + self._rate * max(0.0, now - bucket[1]))


_HEADERS: Final = CARRIED[TopicKind.HEADERS_GLOBAL]
_TYPE_BYTES: Final = frozenset({b"", *(bytes([kind]) for kind in MessageType)})


class Flow:
    """Takes messages in, judges duplicates, and spreads what was accepted."""

    def __init__(
        self,
        params: GossipParams,
        *,
        peers: PeerTable,
        mesh: Mesh,
        lazy: Lazy,
        memory: Memory,
        scores: Scores,
        stats: GossipStats,
        actions: list[Action],
    ) -> None:
        self._params = params
        self._scores = scores
        self._peers = peers
        self._mesh = mesh
        self._lazy = lazy
        self._memory = memory
        self._stats = stats
        self._actions = actions
        self.quota = TopicQuota(params.topic_bytes_per_s)
        """Bytes accepted on each topic."""

    def on_message(self, state: PeerState, spelled: str, data: bytes, now: float) -> None:
        """Ask for the verdict on a message, unless its bytes are known (LP-6420 §4.2; 20-18).

        Cheap first: the bytes' digest decides about most copies before anything is decoded.
        """
        self._stats.received += 1
        state.stats.received += 1
        state.delivered_at = now
        topic = spelled if spelled in self._mesh.topics else fold_topic(spelled)
        if topic is None or topic not in self._mesh.topics:
            self._stats.unwanted += 1
            return
        self._stats.topics[topic].received += 1
        if len(data) > self._params.message_max:
            self.malformed(state, topic=topic)
            return
        # Of a message that reaches the mesh each peer sends a copy or announces it: most of what
        # comes ends at this digest, undecoded.
        digest = EnvelopeDigest(hashlib.sha256(data).digest())
        if self._known(state, topic, digest, data, now):
            return
        message = self._open(state, topic, data)
        if message is None:
            return
        try:
            slot = (topic, relay_message_id(message))
            hint = None if message.type is not MessageType.BLOB_HINT else _hint_of(message)
        except EnvelopeError:
            self.malformed(state, topic=topic)
            return
        if not self._wants(state, slot, hint, kind=message.type, size=len(data), now=now):
            self._lazy.kept(slot, state)
            return
        pending = self._memory.pending.add(
            state.peer, slot=slot, digest=digest, kind=message.type, data=data, now=now
        )
        pending.hint = hint
        pending.holders.update(self._lazy.arrived(slot, state, now))
        self._actions.append(
            Validate(token=pending.token, peer=state.peer, topic=topic, message=message, data=data)
        )

    def on_verdict(self, token: int, kind: VerdictKind, now: float) -> list[PeerState]:
        """Let the verdict have its effect; return the peers it speaks against (G19; 20-57)."""
        pending = self._memory.pending.take(token)
        if pending is None:
            self._stats.strangers += 1
            return []
        if kind is VerdictKind.ACCEPT:
            self._accept(pending, now)
            return []
        if kind is VerdictKind.IGNORE:
            self._memory.failures.add(pending.digest, kind, now + self._params.ignored_ttl_s)
            self._ignored(self._peers.get(next(iter(pending.senders))), pending.slot[0])
            return []
        self._memory.failures.add(pending.digest, kind, now + self._params.rejected_ttl_s)
        found = [self._peers.get(peer) for peer in pending.senders]
        culprits = [state for state in found if state is not None]
        for state in culprits:
            self._rejected(state, pending.slot[0])
        if not culprits:
            self._stats.rejected += 1
            self._stats.of_topic(pending.slot[0]).rejected += 1
        return culprits

    def publish(self, topic: str, data: bytes, now: float) -> int:
        """Send a message of ours; return to how many peers (LP-6420 §4.1, §4.2).

        Raises:
            GossipArgumentError: the bytes are no envelope for this topic.

        """
        try:
            message = RelayMessage.decode(data)
            slot = (topic, relay_message_id(message))
            hint = _hint_of(message)
        except EnvelopeError as error:
            raise GossipArgumentError(
                f"what is published is no envelope: {error.what}", where=topic
            ) from error
        if not self._fits(topic, message) or len(data) > self._params.message_max:
            raise GossipArgumentError(
                f"type {message.type.name} for {message.topic!r} does not go here", where=topic
            )
        digest = EnvelopeDigest(hashlib.sha256(data).digest())
        if not self._memory.learn(slot, digest, now, hint):
            self._stats.duplicates += 1
            return 0
        self._memory.delivered.add(slot[1], now)
        self._stats.published += 1
        counters = self._stats.topics.get(topic)
        if counters is None:
            counters = self._stats.follow(topic, self._params.topics_max)
        counters.published += 1
        pending = self._memory.pending.by_digest(digest)
        # Who sent it to us while we were about to publish it is not sent it again.
        spared = set(pending.senders) if pending is not None else set()
        self._memory.echoes.published(slot, digest)
        for peer in spared:
            self._memory.echoes.sent(digest, peer)
        # The frame is encoded once for all peers that spell the topic alike.
        cached = self._keep(slot, data, self._beside(slot, data) if hint is None else "")
        count = 0
        threshold = self._scores.params.publish_threshold
        for peer, state in self._mesh.publish_peers(topic, now).items():
            if (
                peer not in spared
                and not state.has_beside(cached.beside)
                and state.score >= threshold
                and not self._spared(state)
                and state.outbox.message(cached.wire(state.spell(topic)))
            ):
                count += 1
        return count

    def malformed(self, state: PeerState, count: int = 1, topic: str = UNREADABLE) -> None:
        """Count frames or messages that could not be read."""
        self._stats.malformed += count
        state.stats.malformed += count
        if topic != UNREADABLE:
            self._stats.of_topic(topic).rejected += count
        self._scores.invalid(state.ledger, topic, count)
        state.suspect = True

    def _wants(
        self,
        state: PeerState,
        slot: Slot,
        hint: BlobAvailabilityHint | None,
        *,
        kind: MessageType,
        size: int,
        now: float,
    ) -> bool:
        """Return False, and count why, when a well-formed message is not worth a validation."""
        if hint is not None and not self._memory.hints.news(slot, hint):
            self._duplicate(state, slot[0])
            return False
        if self._memory.seen_of(kind).full(slot):
            self._stats.contended += 1
        elif self.quota.exceeded(slot[0], now):
            self._stats.throttled += 1
        elif not self._memory.pending.room(state.peer, size):
            self._stats.busy += 1
        else:
            return True
        state.stats.ignored += 1
        return False

    def _known(
        self, state: PeerState, topic: str, digest: EnvelopeDigest, data: bytes, now: float
    ) -> bool:
        """Return True, and count, when exactly these bytes were dealt with already.

        A copy of what is in validation waits for that verdict: its sender is not sent the message,
        and shares the blame when it is rejected.
        """
        self._memory.echoes.sent(digest, state.peer)
        pending = self._memory.pending.by_digest(digest)
        if pending is not None:
            pending.add_sender(state.peer, self._params.peers_max)
        elif not self._memory.accepted(digest):
            failure = self._memory.failures.verdict(digest, now)
            if failure is None:
                return False
            if failure is VerdictKind.REJECT:
                self._rejected(state, topic)
            else:
                self._ignored(state, topic)
                self._keeps_promise(state, topic, data)
            return True
        else:
            self._memory.sighted(digest, now)
            self._scores.duplicate(state.ledger, digest, now)
        self._duplicate(state, topic)
        return True

    def _duplicate(self, state: PeerState, topic: str) -> None:
        self._stats.duplicates += 1
        state.stats.duplicates += 1
        self._stats.topics[topic].duplicates += 1

    def _keeps_promise(self, state: PeerState, topic: str, data: bytes) -> None:
        """Note that a message we asked for came, though we ignored the same bytes lately."""
        if state.wanted:
            with suppress(EnvelopeError):
                self._lazy.kept((topic, relay_message_id(RelayMessage.decode(data))), state)

    def _open(self, state: PeerState, topic: str, data: bytes) -> RelayMessage | None:
        """Return the envelope, or None after counting what is wrong with it (20-08, 20-33)."""
        try:
            message = RelayMessage.decode(data)
        except EnvelopeError:
            if data[:1] == bytes([VERSION]) and data[1:2] not in _TYPE_BYTES:
                # Unknown types are rejected by name, because G4 leaves no default case.
                self._rejected(state, topic)
            else:
                self.malformed(state, topic=topic)
            return None
        if self._fits(topic, message):
            return message
        self._rejected(state, topic)
        return None

    @staticmethod
    def _fits(topic: str, message: RelayMessage) -> bool:
        """Return True when the envelope names this topic and the topic carries its type."""
        return (
            message.topic == topic or fold_topic(message.topic) == topic
        ) and message.type in CARRIED[parse_topic(topic).kind]

    def _accept(self, pending: Pending, now: float) -> None:
        """Remember, forward and deliver an accepted message."""
        topic, message_id = pending.slot
        if not self._memory.learn(pending.slot, pending.digest, now, pending.hint):
            # Published by ourselves meanwhile, or the slot filled up with other envelopes.
            self._stats.contended += 1
            return
        self._stats.accepted += 1
        self._credit(pending, now)
        beside = ""
        if pending.kind in _HEADERS:
            beside = self._beside(pending.slot, pending.data)
            self._pass_on(pending, now)
        cached = self._keep(pending.slot, pending.data, beside)
        mesh = self._mesh.topics.get(topic)
        if mesh is None:
            return
        self._stats.topics[topic].accepted += 1
        self._stats.forward_ms.observe((now - pending.since) * 1000)
        self.quota.take(topic, len(pending.data), now)
        self._forward(mesh, pending, cached)
        # A hint that was let through says something new under the same id (G3).
        if self._memory.delivered.add(message_id, now) or pending.hint is not None:
            self._stats.delivered += 1
            self._actions.append(Deliver(topic=topic, data=pending.data, message_id=message_id))

    def _forward(
        self, mesh: Mapping[PeerId, PeerState], pending: Pending, cached: CachedMessage
    ) -> None:
        """Send an accepted message to the mesh, but to nobody known to have it (20-19)."""
        topic, message_id = pending.slot
        large = len(pending.data) >= self._params.idontwant_size_min
        first = self._memory.seen_of(pending.kind).count(pending.slot) == 1
        for peer, state in mesh.items():
            if peer in pending.senders or peer in pending.holders:
                continue
            if state.has_beside(cached.beside):
                continue
            if state.declined and first and message_id in state.declined:
                self._stats.idontwant_heeded += 1
                continue
            if large:
                self._lazy.decline(state, message_id)
            if state.outbox.message(cached.wire(state.spell(topic))):
                self._stats.forwarded += 1

    def _spared(self, state: PeerState) -> bool:
        """Return True, and count it, for a slow peer: it asks, or catches up (G39, G41)."""
        self._stats.slow_spared += state.slow
        return state.slow

    def _beside(self, slot: Slot, data: bytes) -> str:
        """Return the topic of a namespace on which its followers get this header of us (G34).

        Empty for what is not on ``headers/global``, and for a header that we know from there alone:
        then we may be the only way to a part of the namespace's mesh.
        """
        topic = parse_topic(slot[0])
        if topic.kind is not TopicKind.HEADERS_GLOBAL:
            return ""
        message = RelayMessage.decode(data)
        other = topic_for_namespace(topic.network, parent_named(message))
        return other if self._memory.has((other, slot[1])) else ""

    def _pass_on(self, pending: Pending, now: float) -> None:
        """Announce a namespace's header to those that follow ``headers/global`` alone (G34).

        Nothing is made while there is nobody; who comes later finds it by comparing sets.
        """
        topic, message_id = pending.slot
        name = self._headers_of(topic)
        if not name or self._memory.has((name, message_id)):
            return
        mesh = self._mesh.topics[name]
        if all(state.has_beside(topic) for state in self._peers.subscribers(name).values()):
            return
        data = for_headers_global(RelayMessage.decode(pending.data), parse_topic(topic)).encode()
        digest = EnvelopeDigest(hashlib.sha256(data).digest())
        if not self._memory.learn((name, message_id), digest, now, None):
            return
        cached = self._keep((name, message_id), data, topic)
        for peer, state in mesh.items():
            # Who published into the namespace without following it has the header already.
            if state.has_beside(topic) or peer in pending.senders:
                continue
            if state.outbox.message(cached.wire(state.spell(name))):
                self._stats.passed_on += 1

    def _keep(self, slot: Slot, data: bytes, beside: str) -> CachedMessage:
        cached = CachedMessage(slot[0], slot[1], encode_message(slot[0], data), beside)
        self._memory.cache.put(cached)
        return cached

    def _credit(self, pending: Pending, now: float) -> None:
        """Count an accepted message for those that brought it; the first one may be gone."""
        source = self._peers.get(next(iter(pending.senders)))
        if source is None:
            return
        source.stats.accepted += 1
        ledgers = [source.ledger]
        if len(pending.senders) > 1:
            found = map(self._peers.get, pending.senders)
            ledgers += [s.ledger for s in found if s is not None and s is not source]
        beside = self._headers_of(pending.slot[0])
        self._scores.accepted(ledgers, pending.slot[0], pending.digest, now, beside=beside)

    def _headers_of(self, topic: str) -> str:
        """Return ``headers/global`` beside a namespace's topic, where we follow it; or nothing."""
        parsed = parse_topic(topic)
        if parsed.kind is not TopicKind.NAMESPACE:
            return ""
        name = global_topic(parsed.network, TopicKind.HEADERS_GLOBAL)
        return name if name in self._mesh.topics else ""

    def _ignored(self, state: PeerState | None, topic: str) -> None:
        self._stats.ignored += 1
        self._stats.of_topic(topic).ignored += 1
        if state is not None:
            state.stats.ignored += 1

    def _rejected(self, state: PeerState, topic: str) -> None:
        self._stats.rejected += 1
        self._stats.of_topic(topic).rejected += 1
        state.stats.rejected += 1
        self._scores.invalid(state.ledger, topic)
        state.suspect = True


def _hint_of(message: RelayMessage) -> BlobAvailabilityHint | None:
    """Return what a hint says, None for another type; EnvelopeError when it cannot be read."""
    if message.type is MessageType.BLOB_HINT:
        return BlobAvailabilityHint.decode(message.payload)
    return None
