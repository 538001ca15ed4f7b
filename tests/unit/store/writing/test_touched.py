"""Slots that a batch touches are read once, neighbours together."""

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.store import RelayStore, layout
from luxrelay.store.slices import Slices
from luxrelay.store.writing.batch import NEIGHBOUR_DISTANCE, TouchedSlots

Opener = Callable[..., RelayStore]


def slot(message: Any) -> bytes:
    """Return the slot of a message."""
    return layout.slot_key(message.header.namespace_id, message.header.seq)


def test_what_is_read_is_what_stands_there(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """Every candidate of a slot, and nothing where nothing can be."""
    store = open_store()
    messages = [forge.message(1, sender=sender) for sender in (1, 2)]
    store.put_many(messages, now)
    touched = TouchedSlots(store._ledger.slices)
    state = store._ledger.states[parent]

    rows = touched.read(state, slot(messages[0]), 1)

    assert set(rows) == {message.header.content_id for message in messages}
    assert touched.read(state, slot(messages[0]), 1) is rows
    assert touched.read(state, layout.slot_key(parent, 9), 9) == {}


def test_neighbours_are_read_in_one_scan(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots that lie close cost one scan, distant ones and other namespaces one each."""
    store = open_store()
    far = 5 + NEIGHBOUR_DISTANCE + 1
    messages = [forge.message(seq) for seq in (1, 2, 5, far)] + [forge.in_lane(1, 1)]
    store.put_many(messages, now)
    scans: list[bytes] = []
    real = Slices.scan

    def watched(slices: Slices, kind: bytes, start: bytes, stop: bytes) -> Any:
        scans.append(start)
        return real(slices, kind, start, stop)

    monkeypatch.setattr(Slices, "scan", watched)
    touched = TouchedSlots(store._ledger.slices)
    touched.foresee(slot(message) + bytes(32) for message in messages)

    assert len(scans) == 3
    assert all(list(touched.rows[slot(m)]) == [m.header.content_id] for m in messages)
