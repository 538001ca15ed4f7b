"""Where messages wait: `RelayStore` on RocksDB."""

from luxrelay.store.config import Durability, RelayStoreConfig, WhenFull
from luxrelay.store.durability.sync import PutReceipt
from luxrelay.store.messages import IncomingMessage, PutOutcome, StoredMessage
from luxrelay.store.namespaces import Equivocation, Lack, NamespaceHead
from luxrelay.store.reading.indexes import BucketQuery, IndexPage, SenderQuery, TimeQuery
from luxrelay.store.reading.query import NamespaceQuery, QueryPage
from luxrelay.store.relay_store import RelayStore
from luxrelay.store.retention import CycleStats
from luxrelay.store.stats import GcStats, StoreStats

__all__ = [
    "BucketQuery",
    "CycleStats",
    "Durability",
    "Equivocation",
    "GcStats",
    "IncomingMessage",
    "IndexPage",
    "Lack",
    "NamespaceHead",
    "NamespaceQuery",
    "PutOutcome",
    "PutReceipt",
    "QueryPage",
    "RelayStore",
    "RelayStoreConfig",
    "SenderQuery",
    "StoreStats",
    "StoredMessage",
    "TimeQuery",
    "WhenFull",
]
