"""`RelayStore`: the one door to the messages a relay keeps.

Any thread may call any method. Writers take turns; what only reads is in `reading`.

`Recovery`: a store whose disk refused a write takes writes again when there is room.

Theory of operation
-------------------
*Decides* when the database is opened again.
*Machine*: a refused write or sync leaves RocksDB refusing every other one (its background error),
and rocksdict has no way to resume; opening the database again is the only one. The next call that
would write tries it: not more often than every RETRY_S, only when the folder has room for what has
to be written at opening, and alone, so that readers wait for it instead of failing.
*What is then held* is read anew from the database: a batch whose write failed may have reached the
log, and one that was written but not synced may not. Nothing of either kind was acknowledged.
*Until then* reading goes on, and writing fails with what the disk said.
*Bounds*: one attempt every RETRY_S; readers wait for one opening.

`Documents`: small values that other rooms keep beside the messages, such as signed policies.

A mapping of bytes to bytes in the database's own family, so that it needs no file of its own, is
durable when an assignment returns, and comes back with the store. Nothing in it expires.

Source: LP-6421; decisions P1–P45 as cited in the modules below this one; ADR 0006 §7;
docs/explanation/store.md; decisions H19, H20 (policy documents); architecture, rule 4.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from luxrelay.bus import NamespaceId
from luxrelay.bus import constants as c
from luxrelay.bus.finality import FinalityRow
from luxrelay.errors import StoreArgumentError, StoreError
from luxrelay.store import layout
from luxrelay.store.config import Durability, RelayStoreConfig
from luxrelay.store.durability import marks
from luxrelay.store.durability import marks as trees
from luxrelay.store.durability.folder import Folder
from luxrelay.store.durability.marks import Loss, Mark, MarkWriter
from luxrelay.store.durability.sync import CallGate, Durable, PutReceipt
from luxrelay.store.ledger import HitRate, Ledger
from luxrelay.store.maintenance import audit
from luxrelay.store.maintenance.upgrade import open_for_reading, open_for_writing
from luxrelay.store.merkle import MerkleTree
from luxrelay.store.messages import IncomingMessage, PutOutcome, require_ms
from luxrelay.store.namespaces import Equivocation, Lack, check_names
from luxrelay.store.reading.store_reading import StoreReading
from luxrelay.store.retention import Collector, CycleStats
from luxrelay.store.rocks import Database
from luxrelay.store.stats import StoreStats
from luxrelay.store.writing.batch import new_row
from luxrelay.store.writing.writer import Writer

KEY_BYTES_MAX: Final = 128
"""Longest key."""
VALUE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Longest value: 64 policies of the largest size fit."""
DOCUMENTS_MAX: Final = 65_536
"""Most documents in one store."""
_PREFIX: Final = b"document/"


class Documents(MutableMapping[bytes, bytes]):
    """Documents by key; any thread may read and write."""

    def __init__(self, database: Database, gate: CallGate) -> None:
        """Serve the documents of an open database."""
        self._database = database
        self._gate = gate
        self._lock = threading.Lock()
        self._count = sum(1 for _ in self)

    def __getitem__(self, key: bytes) -> bytes:
        """Return a document.

        Raises:
            KeyError: there is none.
            StoreError: the disk refused the read.

        """
        with self._gate.passage():
            value = self._database.get(layout.META, _PREFIX + key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: bytes, value: bytes) -> None:
        """Keep a document; durable when it returns.

        Raises:
            StoreArgumentError: the key or the value is too long.
            StoreError: ``store.full`` beyond `DOCUMENTS_MAX`, or the disk refused the write.

        """
        if not 0 < len(key) <= KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX:
            raise StoreArgumentError(
                f"a key has 1 to {KEY_BYTES_MAX} bytes, a value {VALUE_BYTES_MAX} at most",
                where="Documents",
            )
        with self._lock:
            new = key not in self
            if new and self._count >= DOCUMENTS_MAX:
                raise StoreError(
                    f"the store holds {DOCUMENTS_MAX} documents",
                    where="documents",
                    code="store.full",
                )
            with self._gate.passage():
                batch = self._database.batch()
                batch.put(layout.META, _PREFIX + key, value)
                self._database.write(batch)
                self._database.sync()
            self._count += new

    def __delitem__(self, key: bytes) -> None:
        """Forget a document; durable when it returns.

        Raises:
            KeyError: there is none.
            StoreError: the disk refused the write.

        """
        with self._lock:
            if key not in self:
                raise KeyError(key)
            with self._gate.passage():
                batch = self._database.batch()
                batch.delete(layout.META, _PREFIX + key)
                self._database.write(batch)
                self._database.sync()
            self._count -= 1

    def __iter__(self) -> Iterator[bytes]:
        """Yield the keys in order."""
        with self._gate.passage():
            found = list(self._database.keys(layout.META, _PREFIX, layout.after(_PREFIX)))
        for key in found:
            yield key[len(_PREFIX) :]

    def __len__(self) -> int:
        """Return how many documents there are."""
        return self._count


RETRY_S: Final = 1.0
"""Time between two attempts."""
ROOM_BYTES_MIN: Final = 4 * 1024 * 1024
"""Free space beyond twice the size of the log, which is written to table files at opening."""


class Recovery:
    """Opens a database again after a failure, at the right moment."""

    def __init__(
        self,
        database: Database,
        gate: CallGate,
        *,
        release: Callable[[], None],
        attach: Callable[[], None],
    ) -> None:
        """Call ``release`` before each opening, and ``attach`` after it, to read it all anew."""
        self._database = database
        self._gate = gate
        self._release = release
        self._attach = attach
        self._turn = threading.Lock()
        self._next = 0.0
        self.recovered = 0
        """Times the database was opened again."""

    def try_again(self) -> None:
        """The database takes writes again, if it had stopped to and its disk has room.

        Called outside the gate, before a call that writes.

        Raises:
            StoreError: it cannot be opened; it is open for reading.

        """
        if not self._database.failed:
            return
        with self._turn:
            now = time.monotonic()
            if now < self._next or not self._is_due():
                return
            self._next = now + RETRY_S
            with self._gate.alone():
                self._release()
                try:
                    self._database.reopen()
                finally:
                    self._attach()
                self.recovered += 1

    def _is_due(self) -> bool:
        """Return True when nobody else has done it and there is room."""
        if not self._database.failed:
            return False
        folder = self._database.path
        try:
            log = sum(each.stat().st_size for each in folder.glob("*.log"))
            free = os.statvfs(folder)
        except OSError as error:
            raise StoreError(
                f"the data folder cannot be read: {error.strerror}", where=str(folder)
            ) from error
        return free.f_bavail * free.f_frsize >= 2 * log + ROOM_BYTES_MIN


class RelayStore(StoreReading):
    """Messages by namespace and sequence, with everything needed to find and to forget them."""

    def __init__(
        self,
        folder: Folder,
        database: Database,
        config: RelayStoreConfig,
        *,
        now_ms: int,
        mark: Mark | Loss | None = None,
        read_only: bool = False,
    ) -> None:
        """Serve an open database; use `open` or `open_read_only`."""
        self.config = config
        self._folder = folder
        self._database = database
        self._opened_at = now_ms
        self._read_only = read_only
        self._gate = CallGate()
        found = trees.kept(folder.path, database)
        if not read_only:
            trees.forget(folder.path)
        self._attach(found)
        self.documents = Documents(database, self._gate)
        self._recovery = Recovery(database, self._gate, release=self._release, attach=self._attach)
        self.loss = marks.compare(mark, database.sequence(), self._ledger)
        """What was there and is not, noticed when the store was opened; None for nothing."""
        self._marker = None if read_only else self._start_marker()
        self._rate = HitRate()
        self._rate_lock = threading.Lock()

    def _start_marker(self) -> MarkWriter:
        marker = MarkWriter(self._folder.path, self.config.mark_interval_ms / 1000, self._take_mark)
        marker.after = self._sync_marked
        return marker

    def _take_mark(self) -> Mark:
        with self._gate.passage(), self._writer.lock:
            return self._writer.recent.mark(self._database.sequence(), self._ledger)

    def _sync_marked(self) -> None:
        """What a mark promises is on the disk: with ``os`` nobody else sees to it."""
        if self.config.durability is Durability.OS:
            with self._gate.passage():
                self._durable.sync()

    def _touch(self) -> None:
        if self._marker is not None:
            self._marker.touch()

    def _release(self) -> None:
        """Nothing works on the database."""
        self._durable.abandon()

    def _attach(self, found: Mapping[int, MerkleTree] | None = None) -> None:
        """Everything in memory is what the database holds; the counters go on."""
        before: Writer | None = getattr(self, "_writer", None)
        read_only = self._read_only or self._database.failed
        self._ledger = Ledger.load(self._database, self.config, trees=found, read_only=read_only)
        interval_s = self.config.group_interval_ms / 1000
        self._durable = Durable(self._database, self.config.durability, interval_s)
        self._writer = Writer(self._database, self._ledger, self.config, self._durable)
        self._writer.read_only = self._read_only
        if before is None:
            self._collector = Collector(self._writer, self.config)
        else:
            self._writer.go_on_from(before)
            self._collector.serve(self._writer)

    @classmethod
    def open(
        cls,
        path: Path,
        config: RelayStoreConfig | None = None,
        *,
        now_ms: int,
        now: float | None = None,
    ) -> RelayStore:
        """Return the store in ``path``, created when the folder is missing or empty.

        Args:
            path: A folder that is ours alone.
            config: Bounds and choices; the defaults without one.
            now_ms: Wall clock, Unix milliseconds.
            now: Monotonic clock, seconds, read with ``now_ms``: a jump before the first deletion
                cycle is seen then (P43). None compares from the first cycle on.

        Raises:
            StoreError: ``store.foreign``, ``store.version``, ``store.locked``, ``store.corrupt``
                or ``store.io``. A folder that is not ours, or not free, is as it was.
            StoreArgumentError: ``now_ms`` looks like seconds (P8).

        """
        require_ms("now_ms", now_ms)
        config = config or RelayStoreConfig()
        mark = marks.read(Path(path))
        folder, database = open_for_writing(Path(path), config)
        return cls._serve(folder, database, config, now_ms, mark, now=now)

    @classmethod
    def open_read_only(
        cls, path: Path, config: RelayStoreConfig | None = None, *, now_ms: int
    ) -> RelayStore:
        """Return the store in ``path`` as it is now, also while a node runs on it.

        For tools: every reading call works, a changing one raises StoreArgumentError, later writes
        of the node are not seen, and nothing in the folder changes.

        Raises:
            StoreError: ``store.foreign``, ``store.version`` (an older layout is upgraded by opening
                it for writing), ``store.corrupt`` or ``store.io``.
            StoreArgumentError: ``now_ms`` looks like seconds (P8).

        """
        require_ms("now_ms", now_ms)
        config = replace(config or RelayStoreConfig(), durability=Durability.OS)
        mark = marks.read(Path(path))
        folder, database = open_for_reading(Path(path), config)
        return cls._serve(folder, database, config, now_ms, mark, read_only=True)

    @classmethod
    def _serve(
        cls,
        folder: Folder,
        database: Database,
        config: RelayStoreConfig,
        now_ms: int,
        mark: Mark | Loss | None,
        *,
        now: float | None = None,
        read_only: bool = False,
    ) -> Self:
        try:
            store = cls(folder, database, config, now_ms=now_ms, mark=mark, read_only=read_only)
            if now is not None:
                store._collector.compare_from(now_ms, now)
        except BaseException:
            database.close()
            folder.release()
            raise
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def put_many(self, messages: Sequence[IncomingMessage], now_ms: int) -> list[PutOutcome]:
        """Every message is decided, and what is STORED or DUPLICATE is durable.

        Messages go in atomic batches of group_messages_max and group_bytes_max: a message has all
        its rows or none. With durability ``os`` the batch is in the operating system's hands only;
        with ``group`` the call syncs for everybody who has written by then, as with ``fsync``.

        Args:
            messages: Validated messages in any order; one batch is far cheaper than many.
            now_ms: Wall clock, Unix milliseconds.

        Returns:
            One outcome a message, in order.

        Raises:
            StoreError: ``store.io`` or ``store.closed``: nothing may be acknowledged, though
                earlier groups may have been stored; putting them again is harmless.
            StoreArgumentError: ``now_ms`` looks like seconds (P8).

        Source: LP-6421 §3.2; P3, P9, P14, P27, J11.

        """
        require_ms("now_ms", now_ms)
        self._recovery.try_again()
        with self._gate.passage():
            outcomes = self._writer.put(messages, now_ms)
            self._make_durable()
        return outcomes

    def why_full(self, message: IncomingMessage) -> str:
        """Return what a message that is FULL finds no room in, with numbers (P1, P2)."""
        row = new_row(message, 0, self.config.inline_blob_bytes_max)
        size_bytes = layout.charge_bytes(row)
        return self._ledger.why_full(message.header.namespace_id, message.parent, size_bytes)

    def put(self, messages: Sequence[IncomingMessage], now_ms: int) -> PutReceipt:
        """Every message is decided and written; the receipt says when it is durable.

        As `put_many`, without the wait: for callers that go on meanwhile, with ``group``. Nothing
        may be acknowledged before ``receipt.durable`` is True.

        Source: P3.
        """
        require_ms("now_ms", now_ms)
        self._recovery.try_again()
        with self._gate.passage():
            outcomes = self._writer.put(messages, now_ms)
            self._touch()
            return PutReceipt(outcomes, self._durable, self._durable.ticket())

    def skip_to(self, namespace_id: NamespaceId, parent: NamespaceId, seq: int) -> None:
        """Nothing up to ``seq`` is expected any more, durably; the contiguous head may move.

        For what is gone everywhere: the caller has asked whoever might have it.

        Raises:
            StoreError: ``store.full`` when one namespace more is too many; ``store.io``.

        Source: P25.

        """
        check_names(namespace_id, parent, where="skip_to")
        if not 0 < seq <= c.MAX_U64:
            raise StoreArgumentError("seq must be from 1 to 2^64-1", where="skip_to")
        self._recovery.try_again()
        with self._gate.passage():
            self._writer.skip_to(namespace_id, parent, seq)
            self._make_durable()

    def apply_finality(
        self, rows: Sequence[FinalityRow], heads: Mapping[NamespaceId, int]
    ) -> list[FinalityRow]:
        """The messages named have the states said, durably; a slot keeps its FINALIZED one alone.

        The other candidates of such a slot go in the same batch, and none is stored any more. A
        statement twice changes nothing. A put waits for gc_chunk_size statements at most.

        Args:
            rows: What the oracle said, the oldest first.
            heads: Highest finalized sequence of each namespace in ``rows`` as the oracle has it
                now; `head` shows it from here on.

        Returns:
            Statements on messages that are not here and may come: say them again later. Until
            then their slots keep what they hold.

        Raises:
            StoreError: ``store.io`` or ``store.closed``; saying all of it again is harmless.

        Source: P40, J9.

        """
        self._recovery.try_again()
        with self._gate.passage():
            waiting = self._writer.apply_finality(rows, heads)
            self._make_durable()
        return waiting

    def set_watermark(self, namespace_id: NamespaceId, parent: NamespaceId, seq: int) -> None:
        """An archive reads the namespace and has come to ``seq``, durably; never back.

        From the first call on, what is past its TTL stays until the watermark has passed it, for
        the archive alone (`NamespaceQuery.held`) and no longer than the retention window. Lanes of
        the namespace are handed off as well, each with a watermark of its own that begins at 0.
        A full quota or store still forgets what is unread, and counts it.

        Args:
            namespace_id: The namespace.
            parent: The namespace it is a lane of, or itself (J6).
            seq: The highest sequence read, 0 before the first; a lower one changes nothing.

        Raises:
            StoreError: ``store.full`` when one namespace more is too many; ``store.io``.

        Source: J8, P42.

        """
        check_names(namespace_id, parent, where="set_watermark")
        if not 0 <= seq <= c.MAX_U64:
            raise StoreArgumentError("seq must be a u64", where="set_watermark")
        self._recovery.try_again()
        with self._gate.passage():
            self._writer.hand_off(namespace_id, parent, seq)
            self._make_durable()

    def drop_watermark(self, namespace_id: NamespaceId) -> None:
        """No archive reads the namespace any more, durably; what waited for it goes.

        Source: J8.
        """
        self._recovery.try_again()
        with self._gate.passage():
            state = self._ledger.states.get(namespace_id)
            if state is not None and state.watermark is not None:
                self._writer.hand_off(namespace_id, state.parent, None)
                self._make_durable()

    def expire(self, now_ms: int, now: float | None = None) -> CycleStats:
        """Every expired message is gone whole, or gc_batch_limit messages are.

        What was full since the last cycle is then at its low-water mark. A put that comes meanwhile
        waits for one chunk at most.

        Args:
            now_ms: Wall clock, Unix milliseconds.
            now: Monotonic clock, seconds: a wall clock that jumped against it since the last cycle
                deletes nothing (P43). None believes ``now_ms``, as a person at a command does.

        Source: retention document, "GC Cycle"; P12, P13, P14, P43.

        """
        require_ms("now_ms", now_ms)
        self._recovery.try_again()
        with self._gate.passage():
            self._touch()
            return self._collector.cycle(now_ms, now)

    def verify(self) -> list[str]:
        """Return one line for each row without its message and the reverse; empty when sound.

        Reads everything; puts wait meanwhile. Stops after findings_max lines.

        Source: P9.
        """
        with self._gate.passage(), self._writer.lock:
            found = audit.findings(self._database, self._ledger)
            return list(islice(found, self.config.findings_max))

    def equivocations(self) -> list[Equivocation]:
        """Return the newest equivocations since `open`, with both headers as evidence (H17)."""
        with self._gate.passage(), self._writer.lock:
            return list(self._writer.evidence)

    def stats(self) -> StoreStats:
        """Return sizes and counters; cheap enough for every scrape."""
        with self._gate.passage():
            oldest = next(self._ledger.slices.keys(layout.TIMES, b"", b""), None)
        counters = self._writer.counters
        return StoreStats(
            messages=self._ledger.messages,
            namespaces=len(self._ledger.states),
            size_bytes=self._ledger.size_bytes,
            max_storage_bytes=self.config.max_storage_bytes,
            oldest_timestamp=0 if oldest is None else layout.read_u64(oldest),
            opened_at=self._opened_at,
            outcomes={outcome: counters.outcomes[outcome] for outcome in PutOutcome},
            equivocations=counters.equivocations,
            removed=counters.removed,
            evicted={lack: counters.evicted[lack] for lack in Lack},
            refused={lack: counters.refused[lack] for lack in Lack},
            unread_evicted=counters.unread,
            thinned=counters.thinned,
            superseded=counters.superseded,
            blobs_dropped=counters.blobs_dropped,
            blob_bytes=sum(each.blob_bytes for each in tuple(self._ledger.slices.live)),
            held=self._ledger.held,
            handoffs=sum(state.watermark is not None for state in [*self._ledger.states.values()]),
            hot_messages=len(self._ledger.hot),
            hot_bytes=self._ledger.hot.size_bytes,
            hot_hits=self._rate.hits,
            hot_misses=self._rate.misses,
            hit_rate=self._rate.ratio(),
            gc=self._collector.stats(),
            batches=counters.batches,
            syncs=self._durable.syncs,
            recovered=self._recovery.recovered,
        )

    def _make_durable(self) -> None:
        """Everything written before the call is as durable as the configuration promises."""
        self._touch()
        self._durable.wait(self._durable.ticket())

    def close(self) -> None:
        """Calls that were running have ended, everything is on the disk, the folder is free.

        A second call does nothing.
        """
        if self._marker is not None:
            self._marker.close()
        if not self._gate.shut():
            return
        try:
            if not self._writer.read_only:
                self._durable.close()
                sequence = self._database.sequence()
                last = self._writer.recent.mark(sequence, self._ledger, clean=True)
                marks.write(self._folder.path, last)
                live = self._ledger.slices.live
                trees.keep(
                    self._folder.path, self._database, ((each.number, each.tree) for each in live)
                )
        finally:
            try:
                self._database.close()
            finally:
                self._folder.release()
