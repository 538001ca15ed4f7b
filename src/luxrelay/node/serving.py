"""What a node's servers of sync calls allow, from its configuration.

Source: P33, P34, P37.
"""

from __future__ import annotations

from luxrelay.node.config import NodeConfig
from luxrelay.sync import FairnessConfig, SyncServerConfig


def serving_of(config: NodeConfig) -> SyncServerConfig:
    """Return the bounds of the sync port; the gateway over gRPC has its window and rates."""
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
