"""Counters of the router; `GossipRouter.stats` returns copies.

Source: LP-6420 §9; decisions G31.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from luxrelay.gossip.envelope import PeerId

FORWARD_BOUNDS_MS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0)
"""Upper bounds of the classes of `GossipStats.forward_ms`."""
DURATION_BOUNDS_S: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
"""Upper bounds of the classes of `GossipStats.durations_s`."""


@dataclass(slots=True)
class Histogram:
    """Numbers counted by class; the last class is above all bounds."""

    bounds: tuple[float, ...]
    """Upper bounds, each inclusive."""
    counts: list[int]
    """How many fell into each class."""
    total: float = 0.0
    """Their sum."""

    @classmethod
    def of(cls, bounds: tuple[float, ...]) -> Histogram:
        """Return an empty one."""
        return cls(bounds, [0] * (len(bounds) + 1))

    def observe(self, value: float) -> None:
        """Count a number."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        """Return a copy."""
        return Histogram(self.bounds, list(self.counts), self.total)


@dataclass(slots=True, kw_only=True)
class TopicStats:
    """Counters of one topic since we follow it or publish to it (LP-6420 §9.1)."""

    received: int = 0
    """Messages received, whatever became of them."""
    duplicates: int = 0
    """Of these, known already."""
    accepted: int = 0
    """Messages accepted."""
    ignored: int = 0
    """Messages ignored by verdict."""
    rejected: int = 0
    """Messages rejected, once for each peer that brought the bytes; malformed ones too."""
    published: int = 0
    """Messages we published."""


@dataclass(slots=True, kw_only=True)
class PeerStats:
    """Counters of one connection of a peer."""

    received: int = 0
    """Messages it sent us, whatever became of them."""
    duplicates: int = 0
    """Of these, known already."""
    accepted: int = 0
    """Messages it brought first that were accepted."""
    ignored: int = 0
    """Messages it brought that were ignored, busy ones included."""
    rejected: int = 0
    """Messages it brought that were rejected; each peer that brought the bytes is counted."""
    malformed: int = 0
    """Frames and messages it sent that could not be read."""
    unheard: int = 0
    """Frames it sent that were not heard, whole or their control messages, because of its score."""
    grafts_refused: int = 0
    """GRAFTs it sent during its back-off."""
    promises_broken: int = 0
    """Messages it announced, was asked for and did not deliver in time."""
    control_floods: int = 0
    """Heartbeats in which it exceeded a cap on control messages."""
    score: float = 0.0
    """Its score as of the last heartbeat or offence."""
    since: float = 0.0
    """When it connected, the router's ``now``."""
    slow: bool = False
    """Whether its link takes less than is offered, so that it is in no mesh (G39)."""


@dataclass(slots=True, kw_only=True)
class GossipStats:
    """Counters since the router was made, and what it holds now."""

    received: int = 0
    """Messages received, whatever became of them."""
    duplicates: int = 0
    """Messages received that were known already."""
    accepted: int = 0
    """Messages accepted."""
    ignored: int = 0
    """Messages ignored by verdict or for want of one; copies of a recently ignored one too."""
    rejected: int = 0
    """Messages rejected, once for each peer that brought the bytes; later copies too."""
    malformed: int = 0
    """Frames and messages that could not be read."""
    busy: int = 0
    """Messages ignored because too many were in validation."""
    contended: int = 0
    """Messages ignored because their id has ``digests_max`` accepted messages already, or because
    we published the same bytes while they were in validation."""
    throttled: int = 0
    """Messages ignored because their topic has taken its bytes."""
    unwanted: int = 0
    """Messages on topics we do not subscribe to."""
    strangers: int = 0
    """Frames from peers that are not connected, and verdicts on unknown tokens."""
    published: int = 0
    """Messages we published."""
    forwarded: int = 0
    """Sends of accepted messages to mesh peers."""
    passed_on: int = 0
    """Sends of a namespace's headers to peers that follow ``headers/global`` alone."""
    delivered: int = 0
    """Messages handed to the application."""
    subscriptions_refused: int = 0
    """Subscriptions beyond ``topics_max``."""
    grafts_refused: int = 0
    """GRAFTs answered with a PRUNE."""
    ihave_refused: int = 0
    """Ids in IHAVEs beyond a cap."""
    iwant_served: int = 0
    """Messages sent on request."""
    iwant_refused: int = 0
    """Ids in IWANTs beyond a cap, and messages asked for too often."""
    idontwant_sent: int = 0
    """Messages declined to peers, once a peer."""
    idontwant_heeded: int = 0
    """Messages not forwarded because the peer had declined them."""
    idontwant_refused: int = 0
    """Ids that peers declined beyond a cap."""
    promises_broken: int = 0
    """Messages announced, asked for and not delivered in time."""
    promises_stalled: int = 0
    """The same, by peers that sent nothing at all meanwhile: a network may have stopped them."""
    slowed: int = 0
    """Times a peer left the meshes because its link took less than was offered."""
    slow_spared: int = 0
    """Messages not sent to slow peers; they are told the ids that fit."""
    pulled: int = 0
    """Times our own link was slow, so that messages were fetched by catching up."""
    ihave_left: int = 0
    """Ids not asked for meanwhile."""
    dropped_messages: int = 0
    """Messages not queued because a peer's queue was full."""
    dropped_gossip: int = 0
    """IHAVE and IWANT entries not queued, or thrown out to make room for messages."""
    disconnected: int = 0
    """Peers the router had disconnected for their score."""
    refused: int = 0
    """Connections refused: too many, another protocol, or a peer that was disconnected lately."""
    rotated: int = 0
    """Peers disconnected so that others get their chance."""
    unheard: int = 0
    """Frames not heard, whole or their control messages, because of the sender's score."""
    control_floods: int = 0
    """Heartbeats in which a peer exceeded a cap on control messages, once a peer."""
    grafts_opportunistic: int = 0
    """Peers grafted because a mesh was poor."""
    px_suggested: int = 0
    """Peers we suggested to others."""
    px_dials: int = 0
    """Peers suggested to us that the driver was asked to dial."""
    px_refused: int = 0
    """Suggested peers passed over: no record, known, too many, or from a peer of low score."""

    pending: int = 0
    """Messages in validation now."""
    seen: int = 0
    """Message ids known now."""
    failures: int = 0
    """Digests of failed messages known now."""
    cached: int = 0
    """Messages that can be asked for now."""
    cached_bytes: int = 0
    """Bytes of these."""
    wanted: int = 0
    """Ids asked for and not yet received now."""
    slow: int = 0
    """Peers whose link takes less than is offered now."""
    pulling: bool = False
    """Whether messages are fetched by catching up now."""
    pulling_peers: int = 0
    """Peers that do so now."""
    forward_ms: Histogram = field(default_factory=lambda: Histogram.of(FORWARD_BOUNDS_MS))
    """From receiving a message to forwarding it, milliseconds of our own clock (G31)."""
    durations_s: Histogram = field(default_factory=lambda: Histogram.of(DURATION_BOUNDS_S))
    """How long the connections lasted that have ended, seconds (LP-6420 §9.2)."""
    topics: dict[str, TopicStats] = field(default_factory=dict)
    """Counters of each topic that we follow, and of those we only publish to while there are
    fewer than ``topics_max``; so at most twice as many."""
    mesh: dict[str, int] = field(default_factory=dict)
    """Mesh peers by topic now."""
    peers: dict[PeerId, PeerStats] = field(default_factory=dict)
    """Counters of each connected peer."""
    departed: dict[PeerId, PeerStats] = field(default_factory=dict)
    """Counters of the last ``peers_max`` peers that left and did not come back, as they left; what
    a peer was disconnected for can be read after it was."""

    def follow(self, topic: str, topics_max: int) -> TopicStats:
        """Return the counters of a topic, lost ones when there are ``topics_max`` others."""
        if topic not in self.topics and len(self.topics) < topics_max:
            self.topics[topic] = TopicStats()
        return self.of_topic(topic)

    def of_topic(self, topic: str) -> TopicStats:
        """Return the counters of a topic; what is counted for another one is lost."""
        found = self.topics.get(topic)
        return TopicStats() if found is None else found
