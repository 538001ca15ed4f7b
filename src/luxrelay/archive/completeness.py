"""`audit`: archived ranges, missing ranges, and relays that may still serve them.

Three questions to the tables: the sequences of each namespace (holes, contested slots, rows that
stand twice), the relays that served them, the rejects; and one to the relays: their heads.

Source: 21-52; decisions H17, J11, P25, P26, P42.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from luxrelay.archive.derived import gap_rows
from luxrelay.archive.folder import ArchiveFolder, open_folder
from luxrelay.archive.gaps import above, beside, reached, rejected_heads
from luxrelay.archive.jvm_errors import failure
from luxrelay.archive.missing_reasons import passed_spans, rejected_codes, rejected_tops
from luxrelay.archive.offsets import Span
from luxrelay.archive.options import SourceOptions
from luxrelay.archive.relays import list_heads
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.schema import GAPS, MESSAGES, REJECTS, Table
from luxrelay.archive.session import ArchiveSession
from luxrelay.archive.tables import retired
from luxrelay.sync.heads import PeerHead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMESPACES_MAX: Final = 100_000
"""Namespaces listed one by one; beyond, the report says that it is cut."""
GAPS_MAX: Final = 1_000
"""Gaps listed of one namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveGap:
    """Sequences that the archive does not hold."""

    namespace: bytes
    """The namespace, 20 bytes."""
    first: int
    """Lowest missing sequence."""
    last: int
    """Highest missing sequence."""
    held_by: tuple[str, ...] = ()
    """Relays whose heads say that they may hold them; empty when no relay was asked."""
    rejected: tuple[int, ...] = ()
    """Codes by which rows of these sequences were rejected; empty where nobody served any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """A namespace in which the relays are ahead of the archive."""

    namespace: bytes
    """The namespace, 20 bytes."""
    archived: int
    """Highest sequence archived; 0 for none."""
    head: int
    """Highest contiguous head of any relay."""
    rejected: tuple[int, ...] = ()
    """Codes by which rows in between were rejected, where nothing of the namespace is archived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceAudit:
    """One namespace."""

    namespace: bytes
    """The namespace, 20 bytes."""
    first: int
    """Lowest sequence archived."""
    last: int
    """Highest sequence archived."""
    rows: int
    """Rows in the table."""
    slots: int
    """Distinct sequences."""
    contested: int
    """Sequences with more than one content id (H17)."""
    duplicates: int
    """Rows beyond one for each content id; must be 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What the archive holds and what it lacks."""

    namespaces: tuple[NamespaceAudit, ...]
    """Each namespace, in order of ids, 100,000 at most."""
    gaps: tuple[ArchiveGap, ...]
    """Sequences without a message: between 1 and the highest archived one, 1,000 ranges a namespace
    at most, and above it where everything that was read was rejected. What was passed over because
    its class is Ephemeral is none."""
    behind: tuple[Behind, ...]
    """Where the relays are ahead."""
    rejected_by_code: dict[int, int]
    """Rejected rows by code (`luxrelay.bus.Code`)."""
    messages_by_copies: dict[int, int]
    """How many messages were served by 1, 2, … relays."""
    messages_by_relay: dict[str, int]
    """How many messages each relay served."""
    unreachable: tuple[str, ...] = ()
    """Relays whose heads could not be asked for."""
    cut: bool = False
    """There are more namespaces or gaps than are listed."""

    @property
    def rows(self) -> int:
        """Rows of the messages table."""
        return sum(entry.rows for entry in self.namespaces)

    @property
    def duplicates(self) -> int:
        """Rows beyond one for each message; must be 0."""
        return sum(entry.duplicates for entry in self.namespaces)

    @property
    def contested(self) -> int:
        """Slots with more than one content."""
        return sum(entry.contested for entry in self.namespaces)

    @property
    def rejected(self) -> int:
        """Rows of the rejects table."""
        return sum(self.rejected_by_code.values())

    @property
    def copies(self) -> int:
        """Copies that the relays served, all messages together."""
        return sum(copies * count for copies, count in self.messages_by_copies.items())

    @property
    def missing(self) -> int:
        """Sequences in the listed gaps."""
        return sum(gap.last - gap.first + 1 for gap in self.gaps)

    @property
    def complete(self) -> bool:
        """True when nothing is missing, doubled or still to be read."""
        return not (self.gaps or self.behind or self.duplicates or self.cut or self.unreachable)


def audit(
    session: ArchiveSession,
    *,
    out: Path,
    relays: Sequence[str] = (),
    tls: Mapping[str, str] | None = None,
    rules: ArchiveRules | None = None,
) -> AuditReport:
    """Return what the archive at ``out`` holds and lacks; changes nothing.

    Args:
        session: A running Spark.
        out: The archive folder.
        relays: Addresses of relays to compare heads with; none to look at the tables alone.
        tls: As in `ingest`.
        rules: As in `ingest`; namespaces of the class Ephemeral are not waited for.

    Raises:
        ArchiveError: ``archive.foreign`` when there is no archive; ``archive.failed`` when Spark
            ends with an error.
        SyncUnreachableError: relays were given and none of them answers.

    """
    from pyspark.errors import PySparkException  # noqa: PLC0415  # heavy; a session is here

    folder = open_folder(out)
    heads, unreachable = _heads(relays, tls or {})
    try:
        namespaces, found, cut = _sequences(session.spark, folder)
        by_relays = _by_relays(session.spark, folder)
        rejected = _rejected(session.spark, folder)
    except PySparkException as error:
        raise failure(error, "audit") from None
    absent = _absences(folder, namespaces, found)
    behind = _behind(namespaces, heads, retired(folder), rules or ArchiveRules(), absent.read)
    gaps = _located(absent.gaps, heads)
    by_copies: dict[int, int] = {}
    by_relay: dict[str, int] = {}
    for names, count in by_relays:
        by_copies[len(names)] = by_copies.get(len(names), 0) + count
        for name in names:
            by_relay[name] = by_relay.get(name, 0) + count
    return AuditReport(
        namespaces=tuple(namespaces),
        gaps=tuple(gaps),
        behind=tuple(_explained(folder, behind)),
        rejected_by_code=rejected,
        messages_by_copies=dict(sorted(by_copies.items())),
        messages_by_relay=dict(sorted(by_relay.items())),
        unreachable=unreachable,
        cut=cut,
    )


def _table(spark: SparkSession, folder: ArchiveFolder, table: Table) -> DataFrame:
    return spark.read.format("delta").load(str(folder.table(table)))


def _sequences(
    spark: SparkSession, folder: ArchiveFolder
) -> tuple[list[NamespaceAudit], list[Span], bool]:
    """Return each namespace's numbers and its holes; one shuffle, by namespace."""
    from pyspark.sql import Window  # noqa: PLC0415  # heavy; a session is here
    from pyspark.sql import functions as f  # noqa: PLC0415  # as above

    if not folder.has_table(MESSAGES):
        return [], [], False
    rows = _table(spark, folder, MESSAGES).select("namespace_id", "seq", "content_id")
    slots = (
        rows.repartition("namespace_id")
        .groupBy("namespace_id", "seq")
        .agg(f.count("*").alias("rows"), f.count_distinct("content_id").alias("contents"))
    )
    order = Window.partitionBy("namespace_id").orderBy("seq")
    before = f.coalesce(f.lag("seq").over(order), f.lit(0))
    hole = f.when(
        f.col("seq") > before + 1,
        f.struct((before + 1).alias("first"), (f.col("seq") - 1).alias("last")),
    )
    found = (
        slots.withColumn("hole", hole)
        .groupBy("namespace_id")
        .agg(
            f.min("seq"),
            f.max("seq"),
            f.sum("rows"),
            f.count("*"),
            f.count_if(f.col("contents") > 1),
            f.sum(f.col("rows") - f.col("contents")),
            f.array_sort(f.collect_list("hole")).alias("holes"),
        )
        .withColumn("holes_count", f.size("holes"))
        .withColumn("holes", f.slice("holes", 1, GAPS_MAX))
        .limit(NAMESPACES_MAX + 1)
        .collect()
    )
    cut, floors = len(found) > NAMESPACES_MAX, retired(folder)
    audits: list[NamespaceAudit] = []
    gaps: list[Span] = []
    for row in sorted(found, key=lambda row: bytes(row[0]))[:NAMESPACES_MAX]:
        namespace, first, last, count, slot_count, contested, duplicates, holes, total = row
        name = bytes(namespace)
        cut = cut or total > len(holes)
        audits.append(
            NamespaceAudit(
                namespace=name,
                first=first,
                last=last,
                rows=count,
                slots=slot_count,
                contested=contested,
                duplicates=duplicates,
            )
        )
        gaps += above((Span(name, hole[0], hole[1]) for hole in holes), floors)
    return audits, gaps, cut


@dataclass(frozen=True, slots=True)
class _Absent:
    """Sequences that were read and have no message."""

    gaps: list[ArchiveGap]
    read: list[Span]
    """Ranges above what is archived, and those passed over: nothing to be read any more."""


def _absences(
    folder: ArchiveFolder, namespaces: Iterable[NamespaceAudit], holes: list[Span]
) -> _Absent:
    """Return the gaps, with what was rejected there, without what was passed over on purpose."""
    lasts = retired(folder)
    for entry in namespaces:
        lasts[entry.namespace] = max(entry.last, lasts.get(entry.namespace, 0))
    known = gap_rows(folder) if folder.has_table(GAPS) else []
    heads = rejected_heads(lasts, rejected_tops(folder, lasts), known)
    passed = passed_spans(folder)
    missing = beside([*holes, *heads], passed)
    codes = rejected_codes(folder, missing)
    gaps = [
        ArchiveGap(
            namespace=span.namespace,
            first=span.first,
            last=span.last,
            rejected=codes.get(span, ()),
        )
        for span in sorted(missing)
    ]
    return _Absent(gaps, [*heads, *passed])


def _by_relays(spark: SparkSession, folder: ArchiveFolder) -> list[tuple[tuple[str, ...], int]]:
    if not folder.has_table(MESSAGES):
        return []
    counted = _table(spark, folder, MESSAGES).groupBy("relays").count().collect()
    return [(tuple(names), count) for names, count in counted]


def _rejected(spark: SparkSession, folder: ArchiveFolder) -> dict[int, int]:
    if not folder.has_table(REJECTS):
        return {}
    counted = _table(spark, folder, REJECTS).groupBy("code").count().collect()
    return dict(sorted((code, count) for code, count in counted))


def _heads(
    relays: Sequence[str], tls: Mapping[str, str]
) -> tuple[dict[str, list[PeerHead]], tuple[str, ...]]:
    if not relays:
        return {}, ()
    options = SourceOptions.parse({"relays": ",".join(relays), **tls})
    answers, down = list_heads(options)
    names = [relay for relay in options.relays if relay not in down]
    return dict(zip(names, answers, strict=True)), down


def _located(
    gaps: Iterable[ArchiveGap], heads: Mapping[str, Sequence[PeerHead]]
) -> Iterable[ArchiveGap]:
    """Add to each gap the relays that may still hold some of it."""
    ranges: dict[bytes, list[tuple[str, PeerHead]]] = {}
    for relay, held in heads.items():
        for head in held:
            if head.earliest_seq:
                ranges.setdefault(head.namespace_id, []).append((relay, head))
    for gap in gaps:
        holders = tuple(
            relay
            for relay, head in ranges.get(gap.namespace, ())
            if head.earliest_seq <= gap.last and gap.first <= head.latest_seq
        )
        yield replace(gap, held_by=holders)


def _behind(
    namespaces: Iterable[NamespaceAudit],
    heads: Mapping[str, Sequence[PeerHead]],
    floors: Mapping[bytes, int],
    rules: ArchiveRules,
    read: Iterable[Span] = (),
) -> list[Behind]:
    """Return where relays are ahead of what was read, or deleted on purpose since."""
    archived = dict(floors)
    for entry in namespaces:
        archived[entry.namespace] = max(entry.last, archived.get(entry.namespace, 0))
    beyond: dict[bytes, list[Span]] = {}
    for span in read:
        beyond.setdefault(span.namespace, []).append(span)
    furthest: dict[bytes, int] = {}
    for held in heads.values():
        for head in held:
            name = bytes(head.namespace_id)
            if not rules.passed_over(head.namespace_id, head.parent_id):
                furthest[name] = max(furthest.get(name, 0), head.contiguous_seq)
    return [
        Behind(namespace=name, archived=archived.get(name, 0), head=head)
        for name, head in sorted(furthest.items())
        if head > reached(archived.get(name, 0), beyond.get(name, ()))
    ]


def _explained(folder: ArchiveFolder, behind: Sequence[Behind]) -> Iterable[Behind]:
    """Add by which codes everything was rejected, where nothing of a namespace is archived."""
    empty = {each: Span(each.namespace, 1, each.head) for each in behind if not each.archived}
    codes = rejected_codes(folder, list(empty.values()))
    for each in behind:
        span = empty.get(each)
        yield each if span is None else replace(each, rejected=codes.get(span, ()))
