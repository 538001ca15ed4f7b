"""`Ledger`: namespace states and totals, as readers see them.

The writer replaces whole `NamespaceState` values after its batch is written and never changes one
that stands here, so a reader that took a state keeps a consistent one without a lock. Rows and tree
change under ``lock``: who holds it sees a tree that is bit-identical to the id rows.

Source: retention document, "Merkle Tree Implications"; decisions J4, J8, P44; architecture, rule 5.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from heapq import nsmallest

from luxrelay.bus import NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import StoreError
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.merkle import MerkleTree
from luxrelay.store.namespaces import NamespaceHead, NamespaceState
from luxrelay.store.quota import QuotaBook, low_water
from luxrelay.store.reading.hot import HotCache
from luxrelay.store.rocks import Database
from luxrelay.store.slices import Slices


class Ledger:
    """Published namespace states with their sums."""

    __slots__ = (
        "_config",
        "_hashing",
        "blob_hint",
        "forgotten",
        "held",
        "holding",
        "hot",
        "lock",
        "messages",
        "quotas",
        "size_bytes",
        "slices",
        "states",
        "time_hint",
        "tree",
    )

    def __init__(self, slices: Slices, config: RelayStoreConfig | None = None) -> None:
        self.slices = slices
        """The messages."""
        self.states: dict[NamespaceId, NamespaceState] = {}
        self.messages = 0
        self.size_bytes = 0
        self.time_hint = 0
        """No message has an earlier timestamp; spares eviction the walk over its own tombstones."""
        self.blob_hint = b""
        """No message whose ``times`` row stands before has a blob, where blobs are bounded."""
        self._config = config = config or RelayStoreConfig()
        self.hot = HotCache(config)
        """The newest slots."""
        self.quotas = QuotaBook(config)
        """Sizes by account (P1)."""
        self.forgotten = 0
        """Namespaces whose heads are on the disk alone."""
        self.held = 0
        """Messages past their time that wait for the archive (J8)."""
        self.holding: set[NamespaceId] = set()
        """Namespaces that have such messages, perhaps some that had."""
        self.tree = MerkleTree()
        """The content ids of every message (J4)."""
        self.lock = threading.Lock()
        """Held while the rows and the tree change together, and by readers of the tree."""
        self._hashing = threading.Lock()

    def came(self, first_ms: int) -> None:
        """Messages came, or their blobs, none with an earlier timestamp."""
        self.time_hint = min(self.time_hint, first_ms)
        if first_ms <= c.MAX_U64:
            self.blob_hint = min(self.blob_hint, layout.u64(first_ms))

    @classmethod
    def load(
        cls,
        database: Database,
        config: RelayStoreConfig | None = None,
        *,
        trees: Mapping[int, MerkleTree] | None = None,
        read_only: bool = False,
    ) -> Ledger:
        """Return the ledger of ``database``: counters as stored, runs found again from the rows.

        Args:
            database: Where they are.
            config: Bounds.
            trees: Trees that were kept, by number of their slice.
            read_only: Change nothing.

        Raises:
            StoreError: ``store.corrupt`` or ``store.io``.

        """
        config = config or RelayStoreConfig()
        slices = Slices.load(database, config, trees=trees or {}, read_only=read_only)
        ledger = cls(slices, config)
        for key, value in database.scan(layout.NAMESPACES, b"", b""):
            state = layout.decode_state(key, value)
            if state.latest > state.contiguous:
                _find_runs(ledger.slices, state)
            ledger.publish([state], state.messages, state.size_bytes)
        ledger.forgotten = sum(1 for _ in database.keys(layout.FORGOTTEN, b"", b""))
        for each in ledger.slices.live:
            ledger.held += each.held
            if each.held:
                held = each.table.keys(b"", b"", layout.HELD)
                ledger.holding.update(layout.split_slot(key)[0] for key in held)
            ledger.tree.add(each.tree)
        return ledger

    def watermark(self, state: NamespaceState) -> int | None:
        """Return how far the archive has read ``state``, None when nobody reads it.

        A lane whose parent is handed off is so too, from its beginning (J6, J8).
        """
        if state.watermark is not None or state.parent == state.namespace_id:
            return state.watermark
        parent = self.states.get(state.parent)
        return None if parent is None or parent.watermark is None else 0

    def tree_nodes(self) -> list[bytes]:
        """Return the level-1 hashes of one moment; a writer waits for a copy, not for the hashing.

        Source: J4.
        """
        with self._hashing:
            with self.lock:
                changed = self.tree.changed()
            return self.tree.rehash(changed)

    def publish(self, states: Iterable[NamespaceState], messages: int, size_bytes: int) -> None:
        """Readers see ``states``; the totals change by ``messages`` and ``size_bytes``."""
        for state in states:
            self.states[state.namespace_id] = state
            self.quotas.update(state.namespace_id, state.parent, state.size_bytes)
        self.messages += messages
        self.size_bytes += size_bytes

    def head(self, namespace: NamespaceId) -> NamespaceHead:
        """Return the head of ``namespace``, zeros for an unknown one."""
        state = self.states.get(namespace) or self.remembered(namespace)
        if state is None:
            return NamespaceHead(namespace_id=namespace, parent=namespace)
        return state.head()

    def remembered(self, namespace: NamespaceId) -> NamespaceState | None:
        """Return the state of a namespace that made room for others, None without one.

        It had no messages then, so nothing up to its latest sequence is expected.
        """
        value = self.slices.database.get(layout.FORGOTTEN, namespace)
        if value is None:
            return None
        state = layout.decode_state(namespace, value)
        state.raise_floor(state.latest)
        return state

    def why_full(self, namespace: NamespaceId, parent: NamespaceId, size_bytes: int) -> str:
        """Return what a message with a charge of so many bytes finds no room in (P1, P2)."""
        account = self.quotas.account_of(namespace, parent)
        quota, held = self.quotas.quota(account), self.quotas.size_bytes(account)
        most = self._config.max_storage_bytes
        if namespace not in self.states and len(self.states) >= self._config.namespaces_max:
            return f"the store has {len(self.states):,} namespaces, the most (namespaces_max)"
        if size_bytes > quota:
            return (
                f"the message takes {size_bytes:,} bytes, its namespace's quota is {quota:,} (P1)"
            )
        if held + size_bytes > quota:
            what, of = f"its namespace holds {held:,}", quota
        else:
            what, of = f"the store holds {self.size_bytes:,}", most
        return f"{what} of {of:,} bytes, the message takes {size_bytes:,} and none goes for it (P2)"

    def idle(self) -> list[NamespaceState]:
        """Return the states that may make room for others, the one silent for longest first.

        Those without messages, above the low-water mark of namespaces_max; none that an archive
        reads, because its watermark may not be lost (J8).
        """
        surplus = len(self.states) - low_water(self._config.namespaces_max)
        surplus = min(surplus, self._config.forgotten_max - self.forgotten)
        if surplus <= 0:
            return []
        states = [each for each in [*self.states.values()] if not each.messages]
        unread = [each for each in states if each.watermark is None]
        return nsmallest(surplus, unread, key=lambda each: each.latest_timestamp)

    def forget(self, names: Iterable[NamespaceId]) -> None:
        """The states are on the disk alone."""
        for name in names:
            self.quotas.update(name, self.states.pop(name).parent, 0)
            self.forgotten += 1


def read_heads(
    database: Database, ledger: Ledger, parent: NamespaceId | None, cursor: bytes, limit: int
) -> tuple[list[NamespaceHead], bytes]:
    """Return up to ``limit`` heads in order of their ids, and where to go on; empty at the end.

    Args:
        database: Holds the order of ids.
        ledger: Holds the heads.
        parent: Only this namespace and its lanes (J6); None for all.
        cursor: Empty, or what the previous answer gave.
        limit: At least 1.

    """
    family, prefix = (layout.NAMESPACES, b"") if parent is None else (layout.LANES, bytes(parent))
    heads: list[NamespaceHead] = []
    start = prefix + cursor + b"\x00" if cursor else prefix
    for key in database.keys(family, start, layout.after(prefix)):
        if len(heads) == limit:
            return heads, bytes(heads[-1].namespace_id)
        namespace = NamespaceId(key[-c.NAMESPACE_BYTES :])
        if namespace not in ledger.states:
            raise StoreError(
                "a namespace has no state", where=namespace.hex(), code="store.corrupt"
            )
        heads.append(ledger.head(namespace))
    return heads, b""


def _find_runs(slices: Slices, state: NamespaceState) -> None:
    start = layout.slot_key(state.namespace_id, state.contiguous + 1)
    for key in slices.keys(layout.HEADERS, start, layout.after(state.namespace_id)):
        state.runs.add(layout.split_slot(key)[1])
