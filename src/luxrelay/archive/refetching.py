"""`refetch`: missing messages, read again from relays that still hold them.

The open gaps of the archive are asked of the relays range by range, checked as in `ingest`, and
merged by each table's key: what somebody read meanwhile is not doubled, and running again is
harmless. Then the gaps are settled, so that the table says when each was filled.

Source: decisions P25, J8.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from luxrelay.archive.batches import BatchWriter
from luxrelay.archive.derived import gap_rows, refresh
from luxrelay.archive.folder import open_folder, writing
from luxrelay.archive.gaps import GapRow, beside
from luxrelay.archive.jvm_errors import failure
from luxrelay.archive.offsets import Span, lost_spans, union_reach
from luxrelay.archive.options import SourceOptions
from luxrelay.archive.relays import list_heads, read_spans
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.schema import RAW
from luxrelay.archive.session import ArchiveSession
from luxrelay.archive.tables import erased, prepare_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_MAX: Final = 20_000
"""Rows that are held before they are written."""
BYTES_MAX: Final = 64 * 1024 * 1024
"""And their bytes: payloads reach 2 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefetchReport:
    """What `refetch` found."""

    asked: int
    """Sequences that were missing."""
    messages: int
    """Messages that relays still had."""
    rejected: int
    """Rows that are no messages."""
    open_gaps: int
    """Gaps that are left."""
    missing: int
    """Sequences in them."""


def refetch(
    session: ArchiveSession,
    *,
    out: Path,
    relays: Sequence[str],
    rules: ArchiveRules | None = None,
    tls: Mapping[str, str] | None = None,
    also: Sequence[Span] = (),
) -> RefetchReport:
    """Read the open gaps of the archive at ``out`` again and return what came of it.

    Args:
        session: A running Spark.
        out: The archive folder.
        relays: Addresses of relays to ask, 1 to 64.
        rules: As in `ingest`.
        tls: As in `ingest`.
        also: Further sequences to read, of which something is missing
            (`verification.VerifyReport.missing_here`).

    Raises:
        ArchiveArgumentError: an address is none.
        ArchiveError: ``archive.foreign``, ``archive.busy``, or ``archive.failed``.
        SyncUnreachableError: no relay answers.

    """
    from pyspark.errors import PySparkException  # noqa: PLC0415  # heavy; a session is here

    options = SourceOptions.parse(
        {"relays": ",".join(relays), "failOnDataLoss": "false"} | dict(tls or {})
    )
    open_folder(out)
    with writing(out) as folder:
        prepare_tables(folder)
        missing = _missing(gap_rows(folder), also)
        writer = BatchWriter(
            folder, None, barred=erased(folder), again=True, rules=rules or ArchiveRules()
        )
        try:
            _read(session.spark, options, missing, writer)
            made = refresh(session.spark, folder, int(time.time() * 1000))
        except PySparkException as error:
            raise failure(error, "refetch") from None
    return RefetchReport(
        asked=sum(span.size for span in missing),
        messages=sum(batch.messages for batch in writer.batches),
        rejected=sum(batch.rejected for batch in writer.batches),
        open_gaps=made.open_gaps,
        missing=made.missing,
    )


def _missing(gaps: Iterable[GapRow], also: Iterable[Span]) -> list[Span]:
    """Return what is to be read, each sequence once, in order.

    Ranges of a namespace follow one another: only so are they asked for one by one (`relays`).
    """
    open_gaps = [
        Span(gap.namespace_id, gap.first, gap.last) for gap in gaps if gap.filled_at is None
    ]
    return sorted([*open_gaps, *beside(also, open_gaps)])


def _read(
    spark: SparkSession,
    options: SourceOptions,
    missing: Sequence[Span],
    writer: BatchWriter,
) -> None:
    heads, down = list_heads(options)
    reach = union_reach(heads, to_latest=True)
    held: list[Span] = []
    for span in missing:
        held += _without(span, lost_spans([span], reach))
    for number, rows in enumerate(_raw(options, held, down)):
        writer.write(spark.createDataFrame(rows), number)


def _without(span: Span, gone: Sequence[Span]) -> Iterator[Span]:
    """Yield what of a span is not gone for good."""
    first = span.first
    for lost in gone:
        if lost.first > first:
            yield Span(span.namespace, first, lost.first - 1)
        first = lost.last + 1
    if first <= span.last:
        yield Span(span.namespace, first, span.last)


def _raw(options: SourceOptions, spans: Sequence[Span], down: Sequence[str]) -> Iterator[pa.Table]:
    """Yield raw rows in tables of bounded size."""
    waiting: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for batch in read_spans(options, spans, down) if spans else ():
        waiting.append(batch)
        held_rows, held_bytes = held_rows + batch.num_rows, held_bytes + batch.nbytes
        if held_rows >= ROWS_MAX or held_bytes >= BYTES_MAX:
            yield pa.Table.from_batches(waiting, RAW.arrow())
            waiting, held_rows, held_bytes = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting, RAW.arrow())
