"""`TouchedSlots`: the slots that a batch under construction has to do with, as it leaves them.

A slot is read when it is needed; what a group then puts or takes away shows here at once and on
disk when the group is committed. Neighbours are read in one scan: a thousand slots of one namespace
so take a tenth of the time.

Source: decisions P9, P10, J11.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from luxrelay.bus import ContentId, MsgHeader
from luxrelay.bus.finality import FinalityState
from luxrelay.store import blobs, layout
from luxrelay.store.layout import BlobPlace, MessageRow
from luxrelay.store.messages import IncomingMessage
from luxrelay.store.namespaces import NamespaceState
from luxrelay.store.rows import Plain
from luxrelay.store.slices import Slices

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
    )
