"""Drives `luxrelay.gossip.GossipRouter` over libp2p streams: bytes and time in, actions out.

Theory of operation
  Decides: nothing about gossip. It opens one stream to each peer, reads the peer's streams, keeps
    the time, and does what the router asks, by one table from action to effect (`_effects`).
  Tasks: one per peer (`_serve_link`: hello, then our stream out), one per stream of a peer
    (`_serve_inbound`), one for the router's timer, one for verdicts, one per configured peer
    (`redial`), one for the others (`connector`), one that watches connections, one that saves bans.
    All touch the router on one thread, and never from inside an action.
  The driver's contract with a core: feed inputs; after each, `drain()` and do the actions in
    order; sleep until `wake_at()`; `wake(now)`; never call a core from inside one of its own
    actions. Here the frames of one read, and the verdicts of one batch, are fed before one
    `drain()`, so that everything they cause for a peer leaves in one write.
  Back pressure: a peer whose messages wait for verdicts is not read from (`peer_pending_max`),
    which its own writes feel; publishing and forwarding wait up to `patience_s` for a peer whose
    queue is half full, never longer. A peer that takes less than is offered is slow: the router is
    told before each heartbeat how much fits (`peer_room`). One that takes nothing is dropped after
    `write_stall_s` (20-58, G39). When it is our own link that is slow, the router is told so as
    well (`pull`, G41), if the node catches up.
  Bounds: all in `NetConfig`; the inbox answers IGNORE when full, the writer gives messages up.

Messages waiting for a verdict, and the batches in which they get it.

Configured peers are kept connected: dialled, watched, and dialled again.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import trio

from luxrelay.bus import VerdictKind
from luxrelay.conduct import Cause
from luxrelay.errors import AddressError, FrameError, NetError
from luxrelay.gossip import (
    Action,
    Deliver,
    Dial,
    Disconnect,
    Discover,
    Echo,
    GossipRouter,
    PeerId,
    ScoreTerms,
    Send,
    Validate,
)
from luxrelay.net.address_news import MOVED, AddressNews
from luxrelay.net.addresses import parse_peer_address
from luxrelay.net.book import KEPT_MAX, Source
from luxrelay.net.charging import account, without_account
from luxrelay.net.config import COALESCED_BYTES, MESHSUB, NetConfig
from luxrelay.net.connector import Connector
from luxrelay.net.exchange import PEERS, PeerExchange
from luxrelay.net.finder import PeerFinder
from luxrelay.net.greeting import Greeted, Greeter
from luxrelay.net.hello import HELLO
from luxrelay.net.host import RelayHost
from luxrelay.net.links import DriverCounters, Link, NetStats, PeerLog
from luxrelay.net.own_link import OwnLink
from luxrelay.net.peer_clocks import PeerClocks
from luxrelay.net.scopes import ReadyReport
from luxrelay.net.streams import (
    FrameCutError,
    FrameReader,
    PeerWriter,
    RelayStream,
    StreamHandler,
    WriterEnd,
    until_over,
)
from luxrelay.pause import doubled, jittered

_LOGGER: Final = logging.getLogger("luxrelay.net")
_LOUD_AT: Final = 10
"""The failure that is said aloud once more; the others are logged at debug."""


class Redialler:
    """Dials a lost peer after a while that doubles, with jitter so that nodes do not march in step.

    Args:
        host: Who dials.
        config: `redial_min_s`, `redial_max_s`, `steady_s`.
        rng: The jitter: between half of the while and all of it.
        counters: Where dials are counted.

    """

    def __init__(
        self, host: RelayHost, config: NetConfig, rng: random.Random, counters: DriverCounters
    ) -> None:
        self._host = host
        self._config = config
        self._rng = rng
        self._counters = counters
        self._followed: dict[PeerId, tuple[str, ...]] = {}
        self._news: dict[PeerId, trio.Event] = {}

    async def keep(self, addresses: Sequence[str], peer: PeerId) -> None:
        """The peer is connected, or dialled again after a while that grows.

        Args:
            addresses: All that the configuration names for the peer; each dial tries them in turn.
            peer: Who has to answer there.

        """
        lost = failures = 0
        while True:
            if not self._host.is_connected(peer):
                try:
                    await self._host.dial(*self._followed.get(peer, ()), *addresses)
                except (NetError, AddressError) as error:
                    self._counters.dials_failed += 1
                    failures += 1
                    _LOGGER.log(
                        logging.WARNING if failures in (1, _LOUD_AT) else logging.DEBUG,
                        "peer cannot be reached",
                        extra={"fields": {"failures": failures, "reason": str(error)}},
                    )
                else:
                    self._counters.dials += 1
                    failures = 0
            began = trio.current_time()
            while self._host.is_connected(peer):
                await self._host.wait_changed()
            if trio.current_time() - began >= self._config.steady_s:
                lost = 0
            lost += 1
            delay = doubled(self._config.redial_min_s, lost, self._config.redial_max_s)
            with trio.move_on_after(jittered(delay, self._rng)):
                await self._news.setdefault(peer, trio.Event()).wait()
                lost = 0
            self._news.pop(peer, None)

    def follow(self, peer: PeerId, addresses: Sequence[str]) -> None:
        """A configured peer says that it is elsewhere now: there it is dialled first, and at once.

        What it said before stays as a fallback, `KEPT_MAX` addresses in all, and the configuration.
        """
        known = self._followed.get(peer, ())
        if tuple(addresses) != known[: len(addresses)]:
            self._followed[peer] = tuple(dict.fromkeys([*addresses, *known]))[:KEPT_MAX]
            self._news.setdefault(peer, trio.Event()).set()


T = TypeVar("T")
Validator = Callable[[list[Validate]], Awaitable[list[VerdictKind]]]
"""Judges a batch: one verdict for each message, in order."""

FED_BYTES: Final = 1024 * 1024
"""Bytes fed to the router before it is drained: a quarter of what it gathers for a peer."""


class VerdictInbox:
    """A bounded queue that gives up all it holds, at most `batch_max` at once, judged.

    Args:
        validate: Judges a batch.
        config: `inbox_max` and `batch_max`.
        counters: Where overflows, batches and failures are counted.

    """

    def __init__(self, validate: Validator, config: NetConfig, counters: DriverCounters) -> None:
        self._validate = validate
        self._config = config
        self._counters = counters
        self._waiting: deque[Validate] = deque()
        self._filled = trio.Event()

    def put(self, item: Validate) -> bool:
        """Whether the message waits for a verdict; False when `inbox_max` are waiting."""
        if len(self._waiting) >= self._config.inbox_max:
            self._counters.inbox_overflows += 1
            return False
        self._waiting.append(item)
        self._filled.set()
        return True

    async def take(self) -> list[tuple[Validate, VerdictKind]]:
        """The next batch with its verdicts; IGNORE for all of it when `validate` fails.

        Our own trouble is never a peer's fault (the verdict table), so a failure is counted and
        not raised.
        """
        while not self._waiting:
            self._filled = trio.Event()
            await self._filled.wait()
        size = min(len(self._waiting), self._config.batch_max)
        batch = [self._waiting.popleft() for _ in range(size)]
        self._counters.batches += 1
        try:
            verdicts = await self._validate(batch)
        except Exception:  # noqa: BLE001 - see the docstring
            verdicts = []
        if len(verdicts) != len(batch):
            self._counters.validate_errors += 1
            verdicts = [VerdictKind.IGNORE] * len(batch)
        return list(zip(batch, verdicts, strict=True))


def slices(
    items: Sequence[T], count_max: int, size: Callable[[T], int], *, bytes_max: int = FED_BYTES
) -> Iterator[Sequence[T]]:
    """The items in order, in runs of so many and of little more than so many bytes."""
    start = weight = 0
    for index, item in enumerate(items):
        weight += size(item)
        if weight >= bytes_max or index + 1 - start >= count_max:
            yield items[start : index + 1]
            start, weight = index + 1, 0
    if start < len(items):
        yield items[start:]


_RETRY_S: Final = 0.05
"""Seconds before the gossip stream is tried again on a connection, doubled each time."""
_ROOM_POLL_S: Final = 0.05
"""Seconds after which whoever waits for room looks whether a peer has stopped taking."""
_SHARE_MIN: Final = 16
"""Messages of one peer that may always wait for a verdict."""


class _Deaf:
    """How long, and how often in a row, a peer has opened no gossip stream to us."""

    def __init__(self, config: NetConfig) -> None:
        self._config = config
        self._connections: Sequence[object] = ()
        self._since = 0.0
        self._count = 0

    def refused(self, connections: Sequence[object], now: float) -> bool:
        """Note one more try over these connections; True when it was the last."""
        if self._connections != connections:
            self._connections, self._since, self._count = connections, now, 0
        self._count += 1
        config = self._config
        return self._count >= config.stream_attempts_max and now - self._since >= config.idle_s


class GossipDriver:
    """The one driver of a `GossipRouter` on a network.

    Args:
        router: The core; nobody else may call it while the driver runs.
        host: A host that is running, or will be before the first dial.
        validate: Judges messages in batches, in a task of its own; may use worker threads.
        config: Bounds, and the peers to stay connected with.
        rng: Jitter of re-dials.
        clock: Monotonic seconds, the router's ``now``.
        deliver: Called with each accepted message, once per message id; must neither block nor call
            the driver.
        echoed: Called with who has shown messages of ours; the same.
        clocks: Learns what time the peers tell; of its own when None.

    Raises:
        AddressError: An address in ``config.peers`` names no peer that can be dialled.

    """

    def __init__(
        self,
        router: GossipRouter,
        host: RelayHost,
        *,
        validate: Validator,
        config: NetConfig,
        rng: random.Random,
        clock: Callable[[], float] = trio.current_time,
        deliver: Callable[[Deliver], None] | None = None,
        echoed: Callable[[Echo], None] = lambda _: None,
        clocks: PeerClocks | None = None,
    ) -> None:
        self.counters = DriverCounters()
        self.level: Callable[[], bool] | None = None
        """Tells whether catching up lacks nothing; None for a node that does not catch up."""
        self._own_link = OwnLink(config)
        self._gossip = 0
        self.clocks = clocks if clocks is not None else PeerClocks()
        self._router = router
        self._host = host
        self._config = config
        self._redialler = Redialler(host, config, rng, self.counters)
        self._clock = clock
        self._deliver = deliver
        self._kept: dict[PeerId, list[str]] = {}
        for text in config.peers:
            peer = parse_peer_address(text)[1]
            if peer != host.peer_id:
                self._kept.setdefault(peer, []).append(text)
        self._links: dict[PeerId, Link] = {}
        self._told = PeerLog()
        self._greeter = Greeter(host, config, self.clocks)
        self._exchange = PeerExchange(host, config, rng)
        self._connector = Connector(
            host,
            config,
            self._exchange,
            rng=rng,
            counters=self.counters,
            kept=self._kept.keys(),
            refuses=lambda address: self._router.refuses(address, outbound=True),
            greeted=self._greeted,
        )
        self._news = self._make_news()
        self._finder = PeerFinder(host, config, rng=rng, connector=self._connector)
        self._inbox = VerdictInbox(validate, config, self.counters)
        self._busy_tokens: list[int] = []
        self._progress = trio.Event()
        self._rearm = trio.Event()
        self._sleeping_until = float("-inf")
        self._nursery: trio.Nursery | None = None
        self._effects = self._table(echoed)
        self._served: dict[str, StreamHandler] = dict.fromkeys(MESHSUB, self._serve_inbound)
        self._served[HELLO] = self._greeter.answer
        if config.exchange:
            self._served[PEERS] = self._exchange.serve
            self._served[MOVED] = self._news.serve
        if config.dht:
            self._served[self._finder.protocol] = self._finder.serve

    def _make_news(self) -> AddressNews:
        news = AddressNews(
            self._host,
            self._config,
            connector=self._connector,
            kept=self._kept.keys(),
            greeted=self._greeted,
            follow=self._redialler.follow,
        )
        self._connector.on_kept = news.learnt
        return news

    def _table(self, echoed: Callable[[Echo], None]) -> dict[type[Action], Callable[[Any], None]]:
        return {
            Send: self._do_send,
            Validate: self._do_validate,
            Deliver: self._do_deliver,
            Disconnect: self._do_disconnect,
            Dial: self._do_dial,
            Discover: self._do_discover,
            Echo: echoed,
        }

    async def run(self, *, task_status: ReadyReport[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Gossips until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for protocol, handler in self._served.items():
                    self._host.handle(protocol, handler)
                keep = self._host.faults.keep
                nursery.start_soon(keep, "timer", self._keep_time)
                nursery.start_soon(keep, "verdicts", self._judge)
                nursery.start_soon(keep, "watch", self._watch_connections)
                nursery.start_soon(keep, "connector", self._connector.run)
                nursery.start_soon(keep, "news", self._news.run)
                nursery.start_soon(keep, "clocks", self._keep_clocks)
                nursery.start_soon(keep, "silence", self._keep_heard)
                if self._config.dht:
                    nursery.start_soon(keep, "finder", self._finder.run)
                saving = partial(self._host.bans.keep_written, self._config.bans_save_s)
                nursery.start_soon(keep, "bans", saving)
                for peer, addresses in self._kept.items():
                    redial = partial(self._redialler.keep, addresses, peer)
                    nursery.start_soon(keep, "redial", redial)
                task_status.started(None)
        finally:
            for protocol in self._served:
                self._host.unhandle(protocol)
            self._nursery = None
            for link in self._links.values():
                link.close()

    def _greeted(self) -> list[PeerId]:
        return [peer for peer, link in self._links.items() if link.hello is not None]

    # Calls of the node.

    async def connect(self, address: str) -> PeerId:
        """There is a connection with the peer at the address; its id is returned.

        Raises:
            AddressError: The address cannot be dialled.
            NetError: The peer cannot be reached.

        """
        return await self._host.dial(address)

    def subscribe(self, topic: str) -> None:
        """The router takes part in the topic.

        Raises:
            TopicError: It is no topic of ours.

        """
        self._router.subscribe(topic, self._clock())
        self._act()

    def unsubscribe(self, topic: str) -> None:
        """The router has left the topic."""
        self._router.unsubscribe(topic, self._clock())
        self._act()

    async def publish(self, items: Sequence[tuple[str, bytes]]) -> list[int]:
        """Each message is on its way; the number of peers it goes to, in order.

        Waits while queues are more than half full, but no longer than `patience_s` for any peer.
        Cancelling leaves the first messages published and the others not.

        Raises:
            TopicError: A topic is none of LP-6420 §2; what stands before it is published.
            GossipArgumentError: The bytes are no envelope for their topic; the same.

        """
        sent: list[int] = []
        for batch in slices(items, self._config.publish_batch_max, lambda item: len(item[1])):
            now = self._clock()
            try:
                sent.extend(self._router.publish(topic, data, now) for topic, data in batch)
                self._host.charges.accepted += len(batch)
            finally:
                self._act()
            await self._wait_for_room()
        return sent

    async def ban(self, peer: PeerId, seconds: float, reason: str) -> None:
        """The peer is disconnected and not let in for so long, restarts included."""
        await self._host.ban(peer, seconds, reason)

    def lift_ban(self, peer: PeerId) -> bool:
        """The peer may come back; False when it was not banned."""
        return self._host.bans.lift(peer)

    def app_score(self, peer: PeerId, score: float) -> None:
        """What the application thinks of a connected peer counts in its score (P5)."""
        self._router.app_score(peer, score, self._clock())
        self._act()

    def stats(self) -> NetStats:
        """Numbers of the host, the router, the driver and each peer."""
        return NetStats(
            host=self._host.stats(),
            router=self._router.stats(),
            driver=self.counters,
            greeting=self._greeter.counters,
            exchange=self._exchange.counters,
            news=self._news.counters,
            finder=self._finder.counters,
            known_peers=len(self._connector.book),
            clock=self.clocks.view(self._host.wall_ms(), self._host.steady_ms()),
            clock_offsets=self.clocks.offsets(self._host.wall_ms(), self._host.steady_ms()),
            quiet_s=self.quiet_s(),
            bans=self._host.banned(),
            faults=self._host.faults.counts(),
            peers={peer: link.snapshot() for peer, link in self._links.items()},
        )

    def quiet_s(self) -> float | None:
        """Seconds since the last byte of any peer came; None without peers, here and named.

        Any thread may call it.
        """
        if not (self._links or self._kept or self._config.bootstrap):
            return None
        return (self._host.steady_ms() - self._host.heard_ms) / 1000

    def greeted(self) -> tuple[int, int, int]:
        """Peers accepted and refused as of another network so far, and connected now."""
        counters = self._greeter.counters
        return counters.accepted, counters.foreign, len(self._links)

    def explain(self, peer: PeerId) -> ScoreTerms | None:
        """A peer's score taken apart, for people; None for a stranger."""
        return self._router.explain(peer, self._clock())

    # The table from action to effect.

    def _act(self) -> None:
        """Everything the router asks for is under way, and the timer knows the next deadline."""
        while True:
            for action in self._router.drain():
                try:
                    self._effects[type(action)](action)
                except Exception as error:  # noqa: BLE001  one action ends no other
                    self._host.faults.note("action", error)
            if not self._busy_tokens:
                break
            tokens, self._busy_tokens = self._busy_tokens, []
            now = self._clock()
            for token in tokens:
                self._router.validated(token, VerdictKind.IGNORE, now)
        wake_at = self._router.wake_at()
        if wake_at is not None and wake_at < self._sleeping_until:
            self._rearm.set()

    def _do_send(self, action: Send) -> None:
        link = self._links.get(action.peer)
        if (
            link is None
            or link.writer is None
            or not link.writer.offer(action.data, urgent=action.urgent)
        ):
            self.counters.unsendable += 1
            return
        self._gossip += len(action.data)

    def _do_validate(self, action: Validate) -> None:
        if not self._inbox.put(action):
            self._busy_tokens.append(action.token)
            return
        link = self._links.get(action.peer)
        if link is not None:
            link.pending += 1

    def _do_deliver(self, action: Deliver) -> None:
        self.counters.delivered += 1
        self._host.charges.accepted += 1
        if self._deliver is not None:
            self._deliver(action)

    def _do_disconnect(self, action: Disconnect) -> None:
        self.counters.disconnects += 1
        self._connector.let_go(action.peer)
        if self._nursery is None:
            return
        if action.refuse_s > 0:
            self._host.faults.start(
                self._nursery,
                "disconnect",
                self._host.ban,
                action.peer,
                action.refuse_s,
                action.reason,
            )
        else:
            self._host.faults.start(
                self._nursery, "disconnect", self._host.disconnect, action.peer, action.reason
            )

    def _do_dial(self, action: Dial) -> None:
        if self._config.exchange:
            self._connector.suggest(action.peer, action.record, action.by)

    def _do_discover(self, action: Discover) -> None:
        self._connector.discover(action.count)

    # Time and verdicts.

    async def _keep_time(self) -> None:
        while True:
            wake_at = self._router.wake_at()
            self._rearm = trio.Event()
            self._sleeping_until = float("inf") if wake_at is None else wake_at
            with trio.move_on_after(max(0.0, self._sleeping_until - self._clock())):
                await self._rearm.wait()
            now = self._clock()
            if wake_at is not None and now >= wake_at:
                self._look_at_links(now)
                self._router.wake(now)
                self._act()

    def _look_at_links(self, now: float) -> None:
        """The router knows which peers are slow, and how much fits their links."""
        looked_at = trio.current_time()
        self._look_at_own_link(looked_at, now)
        for link in self._links.values():
            if link.writer is None:
                continue
            if self._router.peer_pulls(link.peer) != link.pulls:
                link.pulls = not link.pulls
                if link.pulls:
                    link.writer.trim()
            was_slow, room = link.writer.slow, link.writer.look(looked_at)
            if was_slow or room is not None:
                self._router.peer_room(link.peer, room, now)
            if was_slow != link.writer.slow:
                self._told.slow(link, slow=link.writer.slow)
                self._host.narrow(link.peer, slow=link.writer.slow)

    def _look_at_own_link(self, looked_at: float, now: float) -> None:
        """The router knows whether our own link is slow (G41); see `level`."""
        if self.level is None:
            return
        was, host = self._own_link.pulls, self._host
        pulls = self._own_link.look(
            host.waits_s(),
            (self._gossip, host.bytes_moved),
            level=self.level(),
            now=looked_at,
        )
        if pulls != was:
            self._told.own_link(pulls=pulls, waits_s=self._own_link.waits_s)
            self._router.pull(pulls=pulls, now=now)

    async def _judge(self) -> None:
        while True:
            judged = await self._inbox.take()
            for part in slices(judged, len(judged), lambda pair: len(pair[0].data)):
                now = self._clock()
                for item, kind in part:
                    self._router.validated(item.token, kind, now)
                self._act()
                await self._wait_for_room()
            taken = Counter(item.peer for item, kind in judged if kind is VerdictKind.ACCEPT)
            for peer, count in Counter(item.peer for item, _ in judged).items():
                link = self._links.get(peer)
                if link is not None:
                    link.judged(count, taken[peer])

    async def _wait_for_room(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            now = trio.current_time()
            writers = [link.writer for link in self._links.values() if link.writer is not None]
            if not any(writer.pressed(now) for writer in writers):
                return
            with trio.move_on_after(_ROOM_POLL_S):
                await self._progress.wait()

    def _note_progress(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    async def _keep_clocks(self) -> None:
        """The clocks of the peers are asked for again and again, all at once (G36)."""
        while True:
            await trio.sleep(self._config.clock_interval_s)
            async with trio.open_nursery() as nursery:
                for peer in self.clocks.tellers():
                    self._host.faults.start(nursery, "clock", self._greeter.ask_time, PeerId(peer))

    async def _keep_heard(self) -> None:
        """Peers that have nothing to say are asked for a sign of life (G37)."""
        third_s = self._config.silence_max_s / 3
        while third_s:
            await trio.sleep(third_s / 2)
            if (self.quiet_s() or 0.0) >= third_s:
                await self._host.probe()

    # Peers.

    async def _watch_connections(self) -> None:
        while True:
            for peer in self._host.connected():
                self._link(peer)
            await self._host.wait_changed()

    def _link(self, peer: PeerId) -> Link:
        """The peer's link; it lives as long as the peer is connected."""
        link = self._links.get(peer)
        if link is None:
            assert self._nursery is not None
            link = self._links[peer] = Link(peer)
            self._nursery.start_soon(self._serve_link, link)
        return link

    async def _serve_link(self, link: Link) -> None:
        self._host.charges.charge(link.peer)
        self._host.lost_why(link.peer)  # of an earlier connection
        try:
            known = self._host.connections(link.peer)
            with self._host.faults.contained("link"):
                await self._talk(link)
                await self._host.let_go(link.peer, known, self._config.idle_s)
        finally:
            del self._links[link.peer]
        if self._host.is_connected(link.peer):
            self._link(link.peer)  # it came back before its last link was forgotten

    async def _talk(self, link: Link) -> None:
        """Our stream to the peer is kept open until the peer is gone, dropped or unwilling.

        A stream that breaks, whoever reset it and how often, is opened anew after a pause that
        grows up to `stream_pause_max_s`, as long as the connection lives. Only a peer that opens
        none for `idle_s`, and `stream_attempts_max` times in a row, is let go: it takes no gossip.
        """
        deaf, lost = _Deaf(self._config), 0
        self.clocks.connected(link.peer, dialled=self._host.dialled(link.peer))
        try:
            greeted, link.hello = await self._greeter.greet(link.peer)
            if greeted is Greeted.GONE:
                return
            while live := self._host.connections(link.peer):
                began = trio.current_time()
                try:
                    stream = await self._host.open_stream(link.peer, *MESHSUB)
                except NetError:
                    if deaf.refused(live, began):
                        await self._host.disconnect(link.peer, Cause.NO_GOSSIP.value)
                        return
                else:
                    deaf, end = _Deaf(self._config), WriterEnd.LOST
                    with self._host.faults.contained("gossip"):
                        end = await self._write(link, stream)
                    if end is not WriterEnd.LOST:
                        await self._drop(link, end)
                        return
                    self.counters.streams_lost += 1
                if trio.current_time() - began >= self._config.steady_s:
                    lost = 0
                lost += 1
                pause_s = doubled(_RETRY_S, lost, self._config.stream_pause_max_s)
                await self._pause(link.peer, pause_s)
        finally:
            link.close()
            self.clocks.gone(link.peer)
            self._told.lost(link, self._host.lost_why(link.peer))
            self._exchange.gone(link.peer)
            self._router.peer_disconnected(link.peer, self._clock())
            self._act()

    async def _pause(self, peer: PeerId, seconds: float) -> None:
        """So long, or until another connection with the peer has come or the last has gone."""
        known = self._host.connections(peer)
        with trio.move_on_after(seconds):
            while self._host.connections(peer) == known:
                await self._host.wait_changed()

    async def _write(self, link: Link, stream: RelayStream) -> WriterEnd:
        """What the router sends to the peer goes out; says why that ended.

        The router knows the peer from the first stream on until the link ends, so a stream that
        is opened anew costs neither side what it knows of the other; the router greets again.
        """
        writer = PeerWriter(stream, self._config)
        writer.on_progress = self._note_progress
        end = WriterEnd.LOST
        try:
            async with trio.open_nursery() as nursery:
                link.attach(stream, writer, nursery.cancel_scope)
                self._introduce(link, stream.protocol)
                self._act()
                nursery.start_soon(until_over, stream, nursery.cancel_scope)
                without_account()  # it writes what others said
                end = await writer.run()
                nursery.cancel_scope.cancel()
        finally:
            link.detach()
            await stream.reset()
        return end

    def _introduce(self, link: Link, protocol: str) -> None:
        """The router knows the peer, and what it said of itself."""
        peer, now = link.peer, self._clock()
        self._greet(peer, protocol)
        self._told.met(link)
        if link.hello is None:
            return
        if link.hello.passes_on:
            self._router.peer_passes_on(peer)
        if link.hello.role is not None:
            self._router.peer_role(peer, link.hello.role, now, proof=link.hello.proof)
        share = self._config.exchange or self._config.dht
        if share and link.hello.record and self._nursery is not None:
            self._host.faults.start(self._nursery, "vouch", self._vouch, link, link.hello.record)

    def _greet(self, peer: PeerId, protocol: str) -> None:
        self._router.peer_connected(
            peer,
            protocol,
            self._host.dialled(peer),
            self._clock(),
            address=self._host.remote_host(peer),
            protected=peer in self._kept,
        )

    async def _vouch(self, link: Link, record: bytes) -> None:
        """A peer that answers where its record says is remembered, and suggested to others."""
        checked = await self._exchange.vouch(link.peer, record)
        if checked is not None and not link.closed:
            self._news.take(checked, record, Source.HELLO, by=link.peer)
            self._finder.know(link.peer, record)
            self._router.peer_record(link.peer, record)

    async def _drop(self, link: Link, end: WriterEnd) -> None:
        if end is WriterEnd.STALLED:
            self.counters.dropped_stalled += 1
            cause = Cause.NOTHING_TAKEN
        else:
            self.counters.dropped_overflow += 1
            cause = Cause.QUEUE_FULL
        await self._host.disconnect(link.peer, cause.value)

    async def _serve_inbound(self, stream: RelayStream) -> None:
        if self._nursery is None:
            return
        link = self._link(stream.peer)
        link.came_back(stream)
        if link.streams >= self._config.gossip_streams_max:
            self.counters.streams_refused += 1
            return
        link.streams += 1
        if link.stream is not None and link.greets_again(self._clock()):
            self._greet(link.peer, link.stream.protocol)
            self._act()
        with trio.CancelScope() as scope:
            link.readers.add(scope)
            try:
                await self._read(link, stream)
            except FrameCutError:
                self.counters.streams_cut += 1
            except FrameError:
                self.counters.frame_errors += 1
                link.counters.frame_errors += 1
            finally:
                link.readers.discard(scope)
                link.streams -= 1

    async def _read(self, link: Link, stream: RelayStream) -> None:
        reader = FrameReader(stream, self._config, stream.park)
        counters, charged = link.counters, account()
        link.account = charged or link.account
        while await link.wait_ready():
            frames = await reader.receive()
            if not frames:
                return
            for part in slices(frames, len(frames), len, bytes_max=COALESCED_BYTES):
                now = self._clock()
                for frame in part:
                    counters.frames_in += 1
                    counters.bytes_in += len(frame)
                    self._gossip += len(frame)
                    self._router.received(link.peer, frame, now)
                self._act()
                if charged is not None:
                    charged.read(len(part), self._host.charges.accepted)
                await link.wait_room(self._share())

    def _share(self) -> int:
        """Messages one peer may have waiting, so that all peers together stay within the inbox."""
        share = self._config.inbox_max // (2 * max(1, len(self._links)))
        return min(self._config.peer_pending_max, max(share, _SHARE_MIN))
