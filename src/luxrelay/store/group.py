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

Source: decisions P1, P9, P14, P27, J4, J6, J8, J11; LP-6421 §3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from luxrelay.bus import ContentId, MsgHeader, NamespaceId
from luxrelay.errors import StoreError
from luxrelay.store import blobs, layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.layout import BlobPlace, MessageRow
from luxrelay.store.ledger import Ledger
from luxrelay.store.messages import IncomingMessage, PutOutcome
from luxrelay.store.namespaces import NamespaceState
from luxrelay.store.quota import Lack, Shortage
from luxrelay.store.rocks import Database
from luxrelay.store.slots import Candidate, Equivocation, settle

SlotRows = dict[ContentId, MessageRow]
_NEVER = 2**64
_NEIGHBOUR_DISTANCE = 16
"""Sequences that one scan may read in vain to reach the next slot."""


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
        self._written: dict[bytes, tuple[bytes, bytes]] = {}
        """Message id and last row written, by slot; the row is empty where one only went."""
        self._references = blobs.References()
        self._messages = 0
        self._size_bytes = 0
        self._accounts: dict[NamespaceId, NamespaceId] = {}
        self._growth: dict[NamespaceId, int] = {}
        self._added: list[ContentId] = []
        self._removed: list[ContentId] = []
        self._held = 0
        self._holding: set[NamespaceId] = set()
        self._first_expiry = _NEVER
        self._first_time = _NEVER
        self.shortage: Shortage | None = None
        """What the last message that is FULL lacked."""
        self.equivocations = 0
        """Slots in which a sender turned up with a second content (H17)."""
        self.evidence: list[Equivocation] = []
        """Both headers of each."""

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
        known_equivocations = self.equivocations
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
            self.equivocations = known_equivocations  # the message may come again with room
            del self.evidence[known_equivocations:]
            return PutOutcome.FULL
        for gone in leaving:
            self._erase(state, slot, rows, gone)
        self._write(slot + content, row, message.blob)
        self._change(state)
        rows[content] = row
        self._added.append(content)
        if header.seq >= state.latest:
            _crown(state, rows, header)
        state.hold(header.seq)
        self._count(state, 1, charge)
        self._first_expiry = min(self._first_expiry, expires_at)
        self._first_time = min(self._first_time, header.timestamp)
        return PutOutcome.STORED

    def foresee(self, keys: Iterable[bytes]) -> None:
        """The slots of ``keys`` are read, neighbours in one scan.

        A slot is read when it is needed in any case; a thousand of one namespace are read ten times
        faster so.
        """
        wanted = sorted({key[: layout.SLOT_BYTES] for key in keys} - self._slots.keys())
        for first, last in _neighbours(wanted):
            stored = self._database.scan(layout.HEADERS, wanted[first], layout.after(wanted[last]))
            self._slots.update((slot, {}) for slot in wanted[first : last + 1])
            for key, value in stored:
                rows = self._slots.get(key[: layout.SLOT_BYTES])
                if rows is not None:
                    rows[ContentId(key[layout.SLOT_BYTES :])] = layout.decode_row(value)

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

    def set_aside(self, expires_at: bytes, key: bytes) -> None:
        """The message ``key`` is past its time and waits for the archive (J8)."""
        self._batch.delete(layout.EXPIRIES, expires_at + key)
        self._batch.put(layout.HELD, key, b"")
        self._held += 1
        self._holding.add(layout.split_slot(key)[0])

    def is_unread(self, key: bytes) -> bool:
        """Return True when an archive reads the namespace of ``key`` and has not come so far."""
        namespace, seq = layout.split_slot(key)
        watermark = self._ledger.watermark(self._known(namespace))
        return watermark is not None and seq > watermark

    def hand_off(self, namespace: NamespaceId, parent: NamespaceId, seq: int | None) -> bool:
        """The archive has read up to ``seq`` or further; None ends the handoff.

        Returns False when one namespace more is too many.
        """
        state = self._state(namespace, parent)
        if self._is_one_too_many(namespace):
            return False
        raised = seq if seq is None else max(seq, state.watermark or 0)
        if raised != state.watermark:
            state.watermark = raised
            self._change(state)
        return True

    def skip_to(self, namespace: NamespaceId, parent: NamespaceId, seq: int) -> bool:
        """Nothing at or below ``seq`` is expected; False when one namespace more is too many."""
        state = self._state(namespace, parent)
        if self._is_one_too_many(namespace):
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
                self._batch.delete(layout.SLOTS, self._written[slot][0])
        for commitment in self._references.unneeded(self._database):
            self._batch.delete(layout.BLOBS, commitment)
        changed = [self._states[namespace] for namespace in self._changed]
        for state in changed:
            if self._slots.get(layout.slot_key(state.namespace_id, state.earliest)) == {}:
                state.earliest = self._next_earliest(state)
            self._batch.put(layout.NAMESPACES, state.namespace_id, layout.encode_state(state))
        if not len(self._batch):
            return False
        ledger = self._ledger
        with ledger.lock:
            self._database.write(self._batch)
            ledger.publish(changed, self._messages, self._size_bytes)
            ledger.tree.xor_batch(self._added)
            ledger.tree.xor_batch(self._removed, removed=True)
        self._warm()
        ledger.held += self._held
        ledger.holding |= self._holding
        ledger.expiry_hint = min(ledger.expiry_hint, self._first_expiry)
        ledger.time_hint = min(ledger.time_hint, self._first_time)
        return True

    @property
    def size_bytes(self) -> int:
        """Logical bytes of the store once the group is committed."""
        return self._ledger.size_bytes + self._size_bytes

    def _warm(self) -> None:
        """The hot cache has the slots of this group as they stand now."""
        hot = self._ledger.hot
        for slot, (name, row) in self._written.items():
            if row and len(self._slots[slot]) == 1:
                hot.keep(name, row)
            else:
                hot.drop(name)

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
            self._move(state, parent)
        return state

    def _move(self, state: NamespaceState, parent: NamespaceId) -> None:
        """Stand under ``parent``, with every byte in the account that this means."""
        before = self._account(state)
        del self._accounts[state.namespace_id]
        state.parent = parent
        after = self._account(state)
        self._growth[before] = self._growth.get(before, 0) - state.size_bytes
        self._growth[after] = self._growth.get(after, 0) + state.size_bytes

    def _account(self, state: NamespaceState) -> NamespaceId:
        account = self._accounts.get(state.namespace_id)
        if account is None:
            account = self._ledger.quotas.account_of(state.namespace_id, state.parent)
            self._accounts[state.namespace_id] = account
        return account

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
                if row.sender == sender:
                    self.equivocations += 1
                    self.evidence.append(Equivocation(row.header, header.encode()))
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

    def _is_one_too_many(self, namespace: NamespaceId) -> bool:
        if namespace in self._ledger.states or namespace in self._changed:
            return False
        return len(self._ledger.states) + self._created >= self._config.namespaces_max

    def _fits(self, state: NamespaceState, growth: int) -> bool:
        """Return True when ``growth`` more bytes have room; else `shortage` says what lacks."""
        account = self._account(state)
        lack = None
        if self._is_one_too_many(state.namespace_id):
            lack = Lack.NAMESPACES
        elif growth > 0:
            quotas = self._ledger.quotas
            quota = quotas.quota(account)
            held = quotas.size_bytes(account) + self._growth.get(account, 0)
            if growth > min(quota, self._config.max_storage_bytes):
                lack = Lack.DENIED
            elif held + growth > quota:
                lack = Lack.ACCOUNT
            elif self.size_bytes + growth > self._config.max_storage_bytes:
                lack = Lack.STORE
        self.shortage = None if lack is None else Shortage(lack, account)
        return lack is None

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
        value = layout.encode_row(row)
        self._written[key[: layout.SLOT_BYTES]] = (rows[layout.SLOTS_ROW][1], value)
        rows.append((layout.HEADERS, key, value))
        self._batch.put_rows(rows)
        if row.place is BlobPlace.APART and blob is not None:
            self._batch.put(layout.BLOBS, row.commitment, blob)
            self._references.add(key, row)

    def _erase(
        self, state: NamespaceState, slot: bytes, rows: SlotRows, content: ContentId
    ) -> None:
        key, row = slot + content, rows.pop(content)
        index = layout.index_rows(key, row)
        name = index.pop(layout.SLOTS_ROW)[1]  # its row is shared by the slot's candidates
        index.append((layout.HEADERS, key, b""))
        self._batch.delete_rows(index)
        self._written.setdefault(slot, (name, b""))
        holding = state.namespace_id in self._ledger.holding
        if holding and self._database.get(layout.HELD, key) is not None:
            self._batch.delete(layout.HELD, key)
            self._held -= 1
        self._removed.append(content)
        self._references.remove(key, row)
        self._thinned.add(slot)
        self._count(state, -1, -layout.charge_bytes(row))

    def _count(self, state: NamespaceState, messages: int, size_bytes: int) -> None:
        state.messages += messages
        state.size_bytes += size_bytes
        self._messages += messages
        self._size_bytes += size_bytes
        account = self._account(state)
        self._growth[account] = self._growth.get(account, 0) + size_bytes

    def _next_earliest(self, state: NamespaceState) -> int:
        start = layout.slot_key(state.namespace_id, state.earliest)
        for key in self._database.keys(layout.HEADERS, start, layout.after(state.namespace_id)):
            if self._slots.get(key[: layout.SLOT_BYTES]) != {}:
                return layout.split_slot(key)[1]
        return 0


def _neighbours(slots: list[bytes]) -> Iterator[tuple[int, int]]:
    """Yield first and last index of runs of sorted slots that lie close in one namespace."""
    first = 0
    for at in range(1, len(slots) + 1):
        if at < len(slots):
            namespace, seq = layout.split_slot(slots[at])
            before, previous = layout.split_slot(slots[at - 1])
            if namespace == before and seq - previous <= _NEIGHBOUR_DISTANCE:
                continue
        yield first, at - 1
        first = at


def _crown(state: NamespaceState, rows: SlotRows, header: MsgHeader) -> None:
    """The head shows the lowest content of its slot; ``header`` is the newest one there."""
    best = min(rows)
    crowned = header if best == header.content_id else MsgHeader.decode(rows[best].header)
    state.latest_hash = crowned.header_hash
    state.latest_timestamp = crowned.timestamp
