"""Tasks as rows: what says what to read, and who reads it."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from luxrelay.archive import task_source as reading
from luxrelay.archive.jvm_errors import carry, recover
from luxrelay.archive.task_source import TASK, ReadingCheck, deliver, read_tasks
from luxrelay.errors import ArchiveError

read: list[int] = []
"""Numbers of the batches that tasks of this process have read."""


@dataclass(frozen=True)
class Numbers:
    """A task that reads numbers, and may fail after the last."""

    numbers: tuple[int, ...]
    fault: ArchiveError | None = None

    def rows(self) -> Generator[pa.RecordBatch]:
        """Yield a batch for each number."""
        for number in self.numbers:
            read.append(number)
            yield _batch(number)
        if self.fault is not None:
            raise carry(self.fault)


def _batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"number": [number]})


def _numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch.column("number").to_pylist()]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    read.clear()


def _tasks(*tasks: Numbers) -> Iterator[pa.RecordBatch]:
    for task in tasks:
        yield from deliver(task)


def test_a_task_is_one_row_and_reads_elsewhere() -> None:
    """A row holds what to read, not what is read; several are read in their order."""
    rows = list(_tasks(Numbers((1, 2)), Numbers(()), Numbers((3,))))
    assert [(row.num_rows, row.schema.names) for row in rows] == [(1, [TASK])] * 3
    assert read == []

    assert _numbers(read_tasks(rows)) == [1, 2, 3]
    assert read == [1, 2, 3]


def test_one_batch_is_read_ahead_and_no_more() -> None:
    """What is held is bounded: the batch in work, and the one after it."""
    coming = read_tasks(_tasks(Numbers(tuple(range(9)))))
    seen = _numbers(iter([next(coming), next(coming)]))
    coming.close()  # type: ignore[attr-defined]  # it is a generator
    assert seen == [0, 1]
    assert read == [0, 1, 2]


def test_what_is_left_is_closed() -> None:
    """A task that is given up lets go of what it reads from, and of its thread."""
    closed: list[bool] = []

    def rows() -> Generator[pa.RecordBatch]:
        try:
            for number in (1, 2, 3):
                yield _batch(number)
        finally:
            closed.append(True)

    coming = reading._ahead(rows())
    assert _numbers(iter([next(coming)])) == [1]
    coming.close()  # type: ignore[attr-defined]  # it is a generator
    assert closed == [True]
    assert not [each for each in threading.enumerate() if each.name.startswith("luxrelay-reading")]


def test_an_error_arrives_after_the_rows_before_it() -> None:
    """It is the task's own, with the note that Spark carries."""
    fault = ArchiveError("a range is gone", code="archive.data_loss")
    coming = read_tasks(_tasks(Numbers((1,), fault)))
    assert _numbers(iter([next(coming)])) == [1]
    with pytest.raises(ArchiveError, match="a range is gone") as caught:
        next(coming)
    found = recover("\n".join(caught.value.__notes__))
    assert found is not None
    assert found.code == "archive.data_loss"


def test_a_check_reads_and_checks() -> None:
    """It takes tasks and yields checked rows."""
    check = ReadingCheck(lambda batches: (each.slice(0, 0) for each in batches))
    assert [batch.num_rows for batch in check(_tasks(Numbers((1, 2))))] == [0, 0]
    assert read == [1, 2]
