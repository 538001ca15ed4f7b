"""State of each peer in the router, and its subscriptions.

Source: LP-6420 §1, §8; decisions G5, G21, G25.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from luxrelay.gossip.identity import PeerId
from luxrelay.gossip.outbox import PeerOutbox
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.score import PeerLedger
from luxrelay.gossip.stats import GossipStats, PeerStats
from luxrelay.gossip.topics import fold_topic

_NOBODY: Final[Mapping[PeerId, PeerState]] = {}


class PeerState:
    """One connected peer."""

    __slots__ = (
        "declined",
        "declined_heard",
        "declines",
        "flooded",
        "ihave_heard",
        "ihave_rpcs",
        "ihave_sent",
        "iwant_asked",
        "iwant_heard",
        "ledger",
        "light",
        "outbound",
        "outbox",
        "peer",
        "protected",
        "protocol",
        "record",
        "score",
        "since",
        "stats",
        "suspect",
        "topics",
        "wanted",
    )

    def __init__(
        self, peer: PeerId, protocol: str, *, outbound: bool, outbox: PeerOutbox, ledger: PeerLedger
    ) -> None:
        self.peer = peer
        self.protocol = protocol
        self.outbound = outbound
        """True when we dialed it."""
        self.outbox = outbox
        self.topics: dict[str, str] = {}
        """Canonical names of what it subscribes to, each with the peer's own spelling."""
        self.stats = PeerStats()
        self.since = 0.0
        """When it connected."""
        self.ledger = ledger
        self.score = 0.0
        """As of the last heartbeat or offence; higher is better."""
        self.suspect = False
        """An offence was counted since the score was."""
        self.protected = False
        """Chosen by the operator: not subject to rotation and diversity."""
        self.light = False
        """A light node, which is in no mesh (G26)."""
        self.record = b""
        """Its signed peer record; empty when it gave none."""
        self.flooded = False
        """A cap on control messages was exceeded since the last heartbeat."""
        self.declined: dict[bytes, int] = {}
        """Ids it does not want, each with the heartbeat in which it said so; the oldest first."""
        self.declined_heard = 0
        """How many since the last heartbeat."""
        self.declines = False
        """It speaks gossipsub 1.2 and so heeds what we decline."""
        self.wanted = 0
        """Ids it was asked for and has not delivered."""
        self.ihave_rpcs = 0
        """RPCs with IHAVE since the last heartbeat; the next four are ids since then."""
        self.ihave_heard = 0
        self.ihave_sent = 0
        self.iwant_asked = 0
        self.iwant_heard = 0

    def spell(self, topic: str) -> str:
        """Return the peer's own spelling of a canonical topic (G5)."""
        return self.topics.get(topic, topic)

    def new_heartbeat(self) -> None:
        """Renew the allowances."""
        self.ihave_rpcs = 0
        self.ihave_heard = 0
        self.ihave_sent = 0
        self.iwant_asked = 0
        self.iwant_heard = 0
        self.declined_heard = 0
        self.flooded = False

    def forget_declined(self, before: int) -> None:
        """Forget what was declined before a heartbeat."""
        while self.declined:
            oldest = next(iter(self.declined))
            if self.declined[oldest] >= before:
                return
            del self.declined[oldest]


class PeerTable:
    """The connected peers, at most ``peers_max``, and the subscribers of each topic.

    Dictionaries stand for sets throughout: they keep their order, so that with one seed the router
    does the same thing in every process.
    """

    __slots__ = ("_params", "_peers", "_stats", "_subscribers", "_waiting")

    def __init__(self, params: GossipParams, stats: GossipStats) -> None:
        self._params = params
        self._stats = stats
        self._peers: dict[PeerId, PeerState] = {}
        self._subscribers: dict[str, dict[PeerId, PeerState]] = {}
        self._waiting: dict[PeerId, None] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[PeerState]:
        return iter(self._peers.values())

    def get(self, peer: PeerId) -> PeerState | None:
        """Return the state of a connected peer."""
        return self._peers.get(peer)

    def take_waiting(self) -> list[PeerState]:
        """Return the peers in whose outbox something waits, the one that waits longest first."""
        if not self._waiting:
            return []
        states = [self._peers[peer] for peer in self._waiting]
        self._waiting.clear()
        return states

    def full(self) -> bool:
        """Return True when no further peer may connect."""
        return len(self._peers) >= self._params.peers_max

    def add(self, peer: PeerId, protocol: str, *, outbound: bool, ledger: PeerLedger) -> PeerState:
        """Remember a connected peer and return its fresh state."""
        outbox = PeerOutbox(self._params, self._stats, peer=peer, waiting=self._waiting)
        state = PeerState(peer, protocol, outbound=outbound, outbox=outbox, ledger=ledger)
        self._peers[peer] = state
        self._stats.departed.pop(peer, None)
        return state

    def remove(self, peer: PeerId) -> PeerState | None:
        """Forget a peer and its subscriptions; return what was known."""
        state = self._peers.pop(peer, None)
        self._waiting.pop(peer, None)
        if state is not None:
            for topic in list(state.topics):
                self._leave(state, topic)
            self._remember(state)
        return state

    def _remember(self, state: PeerState) -> None:
        """Keep what a peer that leaves has done; beyond ``peers_max`` the oldest goes."""
        departed = self._stats.departed
        departed[state.peer] = replace(state.stats, score=state.score, since=state.since)
        while len(departed) > self._params.peers_max:
            del departed[next(iter(departed))]

    def subscribe(self, state: PeerState, spelled: str) -> str | None:
        """Note a subscription; return the canonical topic when it is new, else None.

        A topic that is not ours is passed over; one beyond ``topics_max`` is refused and counted.
        A peer that uses both spellings is written to in the canonical one.
        """
        topic = fold_topic(spelled)
        if topic is None:
            return None
        if topic in state.topics:
            if spelled == topic:
                state.topics[topic] = spelled
            return None
        if len(state.topics) >= self._params.topics_max:
            self._stats.subscriptions_refused += 1
            return None
        state.topics[topic] = spelled
        self._subscribers.setdefault(topic, {})[state.peer] = state
        return topic

    def unsubscribe(self, state: PeerState, spelled: str) -> str | None:
        """Note the end of a subscription; return the canonical topic when there was one."""
        topic = fold_topic(spelled)
        if topic is None or state.topics.get(topic) != spelled:
            return None
        self._leave(state, topic)
        return topic

    def subscribers(self, topic: str) -> Mapping[PeerId, PeerState]:
        """Return the connected subscribers of a canonical topic."""
        return self._subscribers.get(topic, _NOBODY)

    def _leave(self, state: PeerState, topic: str) -> None:
        del state.topics[topic]
        subscribers = self._subscribers[topic]
        del subscribers[state.peer]
        if not subscribers:
            del self._subscribers[topic]
