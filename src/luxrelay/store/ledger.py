"""`Ledger`: namespace states and totals, as readers see them.

The writer replaces whole `NamespaceState` values after its batch is written and never changes one
that stands here, so a reader that took a state keeps a consistent one without a lock. Rows and tree
change under ``lock``: who holds it sees a tree that is bit-identical to the id rows.

`HotCache`: the newest messages in memory, in front of the database. Pure.

*Decides* what stays: the youngest rows within three bounds, count, bytes and age.
*Does not know* the database. It is filled by writes alone and never by reads, so it cannot be
behind: the writer replaces or drops a slot's row right after its batch is written.
*What it spares*: two reads of the database for a message by id, about half the time.
*An entry is the row's bytes as they are on disk*: nothing is made for it, and Python's collector of
cycles has nothing to look at. Slots with several candidates, which are rare, are not here.
*Batches*: rows come as the table of a batch, which stays as it is; an index says which table has a
slot. So a batch costs two calls, whatever its size.
*Threads*: one writer at a time changes it (the caller's lock); readers call `get` without one.
*Blobs*: small ones are part of the header's row and come along; a blob with a row of its own is
never here (P30).
*Bounds*: hot_messages_max rows, hot_bytes_max bytes, hot_ttl_ms since arrival.
*What else to change when you change this*: `batch.commit`, `query.read_messages`.

Source: retention document, "Merkle Tree Implications"; LP-6421 §1.1, §8; decisions P3, P4, P30,
P44, P45, J4, J8; 21-02; architecture, rule 5.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Final

from luxrelay.bus import NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import StoreError
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.merkle import MerkleTree
from luxrelay.store.namespaces import NamespaceHead, NamespaceState, QuotaBook, low_water
from luxrelay.store.rocks import Database
from luxrelay.store.slices import Slices

ENTRY_BYTES: Final = 256
"""What an entry costs beyond its row: its key, its place in the table, the heads of both."""
RATE_WINDOW_MS: Final = 5 * 60_000
"""Time over which the hit rate is taken (P45)."""
_RATE_STEP_MS: Final = 30_000


class HotCache:
    """Rows of uncontended slots by message id."""

    __slots__ = (
        "_batches",
        "_first_expiry",
        "_messages_max",
        "_rows",
        "_size_max",
        "_ttl_ms",
        "size_bytes",
    )

    def __init__(self, config: RelayStoreConfig) -> None:
        self._messages_max = config.hot_messages_max
        self._size_max = config.hot_bytes_max
        self._ttl_ms = config.hot_ttl_ms
        self._rows: dict[bytes, dict[bytes, bytes]] = {}
        """The batch that each slot came with."""
        self._batches: deque[dict[bytes, bytes]] = deque()
        """Rows by message id, as they came together; the oldest first."""
        self._first_expiry = 2**64
        """No row expires earlier."""
        self.size_bytes = 0
        """Bytes of all entries, their own cost included."""

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, message_id: bytes, now_ms: int) -> bytes | None:
        """Return the encoded row of the slot's one message; None when it is not here."""
        came_with = self._rows.get(message_id)
        row = None if came_with is None else came_with.get(message_id)
        if row is None or now_ms - layout.read_u64(row) >= self._ttl_ms:
            return None
        return row

    def keep(self, message_id: bytes, row: bytes) -> None:
        """The slot holds one message, ``row`` as it is on disk; the oldest entries make room."""
        self.keep_all({message_id: row}, layout.expires_at_of(row))

    def keep_all(self, rows: dict[bytes, bytes], due: int) -> None:
        """As `keep`, for many slots; none expires before ``due``, and ``rows`` is ours from now."""
        if not rows:
            return
        if not self._rows.keys().isdisjoint(rows):
            for message_id in rows:
                self.drop(message_id)
        self._rows.update(dict.fromkeys(rows, rows))
        self._batches.append(rows)
        self.size_bytes += ENTRY_BYTES * len(rows) + sum(map(len, rows.values()))
        self._first_expiry = min(self._first_expiry, due)
        while len(self._rows) > self._messages_max or self.size_bytes > self._size_max:
            oldest = self._oldest()
            if len(self._rows) - len(oldest) >= self._messages_max:
                self._drop_batch()
            else:
                self.drop(next(iter(oldest)))

    def drop(self, message_id: bytes) -> None:
        """The slot is not here."""
        came_with = self._rows.pop(message_id, None)
        if came_with is not None:
            self.size_bytes -= ENTRY_BYTES + len(came_with.pop(message_id))

    def drop_expiring(self, first_ms: int, end_ms: int) -> None:
        """No slot is here whose message expires from ``first_ms`` to below ``end_ms``."""
        if self._first_expiry >= end_ms:
            return
        expiries = {name: layout.expires_at_of(rows[name]) for name, rows in self._rows.items()}
        for name, expires_at in expiries.items():
            if first_ms <= expires_at < end_ms:
                self.drop(name)
        self._first_expiry = min(
            (each for each in expiries.values() if each >= end_ms), default=2**64
        )

    def forget_old(self, now_ms: int) -> None:
        """The oldest entries are younger than hot_ttl_ms."""
        while self._rows:
            rows = self._oldest().values()
            if now_ms - layout.read_u64(next(reversed(rows))) >= self._ttl_ms:
                self._drop_batch()
                continue
            if now_ms - layout.read_u64(next(iter(rows))) < self._ttl_ms:
                break
            self.drop(next(iter(self._batches[0])))

    def _oldest(self) -> dict[bytes, bytes]:
        """Return the oldest batch that has an entry; there is one."""
        while not self._batches[0]:
            self._batches.popleft()
        return self._batches[0]

    def _drop_batch(self) -> None:
        rows = self._batches.popleft()
        for message_id in rows:
            del self._rows[message_id]
        self.size_bytes -= ENTRY_BYTES * len(rows) + sum(map(len, rows.values()))


class HitRate:
    """Hits and misses: in all, and their ratio over the last five minutes."""

    __slots__ = ("_steps", "hits", "misses")

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self._steps: deque[list[int]] = deque(maxlen=RATE_WINDOW_MS // _RATE_STEP_MS)

    def count(self, hits: int, misses: int, now_ms: int) -> None:
        """Some reads found their slot here, some did not."""
        self.hits += hits
        self.misses += misses
        step = now_ms // _RATE_STEP_MS
        if not self._steps or self._steps[-1][0] != step:
            self._steps.append([step, 0, 0])
        self._steps[-1][1] += hits
        self._steps[-1][2] += misses

    def ratio(self) -> float:
        """Return hits by reads in the five minutes up to the last read; 0 without reads."""
        if not self._steps:
            return 0.0
        first = self._steps[-1][0] - RATE_WINDOW_MS // _RATE_STEP_MS
        recent = [step for step in self._steps if step[0] > first]
        hits = sum(step[1] for step in recent)
        reads = hits + sum(step[2] for step in recent)
        return hits / reads if reads else 0.0


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
        if _is_held(database, ledger, family, key):
            heads.append(ledger.head(namespace))
    return heads, b""


def _is_held(database: Database, ledger: Ledger, family: str, key: bytes) -> bool:
    """Return whether a namespace of a row has a state; False when its row is gone by now."""
    namespace = NamespaceId(key[-c.NAMESPACE_BYTES :])
    if namespace in ledger.states:
        return True
    with ledger.lock:  # a batch writes its rows first and tells its states second, under the lock
        if namespace in ledger.states:
            return True
        if database.get(family, key) is None:
            return False
    raise StoreError("a namespace has no state", where=namespace.hex(), code="store.corrupt")


def _find_runs(slices: Slices, state: NamespaceState) -> None:
    start = layout.slot_key(state.namespace_id, state.contiguous + 1)
    for key in slices.keys(layout.HEADERS, start, layout.after(state.namespace_id)):
        state.runs.add(layout.split_slot(key)[1])
