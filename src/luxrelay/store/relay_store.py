"""`RelayStore`: the one door to the messages a relay keeps.

Any thread may call any method. Writers take turns; readers see RocksDB's snapshot of the moment
and wait for nobody.

Source: LP-6421; decisions P1–P45 as cited in the modules below this one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from luxrelay.bus import ContentId, MessageId, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import StoreArgumentError, StoreError
from luxrelay.store import audit, layout
from luxrelay.store.blobs import read_blob
from luxrelay.store.config import RelayStoreConfig, require_ms
from luxrelay.store.folder import Folder
from luxrelay.store.ledger import Ledger, read_heads
from luxrelay.store.messages import IncomingMessage, PutOutcome, StoredMessage
from luxrelay.store.namespaces import NamespaceHead
from luxrelay.store.query import NamespaceQuery, QueryPage, read_messages, read_page
from luxrelay.store.retention import CycleStats, run_cycle
from luxrelay.store.rocks import Database
from luxrelay.store.writer import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """What the store holds, and what it has done since it was opened."""

    messages: int
    """Messages held, expired ones that await the deletion cycle included."""
    namespaces: int
    """Namespaces known."""
    size_bytes: int
    """Logical bytes of all messages, index rows included."""
    max_storage_bytes: int
    """The bound on ``size_bytes``."""
    oldest_timestamp: int
    """Timestamp of the oldest message, milliseconds; 0 without one (P15)."""
    opened_at: int
    """``now_ms`` of `open`."""
    outcomes: dict[PutOutcome, int]
    """Messages put, by outcome."""
    equivocations: int
    """Times a sender brought a second content for a slot (H17)."""
    removed: int
    """Messages the deletion cycle removed."""
    batches: int
    """Atomic batches written."""
    syncs: int
    """Times the log was synced to the disk."""


class RelayStore:
    """Messages by namespace and sequence, with everything needed to find and to forget them."""

    def __init__(
        self, folder: Folder, database: Database, config: RelayStoreConfig, *, now_ms: int
    ) -> None:
        """Serve an open database; use `open`."""
        self.config = config
        self._folder = folder
        self._database = database
        self._opened_at = now_ms
        self._ledger = Ledger.load(database)
        self._writer = Writer(database, self._ledger, config)
        self._gate = _Gate()

    @classmethod
    def open(cls, path: Path, config: RelayStoreConfig | None = None, *, now_ms: int) -> RelayStore:
        """Return the store in ``path``, created when the folder is missing or empty.

        Args:
            path: A folder that is ours alone.
            config: Bounds and choices; the defaults without one.
            now_ms: Wall clock, Unix milliseconds.

        Raises:
            StoreError: ``store.foreign``, ``store.version``, ``store.locked``, ``store.corrupt``
                or ``store.io``. A folder that is not ours, or not free, is as it was.
            StoreArgumentError: ``now_ms`` looks like seconds (P8).

        """
        require_ms("now_ms", now_ms)
        config = config or RelayStoreConfig()
        folder = Folder.claim(Path(path), layout.LAYOUT_VERSION)
        try:
            database = Database.open(
                folder.database,
                layout.FAMILIES,
                point_families=layout.POINT_FAMILIES,
                write_buffer_bytes=config.write_buffer_bytes,
                block_cache_bytes=config.block_cache_bytes,
            )
            try:
                _check_version(database)
                return cls(folder, database, config, now_ms=now_ms)
            except BaseException:
                database.close()
                raise
        except BaseException:
            folder.release()
            raise

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
        its rows or none. With durability ``os`` the batch is in the operating system's hands only.

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
        with self._gate.passage():
            outcomes = self._writer.put(messages, now_ms)
            self._writer.make_durable()
        return outcomes

    def query(self, query: NamespaceQuery, now_ms: int) -> QueryPage:
        """Return one page of a namespace, ascending by sequence.

        Raises:
            StoreArgumentError: the query is out of range.
            StoreError: ``store.io``, ``store.corrupt`` or ``store.closed``.

        Source: LP-6421 §4.1; P7, P18–P21, P23.

        """
        require_ms("now_ms", now_ms)
        with self._gate.passage():
            state = self._ledger.states.get(query.namespace_id)
            return read_page(self._database, state, self.config, query, now_ms)

    def get_messages(
        self, ids: Sequence[MessageId], now_ms: int
    ) -> tuple[list[StoredMessage], list[MessageId]]:
        """Return the messages of the slots named, every candidate, and the ids without any.

        An id in neither answer did not fit into page_bytes_max: ask for it again.

        Raises:
            StoreArgumentError: more than ids_max ids, or one that has not 32 bytes.
            StoreError: ``store.io``, ``store.corrupt`` or ``store.closed``.

        Source: LP-6421 §2.2; P10, P22.

        """
        require_ms("now_ms", now_ms)
        with self._gate.passage():
            return read_messages(self._database, self.config, ids, now_ms)

    def get_blob(self, commitment: bytes, now_ms: int = 0) -> bytes | None:
        """Return the blob committed to, None when no message here holds it.

        Args:
            commitment: 32 bytes.
            now_ms: Pass over messages expired by then; 0 for any.

        Source: LP-6421 §5.2.

        """
        if len(commitment) != c.HASH_BYTES:
            raise StoreArgumentError("a commitment has 32 bytes", where="get_blob")
        with self._gate.passage():
            return read_blob(self._database, commitment, now_ms)

    def has(self, content_id: ContentId) -> bool:
        """Return True when a message with this content is held (J11)."""
        with self._gate.passage():
            return self._database.get(layout.CONTENTS, content_id) is not None

    def head(self, namespace_id: NamespaceId) -> NamespaceHead:
        """Return how far a namespace reaches; zeros for an unknown one.

        Source: LP-6421 §2.2; P22, P25.
        """
        with self._gate.passage():
            return self._ledger.head(namespace_id)

    def heads(
        self, parent: NamespaceId | None, cursor: bytes, limit: int
    ) -> tuple[list[NamespaceHead], bytes]:
        """Return heads of a parent and its lanes, or of all namespaces, ordered by id.

        Args:
            parent: The parent; None for every namespace.
            cursor: Empty, or what the previous call gave.
            limit: 1 to heads_max; 0 and more than that mean heads_max.

        Returns:
            The heads and the next cursor, empty at the end.

        Source: J6.

        """
        if len(cursor) not in (0, c.NAMESPACE_BYTES) or limit < 0:
            raise StoreArgumentError("the cursor or limit is out of range", where="heads")
        if parent is not None and len(parent) != c.NAMESPACE_BYTES:
            raise StoreArgumentError("a parent has 20 bytes", where="heads")
        bound = min(limit or self.config.heads_max, self.config.heads_max)
        with self._gate.passage():
            return read_heads(self._database, self._ledger, parent, cursor, bound)

    def gaps(self, namespace_id: NamespaceId, limit: int = 0) -> list[tuple[int, int]]:
        """Return the lowest missing ``[first, last]`` between floor and latest sequence.

        Args:
            namespace_id: The namespace; an unknown one has no gaps.
            limit: 1 to gaps_max; 0 and more than that mean gaps_max.

        Source: P25.

        """
        if limit < 0:
            raise StoreArgumentError("limit is negative", where="gaps")
        bound = min(limit or self.config.gaps_max, self.config.gaps_max)
        with self._gate.passage():
            state = self._ledger.states.get(namespace_id)
            return [] if state is None else state.gaps(1, state.latest, bound)

    def skip_to(self, namespace_id: NamespaceId, parent: NamespaceId, seq: int) -> None:
        """Nothing up to ``seq`` is expected any more, durably; the contiguous head may move.

        For what is gone everywhere: the caller has asked whoever might have it.

        Raises:
            StoreError: ``store.full`` when one namespace more is too many; ``store.io``.

        Source: P25.

        """
        if len(namespace_id) != c.NAMESPACE_BYTES or len(parent) != c.NAMESPACE_BYTES:
            raise StoreArgumentError("a namespace has 20 bytes", where="skip_to")
        if not 0 < seq <= c.MAX_U64:
            raise StoreArgumentError("seq must be from 1 to 2^64-1", where="skip_to")
        with self._gate.passage():
            self._writer.skip_to(namespace_id, parent, seq)
            self._writer.make_durable()

    def expire(self, now_ms: int) -> CycleStats:
        """Every expired message is gone whole, or gc_batch_limit of them are.

        Source: retention document, "GC Cycle"; P12, P14.
        """
        require_ms("now_ms", now_ms)
        with self._gate.passage():
            return run_cycle(self._writer, self.config, now_ms)

    def verify(self) -> list[str]:
        """Return one line for each row without its message and the reverse; empty when sound.

        Reads everything; puts wait meanwhile. Stops after findings_max lines.

        Source: P9.
        """
        with self._gate.passage(), self._writer.lock:
            found = audit.findings(self._database, self._ledger)
            return list(islice(found, self.config.findings_max))

    def stats(self) -> StoreStats:
        """Return sizes and counters; cheap enough for every scrape."""
        with self._gate.passage():
            oldest = next(self._database.keys(layout.TIMES, b"", b""), None)
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
            batches=counters.batches,
            syncs=counters.syncs,
        )

    def close(self) -> None:
        """Calls that were running have ended, everything is on the disk, the folder is free.

        A second call does nothing.
        """
        if not self._gate.shut():
            return
        try:
            self._database.sync()
        finally:
            try:
                self._database.close()
            finally:
                self._folder.release()


class _Gate:
    """Lets calls through until it is shut; shutting waits for those inside."""

    __slots__ = ("_inside", "_open", "_state")

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._inside = 0
        self._open = True

    @contextmanager
    def passage(self) -> Iterator[None]:
        with self._state:
            if not self._open:
                raise StoreError("the store is closed", code="store.closed")
            self._inside += 1
        try:
            yield
        finally:
            with self._state:
                self._inside -= 1
                if not self._inside:
                    self._state.notify_all()

    def shut(self) -> bool:
        """Return True when this call shut the gate; nobody is inside then."""
        with self._state:
            if not self._open:
                return False
            self._open = False
            while self._inside:
                self._state.wait()
        return True


def _check_version(database: Database) -> None:
    """The version row says a layout we know; a new database gets one.

    Raises:
        StoreError: ``store.version`` or ``store.corrupt``.

    """
    value = database.get(layout.META, layout.VERSION_KEY)
    if value is None:
        if next(database.keys(layout.NAMESPACES, b"", b""), None) is not None:
            raise StoreError("the version row is missing", code="store.corrupt")
        batch = database.batch()
        batch.put(layout.META, layout.VERSION_KEY, layout.encode_version())
        database.write(batch)
        database.sync()
    elif layout.decode_version(value) > layout.LAYOUT_VERSION:
        raise StoreError(
            f"the store has layout {layout.decode_version(value)}, "
            f"this version knows {layout.LAYOUT_VERSION}",
            code="store.version",
        )
