"""The outbox of a peer until the next `drain`: bounded, deduplicated, coalesced.

Source: LP-6420 §4.2; 20-58.
"""

from __future__ import annotations

from collections.abc import Sequence

from luxrelay.bus import MessageId
from luxrelay.gossip.identity import PeerId
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
from luxrelay.gossip.stats import GossipStats


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
        self._prunes: dict[str, tuple[int, Sequence[tuple[PeerId, bytes]]]] = {}
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
        self, topic: str, backoff_s: float, suggested: Sequence[tuple[PeerId, bytes]] = ()
    ) -> None:
        """Tell the peer that it is not in our mesh of a topic and for how long not to ask.

        Args:
            topic: The peer's spelling.
            backoff_s: Seconds.
            suggested: Other subscribers and their signed records.

        """
        self._grafts.pop(topic, None)
        # Whole seconds, rounded up: a peer that asks early is refused and blamed.
        self._prunes[topic] = (int(-(-backoff_s // 1)), suggested)
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

    def take_frames(self) -> list[bytes]:
        """Return everything that waits as frames, and wait for nothing more.

        Order: subscriptions, then who is in the mesh, then what we decline, in a frame that ends
        there and so overtakes the messages; then messages, then what was asked, then announcements.
        A peer reads a GRAFT with the subscription that justifies it before it.
        """
        packer = RpcPacker(self._params.rpc_max)
        if self._subscriptions or self._grafts or self._prunes:
            self._pack_mesh(packer)
        elif not self._bytes:
            return []
        elif not (self._idontwant or self._iwant or self._ihave) and len(self._messages) == 1:
            # A message alone is a frame already.
            frames, self._messages, self._bytes = self._messages, [], 0
            return frames
        if self._idontwant:
            for body in encode_idontwant(self._idontwant, self._params.rpc_max):
                packer.add_control(body)
            packer.cut()
        for fragment in self._messages:
            packer.add_fragment(fragment)
        for body in self._iwant:
            packer.add_control(body)
        for _, bodies in self._ihave:
            for body in bodies:
                packer.add_control(body)
        self._subscriptions = {}
        self._grafts = {}
        self._prunes = {}
        self._messages = []
        self._idontwant = []
        self._iwant = []
        self._ihave = []
        self._bytes = 0
        return packer.finish()

    def _pack_mesh(self, packer: RpcPacker) -> None:
        for topic, subscribe in self._subscriptions.items():
            packer.add_fragment(encode_subscription(topic, subscribe=subscribe))
        for topic in self._grafts:
            packer.add_control(encode_graft(topic))
        for topic, (backoff_s, suggested) in self._prunes.items():
            packer.add_control(encode_prune(topic, backoff_s, suggested, self._params.rpc_max))

    def _drop_announcements(self) -> None:
        for count, bodies in self._ihave:
            self._stats.dropped_gossip += count
            self._bytes -= sum(map(len, bodies))
        self._ihave = []
