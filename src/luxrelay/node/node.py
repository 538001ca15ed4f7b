"""One relay and its life; `luxrelay.node.assembly` puts it together.

Theory of operation
-------------------
*Threads*: libp2p and the gossip router live on one trio loop. RocksDB batches and signatures run
in worker threads, RelaySync in gRPC's own, the pages for operators in their own; all of them call
the thread-safe store and the doors, never the router.
*Signals* are heeded before anything is opened; a second one to stop ends the process at once.
*Start*: data folder, identity, store, then the modules: RelaySync, pages, gossip, catch-up, upkeep,
gateway; then ``runtime.json`` says where everything listens. What fails on the way says so in one
line and undoes what was started.
*Stop*: the modules end in reverse, each awaited, running batches finish, the store closes. Nothing
that was acknowledged can be lost, because acknowledgements leave after the commit.
*Reload* (SIGHUP): the file is read again; rates, log levels and policies are taken over, and what
needs a restart is named in the log and stays as it was.

The end of a process that hangs: after its grace it ends, whatever a thread waits for.

Everything that was acknowledged is on the disk before its acknowledgement leaves, so nothing is
lost by ending at once; what is not done is an orderly word to peers and clients.

What of a changed configuration a running node takes over, and what needs a restart.

Source: docs/explanation/architecture.md; LP-6490.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Final

import trio

from luxrelay import __version__
from luxrelay.bus import SigningKey
from luxrelay.errors import ConfigError, LuxRelayError, MessagingError
from luxrelay.files import PRIVATE_UMASK
from luxrelay.net.guarded import Faults
from luxrelay.net.scopes import ReadyReport
from luxrelay.node.assembly import (
    Parts,
    assemble,
    declared_rates,
    require_ephemeral,
    store_config_of,
)
from luxrelay.node.config import NamespaceEntry, NodeConfig
from luxrelay.node.folder import DataFolder, Runtime
from luxrelay.node.gateway.assembly import NodeParts, gateway_of
from luxrelay.node.gateway.service import GatewayService, GatewayStats
from luxrelay.node.gateway.tokens import RELOAD_S, TokenFile
from luxrelay.node.ingress import wall_ms
from luxrelay.node.keyfile import read_shared_key
from luxrelay.node.listeners import named
from luxrelay.node.logs import log, set_levels, start_logging
from luxrelay.node.modules import Module, Modules, ModulesConfig
from luxrelay.node.observe import Observer, ObserverStats, Views
from luxrelay.node.policies import CurrentPolicies
from luxrelay.node.rounds import KINDS, Rounds, abandoned_on_cancel
from luxrelay.node.serving import pages_of
from luxrelay.node.status import Readiness, views_of
from luxrelay.node.subscription_config import followed_topics
from luxrelay.node.tracing import open_traces
from luxrelay.signals import HEARD, EarlySignals
from luxrelay.store import CycleStats, RelayStore, RelayStoreConfig
from luxrelay.store.stats import capacity_warnings
from luxrelay.sync import RelaySyncClient

if TYPE_CHECKING:
    from luxrelay.node.messaging import LentMessaging, NodeMessaging

RELOADABLE: Final = frozenset({"log_level", "log_levels", "limits"})
"""Fields of a configuration that a running node takes over, besides the policies of namespaces."""


@dataclass(frozen=True, slots=True)
class Changes:
    """How a new configuration differs from the one in force."""

    taken: tuple[str, ...]
    """Fields that are taken over now."""
    refused: tuple[str, ...]
    """Fields that need a restart; the old values stay in force."""


def changes_between(old: NodeConfig, new: NodeConfig) -> Changes:
    """Return what differs; namespaces may change their policies, not come or go."""
    differing = [
        field.name
        for field in fields(NodeConfig)
        if field.name != "namespaces" and getattr(old, field.name) != getattr(new, field.name)
    ]
    taken = [name for name in differing if name in RELOADABLE]
    refused = [name for name in differing if name not in RELOADABLE]
    if _names(old.namespaces) != _names(new.namespaces):
        refused.append("namespaces")
    elif _quotas(old.namespaces) != _quotas(new.namespaces):
        refused.append("quota_bytes")
    elif _ratios(old.namespaces) != _ratios(new.namespaces):
        refused.append("thin_ratio")
    if _names(old.namespaces) == _names(new.namespaces) and old.namespaces != new.namespaces:
        taken.append("policies")
    return Changes(tuple(taken), tuple(refused))


def _names(entries: tuple[NamespaceEntry, ...]) -> set[tuple[bytes, bool]]:
    return {(bytes(entry.namespace_id), entry.headers_only) for entry in entries}


def _ratios(entries: tuple[NamespaceEntry, ...]) -> dict[bytes, int]:
    return {bytes(entry.namespace_id): entry.thin_ratio for entry in entries}


def _quotas(entries: tuple[NamespaceEntry, ...]) -> dict[bytes, int]:
    return {bytes(entry.namespace_id): entry.quota_bytes for entry in entries}


FORCED: Final = 3
"""Exit code of a node that had to be ended because something hung."""


class Grace:
    """Ends the process when it has not ended by itself.

    Args:
        seconds: How long an orderly end may take.
        hanging: Names what has not ended; called when the time is over.
        end: Ends the process with a code.

    """

    def __init__(
        self,
        seconds: float,
        hanging: Callable[[], Sequence[str]],
        *,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._seconds = seconds
        self._hanging = hanging
        self._end = end
        self._over = threading.Event()
        self._begun = False

    def begin(self) -> None:
        """Begin to count; a second call changes nothing."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._watch, name="grace", daemon=True).start()

    @property
    def begun(self) -> bool:
        """Whether it counts."""
        return self._begun

    def spare(self) -> None:
        """Count no longer: the process goes on, or has ended in order."""
        self._over.set()

    def _watch(self) -> None:
        if self._over.wait(self._seconds):
            return
        threads = sorted(thread.name for thread in threading.enumerate() if thread.name != "grace")
        log(
            logging.ERROR,
            "the end takes too long; ended at once",
            seconds=self._seconds,
            hanging=list(self._hanging()),
            threads=threads[:32],
        )
        _flush()
        self._end(FORCED)


def hurry(number: int, *, end: Callable[[int], object] = os._exit) -> None:
    """Answer a signal to a node that is stopping: a second one to stop ends the process at once."""
    if number == signal.SIGHUP:
        return  # what is read again would not be used any more
    name = signal.Signals(number).name
    log(logging.WARNING, "a second signal; ended at once", signal=name, code=FORCED)
    _flush()
    end(FORCED)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, RuntimeError):
            continue  # nobody reads it, or a handler of signals interrupted its write


_LISTENERS: Final = ("sync", "http", "gateway", "admin", "grpc", "grpc_admin")
"""What `Runtime` tells the addresses of."""
_FAULT_PAUSE_S: Final = 60.0
"""Seconds between two lines about a broken token file."""
_BLOBS_PAUSE_S: Final = 0.05
"""Seconds in which headers without blob are gathered before peers are asked."""
_BLOBS_FEW: Final = 64
"""Missing blobs up to which they are looked at that often; ten times less often beyond."""
_CLOSE_S: Final = 2.0
"""Seconds that the connections of catching up have to close when the node stops."""
SWITCH_S: Final = 0.001
"""How long a thread of the node may hold the interpreter's lock while another waits, seconds."""
_RETENTION_S: Final = 1_800.0
"""Seconds after which a cycle of deletions hangs; it works on the own disk, and may be long."""
_BLOBS_IDLE_S: Final = 30.0
"""Seconds after which missing blobs are looked at although nothing was heard."""


def run_node(
    config: NodeConfig,
    reread: Callable[[], NodeConfig] | None = None,
    *,
    early: EarlySignals | None = None,
    doubts: Sequence[str] = (),
) -> int:
    """Run a relay until SIGTERM or SIGINT; return 0 after an orderly end.

    Args:
        config: What to run.
        reread: Reads the configuration again, for SIGHUP.
        early: What signals came before this.
        doubts: What is said of the configuration without keeping the node from starting.

    Raises:
        LuxRelayError: it cannot start or go on; everything that was started has been stopped.

    """
    os.umask(PRIVATE_UMASK)  # RocksDB makes its files as the process says
    start_logging(config.name, config.log_level, levels=config.log_levels)
    for doubt in doubts:
        log(logging.WARNING, "the environment may not say what was meant", what=doubt)
    node = Node(config, reread=reread, early=early, started=be_prompt)
    try:
        trio.run(node.run)
    except BaseExceptionGroup as group:
        raise first_error(group) from group
    # Not spared: threads that hang would keep the process at its very end too.
    return 0


def be_prompt() -> None:
    """Have the threads of this process, which is one node, wait for each other for a short time.

    What the start has made, modules above all, leaves the garbage collector's rounds for good: a
    full round over it stops every thread for 50 to 100 ms. And a thread gives the interpreter's
    lock to one that waits after 1 ms, not 5: a reader of a page takes it some ten times. Shorter
    still costs a publisher's messages (0.5 ms some 4 % of CPU time, 0.2 ms some 15 %).
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first of our own errors in a group, else the first of all."""
    ours = group.subgroup(LuxRelayError)
    found: BaseException = group if ours is None else ours
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


class Node:
    """One relay, from its start to its end."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        rng: random.Random | None = None,
        reread: Callable[[], NodeConfig] | None = None,
        early: EarlySignals | None = None,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the configuration; nothing is opened before `run`.

        Args:
            config: What to run.
            rng: Where chance comes from.
            reread: Reads the configuration again, for SIGHUP.
            early: What signals came before this.
            started: Called once when all modules run, before anybody is told.

        """
        self._started = started
        self._config = config
        self._rng = rng or random.SystemRandom()
        self._reread = reread
        self._early = early or EarlySignals()
        self._reload_when_ready = False
        self._reload_now: Callable[[], None] | None = None
        self._reloading = trio.Lock()
        self._readiness = Readiness()
        self._places: dict[str, str] = {}
        self._gossip: tuple[str, ...] = ()
        self._gateway: GatewayService | None = None
        self._observer: Observer | None = None
        self._faults = Faults(logger=logging.getLogger("luxrelay.node"))
        runs = {
            "catch-up": config.sync_peers,
            "reconcile": config.sync_limits.reconcile_interval_ms,
            "finality": config.finality_file,
        }
        self._rounds = Rounds(
            self._faults,
            stall_s=config.sync_limits.stall_ms / 1000,
            kinds=[kind for kind in KINDS if runs.get(kind, True)],
        )
        self._hanging: Callable[[], list[str]] = list
        self._grace = Grace(
            config.stop_grace_ms / 1000, lambda: [*self._hanging(), *self._rounds.hanging()]
        )
        self._tokens = TokenFile(config.data_dir, config.gateway.tokens_max)
        """Of the gateway, checked at the start."""
        self._lend: Callable[[], LentMessaging] | None = None
        self._lent: LentMessaging | None = None

    def messaging(self, key: SigningKey | None = None) -> NodeMessaging:
        """Return the layer below channels in this process; `create_reliable_channel` asks for it.

        What is sent travels in the lanes of a key, the node's own unless another is given. The
        layer ends with the node. To be called on the node's loop.

        Raises:
            MessagingError: the node does not run.

        """
        if self._lend is None:
            raise MessagingError(
                "the node does not run", where=self._config.name, hint="start it, wait for ready"
            )
        if self._lent is None:
            self._lent = self._lend()
        return self._lent.of(key)

    async def run(self, *, task_status: ReadyReport[Runtime] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until a signal or cancellation; ``task_status`` gets where the node listens."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._heed_signals, nursery)
            await self._live(nursery, task_status)
            nursery.cancel_scope.cancel()
        log(logging.INFO, "stopped")

    async def _live(self, outer: trio.Nursery, task_status: ReadyReport[Runtime]) -> None:
        """Open everything, serve, and close it; cancelled when a signal says so."""
        policies = CurrentPolicies(self._config)
        require_ephemeral(self._config, policies, wall_ms())
        folder = DataFolder(self._config.data_dir)
        if folder.mended:
            words = "others could open the data folder; its modes were mended"
            log(logging.WARNING, words, files=len(folder.mended), first=folder.mended[:10])
        identity = folder.identity()
        key_file = self._config.channel.encryption_key_file
        channel_key = None if key_file is None else read_shared_key(key_file)
        if self._config.gateway.listen:
            self._tokens.check()
        with ExitStack() as stack:
            store_config = store_config_of(self._config)
            store = await _opened(folder, store_config)
            stack.callback(store.close)
            for line in store.loss.lines() if store.loss is not None else ():
                log(logging.ERROR, "the store has lost messages", what=line)
            for line in store_config.network_differences():
                log(logging.INFO, "retention differs from the network's", what=line)
            rates = declared_rates(self._config, policies, wall_ms())
            for line in capacity_warnings(store_config, rates):
                log(logging.WARNING, "the store is smaller than policies allow to come", what=line)
            traces = open_traces(self._config.traces, self._config.name, __version__)
            stack.callback(traces.close)
            parts = assemble(
                self._config,
                identity,
                store,
                policies,
                rng=self._rng,
                stopping=self._readiness.stopping,
                traces=traces,
            )
            stack.callback(parts.judge.close)
            stack.callback(folder.withdraw)

            def lend() -> LentMessaging:
                from luxrelay.node.messaging import (  # noqa: PLC0415  few nodes have channels
                    LentMessaging,
                )

                return LentMessaging(self._config, parts, identity, channel_key)

            self._lend = lend
            stack.callback(self._lend_no_more)
            await self._serve(outer, folder, parts, task_status)

    def _lend_no_more(self) -> None:
        self._lend = None
        if self._lent is not None:
            self._lent.close()

    async def _serve(
        self,
        outer: trio.Nursery,
        folder: DataFolder,
        parts: Parts,
        task_status: ReadyReport[Runtime],
    ) -> None:
        modules = self._modules(folder, parts)
        async with trio.open_nursery() as nursery:
            if self._config.gateway.listen:
                nursery.start_soon(self._watch_tokens)
            await nursery.start(self._run_modules, modules)
            nursery.start_soon(self._faults.keep, "network", parts.network.keep)
            self._started()
            self._readiness.ready()
            runtime = self._announce(folder, parts)
            log(logging.INFO, "ready", version=__version__, **asdict(runtime))
            self._reload_from_now(outer, parts)
            task_status.started(runtime)

    @staticmethod
    async def _run_modules(modules: Modules, *, task_status: ReadyReport[None]) -> None:
        await modules.run(task_status=task_status)

    def _modules(self, folder: DataFolder, parts: Parts) -> Modules:
        """Return the modules; what one of them is made of is known to it alone."""
        restart = self._config.restart_modules

        async def gossip(ready: ReadyReport[None]) -> None:
            parts.streams.listen()
            async with trio.open_nursery() as nursery:
                with named("gossip", "listen"):
                    self._gossip = tuple(await nursery.start(parts.host.run))
                await nursery.start(parts.driver.run)
                if parts.blobs.exchange is not None:
                    await nursery.start(parts.blobs.exchange.run)
                names = [entry.namespace_id for entry in parts.carried.entries()]
                for topic in followed_topics(self._config, names):
                    parts.driver.subscribe(topic)
                ready.started(None)

        async def gateway(ready: ReadyReport[None]) -> None:
            async with trio.open_nursery() as nursery:
                served = gateway_of(self._gateway_parts(parts, views))
                self._gateway = served
                places = (await nursery.start(served.run))._asdict()
                self._places |= {"gateway": places.pop("public"), **places}
                if self._readiness.serving:  # a restart may have taken other ports
                    self._announce(folder, parts)
                ready.started(None)

        wanted = [
            Module(name="sync", run=lambda ready: self._sync(parts, ready), restart=restart),
            Module(name="pages", run=lambda ready: self._pages(views, ready), restart=restart),
            Module(name="gossip", run=gossip),
            Module(
                name="catch-up",
                run=lambda ready: self._keep_caught_up(parts, ready),
                needs=("gossip",),
                restart=restart,
            ),
            Module(name="upkeep", run=lambda ready: self._upkeep(parts, ready), restart=restart),
        ]
        if self._config.gateway.listen:
            needs = ("gossip",)
            wanted.append(Module(name="gateway", run=gateway, needs=needs, restart=restart))
        modules = Modules(
            wanted,
            ModulesConfig(stop_s=0.6 * self._config.stop_grace_ms / 1000),
            stopping=self._readiness.stopping.set,
        )
        self._hanging = modules.hanging
        views = views_of(
            self._config,
            parts,
            modules,
            self._readiness,
            gateway=self._gateway_stats,
            pages=self._pages_stats,
            rounds=self._rounds,
            tokens=lambda: self._tokens.fault,
            channels=lambda: {} if self._lent is None else self._lent.totals(),
        )
        return modules

    def _pages_stats(self) -> ObserverStats:
        return ObserverStats() if self._observer is None else self._observer.stats()

    def _gateway_stats(self) -> GatewayStats:
        return GatewayStats.none() if self._gateway is None else self._gateway.stats()

    def _announce(self, folder: DataFolder, parts: Parts) -> Runtime:
        runtime = Runtime(
            pid=os.getpid(),
            peer_id=parts.host.peer_text,
            gossip=self._gossip,
            **{name: self._places.get(name, "") for name in _LISTENERS},
        )
        folder.announce(runtime)
        return runtime

    def _gateway_parts(self, parts: Parts, views: Views) -> NodeParts:
        return NodeParts(
            config=self._config,
            store=parts.store,
            carried=parts.carried,
            doors=parts.doors,
            driver=parts.driver,
            host=parts.host,
            registry=parts.policies,
            feed=parts.feed,
            status=views.status,
            healthy=views.healthy,
            blob=parts.catch_up.blob,
            calls=parts.server.counters,
            meter=parts.server.meter,
            message_rates=parts.guards.public,
            clock_ms=wall_ms,
            in_order=parts.judge.in_order,
            tokens=self._tokens,
        )

    async def _sync(self, parts: Parts, ready: ReadyReport[None]) -> None:
        with named("sync", "listen"):
            port = parts.server.start()
        try:
            host = self._config.sync_listen.rpartition(":")[0]
            self._places["sync"] = f"{host}:{port}"
            ready.started(None)
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):  # its threads may still ask the loop
                await trio.to_thread.run_sync(parts.server.stop, 1.0)

    async def _pages(self, views: Views, ready: ReadyReport[None]) -> None:
        with named("http", "listen"):
            observer = self._observer = Observer(pages_of(self._config), views)
        try:
            self._places["http"] = observer.address
            ready.started(None)
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(observer.stop)

    async def _keep_caught_up(self, parts: Parts, ready: ReadyReport[None]) -> None:
        ready.started(None)
        keep = self._faults.keep
        try:
            async with trio.open_nursery() as nursery:
                for kind, work in (
                    ("reconcile loop", self._keep_reconciled),
                    ("blobs loop", self._keep_fetching_blobs),
                    ("catch-up loop", self._keep_catching_up),
                    ("finality loop", self._keep_finality),
                ):
                    nursery.start_soon(keep, kind, partial(work, parts))
                nursery.start_soon(keep, "blame", parts.blame.keep)
        finally:
            if self._readiness.stopping.is_set():
                # Its threads may still ask the loop; one that hangs is left behind.
                with trio.CancelScope(shield=True), trio.move_on_after(_CLOSE_S):
                    await abandoned_on_cancel(parts.catch_up.close)

    async def _keep_catching_up(self, parts: Parts) -> None:
        while self._config.sync_peers:
            await self._rounds.run(
                "catch-up",
                parts.catch_up.once,
                progress=parts.catch_up.moved,
                cut=parts.catch_up.close,
            )
            await trio.sleep(self._rounds.pause_s("catch-up", parts.catch_up.pause_s()))
        await trio.sleep_forever()

    async def _keep_finality(self, parts: Parts) -> None:
        """Read what was appended to the file of statements."""
        pause_s = self._config.finality_refresh_ms / 1000
        while self._config.finality_file is not None:
            await trio.sleep(self._rounds.pause_s("finality", pause_s))
            await self._rounds.run("finality", parts.guards.learn_finality)
        await trio.sleep_forever()

    async def _keep_fetching_blobs(self, parts: Parts) -> None:
        """Ask for each blob that a stored header lacks when its time has come."""
        while True:
            next_ms = parts.blobs.wanted.next_ms()
            pause_s = _BLOBS_IDLE_S if next_ms is None else (next_ms - wall_ms()) / 1000
            await parts.blobs.news.wait(min(max(pause_s, _BLOBS_PAUSE_S), _BLOBS_IDLE_S))
            # What comes together is asked for together; a long list is not walked all the time.
            await trio.sleep(_BLOBS_PAUSE_S * (1 if len(parts.blobs.wanted) < _BLOBS_FEW else 10))
            await self._rounds.run(
                "blobs",
                parts.catch_up.fetch_blobs,
                progress=parts.catch_up.moved,
                cut=parts.catch_up.close,
            )
            await trio.sleep(self._rounds.pause_s("blobs", 0.0))

    async def _keep_reconciled(self, parts: Parts) -> None:
        pause_s = self._config.sync_limits.reconcile_interval_ms / 1000
        while pause_s:
            # Not all nodes at once: half the time, and up to as much again.
            pause = self._rounds.pause_s("reconcile", pause_s, 10 * pause_s)
            await trio.sleep(pause * (0.5 + self._rng.random()))
            async with parts.streams.clients(self._rng) as others:

                def cut(others: Sequence[RelaySyncClient] = others) -> None:
                    for client in others:
                        client.close()
                    parts.catch_up.close()

                await self._rounds.run(
                    "reconcile",
                    partial(parts.catch_up.reconcile, others),
                    progress=parts.catch_up.moved,
                    cut=cut,
                )

    async def _upkeep(self, parts: Parts, ready: ReadyReport[None]) -> None:
        """Forget by the clock, in short cycles while there is more to forget than one takes."""
        ready.started(None)
        store = parts.store
        pause_ms = store.config.cycle_interval_ms(hit_limit=False)
        while True:
            await trio.sleep(pause_ms / 1000)
            pause_ms = store.config.cycle_interval_ms(hit_limit=False)
            ended: list[CycleStats] = []

            def forget() -> None:
                # Two clocks: a wall clock that jumps against the steady one deletes nothing (P43).
                ended.append(store.expire(wall_ms(), time.monotonic()))  # noqa: B023  run below
                parts.guards.upkeep(wall_ms())

            if not await self._rounds.run("retention", forget, stall_s=_RETENTION_S):
                pause_ms = round(1000 * self._rounds.pause_s("retention", pause_ms / 1000))
            if not ended:
                continue
            stats = ended[0]
            if stats.hit_limit:
                pause_ms = min(store.config.cycle_interval_ms(hit_limit=True), pause_ms)
            if stats.paused:
                log(logging.ERROR, "expiry is paused: the wall clock has jumped")
            elif stats.removed_count:
                log(logging.INFO, "expired", messages=stats.removed_count)

    async def _watch_tokens(self) -> None:
        """Say once a minute that the token file is broken, and at once that it no longer is.

        The tokens stay as they were meanwhile.
        """
        said: float | None = None
        while True:
            await trio.sleep(RELOAD_S)
            now = trio.current_time()
            fault = await trio.to_thread.run_sync(self._tokens.look, now)
            if fault and (said is None or now - said >= _FAULT_PAUSE_S):
                log(logging.ERROR, "the changed token file is not believed", error=fault)
                said = now
            elif not fault and said is not None:
                log(logging.INFO, "the token file is believed again")
                said = None

    def _reload_from_now(self, nursery: trio.Nursery, parts: Parts) -> None:
        """Let SIGHUP read the file again, also one that came before this."""

        def reload() -> None:  # beside what runs: its files may hang, or be broken
            self._faults.start(nursery, "reload", self._reload_alone, parts)

        self._reload_now = reload
        if self._reload_when_ready or self._early.reload:
            self._reload_when_ready = self._early.reload = False
            reload()

    async def _heed_signals(
        self, nursery: trio.Nursery, *, task_status: ReadyReport[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        before = {number: signal.getsignal(number) for number in HEARD}
        stopping = False
        try:
            async with _signals(self._otherwise) as signals:
                task_status.started(None)
                async for number in signals:
                    if number != signal.SIGHUP:
                        log(logging.INFO, "stopping", signal=signal.Signals(number).name)
                        self._grace.begin()
                        stopping = True
                        break
                    if self._reload_now is not None:
                        self._reload_now()
                    else:
                        log(logging.INFO, "the file is read again once the node is ready")
                        self._reload_when_ready = True
                nursery.cancel_scope.cancel()
        finally:
            if not stopping and _in_main_thread():
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _otherwise(self, number: int, frame: FrameType | None) -> None:
        """Answer a signal before and after those that `_heed_signals` receives."""
        if self._grace.begun:
            hurry(number)
        else:
            self._early.note(number, frame)

    async def _reload_alone(self, parts: Parts) -> None:
        async with self._reloading:
            await abandoned_on_cancel(partial(self._reload, parts))

    def _reload(self, parts: Parts) -> None:
        """Take over what can change; a file that does not fit changes nothing."""
        if self._reread is None:
            log(logging.WARNING, "nothing to read again: the configuration was not a file")
            return
        try:
            new = self._reread()
            changes = changes_between(self._config, new)
            if "namespaces" not in changes.refused:
                parts.policies.reload(new)
        except ConfigError as error:
            log(logging.ERROR, "the changed file does not fit; nothing changes", error=str(error))
            return
        set_levels(new.log_level, new.log_levels)
        if "limits" in changes.taken:
            parts.guards.rates.reconfigure(new.limits)
        taken = {name: getattr(new, name) for name in changes.taken if name in RELOADABLE}
        if "policies" in changes.taken:
            taken["namespaces"] = new.namespaces
        self._config = replace(self._config, **taken)
        log(logging.INFO, "reloaded", changed=changes.taken)
        if changes.refused:
            log(logging.WARNING, "these need a restart", keys=changes.refused)


@asynccontextmanager
async def _signals(
    otherwise: Callable[[int, FrameType | None], None],
) -> AsyncIterator[AsyncIterator[int]]:
    """Receive what a node heeds; outside the main thread, where nobody may, wait.

    ``otherwise`` answers what comes before and after, and stays when this ends.
    """
    if _in_main_thread():
        for number in HEARD:
            signal.signal(number, otherwise)
        with trio.open_signal_receiver(*HEARD) as received:
            yield received
    else:
        yield _nothing()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


async def _opened(folder: DataFolder, config: RelayStoreConfig) -> RelayStore:
    """Return the store; in a thread, because it may take long and signals are heeded meanwhile."""
    return await trio.to_thread.run_sync(
        partial(RelayStore.open, folder.store, config, now_ms=wall_ms(), now=time.monotonic())
    )


async def _nothing() -> AsyncIterator[int]:
    await trio.sleep_forever()
    yield 0
