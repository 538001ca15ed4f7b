"""Batches of their own kind: thinning, blobs beyond their bounds, finality.

Thinning
--------
Of older messages of some namespaces only every Nth stays, and readers are told.

*Decides* which messages of a namespace with a ratio go: those older than ``thin_after_ms`` whose
sequence is no multiple of the ratio. So relays with one ratio keep the same messages.
*Never goes*: the newest message of a namespace; a finalized one; a slot of which one candidate is
still young; what lies above the contiguous head, whose holes a peer may still fill; anything in a
namespace that an archive reads (J8), because such a namespace is not ephemeral.
*What stays of it* is a row of kind ``thinned`` in the message's slice: slot and headerHash. A page
names the slot among its gaps, a copy that comes again is refused, and the row goes with the slice.
*Machine*: each namespace has a position, the next sequence to look at; it is not stored, so after a
start what is left is looked at once more.
*Bounds*: a step looks at ROWS_PER_MESSAGE times its limit, rows and namespaces together; a pass
begins with one look at every namespace in memory. One position a namespace with a ratio. The rows
of kind ``thinned``, about 100 bytes each, are not counted in size_bytes.
*Deviations*: the document keeps by position in a query, in seconds, and leaves nothing (P17); it
would not leave sequences that sync can read.
*What else to change when you change this*: `query`, `audit`, docs/explanation/store.md.

Blobs
-----
Which are kept: the bounds of the blob cache, and how what is beyond them goes.

A message whose blob is not kept stays whole otherwise: its header is served, its blob is missing.
A sidecar counts as a blob. What is too large or too old is not taken in; above
``blob_cache_bytes`` the blobs of the oldest messages go, by timestamp, until the rest fits; what
has become too old goes with the deletion cycle. A blob goes whether an archive has read it or not.

The bytes are those of each message's blob, as in its charge, also of a blob that several share.

Finality
--------
`FinalGroup`: a batch that takes over what consensus says of messages.

Every candidate of a slot is marked with the state that a statement gave it. Once one is FINALIZED,
the others go in the same batch and none comes any more, however low its content id; REORGED opens
the slot again. A namespace's finalized head is what the oracle says it is, also when it goes back.

The losers of a slot go whether an archive has read them or not: they never were part of history.

Source: LP-6421 §7.1; 21-43, 21-44; LP-6421 §5.1; 21-36; 21-58; decisions J3, P16, P17, P11, P29,
P40, J9, H17.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Final

from luxrelay.bus import ContentId, MsgHeader, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.bus.finality import FinalityRow, FinalityState
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.layout import BlobPlace
from luxrelay.store.ledger import Ledger
from luxrelay.store.messages import IncomingMessage
from luxrelay.store.namespaces import NamespaceState
from luxrelay.store.slices import Slices
from luxrelay.store.writing.batch import Group, crown


class FinalGroup(Group):
    """Takes statements one by one; `commit` makes all of it true at once."""

    superseded = 0
    """Candidates that lost their slot to a finalized one."""

    def take(self, said: FinalityRow, heads: Mapping[NamespaceId, int]) -> bool:
        """One message has the state said; False when it is not here and may come."""
        namespace, seq = said.namespace_id, said.seq
        if namespace not in self._ledger.states:
            return False
        state = self._known(namespace)
        finalized = heads.get(namespace, state.finalized)
        if finalized != state.finalized:
            state.finalized = finalized
            self._change(state)
        slot = layout.slot_key(namespace, seq)
        rows = self._touched.read(state, slot, seq)
        found = {content: layout.decode_row(value) for content, value in rows.items()}
        for content in sorted(found):  # senders of equal headers share a hash: the lowest counts
            row = found[content]
            header = MsgHeader.decode(row.header)
            if header.header_hash == said.header_hash:
                break
        else:
            return seq <= state.floor or self._is_thinned(slot)
        final = said.state is FinalityState.FINALIZED
        if row.finality != said.state:
            row = row._replace(finality=int(said.state))
            rows[content] = layout.encode_row(row)
            where = self._slices.of(row.expires_at)
            self._rows.replace(where, slot + content, row, rows[content])
            self._change(state)
        if final and len(rows) > 1:
            for other in found.keys() - {content}:
                self._erase(state, slot, rows, other)
                self.superseded += 1
            if seq == state.latest:
                crown(state, rows, header)
            self._change(state)
        return True


class BlobGroup(Group):
    """Takes blobs from messages; `commit` makes all of it true at once."""

    def strip(self, key: bytes) -> int:
        """The message ``key`` has no blob and no sidecar; return the bytes that it had of them."""
        namespace, seq = layout.split_slot(key)
        slot, content = key[: layout.SLOT_BYTES], ContentId(key[layout.SLOT_BYTES :])
        state = self._known(namespace)
        rows = self._touched.read(state, slot, seq)
        row = layout.decode_row(rows[content]) if content in rows else None
        if row is None or not row.attached_bytes:
            return 0
        bare = row._replace(place=BlobPlace.ABSENT, blob_len=0, inline_blob=b"", sidecar_len=0)
        growth = layout.charge_bytes(bare) - layout.charge_bytes(row)
        rows[content] = layout.encode_row(bare)
        self._rows.strip(self._slices.of(row.expires_at), key, row, rows[content], growth)
        self._change(state)
        self._count(state, 0, growth)
        return row.attached_bytes


class BlobRoom:
    """The bounds, and what stands above them; all but `admit` under the writer's lock."""

    def __init__(self, ledger: Ledger, config: RelayStoreConfig) -> None:
        self._ledger = ledger
        self._config = config
        self._bound = config.blob_bound()

    def admit(self, messages: Sequence[IncomingMessage], now_ms: int) -> Sequence[IncomingMessage]:
        """Return the messages, those without their blob whose blob is not kept."""
        config = self._config
        largest = config.blob_bytes_max if config.blobs_enabled else 0
        if largest >= c.MAX_BLOB_BYTES and config.blob_ttl_ms is None:
            return messages
        cutoff_ms = self._cutoff_ms(now_ms)
        admitted = []
        for message in messages:
            late = message.header.timestamp <= cutoff_ms
            if message.blob and (late or len(message.blob) > largest):
                message = replace(message, blob=None)  # noqa: PLW2901
            if message.sidecar and (late or len(message.sidecar) > largest):
                message = replace(message, sidecar=None)  # noqa: PLW2901
            admitted.append(message)
        return admitted

    def excess(self) -> int:
        """Return the bytes above the bound; 0 without any."""
        if self._bound is None:
            return 0
        return max(0, sum(each.blob_bytes for each in self._ledger.slices.live) - self._bound)

    def is_due(self, now_ms: int | None) -> bool:
        """Return True when a blob waits to go; ``now_ms`` None asks about bytes only."""
        if self.excess():
            return True
        cutoff_ms = self._cutoff_ms(now_ms)
        oldest = next(self._keys(), None) if cutoff_ms else None
        return oldest is not None and layout.read_u64(oldest) <= cutoff_ms

    def trim(self, group: BlobGroup, now_ms: int | None, limit: int) -> tuple[int, bytes, bool]:
        """Blobs of the oldest messages go, ``limit`` messages looked at.

        Returns:
            Blobs taken; where to go on (`Ledger.blob_hint`) once the group is committed; whether
            nothing more is due.

        """
        excess, cutoff_ms = self.excess(), self._cutoff_ms(now_ms)
        position, taken = self._ledger.blob_hint, 0
        if not excess and not cutoff_ms:
            return 0, position, True
        keys = list(islice(self._keys(), limit))
        for index_key in keys:
            if excess <= 0 and layout.read_u64(index_key) > cutoff_ms:
                return taken, position, True
            freed = group.strip(index_key[8:])
            excess -= freed
            taken += freed > 0
            position = index_key + b"\x00"
        return taken, position, len(keys) < limit

    def _keys(self) -> Iterator[bytes]:
        return self._ledger.slices.keys(layout.TIMES, self._ledger.blob_hint, b"")

    def _cutoff_ms(self, now_ms: int | None) -> int:
        """Return the timestamp up to which blobs are too old; 0 for none."""
        ttl_ms = self._config.blob_ttl_ms
        return 0 if ttl_ms is None or now_ms is None else max(0, now_ms - ttl_ms)


ROWS_PER_MESSAGE: Final = 8
"""Rows that a step may look at for each message it may take."""


class ThinGroup(Group):
    """Takes messages out of the middle; `commit` makes all of it true at once."""

    def thin(self, key: bytes) -> None:
        """The message ``key`` is gone, and its slot is remembered as thinned."""
        namespace, seq = layout.split_slot(key)
        state = self._known(namespace)
        slot, content = key[: layout.SLOT_BYTES], ContentId(key[layout.SLOT_BYTES :])
        rows = self._touched.read(state, slot, seq)
        row = layout.decode_row(rows[content])
        self._erase(state, slot, rows, content)
        digest = MsgHeader.decode(row.header).header_hash
        where = self._slices.of(row.expires_at)
        self._batch.put_rows(where.table, [(layout.THINNED + slot, digest)])
        self._change(state)


class Thinner:
    """Names the messages that go; under the writer's lock."""

    def __init__(self, ledger: Ledger, config: RelayStoreConfig) -> None:
        self._ledger = ledger
        self._config = config
        self._next: dict[NamespaceId, int] = {}
        self._left: list[tuple[NamespaceId, int]] = []
        """Namespaces that this pass has not come to yet, with their ratios."""

    def victims(self, now_ms: int, limit: int) -> tuple[list[bytes], bool]:
        """Return keys of messages to thin, and True when nothing is left to look at."""
        found: list[bytes] = []
        budget = ROWS_PER_MESSAGE * limit
        self._left = self._left or self._thinned()
        while self._left:
            namespace, ratio = self._left[-1]
            state = self._ledger.states.get(namespace)
            if state is None or self._ledger.watermark(state) is not None:
                self._left.pop()  # forgotten, or an archive has come since the pass began
                continue
            for seq, rows in groupby(self._rows(state), lambda row: layout.split_slot(row[0])[1]):
                if budget <= 0 or len(found) >= limit:
                    return found, False
                slot = list(rows)  # one young candidate keeps the others: its slot is no hole
                budget -= len(slot)
                stamps = [layout.decode_row(value).timestamp for _, value in slot]
                if max(stamps) > now_ms - self._config.thin_after_ms:
                    break
                self._next[namespace] = seq
                if seq % ratio:
                    found += [
                        key
                        for key, value in slot
                        if layout.finality_of(value) != FinalityState.FINALIZED
                    ]
            self._left.pop()
            budget -= 1
            if budget <= 0 and self._left:
                return found, False
        self._next = {name: seq for name, seq in self._next.items() if name in self._ledger.states}
        return found, True

    def has_due(self, now_ms: int) -> bool:
        """Return True when a message waits to be thinned, or may: a look is bounded like a step."""
        keys, done = self.victims(now_ms, 1)
        return bool(keys) or not done

    def look_again(self) -> None:
        """What was named has not gone: begin anew."""
        self._next.clear()
        self._left.clear()

    def _thinned(self) -> list[tuple[NamespaceId, int]]:
        ratios = self._config.thin_ratios
        if not ratios:
            return []
        states = self._ledger.states.values()
        found = [
            (state, ratios.get(state.namespace_id) or ratios.get(state.parent, 0))
            for state in states
            if state.messages
        ]
        watermark = self._ledger.watermark
        return [
            (state.namespace_id, ratio)
            for state, ratio in found
            if ratio and watermark(state) is None
        ]

    def _rows(self, state: NamespaceState) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows that may go: from the position to the head, the newest message aside."""
        name, last = state.namespace_id, min(state.contiguous, state.latest - 1)
        first = max(self._next.get(name, 0), state.earliest)
        if first > last:
            return iter(())
        start, stop = layout.slot_key(name, first), layout.slot_key(name, last)
        return self._ledger.slices.scan(layout.HEADERS, start, layout.after(stop))


def thinned_runs(
    slices: Slices, namespace: NamespaceId, first: int, last: int, limit: int
) -> list[tuple[int, int]]:
    """Return the lowest runs ``[first, last]`` of thinned sequences, ``limit`` at most."""
    runs: list[tuple[int, int]] = []
    stop = layout.after(layout.slot_key(namespace, last))
    for slot in slices.keys(layout.THINNED, layout.slot_key(namespace, first), stop):
        seq = layout.split_slot(slot)[1]
        if runs and runs[-1][1] == seq - 1:
            runs[-1] = (runs[-1][0], seq)
        elif len(runs) == limit:
            break
        else:
            runs.append((seq, seq))
    return runs
