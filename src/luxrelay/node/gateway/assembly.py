"""The gateway of a node from the node's own parts.

Source: docs/reference/http.md; LP-6490.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from luxrelay import __version__
from luxrelay.bus.registry import PolicySource
from luxrelay.errors import AddressError
from luxrelay.gossip import PeerId
from luxrelay.net import GossipDriver, RelayHost
from luxrelay.net.addresses import peer_id_from_text, peer_text
from luxrelay.node.archive_fallback import OlderMessages
from luxrelay.node.carried import CarriedNamespaces
from luxrelay.node.certificates import client_tls_of
from luxrelay.node.config import NodeConfig
from luxrelay.node.dashboard.live import Dashboard
from luxrelay.node.dashboard.state import DashboardSources
from luxrelay.node.gateway.admin import PeerControl
from luxrelay.node.gateway.bounds import Work
from luxrelay.node.gateway.http import GatewayParts
from luxrelay.node.gateway.http_auth import Rates
from luxrelay.node.gateway.service import GatewayService
from luxrelay.node.gateway.subscription import InOrder
from luxrelay.node.gateway.tokens import TokenFile
from luxrelay.node.ingress import Doors
from luxrelay.node.serving import serving_of
from luxrelay.node.stages.deliver import Feed
from luxrelay.store import RelayStore
from luxrelay.sync.rpc.metering import SharedMeter
from luxrelay.sync.rpc.stats import SyncCounters

_PEER_ID_BYTES: Final = range(34, 65)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """What the gateway needs of a node."""

    config: NodeConfig
    store: RelayStore
    carried: CarriedNamespaces
    doors: Doors
    driver: GossipDriver
    host: RelayHost
    registry: PolicySource
    feed: Feed
    status: Callable[[], dict[str, Any]]
    healthy: Callable[[], tuple[bool, dict[str, Any]]]
    blob: Callable[[bytes], bytes | None]
    calls: SyncCounters
    meter: SharedMeter | None = None
    message_rates: Callable[[], Mapping[str, Any]]
    """What is taken of live messages now, as `/v1/limits` names it."""
    clock_ms: Callable[[], int]
    in_order: InOrder
    """Judges for ordered views."""
    tokens: TokenFile
    """Read already: what it held at the start stands while it is broken."""


def gateway_of(node: NodeParts) -> GatewayService:
    """Return the gateway of a node; it is not running yet."""
    config = node.config

    def explain(peer: PeerId) -> Mapping[str, Any] | None:
        terms = node.driver.explain(peer)
        return None if terms is None else asdict(terms)

    parts = GatewayParts(
        store=node.store,
        publish=node.doors.publish,
        blob=node.blob,
        older=older_of(config),
        calls=node.calls,
        sync=serving_of(config),
        receipts=node.doors.receipts,
        quotas=node.doors.quotas,
        net=node.driver.stats,
        explain=explain,
        status=node.status,
        carried=node.carried,
        registry=node.registry,
        work=Work(config.gateway.work_max, config.gateway.work_waiting_max, node.meter),
        rates=Rates(config.gateway, node.meter),
        meter=node.meter,
        config=config.gateway,
        clock_ms=node.clock_ms,
        info={
            "name": config.name,
            "version": __version__,
            "network": config.network,
            "peerId": node.host.peer_text,
            "signing": config.signing,
        },
        message_rates=node.message_rates,
        in_order=node.in_order,
    )
    sources = DashboardSources(
        store=node.store,
        counts=node.doors.counts,
        latency=node.doors.latency,
        net=node.driver.stats,
        explain=explain,
        status=node.status,
        healthy=node.healthy,
        namespaces=node.carried.entries,
        clock_ms=node.clock_ms,
        info=parts.info,
    )
    dashboard = Dashboard(sources, node.feed, parts.work, config.gateway, rates=parts.rates)
    return GatewayService(parts, node.feed, dashboard, node.tokens, _control(node))


def older_of(config: NodeConfig) -> OlderMessages | None:
    """Return the archive that a configuration names; None without one."""
    if not config.gateway.archive:
        return None
    network = config.network if config.signing == "bound" else ""
    tls = client_tls_of(config.sync_limits)
    return OlderMessages(config.gateway.archive, tls=tls, network=network)


def _control(node: NodeParts) -> PeerControl:
    def known(text: str) -> PeerId | None:
        try:
            peer = peer_id_from_text(text)
        except AddressError:
            return None
        # A multihash: of SHA2-256 34 bytes, of a key itself somewhat more.
        return peer if len(peer) in _PEER_ID_BYTES else None

    async def disconnect(text: str) -> bool:
        peer = known(text)
        if peer is None or not node.host.is_connected(peer):
            return False
        await node.host.disconnect(peer)
        return True

    async def ban(text: str, seconds: int, reason: str) -> bool:
        peer = known(text)
        if peer is None:
            return False
        await node.driver.ban(peer, seconds, reason)
        return True

    def lift(text: str) -> bool:
        peer = known(text)
        return peer is not None and node.driver.lift_ban(peer)

    def bans() -> list[dict[str, Any]]:
        return [
            {"peerId": peer_text(peer), "untilMs": each.until_ms, "reason": each.reason}
            for peer, each in node.host.banned().items()
        ]

    return PeerControl(disconnect=disconnect, ban=ban, lift=lift, bans=bans)
