"""Lazy gossip: IHAVE to a few peers, IWANT for missed messages, IDONTWANT.

Source: LP-6420 §4.1, §4.2, §5.3, §7.2; gossipsub v1.1, v1.2; decisions G1, G14, G15, G16, G29.
"""

# Theory of operation
#
# Decides: to whom recent ids are announced, which announced ids are asked of whom, what is sent
#   again on request, and which large messages are declined to whom (gossipsub 1.2).
# Does not know: whether a message is valid; it looks ids up in what was accepted, in what is in
#   validation and in the message cache.
# Machines and their states: each id on a topic is unknown, wanted, or known. Wanted means asked of
#   at least one peer whose promise runs, with further holders in waiting:
#     unknown -> wanted   an IHAVE names it
#     wanted  -> wanted   a heartbeat later the next holder is asked; later still where every peer
#                         takes longer for what it is asked, because our own link is slow then, and
#                         a second copy makes it slower (G39)
#     wanted  -> unknown  every promise is broken and no holder is left
#     wanted  -> known    a message of the id arrives; whether it is valid is not known yet, and
#                         when it is not the id is unknown again and the next IHAVE asks anew (G1)
# Inputs and what they may cause: `on_ihave` may ask; `on_iwant` may send; `arrived` ends the
#   wanting; `kept` ends one peer's promise; `peer_left` and `topic_left` forget; `heartbeat` asks,
#   counts broken promises and announces. Peers below the gossip threshold are not heard, asked or
#   told (G16).
# Timers: none of its own; `heartbeat(now)`. What a peer declines is remembered for
#   idontwant_heartbeats.
# Bounds, per peer and heartbeat: ihave_messages_max RPCs with IHAVE heard, ihave_ids_max ids in
#   them looked up, asked of it and announced to it, iwant_ids_max ids looked up for it,
#   idontwant_ids_max ids declined by it. Over all:
#   wanted_max ids wanted, half of them shared out among peers_max peers, wanted_peer_max asked of
#   one peer, iwant_retransmit_max sends of a message to a peer.
# While our own link is slow nothing is asked for: catching up brings it (G41).
# Deviations from the specification: an id is asked of one holder a heartbeat, not of all at once:
#   copies are costly here, and a peer that announces and never delivers delays by one heartbeat
#   each. Promises are per id, not one chosen id a request. D_lazy is literal, without gossipsub's
#   factor of a quarter of all peers (LP-6420 §4.1). A heartbeat in which promises break is one
#   offence however many they are: with a promise for each id a slow link would look like an attack.
#   A message is declined when it was accepted, not when its first copy arrived: ids name slots
#   (LP-6420 §4.3), so a forged copy would keep the true one away (G1). For the same reason a peer's
#   IDONTWANT holds back only the first message of a slot here; of two candidates that exclude each
#   other on two sides of the network, sync brings the second.
#   A broken promise is no offence while messages of that peer wait for verdicts here: then it is
#   we who are slow.
# What else to change when you change this: `flow` uses the holders, so that a message does not go
#   to peers known to have it.

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from luxrelay.bus import MessageId
from luxrelay.gossip.envelope import PeerId, TopicKind
from luxrelay.gossip.mesh import Mesh
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.peers import PeerState, PeerTable
from luxrelay.gossip.rpc import encode_ihave
from luxrelay.gossip.score import Scores
from luxrelay.gossip.seen import Memory, Slot
from luxrelay.gossip.stats import GossipStats

if TYPE_CHECKING:
    from random import Random

ID_BYTES: Final = 32
_FOLLOWUPS_MAX: Final = 10
"""Times `iwant_followup_s` that a peer has to deliver while other messages of it keep coming."""
_PATIENCE: Final = 2
"""Times what the quickest peer takes, and times `iwant_followup_s` at most, before a second holder
is asked."""
_QUICK_S: Final = 30.0
"""For so many seconds it counts how long a peer took for what it was asked."""


class Want:
    """An id that was asked for."""

    __slots__ = ("asked", "holders", "look_at", "retry_at", "since")

    def __init__(self, retry_at: float) -> None:
        self.holders: dict[PeerId, None] = {}
        """Who announced it and was not asked."""
        self.asked: dict[PeerId, float] = {}
        """Who was asked, and when the promise is broken."""
        self.since: dict[PeerId, float] = {}
        """When each of them was asked."""
        self.retry_at = retry_at
        """When a second holder may be asked; from then on one each heartbeat."""
        self.look_at = retry_at
        """Before this nothing is due; a heartbeat with many wants looks at few of them."""

    def plan(self) -> None:
        """Note when something is due: a promise, or the next holder."""
        due = min(self.asked.values(), default=self.retry_at)
        self.look_at = min(due, self.retry_at) if self.holders else due


class Lazy:
    """Announcements and requests of a router."""

    def __init__(
        self,
        params: GossipParams,
        rng: Random,
        *,
        peers: PeerTable,
        mesh: Mesh,
        memory: Memory,
        scores: Scores,
        stats: GossipStats,
    ) -> None:
        self._params = params
        self._scores = scores
        self._rng = rng
        self._peers = peers
        self._mesh = mesh
        self._memory = memory
        self._stats = stats
        self._wants: dict[Slot, Want] = {}
        self._beats = 0
        self._patience_s = 0.0
        """Nobody else is asked for an id within so many seconds of the last request."""

    def __len__(self) -> int:
        return len(self._wants)

    def hears(self, state: PeerState) -> bool:
        """Return True when another RPC with IHAVE of this peer is heard in this heartbeat."""
        if state.score < self._scores.params.gossip_threshold:
            return False
        state.ihave_rpcs += 1
        if state.ihave_rpcs > self._params.ihave_messages_max:
            self.flooded(state)
            return False
        return True

    def flooded(self, state: PeerState) -> None:
        """Count that a peer exceeded a cap, once a heartbeat (P7; 20-36)."""
        if not state.flooded:
            state.flooded = state.suspect = True
            state.stats.control_floods += 1
            self._stats.control_floods += 1
            self._scores.misbehaved(state.ledger, self._scores.params.control_flood)

    def on_ihave(self, topic: str, state: PeerState, ids: Sequence[bytes], now: float) -> None:
        """Ask for what is neither known nor in validation nor just asked of another (20-35)."""
        ask: list[MessageId] = []
        room = min(self._asking_room(state), self._table_room(state))
        heard = ids[: max(0, self._params.ihave_ids_max - state.ihave_heard)]
        state.ihave_heard += len(heard)
        self._stats.ihave_refused += len(ids) - len(heard)
        has, pending = self._memory.has, self._memory.pending
        # Of a header that came by its namespace's topic nobody is asked the other one (G34).
        came = self._memory.delivered if topic.endswith(TopicKind.HEADERS_GLOBAL) else ()
        echoes = self._memory.echoes or None
        for raw in heard:
            slot: Slot = (topic, raw)  # type: ignore[assignment]  # of any length still
            if has(slot):
                if echoes is not None:
                    echoes.announced(slot, state.peer)
                continue
            if raw in came:
                continue
            if len(raw) != ID_BYTES or pending.note_holder(slot, state.peer):
                continue
            want = self._wants.get(slot)
            if want is not None:
                if state.peer not in want.asked:
                    want.holders[state.peer] = None
                    want.look_at = min(want.look_at, want.retry_at)
            elif len(ask) >= room:
                self._stats.ihave_refused += 1
            else:
                want = self._wants[slot] = Want(now + self._params.heartbeat_interval_s)
                self._promise(want, state, now)
                ask.append(slot[1])
        if ask:
            state.outbox.iwant(ask)

    def on_iwant(self, state: PeerState, ids: Sequence[bytes]) -> None:
        """Send what is still in the cache, on topics the peer follows (20-17, 20-36)."""
        if state.score < self._scores.params.gossip_threshold:
            return
        heard = ids[: max(0, self._params.iwant_ids_max - state.iwant_heard)]
        state.iwant_heard += len(heard)
        if len(heard) < len(ids):
            self._stats.iwant_refused += len(ids) - len(heard)
            self.flooded(state)
        for raw in heard:
            for message in self._memory.cache.get(MessageId(raw)):
                if message.topic not in state.topics or state.has_beside(message.beside):
                    continue
                if message.sent_to(state.peer) >= self._params.iwant_retransmit_max:
                    self._stats.iwant_refused += 1
                elif not state.takes(message.size, overdraw=self._params.rpc_max):
                    self._stats.slow_spared += 1
                elif state.outbox.message(message.wire(state.spell(message.topic))):
                    message.count_sent(state.peer)
                    self._stats.iwant_served += 1

    def on_idontwant(self, state: PeerState, ids: Sequence[bytes]) -> None:
        """Remember what a peer does not want to be sent (20-36)."""
        heard = ids[: max(0, self._params.idontwant_ids_max - state.declined_heard)]
        state.declined_heard += len(heard)
        if len(heard) < len(ids):
            self._stats.idontwant_refused += len(ids) - len(heard)
            self.flooded(state)
        for raw in heard:
            if len(raw) == ID_BYTES and raw not in state.declined:
                state.declined[raw] = self._beats

    def decline(self, state: PeerState, message_id: MessageId) -> None:
        """Tell a peer that speaks 1.2 not to send a message."""
        if state.declines:
            state.outbox.idontwant(message_id)
            self._stats.idontwant_sent += 1

    def arrived(
        self, slot: Slot, state: PeerState | None = None, now: float = 0.0
    ) -> dict[PeerId, None]:
        """End the wanting of an id; return the peers that announced it.

        Args:
            slot: The id on its topic.
            state: Who sent it; None when it is wanted no more.
            now: When.

        """
        want = self._wants.pop(slot, None)
        if want is None:
            return {}
        if state is not None and state.peer in want.asked:
            state.took(now - want.since[state.peer], now)
        for peer in want.asked:
            self._release(peer)
        return want.holders | dict.fromkeys(want.asked)

    def kept(self, slot: Slot, state: PeerState) -> None:
        """End the promise of one peer: it sent the message, though we could not take it in."""
        want = self._wants.get(slot)
        if want is not None and want.asked.pop(state.peer, None) is not None:
            self._release(state.peer)
            if not want.holders and not want.asked:
                del self._wants[slot]

    def topic_left(self, topic: str) -> None:
        """Expect nothing more on a topic that we left; nobody breaks a promise by it."""
        for slot in [slot for slot in self._wants if slot[0] == topic]:
            self.arrived(slot)

    def peer_left(self, peer: PeerId) -> None:
        """Expect nothing more of a peer."""
        for slot, want in list(self._wants.items()):
            want.holders.pop(peer, None)
            want.asked.pop(peer, None)
            if not want.holders and not want.asked:
                del self._wants[slot]

    def postpone(self, seconds: float, now: float) -> None:
        """Give every promise so much more time, but none more than one that is made now."""
        latest = now + self._params.iwant_followup_s
        for want in self._wants.values():
            for peer, until in want.asked.items():
                want.asked[peer] = min(until + seconds, latest)
            want.plan()

    def heartbeat(self, now: float) -> None:
        """Count broken promises, ask the next holders, announce what is recent."""
        self._beats += 1
        for state in self._peers:
            if state.declined:
                state.forget_declined(self._beats - self._params.idontwant_heartbeats + 1)
        if self._wants:
            took = [each.took_s for each in self._peers if each.took_at > now - _QUICK_S]
            quickest = min(took, default=0.0)
            self._patience_s = _PATIENCE * min(quickest, self._params.iwant_followup_s)
            self._retry(now)
        self._announce()
        self._announce_to_slow()

    def _retry(self, now: float) -> None:
        asks: dict[PeerId, list[MessageId]] = {}
        unreliable: dict[PeerId, PeerState] = {}
        for slot, want in [(s, w) for s, w in self._wants.items() if w.look_at <= now]:
            self._expire(want, unreliable, now)
            if self._mesh.pulls:
                want.holders.clear()
            if want.holders and now >= want.retry_at and not self._asked_lately(want, now):
                self._ask_next(slot, want, asks, now)
            if want.holders or want.asked:
                want.plan()
            else:
                del self._wants[slot]
        for peer, ids in asks.items():
            state = self._peers.get(peer)
            if state is not None:
                state.outbox.iwant(ids)
        for peer, state in unreliable.items():
            if not self._memory.pending.of_peer(peer):
                state.suspect = True
                self._scores.misbehaved(state.ledger, self._scores.params.broken_promise)

    def _asked_lately(self, want: Want, now: float) -> bool:
        """Return True while somebody may still deliver, as quickly as the quickest peer does."""
        return any(now - want.since[peer] < self._patience_s for peer in want.asked)

    def _expire(self, want: Want, unreliable: dict[PeerId, PeerState], now: float) -> None:
        """Count the promises of one id that are broken, and who broke one by its own fault."""
        for peer in [peer for peer, until in want.asked.items() if until <= now]:
            if self._still_delivers(want, peer, now):
                continue
            del want.asked[peer]
            state = self._release(peer)
            if state is not None and state.heard_at <= want.since[peer]:
                self._stats.promises_stalled += 1  # it may be cut off: nobody's fault (G38)
                continue
            self._stats.promises_broken += 1
            if state is not None:
                state.stats.promises_broken += 1
                unreliable[peer] = state

    def _still_delivers(self, want: Want, peer: PeerId, now: float) -> bool:
        """Return True, and give it more time, when messages of the peer keep coming (G38).

        Its link is slow then, and the one asked for is behind them; ten times the usual at most.
        """
        state, params = self._peers.get(peer), self._params
        since = want.since[peer]
        if state is None or now - since >= _FOLLOWUPS_MAX * params.iwant_followup_s:
            return False
        if state.delivered_at <= max(since, now - params.iwant_followup_s):
            return False
        want.asked[peer] = state.delivered_at + params.iwant_followup_s
        return True

    def _ask_next(
        self, slot: Slot, want: Want, asks: dict[PeerId, list[MessageId]], now: float
    ) -> None:
        peer = next(iter(want.holders))
        del want.holders[peer]
        state = self._peers.get(peer)
        if state is None or state.score < self._scores.params.gossip_threshold:
            return
        ids = asks.setdefault(peer, [])
        if self._asking_room(state) > 0 and len(ids) < state.outbox.ids_room():
            ids.append(slot[1])
            self._promise(want, state, now)
        else:
            self._stats.ihave_refused += 1

    def _announce(self) -> None:
        """Tell ``d_lazy`` subscribers outside mesh and fan-out what is recent (LP-6420 §4.2)."""
        threshold = self._scores.params.gossip_threshold
        for (topic, beside), ids in self._memory.cache.recent().items():
            near = self._mesh.near(topic)
            others = [
                state
                for peer, state in self._peers.subscribers(topic).items()
                if peer not in near
                and not state.slow
                and not state.has_beside(beside)
                and state.score >= threshold
            ]
            # By spelling: most peers are told the same.
            whole: dict[str, list[bytes]] = {}
            for state in self._rng.sample(others, min(self._params.d_lazy, len(others))):
                room = self._params.ihave_ids_max - state.ihave_sent
                spelled = state.spell(topic)
                if len(ids) <= room:
                    count, bodies = len(ids), whole.get(spelled)
                    if bodies is None:
                        bodies = whole[spelled] = encode_ihave(spelled, ids, self._params.rpc_max)
                else:
                    part = self._rng.sample(ids, room)
                    count, bodies = len(part), encode_ihave(spelled, part, self._params.rpc_max)
                if count:
                    state.ihave_sent += count
                    state.outbox.ihave(count, bodies)

    def _announce_to_slow(self) -> None:
        """Tell each slow peer the newest ids that its link has room for (G39).

        It asks for those it lacks, so that its link carries each message once, whoever announces.
        """
        threshold = self._scores.params.gossip_threshold
        for state in self._peers:
            if not state.room or state.room < 0 or state.pulls_until or state.score < threshold:
                continue
            found: dict[str, dict[MessageId, None]] = {}
            left, count = state.room, self._params.ihave_ids_max - state.ihave_sent
            for message in self._memory.cache.newest():
                if left <= 0 or count <= 0:
                    break
                if message.topic not in state.topics or state.has_beside(message.beside):
                    continue
                left, count = left - message.size, count - 1
                found.setdefault(message.topic, {})[message.message_id] = None
            for topic, ids in found.items():
                state.ihave_sent += len(ids)
                bodies = encode_ihave(state.spell(topic), list(ids), self._params.rpc_max)
                state.outbox.ihave(len(ids), bodies)

    def _asking_room(self, state: PeerState) -> int:
        """Return how many more ids this peer can be asked for now."""
        params = self._params
        return min(
            params.ihave_ids_max - state.iwant_asked,
            params.wanted_peer_max - state.wanted,
            state.outbox.ids_room(),
        )

    def _table_room(self, state: PeerState) -> int:
        """Return how many more ids of this peer fit among all that are wanted.

        Half of the places are shares that a peer has to itself, so that a few peers that announce
        what they never deliver leave room for what the others have.
        """
        params = self._params
        share = params.wanted_max // (2 * params.peers_max)
        common = params.wanted_max - share * params.peers_max - len(self._wants)
        own = max(0, share - state.wanted)
        return min(params.wanted_max - len(self._wants), own + max(0, common))

    def _promise(self, want: Want, state: PeerState, now: float) -> None:
        want.asked[state.peer] = now + self._params.iwant_followup_s
        want.since[state.peer] = now
        want.plan()
        state.wanted += 1
        state.iwant_asked += 1

    def _release(self, peer: PeerId) -> PeerState | None:
        state = self._peers.get(peer)
        if state is not None:
            state.wanted -= 1
        return state
