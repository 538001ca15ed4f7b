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

What a micro-batch did, as a file: how a Spark Connect server tells the process that asked.

Through Spark Connect a stream's batches are written by a Python process of the server. It shares
nothing with the one that started the run but the archive's folder, so there it leaves a report of
each batch, and the other looks for them. A report is told, never relied on: what has been written
stands in the tables' logs.

The handoff: relays are told how far the archive has read, and keep what it has not (J8).

A relay that has been told of an archive keeps what is past its time until the watermark of its
namespace has passed it. So each run first announces itself (a watermark of 0 where there is none),
reads, and when its last batch is committed moves the watermarks to where the checkpoint stands.
A watermark never goes back, and one that could not be told is told by the next run.

Source: 21-52; 21-51; decisions J8, J11, P42.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from luxrelay.archive.batches import BatchReport, BatchWriter
from luxrelay.archive.derived import RefreshReport, refresh
from luxrelay.archive.folder import ArchiveFolder, open_folder, writing
from luxrelay.archive.jvm_errors import failure
from luxrelay.archive.options import HeadMode, ReadMode, SourceOptions
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.session import ArchiveSession
from luxrelay.archive.statements import Statements, settle_finality
from luxrelay.archive.tables import erased, prepare_tables, require_checkpoint
from luxrelay.errors import ArchiveError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
import json
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Self

from luxrelay.archive.batches import BatchCounts, BatchTables
from luxrelay.archive.folder import write_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

from luxrelay.archive.offsets import Offsets, parse_offsets
from luxrelay.archive.relays import connect
from luxrelay.errors import SyncRemoteError, SyncUnreachableError
from luxrelay.sync.heads import PeerHead
from luxrelay.sync.messages import Watermark

BATCH: Final = 1_000
"""Watermarks told in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffReport:
    """What became of the watermarks."""

    told: dict[str, int]
    """Relays, and how many of their namespaces were moved."""
    refused: dict[str, str]
    """Relays that took none, and why."""


def announce(options: SourceOptions) -> HandoffReport:
    """Ask every relay to keep what is not archived yet, where it does not do so already."""
    return _tell(options, None)


def hand_off(options: SourceOptions, offsets: Mapping[str, int]) -> HandoffReport:
    """Move the watermarks of every relay to ``offsets``."""
    return _tell(options, offsets)


def committed_offsets(checkpoint: Path) -> Offsets:
    """Return how far the committed batches of a checkpoint have read; empty before the first.

    Raises:
        ArchiveError: ``archive.failed``: the checkpoint is not of a form that Spark writes.

    """
    numbers = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not numbers:
        return {}
    path = checkpoint / "offsets" / str(max(numbers))
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return parse_offsets(json.loads(lines[2]))
    except (OSError, ValueError, IndexError) as error:
        raise ArchiveError(
            f"the checkpoint cannot be read: {error}", where=str(path), code="archive.failed"
        ) from None


def _tell(options: SourceOptions, offsets: Mapping[str, int] | None) -> HandoffReport:
    told: dict[str, int] = {}
    refused: dict[str, str] = {}
    for relay in options.relays:
        try:
            with connect(relay, options) as client:
                heads = (
                    [client.get_head(namespace) for namespace in options.namespaces]
                    if options.namespaces
                    else list(client.list_heads(options.parent))
                )
                marks = watermarks(heads, offsets)
                for first in range(0, len(marks), BATCH):
                    client.set_watermarks(marks[first : first + BATCH])
                told[relay] = len(marks)
        except (SyncUnreachableError, SyncRemoteError) as error:
            refused[relay] = error.what
    return HandoffReport(told=told, refused=refused)


def watermarks(heads: Sequence[PeerHead], offsets: Mapping[str, int] | None) -> list[Watermark]:
    """Return the watermarks that a relay with these heads is to be told.

    Args:
        heads: What it holds, with the watermarks it knows.
        offsets: How far the archive has read; None to announce an archive only.

    """
    marks = []
    for head in heads:
        if not head.latest_seq:
            continue
        seq = 0 if offsets is None else offsets.get(head.namespace_id.hex())
        if seq is None or (head.watermark is not None and head.watermark >= seq):
            continue
        marks.append(
            Watermark(
                namespace_id=head.namespace_id,
                parent_id=head.parent_id,
                # Beyond its own head a relay has nothing that was read.
                seq=min(seq, head.latest_seq),
            )
        )
    return marks


_FOLDER: Final = ".reports"
_DIGITS: Final = 19
"""Width of a number in a file's name, so that names sort as numbers."""


@dataclass(frozen=True, slots=True)
class ReportingTables:
    """Writes a micro-batch and reports it; pickles by value, Spark's server calls it."""

    tables: BatchTables
    """Where rows go."""

    def __call__(self, checked: DataFrame, batch: int) -> None:
        """Write one micro-batch, then its report."""
        counts = self.tables.write(checked, batch)
        path = self.tables.folder.path / _FOLDER / f"{batch:0{_DIGITS}d}.json"
        write_whole(path, json.dumps(asdict(counts)))


class BatchReports:
    """The reports of one run; a context manager that leaves none behind."""

    def __init__(self, folder: ArchiveFolder, writer: BatchWriter) -> None:
        self._path = folder.path / _FOLDER
        self._writer = writer

    def __enter__(self) -> Self:
        shutil.rmtree(self._path, ignore_errors=True)  # of a run that was killed
        self._path.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)

    def take(self) -> None:
        """Hand every report that is new to the writer, in order; each once."""
        for path in sorted(self._path.glob("[0-9]*.json")):
            self._writer.take(read_counts(path))
            path.unlink()


def read_counts(path: Path) -> BatchCounts:
    """Return a report.

    Raises:
        ArchiveError: ``archive.failed``: the file is none.

    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        codes = {int(code): number for code, number in value.pop("rejected_by_code").items()}
        report = BatchReport(**value.pop("report"))
        return BatchCounts(report=report, rejected_by_code=codes, **value)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArchiveError(
            f"the report of a batch cannot be read: {error!r}",
            where=str(path),
            code="archive.failed",
        ) from None


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
