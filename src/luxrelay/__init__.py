"""LuxRelay: a message bus without a master.

The names that most programs begin with; each loads its room on first use, so that ``import
luxrelay`` loads none. The others are public in their rooms.
"""

TYPE_CHECKING = False  # as typing has it, which takes longer to load than all of this
if TYPE_CHECKING:
    from luxrelay.bus import MsgHeader, NamespaceId, SigningKey, lane
    from luxrelay.channel import create_reliable_channel
    from luxrelay.client import AsyncRelayClient, LaneSigner, RelayClient
    from luxrelay.errors import LuxRelayError
    from luxrelay.gossip import GossipRouter
    from luxrelay.store import RelayStore
    from luxrelay.sync import RelaySyncClient

__version__ = "0.1.0"

__all__ = [
    "AsyncRelayClient",
    "GossipRouter",
    "LaneSigner",
    "LuxRelayError",
    "MsgHeader",
    "NamespaceId",
    "RelayClient",
    "RelayStore",
    "RelaySyncClient",
    "SigningKey",
    "__version__",
    "create_reliable_channel",
    "lane",
]

_HOMES = {
    "AsyncRelayClient": "client",
    "GossipRouter": "gossip",
    "LaneSigner": "client",
    "LuxRelayError": "errors",
    "MsgHeader": "bus",
    "NamespaceId": "bus",
    "RelayClient": "client",
    "RelayStore": "store",
    "RelaySyncClient": "sync",
    "SigningKey": "bus",
    "create_reliable_channel": "channel",
    "lane": "bus",
}


def __getattr__(name: str) -> object:
    """Load the room of a public name when the name is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = __import__(f"{__name__}.{_HOMES[name]}", fromlist=(name,))  # importlib takes longer
    return getattr(room, name)


def __dir__() -> list[str]:
    """Return the public names, also those that were not used yet."""
    return sorted({*globals(), *__all__})
