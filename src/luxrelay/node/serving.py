"""Limits of a node's sync servers, from its configuration.

Source: P33, P34, P37.
"""

from __future__ import annotations

import re
from typing import Final

from luxrelay.node.config import NodeConfig
from luxrelay.node.observe import ObserverConfig
from luxrelay.sync import FairnessConfig, SyncServerConfig
from luxrelay.sync.cost import CostConfig
from luxrelay.sync.rpc.metering import SharedMeter, pace_here

_SHORT: Final = 12
"""Threads for calls that are short, beside one for each stream."""
_REFUSED: Final = 4
"""Calls at once above the threads, so that a refusal can be said."""


def serving_of(config: NodeConfig) -> SyncServerConfig:
    """Return the bounds of the sync port; the gateway over gRPC has its window and rates."""
    host, _, port = config.sync_listen.rpartition(":")
    limits = config.sync_limits
    lasting = SyncServerConfig().streams_max + limits.publishers_max + limits.subscribers_max
    return SyncServerConfig(
        host=host,
        port=int(port),
        window_ms=config.ttl_ms,
        limit_local=not limits.exempt_loopback,
        validators=limits.validators,
        validator_keys=limits.validator_keys,
        reconcile_ranges_max=limits.reconcile_ranges_max,
        connections_max=limits.connections_max,
        address_connections_per_s=limits.address_connections_per_s,
        address_connections_burst=limits.address_connections_burst,
        accepts_per_s=limits.accepts_per_s,
        workers=lasting + _SHORT,
        calls_max=lasting + _SHORT + _REFUSED,
        publishers_max=limits.publishers_max,
        peer_publishers_max=limits.peer_publishers_max,
        publisher_silent_s=limits.publisher_silent_ms / 1000,
        subscribers_max=limits.subscribers_max,
        peer_subscribers_max=limits.peer_subscribers_max,
        fairness=FairnessConfig(
            out_bytes_per_s=limits.out_bytes_per_s,
            in_bytes_per_s=limits.in_bytes_per_s,
            peer_bytes_per_s=limits.peer_bytes_per_s,
            peer_requests_per_s=limits.peer_requests_per_s,
            peer_streams_max=limits.peer_streams_max,
            validator_weight=float(limits.validator_weight),
        ),
    )


_IN_MULTIADDRESS: Final = re.compile(r"^/ip[46]/([^/]+)/")


def known_hosts(config: NodeConfig) -> frozenset[str]:
    """Return the addresses of those whom the operator has named; no name is looked up."""
    found = set(config.sync_limits.known_hosts)
    found |= {peer.rpartition(":")[0].strip("[]") for peer in config.sync_peers}
    found |= {match[1] for each in config.gossip_peers if (match := _IN_MULTIADDRESS.match(each))}
    return frozenset(found)


def meter_of(config: NodeConfig) -> SharedMeter:
    """Return the one meter of cost that all doors of a node share."""
    limits = config.sync_limits
    return SharedMeter(
        CostConfig(
            stranger_us_per_s=1_000.0 * limits.stranger_ms_per_s,
            stranger_burst_us=1_000.0 * limits.stranger_burst_ms,
            known_us_per_s=1_000.0 * limits.known_ms_per_s,
        ),
        known_hosts=known_hosts(config),
        pace=pace_here(),
    )


def pages_of(config: NodeConfig) -> ObserverConfig:
    """Return what the port of the operator's pages allows; its meter is its own."""
    return ObserverConfig(
        listen=config.http_listen,
        hosts=(*config.http_hosts, config.http_listen.rpartition(":")[0]),
        accepts_per_s=config.http_accepts_per_s,
        clients_max=config.http_clients_max,
        timeout_ms=config.http_timeout_ms,
        stranger_ms_per_s=config.http_stranger_ms_per_s,
        stranger_burst_ms=config.http_stranger_burst_ms,
        known_ms_per_s=config.sync_limits.known_ms_per_s,
        known_hosts=sorted(known_hosts(config)),
        pace=pace_here(),
    )
