"""One row a read task: the executor that checks and writes rows also reads them.

A data source of Spark hands its rows to the JVM, which hands them to the Python that works on them:
each way a row is made from columns and back, at a cost of a third of a signature. `ingest` asks its
sources for one row a task instead (``deliver=tasks``), which says what is to be read, and the
function that Spark then calls with that row reads it where it is needed. Offsets, limits and the
cut into tasks stay the source's; a task that runs again reads again.

Such a row is pickled, as Spark pickles what a partition is; Spark carries both, and nobody else.

Source: decisions J8, J11, P42.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import DataFrame

    from luxrelay.archive.part_files import Check

TASK: Final = "task"
"""The column of tasks."""
TASKS_DDL: Final = f"{TASK} BINARY"
"""What a source delivers instead of rows."""
_TASKS: Final = pa.schema([pa.field(TASK, pa.binary())])


class ReadTask(Protocol):
    """What one task reads; a value that pickles."""

    def rows(self) -> Generator[pa.RecordBatch]:
        """Yield rows of ``schema.RAW``; may be called again, on another executor."""
        ...


def deliver(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield a task as a row of ``TASKS_DDL``."""
    yield pa.RecordBatch.from_pylist([{TASK: pickle.dumps(task)}], schema=_TASKS)


def delivers_tasks(frame: DataFrame) -> bool:
    """Return True when the rows of a frame are tasks, and not what tasks read."""
    return frame.columns == [TASK]


def held_tasks(frame: DataFrame) -> DataFrame:
    """Return the tasks of a frame as one that has them: each look at it finds the same tasks.

    A source is asked again whenever Spark works on what it delivers.
    """
    rows = [(bytearray(task),) for (task,) in frame.collect()]
    return frame.sparkSession.createDataFrame(rows, TASKS_DDL)


def read_tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what tasks read; runs on executors.

    One batch is read ahead: a relay works on the next while this process checks the last.
    """
    for batch in batches:
        for pickled in batch.column(TASK).to_pylist():
            task: ReadTask = pickle.loads(pickled)  # noqa: S301  # Spark's own, see above
            yield from _ahead(task.rows())


@dataclass(frozen=True, slots=True)
class ReadingCheck:
    """Reads what tasks say and checks it: tasks in, checked rows out; travels to executors."""

    check: Check
    """Raw rows into checked ones."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield checked rows."""
        return self.check(read_tasks(batches))


def _ahead(rows: Generator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with closing(rows), ThreadPoolExecutor(1, "luxrelay-reading") as thread:
        coming = thread.submit(next, rows, None)
        while (batch := coming.result()) is not None:
            coming = thread.submit(next, rows, None)
            yield batch
