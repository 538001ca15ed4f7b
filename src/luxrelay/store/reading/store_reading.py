"""`StoreReading`: every call of a store that changes nothing.

Any thread may call any method and waits for nobody: a reader sees RocksDB's snapshot of the moment,
and the ledger's states as the last group left them.

Source: LP-6421 §2.2, §4, §5.2; decisions as cited in the modules below this one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from luxrelay.bus import ContentId, MessageId, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import StoreArgumentError
from luxrelay.store import layout
from luxrelay.store.blobs import holds_blob, holds_sidecar, read_blob
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.durability.sync import CallGate
from luxrelay.store.ledger import HitRate, Ledger, read_heads
from luxrelay.store.merkle import root_of
from luxrelay.store.messages import StoredMessage, require_ms
from luxrelay.store.namespaces import NamespaceHead
from luxrelay.store.reading.indexes import (
    BucketQuery,
    IndexPage,
    SenderQuery,
    Stamps,
    TimeQuery,
    gather,
    read_bucket_ids,
    read_by_sender,
    read_by_time,
    read_contents,
)
from luxrelay.store.reading.query import (
    NamespaceQuery,
    QueryPage,
    mark_regressed,
    read_messages,
    read_page,
    read_predecessor,
    slot_holders,
)
from luxrelay.store.rocks import Database


class StoreReading:
    """Queries by namespace, time, sender, id and content; heads, gaps, sets."""

    config: RelayStoreConfig
    _database: Database
    _gate: CallGate
    _ledger: Ledger
    _rate: HitRate
    _rate_lock: threading.Lock

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
            return read_page(self._ledger.slices, state, self.config, query, now_ms)

    def query_time(self, query: TimeQuery, now_ms: int) -> IndexPage:
        """Return one page of all namespaces, ascending by timestamp.

        Source: LP-6421 §4.2; P7, P18, P19.
        """
        require_ms("now_ms", now_ms)
        with self._gate.passage():
            return read_by_time(self._ledger.slices, self.config, query, now_ms)

    def query_sender(self, query: SenderQuery, now_ms: int) -> IndexPage:
        """Return one page of a sender's messages, ascending by namespace and sequence.

        Source: P38.
        """
        require_ms("now_ms", now_ms)
        with self._gate.passage():
            return read_by_sender(self._ledger.slices, self.config, query, now_ms)

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
            answer = read_messages(self._ledger.slices, self._ledger.hot, self.config, ids, now_ms)
        with self._rate_lock:
            self._rate.count(answer.hits, answer.misses, now_ms)
        return answer.found, answer.missing

    def get_blob(self, commitment: bytes, now_ms: int = 0) -> bytes | None:
        """Return the blob or sidecar committed to, None when no message here holds it.

        Args:
            commitment: 32 bytes.
            now_ms: Pass over messages expired by then; 0 for any.

        Source: LP-6421 §5.2.

        """
        if len(commitment) != c.HASH_BYTES:
            raise StoreArgumentError("a commitment has 32 bytes", where="get_blob")
        with self._gate.passage():
            return read_blob(self._ledger.slices, commitment, now_ms)

    def has_blob(self, commitment: bytes, now_ms: int = 0) -> bool:
        """Return True when `get_blob` would find a blob; large ones are not read.

        Args:
            commitment: 32 bytes.
            now_ms: Pass over messages expired by then; 0 for any.

        """
        if len(commitment) != c.HASH_BYTES:
            raise StoreArgumentError("a commitment has 32 bytes", where="has_blob")
        with self._gate.passage():
            return holds_blob(self._ledger.slices, commitment, now_ms)

    def has_sidecar(self, commitment: bytes, now_ms: int = 0) -> bool:
        """Return True when `get_blob` would find a message's sidecar; it is not read.

        Args:
            commitment: 32 bytes.
            now_ms: Pass over messages expired by then; 0 for any.

        """
        if len(commitment) != c.HASH_BYTES:
            raise StoreArgumentError("a commitment has 32 bytes", where="has_sidecar")
        with self._gate.passage():
            return holds_sidecar(self._ledger.slices, commitment, now_ms)

    def encoded_header(self, content_id: ContentId) -> bytes | None:
        """Return the header held with this content, with all that is not signed; None without."""
        with self._gate.passage():
            slices = self._ledger.slices
            entry = slices.get(layout.CONTENTS, content_id)
            slot = b"" if entry is None else layout.decode_content(entry)[0]
            value = None if entry is None else slices.get(layout.HEADERS, slot + content_id)
            return None if value is None else layout.decode_row(value).header

    def has(self, content_id: ContentId) -> bool:
        """Return True when a message with this content is held (J11)."""
        with self._gate.passage():
            return self._ledger.slices.get(layout.CONTENTS, content_id) is not None

    def slot_holders(self, namespace_id: NamespaceId, seq: int) -> dict[bytes, ContentId]:
        """Return the senders of a slot's candidates, each with the content that is kept.

        Reads the rows of headers only, whatever their blobs weigh; the expired count.

        Source: H17, J11.
        """
        with self._gate.passage():
            return slot_holders(self._ledger.slices, namespace_id, seq)

    def predecessor(self, namespace_id: NamespaceId, seq: int) -> tuple[int, int] | None:
        """Return sequence and timestamp of the nearest message before ``seq``; None without one.

        Of several candidates the one with the lowest content id counts (J11). The newest message of
        a namespace is known still when it has expired, an older one is not.

        Source: LP-6411 §2.3; H13.
        """
        with self._gate.passage():
            ledger = self._ledger
            state = ledger.states.get(namespace_id) or ledger.remembered(namespace_id)
            if state is not None and seq > state.latest > 0:  # the usual case needs no look
                return state.latest, state.latest_timestamp
            return read_predecessor(ledger.slices, state, seq)

    def mark_regressed(self, messages: Sequence[StoredMessage]) -> None:
        """Mark each message whose timestamp is before that of the message before it.

        It follows from what is stored, so stores that hold the same messages mark the same ones.
        Unknown, and not marked, when the message before has expired.

        Source: LP-6411 §2.3; H13.
        """
        with self._gate.passage():
            mark_regressed(self._ledger.slices, self._ledger.states, messages)

    def get_contents(
        self, content_ids: Sequence[ContentId], now_ms: int
    ) -> tuple[list[StoredMessage], list[ContentId]]:
        """Return the messages with these content ids, and the ids of which none is here.

        Bounds and faults are those of `get_messages`.

        Source: J11; retention document, "Sync Soft-Filter".
        """
        require_ms("now_ms", now_ms)
        with self._gate.passage():
            return read_contents(self._ledger.slices, self.config, content_ids, now_ms)

    def stamps(
        self, namespaces: frozenset[NamespaceId] | None, from_ms: int, to_ms: int, limit: int
    ) -> Stamps:
        """Return timestamp and content id of every message in a span of time.

        Args:
            namespaces: Only these; None for every one.
            from_ms: Lowest timestamp, Unix milliseconds; 0 for no bound.
            to_ms: Highest timestamp, inclusive; 0 for no bound.
            limit: Ids at most, the oldest first; 40 bytes of memory each.

        Source: J5, J11.

        """
        if min(from_ms, to_ms, limit) < 0:
            raise StoreArgumentError("the span or limit is out of range", where="stamps")
        stop = layout.u64(to_ms + 1) if 0 < to_ms < c.MAX_U64 else b""
        with self._gate.passage():
            keys = self._ledger.slices.keys(layout.TIMES, layout.u64(from_ms), stop)
            return gather(keys, namespaces, limit)

    def tree_root(self) -> bytes:
        """Return the root over the content ids of every message; 32 bytes.

        Source: J4.
        """
        with self._gate.passage():
            return root_of(self._ledger.tree_nodes())

    def tree_nodes(self) -> list[bytes]:
        """Return the 256 level-1 hashes, 32 bytes each; `merkle.differing_nodes` compares them."""
        with self._gate.passage():
            return self._ledger.tree_nodes()

    def tree_buckets(self, node: int) -> bytes:
        """Return the 256 buckets of a node, 40 bytes each; `merkle.differing_buckets` compares.

        Raises:
            StoreArgumentError: there is no such node.

        """
        with self._gate.passage(), self._ledger.lock:
            return self._ledger.tree.buckets(node)

    def bucket_ids(self, query: BucketQuery, now_ms: int) -> tuple[list[ContentId], bytes]:
        """Return content ids of a bucket in order, and the next cursor, empty at the end.

        What is expired at ``now_ms`` or past the retention cut-off is passed over.

        Source: retention document, "Responder side"; J4.
        """
        require_ms("now_ms", now_ms)
        with self._gate.passage():
            return read_bucket_ids(self._ledger.slices, self.config, query, now_ms)

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

    def watermark(self, namespace_id: NamespaceId) -> int | None:
        """Return how far the archive has read; None when none reads the namespace (J8)."""
        with self._gate.passage():
            state = self._ledger.states.get(namespace_id)
            return None if state is None else self._ledger.watermark(state)
