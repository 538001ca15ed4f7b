"""Places in the order of a store's index of senders."""

from __future__ import annotations

import random

import pyarrow as pa

from luxrelay.archive.answers import AnswerPlace
from luxrelay.archive.query import first_in_lanes
from luxrelay.archive.schema import MAX_I64

PLACES = [
    AnswerPlace(1_000 - seq, bytes([name]) * 20, seq, bytes([content]) * 32)
    for name in (1, 2, 0xFF)
    for seq in (1, 2, MAX_I64)
    for content in (0, 0xFF)
]
"""In order; times run against it."""


def _table(places: list[AnswerPlace]) -> pa.Table:
    columns = (
        pa.array([place.timestamp for place in places], pa.int64()),
        pa.array([place.namespace_id for place in places], pa.binary()),
        pa.array([place.seq for place in places], pa.int64()),
        pa.array([place.content_id for place in places], pa.binary()),
    )
    return pa.table(list(columns), names=["timestamp", "namespace_id", "seq", "content_id"])


def _found(table: pa.Table) -> list[AnswerPlace]:
    return [AnswerPlace(**row) for row in table.to_pylist()]


def test_parts_give_what_the_whole_gives() -> None:
    """Days come in any order of lanes; the first of all of them are kept, and no more."""
    shuffled = random.Random(7).sample(PLACES, len(PLACES))
    for wanted in (1, 5, len(PLACES)):
        best = None
        for at in range(0, len(shuffled), 5):
            best = first_in_lanes(_table(shuffled[at : at + 5]), best, wanted, None)
        assert best is not None
        assert _found(best) == PLACES[:wanted]


def test_a_page_goes_on_behind_a_place() -> None:
    """Behind each place stands the rest, and behind a sequence above all tables the next lane."""
    table = _table(PLACES)
    for at, place in enumerate(PLACES):
        assert _found(first_in_lanes(table, None, 99, place)) == PLACES[at + 1 :]
    above = AnswerPlace(0, PLACES[0].namespace_id, MAX_I64 + 1, b"")
    assert _found(first_in_lanes(table, None, 99, above)) == PLACES[6:]
