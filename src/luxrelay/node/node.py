"""One relay from its parts; the only place that knows them all.

Theory of operation
-------------------
*Threads*: libp2p and the gossip router live on one trio loop. RocksDB batches and signatures run
in worker threads, RelaySync in gRPC's own, the pages for operators in their own; all of them call
the thread-safe store and the doors, never the router.
*Start*: data folder, identity, store, RelaySync, pages, libp2p, gossip, catch-up; then
``runtime.json`` says where everything listens. What fails on the way says so in one line and
undoes what was started.
*Stop*: gossip and catch-up end, the pages and RelaySync close, running batches finish, the store
closes. Nothing that was acknowledged can be lost, because acknowledgements leave after the commit.

Source: architecture of the house; LP-6490.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import trio

from luxrelay import __version__
from luxrelay.bus import PolicyRegistry, SigningKey, VerdictKind
from luxrelay.errors import LuxRelayError
from luxrelay.gossip import GossipParams, GossipRouter, PeerId, Validate, topic_for_namespace
from luxrelay.net import GossipDriver, NetConfig, NetStats, RelayHost
from luxrelay.net.addresses import peer_text
from luxrelay.net.scopes import ReadyReport
from luxrelay.node.catch_up import CatchUpLoop
from luxrelay.node.config import NodeConfig, SyncLimits
from luxrelay.node.folder import DataFolder, Runtime
from luxrelay.node.gateway.assembly import NodeParts, gateway_of
from luxrelay.node.guards import Guards, make_guards
from luxrelay.node.logs import log, start_logging
from luxrelay.node.metrics import NodeMetrics, Sources
from luxrelay.node.observe import Observer, Views
from luxrelay.node.policies import load_registry
from luxrelay.node.stages.deliver import Feed
from luxrelay.node.stages.doors import Doors
from luxrelay.node.stages.verify import Judge, JudgeConfig, StoreKnowledge
from luxrelay.node.wanted import WantedBlobs
from luxrelay.store import Durability, RelayStore, RelayStoreConfig, WhenFull
from luxrelay.sync import ClientTls, FairnessConfig, ServerTls, SyncServerConfig
from luxrelay.sync.rpc.service import RelaySyncServer


def wall_ms() -> int:
    """Return the wall clock, Unix milliseconds."""
    return time.time_ns() // 1_000_000


def run_node(config: NodeConfig) -> int:
    """Run a relay until SIGTERM or SIGINT; return 0 after an orderly end.

    Raises:
        LuxRelayError: it cannot start or go on; everything that was started has been stopped.

    """
    start_logging(config.name, config.log_level)
    node = Node(config)
    try:
        trio.run(node.run)
    except BaseExceptionGroup as group:
        raise first_error(group) from group
    return 0


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first of our own errors in a group, else the first of all."""
    ours = group.subgroup(LuxRelayError)
    found: BaseException = group if ours is None else ours
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What one relay is made of."""

    store: RelayStore
    guards: Guards
    doors: Doors
    host: RelayHost
    driver: GossipDriver
    server: RelaySyncServer
    catch_up: CatchUpLoop
    feed: Feed
    registry: PolicyRegistry


class Node:
    """The parts of one relay and their lives."""

    def __init__(self, config: NodeConfig, *, rng: random.Random | None = None) -> None:
        """Keep the configuration; nothing is opened before `run`."""
        self._config = config
        self._rng = rng or random.SystemRandom()
        self._policies = {
            entry.namespace_id: frozenset({entry.policy_hash} if entry.policy_hash else ())
            for entry in config.namespaces
        }
        self._ready_at: float | None = None
        self._stopping = threading.Event()

    async def run(self, *, task_status: ReadyReport[Runtime] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until a signal or cancellation; ``task_status`` gets where the node listens."""
        registry = load_registry(self._config)
        folder = DataFolder(self._config.data_dir)
        identity = folder.identity()
        with ExitStack() as stack:
            store = RelayStore.open(folder.store, self._store_config(), now_ms=wall_ms())
            stack.callback(store.close)
            guards = make_guards(self._config, store)
            judge = Judge(
                StoreKnowledge(store),
                self._policies,
                JudgeConfig(
                    ttl_ms=self._config.ttl_ms,
                    bound_network=self._config.network if self._config.signing == "bound" else "",
                ),
                wall_ms,
                registry=registry,
                rates=guards.rates,
                fees=guards.fees,
                finality=guards.finality,
            )
            stack.callback(judge.close)
            parts = self._assemble(identity, store, judge, registry, guards)
            await self._serve(folder, parts, task_status)

    def _store_config(self) -> RelayStoreConfig:
        return RelayStoreConfig(
            cold_store_ttl_ms=self._config.ttl_ms,
            max_storage_bytes=self._config.max_storage_bytes,
            durability=Durability(self._config.durability),
            when_full=WhenFull(self._config.when_full),
            namespace_quota_bytes=self._config.namespace_quota_bytes or None,
        )

    def _assemble(
        self,
        identity: SigningKey,
        store: RelayStore,
        judge: Judge,
        registry: PolicyRegistry,
        guards: Guards,
    ) -> _Parts:
        config = self._config
        net_config = net_config_of(config)
        host = RelayHost(identity.seed, net_config)
        params = GossipParams(
            heartbeat_interval_s=config.heartbeat_ms / 1000,
            peers_max=config.connections_max,
            pending_max=config.inbox_max,
        )
        router = GossipRouter(params, rng=self._rng, own_id=host.peer_id)
        spread = _Spread()
        wanted = WantedBlobs(ttl_ms=config.ttl_ms)
        feed = Feed(trio.lowlevel.current_trio_token().run_sync_soon, wall_ms)
        doors = Doors(
            store=store,
            judge=judge,
            identity=identity,
            network=config.network,
            inline_blob_max=config.inline_blob_max,
            clock_ms=wall_ms,
            spread=spread,
            wanted=wanted,
            fees=guards.fees,
            deliver=feed.stored,
        )
        driver = GossipDriver(
            router, host, validate=_in_worker(doors), config=net_config, rng=self._rng
        )
        spread.driver = driver
        return _Parts(
            store=store,
            guards=guards,
            doors=doors,
            host=host,
            driver=driver,
            server=self._sync_server(store, doors),
            catch_up=CatchUpLoop(
                store,
                doors,
                parents=tuple(self._policies),
                peers=config.sync_peers,
                tls=_client_tls(config.sync_limits),
                stopping=self._stopping,
                wanted=wanted,
                clock_ms=wall_ms,
            ),
            feed=feed,
            registry=registry,
        )

    def _sync_server(self, store: RelayStore, doors: Doors) -> RelaySyncServer:
        config = self._config
        return RelaySyncServer(
            store,
            _server_config(config),
            clock_ms=wall_ms,
            publisher=doors if config.allow_publish else None,
            handoff=store if config.allow_handoff else None,
            subscribed=frozenset(self._policies),
            tls=_server_tls(config.sync_limits),
        )

    async def _serve(
        self, folder: DataFolder, parts: _Parts, task_status: ReadyReport[Runtime]
    ) -> None:
        config = self._config
        with ExitStack() as stack:
            stack.callback(parts.catch_up.close)
            port = parts.server.start()
            stack.callback(parts.server.stop, 1.0)
            views = self._views(parts)
            observer = Observer(config.http_listen, views)
            stack.callback(observer.stop)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_signal, nursery.cancel_scope)
                addresses = await nursery.start(parts.host.run)
                await nursery.start(parts.driver.run)
                for entry in config.namespaces:
                    topic = topic_for_namespace(config.network, entry.namespace_id)
                    parts.driver.subscribe(topic)
                nursery.start_soon(self._expire, parts)
                nursery.start_soon(self._keep_caught_up, parts.catch_up)
                gateway, admin = await self._open_gateway(nursery, parts, views)
                runtime = Runtime(
                    pid=os.getpid(),
                    peer_id=parts.host.peer_text,
                    gossip=tuple(addresses),
                    sync=f"{config.sync_listen.rpartition(':')[0]}:{port}",
                    http=observer.address,
                    gateway=gateway,
                    admin=admin,
                )
                folder.announce(runtime)
                stack.callback(folder.withdraw)
                self._ready_at = time.monotonic()
                log(logging.INFO, "ready", version=__version__, **asdict(runtime))
                task_status.started(runtime)
        log(logging.INFO, "stopped")

    async def _open_gateway(
        self, nursery: trio.Nursery, parts: _Parts, views: Views
    ) -> tuple[str, str]:
        if not self._config.gateway.listen:
            return "", ""
        gateway = gateway_of(
            NodeParts(
                config=self._config,
                store=parts.store,
                doors=parts.doors,
                driver=parts.driver,
                host=parts.host,
                registry=parts.registry,
                feed=parts.feed,
                status=views.status,
                healthy=views.healthy,
                clock_ms=wall_ms,
            )
        )
        addresses: tuple[str, str] = await nursery.start(gateway.run)
        return addresses

    async def _until_signal(self, scope: trio.CancelScope) -> None:
        try:
            async with _signals() as signals:
                async for number in signals:
                    log(logging.INFO, "stopping", signal=signal.Signals(number).name)
                    scope.cancel()
        finally:
            self._stopping.set()

    async def _expire(self, parts: _Parts) -> None:
        store = parts.store
        pause_ms = self._config.expire_interval_ms
        while True:
            await trio.sleep(pause_ms / 1000)
            try:
                # Two clocks: a wall clock that jumps against the steady one deletes nothing (P43).
                stats = await trio.to_thread.run_sync(store.expire, wall_ms(), time.monotonic())
                await trio.to_thread.run_sync(parts.guards.upkeep)
            except LuxRelayError as error:
                log(logging.ERROR, "expiry failed", error=str(error))
                continue
            short = store.config.cycle_interval_ms(hit_limit=True)
            pause_ms = min(short, self._config.expire_interval_ms)
            if not stats.hit_limit:
                pause_ms = self._config.expire_interval_ms
            if stats.paused:
                log(logging.ERROR, "expiry is paused: the wall clock has jumped")
            elif stats.removed_count:
                log(logging.INFO, "expired", messages=stats.removed_count)

    async def _keep_caught_up(self, catch_up: CatchUpLoop) -> None:
        while self._config.sync_peers and self._policies:
            await trio.to_thread.run_sync(catch_up.once)
            await trio.sleep(self._config.sync_interval_ms / 1000)

    def _views(self, parts: _Parts) -> Views:
        read_net = _from_loop(parts.driver.stats)

        def uptime() -> float:
            return 0.0 if self._ready_at is None else time.monotonic() - self._ready_at

        metrics = NodeMetrics(
            Sources(
                net=read_net,
                store=parts.store.stats,
                sync=parts.server.stats,
                doors=parts.doors,
                uptime_s=uptime,
                clock_ms=wall_ms,
                catch_up=parts.catch_up.totals,
                rates=parts.guards.rates.refused,
            )
        )

        def status() -> dict[str, Any]:
            return {
                "name": self._config.name,
                "version": __version__,
                "network": self._config.network,
                "uptime_s": round(uptime(), 1),
                "store": _store_view(parts.store),
                "catch_up": parts.catch_up.view(),
                **_net_view(read_net()),
            }

        def healthy() -> tuple[bool, dict[str, Any]]:
            fault = parts.doors.fault()
            ready = self._ready_at is not None and not fault and not self._stopping.is_set()
            return ready, {"ready": ready, "fault": fault}

        return Views(metrics=metrics.exposition, healthy=healthy, status=status)


class _Spread:
    """Hands messages from a publishing thread to the gossip loop."""

    def __init__(self) -> None:
        self.driver: GossipDriver | None = None
        self._token = trio.lowlevel.current_trio_token()

    def __call__(self, items: Sequence[tuple[str, bytes]]) -> list[int]:
        if not items or self.driver is None:
            return [0] * len(items)
        try:
            return trio.from_thread.run(self.driver.publish, items, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            # The node is stopping: the messages are stored, and peers will ask for them.
            return [0] * len(items)


def _in_worker(doors: Doors) -> Callable[[list[Validate]], Any]:
    async def validate(batch: list[Validate]) -> list[VerdictKind]:
        return await trio.to_thread.run_sync(doors.gossip, batch)

    return validate


def _from_loop(read: Callable[[], NetStats]) -> Callable[[], NetStats]:
    """Return a reader that may be called from any thread: the loop owns what it reads."""
    token = trio.lowlevel.current_trio_token()

    def call() -> NetStats:
        return trio.from_thread.run_sync(read, trio_token=token)

    return call


def net_config_of(config: NodeConfig) -> NetConfig:
    """Return the bounds of the network room: about a third of the connections go out (G21).

    Every configured peer gets one of them.
    """
    outbound = max(config.connections_max * 16 // 50, len(config.gossip_peers), 1)
    return NetConfig(
        listen=config.gossip_listen,
        peers=config.gossip_peers,
        outbound_max=outbound,
        inbound_max=config.connections_max - outbound,
        inbox_max=config.inbox_max,
    )


def _server_config(config: NodeConfig) -> SyncServerConfig:
    host, _, port = config.sync_listen.rpartition(":")
    limits = config.sync_limits
    return SyncServerConfig(
        host=host,
        port=int(port),
        window_ms=config.ttl_ms,
        validators=limits.validators,
        fairness=FairnessConfig(
            out_bytes_per_s=limits.out_bytes_per_s,
            in_bytes_per_s=limits.in_bytes_per_s,
            peer_bytes_per_s=limits.peer_bytes_per_s,
            peer_requests_per_s=limits.peer_requests_per_s,
            peer_streams_max=limits.peer_streams_max,
        ),
    )


def _server_tls(limits: SyncLimits) -> ServerTls | None:
    if limits.tls_certificate is None or limits.tls_key is None:
        return None
    return ServerTls.from_files(limits.tls_certificate, limits.tls_key, limits.tls_client_ca)


def _client_tls(limits: SyncLimits) -> ClientTls | None:
    if limits.tls_peer_ca is None:
        return None
    return ClientTls.from_files(limits.tls_peer_ca, limits.tls_certificate, limits.tls_key)


def _store_view(store: RelayStore) -> dict[str, Any]:
    stats = store.stats()
    return {
        "messages": stats.messages,
        "namespaces": stats.namespaces,
        "size_bytes": stats.size_bytes,
    }


def _net_view(net: NetStats) -> dict[str, Any]:
    peers = {
        peer_text(PeerId(peer)): {
            "received": stats.received,
            "duplicates": stats.duplicates,
            "accepted": stats.accepted,
            "ignored": stats.ignored,
            "rejected": stats.rejected,
            "malformed": stats.malformed,
        }
        for peer, stats in net.router.peers.items()
    }
    return {"peers": peers, "mesh": dict(net.router.mesh)}


@asynccontextmanager
async def _signals() -> AsyncIterator[AsyncIterator[int]]:
    """Receive SIGTERM and SIGINT; outside the main thread, where nobody may, wait for ever."""
    if threading.current_thread() is threading.main_thread():
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
            yield received
    else:
        yield _nothing()


async def _nothing() -> AsyncIterator[int]:
    await trio.sleep_forever()
    yield 0
