"""Catching up: from a relay that holds messages to a node that has missed them.

`RelaySyncServer` loads on first use: it reads a store, which a client has no need of.
"""

from typing import TYPE_CHECKING

from luxrelay.sync.catchup import CatchUp
from luxrelay.sync.fairness import FairnessConfig
from luxrelay.sync.heads import PeerHead, SeqRange
from luxrelay.sync.held import HeldLane
from luxrelay.sync.messages import (
    LanePage,
    LaneRange,
    PublishItem,
    PublishReceipt,
    QuotaUse,
    SyncPage,
    SyncStatus,
    Watermark,
    WireMessage,
)
from luxrelay.sync.params import CatchUpConfig
from luxrelay.sync.report import (
    AcceptResult,
    CatchUpProgress,
    CatchUpReport,
    Outcome,
    PeerReport,
)
from luxrelay.sync.rpc import (
    CallScope,
    CatchUpSink,
    ClientTls,
    Publisher,
    RelaySyncClient,
    ServerTls,
    SyncClientConfig,
    SyncServerConfig,
    SyncServerStats,
    SyncStore,
    run_catchup,
)

if TYPE_CHECKING:
    from luxrelay.sync.rpc import RelaySyncServer

__all__ = [
    "AcceptResult",
    "CallScope",
    "CatchUp",
    "CatchUpConfig",
    "CatchUpProgress",
    "CatchUpReport",
    "CatchUpSink",
    "ClientTls",
    "FairnessConfig",
    "HeldLane",
    "LanePage",
    "LaneRange",
    "Outcome",
    "PeerHead",
    "PeerReport",
    "PublishItem",
    "PublishReceipt",
    "Publisher",
    "QuotaUse",
    "RelaySyncClient",
    "RelaySyncServer",
    "SeqRange",
    "ServerTls",
    "SyncClientConfig",
    "SyncPage",
    "SyncServerConfig",
    "SyncServerStats",
    "SyncStatus",
    "SyncStore",
    "Watermark",
    "WireMessage",
    "run_catchup",
]


def __getattr__(name: str) -> type:
    if name == "RelaySyncServer":
        from luxrelay.sync.rpc.service import RelaySyncServer  # noqa: PLC0415 - see above

        return RelaySyncServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
