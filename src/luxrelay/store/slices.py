"""`Slices`: the messages, cut by when they expire, each cut in a table of its own.

Theory of operation
-------------------
*Decides* which table a message's rows are in, and in which tables a reader has to look.
*Does not know* what a batch means; `Group` writes into slices, `Writer` drops them.
*A slice* holds every row of each message whose expires_at lies in its span, and nothing else:
dropping its table forgets them all, and gives their space back at once, whatever their number.
Spans do not overlap, so a message's slice follows from its expires_at alone.
*Sums*: a slice knows what it holds of each namespace and sender (rows of its own), and has a Merkle
tree of its own ids, so that dropping it changes sums and tree without looking at the messages.
*Reading* in the order of keys merges the slices. Within a namespace their sequences hardly overlap,
because timestamps do not decrease, so a page comes from one slice after the other.
*Threads*: the writer alone changes anything; readers take the tuple ``live`` once and keep reading
a slice that is dropped meanwhile.
*A slice's own row* is written before its first message and goes in the batch that forgets the last;
its table is dropped after that batch is on the disk, so no crash leaves rows that count without a
table. A table without a row holds nothing that counts: opening the store drops it.
*Bounds*: slices_max slices; beyond that the nearest one takes a wider span.
*What else to change when you change this*: `layout`, `batch`, `audit`, `repair`, `upgrade`.

Source: ADR 0006 §1; decisions P9, P12, J4; 21-12.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from luxrelay.bus import NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import StoreError
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.layout import Share
from luxrelay.store.merkle import MerkleTree
from luxrelay.store.rocks import Database, RocksTable

NEVER: Final = 2**64
"""Later than every expires_at."""
_NAME: Final = "slice-"
_NO_TREES: Final[Mapping[int, MerkleTree]] = {}
_Item = TypeVar("_Item", bytes, tuple[bytes, bytes])


def expiry_of(config: RelayStoreConfig, received_at: int, timestamp: int) -> int:
    """Return when a message goes: the earlier of its TTL and the retention window.

    Source: P14, J2.
    """
    return min(
        min(received_at, timestamp) + config.cold_store_ttl_ms,
        timestamp + config.retention_window_ms,
    )


class Slice:
    """One table of messages that expire within one span."""

    __slots__ = (
        "blob_bytes",
        "end_ms",
        "first_ms",
        "held",
        "messages",
        "next_due",
        "number",
        "position",
        "seen_due",
        "senders",
        "shares",
        "size_bytes",
        "table",
        "tree",
    )

    def __init__(self, number: int, first_ms: int, end_ms: int, table: RocksTable) -> None:
        self.number = number
        self.first_ms = first_ms
        """The lowest expires_at of the span."""
        self.end_ms = end_ms
        """The first expires_at beyond it."""
        self.table = table
        self.shares: dict[NamespaceId, Share] = {}
        """What it holds, by namespace."""
        self.senders: dict[bytes, int] = {}
        """Messages by sender ‖ namespace."""
        self.tree = MerkleTree()
        """Its content ids."""
        self.messages = 0
        self.size_bytes = 0
        self.blob_bytes = 0
        """Bytes of its messages' blobs; since opening, unless blobs have a bound of their own."""
        self.held = 0
        """Rows of messages that wait for the archive (J8)."""
        self.next_due = first_ms
        """No message expires earlier, save those that wait for the archive."""
        self.position = b""
        """Where the sweep over its times goes on; empty between two sweeps."""
        self.seen_due = NEVER
        """The earliest expires_at that the present sweep has passed over, or that came since."""

    def load(self, *, counts_blobs: bool = False, tree: MerkleTree | None = None) -> None:
        """Sums and tree are those of the rows; ``tree`` is one that was kept.

        Raises:
            StoreError: ``store.corrupt`` or ``store.io``.

        """
        for namespace, value in self.table.scan(b"", b"", layout.SHARES):
            share = layout.decode_share(value)
            self.shares[NamespaceId(namespace)] = share
            self.messages += share.messages
            self.size_bytes += share.size_bytes
        for key, value in self.table.scan(b"", b"", layout.SENDERS):
            self.senders[key] = layout.read_u64(value)
        self.held = sum(1 for _ in self.table.keys(b"", b"", layout.HELD))
        if counts_blobs:
            rows = self.table.scan(b"", b"", layout.HEADERS)
            self.blob_bytes = sum(layout.blob_bytes_of(value) for _, value in rows)
        if tree is not None and len(tree) == self.messages:
            self.tree = tree
        else:
            self.tree = MerkleTree(self.table.keys(b"", b"", layout.CONTENTS))

    def get(self, kind: bytes, key: bytes) -> bytes | None:
        """Return the value of a row, None without one."""
        return self.table.get(kind + key)

    def last_of(self, namespace: NamespaceId) -> int:
        """Return the highest sequence of a namespace here, 0 without one."""
        key = self.table.last_key(namespace, layout.after(namespace), layout.HEADERS)
        return 0 if key is None else layout.split_slot(key)[1]

    def last_thinned(self) -> dict[NamespaceId, int]:
        """Return the highest sequence thinned here, by namespace (J3)."""
        found: dict[NamespaceId, int] = {}
        start = b""
        while slot := next(self.table.keys(start, b"", layout.THINNED), None):
            namespace = layout.split_slot(slot)[0]
            start = layout.after(namespace)
            last = self.table.last_key(namespace, start, layout.THINNED)
            found[namespace] = layout.split_slot(last or slot)[1]
            if not start:
                break
        return found


class Slices:
    """All slices of a store, read as if they were one table."""

    __slots__ = ("_config", "database", "live")

    def __init__(self, database: Database, config: RelayStoreConfig) -> None:
        self.database = database
        """Where everything is."""
        self._config = config
        self.live: tuple[Slice, ...] = ()
        """Those that count, in the order of their spans."""

    @classmethod
    def load(
        cls,
        database: Database,
        config: RelayStoreConfig,
        *,
        trees: Mapping[int, MerkleTree] = _NO_TREES,
        read_only: bool = False,
    ) -> Slices:
        """Return the slices of ``database``; what no slice's row names is dropped.

        Args:
            database: Where they are.
            config: Bounds.
            trees: Trees that were kept, by number of their slice; others are found from the rows.
            read_only: Drop nothing.

        Raises:
            StoreError: ``store.corrupt`` or ``store.io``.

        """
        slices = cls(database, config)
        prefix = layout.SLICE_PREFIX
        found = []
        for key, value in database.scan(layout.META, prefix, layout.after(prefix)):
            number, first_ms, end_ms = layout.decode_span(key, value)
            found.append(Slice(number, first_ms, end_ms, database.table(_name(number))))
            counts_blobs = config.blob_bound() is not None
            found[-1].load(counts_blobs=counts_blobs, tree=trees.get(number))
        slices.live = tuple(sorted(found, key=lambda each: each.first_ms))
        known = {_name(each.number) for each in found}
        for name in database.names if not read_only else ():
            if name.startswith(_NAME) and name not in known:
                database.drop(name)
        return slices

    def at(self, expires_at: int) -> Slice | None:
        """Return the slice whose span has ``expires_at``, None without one."""
        live = self.live
        place = bisect_right(live, expires_at, key=_first_of) - 1
        return live[place] if place >= 0 and expires_at < live[place].end_ms else None

    def of(self, expires_at: int) -> Slice:
        """Return the slice of a message that is held.

        Raises:
            StoreError: ``store.corrupt``: there is none.

        """
        found = self.at(expires_at)
        if found is None:
            raise StoreError(
                "a message's slice is missing", where=str(expires_at), code="store.corrupt"
            )
        return found

    def take(self, expires_at: int) -> Slice:
        """Return the slice for a message that expires then; made when there is none.

        Raises:
            StoreError: ``store.io``; nothing has changed.

        """
        found = self.at(expires_at)
        if found is not None:
            return found
        live = self.live
        place = bisect_right(live, expires_at, key=_first_of)
        width = self._config.slice_width_ms()
        first = max(expires_at // width * width, live[place - 1].end_ms if place else 0)
        end = expires_at // width * width + width
        if place < len(live):
            end = min(end, live[place].first_ms)
        if len(live) >= self._config.slices_max:
            return self._widen(live[place - 1] if place else live[0], first, end)
        number = 1 + max((each.number for each in live), default=0)
        if _name(number) in self.database.names:  # left by a write that failed
            self.database.drop(_name(number))
        made = Slice(number, first, end, self.database.create(_name(number)))
        self._write_span(number, first, end)
        made.next_due = NEVER
        self.live = (*live[:place], made, *live[place:])
        return made

    def retire(self, gone: Slice) -> None:
        """The slice counts no more; whoever reads it may go on."""
        self.live = tuple(each for each in self.live if each is not gone)

    def drop(self, gone: Slice) -> None:
        """A retired slice's files go with its last reader.

        Raises:
            StoreError: ``store.io``; the next opening of the store tries again.

        """
        self.database.drop(_name(gone.number))

    def get(self, kind: bytes, key: bytes) -> bytes | None:
        """Return the value of a row, None without one; the youngest slices are asked first."""
        if kind == layout.HEADERS:
            live = [each for each, _ in self._holding(key, key + b"\x00")]
        else:
            live = list(reversed(self.live))
        for each in live:
            value = each.table.get(kind + key)
            if value is not None:
                return value
        return None

    def scan(self, kind: bytes, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield rows of one kind from ``start`` to below ``stop`` (empty: to the end), in order."""

        def opened(each: Slice) -> Iterator[tuple[bytes, bytes]]:
            return each.table.scan(start, stop, kind)

        def bound(key: bytes) -> tuple[bytes, bytes]:
            return key, b""

        return _merged(self._sources(kind, start, stop), opened, bound)

    def keys(self, kind: bytes, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield the keys that `scan` would yield."""

        def opened(each: Slice) -> Iterator[bytes]:
            return each.table.keys(start, stop, kind)

        return _merged(self._sources(kind, start, stop), opened, bytes)

    def share(self, namespace: NamespaceId) -> Iterable[tuple[Slice, Share]]:
        """Return the slices that hold messages of a namespace, with what they hold."""
        found = ((each, each.shares.get(namespace)) for each in self.live)
        return [(each, share) for each, share in found if share is not None]

    def earliest_without(self, gone: Slice, namespace: NamespaceId) -> int:
        """Return the lowest sequence of a namespace outside of one slice, 0 without one."""
        end = layout.after(namespace)
        sources = (
            each.table.keys(layout.slot_key(namespace, share.first), end, layout.HEADERS)
            for each, share in self.share(namespace)
            if each is not gone
        )
        first = [next(keys, b"") for keys in sources]
        return min((layout.split_slot(key)[1] for key in first if key), default=0)

    def _sources(self, kind: bytes, start: bytes, stop: bytes) -> list[tuple[bytes, Slice]]:
        """Return the slices that may hold such rows, each with the lowest key it may have."""
        if kind == layout.HEADERS and len(start) >= c.NAMESPACE_BYTES:
            namespace = start[: c.NAMESPACE_BYTES]
            end = layout.after(namespace)
            if stop and (not end or stop <= end):
                found = [
                    (max(start, layout.slot_key(namespace, first)), each)
                    for each, first in self._holding(start, stop)
                ]
                return sorted(found, key=lambda pair: pair[0])
        return [(start, each) for each in self.live]

    def _holding(self, start: bytes, stop: bytes) -> list[tuple[Slice, int]]:
        """Return the slices that may hold messages between two keys of one namespace.

        With the lowest sequence that each may have.
        """
        namespace = NamespaceId(start[: c.NAMESPACE_BYTES])
        first = layout.read_u64(start[c.NAMESPACE_BYTES :].ljust(8, b"\x00")[:8])
        last = c.MAX_U64
        if len(stop) >= layout.SLOT_BYTES and stop.startswith(namespace):
            last = layout.split_slot(stop)[1]
        return [
            (each, share.first)
            for each, share in self.share(namespace)
            if share.last >= first <= last >= share.first
        ]

    def _widen(self, chosen: Slice, first_ms: int, end_ms: int) -> Slice:
        """Return ``chosen`` with a span that has the other as well."""
        first_ms, end_ms = min(chosen.first_ms, first_ms), max(chosen.end_ms, end_ms)
        self._write_span(chosen.number, first_ms, end_ms)
        chosen.first_ms, chosen.end_ms = first_ms, end_ms
        return chosen

    def _write_span(self, number: int, first_ms: int, end_ms: int) -> None:
        batch = self.database.batch()
        batch.put(layout.META, layout.slice_key(number), layout.encode_span(first_ms, end_ms))
        self.database.write(batch)


def _name(number: int) -> str:
    return f"{_NAME}{number}"


def _first_of(each: Slice) -> int:
    return each.first_ms


def _merged(
    sources: list[tuple[bytes, Slice]],
    opened: Callable[[Slice], Iterator[_Item]],
    bound: Callable[[bytes], Any],
) -> Iterator[_Item]:
    """Yield the items of all sources in order; a source is opened when its turn may have come."""
    if len(sources) == 1:
        return opened(sources[0][1])
    return _merge(sources, opened, bound)


def _merge(
    sources: list[tuple[bytes, Slice]],
    opened: Callable[[Slice], Iterator[_Item]],
    bound: Callable[[bytes], Any],
) -> Iterator[_Item]:
    heads: list[tuple[_Item, int, Iterator[_Item]]] = []
    waiting = [(bound(key), number, each) for number, (key, each) in enumerate(sources)]
    waiting.reverse()
    while heads or waiting:
        while waiting and (not heads or waiting[-1][0] <= heads[0][0]):
            _, number, each = waiting.pop()
            rows = opened(each)
            first = next(rows, None)
            if first is not None:
                heapq.heappush(heads, (first, number, rows))
        if not heads:
            continue
        item, number, rows = heads[0]
        others = [head[0] for head in heads[1:3]] + [entry[0] for entry in waiting[-1:]]
        limit = min(others, default=None)
        yield item
        for item in rows:
            if limit is not None and item >= limit:
                heapq.heapreplace(heads, (item, number, rows))
                break
            yield item
        else:
            heapq.heappop(heads)
