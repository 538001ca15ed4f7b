"""`Group`: one atomic batch under construction.

Theory of operation
-------------------
*Decides* what becomes of each message: outcome, slot, rows to write and to delete, counters.
*Does not know* locks, threads, fsync; the writer makes one group at a time.
*State*: copies of the namespace states it touches and, for each slot it touches, the rows that
stand there once the batch is written. Nothing is visible in the ledger or on disk before `commit`;
a group that is dropped, or whose write fails, has changed nothing.
*Order inside the batch*: rows are put and deleted as decided, later ones win; what depends on the
final picture (emptied slots, unneeded blobs, state rows) comes last.
*Bounds*: the caller's: group_messages_max, group_bytes_max, gc_chunk_size.
*What else to change when you change this*: `layout.index_rows`, `audit`, tests/oracle/store.py.

Source: decisions P9, P14, P27, J6, J11; LP-6421 §3.2.
"""

from __future__ import annotations

from luxrelay.bus import ContentId, MsgHeader, NamespaceId, message_id
from luxrelay.errors import StoreError
from luxrelay.store import blobs, layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.layout import BlobPlace, MessageRow
from luxrelay.store.ledger import Ledger
from luxrelay.store.messages import IncomingMessage, PutOutcome
from luxrelay.store.namespaces import NamespaceState
from luxrelay.store.rocks import Database
from luxrelay.store.slots import Candidate, settle

SlotRows = dict[ContentId, MessageRow]
_NO_EXPIRY = 2**64


class Group:
    """Decides messages one by one; `commit` makes all of it true at once."""

    def __init__(self, database: Database, ledger: Ledger, config: RelayStoreConfig) -> None:
        self._database = database
        self._ledger = ledger
        self._config = config
        self._batch = database.batch()
        self._states: dict[NamespaceId, NamespaceState] = {}
        self._changed: set[NamespaceId] = set()
        self._created = 0
        self._slots: dict[bytes, SlotRows] = {}
        self._thinned: set[bytes] = set()
        self._references = blobs.References()
        self._messages = 0
        self._size_bytes = 0
        self._first_expiry = _NO_EXPIRY
        self.equivocations = 0
        """Slots in which a sender turned up with a second content (H17)."""

    def place(self, message: IncomingMessage, now_ms: int) -> PutOutcome:
        """Decide one message."""
        header = message.header
        expires_at = self._config.expires_at(message.received_at, header.timestamp)
        if expires_at <= now_ms:
            return PutOutcome.EXPIRED
        state = self._state(header.namespace_id, message.parent)
        slot = layout.slot_key(state.namespace_id, header.seq)
        rows = self._rows(state, slot, header.seq)
        content = header.content_id
        if rows:
            held = rows.get(content)
            if held is not None:
                if held.expires_at <= now_ms:
                    return PutOutcome.EXPIRED
                self._complete(state, slot + content, rows, message)
                return PutOutcome.DUPLICATE
            leaving = self._leaving(rows, header, now_ms)
            if content in leaving:
                return PutOutcome.LOST_SLOT
        else:
            leaving = []
        row = self._row(message, expires_at)
        charge = layout.charge_bytes(row)
        freed = sum([layout.charge_bytes(rows[gone]) for gone in leaving])
        if not self._fits(state, charge - freed):
            return PutOutcome.FULL
        for gone in leaving:
            self._erase(state, slot, rows, gone)
        self._write(slot + content, row, message.blob)
        self._change(state)
        rows[content] = row
        if header.seq >= state.latest:
            _crown(state, rows, header)
        state.hold(header.seq)
        self._count(state, 1, charge)
        self._first_expiry = min(self._first_expiry, expires_at)
        return PutOutcome.STORED

    def forget(self, key: bytes) -> NamespaceId:
        """The message ``key`` is gone and nothing at or below it is expected any more."""
        namespace, seq = layout.split_slot(key)
        state = self._known(namespace)
        slot, content = key[: layout.SLOT_BYTES], ContentId(key[layout.SLOT_BYTES :])
        rows = self._rows(state, slot, seq)
        if content in rows:
            self._erase(state, slot, rows, content)
        state.raise_floor(seq)
        self._changed.add(namespace)
        return namespace

    def skip_to(self, namespace: NamespaceId, parent: NamespaceId, seq: int) -> bool:
        """Nothing at or below ``seq`` is expected; False when one namespace more is too many."""
        state = self._state(namespace, parent)
        if not self._fits(state, 0):
            return False
        if seq > state.floor:
            state.raise_floor(seq)
            self._change(state)
        return True

    def commit(self) -> bool:
        """Everything decided is in the database and in the ledger; False when it was nothing.

        Raises:
            StoreError: nothing has changed.

        """
        for slot in self._thinned:
            if not self._slots[slot]:
                self._batch.delete(layout.SLOTS, message_id(*layout.split_slot(slot)))
        for commitment in self._references.unneeded(self._database):
            self._batch.delete(layout.BLOBS, commitment)
        changed = [self._states[namespace] for namespace in self._changed]
        for state in changed:
            if self._slots.get(layout.slot_key(state.namespace_id, state.earliest)) == {}:
                state.earliest = self._next_earliest(state)
            self._batch.put(layout.NAMESPACES, state.namespace_id, layout.encode_state(state))
        if not len(self._batch):
            return False
        self._database.write(self._batch)
        self._ledger.publish(changed, self._messages, self._size_bytes)
        self._ledger.expiry_hint = min(self._ledger.expiry_hint, self._first_expiry)
        return True

    def _state(self, namespace: NamespaceId, parent: NamespaceId) -> NamespaceState:
        state = self._states.get(namespace)
        if state is None:
            published = self._ledger.states.get(namespace)
            if published is None:
                state = NamespaceState(namespace_id=namespace, parent=parent)
            else:
                state = published.copy()
            self._states[namespace] = state
        if parent != state.parent and state.parent == namespace:
            # Seen without its parent so far; a lane has only one by construction (J6).
            if namespace in self._ledger.states or namespace in self._changed:
                self._batch.delete(layout.LANES, state.parent + namespace)
                self._batch.put(layout.LANES, parent + namespace, b"")
                self._changed.add(namespace)
            state.parent = parent
        return state

    def _known(self, namespace: NamespaceId) -> NamespaceState:
        if namespace not in self._states and namespace not in self._ledger.states:
            raise StoreError(
                "a message's namespace has no state", where=namespace.hex(), code="store.corrupt"
            )
        return self._state(namespace, namespace)

    def _change(self, state: NamespaceState) -> None:
        namespace = state.namespace_id
        if namespace not in self._changed:
            self._changed.add(namespace)
            if namespace not in self._ledger.states:
                self._created += 1
                self._batch.put(layout.LANES, state.parent + namespace, b"")

    def _rows(self, state: NamespaceState, slot: bytes, seq: int) -> SlotRows:
        rows = self._slots.get(slot)
        if rows is None:
            rows = {}
            if state.holds(seq):
                stored = self._database.scan(layout.HEADERS, slot, layout.after(slot))
                for key, value in stored:
                    rows[ContentId(key[layout.SLOT_BYTES :])] = layout.decode_row(value)
            self._slots[slot] = rows
        return rows

    def _leaving(self, rows: SlotRows, header: MsgHeader, now_ms: int) -> list[ContentId]:
        """Return which contents the slot gives up for this one, perhaps this one itself (J11)."""
        sender = header.sender_pub_key
        candidates = [Candidate(header.content_id, sender)]
        for content, row in rows.items():
            if row.expires_at > now_ms:
                candidates.append(Candidate(content, row.sender))
                self.equivocations += row.sender == sender
        kept = {candidate.content_id for candidate in settle(candidates)}
        return [content for content in (*rows, header.content_id) if content not in kept]

    def _row(self, message: IncomingMessage, expires_at: int) -> MessageRow:
        blob = message.blob or b""
        place = blobs.place_of(blob, self._config.inline_blob_bytes_max)
        return MessageRow(
            message.received_at,
            expires_at,
            0,
            place,
            len(blob),
            message.source,
            message.header.encode(),
            blob if place is BlobPlace.INLINE else b"",
        )

    def _fits(self, state: NamespaceState, growth: int) -> bool:
        namespace = state.namespace_id
        if namespace not in self._ledger.states and namespace not in self._changed:
            known = len(self._ledger.states) + self._created
            if known >= self._config.namespaces_max:
                return False
        size = self._ledger.size_bytes + self._size_bytes + growth
        return growth <= 0 or size <= self._config.max_storage_bytes

    def _complete(
        self, state: NamespaceState, key: bytes, rows: SlotRows, message: IncomingMessage
    ) -> None:
        """Add the blob that was missing, when the message brings it and there is room."""
        content = message.header.content_id
        held = rows[content]
        blob = message.blob
        if held.place is not BlobPlace.ABSENT or not blob:
            return
        place = blobs.place_of(blob, self._config.inline_blob_bytes_max)
        row = held._replace(
            place=place,
            blob_len=len(blob),
            inline_blob=blob if place is BlobPlace.INLINE else b"",
        )
        growth = layout.charge_bytes(row) - layout.charge_bytes(held)
        if not self._fits(state, growth):
            return
        rows[content] = row
        self._write(key, row, blob)
        self._change(state)
        self._count(state, 0, growth)

    def _write(self, key: bytes, row: MessageRow, blob: bytes | None) -> None:
        rows = layout.index_rows(key, row)
        rows.append((layout.HEADERS, key, layout.encode_row(row)))
        self._batch.put_rows(rows)
        if row.place is BlobPlace.APART and blob is not None:
            self._batch.put(layout.BLOBS, row.commitment, blob)
            self._references.add(key, row)

    def _erase(
        self, state: NamespaceState, slot: bytes, rows: SlotRows, content: ContentId
    ) -> None:
        key, row = slot + content, rows.pop(content)
        self._batch.delete(layout.HEADERS, key)
        for family, index_key, _ in layout.index_rows(key, row):
            if family != layout.SLOTS:  # shared by the slot's candidates
                self._batch.delete(family, index_key)
        self._references.remove(key, row)
        self._thinned.add(slot)
        self._count(state, -1, -layout.charge_bytes(row))

    def _count(self, state: NamespaceState, messages: int, size_bytes: int) -> None:
        state.messages += messages
        state.size_bytes += size_bytes
        self._messages += messages
        self._size_bytes += size_bytes

    def _next_earliest(self, state: NamespaceState) -> int:
        start = layout.slot_key(state.namespace_id, state.earliest)
        for key in self._database.keys(layout.HEADERS, start, layout.after(state.namespace_id)):
            if self._slots.get(key[: layout.SLOT_BYTES]) != {}:
                return layout.split_slot(key)[1]
        return 0


def _crown(state: NamespaceState, rows: SlotRows, header: MsgHeader) -> None:
    """The head shows the lowest content of its slot; ``header`` is the newest one there."""
    best = min(rows)
    crowned = header if best == header.content_id else MsgHeader.decode(rows[best].header)
    state.latest_hash = crowned.header_hash
    state.latest_timestamp = crowned.timestamp
