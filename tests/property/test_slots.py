"""The slots of rows by columns are those that a look at each row finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.archive.schema import MAX_I64, RAW
from luxrelay.archive.slot_lookup import read_slots, slots_of
from luxrelay.archive.task_source import TASK

NAMES = st.sampled_from([b"n" * 20, b"m" * 20])
SEQS = st.sampled_from([0, 1, 2, MAX_I64, MAX_I64 + 1, 2**64 - 1])
HEADERS = st.none() | st.binary(max_size=40) | st.builds(
    lambda name, seq: b"\x01\x00" + name + seq.to_bytes(8, "big") + b"rest", NAMES, SEQS
)  # fmt: skip
ROWS = st.fixed_dictionaries({
    "relay": st.just("a:1"),
    "namespace": st.none() | NAMES,
    "seq": st.none() | st.sampled_from([0, 1, 2, MAX_I64]),
    "header": HEADERS,
})  # fmt: skip


def _stated(row: Mapping[str, Any]) -> set[tuple[bytes | None, int | None]]:
    """Return the slots of one row: as asked for, of its header, and half of each."""
    header = row["header"]
    named = None if header is None else header[2:22]
    seq = None
    if header is not None and len(header) >= 30:
        seq = int.from_bytes(header[22:30], "big")
    if seq is not None and seq > MAX_I64:
        seq = None
    return {(row["namespace"], row["seq"]), (named, seq), (named, row["seq"])}


@given(rows=st.lists(ROWS, max_size=20), task=st.integers(-(2**63), MAX_I64))
def test_slots_by_columns(rows: list[dict[str, Any]], task: int) -> None:
    """None is left out and none is made up."""
    found = slots_of(pa.RecordBatch.from_pylist(rows, schema=RAW.arrow()), task).to_pylist()

    assert {(each["namespace"], each["seq"]) for each in found} == set().union(*map(_stated, rows))
    assert {each["task"] for each in found} == ({task} if rows else set())


def test_a_row_that_says_what_its_header_says_has_one_slot() -> None:
    """So what passes through Spark is 28 bytes a row and not more."""
    header = b"\x01\x00" + b"n" * 20 + (5).to_bytes(8, "big") + b"rest"
    row = {"relay": "a:1", "namespace": b"n" * 20, "seq": 5, "header": header}

    found = slots_of(pa.RecordBatch.from_pylist([row] * 3, schema=RAW.arrow()), 1)

    assert found.num_rows == 3


def test_nothing_of_no_tasks() -> None:
    """Spark calls it with what a part of a frame has, which may be nothing."""
    assert list(read_slots([pa.RecordBatch.from_pydict({TASK: pa.array([], pa.binary())})])) == []
