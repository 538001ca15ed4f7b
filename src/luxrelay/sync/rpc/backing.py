"""Interfaces of the service's store and publisher.

`luxrelay.store.RelayStore` fits `SyncStore` as it is. Every method may be called from any thread.

Source: decisions P22, P37, J6; architecture, rule 10.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from luxrelay.bus.header import ContentId, MessageId, MsgHeader, NamespaceId
from luxrelay.sync.following import FollowEvent, SubscribeWanted
from luxrelay.sync.idset import Stamps
from luxrelay.sync.messages import PublishItem, PublishReceipt, QuotaUse

if TYPE_CHECKING:  # naming a store must not load RocksDB
    from luxrelay.store import BucketQuery, NamespaceQuery


class StoreRow(Protocol):
    """A message as a store gives it."""

    @property
    def header(self) -> MsgHeader:
        """The decoded header."""
        ...

    @property
    def header_bytes(self) -> bytes:
        """The header as it arrived."""
        ...

    @property
    def namespace_id(self) -> NamespaceId:
        """The header's namespace."""
        ...

    @property
    def seq(self) -> int:
        """The header's sequence number."""
        ...

    @property
    def blob(self) -> bytes | None:
        """The payload; None when it is not there."""
        ...

    @property
    def received_at(self) -> int:
        """First arrival, Unix milliseconds."""
        ...

    @property
    def expires_at(self) -> int:
        """When it goes, Unix milliseconds."""
        ...

    @property
    def finality(self) -> int:
        """State of the finality oracle; 0 is pending."""
        ...

    @property
    def sidecar_len(self) -> int:
        """Bytes of its TFHE sidecar; 0 when it is not there."""
        ...


class StorePage(Protocol):
    """Messages ascending by sequence, and how to go on."""

    @property
    def messages(self) -> Sequence[StoreRow]:
        """The messages; none has expired."""
        ...

    @property
    def has_more(self) -> bool:
        """True when another page follows."""
        ...

    @property
    def next_cursor(self) -> bytes:
        """Where it begins: sequence (8 bytes, big-endian) and content id of the last message seen.

        Any message's position may be used as a cursor.
        """
        ...

    @property
    def earliest_seq(self) -> int:
        """Lowest sequence that the store serves from where the query begins; 0 without one."""
        ...


class StoreHead(Protocol):
    """How far a namespace reaches."""

    @property
    def namespace_id(self) -> NamespaceId:
        """The namespace."""
        ...

    @property
    def parent(self) -> NamespaceId:
        """The namespace this one is a lane of, or its own id."""
        ...

    @property
    def earliest_seq(self) -> int:
        """Lowest sequence held; 0 when nothing is."""
        ...

    @property
    def contiguous_seq(self) -> int:
        """Highest sequence without a hole below it."""
        ...

    @property
    def latest_seq(self) -> int:
        """Highest sequence ever stored."""
        ...

    @property
    def finalized_seq(self) -> int:
        """Highest finalized sequence."""
        ...

    @property
    def latest_header_hash(self) -> bytes:
        """HeaderHash at the latest sequence."""
        ...

    @property
    def latest_timestamp(self) -> int:
        """Timestamp of that header, Unix milliseconds."""
        ...

    @property
    def messages(self) -> int:
        """Messages held."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes they take."""
        ...

    @property
    def floor(self) -> int:
        """Nothing at or below is expected any more."""
        ...


class SyncStore(Protocol):
    """What the service reads."""

    def query(self, query: NamespaceQuery, now_ms: int) -> StorePage:
        """Return one page of a namespace."""
        ...

    def get_messages(
        self, ids: Sequence[MessageId], now_ms: int
    ) -> tuple[Sequence[StoreRow], Sequence[MessageId]]:
        """Return what was found, and the ids that were not."""
        ...

    def head(self, namespace_id: NamespaceId) -> StoreHead:
        """Return the head of a namespace; zeros for an unknown one."""
        ...

    def heads(
        self, parent: NamespaceId | None, cursor: bytes, limit: int
    ) -> tuple[Sequence[StoreHead], bytes]:
        """Return heads of a parent and its lanes, or of all, and the next cursor."""
        ...

    def gaps(self, namespace_id: NamespaceId, limit: int) -> Sequence[tuple[int, int]]:
        """Return the lowest missing ``(first, last)`` below the latest sequence."""
        ...

    def watermark(self, namespace_id: NamespaceId) -> int | None:
        """Return how far the archive has read; None when none reads the namespace (J8)."""
        ...

    def get_blob(self, commitment: bytes, now_ms: int) -> bytes | None:
        """Return the blob committed to; None when no message here holds it."""
        ...

    def get_contents(
        self, content_ids: Sequence[ContentId], now_ms: int
    ) -> tuple[Sequence[StoreRow], Sequence[ContentId]]:
        """Return the messages with these content ids, and the ids of which none is here."""
        ...

    def stamps(
        self, namespaces: frozenset[NamespaceId] | None, from_ms: int, to_ms: int, limit: int
    ) -> Stamps:
        """Return timestamp and content id of every message in a span of time."""
        ...

    def tree_nodes(self) -> Sequence[bytes]:
        """Return the 256 level-1 hashes over the content ids (J4)."""
        ...

    def tree_buckets(self, node: int) -> bytes:
        """Return the 256 buckets of a node, 40 bytes each."""
        ...

    def bucket_ids(self, query: BucketQuery, now_ms: int) -> tuple[Sequence[ContentId], bytes]:
        """Return the content ids of a bucket that are past no cut-off, and the next cursor."""
        ...


class ArchiveFallback(Protocol):
    """Knows what the store has no more, somewhere slow; asked outside of any turn.

    Every method raises GatewayError when too many ask already.
    """

    def page(self, query: NamespaceQuery, page: StorePage) -> StorePage:
        """Return the page that comes before a page of the store, or that page itself."""
        ...

    def slots(self, ids: Sequence[MessageId]) -> tuple[Sequence[StoreRow], Sequence[MessageId]]:
        """Return messages of slots that the store lacks, and the slots that are nowhere.

        A slot in neither was not looked for: ask again.
        """
        ...

    def blob(self, commitment: bytes) -> bytes | None:
        """Return a blob that the store lacks; None without one."""
        ...


class Handoff(Protocol):
    """Keeps for the archive what it has not read (J8)."""

    def set_watermark(self, namespace_id: NamespaceId, parent: NamespaceId, seq: int) -> None:
        """Note durably how far the archive has read; never back."""
        ...

    def drop_watermark(self, namespace_id: NamespaceId) -> None:
        """Note durably that no archive reads the namespace any more."""
        ...

    def watermark(self, namespace_id: NamespaceId) -> int | None:
        """Return how far the archive has read; None when none reads the namespace."""
        ...


class FollowedNode(Protocol):
    """What a subscription asks of a node."""

    def follow(
        self, wanted: SubscribeWanted, ended: threading.Event
    ) -> Iterator[Sequence[FollowEvent]]:
        """Yield what is stored and then what comes, in groups, until ``ended`` is set.

        An empty group means that nothing has happened for a while.
        """


class Publisher(Protocol):
    """Takes messages that a client publishes through this server."""

    def publish(self, items: Sequence[PublishItem]) -> Sequence[PublishReceipt]:
        """Return one receipt an item, in order, once each has its verdict.

        Called in a thread of the server; may block.
        """
        ...

    def receipts(self, digests: Sequence[bytes]) -> Sequence[PublishReceipt]:
        """Return what has become of published messages since, in order."""
        ...

    def quotas(self, accounts: Sequence[bytes]) -> Sequence[QuotaUse]:
        """Return what was counted of prepaid quotas, in order."""
        ...
