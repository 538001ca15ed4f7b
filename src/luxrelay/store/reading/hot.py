"""`HotCache`: the newest messages in memory, in front of the database. Pure.

Theory of operation
-------------------
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

Source: LP-6421 §1.1, §8; decisions P3, P4, P30, P45; 21-02.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig

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
