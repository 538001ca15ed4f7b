"""Nodes and links, stepped in order: the driver of many routers at once.

Theory of operation
  Contract: each router is driven as `luxrelay.net.driver` drives its one: feed inputs; `drain()`
    and do the actions in order; `wake(now)` at `wake_at()`. What arrives at a node within one tick
    is fed before one `drain()`, as the frames of one read are.
  Decides: nothing of the protocol. It carries frames, gives verdicts after the time a verdict
    takes, dials where a node has too few connections, and tells routers who came and went.
  Order: ticks, and within a tick the order in which events were scheduled; then the nodes that
    were touched, in the order of the first touch. All chance comes from seeded generators, so a
    scenario and a seed are one run, bit for bit.
  Dialing stands in for discovery: a node knows a book of others and keeps `dials` connections out
    of it. A connection takes three latencies; a peer whose connection breaks is told after one.

Virtual time and the one queue of everything that is to happen.

Time stands still while a tick is dealt with and then jumps to the next tick in which something
happens. Events of one tick keep the order in which they were scheduled, so that one seed gives one
run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from luxrelay.bus import MessageId, VerdictKind
from luxrelay.gossip import (
    PROTOCOLS,
    Action,
    Deliver,
    Dial,
    Disconnect,
    Echo,
    GossipParams,
    PeerId,
    Send,
    Validate,
)
from luxrelay.sim.checks import Violation
from luxrelay.sim.links import FRAME_OVERHEAD, SimLink, Weather
from luxrelay.sim.node import Life, SimNode
from luxrelay.sim.recovery import SimRecovery
from luxrelay.sim.traffic import TOPIC, TrafficJudge
from luxrelay.sync.report import Outcome

if TYPE_CHECKING:
    from luxrelay.sim.scenario import Scenario
import heapq

from luxrelay.errors import SimulationError

EVENTS_MAX: Final = 50_000_000
"""Events that may wait at once unless told otherwise; a gigabyte or several."""

Event = tuple[object, ...]
"""What is to happen; the queue does not look into it."""


class EventQueue:
    """Virtual time in whole ticks, and what happens when.

    A heap holds the ticks, a dictionary the events of each: thousands of events share one entry of
    the heap, and those of one tick are dealt with as one batch, as a driver deals with what it
    finds ready.

    Args:
        tick_s: Length of a tick, seconds. An event happens at the first tick after its time, so
            never early and at most one tick late.
        events_max: Events that may wait at once.

    """

    __slots__ = ("_buckets", "_events_max", "_heap", "_rate", "_tick", "now", "size")

    def __init__(self, *, tick_s: float = 0.001, events_max: int = EVENTS_MAX) -> None:
        self._rate = 1 / tick_s
        self._events_max = events_max
        self._heap: list[int] = []
        self._buckets: dict[int, list[Event]] = {}
        self._tick = 0
        self.now = 0.0
        """Virtual seconds since the start."""
        self.size = 0
        """Events that wait."""

    def add(self, at_s: float, event: Event) -> None:
        """Let ``event`` happen at the first tick after ``at_s``, and after the current one.

        Raises:
            SimulationError: ``events_max`` events wait already.

        """
        tick = int(at_s * self._rate) + 1
        if tick <= self._tick:
            tick = self._tick + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            self._buckets[tick] = [event]
            heapq.heappush(self._heap, tick)
        else:
            bucket.append(event)
        self.size += 1
        if self.size > self._events_max:
            raise SimulationError(
                f"more than {self._events_max:,} events wait", where=f"{self.now:.3f} s"
            )

    def next_tick(self, until_s: float) -> list[Event]:
        """Move on to the next tick with events and return them; empty when none is before a time.

        Args:
            until_s: Virtual seconds; without an event up to there, time moves to it.

        """
        if not self._heap or self._heap[0] > until_s * self._rate:
            self.now = max(self.now, until_s)
            self._tick = max(self._tick, int(until_s * self._rate))
            return []
        self._tick = heapq.heappop(self._heap)
        self.now = self._tick / self._rate
        events = self._buckets.pop(self._tick)
        self.size -= len(events)
        return events


PING_TIMEOUT_S: Final = 45.0
"""Three pings of 15 s go unanswered before a silent peer is given up (G32)."""
VIOLATIONS_MAX: Final = 100
"""Violations that are kept; the count is always complete."""

_FRAME, _VERDICT, _WAKE, _CALL = range(4)


class Network:
    """The nodes of a run and everything between them.

    Args:
        scenario: What to build.
        params: Parameters of every router.

    """

    def __init__(self, scenario: Scenario, params: GossipParams) -> None:
        self.scenario = scenario
        self.params = params
        self.rng = random.Random(f"{scenario.seed}/network")
        self.clock = EventQueue(tick_s=scenario.network.tick_ms / 1000)
        self.weather = Weather(scenario.links, random.Random(f"{scenario.seed}/weather"))
        self.judge = TrafficJudge()
        self.nodes: list[SimNode] = []
        self.by_peer: dict[PeerId, SimNode] = {}
        """Who has which identity now."""
        self.recorders: dict[int, Callable[[str], None]] = {}
        """By node, what takes the lines of a recording of its router."""
        self.ended: list[Life] = []
        """Lives that are over."""
        self.numbers: dict[MessageId, int] = {}
        """Message id to number, of every message of the traffic."""
        self.violations: list[Violation] = []
        self.violation_count = 0
        self.events = 0
        """Events dealt with."""
        self.frames = 0
        """Frames that arrived."""
        self.bytes_sent = 0
        """Bytes that nodes sent, framing included."""
        self.invalid_delivered = 0
        """Messages delivered that were no part of the traffic."""
        self.synced = 0
        """Messages that came by catching up."""
        self.catch_ups = 0
        """Catch-ups that ended."""
        self.skipped = 0
        """Ranges that a catch-up gave up as forgotten by everybody."""
        self.router_disconnects = 0
        """Disconnections that routers asked for."""
        self.forged = 0
        """Forged messages that flooders made; each goes to all peers of one."""
        self.suggested = 0
        """Dials that a suggestion of another peer caused."""
        self.refusals = 0
        """Connections that were refused."""
        self.sides_met: list[int] | None = None
        """Which side each node was on, from the end of a partition on."""
        self.contact_at: float | None = None
        """When the first connection across was made after that."""
        self._cost_s = scenario.validation.cost_us / 1e6
        self._delay_s = scenario.validation.delay_ms / 1e3
        self._touched: dict[int, SimNode] = {}
        self._effects: dict[type[Action], Callable[[SimNode, Any], None]] = {
            Validate: self._do_validate,
            Deliver: self._do_deliver,
            Disconnect: self._do_disconnect,
            Dial: self._do_dial,
            Echo: lambda _node, _action: None,  # no simulated node keeps receipts
        }

    # Time.

    def run(self, until_s: float) -> None:
        """Let everything happen up to a virtual time."""
        while events := self.clock.next_tick(until_s):
            self._step(events)

    def call_at(self, at_s: float, call: Callable[..., None], *about: object) -> None:
        """Call ``call(*about)`` at a virtual time."""
        self.clock.add(at_s, (_CALL, call, about))

    def touch(self, node: SimNode) -> None:
        """Have a node's router drained at the end of this tick."""
        self._touched[node.index] = node

    def _step(self, events: list[Any]) -> None:
        now, touched, weather = self.clock.now, self._touched, self.weather
        plain = weather.plain
        self.events += len(events)
        for event in events:
            kind = event[0]
            if kind == _FRAME:
                link = event[1]
                node = link.target
                if not link.open or node.side != link.source.side:
                    weather.lost += 1
                    continue
                self.frames += 1
                data = event[2] if plain else weather.through(event[2])
                node.router.received(link.source_peer, data, now)
                touched[node.index] = node
            elif kind == _VERDICT:
                _, node, life, token, verdict = event
                if node.life is life and node.router is not None:
                    node.router.validated(token, verdict, now)
                    touched[node.index] = node
            elif kind == _WAKE:
                _, node, life = event
                if node.life is life and node.router is not None:
                    node.router.wake(now)
                    touched[node.index] = node
            else:
                event[1](*event[2])
        # What a disconnection causes at others touches them while we look.
        while touched:
            batch = list(touched.values())
            touched.clear()
            for node in batch:
                self._act(node)

    # The table from action to effect.

    def _act(self, node: SimNode) -> None:
        router = node.router
        if router is None:
            return
        effects, links = self._effects, node.links
        for action in router.drain():
            if type(action) is Send:  # nearly all are
                found = links.get(action.peer)
                if found is not None:
                    self.send_raw(found[0], action.data)
            else:
                effects[type(action)](node, action)
        wake_at, due = router.wake_at(), node.wake_due
        if wake_at is not None and (due is None or wake_at < due or due <= self.clock.now):
            node.wake_due = wake_at
            self.clock.add(wake_at, (_WAKE, node, node.life))

    def send_raw(self, link: SimLink, data: bytes) -> None:
        """Put a frame on its way."""
        size, clock = len(data) + FRAME_OVERHEAD, self.clock
        self.bytes_sent += size
        arrive = self.weather.arrival(link, size, clock.now)
        if arrive is not None:
            clock.add(arrive, (_FRAME, link, data))

    def uplink(self, node: SimNode, size: int) -> float:
        """Return when ``size`` bytes that a node sends outside gossip have left it."""
        rate, now = self.weather.plan.bandwidth_bytes_s, self.clock.now
        self.bytes_sent += size
        if not rate:
            return now
        node.uplink_free_at = max(now, node.uplink_free_at) + size / rate
        return node.uplink_free_at

    def _do_validate(self, node: SimNode, action: Validate) -> None:
        if node.conduct is None:
            verdict = self.judge.verdict(action.data)
        else:
            verdict = node.conduct.verdict(self, node, action)
        node.cpu_free_at = max(self.clock.now, node.cpu_free_at) + self._cost_s
        done_at = node.cpu_free_at + self._delay_s
        self.clock.add(done_at, (_VERDICT, node, node.life, action.token, verdict))

    def _do_deliver(self, node: SimNode, action: Deliver) -> None:
        number = self.numbers.get(action.message_id)
        if number is None:
            self.invalid_delivered += 1
            return
        if number in node.life.got:
            self.violated(node, f"message {number} was delivered twice")
        node.life.got[number] = self.clock.now
        self.keep(node, action.data)

    def _do_disconnect(self, node: SimNode, action: Disconnect) -> None:
        self.router_disconnects += 1
        found = node.links.get(action.peer)
        if found is not None:
            # Who was turned away for want of room may come back, and is not asked at once again.
            pause = max(action.refuse_s, self.scenario.network.redial_s)
            node.refused[action.peer] = self.clock.now + pause
            self.disconnect(found[0])

    def _do_dial(self, node: SimNode, action: Dial) -> None:
        other = self.by_peer.get(action.peer)
        if other is not None and self._may_dial(node, other, self.clock.now):
            self.suggested += 1
            self.dial(node, other)

    def keep(self, node: SimNode, data: bytes) -> Outcome:
        """Store a message at a node."""
        kind, namespace_id, seq = self.judge.examine(data)
        if kind is not VerdictKind.ACCEPT:
            return Outcome.REJECTED
        return Outcome.STORED if node.store.put(namespace_id, seq, data) else Outcome.DUPLICATE

    def violated(self, node: SimNode | None, what: str) -> None:
        """Note that something does not hold that must hold always."""
        self.violation_count += 1
        if len(self.violations) < VIOLATIONS_MAX:
            index = -1 if node is None else node.index
            self.violations.append(Violation(self.clock.now, index, what))

    # Who runs and who speaks with whom.

    def start(self, node: SimNode, *, fresh: bool = False) -> None:
        """Start a node: it follows the topic and begins to dial."""
        now = self.clock.now
        # A recording is of a node's first life.
        record = self.recorders.pop(node.index, None)
        router = node.begin(self.scenario, self.params, now, fresh=fresh, record=record)
        self.by_peer[node.peer] = node
        router.subscribe(TOPIC, now)
        self.touch(node)
        self._upkeep(node, node.life)
        interval = self.scenario.sync.interval_s
        if interval and not node.hostile:
            # A started node asks soon; then all of them at their own pace.
            self.call_at(now + min(1.0, interval), self._catch_up, node, node.life)

    def crash(self, node: SimNode, *, silent: bool = False) -> None:
        """End a node at once; its peers notice after a latency, or by their pings if ``silent``."""
        if node.router is None:
            return
        life = node.life
        life.died_at, life.stats = self.clock.now, node.router.stats()
        self.ended.append(life)
        node.router = None
        del self.by_peer[node.peer]
        for link, _ in node.links.values():
            after = PING_TIMEOUT_S if silent else link.latency_s
            self._end(link, after)
        node.links = {}

    def reachable(self, node: SimNode, other: SimNode) -> bool:
        """Return True when two nodes run and no partition is between them."""
        return node.alive and other.alive and node.side == other.side

    def dial(self, node: SimNode, other: SimNode) -> None:
        """Let a node dial another; the answer takes three latencies."""
        node.dialling[other.index] = None
        latency = self.weather.base_latency_s()
        self.call_at(self.clock.now + 3 * latency, self._dialled, node, node.life, other, latency)

    def _dialled(self, node: SimNode, life: Life, other: SimNode, latency: float) -> None:
        if node.life is not life or not node.alive:
            return
        node.dialling.pop(other.index, None)
        now = self.clock.now
        if not self.reachable(node, other) or other.peer in node.links or node.peer in other.links:
            return
        assert node.router is not None
        assert other.router is not None
        if (
            other.refused.get(node.peer, 0) > now
            or node.refused.get(other.peer, 0) > now
            or other.router.refuses(node.address, outbound=False)
            or node.router.refuses(other.address, outbound=True)
        ):
            self.refusals += 1
            node.refused[other.peer] = now + self.scenario.network.redial_s
            return
        there, back = SimLink(node, other, latency), SimLink(other, node, latency)
        there.back, back.back = back, there
        node.links[other.peer] = there, True
        other.links[node.peer] = back, False
        sides = self.sides_met
        if sides and self.contact_at is None and sides[node.index] != sides[other.index]:
            self.contact_at = now
        for own, peer, dialed in ((node, other, True), (other, node, False)):
            assert own.router is not None
            own.router.peer_connected(peer.peer, PROTOCOLS[0], dialed, now, address=peer.address)
            # Stands for the signed peer record that its hello brings.
            own.router.peer_record(peer.peer, peer.peer)
            self.touch(own)

    def disconnect(self, link: SimLink) -> None:
        """End a connection from one side; the other one notices after a latency."""
        self._forget(link)
        self._end(link, link.latency_s)

    def sever(self, link: SimLink) -> None:
        """End a connection at both sides at once."""
        self._forget(link)
        self._end(link, 0.0)

    def _end(self, link: SimLink, after_s: float) -> None:
        assert link.back is not None
        link.open = link.back.open = False
        self.call_at(self.clock.now + after_s, self._forget, link.back)

    def _forget(self, link: SimLink) -> None:
        """Tell the source of a link that it has ended; does nothing when it knows."""
        node = link.source
        found = node.links.get(link.peer)
        if found is None or found[0] is not link:
            return
        del node.links[link.peer]
        if node.router is not None:
            node.router.peer_disconnected(link.peer, self.clock.now)
            self.touch(node)

    # What a node does by the clock.

    def _upkeep(self, node: SimNode, life: Life) -> None:
        """Dial the kept peers that are missing, then others while connections are too few."""
        if node.life is not life or node.router is None:
            return
        now = self.clock.now
        absent = [other for other in node.kept if self._may_dial(node, other, now)]
        lacking = node.dials - node.outbound() - len(node.dialling)
        if lacking > len(absent):
            others = [
                other
                for other in node.book
                if other not in absent and self._may_dial(node, other, now)
            ]
            absent += node.rng.sample(others, min(lacking - len(absent), len(others)))
        router = node.router
        for other in absent:
            if not router.refuses(other.address, outbound=True):
                self.dial(node, other)
        pause = self.scenario.network.redial_s * (0.5 + node.rng.random())
        self.call_at(now + pause, self._upkeep, node, life)

    def _may_dial(self, node: SimNode, other: SimNode, now: float) -> bool:
        return (
            other.peer not in node.links
            and other.index not in node.dialling
            and node.refused.get(other.peer, 0) <= now
        )

    def _catch_up(self, node: SimNode, life: Life) -> None:
        """Ask other relays for what is missing, and again after the interval."""
        if node.life is not life or not node.alive:
            return
        plan = self.scenario.sync
        if not node.syncing:
            relays = node.rng.sample(node.book, min(plan.peers, len(node.book)))
            SimRecovery(self, node, relays).start()
        pause = plan.interval_s * (0.75 + node.rng.random() / 2)
        self.call_at(self.clock.now + pause, self._catch_up, node, life)
