"""Lookup of (namespace, seq) slots on the executors: append or MERGE.

A slot is that of the header's bytes, and also the one that a row says it was served for, or its
sequence in the header's namespace: as ``raw`` and ``messages`` name them. Nothing is checked, so a
header may say anything. `merging.holds_any` says the same of rows that Spark has already.

Source: decisions J8, J11.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from luxrelay.archive.jvm_errors import carry
from luxrelay.archive.schema import MAX_I64
from luxrelay.archive.task_source import TASK, read_tasks
from luxrelay.bus import constants as c
from luxrelay.errors import ArchiveError

SLOTS_DDL: Final = "namespace BINARY, seq BIGINT, task BIGINT"
"""What `read_slots` yields: a slot, and a number that stands for the task which has it."""
FILES_DDL: Final = "path STRING, name STRING"
"""What `HeldSlots` takes: a file, and which of its columns names the namespace."""
HELD_DDL: Final = "namespace BINARY, seq BIGINT"
"""What it yields."""
SEQ_BYTES: Final = 8
ROWS: Final = 65_536
"""Rows of two columns that are read at once."""
_HELD: Final = pa.schema({"namespace": pa.binary(), "seq": pa.int64()})
_SLOTS: Final = pa.schema({"namespace": pa.binary(), "seq": pa.int64(), "task": pa.int64()})

Mask = npt.NDArray[np.bool_]


def read_slots(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the slots of the rows that tasks read; runs on executors, keeps nothing."""
    for batch in batches:
        for row in range(batch.num_rows):
            task = batch.slice(row, 1)
            number = _number(task.column(TASK)[0].as_py())
            for raw in read_tasks([task]):
                yield slots_of(raw, number)


@dataclass(frozen=True, slots=True)
class HeldSlots:
    """Reads the slots of Parquet files of ``raw`` or ``messages``; travels to executors."""

    low: int | None
    """Lowest sequence that is asked for; None when there is none."""
    high: int | None
    """And the highest."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield namespaces and sequences; a null sequence is within any bounds.

        Raises:
            ArchiveError: ``archive.failed``: a file cannot be read here.

        """
        for batch in batches:
            for path, name in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield from self._slots(path, name)

    def _slots(self, path: str, name: str) -> Iterator[pa.RecordBatch]:
        try:
            with pq.ParquetFile(path) as file:
                for rows in file.iter_batches(ROWS, columns=[name, "seq"]):
                    names, seqs = rows.column(name), rows.column("seq")
                    held = pa.RecordBatch.from_arrays([names, seqs], schema=_HELD)
                    yield held.filter(self._within(seqs))
        except (OSError, pa.ArrowException) as error:
            raise carry(
                ArchiveError(
                    f"a file of the archive cannot be read: {str(error)[:200]}",
                    where=path,
                    hint="every executor must see the archive's folder under the same path",
                    code="archive.failed",
                )
            ) from None

    def _within(self, seqs: pa.Array) -> pa.Array:
        if self.low is None or self.high is None:
            return seqs.is_null()
        inside = pc.and_(pc.greater_equal(seqs, self.low), pc.less_equal(seqs, self.high))
        return inside.fill_null(True)


def _number(pickled: bytes) -> int:
    return int.from_bytes(hashlib.sha3_256(pickled).digest()[:8], "big", signed=True)


def slots_of(raw: pa.RecordBatch, task: int) -> pa.RecordBatch:
    """Return the slots of raw rows; one of a row that says what its header says.

    Args:
        raw: Rows of ``schema.RAW``.
        task: What stands in the column ``task``.

    """
    namespace, seq, header = (raw.column(name) for name in ("namespace", "seq", "header"))
    named = pc.binary_slice(header, c.OFFSET_NAMESPACE, c.OFFSET_NAMESPACE + c.NAMESPACE_BYTES)
    stated = _sequences(header)
    elsewhere = _differ(namespace, named)
    found = [
        (namespace, seq, np.ones(len(raw), np.bool_)),
        (named, stated, elsewhere | _differ(seq, stated)),
        (named, seq, elsewhere),
    ]
    names, seqs = (
        pa.concat_arrays([columns[place].filter(pa.array(mask)) for *columns, mask in found])
        for place in (0, 1)
    )
    tasks = pa.repeat(pa.scalar(task, pa.int64()), len(names))
    return pa.RecordBatch.from_arrays([names, seqs, tasks], schema=_SLOTS)


def _sequences(headers: pa.Array) -> pa.Array:
    """Return the sequence in each header; null where none is, or one that no column holds."""
    cut = pc.binary_slice(headers, c.OFFSET_SEQ, c.OFFSET_SEQ + SEQ_BYTES)
    there = pc.equal(pc.binary_length(cut), SEQ_BYTES).fill_null(False)
    data = pc.if_else(there, cut, pa.scalar(bytes(SEQ_BYTES)))
    numbers = np.frombuffer(b"".join(data.to_pylist()), ">u8")
    held = there.to_numpy(zero_copy_only=False) & (numbers <= MAX_I64)
    return pa.array(np.where(held, numbers, 0).astype(np.int64), mask=~held)


def _differ(some: pa.Array, others: pa.Array) -> Mask:
    """Return where two columns differ; a null is like another null only."""
    same = pc.equal(some, others).fill_null(False)
    nulls = pc.and_(some.is_null(), others.is_null())
    mask: Mask = pc.invert(pc.or_(same, nulls)).to_numpy(zero_copy_only=False)
    return mask
