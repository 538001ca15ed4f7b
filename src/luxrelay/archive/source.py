"""The data source ``luxrelay``: relays as a stream and as a batch for Spark.

Theory of operation
-------------------
*Decides* nothing of its own: `offsets` says what is read by whom, `relays` reads it.
*Does not know* tables, verdicts, signatures: what it yields are raw rows (``schema.RAW``), or
with ``deliver=tasks`` what is to be read for them (`task_source`).
Spark keeps the planner (`RelayStreamReader`, in a Python process of its own) and the tasks
(`read`, on executors) apart. The planner asks every relay for its heads and cuts ranges; a task
reads its ranges from the relays and keeps nothing. So a reader pickles as its options.
*Bounds*: ``maxRowsPerTrigger`` rows a micro-batch; a task holds one page of one relay and one
Arrow batch.
*Promises* (PySpark's own contract): a reader pickles; `read` is stateless and may run again;
limits are obeyed, and ``ReadAllAvailable`` too; an empty range has no partition.

How long a hole is waited for: contiguous heads, and what may be read beyond them.

A message that is late leaves a hole; a message that never comes would leave one for ever, and
nothing behind it would be archived. So a hole is given up once a message beyond it has been at a
relay for ``holePatienceMs``: whatever was to come before that message had this long to arrive.
Nothing need be remembered for that, the relay's own ``received_at`` tells it. What is given up
shows as a gap, and `refetch` brings it when it comes after all.

Source: LP-6421 §2.2; decisions P23, P25, P26, P42, H16, H18, J8.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from luxrelay.archive.jvm_errors import carry
from luxrelay.archive.offsets import (
    Reach,
    Span,
    Wanted,
    advance,
    end_offsets,
    lost_spans,
    parse_offsets,
    spans_between,
    split,
    starting_offsets,
    union_reach,
)
from luxrelay.archive.options import SourceOptions
from luxrelay.archive.relays import data_loss, list_heads, read_spans
from luxrelay.archive.schema import MAX_I64, RAW
from luxrelay.archive.task_source import TASKS_DDL, deliver
from luxrelay.errors import LuxRelayError

if TYPE_CHECKING:
    import pyarrow as pa
from typing import Final

from luxrelay.archive.offsets import holed
from luxrelay.archive.relays import connect
from luxrelay.errors import SyncRemoteError, SyncUnreachableError
from luxrelay.sync.heads import PeerHead
from luxrelay.sync.rpc.client import RelaySyncClient

HOLED_MAX: Final = 200
"""Namespaces that are asked about in one survey; the rest waits for the next."""
STEPS_MAX: Final = 20
"""Messages looked at in one namespace: what they find is old enough, if not always the newest."""


def past_holes(
    options: SourceOptions, heads: Sequence[Sequence[PeerHead]], down: Sequence[str], *, now_ms: int
) -> dict[str, int]:
    """Return up to which sequence each namespace with holes may be read.

    Args:
        options: Relays, and how long a hole is waited for.
        heads: The heads of each relay that answered, in the order of the options.
        down: The relays that did not.
        now_ms: The time, Unix milliseconds.

    """
    found = dict(list(holed(heads).items())[:HOLED_MAX])
    if not found:
        return {}
    edge = now_ms - options.hole_patience_ms
    answering = [relay for relay in options.relays if relay not in down]
    passed: dict[str, int] = {}
    for relay, held in zip(answering, heads, strict=True):
        # Whoever has the newest message is asked; one that fails leaves the hole for later.
        wanted = [
            head
            for head in held
            if (name := head.namespace_id.hex()) in found and head.latest_seq == found[name][1]
        ]
        if not wanted:
            continue
        with connect(relay, options) as client:
            try:
                for head in wanted:
                    name = head.namespace_id.hex()
                    reached = _reached(client, head, found[name], edge)
                    passed[name] = max(passed.get(name, 0), reached)
            except (SyncUnreachableError, SyncRemoteError):
                continue
    return {name: reached for name, reached in passed.items() if reached > found[name][0]}


def _reached(client: RelaySyncClient, head: PeerHead, bounds: tuple[int, int], edge: int) -> int:
    """Return the highest sequence found whose message has been at the relay since ``edge``."""
    low, high = bounds
    middle = high
    for _ in range(STEPS_MAX):
        if low >= high:
            break
        page = client.sync_page(head.namespace_id, middle - 1, high, 1)
        if not page.messages:
            high = middle - 1
        elif page.messages[0].received_at <= edge:
            low = max(low, page.messages[0].seq)
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


_TAKEN = (EqualTo, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
"""Filters that a batch read may take over."""


@dataclass
class RelayPartition(InputPartition):
    """What one task reads; pickles by value."""

    spans: tuple[Span, ...]
    """Ranges of sequences, each namespace's in order."""
    down: tuple[str, ...] = ()
    """Relays that did not answer when the read was planned; the task leaves them alone."""
    parents: tuple[tuple[bytes, bytes], ...] = ()
    """Namespaces of the task that are lanes, and whose (J6)."""


class LuxRelaySource(DataSource):
    """Messages of LuxRelay relays; see `luxrelay.archive.options.SourceOptions` for options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checked = SourceOptions.parse(dict(options))

    @classmethod
    def name(cls) -> str:
        """The format name."""
        return "luxrelay"

    def schema(self) -> str:
        """The raw row schema, or that of tasks."""
        return TASKS_DDL if self._checked.deliver == "tasks" else RAW.plain_ddl()

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # PySpark's signature
        """Return a reader of everything within reach now."""
        return RelayBatchReader(self._checked)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return a reader that goes on from offset to offset."""
        return RelayStreamReader(self._checked)


class RelayBatchReader(DataSourceReader):
    """Reads once, from the starting offsets to the heads of now; takes filters over."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # PySpark's name
        """Take over what narrows namespaces and sequences; yield the filters that are left."""
        for each in filters:
            narrowed = _narrowed(self._wanted, each)
            if narrowed is None:
                yield each
            else:
                self._wanted = narrowed

    def partitions(self) -> list[InputPartition]:
        """Return the tasks; none when there is nothing to read."""
        survey = _survey(self._options)
        start = starting_offsets(self._options.starting, survey.reach)
        end = advance(start, end_offsets(survey.reach, start))
        return _plan(self._options, self._wanted.cut(spans_between(start, end)), survey)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the raw rows of one task as Arrow batches."""
        return _read(self._options, partition)


class RelayStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads from offset to offset; an offset is ``{namespace hex: last sequence read}``."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._end: dict[str, Reach] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # PySpark's name
        """Return where the first run begins; may be called more than once before it is kept."""
        return starting_offsets(self._options.starting, _survey(self._options).reach)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # PySpark's name
        """Return the limit of a micro-batch, which counts the rows of all relays."""
        return ReadMaxRows(self._options.rows_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the end of the next micro-batch: ``start`` itself when nothing is new."""
        begin = parse_offsets(start)
        reach = _survey(self._options).reach if self._end is None else self._end
        sequences = None
        if isinstance(limit, ReadMaxRows):
            copies = len(self._options.relays) if self._options.read_mode == "all" else 1
            sequences = max(1, limit.max_rows // copies)
        return advance(begin, end_offsets(reach, begin), sequences)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # PySpark's name
        """Fix the end of this run at the heads of now, so that it ends."""
        self._end = _survey(self._options).reach

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the tasks of a micro-batch; the same sequences each time it is planned."""
        # Where the batch ends is settled; what matters now is who holds any of it.
        survey = _survey(replace(self._options, heads="latest"))
        spans = spans_between(parse_offsets(start), parse_offsets(end))
        return _plan(self._options, spans, survey)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the raw rows of one task as Arrow batches."""
        return _read(self._options, partition)


class _Survey(NamedTuple):
    """What the relays said when they were asked for their heads."""

    reach: dict[str, Reach]
    down: tuple[str, ...]
    parents: dict[bytes, bytes]


def _survey(options: SourceOptions) -> _Survey:
    """Ask every relay for its heads; return the union, and the relays that did not answer."""
    try:
        heads, down = list_heads(options)
        parents = {
            bytes(head.namespace_id): bytes(head.parent_id)
            for held in heads
            for head in held
            if head.parent_id != head.namespace_id
        }
        if options.heads == "latest":
            return _Survey(union_reach(heads, to_latest=True), down, parents)
        given_up = past_holes(options, heads, down, now_ms=int(time.time() * 1000))
        return _Survey(union_reach(heads, given_up=given_up), down, parents)
    except LuxRelayError as error:
        raise carry(error) from None


def _plan(options: SourceOptions, spans: Sequence[Span], survey: _Survey) -> list[InputPartition]:
    lost = lost_spans(spans, survey.reach)
    if lost and options.fail_on_data_loss:
        raise carry(data_loss(lost, survey.down))
    return [
        RelayPartition(
            part,
            survey.down,
            tuple(
                (span.namespace, survey.parents[span.namespace])
                for span in part
                if span.namespace in survey.parents
            ),
        )
        for part in split(spans, options.partitions)
    ]


@dataclass(frozen=True, slots=True)
class RelayTask:
    """What a partition reads, wherever that is done."""

    options: SourceOptions
    """Relays, and how they are read."""
    partition: RelayPartition
    """The ranges."""

    def rows(self) -> Generator[pa.RecordBatch]:
        """Yield the raw rows as Arrow batches."""
        part = self.partition
        try:
            yield from read_spans(self.options, part.spans, part.down, dict(part.parents))
        except LuxRelayError as error:
            raise carry(error) from None


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, RelayPartition):
        return iter(())  # Spark plans one empty task when there are no partitions at all
    task = RelayTask(options, partition)
    return deliver(task) if options.deliver == "tasks" else task.rows()


def _narrowed(wanted: Wanted, each: Filter) -> Wanted | None:
    """Return what is wanted with one filter more; None when it is none that is taken over."""
    if not isinstance(each, _TAKEN) or each.attribute not in {("namespace",), ("seq",)}:
        return None
    names = each.attribute == ("namespace",)
    value = each.value
    if names and isinstance(each, EqualTo) and isinstance(value, (bytes, bytearray)):
        return wanted.among([bytes(value)])
    if names and isinstance(each, In):
        return wanted.among([bytes(name) for name in value])
    if names or isinstance(value, bool) or not isinstance(value, int):
        return None
    if isinstance(each, EqualTo):
        return wanted.between(value, value)
    if isinstance(each, GreaterThan | GreaterThanOrEqual):
        return wanted.between(value + isinstance(each, GreaterThan), MAX_I64)
    if isinstance(each, LessThan | LessThanOrEqual):
        return wanted.between(0, value - isinstance(each, LessThan))
    return None
