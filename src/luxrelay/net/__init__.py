"""libp2p on trio: the host, and the driver of the gossip router. Loads libp2p on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from luxrelay.net.config import DEFAULT_PORT, MESHSUB, NetConfig
    from luxrelay.net.driver import GossipDriver, Validator
    from luxrelay.net.host import HostStats, RelayHost
    from luxrelay.net.links import DriverCounters, LinkCounters, NetStats
    from luxrelay.net.raw_peer import RawPubsubPeer, raw_pubsub_peer
    from luxrelay.net.streams import RelayStream

__all__ = [
    "DEFAULT_PORT",
    "MESHSUB",
    "DriverCounters",
    "GossipDriver",
    "HostStats",
    "LinkCounters",
    "NetConfig",
    "NetStats",
    "RawPubsubPeer",
    "RelayHost",
    "RelayStream",
    "Validator",
    "raw_pubsub_peer",
]

_MODULES = {
    "DEFAULT_PORT": "config",
    "MESHSUB": "config",
    "NetConfig": "config",
    "GossipDriver": "driver",
    "Validator": "driver",
    "HostStats": "host",
    "RelayHost": "host",
    "RelayStream": "streams",
    "DriverCounters": "links",
    "LinkCounters": "links",
    "NetStats": "links",
    "RawPubsubPeer": "raw_peer",
    "raw_pubsub_peer": "raw_peer",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
