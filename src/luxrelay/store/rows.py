"""`Rows`: what a group does to slices: rows into the batch, sums, trees and the hot cache after it.

Theory of operation
-------------------
*Decides* nothing about messages; it knows which rows one has, and which sums it belongs to.
*State*: messages added whose rows are not in the batch yet, and one `Part` for each namespace and
slice touched. Rows of added messages are made in one loop, the hot one of ingest: what a loop needs
is a local name there, and nothing is made that is not written.
*Order*: rows of added messages enter the batch before any other change, so later ones win.
*What else to change when you change this*: `layout.index_rows`, `slices`, `audit`.

Source: decisions P9, P11, P29, P38, J4, J8; store-notes 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from luxrelay.bus import ContentId, NamespaceId, sender_address
from luxrelay.bus import constants as c
from luxrelay.store import blobs, layout
from luxrelay.store.hot import HotCache
from luxrelay.store.layout import BlobPlace, MessageRow, Share
from luxrelay.store.merkle import MerkleTree, xor_all
from luxrelay.store.rocks import Batch
from luxrelay.store.slices import NEVER, Slice, Slices

_REFERENCES: Final = tuple(bytes([place]) for place in BlobPlace)


class Part:
    """What a batch changes of one namespace in one slice."""

    __slots__ = (
        "blob_bytes",
        "due",
        "exact",
        "first",
        "last",
        "messages",
        "senders",
        "size_bytes",
        "where",
    )

    def __init__(self, where: Slice, share: Share) -> None:
        self.where = where
        self.messages, self.size_bytes, self.first, self.last, self.exact = share
        self.blob_bytes = 0
        """Bytes of blobs more or fewer."""
        self.senders: dict[bytes, int] = {}
        """Messages more or fewer, by senderPubKey field."""
        self.due = NEVER
        """The earliest expires_at among what was added."""

    def count(self, seq: int, charge: int, expires_at: int, sender: bytes) -> None:
        """One message more."""
        self.messages += 1
        self.size_bytes += charge
        if seq > self.last:
            self.last = seq
            self.exact = True
        if seq < self.first or not self.first:
            self.first = seq
        self.due = min(self.due, expires_at)
        senders = self.senders
        senders[sender] = senders.get(sender, 0) + 1

    def share(self) -> Share:
        """Return what the slice then holds."""
        return Share(self.messages, self.size_bytes, self.first, self.last, self.exact)


class Rows:
    """Rows of one batch under construction."""

    __slots__ = (
        "_added",
        "_aside",
        "_batch",
        "_emptied",
        "_fresh",
        "_gone",
        "_parts",
        "_references",
        "_removed",
        "_slices",
        "_touched",
        "pending",
    )

    def __init__(self, slices: Slices, batch: Batch) -> None:
        self._slices = slices
        self._batch = batch
        self.pending: list[tuple[Part, bytes, ContentId, bytes, bytes]] = []
        """Messages whose rows are not in the batch yet: part, slot, content id, encoded header,
        encoded row."""
        self._parts: dict[tuple[int, bytes], Part] = {}
        self._added: dict[Slice, list[bytes]] = {}
        self._removed: dict[Slice, list[bytes]] = {}
        self._aside: dict[Slice, int] = {}
        """Rows of ``held`` more or fewer."""
        self._emptied: set[tuple[bytes, Slice]] = set()
        """Slots that may have no message in a slice any more."""
        self._references: dict[Slice, blobs.References] = {}
        self._fresh: dict[bytes, bytes] = {}
        """Rows of messages added, by message id."""
        self._touched: dict[bytes, tuple[bytes, bool]] = {}
        """Other slots changed: message id, and whether a message stays that is young."""
        self._gone: list[Slice] = []

    def part(self, where: Slice, slot: bytes) -> Part:
        """Return what this batch changes of the slot's namespace in a slice."""
        namespace = slot[: c.NAMESPACE_BYTES]
        part = self._parts.get((where.number, namespace))
        if part is None:
            share = where.shares.get(NamespaceId(namespace), Share())
            part = self._parts[where.number, namespace] = Part(where, share)
        return part

    def add_blob(self, where: Slice, key: bytes, commitment: bytes, blob: bytes) -> None:
        """The message ``key`` refers to a blob that has a row of its own."""
        self._batch.put_rows(where.table, [(layout.BLOBS + commitment, blob)])
        self._reference(where).add(key, commitment)

    def contend(self, slot: bytes) -> None:
        """Several messages stand in a slot, or did: the hot cache is told what is left there."""
        self._touched[slot] = (layout.slot_name(slot), True)

    def replace(self, where: Slice, key: bytes, row: MessageRow, value: bytes, growth: int) -> None:
        """A message that is held already has ``row`` now, ``growth`` bytes more."""
        self._write_added()
        index = layout.index_rows(key, row)
        rows = [(kind + name, content) for kind, name, content in index]
        self._batch.put_rows(where.table, [(layout.HEADERS + key, value), *rows])
        part = self.part(where, key)
        part.size_bytes += growth
        part.blob_bytes += row.blob_len if growth else 0
        self.contend(key[: layout.SLOT_BYTES])

    def strip(self, where: Slice, key: bytes, row: MessageRow, value: bytes, growth: int) -> None:
        """A message that had its blob with ``row`` has ``value`` now and none."""
        self._write_added()
        self._batch.put_rows(where.table, [(layout.HEADERS + key, value)])
        self._batch.delete_rows(where.table, [layout.REFERENCES + row.commitment + key])
        if row.place is BlobPlace.APART:
            self._reference(where).remove(key, row.commitment)
        part, slot = self.part(where, key), key[: layout.SLOT_BYTES]
        part.size_bytes += growth
        part.blob_bytes -= row.blob_len
        name = layout.slot_name(slot)
        self._touched[slot] = (name, name in self._fresh)

    def remove(
        self, where: Slice, slot: bytes, content: ContentId, row: MessageRow, charge: int
    ) -> int:
        """A message goes with every row; return 1 when it had waited for the archive (J8)."""
        self._write_added()
        key = slot + content
        doomed = [kind + name for kind, name, _ in layout.index_rows(key, row)]
        doomed.append(layout.HEADERS + key)
        held = 0
        if where.held and where.get(layout.HELD, key) is not None:
            doomed.append(layout.HELD + key)
            self._aside[where] = self._aside.get(where, 0) - 1
            held = 1
        self._batch.delete_rows(where.table, doomed)
        if row.place is BlobPlace.APART:
            self._reference(where).remove(key, row.commitment)
        part = self.part(where, slot)
        part.messages -= 1
        part.size_bytes -= charge
        part.blob_bytes -= row.blob_len
        if layout.split_slot(slot)[1] == part.last:
            part.exact = False
        part.senders[row.sender] = part.senders.get(row.sender, 0) - 1
        self._removed.setdefault(where, []).append(content)
        self._emptied.add((slot, where))
        name = layout.slot_name(slot)
        self._touched[slot] = (name, name in self._fresh)
        return held

    def hold(self, where: Slice, key: bytes) -> None:
        """The message ``key`` waits for the archive (J8)."""
        self._batch.put_rows(where.table, [(layout.HELD + key, b"")])
        self._aside[where] = self._aside.get(where, 0) + 1

    def let_go(self, gone: Slice) -> None:
        """A whole slice goes; nothing else of this batch is in it."""
        self._gone.append(gone)

    def finish(self, slots: Mapping[bytes, Mapping[ContentId, bytes]]) -> None:
        """Everything is in the batch; ``slots`` has the rows that stay in each slot touched."""
        self._write_added()
        for slot, where in self._emptied:
            stay = [layout.expires_at_of(row) for row in slots[slot].values()]
            if all(self._slices.at(expires_at) is not where for expires_at in stay):
                self._batch.delete_rows(where.table, [layout.SLOTS + self._touched[slot][0]])
        for where, references in self._references.items():
            doomed = [layout.BLOBS + commitment for commitment in references.unneeded(where)]
            self._batch.delete_rows(where.table, doomed)
        for (_, namespace), part in self._parts.items():
            self._write_sums(namespace, part)

    def publish(self, tree: MerkleTree) -> None:
        """The batch is written: slices and the store's tree show it; under the ledger's lock."""
        for (_, name), part in self._parts.items():
            namespace, where = NamespaceId(name), part.where
            before = where.shares.get(namespace, Share())
            where.messages += part.messages - before.messages
            where.size_bytes += part.size_bytes - before.size_bytes
            where.blob_bytes += part.blob_bytes
            if part.messages:
                where.shares[namespace] = part.share()
            else:
                where.shares.pop(namespace, None)
            for key, count in _senders(namespace, part):
                if count:
                    where.senders[key] = count
                else:
                    where.senders.pop(key, None)
            where.next_due = min(where.next_due, part.due)
            where.seen_due = min(where.seen_due, part.due)
        for where, added in self._added.items():
            xor_all((where.tree, tree), added)
        for where, removed in self._removed.items():
            xor_all((where.tree, tree), removed, removed=True)
        for where, change in self._aside.items():
            where.held += change
        for gone in self._gone:
            tree.subtract(gone.tree)
            self._slices.retire(gone)

    def warm(self, hot: HotCache, slots: Mapping[bytes, Mapping[ContentId, bytes]]) -> None:
        """The hot cache has the slots of this batch as they stand now."""
        hot.keep_all(self._fresh)
        for slot, (name, came) in self._touched.items():
            rows = slots[slot]
            if came and len(rows) == 1:
                (row,) = rows.values()
                hot.keep(name, row)
            else:
                hot.drop(name)
        for gone in self._gone:
            hot.drop_expiring(gone.first_ms, gone.end_ms)

    def _reference(self, where: Slice) -> blobs.References:
        return self._references.setdefault(where, blobs.References())

    def _write_added(self) -> None:
        """The rows of every message added so far are in the batch."""
        put, fresh, where = self._batch.native.put, self._fresh, None
        handle: object = None
        added: list[bytes] = []
        for part, slot, content, encoded, row in self.pending:
            if part.where is not where:
                where = part.where
                handle = where.table.handle
                added = self._added.setdefault(where, [])
            key = slot + content
            times = encoded[c.OFFSET_TIMESTAMP : c.OFFSET_COMMITMENT]
            expires = row[8:16]
            name = layout.slot_name(slot)
            put(b"h" + key, row, handle)  # type: ignore[arg-type]  # opaque here
            put(b"t" + times + key, expires, handle)  # type: ignore[arg-type]
            put(b"c" + content, slot + times + expires, handle)  # type: ignore[arg-type]
            put(b"m" + name, slot, handle)  # type: ignore[arg-type]
            if row[17]:
                commitment = encoded[c.OFFSET_COMMITMENT : c.OFFSET_BLOB_LEN]
                reference = _REFERENCES[row[17]]
                part.blob_bytes += int.from_bytes(row[18:22], "big")
                put(b"r" + commitment + key, reference, handle)  # type: ignore[arg-type]
            added.append(content)
            fresh[name] = row
        self.pending.clear()

    def _write_sums(self, namespace: bytes, part: Part) -> None:
        table, rows, doomed = part.where.table, [], []
        if part.messages:
            rows.append((layout.SHARES + namespace, layout.encode_share(part.share())))
        else:
            doomed.append(layout.SHARES + namespace)
        for key, count in _senders(namespace, part):
            if count:
                rows.append((layout.SENDERS + key, layout.u64(count)))
            else:
                doomed.append(layout.SENDERS + key)
        self._batch.put_rows(table, rows)
        self._batch.delete_rows(table, doomed)


def _senders(namespace: bytes, part: Part) -> list[tuple[bytes, int]]:
    """Return the keys of the senders that a part changes, each with its new number."""
    known = part.where.senders
    changes: dict[bytes, int] = {}
    for field, change in part.senders.items():
        key = sender_address(field) + namespace
        changes[key] = changes.get(key, known.get(key, 0)) + change
    return list(changes.items())
