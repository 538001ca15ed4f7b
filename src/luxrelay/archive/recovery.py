"""`restore`: from the tables into an empty relay store, with the root that relays would have.

Nothing of the archive is believed: each message goes through `decode` again, with its signature,
before the store is handed it. A relay keeps of a contested slot what J11 says, so the root to be
reached is that over the contents which a relay keeps.

Source: decisions J4, J11; LP-6440.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from luxrelay.archive.answers import ArchivedMessage
from luxrelay.archive.decode import check_batch
from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.schema import RAW
from luxrelay.bus import MsgHeader, NamespaceId
from luxrelay.store.merkle import MerkleTree
from luxrelay.store.messages import IncomingMessage, PutOutcome

PAGE: Final = 1_000
"""Messages that are read and stored at a time."""
_OWN: Final = "archive"


class RestoreTarget(Protocol):
    """What is restored into; `luxrelay.store.RelayStore` fits."""

    def put_many(self, messages: Sequence[IncomingMessage], now_ms: int) -> Sequence[PutOutcome]:
        """Store messages, and say what became of each."""

    def tree_root(self) -> bytes:
        """Return the root over the content ids of every message (J4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """What `restore` did."""

    read: int
    """Messages that the archive had."""
    stored: int
    """Messages that the store took, or had."""
    surplus: int
    """Contents of contested slots that a relay does not keep (J11)."""
    refused: int
    """Messages that are none: the archive was changed by somebody."""
    expired: int
    """Messages past the time of the store."""
    full: int
    """Messages for which the store had no room."""
    root: bytes
    """The store's root afterwards."""
    wanted_root: bytes
    """The root over everything that a relay keeps of what was read."""

    @property
    def whole(self) -> bool:
        """True when the store holds exactly what a relay would hold of the archive."""
        return self.root == self.wanted_root


def restore(
    reader: ArchiveReader,
    target: RestoreTarget,
    *,
    now_ms: int,
    namespaces: Iterable[bytes] | None = None,
    rules: ArchiveRules | None = None,
    progress: Callable[[int], None] | None = None,
) -> RestoreReport:
    """Put what the archive holds into an empty store and return whether the roots are equal.

    Args:
        reader: The archive.
        target: An empty store whose times and bounds fit the archive.
        now_ms: The time, Unix milliseconds.
        namespaces: Only these, 20 bytes each; all when not given.
        rules: Signing mode and policies, as in `ingest`.
        progress: Is told how many messages have been read.

    Raises:
        ArchiveError: a table cannot be read.
        StoreError: the store cannot be written to.

    """
    counts = dict.fromkeys(PutOutcome, 0)
    tree = MerkleTree()
    read = refused = 0
    for name in reader.namespaces() if namespaces is None else namespaces:
        for page in _pages(reader, name):
            read += len(page)
            good = checked_messages(page, rules or ArchiveRules())
            refused += len(page) - len(good)
            for outcome in target.put_many(good, now_ms):
                counts[outcome] += 1
            if progress is not None:
                progress(read)
        tree.xor_batch(list(_kept(reader, name)))
    return RestoreReport(
        read=read,
        stored=counts[PutOutcome.STORED] + counts[PutOutcome.DUPLICATE],
        surplus=counts[PutOutcome.LOST_SLOT],
        refused=refused,
        expired=counts[PutOutcome.EXPIRED],
        full=counts[PutOutcome.FULL],
        root=target.tree_root(),
        wanted_root=tree.root(),
    )


def _pages(reader: ArchiveReader, namespace: bytes) -> Iterator[Sequence[ArchivedMessage]]:
    cursor = b""
    while True:
        page = reader.by_namespace(namespace, limit=PAGE, cursor=cursor)
        if page.messages:
            yield page.messages
        cursor = page.next_cursor
        if not cursor:
            return


def checked_messages(page: Sequence[ArchivedMessage], rules: ArchiveRules) -> list[IncomingMessage]:
    """Return those of some archived messages that pass every check again, as a store takes them."""
    rows = [
        {
            "relay": _OWN,
            "namespace": message.place.namespace_id,
            "seq": message.place.seq,
            "header": message.header,
            "blob": message.blob,
            "received_at": message.received_at,
            "expires_at": message.expires_at,
            "parent": message.parent_id,
            "sidecar": message.sidecar,
        }
        for message in page
    ]
    checked = check_batch(pa.RecordBatch.from_pylist(rows, schema=RAW.arrow()), rules)
    codes = checked.column("code").to_pylist()
    parents = checked.column("parent_id").to_pylist()
    return [
        IncomingMessage(
            header=MsgHeader.decode(message.header),
            blob=message.blob,
            parent=NamespaceId(parent or message.place.namespace_id),
            received_at=message.received_at,
            sidecar=message.sidecar,
        )
        for message, code, parent in zip(page, codes, parents, strict=True)
        if code == 0
    ]


def _kept(reader: ArchiveReader, namespace: bytes) -> Iterator[bytes]:
    """Yield the content ids of a namespace that a relay keeps (J11)."""
    dropped = reader.contended_losers(namespace)
    for content in reader.content_ids(namespace):
        if content not in dropped:
            yield content
