"""Catching up in a simulation: the real `CatchUp` machine over virtual calls.

What is simulated is the store and the transport: a store is a dictionary of lanes, a call takes
two latencies and the uplink of the relay that answers. Paging, holes, several peers and give-ups
are the product's own.

Source: LP-6421 §2.3; decisions P24, P25, J6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from luxrelay.bus import NamespaceId
from luxrelay.sim.settings import setting
from luxrelay.sim.traffic import NAMESPACE
from luxrelay.sync.actions import AskHeads, AskPage, Fault, SkipTo
from luxrelay.sync.catchup import CatchUp
from luxrelay.sync.heads import PeerHead, SeqRange, holes_between
from luxrelay.sync.messages import SyncStatus
from luxrelay.sync.report import AcceptResult, Outcome

if TYPE_CHECKING:
    from luxrelay.sim.network import Network
    from luxrelay.sim.node import SimNode

HEAD_BYTES: Final = 150
"""What the head of a lane takes in an answer, bytes."""
TIMEOUT_S: Final = 5.0
"""After which a call that nobody answers has failed, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """Catching up by RelaySync beside gossip."""

    interval_s: float = setting(
        0.0, "Time between two catch-ups of a node; 0 turns them off", unit="seconds", high=86_400
    )
    peers: int = setting(3, "Relays asked in one catch-up, picked anew each time", low=1, high=32)


class SimLane:
    """The messages of one lane: sequence number to envelope."""

    __slots__ = ("contiguous", "messages")

    def __init__(self) -> None:
        self.messages: dict[int, bytes] = {}
        self.contiguous = 0


class LaneStore:
    """What a node has stored; it survives a crash."""

    __slots__ = ("lanes", "size")

    def __init__(self) -> None:
        self.lanes: dict[NamespaceId, SimLane] = {}
        self.size = 0
        """Messages held."""

    def put(self, namespace_id: NamespaceId, seq: int, data: bytes) -> bool:
        """Store a message; False when its slot is taken."""
        lane = self.lanes.get(namespace_id)
        if lane is None:
            lane = self.lanes[namespace_id] = SimLane()
        if seq in lane.messages:
            return False
        lane.messages[seq] = data
        while lane.contiguous + 1 in lane.messages:
            lane.contiguous += 1
        self.size += 1
        return True

    def heads(self) -> list[PeerHead]:
        """Return the head of every lane."""
        return [
            PeerHead(
                namespace_id=namespace_id,
                parent_id=NAMESPACE,
                earliest_seq=min(lane.messages),
                contiguous_seq=lane.contiguous,
                latest_seq=max(lane.messages),
                messages=len(lane.messages),
            )
            for namespace_id, lane in self.lanes.items()
        ]

    def gaps(self) -> dict[NamespaceId, list[SeqRange]]:
        """Return what is missing below the latest message of each lane."""
        found = {}
        for namespace_id, lane in self.lanes.items():
            latest = max(lane.messages)
            if latest > lane.contiguous:
                found[namespace_id] = holes_between(
                    lane.contiguous + 1, latest, sorted(lane.messages)
                )
        return found

    def page(self, ask: AskPage) -> tuple[list[tuple[int, bytes]], SyncStatus]:
        """Return the messages that a page asks for, and how it ends."""
        lane = self.lanes.get(ask.namespace_id)
        if lane is None:
            return [], SyncStatus(complete=True)
        start = int.from_bytes(ask.cursor, "big") if ask.cursor else ask.from_seq
        seqs = sorted(seq for seq in lane.messages if start < seq <= ask.to_seq)
        part = seqs[: ask.max_messages]
        more = len(part) < len(seqs)
        end = part[-1] if more else min(ask.to_seq, max(lane.messages))
        gaps = tuple(holes_between(start + 1, end, part))
        status = SyncStatus(
            complete=not more and not gaps,
            last_seq=part[-1] if part else 0,
            has_more=more,
            earliest_seq=min(lane.messages),
            gaps=gaps,
            next_cursor=part[-1].to_bytes(8, "big") if more else b"",
        )
        return [(seq, lane.messages[seq]) for seq in part], status


class SimRecovery:
    """One catch-up of one node: a table from the machine's actions to virtual calls."""

    def __init__(self, network: Network, node: SimNode, relays: Sequence[SimNode]) -> None:
        self._network = network
        self._node = node
        self._life = node.life
        self._relays = {str(relay.index): relay for relay in relays}
        self._machine = CatchUp(list(self._relays), parent=NAMESPACE)
        self._ended = False

    def start(self) -> None:
        """Begin."""
        store = self._node.store
        self._node.syncing = True
        self._machine.start(store.heads(), store.gaps(), self._network.clock.now)
        self._act()

    def _act(self) -> None:
        now = self._network.clock.now
        for action in self._machine.drain():
            match action:
                case AskHeads():
                    self._call(action.request, action.peer, self._list_at)
                case AskPage():
                    self._call(action.request, action.peer, self._page_at, action)
                case SkipTo():
                    self._network.skipped += 1
        if self._machine.finished:
            if not self._ended:
                self._ended = True
                self._node.syncing = False
                self._network.catch_ups += 1
            return
        wake_at = self._machine.wake_at()
        if wake_at is not None:
            self._network.call_at(max(wake_at, now), self._wake)

    def _wake(self) -> None:
        if self._current():
            self._machine.wake(self._network.clock.now)
            self._act()

    def _current(self) -> bool:
        return self._node.life is self._life and self._node.alive and not self._machine.finished

    # Calls: one latency there, one back behind the bytes of the answer.

    def _call(self, request: int, peer: str, serve: Callable[..., None], *about: object) -> None:
        relay, network = self._relays[peer], self._network
        latency = network.weather.base_latency_s()
        if not network.reachable(self._node, relay):
            network.call_at(network.clock.now + TIMEOUT_S, self._failed, request)
            return
        network.call_at(network.clock.now + latency, serve, request, relay, latency, *about)

    def _list_at(self, request: int, relay: SimNode, latency: float) -> None:
        if not self._network.reachable(self._node, relay):
            self._failed(request)
            return
        heads = relay.store.heads()
        self._answer(relay, latency, HEAD_BYTES * len(heads), self._listed, request, heads)

    def _page_at(self, request: int, relay: SimNode, latency: float, ask: AskPage) -> None:
        if not self._network.reachable(self._node, relay):
            self._failed(request)
            return
        messages, status = relay.store.page(ask)
        size = sum(len(data) for _, data in messages)
        self._answer(relay, latency, size, self._stored, request, messages, status)

    def _answer(
        self, relay: SimNode, latency: float, size: int, take: Callable[..., None], *about: object
    ) -> None:
        depart = self._network.uplink(relay, size)
        self._network.call_at(depart + latency, take, *about)

    def _listed(self, request: int, heads: list[PeerHead]) -> None:
        if self._current():
            self._machine.heads_received(request, heads, self._network.clock.now)
            self._act()

    def _stored(self, request: int, messages: list[tuple[int, bytes]], status: SyncStatus) -> None:
        if not self._current():
            return
        outcomes, contiguous = [], 0
        for _, data in messages:
            outcomes.append(self._network.keep(self._node, data))
        if messages:
            _, namespace_id, _ = self._network.judge.examine(messages[0][1])
            lane = self._node.store.lanes.get(namespace_id)
            contiguous = lane.contiguous if lane is not None else 0
        result = AcceptResult(outcomes=tuple(outcomes), contiguous_seq=contiguous)
        seqs = [seq for seq, _ in messages]
        self._network.synced += result.count(Outcome.STORED)
        self._machine.page_stored(request, seqs, status, result, self._network.clock.now)
        self._act()

    def _failed(self, request: int) -> None:
        if self._current():
            self._machine.failed(request, Fault.UNREACHABLE, self._network.clock.now)
            self._act()
