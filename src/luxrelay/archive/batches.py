"""One micro-batch of raw rows into the tables; each batch once.

Theory of operation
-------------------
*Decides* what a batch that runs again may write, and when a batch has to be merged.
*Does not know* where rows come from and how far a run goes (`pipeline`).
A batch is one Spark job: its tasks read, check and write files (`part_files`). Here these become
part of the tables: one Delta commit for raw rows, one for messages, one for rejects when there are
any.
*Exactly once*: a batch carries the checkpoint's name and its number into the table's log; a table
that has a batch is left out when it runs again after a crash. Within one checkpoint a sequence is
read once, so appending is enough. When a checkpoint was lost and the archive reads again from the
relays, reads a gap again, or has also read segment files, a batch that has a slot of which the
tables know is merged by each table's key instead (`merging`).
*Bounds*: none of its own; a batch is as large as the source's limit.
*What else to change when you change this*: `part_files`, `merging`, `completeness`.

Source: 21-52; decisions J8, J11, P42.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from luxrelay.archive.decode import checker
from luxrelay.archive.folder import ArchiveFolder
from luxrelay.archive.merging import by_slot, holds_any, holds_or_shares, merge_batch
from luxrelay.archive.part_files import PARTS_DDL, Check, PartReport, PartWriter
from luxrelay.archive.rules import CODE_EPHEMERAL, ArchiveRules
from luxrelay.archive.schema import CODE_UNREAD, RAW, WRITTEN
from luxrelay.archive.tables import append_files, has_batch
from luxrelay.archive.task_source import ReadingCheck, delivers_tasks, held_tasks, read_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What one micro-batch did."""

    batch: int
    """Its number in the checkpoint, from 0."""
    rows: int
    """Raw rows read, all relays together."""
    messages: int
    """Messages in it, each counted once."""
    rejected: int
    """Rows that are no messages."""
    seconds: float
    """Time from reading to the last commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """What one micro-batch held and where it came from; made where the batch is written."""

    report: BatchReport
    """What a user is told."""
    rows_by_relay: dict[str, int]
    """Rows, good and bad."""
    rejected_by_code: dict[int, int]
    """Rejected rows by the code of their verdict."""
    unread: dict[str, int]
    """Tasks that missed a relay."""
    ephemeral: int
    """Valid rows whose class says that they are not archived."""


class StreamStoppedError(Exception):
    """A micro-batch came after the run was told to end."""


@dataclass(slots=True)
class BatchWriter:
    """Writes micro-batches and adds them up; lives on the driver."""

    folder: ArchiveFolder
    progress: Callable[[BatchReport], None] | None
    batches: list[BatchReport] = field(default_factory=list)
    rows_by_relay: Counter[str] = field(default_factory=Counter)
    rejected_by_code: Counter[int] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    ephemeral: int = 0
    """Valid rows whose class says that they are not archived."""
    barred: Sequence[bytes] = ()
    """Namespaces that were erased: nothing of them is taken up."""
    stop: threading.Event | None = None
    """Set by whoever wants the run to end."""
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set by us, between two batches, when it is to end."""
    again: bool = False
    """The rows may have been read before: merge them instead of appending."""
    rereads: bool = False
    """As of `BatchTables`."""
    rules: ArchiveRules = field(default_factory=ArchiveRules)
    """What rows are checked by."""

    @property
    def tables(self) -> BatchTables:
        """Where it writes."""
        return BatchTables(
            folder=self.folder,
            rules=self.rules,
            barred=tuple(self.barred),
            again=self.again,
            rereads=self.rereads,
        )

    def write(self, raw: DataFrame, batch: int) -> None:
        """Write one micro-batch; called by Spark, again after a crash with the same number."""
        if self.stopped.is_set():
            raise StreamStoppedError  # not written: the next run begins with this batch
        self.take(self.tables.write(raw, batch))

    def take(self, counts: BatchCounts) -> None:
        """Add up a batch that is written, and tell of it."""
        self.batches.append(counts.report)
        self.rows_by_relay.update(counts.rows_by_relay)
        self.rejected_by_code.update(counts.rejected_by_code)
        self.unread.update(counts.unread)
        self.ephemeral += counts.ephemeral
        if self.progress is not None:
            self.progress(counts.report)
        if self.stop is not None and self.stop.is_set():
            self.stopped.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTables:
    """The tables that a micro-batch goes to; a value, so that it may be sent to another process."""

    folder: ArchiveFolder
    """The archive."""
    rules: ArchiveRules = field(default_factory=ArchiveRules)
    """What rows are checked by."""
    barred: tuple[bytes, ...] = ()
    """Namespaces that were erased: nothing of them is taken up."""
    again: bool = False
    """The rows may have been read before: merge them instead of appending."""
    rereads: bool = False
    """Tasks read files, so that reading twice costs less than a way through Spark."""

    @property
    def check(self) -> Check:
        """Raw rows into checked ones; runs on executors."""
        return checker(self.rules)

    def write(self, raw: DataFrame, batch: int) -> BatchCounts:
        """Write one micro-batch; again with the same number does nothing.

        Args:
            raw: Rows of ``schema.RAW``, or tasks that read such rows (`task_source`).
            batch: Its number in the checkpoint.

        Raises:
            ArchiveError: ``archive.failed``: a file cannot be written, or is not where executors
                said that they wrote it.

        """
        began = time.monotonic()
        now_ms = int(time.time() * 1000)
        if self.again or self.folder.marker.checkpoints > 1:
            groups, messages = self._take_again(raw, now_ms)
        else:
            groups, messages = self._append(raw, now_ms, batch)
        served, rejected, unread, ephemeral = count_rows(groups)
        report = BatchReport(
            batch=batch,
            rows=sum(served.values()),
            messages=messages,
            rejected=sum(rejected.values()),
            seconds=time.monotonic() - began,
        )
        return BatchCounts(
            report=report,
            rows_by_relay=served,
            rejected_by_code=rejected,
            unread=unread,
            ephemeral=ephemeral,
        )

    def _take_again(self, raw: DataFrame, now_ms: int) -> _Counted:
        """Append rows of slots that the archive has not seen; merge a batch that has any other.

        Needs no number in a log: a batch that runs again is one that has been seen. Tasks that
        read files write what they read themselves, unless two have rows of one slot: these have to
        come together, through Spark.
        """
        if delivers_tasks(raw):
            if self.rereads:
                raw = held_tasks(raw)
                if not holds_or_shares(self.folder, raw):
                    return self._append(raw, now_ms, None)
            raw = raw.mapInArrow(read_tasks, RAW.plain_ddl())
        raw = raw.persist()  # it is looked through before it is written
        try:
            if not holds_any(self.folder, raw):
                return self._append(by_slot(raw), now_ms, None)
            return merge_batch(
                self.folder, raw, check=self.check, barred=self.barred, now_ms=now_ms
            )
        finally:
            raw.unpersist()

    def _append(self, raw: DataFrame, now_ms: int, batch: int | None) -> _Counted:
        """Let executors write files, and commit them where the batch is not in the log."""
        mark = None if batch is None else (self.folder.marker.checkpoint, batch)
        write = PartWriter(
            folder=self.folder.path.resolve(),
            check=ReadingCheck(self.check) if delivers_tasks(raw) else self.check,
            now_ms=now_ms,
            barred=self.barred,
            distinct=mark is None,
            written=frozenset(
                table.name for table in WRITTEN if mark and has_batch(self.folder, table, *mark)
            ),
        )
        parts = raw.mapInArrow(write, PARTS_DDL).collect()
        made = PartReport.total(PartReport.decode(part) for (part,) in parts)
        for table in WRITTEN:
            files = [file for file in made.files if file.table == table.name]
            if files:
                append_files(self.folder, table, files, mark)
        return list(made.counts), made.messages


_Counted = tuple[list[tuple[str, int, int]], int]
"""Rows by relay and code, and how many messages there are."""


def count_rows(
    groups: Iterable[tuple[str, int, int]],
) -> tuple[dict[str, int], dict[int, int], dict[str, int], int]:
    """Return rows by relay, rejects by code, missed reads by relay, and how many are ephemeral.

    Args:
        groups: Relay, code, and how many rows have both.

    """
    served: Counter[str] = Counter()
    rejected: Counter[int] = Counter()
    unread: Counter[str] = Counter()
    ephemeral = 0
    for relay, code, number in groups:
        if code == CODE_UNREAD:
            unread[relay] += number
        elif code == CODE_EPHEMERAL:
            ephemeral += number
        else:
            served[relay] += number
            if code:
                rejected[code] += number
    return dict(served), dict(rejected), dict(unread), ephemeral
