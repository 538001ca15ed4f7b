"""`Sweep`: which messages of one slice have expired; a chunk at a time.

A slice has no order by expiry, so its times are read from the first to the last, and the sweep
remembers the earliest expiry that it passed over, or that came meanwhile: until then the slice
need not be looked at again. A chunk is bounded in messages found and in rows looked at, because the
writer waits for it.

Source: decisions P12, P14; ADR 0006 §1.
"""

from __future__ import annotations

from typing import Final

from luxrelay.store import layout
from luxrelay.store.slices import NEVER, Slice

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
