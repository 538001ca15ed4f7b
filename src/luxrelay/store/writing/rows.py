"""`Rows`: a batch's rows in slices, with sums, trees and the hot cache.

Theory of operation
-------------------
*Decides* nothing about messages; it knows which rows one has, and which sums it belongs to.
*State*: one `Part` for each namespace and slice touched, and what happens to trees and hot cache.
*Order*: rows enter the batch as the messages are decided, so later ones win; sums come last. Rows
of plain messages wait for the first change of something held, then go by kind and key: RocksDB
inserts neighbours a third faster than rows as they come.
*Plain messages*, nearly all, have their rows made by `Appender` in its own loop; `add` is for those
that it leaves.
*What else to change when you change this*: `layout.index_rows`, `append`, `slices`, `audit`.

Source: decisions P9, P11, P29, P38, J4, J8; ADR 0006 §1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from luxrelay.bus import ContentId, NamespaceId, sender_address
from luxrelay.bus import constants as c
from luxrelay.store import blobs, layout
from luxrelay.store.layout import BlobPlace, MessageRow, Share
from luxrelay.store.ledger import HotCache
from luxrelay.store.merkle import MerkleTree
from luxrelay.store.rocks import Batch
from luxrelay.store.slices import NEVER, Slice, Slices

_INLINE: Final = bytes([BlobPlace.INLINE])
_STAMP: Final = layout.SLOT_BYTES
_EXPIRY: Final = layout.SLOT_BYTES + 8


class Plain:
    """Messages that are nobody's rivals, with what their rows are made of; blobs ride in them."""

    __slots__ = ("blob_bytes", "contents", "names", "references", "rows", "runs")

    def __init__(self) -> None:
        self.runs: list[tuple[list[bytes], list[bytes], list[bytes]]] = []
        """Keys, encoded rows and ``contents`` values of each namespace, ascending by sequence."""
        self.names: dict[bytes, bytes] = {}
        """Slots by message id."""
        self.contents: dict[bytes, bytes] = {}
        """``contents`` rows: values by content id."""
        self.references: list[bytes] = []
        """Keys of ``references`` rows, kind included."""
        self.rows: list[bytes] = []
        """Encoded rows in the order of ``names``."""
        self.blob_bytes = 0
        """Bytes of the blobs."""

    def put(self, put: Callable[..., None], handle: object) -> None:
        """Put every row, those of a kind together and in order."""
        # Kind by kind and ascending: a key that follows the last one finds its place in RocksDB's
        # skip list at once, a key anywhere else is searched from the top.
        for keys, rows, _ in self.runs:
            for key, row in zip(keys, rows, strict=True):
                put(b"h" + key, row, handle)
        for keys, _, values in self.runs:
            for key, value in zip(keys, values, strict=True):
                put(b"t" + value[_STAMP:_EXPIRY] + key, value[_EXPIRY:], handle)
        contents, names = self.contents, self.names
        for content in sorted(contents):
            put(b"c" + content, contents[content], handle)
        for name in sorted(names):
            put(b"m" + name, names[name], handle)
        for reference in sorted(self.references):
            put(reference, _INLINE, handle)


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
        "_blob_bytes",
        "_emptied",
        "_fresh",
        "_gone",
        "_parts",
        "_plain",
        "_references",
        "_removed",
        "_slices",
        "_touched",
    )

    def __init__(self, slices: Slices, batch: Batch) -> None:
        self._slices = slices
        self._batch = batch
        self._parts: dict[tuple[int, bytes], Part] = {}
        self._added: dict[Slice, list[bytes]] = {}
        self._removed: dict[Slice, list[bytes]] = {}
        self._aside: dict[Slice, int] = {}
        """Rows of ``held`` more or fewer."""
        self._blob_bytes: dict[Slice, int] = {}
        """Bytes of blobs of plain messages."""
        self._plain: list[tuple[Slice, Plain]] = []
        """Those whose rows are not in the batch yet."""
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

    def add(
        self, part: Part, slot: bytes, content: ContentId, row: MessageRow, value: bytes
    ) -> None:
        """A message comes with every row, those of a blob apart and of a sidecar aside."""
        key, name, where = slot + content, layout.slot_name(slot), part.where
        rows = [(kind + index, entry) for kind, index, entry in layout.index_rows(key, row)]
        rows += [(layout.HEADERS + key, value), (layout.SLOTS + name, slot)]
        self._batch.put_rows(where.table, rows)
        part.blob_bytes += row.attached_bytes
        self._added.setdefault(where, []).append(content)
        self._fresh[name] = value

    def append(self, where: Slice, plain: Plain) -> None:
        """Plain messages have come; their rows are put before any other change of this batch."""
        self._plain.append((where, plain))
        self._added.setdefault(where, []).extend(plain.contents)
        self._fresh.update(zip(plain.names, plain.rows, strict=True))

    def add_blob(self, where: Slice, key: bytes, commitment: bytes, blob: bytes) -> None:
        """The message ``key`` refers to a blob that has a row of its own."""
        self._batch.put_rows(where.table, [(layout.BLOBS + commitment, blob)])
        self._reference(where).add(key, commitment)

    def add_sidecar(self, where: Slice, key: bytes, sidecar: bytes) -> None:
        """The message ``key`` has its sidecar."""
        self._batch.put_rows(where.table, [(layout.SIDECARS + key, sidecar)])

    def contend(self, slot: bytes) -> None:
        """Several messages stand in a slot, or did: the hot cache is told what is left there."""
        self._touched[slot] = (layout.slot_name(slot), True)

    def replace(
        self,
        where: Slice,
        key: bytes,
        row: MessageRow,
        value: bytes,
        growth: int = 0,
        *,
        attached: int = 0,
    ) -> None:
        """A message held already has ``row`` now: ``growth`` bytes more, ``attached`` of blobs."""
        self._put_plain()
        index = layout.index_rows(key, row)
        rows = [(kind + name, content) for kind, name, content in index]
        self._batch.put_rows(where.table, [(layout.HEADERS + key, value), *rows])
        part = self.part(where, key)
        part.size_bytes += growth
        part.blob_bytes += attached
        self.contend(key[: layout.SLOT_BYTES])

    def strip(self, where: Slice, key: bytes, row: MessageRow, value: bytes, growth: int) -> None:
        """A message that had blob and sidecar with ``row`` has ``value`` now and neither."""
        self._put_plain()
        self._batch.put_rows(where.table, [(layout.HEADERS + key, value)])
        doomed = [kind + name for kind, name, _ in layout.index_rows(key, row)]
        doomed = [each for each in doomed if each.startswith(layout.REFERENCES)]
        self._batch.delete_rows(where.table, [*doomed, *_sidecar_rows(key, row)])
        if row.place is BlobPlace.APART:
            self._reference(where).remove(key, row.commitment)
        part, slot = self.part(where, key), key[: layout.SLOT_BYTES]
        part.size_bytes += growth
        part.blob_bytes -= row.attached_bytes
        name = layout.slot_name(slot)
        self._touched[slot] = (name, name in self._fresh)

    def remove(
        self, where: Slice, slot: bytes, content: ContentId, row: MessageRow, charge: int
    ) -> int:
        """A message goes with every row; return 1 when it had waited for the archive (J8)."""
        self._put_plain()
        key = slot + content
        doomed = [kind + name for kind, name, _ in layout.index_rows(key, row)]
        doomed += [layout.HEADERS + key, *_sidecar_rows(key, row)]
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
        part.blob_bytes -= row.attached_bytes
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
        self._put_plain()
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
        for where, size_bytes in self._blob_bytes.items():
            where.blob_bytes += size_bytes
        for where, added in self._added.items():
            # Bytes, not ids: the tree waits for 4,096 of them and changes its buckets by numpy.
            joined = b"".join(added)
            where.tree.extend(joined)
            tree.extend(joined)
        for where, removed in self._removed.items():
            where.tree.xor_batch(removed, removed=True)
            tree.xor_batch(removed, removed=True)
        for where, change in self._aside.items():
            where.held += change
        for gone in self._gone:
            tree.subtract(gone.tree)
            self._slices.retire(gone)

    def warm(self, hot: HotCache, slots: Mapping[bytes, Mapping[ContentId, bytes]]) -> None:
        """The hot cache has the slots of this batch as they stand now."""
        due = min([part.due for part in self._parts.values()], default=NEVER)
        hot.keep_all(self._fresh, due)
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

    def _put_plain(self) -> None:
        """Rows of plain messages are in the batch, those of a kind together and in order."""
        for where, plain in self._plain:
            plain.put(self._batch.native.put, where.table.handle)
            self._blob_bytes[where] = self._blob_bytes.get(where, 0) + plain.blob_bytes
        self._plain.clear()

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


def _sidecar_rows(key: bytes, row: MessageRow) -> list[bytes]:
    return [layout.SIDECARS + key] if row.sidecar_len else []


def _senders(namespace: bytes, part: Part) -> list[tuple[bytes, int]]:
    """Return the keys of the senders that a part changes, each with its new number."""
    known = part.where.senders
    changes: dict[bytes, int] = {}
    for field, change in part.senders.items():
        key = sender_address(field) + namespace
        changes[key] = changes.get(key, known.get(key, 0)) + change
    return list(changes.items())
