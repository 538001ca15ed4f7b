"""RelaySync over gRPC: the server, the client and the driver of catch-up.

The server loads on first use: it reads a store, which a client has no need of.
"""

import os
from typing import TYPE_CHECKING

# gRPC's core writes lines of its own to standard error, past every log; it reads this at its start.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from luxrelay.sync.rpc.backing import Publisher, SyncStore
from luxrelay.sync.rpc.catchup_driver import CatchUpSink, run_catchup
from luxrelay.sync.rpc.client import RelaySyncClient
from luxrelay.sync.rpc.config import SyncClientConfig, SyncServerConfig
from luxrelay.sync.rpc.scope import CallScope
from luxrelay.sync.rpc.stats import SyncServerStats
from luxrelay.sync.rpc.tls import ClientTls, ServerTls

if TYPE_CHECKING:
    from luxrelay.sync.rpc.service import RelaySyncServer

__all__ = [
    "CallScope",
    "CatchUpSink",
    "ClientTls",
    "Publisher",
    "RelaySyncClient",
    "RelaySyncServer",
    "ServerTls",
    "SyncClientConfig",
    "SyncServerConfig",
    "SyncServerStats",
    "SyncStore",
    "run_catchup",
]


def __getattr__(name: str) -> type:
    if name == "RelaySyncServer":
        from luxrelay.sync.rpc.service import RelaySyncServer  # noqa: PLC0415 - see above

        return RelaySyncServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
