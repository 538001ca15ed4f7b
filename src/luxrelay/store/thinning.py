"""Thinning: of older messages of some namespaces only every Nth stays, and readers are told.

Theory of operation
-------------------
*Decides* which messages of a namespace with a ratio go: those older than ``thin_after_ms`` whose
sequence is no multiple of the ratio. So relays with one ratio keep the same messages.
*Never goes*: the newest message of a namespace; a finalized one; what lies above the contiguous
head, whose holes a peer may still fill; anything in a namespace that an archive reads (J8), because
such a namespace is not ephemeral.
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

Source: LP-6421 §7.1; decisions J3, P16, P17; 21-43, 21-44.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from luxrelay.bus import ContentId, MsgHeader, NamespaceId
from luxrelay.bus.finality import FinalityState
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.group import Group
from luxrelay.store.ledger import Ledger
from luxrelay.store.namespaces import NamespaceState
from luxrelay.store.slices import Slices

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
            for key, value in self._rows(state):
                if budget <= 0 or len(found) == limit:
                    return found, False
                budget -= 1
                seq = layout.split_slot(key)[1]
                stamp = layout.decode_row(value).timestamp
                if stamp > now_ms - self._config.thin_after_ms:
                    break
                self._next[namespace] = seq
                final = layout.finality_of(value) == FinalityState.FINALIZED
                if seq % ratio and not final:
                    found.append(key)
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
