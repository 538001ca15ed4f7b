"""`ingest`: from relays to the tables of the archive; exactly once.

Theory of operation
-------------------
*Decides* how far a run goes and what it leaves behind for the next one.
*Does not know* how relays are read (`source`), bytes are checked (`decode`), rows are written
(`batches`), other tables are made (`derived`).
One streaming query with ``Trigger.AvailableNow`` reads up to the heads of its start and ends. Each
micro-batch goes once through Python on the executors, which parse, hash, verify and write, and is
then committed (`batches`). After the last one the tables that are made from others are brought up
to date (`derived`).
*Exactly once*: a stream's batch has a number, and its range of sequences is on disk before it is
read; the tables remember the numbers they have (`batches`).
*Bounds*: ``rows_per_batch`` raw rows in one micro-batch.
*What else to change when you change this*: `schema`, `completeness`.

Source: decisions J8, J11, P42; 21-52.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from luxrelay.archive.batch_reports import BatchReports, ReportingTables
from luxrelay.archive.batches import BatchReport, BatchWriter
from luxrelay.archive.derived import RefreshReport, refresh
from luxrelay.archive.folder import ArchiveFolder, open_folder, writing
from luxrelay.archive.handoff import HandoffReport, announce, committed_offsets, hand_off
from luxrelay.archive.options import HeadMode, ReadMode, SourceOptions
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.session import ArchiveSession
from luxrelay.archive.statements import Statements, settle_finality
from luxrelay.archive.tables import erased, prepare_tables, require_checkpoint
from luxrelay.archive.transit import failure
from luxrelay.errors import ArchiveError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

ROWS_PER_BATCH: Final = 200_000
"""Raw rows of one micro-batch when not given."""
_LOOK_S: Final = 1
"""Seconds between two looks whether the run is to end."""
_STARTS: Final = 10
"""Times that Spark is asked to begin a run: it gives the Python that plans it ten seconds to
start, which a busy machine may miss."""
_SLOW_START: Final = "Python worker failed to connect back"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What one run of `ingest` did."""

    batches: tuple[BatchReport, ...]
    """The micro-batches, in order; none when nothing was new."""
    rows_by_relay: dict[str, int]
    """Rows that each relay served, good and bad."""
    rejected_by_code: dict[int, int]
    """Rejected rows by the code of their verdict (`luxrelay.bus.Code`)."""
    unread: dict[str, int]
    """Relays that could not be read, with the number of tasks that missed them."""
    seconds: float
    """Time of the whole run, without the start of Spark."""
    ephemeral: int = 0
    """Valid rows that were passed over because their class is Ephemeral."""
    derived: RefreshReport | None = None
    """What became of the tables made from others; None when that was not wanted."""
    handoff: HandoffReport | None = None
    """What the relays were told; None when that was not wanted."""

    @property
    def rows(self) -> int:
        """Raw rows read."""
        return sum(batch.rows for batch in self.batches)

    @property
    def messages(self) -> int:
        """Messages read, each counted once; new in the archive unless its checkpoint was lost."""
        return sum(batch.messages for batch in self.batches)

    @property
    def rejected(self) -> int:
        """Rows that are no messages."""
        return sum(batch.rejected for batch in self.batches)


def ingest(
    session: ArchiveSession,
    *,
    relays: Sequence[str],
    out: Path,
    namespaces: str = "all",
    read_mode: ReadMode = "all",
    heads: HeadMode = "contiguous",
    starting: str = "earliest",
    fail_on_data_loss: bool = True,
    rows_per_batch: int = ROWS_PER_BATCH,
    progress: Callable[[BatchReport], None] | None = None,
    rules: ArchiveRules | None = None,
    derived: bool = True,
    handoff: bool = False,
    stop: threading.Event | None = None,
    statements: Statements | None = None,
    tls: Mapping[str, str] | None = None,
    hole_patience_ms: int = 60_000,
) -> IngestReport:
    """Read everything the relays hold and the archive has not read; return what was done.

    A run goes on where the last one ended, also after a crash; nothing is written twice.

    Args:
        session: A running Spark.
        relays: Addresses ``host:port`` of RelaySync services, 1 to 64.
        out: The archive folder; made when absent.
        namespaces: ``all``, ids as hex with commas, or ``parent:<hex>``.
        read_mode: ``all`` reads each relay and counts copies, ``any`` reads one of them a range.
        heads: Read to the first hole (``contiguous``) or to the newest message (``latest``).
        starting: Where the first run begins: ``earliest``, ``latest``, or JSON offsets.
        fail_on_data_loss: Stop when relays have forgotten what was not read; else go on, and the
            gap shows in `audit`.
        rows_per_batch: Rows of one micro-batch, all relays together, 1 to 10,000,000.
        progress: Told of each micro-batch when it is written.
        rules: Signing mode and policies (`rules.ArchiveRules`); LP-6411's own signatures and no
            policies when not given.
        handoff: Tell the relays how far the archive has read, and that they keep what it has not
            (J8); they must allow it (``sync.allow_handoff``).
        stop: Ends the run after the micro-batch that is being written, when it is set.
        statements: Signed statements on finality, joined to the messages of this run and of those
            before (`statements.apply_finality`); with ``derived`` only.
        tls: The options ``tlsCa``, ``tlsCertificate`` and ``tlsKey`` of the source.
        hole_patience_ms: A hole is given up when a message beyond it has been at a relay this long,
            ms; 1 to 86,400,000.
        derived: Bring the derived tables up to date at the end; without, `derive` does it later.

    Raises:
        ArchiveArgumentError: a value is out of range.
        ArchiveError: ``archive.foreign``, ``archive.busy``, ``archive.data_loss``, or
            ``archive.failed`` when Spark ends with an error.
        SyncUnreachableError: nobody serves a range.

    """
    options = {
        "relays": ",".join(relays),
        "namespaces": namespaces,
        "readMode": read_mode,
        "heads": heads,
        "startingOffsets": starting,
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "maxRowsPerTrigger": str(rows_per_batch),
        "numPartitions": str(session.config.tasks),
        "holePatienceMs": str(hole_patience_ms),
        "faultRows": "true",
        "deliver": "tasks",
    } | dict(tls or {})
    checked = SourceOptions.parse(options)  # every mistake before anything is touched
    began, told = time.monotonic(), None
    with writing(out) as folder:
        prepare_tables(folder)
        require_checkpoint(folder)
        barred = erased(folder)
        writer = BatchWriter(
            folder,
            progress,
            barred=barred,
            again=folder.mixed,
            stop=stop,
            rules=rules or ArchiveRules(),
        )
        if handoff:
            announce(checked)  # before the first read, so that nothing goes meanwhile
        stream = session.spark.readStream.format("luxrelay").options(**options)
        _run(stream, folder.checkpoint, writer)
        if handoff:
            told = hand_off(checked, committed_offsets(folder.checkpoint))
        made = _derive(session.spark, folder, statements) if derived else None
    return _report(writer, time.monotonic() - began, made, told)


def ingest_segments(
    session: ArchiveSession,
    *,
    segments: Path,
    out: Path,
    progress: Callable[[BatchReport], None] | None = None,
    rules: ArchiveRules | None = None,
    derived: bool = True,
    stop: threading.Event | None = None,
    statements: Statements | None = None,
) -> IngestReport:
    """Read segment files that the archive has not read; arguments and errors of `ingest`.

    The same messages may also be pulled from relays: rows are merged by each table's key, so that
    the two ways never double one another, nor does reading a file again.

    Args:
        session: A running Spark.
        segments: A folder of segments (`segment_files`).
        out: The archive folder; made when absent.
        progress: As in `ingest`.
        rules: As in `ingest`.
        derived: As in `ingest`.
        stop: As in `ingest`.
        statements: As in `ingest`.

    Raises:
        ArchiveError: as in `ingest`, and ``archive.segment`` for a file that cannot be read.

    """
    began = time.monotonic()
    with writing(out) as folder:
        prepare_tables(folder)
        writer = BatchWriter(
            folder,
            progress,
            barred=erased(folder),
            again=True,
            rereads=True,
            stop=stop,
            rules=rules or ArchiveRules(),
        )
        stream = session.spark.readStream.format("luxrelay-segments")
        stream = stream.option("path", str(segments.resolve())).option("deliver", "tasks")
        _run(stream, folder.segments_checkpoint, writer)
        made = _derive(session.spark, folder, statements) if derived else None
    return _report(writer, time.monotonic() - began, made, None)


def _report(
    writer: BatchWriter, seconds: float, made: RefreshReport | None, told: HandoffReport | None
) -> IngestReport:
    return IngestReport(
        batches=tuple(writer.batches),
        rows_by_relay=dict(sorted(writer.rows_by_relay.items())),
        rejected_by_code=dict(sorted(writer.rejected_by_code.items())),
        unread=dict(sorted(writer.unread.items())),
        seconds=seconds,
        ephemeral=writer.ephemeral,
        derived=made,
        handoff=told,
    )


def derive(session: ArchiveSession, *, out: Path) -> RefreshReport:
    """Bring the derived tables of an archive up to date, after runs that did not.

    Args:
        session: A running Spark.
        out: The archive folder.

    Raises:
        ArchiveError: ``archive.foreign``, ``archive.busy`` or ``archive.failed``.

    """
    open_folder(out)
    with writing(out) as folder:
        prepare_tables(folder)
        return _derive(session.spark, folder)


def _derive(
    spark: SparkSession, folder: ArchiveFolder, statements: Statements | None = None
) -> RefreshReport:
    from pyspark.errors import PySparkException  # noqa: PLC0415  # heavy; a session is here

    try:
        if statements is not None:
            settle_finality(spark, folder, statements)
        return refresh(spark, folder, int(time.time() * 1000))
    except PySparkException as error:
        raise failure(error, "ingest") from None


def _run(reader: DataStreamReader, checkpoint: Path, writer: BatchWriter) -> None:
    from pyspark.sql.utils import is_remote  # noqa: PLC0415  # heavy; a session is here

    if not is_remote():
        run_when_started(
            lambda: _stream(reader, checkpoint, writer.write, writer.stopped.is_set),
            lambda: bool(writer.batches),
        )
        return
    with BatchReports(writer.folder, writer) as reports:

        def stopped() -> bool:
            reports.take()
            return writer.stopped.is_set()

        def begun() -> bool:
            reports.take()
            return bool(writer.batches)

        write = ReportingTables(writer.tables)
        run_when_started(lambda: _stream(reader, checkpoint, write, stopped), begun)
        reports.take()


def run_when_started(run: Callable[[], None], begun: Callable[[], bool]) -> None:
    """Call ``run`` again, nine times at most, while Spark's Python does not start in time.

    Args:
        run: A whole run.
        begun: Whether it has written a batch, after which nothing is tried again.

    Raises:
        ArchiveError: what ``run`` raised last, or at once for another reason.

    """
    for left in reversed(range(_STARTS)):
        try:
            return run()
        except ArchiveError as error:
            if not left or _SLOW_START not in error.what or begun():
                raise
    return None


def _stream(
    reader: DataStreamReader,
    checkpoint: Path,
    write: Callable[[DataFrame, int], None],
    stopped: Callable[[], bool],
) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415  # heavy; a session is here

    query = None
    try:
        query = (
            reader.load()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        while not query.awaitTermination(_LOOK_S):
            if stopped():
                break  # what of a batch has begun since is read and written by the next run
    except PySparkException as error:
        if not stopped():
            raise failure(error, "ingest") from None
    finally:
        if query is not None and query.isActive:
            query.stop()
