"""`Group`: one atomic batch under construction.

Theory of operation
-------------------
*Decides* what becomes of each message: outcome, slot, rows to write and to delete, counters.
*Does not know* locks, threads, fsync; the writer makes one group at a time. How rows look in a
slice, and what that does to the slice's sums: `Rows`.
*State*: copies of the namespace states it touches and, for each slot it touches, the rows that
stand there once the batch is written, encoded. Nothing is visible in the ledger or on disk before
`commit`; a group that is dropped, or whose write fails, has changed nothing.
*The common case* is a message above the head of its namespace, with room to spare: `Appender`
decides runs of those in one pass, `place` decides every other message.
*Order inside the batch*: rows are put and deleted as decided, later ones win; what depends on the
final picture (emptied slots, unneeded blobs, sums, state rows) comes last.
*Bounds*: the caller's: group_messages_max, group_bytes_max, gc_chunk_size.
*What else to change when you change this*: `layout.index_rows`, `audit`, tests/oracle/store.py.

`TouchedSlots`: the slots that a batch under construction has to do with, as it leaves them.

A slot is read when it is needed; what a group then puts or takes away shows here at once and on
disk when the group is committed. Neighbours are read in one scan: a thousand slots of one namespace
so take a tenth of the time.

`Appender`: messages above the head of their namespace, decided and written in one pass.

Theory of operation
-------------------
*Decides* which messages of a list are plain, and makes all rows of those: the hot loop of ingest.
*A plain message* is newer than every other of a namespace that is known under the same parent,
expires in the slice at hand, has a small blob or none, and finds room without looking closely: the
whole run has to fit into the room of each account that it touches. Nothing about such a message
needs to be read. The first that is not plain ends the run; `Group.place` decides it.
*Cost*: what a message needs is a local name; sums, senders and heads are taken once a namespace
when the run ends. No object is made that is not written, save one list entry.
*Bounds*: the caller's: one group.
*What else to change when you change this*: `Rows.add` and `layout.index_rows`, which make the same
rows one by one; `NamespaceState.hold`, which moves a head the same way.

Source: LP-6421 §3.2; decisions P1, P9, P14, P27, J4, J6, J8, J11, P10; decisions P9, P14, P25.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha3_256
from itertools import chain, islice
from typing import Final

from luxrelay.bus import ContentId, MsgHeader, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.bus.finality import FinalityState
from luxrelay.errors import StoreError
from luxrelay.store import blobs, layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.layout import BlobPlace, MessageRow
from luxrelay.store.ledger import Ledger
from luxrelay.store.messages import IncomingMessage, PutOutcome
from luxrelay.store.namespaces import (
    Equivocation,
    Lack,
    NamespaceState,
    Shortage,
    SlotCandidate,
    settle,
)
from luxrelay.store.rocks import Database
from luxrelay.store.slices import NEVER, Slice, Slices, expiry_of
from luxrelay.store.writing.rows import Part, Plain, Rows

_SLOT: Final = c.OFFSET_NAMESPACE
_STAMP: Final = c.OFFSET_TIMESTAMP
_COMMITMENT: Final = c.OFFSET_COMMITMENT
_COMMITMENT_END: Final = c.OFFSET_BLOB_LEN


class Tail:
    """The end of a namespace, to which a run appends."""

    __slots__ = (
        "_first",
        "keys",
        "newest",
        "next",
        "parent",
        "rows",
        "senders",
        "size_bytes",
        "state",
        "values",
    )

    def __init__(self, state: NamespaceState, first: int) -> None:
        """Append to ``state`` from the sequence ``first`` on."""
        self.state = state
        self.parent = state.parent
        self._first = first
        whole = state.latest == state.contiguous and not state.runs
        self.next = state.latest + 1 if whole else 0
        """The sequence that leaves no hole; 0 when there are holes already."""
        self.keys: list[bytes] = []
        """The key of each message appended."""
        self.rows: list[bytes] = []
        """Its encoded row."""
        self.values: list[bytes] = []
        """The value of its ``contents`` row."""
        self.senders: list[bytes] = []
        """Its senderPubKey field."""
        self.size_bytes = 0
        """Their logical bytes."""
        self.newest: MsgHeader | None = None

    def jump(self, seq: int) -> bool:
        """Return True when ``seq``, which is not the next, is above the head as well."""
        state = self.state
        self._catch_up()
        if seq <= state.latest:
            return False
        state.hold(seq)
        self.next = 0
        return True

    def close(self, part: Part, due: int) -> None:
        """State and ``part`` have what was appended; none of it expires before ``due``."""
        state, newest = self.state, self.newest
        assert newest is not None
        self._catch_up()
        state.earliest = state.earliest or self._first
        state.messages += len(self.senders)
        state.size_bytes += self.size_bytes
        state.latest_hash, state.latest_timestamp = newest.header_hash, newest.timestamp
        part.messages += len(self.senders)
        part.size_bytes += self.size_bytes
        part.first = part.first or self._first
        part.last, part.exact = state.latest, True
        part.due = min(part.due, due)
        first, many = self.senders[0], len(self.senders)
        alone = self.senders.count(first) == many  # as in every lane
        for sender, number in [(first, many)] if alone else Counter(self.senders).items():
            part.senders[sender] = part.senders.get(sender, 0) + number

    def _catch_up(self) -> None:
        if self.next:
            self.state.latest = self.state.contiguous = self.next - 1


class Appender:
    """One run over a list of messages; `append`, then take the sums."""

    __slots__ = (
        "_config",
        "_find",
        "_room",
        "_rows",
        "_where",
        "due",
        "first_time",
        "plain",
        "size_bytes",
        "tails",
    )

    def __init__(
        self,
        where: Slice,
        rows: Rows,
        config: RelayStoreConfig,
        find: Callable[[IncomingMessage], tuple[NamespaceState, int] | None],
    ) -> None:
        """Append to ``where``.

        ``find`` gives the state to which a message may be appended, and the bytes for which its
        account and the store have room; None when the message has to be looked at closely.
        """
        self._where = where
        self._rows = rows
        self._config = config
        self._find = find
        self._room = NEVER
        """Bytes that the whole run may take."""
        self.tails: dict[NamespaceId, Tail] = {}
        """The namespaces met; one may have nothing appended."""
        self.plain = Plain()
        """The rows of the messages appended."""
        self.size_bytes = 0
        """Their logical bytes."""
        self.first_time = NEVER
        """The lowest timestamp among them."""
        self.due = NEVER
        """The earliest expires_at among them."""

    def append(self, messages: Sequence[IncomingMessage], start: int, now_ms: int) -> None:
        """Every message from ``start`` to before the first that is not plain is in the batch."""
        # Local names from here on: every message passes here, and each attribute is looked up anew
        # in Python.
        where, config, tail_of = self._where, self._config, self.tails.get
        first_ms, end_ms = max(where.first_ms, now_ms + 1), where.end_ms
        ttl_ms, window_ms = config.cold_store_ttl_ms, config.retention_window_ms
        inline_max, costs = config.inline_blob_bytes_max, layout.INDEX_COSTS
        plain, pack_head = self.plain, layout.pack_head
        names, contents, add_row = plain.names, plain.contents, plain.rows.append
        add_reference = plain.references.append
        due, first_time, spent, blob_bytes = NEVER, NEVER, 0, 0
        for message in islice(messages, start, None):
            header, blob, source = message.header, message.blob or b"", message.source
            tail = tail_of(header.namespace_id) or self._enter(message)
            if tail is None:
                break
            encoded, seq, timestamp = header.encode(), header.seq, header.timestamp
            received_at, blob_len = message.received_at, len(blob)
            expires_at = (received_at if received_at < timestamp else timestamp) + ttl_ms
            if expires_at > timestamp + window_ms:
                expires_at = timestamp + window_ms
            charge = costs[blob_len > 0] + len(encoded) + len(source) + blob_len
            # What would need a standing row, another slice, an eviction or further rows ends here.
            if (
                not first_ms <= expires_at < end_ms
                or blob_len > inline_max
                or spent + charge > self._room
                or message.sidecar is not None
                or message.parent != tail.parent
                or (seq != tail.next and not tail.jump(seq))
            ):
                break
            spent += charge
            if tail.next:
                tail.next = seq + 1
            tail.size_bytes += charge
            tail.senders.append(header.sender_pub_key)
            tail.newest = header
            if expires_at < due:
                due = expires_at
            if timestamp < first_time:
                first_time = timestamp
            content, slot = header.content_id, encoded[_SLOT:_STAMP]
            # Keys and rows are cut from the bytes that came: no field is encoded a second time.
            key, lengths = slot + content, (blob_len, len(source), len(encoded))
            row = pack_head(received_at, expires_at, 0, blob_len > 0, *lengths)
            names[sha3_256(slot).digest()] = slot
            contents[content] = value = encoded[_SLOT:_COMMITMENT] + row[8:16]
            row += source + encoded + blob
            if blob:
                add_reference(b"r" + encoded[_COMMITMENT:_COMMITMENT_END] + key)
            add_row(row)
            tail.keys.append(key)
            tail.rows.append(row)
            tail.values.append(value)
            blob_bytes += blob_len
        self.size_bytes, self.first_time, self.due = spent, first_time, due
        if plain.rows:
            plain.blob_bytes = blob_bytes
            plain.runs = [(each.keys, each.rows, each.values) for each in self.tails.values()]
            self._rows.append(where, plain)

    def _enter(self, message: IncomingMessage) -> Tail | None:
        """Return the end of a namespace met for the first time; None: look closely."""
        found = self._find(message)
        if found is None:
            return None
        state, room = found
        self._room = min(self._room, room)
        tail = self.tails[state.namespace_id] = Tail(state, message.header.seq)
        return tail


SlotRows = dict[ContentId, bytes]
"""Encoded header rows by content id."""
NEIGHBOUR_DISTANCE: Final = 16
"""Sequences that one scan may read in vain to reach the next slot."""


class TouchedSlots:
    """Rows by slot."""

    __slots__ = ("_appended", "_slices", "rows")

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self.rows: dict[bytes, SlotRows] = {}
        """What stands in each slot touched; of plain messages, once another slot was."""
        self._appended: list[Plain] = []

    def appended(self, plain: Plain) -> None:
        """Plain messages stand in slots of their own."""
        self._appended.append(plain)
        if self.rows:
            self._take_in()

    def _take_in(self) -> None:
        for keys, values, _ in chain.from_iterable(plain.runs for plain in self._appended):
            for key, row in zip(keys, values, strict=True):
                self.rows[key[: layout.SLOT_BYTES]] = {ContentId(key[layout.SLOT_BYTES :]): row}
        self._appended.clear()

    def read(self, state: NamespaceState, slot: bytes, seq: int) -> SlotRows:
        """Return the rows of a slot, read at its first use."""
        if self._appended:
            self._take_in()
        known = self.rows.get(slot)
        if known is None:
            known = self.rows[slot] = {}
            if state.holds(seq):
                for key, value in self._slices.scan(layout.HEADERS, slot, layout.after(slot)):
                    known[ContentId(key[layout.SLOT_BYTES :])] = value
        return known

    def foresee(self, keys: Iterable[bytes]) -> None:
        """The slots of ``keys`` are read, neighbours in one scan."""
        wanted = sorted({key[: layout.SLOT_BYTES] for key in keys} - self.rows.keys())
        for first, last in _neighbours(wanted):
            stored = self._slices.scan(layout.HEADERS, wanted[first], layout.after(wanted[last]))
            self.rows.update((slot, {}) for slot in wanted[first : last + 1])
            for key, value in stored:
                rows = self.rows.get(key[: layout.SLOT_BYTES])
                if rows is not None:
                    rows[ContentId(key[layout.SLOT_BYTES :])] = value


def _neighbours(slots: list[bytes]) -> Iterator[tuple[int, int]]:
    """Yield first and last index of runs of sorted slots that lie close in one namespace."""
    first = 0
    for at in range(1, len(slots) + 1):
        if at < len(slots):
            namespace, seq = layout.split_slot(slots[at])
            before, previous = layout.split_slot(slots[at - 1])
            if namespace == before and seq - previous <= NEIGHBOUR_DISTANCE:
                continue
        yield first, at - 1
        first = at


def crown(state: NamespaceState, rows: SlotRows, header: MsgHeader) -> None:
    """The head shows the lowest content of its slot; ``header`` is the newest one there."""
    crowned = header
    if len(rows) > 1 and (best := min(rows)) != header.content_id:
        crowned = MsgHeader.decode(layout.decode_row(rows[best]).header)
    state.latest_hash = crowned.header_hash
    state.latest_timestamp = crowned.timestamp


def is_final(rows: SlotRows) -> bool:
    """Return True when consensus has decided for a content of the slot (P40)."""
    return any(layout.finality_of(value) == FinalityState.FINALIZED for value in rows.values())


def new_row(message: IncomingMessage, expires_at: int, inline_bytes_max: int) -> MessageRow:
    """Return the header row of a message that comes."""
    blob = message.blob or b""
    place = blobs.place_of(blob, inline_bytes_max)
    return MessageRow(
        message.received_at,
        expires_at,
        0,
        place,
        len(blob),
        message.source,
        message.header.encode(),
        blob if place is BlobPlace.INLINE else b"",
        len(message.sidecar or b""),
    )


_NEVER = 2**64


class Group:
    """Decides messages one by one; `commit` makes all of it true at once."""

    def __init__(self, database: Database, ledger: Ledger, config: RelayStoreConfig) -> None:
        self._database = database
        self._ledger = ledger
        self._slices = ledger.slices
        self._config = config
        self._batch = database.batch()
        self._rows = Rows(ledger.slices, self._batch)
        self._states: dict[NamespaceId, NamespaceState] = {}
        self.changed: set[NamespaceId] = set()
        """Namespaces whose state changes."""
        self._created = 0
        self._revived: set[NamespaceId] = set()
        """Namespaces that had made room for others and are known again."""
        self._idle: list[NamespaceId] = []
        self._touched = TouchedSlots(ledger.slices)
        self._messages = 0
        self._size_bytes = 0
        self._accounts: dict[NamespaceId, NamespaceId] = {}
        self._growth: dict[NamespaceId, int] = {}
        self._quota_room: dict[NamespaceId, int] = {}
        """Bytes by which an account may have grown once the group is committed."""
        self._store_room = config.max_storage_bytes - ledger.size_bytes
        """The same for the store."""
        self._slice: Slice | None = None
        """Where the last message went."""
        self._held = 0
        self._holding: set[NamespaceId] = set()
        self._first_time = _NEVER
        self.shortage: Shortage | None = None
        """What the last message that is FULL lacked."""
        self.equivocations = 0
        """Slots in which a sender turned up with a second content (H17)."""
        self.evidence: list[Equivocation] = []
        """Both headers of each."""

    def place_plain(self, messages: Sequence[IncomingMessage], start: int, now_ms: int) -> int:
        """Every message from ``start`` to before the one returned is stored; `place` decides it."""
        if start == len(messages):
            return start
        if self._slice is None:
            first = messages[start]
            expires_at = expiry_of(self._config, first.received_at, first.header.timestamp)
            self._slice = self._slices.at(expires_at)
            if self._slice is None:
                return start
        run = Appender(self._slice, self._rows, self._config, self._appendable)
        run.append(messages, start, now_ms)
        stored = len(run.plain.rows)
        if not stored:
            return start
        for namespace, tail in run.tails.items():
            if tail.senders:
                tail.close(self._rows.part(self._slice, namespace), run.due)
                self._change(tail.state)
                account = self._accounts[namespace]
                self._growth[account] = self._growth.get(account, 0) + tail.size_bytes
        self._touched.appended(run.plain)
        self._messages += stored
        self._size_bytes += run.size_bytes
        self._first_time = min(self._first_time, run.first_time)
        return start + stored

    def _appendable(self, message: IncomingMessage) -> tuple[NamespaceState, int] | None:
        """Return the state of a message's namespace and the room for it; None for a closer look."""
        namespace = message.header.namespace_id
        known = self._states.get(namespace) or self._ledger.states.get(namespace)
        if known is None or known.parent != message.parent:
            return None
        state = self._state(namespace, message.parent)
        account = self._account(state)
        room = self._room_of(account) - self._growth.get(account, 0)
        return state, min(room, self._store_room - self._size_bytes)

    def place(self, message: IncomingMessage, now_ms: int) -> PutOutcome:
        """Decide one message."""
        header = message.header
        expires_at = expiry_of(self._config, message.received_at, header.timestamp)
        if expires_at <= now_ms:
            return PutOutcome.EXPIRED
        state = self._states.get(header.namespace_id)
        if state is None or state.parent != message.parent:
            state = self._state(header.namespace_id, message.parent)
        slot = layout.slot_key(header.namespace_id, header.seq)
        rows = self._touched.read(state, slot, header.seq)
        content = header.content_id
        if not rows and header.seq <= state.contiguous and self._is_thinned(slot):
            return PutOutcome.LOST_SLOT
        leaving: list[ContentId] = []
        known_equivocations = self.equivocations
        if rows:
            held = rows.get(content)
            if held is not None:
                if layout.expires_at_of(held) <= now_ms:
                    return PutOutcome.EXPIRED
                self._complete(state, slot + content, rows, message)
                return PutOutcome.DUPLICATE
            leaving = self._leaving(rows, header, now_ms)
            if content in leaving:
                return PutOutcome.LOST_SLOT
        row = new_row(message, expires_at, self._config.inline_blob_bytes_max)
        charge = layout.charge_bytes(row)
        freed = sum([layout.charge_bytes(layout.decode_row(rows[gone])) for gone in leaving])
        if not self._fits(state, charge - freed):
            self.equivocations = known_equivocations  # the message may come again with room
            del self.evidence[known_equivocations:]
            return PutOutcome.FULL
        for gone in leaving:
            self._erase(state, slot, rows, gone)
        self._add(state, rows, message, row, charge)
        return PutOutcome.STORED

    def _add(
        self,
        state: NamespaceState,
        rows: SlotRows,
        message: IncomingMessage,
        row: MessageRow,
        charge: int,
    ) -> None:
        """The message stands in its slot beside ``rows``."""
        header, namespace, expires_at = message.header, state.namespace_id, row.expires_at
        slot, content = layout.slot_key(namespace, header.seq), header.content_id
        self._change(state)
        chosen = self._slice
        if chosen is None or not chosen.first_ms <= expires_at < chosen.end_ms:
            chosen = self._slice = self._slices.take(expires_at)
        if rows:
            self._rows.contend(slot)
        rows[content] = layout.encode_row(row)
        part = self._rows.part(chosen, slot)
        part.count(header.seq, charge, expires_at, header.sender_pub_key)
        self._rows.add(part, slot, content, row, rows[content])
        if row.place is BlobPlace.APART and message.blob is not None:
            self._rows.add_blob(chosen, slot + content, header.blob_commitment, message.blob)
        if message.sidecar is not None:
            self._rows.add_sidecar(chosen, slot + content, message.sidecar)
        if header.seq >= state.latest:
            crown(state, rows, header)
        state.hold(header.seq)
        self._count(state, 1, charge)
        self._first_time = min(self._first_time, header.timestamp)

    def foresee(self, keys: Iterable[bytes]) -> None:
        """The slots of ``keys`` are read, neighbours in one scan."""
        self._touched.foresee(keys)

    def forget(self, key: bytes) -> NamespaceId:
        """The message ``key`` is gone and nothing at or below it is expected any more."""
        namespace, seq = layout.split_slot(key)
        state = self._known(namespace)
        slot, content = key[: layout.SLOT_BYTES], ContentId(key[layout.SLOT_BYTES :])
        rows = self._touched.read(state, slot, seq)
        if content in rows:
            self._erase(state, slot, rows, content)
        state.raise_floor(seq)
        self.changed.add(namespace)
        return namespace

    def set_aside(self, where: Slice, key: bytes) -> bool:
        """The message ``key`` is past its time and waits for the archive (J8); False: it did."""
        if where.held and where.get(layout.HELD, key) is not None:
            return False
        self._rows.hold(where, key)
        self._held += 1
        self._holding.add(layout.split_slot(key)[0])
        return True

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

    def resume(self, namespace: NamespaceId, old: NamespaceState) -> None:
        """The head of ``namespace`` is no lower than ``old``, and so are floor and watermark."""
        state = self._state(namespace, old.parent)
        state.raise_floor(old.floor)
        if old.latest > state.latest:
            state.latest = old.latest
            state.latest_hash, state.latest_timestamp = old.latest_hash, old.latest_timestamp
        state.finalized = max(state.finalized, old.finalized)
        state.watermark = old.watermark
        self._change(state)

    def skip_to(self, namespace: NamespaceId, parent: NamespaceId, seq: int) -> bool:
        """Nothing at or below ``seq`` is expected; False when one namespace more is too many."""
        state = self._state(namespace, parent)
        if self._is_one_too_many(namespace):
            return False
        if seq > state.floor:
            state.raise_floor(seq)
            self._change(state)
        return True

    def let_go(self, gone: Slice) -> int:
        """A whole slice is gone, and its sums with it; return how many went unread (J8)."""
        unread = 0
        for namespace, share in gone.shares.items():
            state = self._known(namespace)
            unread += self.unread_in(gone, namespace)
            last = share.last if share.exact else gone.last_of(namespace)
            state.raise_floor(last)
            state.messages -= share.messages
            state.size_bytes -= share.size_bytes
            self.changed.add(namespace)
            if state.earliest <= last:
                state.earliest = self._slices.earliest_without(gone, namespace)
        for namespace, last in gone.last_thinned().items():
            if namespace in self._ledger.states:
                self._known(namespace).raise_floor(last)
                self.changed.add(namespace)
        self._batch.delete(layout.META, layout.slice_key(gone.number))
        self._messages -= gone.messages
        self._size_bytes -= gone.size_bytes
        self._held -= gone.held
        self._rows.let_go(gone)
        return unread

    def may_drop(self, chosen: Slice, cutoff_ms: int) -> bool:
        """Return True when a slice that is past its time may go as a whole.

        Not while the archive has something to read in it that is not past the cut-off (J8).
        """
        if not any(self._is_behind(chosen, namespace) for namespace in chosen.shares):
            return True
        newest = chosen.table.last_key(b"", b"", layout.TIMES)
        return newest is None or layout.read_u64(newest) <= cutoff_ms

    def _is_behind(self, chosen: Slice, namespace: NamespaceId) -> bool:
        watermark = self._ledger.watermark(self._known(namespace))
        return watermark is not None and chosen.shares[namespace].last > watermark

    def unread_in(self, chosen: Slice, namespace: NamespaceId) -> int:
        """Return how many messages of a namespace in a slice the archive has not read (J8)."""
        if not self._is_behind(chosen, namespace):
            return 0
        watermark = self._ledger.watermark(self._known(namespace)) or 0
        start, stop = layout.slot_key(namespace, watermark + 1), layout.after(namespace)
        return sum(1 for _ in chosen.table.keys(start, stop, layout.HEADERS))

    def make_room(self, state: NamespaceState) -> None:
        """A namespace without messages is on the disk alone, so that others find a place."""
        name = state.namespace_id
        self._batch.delete(layout.NAMESPACES, name)
        self._batch.delete(layout.LANES, state.parent + name)
        self._batch.put(layout.FORGOTTEN, name, layout.encode_state(state))
        self._idle.append(name)

    def commit(self) -> bool:
        """Everything decided is in the database and in the ledger; False when it was nothing.

        Raises:
            StoreError: nothing has changed.

        """
        self._rows.finish(self._touched.rows)
        changed = [self._states[namespace] for namespace in self.changed]
        for name in self._revived & self.changed:
            self._batch.delete(layout.FORGOTTEN, name)
        for state in changed:
            if self._touched.rows.get(layout.slot_key(state.namespace_id, state.earliest)) == {}:
                state.earliest = self._next_earliest(state)
            self._batch.put(layout.NAMESPACES, state.namespace_id, layout.encode_state(state))
        if not len(self._batch):
            return False
        ledger = self._ledger
        with ledger.lock:
            self._database.write(self._batch)
            ledger.publish(changed, self._messages, self._size_bytes)
            self._rows.publish(ledger.tree)
            ledger.forget(self._idle)
            ledger.forgotten -= len(self._revived & self.changed)
        self._rows.warm(ledger.hot, self._touched.rows)
        ledger.held += self._held
        ledger.holding |= self._holding
        ledger.came(self._first_time)
        return True

    @property
    def size_bytes(self) -> int:
        """Logical bytes of the store once the group is committed."""
        return self._ledger.size_bytes + self._size_bytes

    def _state(self, namespace: NamespaceId, parent: NamespaceId) -> NamespaceState:
        state = self._states.get(namespace)
        if state is None:
            published = self._ledger.states.get(namespace)
            state = published.copy() if published else self._ledger.remembered(namespace)
            if state is None:
                state = NamespaceState(namespace_id=namespace, parent=parent)
            elif not published:
                self._revived.add(namespace)
            self._states[namespace] = state
        if parent != state.parent and state.parent == namespace:
            # Seen without its parent so far; a lane has only one by construction (J6).
            if namespace in self._ledger.states or namespace in self.changed:
                self._batch.delete(layout.LANES, state.parent + namespace)
                self._batch.put(layout.LANES, parent + namespace, b"")
                self.changed.add(namespace)
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
        if namespace not in self.changed:
            self.changed.add(namespace)
            if namespace not in self._ledger.states:
                self._created += 1
                self._batch.put(layout.LANES, state.parent + namespace, b"")

    def _leaving(self, rows: SlotRows, header: MsgHeader, now_ms: int) -> list[ContentId]:
        """Return which contents the slot gives up for this one, perhaps this one itself (J11)."""
        sender = header.sender_pub_key
        candidates = [SlotCandidate(header.content_id, sender)]
        for content, value in rows.items():
            row = layout.decode_row(value)
            if row.expires_at > now_ms:
                candidates.append(SlotCandidate(content, row.sender))
                if row.sender == sender:
                    self.equivocations += 1
                    self.evidence.append(Equivocation(row.header, header.encode()))
        if is_final(rows):
            return [header.content_id]
        kept = {candidate.content_id for candidate in settle(candidates)}
        return [content for content in (*rows, header.content_id) if content not in kept]

    def _is_thinned(self, slot: bytes) -> bool:
        return self._slices.get(layout.THINNED, slot) is not None

    def _is_one_too_many(self, namespace: NamespaceId) -> bool:
        if namespace in self._ledger.states or namespace in self.changed:
            return False
        return len(self._ledger.states) + self._created >= self._config.namespaces_max

    def _fits(self, state: NamespaceState, growth: int) -> bool:
        """Return True when ``growth`` more bytes have room; else `shortage` says what lacks."""
        namespace = state.namespace_id
        account = self._accounts.get(namespace) or self._account(state)
        room = self._room_of(account)
        lack = None
        if namespace not in self.changed and self._is_one_too_many(namespace):
            lack = Lack.NAMESPACES
        elif growth > 0:
            if self._growth.get(account, 0) + growth > room:
                denied = growth > self._ledger.quotas.quota(account)
                lack = Lack.DENIED if denied else Lack.ACCOUNT
            elif self._size_bytes + growth > self._store_room:
                lack = Lack.STORE
            if lack is not None and growth > self._config.max_storage_bytes:
                lack = Lack.DENIED
        self.shortage = None if lack is None else Shortage(lack, account)
        return lack is None

    def _room_of(self, account: NamespaceId) -> int:
        room = self._quota_room.get(account)
        if room is None:
            quotas = self._ledger.quotas
            room = self._quota_room[account] = quotas.quota(account) - quotas.size_bytes(account)
        return room

    def _complete(
        self, state: NamespaceState, key: bytes, rows: SlotRows, message: IncomingMessage
    ) -> None:
        """Add blob and sidecar that were missing, when the message brings them and there is room.

        A sidecar is added only to the header that refers to it (H3).
        """
        content = message.header.content_id
        row = held = layout.decode_row(rows[content])
        blob = message.blob if held.place is BlobPlace.ABSENT else None
        sidecar = message.sidecar
        if held.sidecar_len or held.header != message.header.encode():
            sidecar = None
        if blob:
            place = blobs.place_of(blob, self._config.inline_blob_bytes_max)
            row = row._replace(
                place=place,
                blob_len=len(blob),
                inline_blob=blob if place is BlobPlace.INLINE else b"",
            )
        if sidecar:
            row = row._replace(sidecar_len=len(sidecar))
        if row is held:
            return
        growth = layout.charge_bytes(row) - layout.charge_bytes(held)
        if not self._fits(state, growth):
            return
        where = self._slices.of(row.expires_at)
        rows[content] = layout.encode_row(row)
        attached = row.attached_bytes - held.attached_bytes
        self._rows.replace(where, key, row, rows[content], growth, attached=attached)
        if blob and row.place is BlobPlace.APART:
            self._rows.add_blob(where, key, row.commitment, blob)
        if sidecar:
            self._rows.add_sidecar(where, key, sidecar)
        self._first_time = min(self._first_time, message.header.timestamp)
        self._change(state)
        self._count(state, 0, growth)

    def _erase(
        self, state: NamespaceState, slot: bytes, rows: SlotRows, content: ContentId
    ) -> None:
        row = layout.decode_row(rows.pop(content))
        where = self._slices.of(row.expires_at)
        charge = layout.charge_bytes(row)
        self._held -= self._rows.remove(where, slot, content, row, charge)
        self._count(state, -1, -charge)

    def _count(self, state: NamespaceState, messages: int, size_bytes: int) -> None:
        state.messages += messages
        state.size_bytes += size_bytes
        self._messages += messages
        self._size_bytes += size_bytes
        account = self._accounts.get(state.namespace_id) or self._account(state)
        self._growth[account] = self._growth.get(account, 0) + size_bytes

    def _next_earliest(self, state: NamespaceState) -> int:
        start = layout.slot_key(state.namespace_id, state.earliest)
        for key in self._slices.keys(layout.HEADERS, start, layout.after(state.namespace_id)):
            if self._touched.rows.get(key[: layout.SLOT_BYTES]) != {}:
                return layout.split_slot(key)[1]
        return 0
