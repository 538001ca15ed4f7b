"""State of each peer in the router: its subscriptions, and its outbox until the next `drain`.

An outbox is bounded; what is in it twice goes out once, and announcements go together.

Source: LP-6420 §1, §8; decisions G5, G21, G25; LP-6420 §4.2; 20-58.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from luxrelay.bus import MessageId
from luxrelay.gossip.envelope import PeerId, fold_topic
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.rpc import (
    MESSAGE_ID_WIRE_BYTES,
    RpcPacker,
    encode_graft,
    encode_idontwant,
    encode_iwant,
    encode_prune,
    encode_subscription,
)
from luxrelay.gossip.score import PeerLedger
from luxrelay.gossip.stats import GossipStats, PeerStats


class PeerOutbox:
    """The queue of one peer.

    Subscriptions, GRAFTs and PRUNEs are kept as state by topic, so a later one replaces an earlier
    one and there are never more than topics. Messages and gossip are bounded together by
    ``queue_bytes_max``: announcements make room for messages, messages for nothing.
    """

    __slots__ = (
        "_bytes",
        "_grafts",
        "_idontwant",
        "_ihave",
        "_iwant",
        "_messages",
        "_params",
        "_peer",
        "_prunes",
        "_stats",
        "_subscriptions",
        "_waiting",
    )

    def __init__(
        self,
        params: GossipParams,
        stats: GossipStats,
        *,
        peer: PeerId,
        waiting: dict[PeerId, None],
    ) -> None:
        self._params = params
        self._stats = stats
        self._peer = peer
        # Shared with the other outboxes: who has something waiting, so that nobody looks at all.
        self._waiting = waiting
        self._subscriptions: dict[str, bool] = {}
        self._grafts: dict[str, None] = {}
        self._prunes: dict[str, tuple[int, Sequence[tuple[PeerId, bytes]], bool]] = {}
        self._messages: list[bytes] = []
        self._idontwant: list[MessageId] = []
        self._iwant: list[bytes] = []
        self._ihave: list[tuple[int, list[bytes]]] = []
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of messages and gossip that wait."""
        return self._bytes

    def subscription(self, topic: str, *, subscribe: bool) -> None:
        """Tell the peer that we subscribe to a topic or no longer do."""
        self._subscriptions[topic] = subscribe
        self._waiting[self._peer] = None

    def graft(self, topic: str) -> None:
        """Tell the peer that it is in our mesh of a topic."""
        self._prunes.pop(topic, None)
        self._grafts[topic] = None
        self._waiting[self._peer] = None

    def prune(
        self,
        topic: str,
        backoff_s: float,
        suggested: Sequence[tuple[PeerId, bytes]] = (),
        *,
        pulls: bool = False,
    ) -> None:
        """Tell the peer that it is not in our mesh of a topic and for how long not to ask.

        Args:
            topic: The peer's spelling.
            backoff_s: Seconds.
            suggested: Other subscribers and their signed records.
            pulls: Whether we fetch messages by catching up meanwhile.

        """
        self._grafts.pop(topic, None)
        # Whole seconds, rounded up: a peer that asks early is refused and blamed.
        self._prunes[topic] = (int(-(-backoff_s // 1)), suggested, pulls)
        self._waiting[self._peer] = None

    def message(self, fragment: bytes) -> bool:
        """Queue an encoded message; False, and counted, when there is no room."""
        size = len(fragment)
        if self._bytes + size > self._params.queue_bytes_max:
            self._drop_announcements()
            if self._bytes + size > self._params.queue_bytes_max:
                self._stats.dropped_messages += 1
                return False
        self._messages.append(fragment)
        self._waiting[self._peer] = None
        self._bytes += size
        return True

    def idontwant(self, message_id: MessageId) -> None:
        """Decline a message, when there is room."""
        if self._bytes + MESSAGE_ID_WIRE_BYTES <= self._params.queue_bytes_max:
            self._idontwant.append(message_id)
            self._waiting[self._peer] = None
            self._bytes += MESSAGE_ID_WIRE_BYTES
        else:
            self._stats.dropped_gossip += 1

    def ids_room(self) -> int:
        """Return how many ids can be asked for before the queue is full."""
        return max(0, self._params.queue_bytes_max - self._bytes) // (MESSAGE_ID_WIRE_BYTES * 2)

    def iwant(self, ids: Sequence[MessageId]) -> None:
        """Ask for ``ids``; the caller has looked at `ids_room`."""
        for body in encode_iwant(ids, self._params.rpc_max):
            self._iwant.append(body)
            self._waiting[self._peer] = None
            self._bytes += len(body)

    def ihave(self, count: int, bodies: list[bytes]) -> None:
        """Announce ``count`` ids, or count them as dropped when there is no room.

        Args:
            count: How many ids are in the bodies.
            bodies: What `encode_ihave` made of them; the same list may go to many peers.

        """
        size = sum(map(len, bodies))
        if self._bytes + size > self._params.queue_bytes_max:
            self._stats.dropped_gossip += count
            return
        self._ihave.append((count, bodies))
        self._waiting[self._peer] = None
        self._bytes += size

    def take_urgent(self) -> list[bytes]:
        """Return what goes before messages as frames, and wait for it no more.

        Order: subscriptions, then who is in the mesh, then what we decline, then what is asked. A
        peer reads a GRAFT with the subscription that justifies it before it.
        """
        if not (self._idontwant or self._iwant or self._subscriptions or self._marks()):
            return []
        packer = RpcPacker(self._params.rpc_max)
        self._pack_mesh(packer)
        for body in encode_idontwant(self._idontwant, self._params.rpc_max):
            packer.add_control(body)
        for body in self._iwant:
            packer.add_control(body)
        self._bytes -= MESSAGE_ID_WIRE_BYTES * len(self._idontwant) + sum(map(len, self._iwant))
        self._subscriptions = {}
        self._grafts = {}
        self._prunes = {}
        self._idontwant = []
        self._iwant = []
        return packer.finish()

    def take_frames(self) -> list[bytes]:
        """Return the messages that wait, then the announcements, as frames, and wait no more."""
        if not self._ihave and len(self._messages) <= 1:
            # A message alone is a frame already.
            frames, self._messages = self._messages, []
            self._bytes -= sum(map(len, frames))
            return frames
        packer = RpcPacker(self._params.rpc_max)
        for fragment in self._messages:
            packer.add_fragment(fragment)
        self._bytes -= sum(map(len, self._messages))
        for _, bodies in self._ihave:
            for body in bodies:
                packer.add_control(body)
            self._bytes -= sum(map(len, bodies))
        self._messages = []
        self._ihave = []
        return packer.finish()

    def _marks(self) -> bool:
        """Return True when the peer is to be told that it is in a mesh, or is not."""
        return bool(self._grafts or self._prunes)

    def _pack_mesh(self, packer: RpcPacker) -> None:
        for topic, subscribe in self._subscriptions.items():
            packer.add_fragment(encode_subscription(topic, subscribe=subscribe))
        for topic in self._grafts:
            packer.add_control(encode_graft(topic))
        for topic, (backoff_s, suggested, pulls) in self._prunes.items():
            packer.add_control(
                encode_prune(topic, backoff_s, suggested, self._params.rpc_max, pulls=pulls)
            )

    def _drop_announcements(self) -> None:
        for count, bodies in self._ihave:
            self._stats.dropped_gossip += count
            self._bytes -= sum(map(len, bodies))
        self._ihave = []


_NOBODY: Final[Mapping[PeerId, PeerState]] = {}


class PeerState:
    """One connected peer."""

    __slots__ = (
        "declined",
        "declined_heard",
        "declines",
        "delivered_at",
        "flooded",
        "heard_at",
        "ihave_heard",
        "ihave_rpcs",
        "ihave_sent",
        "iwant_asked",
        "iwant_heard",
        "ledger",
        "light",
        "outbound",
        "outbox",
        "passes_on",
        "peer",
        "protected",
        "protocol",
        "pulls_until",
        "record",
        "room",
        "score",
        "since",
        "stats",
        "suspect",
        "took_at",
        "took_s",
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
        self.passes_on = False
        """It said that it makes the announcement on ``headers/global`` from a namespace's (G34)."""
        self.record = b""
        """Its signed peer record; empty when it gave none."""
        self.room: int | None = None
        """Bytes of messages that a slow peer may be sent now; None for one that is not slow, which
        may be sent any (G39)."""
        self.pulls_until = 0.0
        """Until when it fetches messages by catching up, as it said; 0 for one that does not
        (G41)."""
        self.heard_at = 0.0
        """When anything came from it last; the next one a message."""
        self.delivered_at = 0.0
        self.took_s = 0.0
        """How long it takes for what it is asked, smoothed, seconds."""
        self.took_at = -inf
        """When it delivered last what it was asked for."""
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

    @property
    def slow(self) -> bool:
        """Whether it is in no mesh and is not sent messages unasked (G39, G41)."""
        return self.room is not None or self.pulls_until > 0

    def spell(self, topic: str) -> str:
        """Return the peer's own spelling of a canonical topic (G5)."""
        return self.topics.get(topic, topic)

    def took(self, seconds: float, now: float) -> None:
        """Note how long it took for a message that it was asked for."""
        first = self.took_at == -inf
        self.took_s = seconds if first else self.took_s + (seconds - self.took_s) / 4
        self.took_at = now

    def takes(self, size: int, *, overdraw: int = 0) -> bool:
        """Return whether a message of so many bytes may be sent to it, and count it as sent.

        Args:
            size: Bytes.
            overdraw: Bytes below its room that it may still be sent, because it was promised them.

        """
        if self.room is None:
            return True
        if self.room + overdraw <= 0:
            return False
        self.room -= size
        return True

    def has_beside(self, topic: str) -> bool:
        """Return True when it needs no second copy of a header that it gets on a topic (G34)."""
        return self.passes_on and topic in self.topics

    def new_heartbeat(self, now: float) -> None:
        """Renew the allowances, and forget that it pulls when it has not said so again."""
        if self.pulls_until <= now:
            self.pulls_until = 0.0
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
