"""Parameters of network and router, from a node's file.

Source: LP-6420 §1, §6; decisions G21, G22, G23, G24, G32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luxrelay import __version__
from luxrelay.gossip import DiversityParams, GossipParams, NodeRole, ScoreParams
from luxrelay.net import NetConfig
from luxrelay.node.port_keys import bounds_of
from luxrelay.node.tuning import Tuning, tuned_mesh, tuned_scores
from luxrelay.wire import from_hex

if TYPE_CHECKING:
    from luxrelay.node.config import NodeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Peering:
    """Who the peers are and how many; ``PEER_KEYS`` documents each value."""

    bootstrap: tuple[str, ...]
    announce: tuple[str, ...]
    exchange: bool
    dht: bool
    dht_interval_ms: int
    outbound_target: int
    peers_min: int
    rotation_interval_ms: int
    rotation_count: int
    group_peers_max: int
    address_connections_max: int
    subnet_connections_max: int
    private_group_peers_max: int
    private_address_connections_max: int
    private_subnet_connections_max: int
    handshakes_max: int
    handshakes_per_s: int
    exempt_loopback: bool
    unread_max: int
    connection_unread_max: int
    role: str
    validator_proof: bytes
    validators: frozenset[bytes]
    require_hello: bool
    clock_peers_min: int
    clock_warn_ms: int
    refused_arrivals_min: int
    bounds: Mapping[str, float | int]
    """Numbers of `NetConfig` by their names there; ``port_keys`` documents each."""
    tuning: Tuning


def peering_of(gossip: Mapping[str, Any], base: Path, validators: Iterable[bytes] = ()) -> Peering:
    """Return the values of the section ``gossip`` about peers, with paths below ``base``.

    ``validators`` count where the section names none.
    """
    plain = (
        "exchange",
        "dht",
        "dht_interval_ms",
        "outbound_target",
        "peers_min",
        "rotation_interval_ms",
        "rotation_count",
        "group_peers_max",
        "address_connections_max",
        "subnet_connections_max",
        "private_group_peers_max",
        "private_address_connections_max",
        "private_subnet_connections_max",
        "handshakes_max",
        "handshakes_per_s",
        "exempt_loopback",
        "unread_max",
        "connection_unread_max",
        "role",
        "require_hello",
        "clock_peers_min",
        "clock_warn_ms",
        "refused_arrivals_min",
    )
    return Peering(
        bootstrap=tuple(gossip["bootstrap"]),
        announce=tuple(gossip["announce"]),
        bounds=bounds_of(gossip),
        validator_proof=from_hex(gossip["validator_proof"]),
        validators=frozenset(map(from_hex, gossip["validators"])) or frozenset(validators),
        tuning=Tuning(
            mesh=tuple(gossip["mesh"]),
            scores=tuple(gossip["scores"]),
            places=base / gossip["places"] if gossip["places"] else None,
            system_peers_max=gossip["system_peers_max"],
            regions_min=gossip["regions_min"],
            outbound_distinct_min=gossip["outbound_distinct_min"],
        ),
        **{name: gossip[name] for name in plain},
    )


def outbound_max(config: NodeConfig) -> int:
    """Return the places for outbound connections: about a third of all (G21).

    Every configured peer gets one of them.
    """
    return max(config.connections_max * 16 // 50, len(config.gossip_peers), 1)


def net_config_of(config: NodeConfig) -> NetConfig:
    """Return the bounds of the network room.

    Raises:
        ConfigError: two of them do not fit together.

    """
    outbound, peering = outbound_max(config), config.peering
    bounds: dict[str, Any] = dict(peering.bounds)
    return NetConfig(
        listen=config.gossip_listen,
        peers=config.gossip_peers,
        outbound_max=outbound,
        inbound_max=config.connections_max - outbound,
        inbox_max=config.inbox_max,
        network=config.network,
        roles=(peering.role,),
        validator_proof=peering.validator_proof,
        agent=f"luxrelay/{__version__}",
        inline_blob_max=config.inline_blob_max,
        announce=peering.announce,
        require_hello=peering.require_hello,
        bootstrap=peering.bootstrap,
        peers_min=peering.peers_min,
        outbound_target=peering.outbound_target,
        exchange=peering.exchange,
        dht=peering.dht,
        dht_interval_s=peering.dht_interval_ms / 1000,
        address_connections_max=peering.address_connections_max,
        subnet_connections_max=peering.subnet_connections_max,
        private_address_connections_max=peering.private_address_connections_max,
        private_subnet_connections_max=peering.private_subnet_connections_max,
        handshakes_max=peering.handshakes_max,
        handshakes_per_s=peering.handshakes_per_s,
        loopback_exempt=peering.exempt_loopback,
        unread_max=peering.unread_max,
        connection_unread_max=peering.connection_unread_max,
        **bounds,
    )


def gossip_params_of(config: NodeConfig) -> GossipParams:
    """Return the parameters of the router.

    Raises:
        GossipArgumentError: what the file changes does not fit.

    """
    base = GossipParams(
        heartbeat_interval_s=config.heartbeat_ms / 1000,
        peers_max=config.connections_max,
        pending_max=config.inbox_max,
        peer_exchange=config.peering.exchange,
        exempt_loopback=config.peering.exempt_loopback,
        light=config.peering.role == NodeRole.LIGHT,
    )
    return tuned_mesh(base, config.peering.tuning.mesh)


def score_params_of(config: NodeConfig) -> ScoreParams:
    """Return what behaviour is worth.

    Raises:
        GossipArgumentError: what the file changes does not fit.

    """
    return tuned_scores(config.peering.tuning.scores)


def diversity_of(config: NodeConfig) -> DiversityParams:
    """Return how different peers have to be, and how often they change."""
    outbound, peering = outbound_max(config), config.peering
    return DiversityParams(
        subnet_max=peering.group_peers_max,
        private_subnet_max=peering.private_group_peers_max,
        asn_max=peering.tuning.system_peers_max,
        regions_min=peering.tuning.regions_min,
        outbound_distinct_min=min(peering.tuning.outbound_distinct_min, outbound),
        outbound_max=outbound,
        peers_min=peering.peers_min,
        rotation_interval_s=peering.rotation_interval_ms / 1000,
        rotation_count=peering.rotation_count,
    )
