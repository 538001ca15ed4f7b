"""Assembly of one relay from its configuration.

What peers did outside gossip, as their application score in gossip (P5).

A peer that hands in invalid history or blobs over its streams is penalized as for invalid gossip
(verdict table, sync): each invalid message takes ten points, an answer that breaks the protocol
five, and half is forgiven in an hour. So one lie costs the meshes until good conduct makes up for
it, and five hundred the connection. What a peer claims and does not deliver costs its standing
only: it may have forgotten the message in between. A refusal, or an answer above a bound of ours,
costs nothing.

Source: LP-6420 §5.1; 21-28; decisions P26, P39.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final

import trio

from luxrelay.bus import NamespaceId, SigningKey
from luxrelay.bus.policy import RetentionClass
from luxrelay.errors import AddressError, ConfigError
from luxrelay.gossip import GossipRouter, PeerId, topic_for_namespace
from luxrelay.net import GossipDriver, NetConfig, RelayHost
from luxrelay.net.addresses import peer_id_from_text
from luxrelay.net.bans import BanList, steady_ms
from luxrelay.net.peer_clocks import ClockOffset, PeerClocks
from luxrelay.net.reconcile import PREFIX, ReconcileStreams
from luxrelay.node.blob_side import BlobSide, blob_side_of
from luxrelay.node.carried import CarriedNamespace, CarriedNamespaces
from luxrelay.node.catch_up import CatchUpLoop
from luxrelay.node.certificates import client_tls_of, server_tls_of
from luxrelay.node.config import NodeConfig
from luxrelay.node.ingress import Doors, LoopSpread, in_worker, wall_ms
from luxrelay.node.logs import log
from luxrelay.node.message_limits import MessageLimits, make_guards
from luxrelay.node.network_health import NetworkHealth, NetworkSources
from luxrelay.node.peer_reputation import PeerStanding
from luxrelay.node.peering import diversity_of, gossip_params_of, net_config_of, score_params_of
from luxrelay.node.policies import CurrentPolicies, carried_of
from luxrelay.node.serving import meter_of, serving_of
from luxrelay.node.stages.deliver import Feed
from luxrelay.node.stages.verify import Judge, JudgeConfig, StoreKnowledge
from luxrelay.node.subscription_messages import StoreFollowing
from luxrelay.node.tracing import Traces
from luxrelay.node.tuning import read_places
from luxrelay.store import Durability, RelayStore, RelayStoreConfig, WhenFull
from luxrelay.store.stats import DeclaredRate
from luxrelay.sync.report import PeerReport
from luxrelay.sync.rpc.metering import SharedMeter
from luxrelay.sync.rpc.service import RelaySyncServer

PULL_INTERVAL_MAX_MS: Final = 10_000
"""A node that looks at its peers' heads less often than this does not live by catching up."""
TELL_S: Final = 5.0
"""Seconds between two times that the router is told."""


class GossipBlame:
    """Carries blame from worker threads to the router; made on the loop that gossip runs on.

    Args:
        app_score: Sets the application score of a connected peer; called on the loop.
        clock_ms: Milliseconds of a clock that nobody sets.

    """

    def __init__(
        self, app_score: Callable[[PeerId, float], None], clock_ms: Callable[[], int]
    ) -> None:
        self._app_score = app_score
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._standing = PeerStanding()
        self._told: set[str] = set()
        self._token = trio.lowlevel.current_trio_token()

    def note(self, report: PeerReport) -> None:
        """Take in what a peer did; peers that are reached by address are no peers of gossip."""
        if not report.peer.startswith(PREFIX):
            return
        with self._lock:
            added = self._standing.note(replace(report, withheld=0), self._clock_ms())
        if added:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self.tell, idempotent=True)

    def tell(self) -> None:
        """Set the score of every peer that owes, and of those that owe no longer; on the loop."""
        with self._lock:
            owing = self._standing.owing(self._clock_ms())
        for name in self._told - owing.keys():
            self._set(name, 0.0)
        for name, penalty in owing.items():
            self._set(name, -penalty)
        self._told = set(owing)

    async def keep(self, pause_s: float = TELL_S) -> None:
        """Tell again and again: the router forgets with the peer, and time forgives."""
        while True:
            await trio.sleep(pause_s)
            self.tell()

    def _set(self, name: str, score: float) -> None:
        with suppress(AddressError):
            self._app_score(peer_id_from_text(name.removeprefix(PREFIX)), score)


BANS_FILE: Final = "bans.json"
"""Where the data folder keeps who is not let in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What one relay is made of."""

    store: RelayStore
    guards: MessageLimits
    judge: Judge
    doors: Doors
    host: RelayHost
    driver: GossipDriver
    server: RelaySyncServer
    streams: ReconcileStreams
    catch_up: CatchUpLoop
    blame: GossipBlame
    blobs: BlobSide
    feed: Feed
    policies: CurrentPolicies
    carried: CarriedNamespaces
    network: NetworkHealth


def assemble(
    config: NodeConfig,
    identity: SigningKey,
    store: RelayStore,
    policies: CurrentPolicies,
    *,
    rng: random.Random,
    stopping: threading.Event,
    traces: Traces,
) -> Parts:
    """Return the parts of a relay on an open store; nothing listens yet.

    Called on the trio loop, which gossip and the gateway's feed will run on.

    Raises:
        LuxRelayError: a file that the configuration names cannot be read.

    """
    carried = _carried(config, store, policies)
    guards = make_guards(config, store)
    judge = judge_of(config, store, policies, guards)
    net_config, meter = net_config_of(config), meter_of(config)
    host = _host(config, identity, net_config, meter)
    spread = LoopSpread()
    blobs = blob_side_of(config, identity, host, store, carried=carried, rng=rng, clock_ms=wall_ms)
    clocks = PeerClocks(peers_min=config.peering.clock_peers_min)
    feed = Feed(trio.lowlevel.current_trio_token().run_sync_soon, wall_ms)
    doors = Doors(
        store=store,
        judge=judge,
        identity=identity,
        network=config.network,
        inline_blob_max=config.inline_blob_max,
        clock_ms=wall_ms,
        spread=spread,
        wanted=blobs.wanted,
        globals_=blobs.topics,
        fees=guards.fees if guards.fees.charges else None,
        traces=traces,
        peers_max=2 * config.connections_max,  # those that left lately are still of interest
        deliver=feed.stored,
        completed=feed.completed,
        carried=carried,
        announced=lambda peer, stamp_ms: clocks.announced(peer, stamp_ms, steady_ms()),
    )
    driver = spread.driver = _driver(config, net_config, host, doors, rng=rng, clocks=clocks)
    carried.told = _follower(config, driver, policies, blobs.news.tell)
    blame = GossipBlame(driver.app_score, steady_ms)
    followed = StoreFollowing(store, feed, wall_ms, in_order=judge.in_order, carries=carried.asked)
    server = _server(config, store, doors, followed, carried=carried, meter=meter, blobs=blobs)
    catch_up = _catch_up(
        config,
        store,
        doors,
        carried=carried,
        stopping=stopping,
        blobs=blobs,
        spread=spread,
        blamed=blame.note,
    )
    feed.expects, driver.level = catch_up.expects, _level(config, catch_up)
    return Parts(
        store=store,
        guards=guards,
        judge=judge,
        doors=doors,
        host=host,
        driver=driver,
        server=server,
        streams=ReconcileStreams(host, server.servicer if _answers_peers(config) else None),
        catch_up=catch_up,
        blame=blame,
        blobs=blobs,
        feed=feed,
        policies=policies,
        carried=carried,
        network=_network(config, net_config, doors, driver),
    )


def _network(
    config: NodeConfig, bounds: NetConfig, doors: Doors, driver: GossipDriver
) -> NetworkHealth:
    def told(clock: ClockOffset) -> None:
        doors.peers_clock = clock

    return NetworkHealth(
        NetworkSources(
            clock=lambda: driver.clocks.view(wall_ms(), steady_ms()),
            quiet_s=driver.quiet_s,
            greeted=driver.greeted,
            verdicts=doors.counts.snapshot,
        ),
        clock_warn_ms=config.peering.clock_warn_ms,
        silence_max_s=bounds.silence_max_s,
        arrivals_min=config.peering.refused_arrivals_min,
        told=told,
    )


def _carried(config: NodeConfig, store: RelayStore, policies: CurrentPolicies) -> CarriedNamespaces:
    """Return what the node carries: of its configuration, and of its folder."""

    def parent_held(namespace: NamespaceId) -> NamespaceId | None:
        head = store.head(namespace)
        return head.parent if head.latest_seq else None

    carried = carried_of(config, parent_held, steady_ms)
    if carried.set_aside is not None:
        words = "followed namespaces unreadable, begun anew"
        log(logging.WARNING, words, kept_as=str(carried.set_aside))
    policies.attach(carried)
    return carried


def _follower(
    config: NodeConfig,
    driver: GossipDriver,
    policies: CurrentPolicies,
    look: Callable[[], None],
) -> Callable[[CarriedNamespace, bool], None]:
    """Return what has a running node follow a namespace, or no longer; any thread may call it."""
    token = trio.lowlevel.current_trio_token()

    def told(entry: CarriedNamespace, begins: bool) -> None:
        policies.followed()
        look()  # payloads that only readers asked for so far may be fetched now
        topic = topic_for_namespace(config.network, entry.namespace_id)
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(driver.subscribe if begins else driver.unsubscribe, topic)
        log(
            logging.INFO,
            "follows a namespace" if begins else "follows a namespace no longer",
            namespace=entry.namespace_id.hex(),
            origin=entry.origin,
        )

    return told


def _driver(
    config: NodeConfig,
    bounds: NetConfig,
    host: RelayHost,
    doors: Doors,
    *,
    rng: random.Random,
    clocks: PeerClocks,
) -> GossipDriver:
    return GossipDriver(
        _router(config, rng, host.peer_id),
        host,
        validate=in_worker(doors),
        config=bounds,
        rng=rng,
        echoed=lambda echo: doors.book.shown(echo.peer, echo.message_ids),
        clocks=clocks,
    )


def _host(
    config: NodeConfig, identity: SigningKey, bounds: NetConfig, meter: SharedMeter
) -> RelayHost:
    return RelayHost(
        identity.seed, bounds, bans=_bans(config, bounds), clock_ms=wall_ms, meter=meter
    )


def _answers_peers(config: NodeConfig) -> bool:
    """Return whether gossip peers may read the store: not beside a check of client certificates."""
    limits = config.sync_limits
    return limits.reconcile_stream and limits.tls_client_ca is None


def _server(
    config: NodeConfig,
    store: RelayStore,
    doors: Doors,
    followed: StoreFollowing,
    *,
    carried: CarriedNamespaces,
    meter: SharedMeter,
    blobs: BlobSide,
) -> RelaySyncServer:
    return RelaySyncServer(
        store,
        serving_of(config),
        clock_ms=wall_ms,
        publisher=doors if config.allow_publish else None,
        followed=followed,
        handoff=store if config.allow_handoff else None,
        subscribed=carried,
        meter=meter,
        uplink=blobs.uplink,
        tls=server_tls_of(config.sync_limits),
    )


def _level(config: NodeConfig, catch_up: CatchUpLoop) -> Callable[[], bool] | None:
    """Return what tells whether catching up lacks nothing; None where it is no way to live."""
    often = config.sync_peers and config.sync_interval_ms <= PULL_INTERVAL_MAX_MS
    return catch_up.level if often else None


def _catch_up(
    config: NodeConfig,
    store: RelayStore,
    doors: Doors,
    *,
    carried: CarriedNamespaces,
    stopping: threading.Event,
    blobs: BlobSide,
    spread: LoopSpread,
    blamed: Callable[[PeerReport], None],
) -> CatchUpLoop:
    return CatchUpLoop(
        store,
        doors,
        parents=carried.caught_up,
        peers=config.sync_peers,
        interval_ms=config.sync_interval_ms,
        tls=client_tls_of(config.sync_limits),
        ttl_ms=config.ttl_ms,
        postponed_max=config.sync_limits.postponed_max,
        stopping=stopping,
        wanted=blobs.wanted,
        clock_ms=wall_ms,
        others=blobs.peers,
        fetching=blobs.fetching,
        kept=lambda commitment, length: blobs.hint_at(commitment, length, spread),
        blamed=blamed,
    )


def judge_of(
    config: NodeConfig, store: RelayStore, policies: CurrentPolicies, guards: MessageLimits
) -> Judge:
    """Return the judge that a configuration asks for."""
    return Judge(
        StoreKnowledge(store),
        policies,
        JudgeConfig(
            ttl_ms=config.ttl_ms,
            bound_network=config.network if config.signing == "bound" else "",
            unsigned_sidecars=config.unsigned_sidecars,
        ),
        wall_ms,
        registry=policies,
        rates=guards.rates,
        fees=guards.fees if guards.fees.charges else None,
        finality=guards.finality,
    )


def store_config_of(config: NodeConfig) -> RelayStoreConfig:
    """Return the bounds of the store."""
    return RelayStoreConfig(
        cold_store_ttl_ms=config.ttl_ms,
        max_storage_bytes=config.max_storage_bytes,
        durability=Durability(config.durability),
        when_full=WhenFull(config.when_full),
        namespace_quota_bytes=config.namespace_quota_bytes or None,
        namespace_quotas={
            entry.namespace_id: entry.quota_bytes
            for entry in config.namespaces
            if entry.quota_bytes
        },
        thin_ratios={
            entry.namespace_id: entry.thin_ratio for entry in config.namespaces if entry.thin_ratio
        },
        gc_interval_ms=config.expire_interval_ms,
        **asdict(config.store_limits),
    )


def require_ephemeral(config: NodeConfig, policies: CurrentPolicies, now_ms: int) -> None:
    """Every namespace that is thinned may lose messages early, as far as its policy is known.

    Raises:
        ConfigError: a policy in force has another retention class than Ephemeral.

    Source: P16, J3.

    """
    for entry in config.namespaces:
        for record in policies.in_force(entry.namespace_id, None, now_ms)[:1]:
            if entry.thin_ratio and record.policy.retention_class is not RetentionClass.EPHEMERAL:
                raise ConfigError(
                    f"namespace {entry.namespace_id.hex()} is thinned, its policy is not Ephemeral",
                    where="thin_ratio",
                    hint="remove thin_ratio, or carry another policy",
                )


def declared_rates(
    config: NodeConfig, policies: CurrentPolicies, now_ms: int
) -> list[DeclaredRate]:
    """Return what the policy files allow to come in now; a namespace without one declares none.

    Source: P31.
    """
    return [
        DeclaredRate(
            namespace_id=entry.namespace_id,
            messages_per_s=record.policy.messages_per_second,
            bytes_per_s=record.policy.bytes_per_second,
        )
        for entry in config.namespaces
        for record in policies.in_force(entry.namespace_id, None, now_ms)[:1]
    ]


def _router(config: NodeConfig, rng: random.Random, own_id: PeerId) -> GossipRouter:
    places = config.peering.tuning.places
    return GossipRouter(
        gossip_params_of(config),
        rng=rng,
        own_id=own_id,
        scores=score_params_of(config),
        diversity=diversity_of(config),
        resolver=None if places is None else read_places(places),
        validators=config.peering.validators,
    )


def _bans(config: NodeConfig, net_config: NetConfig) -> BanList:
    """Return the list of bans that the data folder holds."""
    bans = BanList(net_config.bans_max, config.data_dir / BANS_FILE, wall_ms=wall_ms)
    bans.load(steady_ms())
    if bans.set_aside is not None:
        log(logging.WARNING, "bans unreadable, begun anew", kept_as=str(bans.set_aside))
    return bans
