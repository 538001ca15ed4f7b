"""`Appender`: messages above the head of their namespace, decided and written in one pass.

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

Source: decisions P9, P14, P25.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha3_256
from itertools import islice
from typing import Final

from luxrelay.bus import MsgHeader, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.messages import IncomingMessage
from luxrelay.store.namespaces import NamespaceState
from luxrelay.store.rows import Part, Plain, Rows
from luxrelay.store.slices import NEVER, Slice

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
            if (
                not first_ms <= expires_at < end_ms
                or blob_len > inline_max
                or spent + charge > self._room
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
