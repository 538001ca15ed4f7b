"""Content ids that a relay should hold by the archive, and the Merkle tree over them.

Theory of operation
-------------------
*Decides* which archived messages a relay that says it holds some intervals would hold of them, and
sums these up as that relay does: the Merkle tree over content ids (J4), digests of blocks (P26).
*Does not know* relays.
Of a contested slot a relay keeps what J11 and P40 say, so the others are left out here as well.
*Bounds*: ``IDS_MAX`` ids of a tree, 32 bytes each; a block is 256 sequences with what rivals there
are.

Source: retention document, "Merkle Tree Implications"; decisions J4, J11, P26, P40.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha3_256
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.schema import MAX_I64, prune_key
from luxrelay.bus.finality import FinalityState
from luxrelay.bus.header import ContentId
from luxrelay.store.merkle import MerkleTree
from luxrelay.store.namespaces import SlotCandidate, settle
from luxrelay.sync.heads import SeqRange
from luxrelay.sync.held import BLOCK_SEQS

if TYPE_CHECKING:
    from pyarrow.dataset import Expression

IDS_MAX: Final = 2_000_000
"""Content ids that one tree is made of here; a relay that holds more is compared by blocks."""
_ID_BYTES: Final = 32
_SLOT: Final = ("namespace_id", "seq")

Spans = Mapping[bytes, Sequence[SeqRange]]
"""Namespace → intervals of sequences, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRow:
    """One archived message, as far as it is compared."""

    namespace_id: bytes
    """20 bytes."""
    seq: int
    """Its sequence."""
    content_id: bytes
    """32 bytes."""
    header_hash: bytes
    """32 bytes."""
    sender: bytes
    """The key field."""
    expires_at: int
    """When the last relay forgets it, ms."""
    relays: tuple[str, ...]
    """Who served it."""
    finality: int = 0
    """Its state by statements; 0 is pending."""


class HeldTree:
    """The Merkle tree over some content ids, as `luxrelay.sync.TreeInitiator` reads it.

    Args:
        ids: n rows of 32 bytes, each id once.

    """

    def __init__(self, ids: NDArray[np.uint8]) -> None:
        rows = np.ascontiguousarray(ids)
        words = rows.view(">u8").reshape(-1, 4)
        self._ids = rows[np.lexsort((words[:, 3], words[:, 2], words[:, 1], words[:, 0]))]
        self._buckets = self._ids[:, 0].astype(np.int64) << 8 | self._ids[:, 1]
        self._tree = MerkleTree()
        self._tree.extend(self._ids.tobytes())

    def __len__(self) -> int:
        return len(self._ids)

    def nodes(self) -> Sequence[bytes]:
        """Return the 256 level-1 hashes."""
        return self._tree.nodes()

    def buckets(self, node: int) -> bytes:
        """Return the 256 buckets of a node, 40 bytes each."""
        return self._tree.buckets(node)

    def ids(self, bucket: int, limit: int) -> Sequence[bytes]:
        """Return the lowest ids of a bucket."""
        first, end = np.searchsorted(self._buckets, (bucket, bucket + 1))
        return [row.tobytes() for row in self._ids[first : min(end, first + limit)]]


def held_tree(reader: ArchiveReader, spans: Spans) -> HeldTree | None:
    """Return the tree over what the archive has of some intervals; None above ``IDS_MAX`` ids.

    Looks at three columns of every file, once.

    Args:
        reader: The archive.
        spans: What a relay says it holds.

    Raises:
        ArchiveError: a table cannot be read.

    """
    columns = [*_SLOT, "content_id"]
    rows = reader.rows(columns, _among("namespace_key", map(prune_key, spans), pa.int64()))
    chosen = rows.filter(pa.array(_inside(rows, spans)))
    lost = _losers(reader, chosen)
    if lost:
        chosen = chosen.filter(pc.invert(pc.is_in(chosen.column("content_id"), _binary(lost))))
    if chosen.num_rows > IDS_MAX:
        return None
    ids = chosen.column("content_id").cast(pa.binary(_ID_BYTES)).combine_chunks()
    joined = b"".join(ids.to_pylist())
    return HeldTree(np.frombuffer(joined, np.uint8).reshape(-1, _ID_BYTES))


def _inside(rows: pa.Table, spans: Spans) -> NDArray[np.bool_]:
    """Return which rows lie in an interval of their namespace."""
    names = rows.column("namespace_id").combine_chunks().dictionary_encode()
    places, seqs = names.indices.to_numpy(), rows.column("seq").to_numpy()
    inside = np.zeros(len(seqs), np.bool_)
    order = np.argsort(places, kind="stable")
    ends = np.searchsorted(places[order], np.arange(len(names.dictionary) + 1))
    for place, name in enumerate(names.dictionary.to_pylist()):
        mine = order[ends[place] : ends[place + 1]]
        held = spans.get(name, ())
        firsts = np.array([span.first for span in held], np.uint64)
        lasts = np.array([span.last for span in held], np.uint64)
        wanted = seqs[mine].astype(np.uint64)
        at = np.searchsorted(firsts, wanted, side="right")
        found = at > 0
        found[found] = wanted[found] <= lasts[at[found] - 1]
        inside[mine] = found
    return inside


def _losers(reader: ArchiveReader, rows: pa.Table) -> list[bytes]:
    """Return the content ids of contested slots that a relay does not keep (J11)."""
    counts = rows.group_by(list(_SLOT)).aggregate([("content_id", "count")])
    several = counts.filter(pc.field("content_id_count") > 1)
    contested = set(zip(*(several.column(name).to_pylist() for name in _SLOT), strict=True))
    if not contested:
        return []
    seqs = sorted({seq for _, seq in contested})
    condition = _among("namespace_key", (prune_key(name) for name, _ in contested), pa.int64())
    found = _rows(reader, condition & _among("seq", seqs, pa.int64()))
    return [
        row.content_id
        for row in losers(row for row in found if (row.namespace_id, row.seq) in contested)
    ]


def losers(rows: Iterable[HeldRow]) -> list[HeldRow]:
    """Return those of all messages of some slots that a relay does not keep (J11, P40)."""
    slots: dict[tuple[bytes, int], dict[bytes, HeldRow]] = {}
    for row in rows:
        slots.setdefault((row.namespace_id, row.seq), {})[row.content_id] = row
    lost: list[HeldRow] = []
    for rivals in slots.values():
        final = [name for name, row in rivals.items() if row.finality == FinalityState.FINALIZED]
        kept = settle(SlotCandidate(ContentId(name), row.sender) for name, row in rivals.items())
        names = set(final) or {each.content_id for each in kept}
        lost += [row for name, row in rivals.items() if name not in names]
    return lost


def block_rows(
    reader: ArchiveReader, namespace_id: bytes, first_block: int, blocks: int
) -> list[HeldRow]:
    """Return what the archive has of some blocks of a namespace, by sequence and content id.

    Args:
        reader: The archive.
        namespace_id: 20 bytes.
        first_block: Block *b* holds the sequences 256 *b* + 1 to 256 *b* + 256.
        blocks: How many.

    Raises:
        ArchiveError: a table cannot be read.

    """
    low = first_block * BLOCK_SEQS + 1
    high = min((first_block + blocks) * BLOCK_SEQS, MAX_I64)
    seq = pc.field("seq")
    condition = (
        (pc.field("namespace_key") == pa.scalar(prune_key(namespace_id)))
        & (pc.field("namespace_id") == pa.scalar(bytes(namespace_id)))
        & (seq >= pa.scalar(low))
        & (seq <= pa.scalar(high))
    )
    return sorted(_rows(reader, condition), key=lambda row: (row.seq, row.content_id))


def rows_of(reader: ArchiveReader, content_ids: Iterable[bytes]) -> list[HeldRow]:
    """Return the archived messages with some content ids; looks at every file.

    Raises:
        ArchiveError: a table cannot be read.

    """
    return _rows(reader, _among("content_id", map(bytes, content_ids), pa.binary()))


def block_digests(
    rows: Sequence[HeldRow], spans: Sequence[SeqRange], first_block: int, blocks: int
) -> list[bytes]:
    """Return what a relay with these messages in its intervals says to GetDigests (P26).

    Args:
        rows: Of one namespace, by sequence and content id.
        spans: What the relay holds.
        first_block: The first block.
        blocks: How many.

    Returns:
        A digest for each block; an empty one for a block of which nothing is held.

    """
    dropped = {row.content_id for row in losers(rows)}
    hashes = [sha3_256() for _ in range(blocks)]
    begun = [False] * blocks
    for row in rows:
        if row.content_id not in dropped and within(row.seq, spans):
            block = (row.seq - 1) // BLOCK_SEQS - first_block
            hashes[block].update(row.header_hash)
            begun[block] = True
    return [each.digest() if any_row else b"" for each, any_row in zip(hashes, begun, strict=True)]


def within(seq: int, spans: Sequence[SeqRange]) -> bool:
    """Return True when a sequence lies in one of some intervals."""
    return any(span.first <= seq <= span.last for span in spans)


def _rows(reader: ArchiveReader, condition: Expression) -> list[HeldRow]:
    columns = {
        "namespace_id": "namespace_id",
        "seq": "seq",
        "content_id": "content_id",
        "header_hash": "header_hash",
        "sender_pub_key": "sender",
        "expires_at": "expires_at",
        "relays": "relays",
        "finality": "finality",
    }
    found = reader.rows(list(columns), condition).rename_columns(list(columns.values()))
    return [HeldRow(**_plain(row)) for row in found.to_pylist()]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"relays": tuple(row["relays"]), "finality": row["finality"] or 0}


def _binary(values: Iterable[bytes]) -> pa.Array:
    return pa.array(list(values), pa.binary())


def _among(column: str, values: Iterable[object], kind: pa.DataType) -> Expression:
    return pc.field(column).isin(pa.array(list(dict.fromkeys(values)), kind))
