"""Where messages wait: `RelayStore` on RocksDB."""

from luxrelay.store.config import Durability, RelayStoreConfig
from luxrelay.store.messages import IncomingMessage, PutOutcome, StoredMessage
from luxrelay.store.namespaces import NamespaceHead
from luxrelay.store.query import NamespaceQuery, QueryPage
from luxrelay.store.relay_store import RelayStore, StoreStats
from luxrelay.store.retention import CycleStats

__all__ = [
    "CycleStats",
    "Durability",
    "IncomingMessage",
    "NamespaceHead",
    "NamespaceQuery",
    "PutOutcome",
    "QueryPage",
    "RelayStore",
    "RelayStoreConfig",
    "StoreStats",
    "StoredMessage",
]
