"""Eviction: which messages go when a quota or the store is full, and which have expired.

Theory of operation
-------------------
*Decides* which message keys a writer forgets next; always the oldest of whoever pays, whole.
*Does not know* locks or batches; the writer asks for one run of victims under its lock and commits
them as one batch.
*Order* (P13): what has expired; then accounts above their quota; then the oldest of the store. A
full quota asks its own account only, so nobody else loses a message to it.
*A message older than all that would make room for it* is refused: it would be the next to go.
*Under pressure* a put makes room for itself by runs of victims; the deletion cycle goes on down
to the low-water mark of everything that was full since.
*Bounds*: gc_chunk_size victims a run.
*What else to change when you change this*: `quota`, `retention`, docs/explanation/store.md.

`Sweep`: which messages of one slice have expired; a chunk at a time.

A slice has no order by expiry, so its times are read from the first to the last, and the sweep
remembers the earliest expiry that it passed over, or that came meanwhile: until then the slice
need not be looked at again. A chunk is bounded in messages found and in rows looked at, because the
writer waits for it.

Source: LP-6421 §1.3; ADR 0006 §1; decisions P1, P2, P13, J8, P12, P14.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from luxrelay.bus import MsgHeader, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig, WhenFull
from luxrelay.store.ledger import Ledger
from luxrelay.store.namespaces import Lack, Shortage, low_water
from luxrelay.store.slices import NEVER, Slice, Slices

ROWS_PER_MESSAGE: Final = 8
"""Rows that a chunk may look at for each message it may find."""


class Sweep:
    """One step over a slice's times; the slice remembers where the next begins."""

    __slots__ = ("_earliest", "_last", "_limit", "_now_ms", "_where")

    def __init__(self, where: Slice, now_ms: int, limit: int) -> None:
        self._where = where
        self._now_ms = now_ms
        self._limit = limit
        self._last: bytes | None = None
        self._earliest = NEVER

    def chunk(self) -> list[bytes]:
        """Return the keys of up to ``limit`` messages that are due."""
        where = self._where
        if not where.position:
            where.seen_due = NEVER
        found: list[bytes] = []
        rows = where.table.scan(where.position, b"", layout.TIMES)
        for looked_at, (key, value) in enumerate(rows):
            if looked_at == ROWS_PER_MESSAGE * self._limit or len(found) == self._limit:
                return found
            expires_at = layout.read_u64(value)
            if expires_at <= self._now_ms:
                found.append(key[8:])
            else:
                self._earliest = min(self._earliest, expires_at)
            self._last = key
        self._last = None
        return found

    def passed(self) -> None:
        """What the chunk found has been dealt with: the next one goes on after it."""
        where = self._where
        where.seen_due = min(where.seen_due, self._earliest)
        if self._last is not None:
            where.position = self._last + b"\x00"
        else:
            where.position = b""
            where.next_due = where.seen_due


class Evictor:
    """Names the messages that make room; forget them before asking again."""

    __slots__ = ("_config", "_ledger", "_pressed", "_slices", "_store_pressed")

    def __init__(self, ledger: Ledger, config: RelayStoreConfig) -> None:
        self._slices: Slices = ledger.slices
        self._ledger = ledger
        self._config = config
        self._pressed: set[NamespaceId] = set()
        self._store_pressed = ledger.size_bytes > config.max_storage_bytes

    def victims_for(self, shortage: Shortage, header: MsgHeader) -> list[bytes]:
        """Return messages to forget so that ``header`` may fit; none when it must not."""
        if shortage.lack is Lack.ACCOUNT:
            self._pressed.add(shortage.account)
            return self._of_account(shortage.account, header, self._config.gc_chunk_size)
        if shortage.lack is not Lack.STORE:
            return []
        self._store_pressed = True
        over = self._ledger.quotas.over()
        if over is not None:
            return self._of_account(over, None, self._config.gc_chunk_size)
        return self._of_store(header, self._config.gc_chunk_size)

    def victims_of_pressure(self, limit: int) -> tuple[list[bytes], Lack]:
        """Return up to ``limit`` messages that still stand above a low-water mark, and whose."""
        if self._config.when_full is WhenFull.REFUSE:
            return [], Lack.STORE
        over = self._ledger.quotas.over()
        if over is not None:
            self._pressed.add(over)
        while self._pressed:
            account = min(self._pressed)
            found = self._of_account(account, None, limit)
            if found:
                return found, Lack.ACCOUNT
            self._pressed.discard(account)
        if self._store_pressed:
            found = self._of_store(None, limit)
            if found:
                return found, Lack.STORE
            self._store_pressed = False
        return [], Lack.STORE

    def past(self, now_ms: int) -> Iterator[Slice]:
        """Yield the slices whose whole span has expired, oldest first."""
        return (each for each in self._slices.live if each.end_ms <= now_ms + 1)

    def due(self, now_ms: int) -> Slice | None:
        """Return the first slice that may have expired messages to sweep, None without one."""
        return next((each for each in self._slices.live if each.next_due <= now_ms), None)

    def aged(self, cutoff_ms: int) -> Iterator[bytes]:
        """Yield the rows of ``times`` up to the cut-off, oldest first.

        What is there has expired as well, unless the window was made shorter since it came.
        """
        start = min(self._ledger.time_hint, c.MAX_U64)
        return self._slices.keys(layout.TIMES, layout.u64(start), layout.u64(cutoff_ms + 1))

    def released(self) -> Iterator[bytes]:
        """Yield the keys of messages that waited for the archive and were read by it (J8)."""
        for namespace in sorted(self._ledger.holding):
            watermark = self._ledger.watermark(self._ledger.states[namespace])
            end = layout.after(namespace)
            if watermark is not None and watermark < c.MAX_U64:
                stop = layout.slot_key(namespace, watermark + 1)
            else:
                stop = end
            yield from self._slices.keys(layout.HELD, namespace, stop)
            if next(self._slices.keys(layout.HELD, namespace, end), None) is None:
                self._ledger.holding.discard(namespace)

    def _of_account(
        self, account: NamespaceId, header: MsgHeader | None, limit: int
    ) -> list[bytes]:
        """Return the oldest of the account's payer, towards the account's low-water mark."""
        payment = self._ledger.quotas.payment(account)
        if payment is None:
            # Below the mark, and still no room: the message is larger than what lies between.
            payer, needed = self._ledger.quotas.largest(account), 1
            if header is None or payer is None:
                return []
        else:
            payer, needed = payment
        state = self._ledger.states[payer]
        if header is not None and payer == header.namespace_id and header.seq <= state.earliest:
            return []
        start = layout.slot_key(payer, state.earliest)
        rows = self._slices.scan(layout.HEADERS, start, layout.after(payer))
        return _take(rows, needed, limit)

    def _of_store(self, header: MsgHeader | None, limit: int) -> list[bytes]:
        """Return the oldest messages of the store, towards its low-water mark."""
        needed = self._ledger.size_bytes - low_water(self._config.max_storage_bytes)
        if needed <= 0 and header is None:
            return []
        keys = self._oldest()
        first = next(keys, None)
        if first is None:
            return []
        self._ledger.time_hint = layout.read_u64(first)
        if header is not None and header.timestamp < self._ledger.time_hint:
            return []
        return _take(self._with_values([first, *islice(keys, limit - 1)]), needed, limit)

    def _oldest(self) -> Iterator[bytes]:
        start = layout.u64(min(self._ledger.time_hint, c.MAX_U64))
        return self._slices.keys(layout.TIMES, start, b"")

    def _with_values(self, index_keys: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
        for index_key in index_keys:
            key = index_key[8:]
            value = self._slices.get(layout.HEADERS, key)
            if value is not None:
                yield key, value


def _take(rows: Iterator[tuple[bytes, bytes]], needed: int, limit: int) -> list[bytes]:
    """Return keys from the front until their messages add up to ``needed`` bytes."""
    taken: list[bytes] = []
    for key, value in islice(rows, limit):
        taken.append(key)
        needed -= layout.charge_bytes(layout.decode_row(value))
        if needed <= 0:
            break
    return taken
