"""The data source keeps PySpark's contract with sources."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from luxrelay.archive.jvm_errors import recover
from luxrelay.archive.source import LuxRelaySource, RelayStreamReader
from luxrelay.archive.task_source import TASKS_DDL, read_tasks
from luxrelay.errors import ArchiveArgumentError, ArchiveError
from luxrelay.sync import WireMessage

NS, HOT = b"n" * 20, b"o" * 20
Forge = Callable[..., WireMessage]


def _source(**options: str) -> LuxRelaySource:
    return LuxRelaySource({"relays": "a:1,b:1"} | options)


def _stream(**options: str) -> RelayStreamReader:
    reader = _source(**options).streamReader(StructType())
    assert isinstance(reader, RelayStreamReader)
    return reader


def _rows(reader: Any, partitions: list[InputPartition]) -> list[tuple[str, int]]:
    return sorted(
        (row["relay"], row["seq"])
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    )


@pytest.fixture
def filled(memory_relays: Any, forge: Forge) -> Any:
    """Two relays with three messages in one namespace and forty in another."""
    for relay in ("a:1", "b:1"):
        memory_relays.put(relay, *(forge(NS, seq) for seq in range(1, 4)))
        memory_relays.put(relay, *(forge(HOT, seq) for seq in range(1, 41)))
    return memory_relays


@pytest.mark.usefixtures("filled")
def test_readers_and_partitions_pickle() -> None:
    """Source, readers and partitions survive pickling, as Spark moves them between processes."""
    source = _source()
    stream = _stream()
    (partition,) = stream.partitions({}, {NS.hex(): 3})

    for thing in (source, stream, source.reader(StructType())):
        assert type(pickle.loads(pickle.dumps(thing))) is type(thing)  # noqa: S301  our own bytes
    assert pickle.loads(pickle.dumps(partition)) == partition  # noqa: S301  our own bytes


@pytest.mark.usefixtures("filled")
def test_read_is_stateless() -> None:
    """The same partition read twice, by a copy that never planned, gives the same rows."""
    stream = _stream()
    partitions = stream.partitions({}, {NS.hex(): 3, HOT.hex(): 40})
    fresh = pickle.loads(pickle.dumps(_stream()))  # noqa: S301  our own bytes

    first = _rows(stream, partitions)

    assert first == _rows(stream, partitions) == _rows(fresh, partitions)
    assert len(first) == 2 * 43


@pytest.mark.usefixtures("filled")
def test_a_task_says_what_it_reads() -> None:
    """With ``deliver=tasks`` a partition is one row; whoever has it reads the partition's rows."""
    plain, asked = _stream(), _stream(deliver="tasks")
    end = {NS.hex(): 3, HOT.hex(): 40}
    tasks = [batch for part in asked.partitions({}, end) for batch in asked.read(part)]

    assert _source(deliver="tasks").schema() == TASKS_DDL
    assert [batch.num_rows for batch in tasks] == [1] * len(plain.partitions({}, end))
    read = [(row["relay"], row["seq"]) for each in read_tasks(tasks) for row in each.to_pylist()]
    assert sorted(read) == _rows(plain, plain.partitions({}, end))


@pytest.mark.usefixtures("filled")
def test_limits_are_obeyed() -> None:
    """A micro-batch has at most the rows of its limit; ReadAllAvailable takes everything."""
    stream = _stream(maxRowsPerTrigger="20")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)

    here: dict[str, int] = {}
    sizes = []
    while (there := stream.latestOffset(here, limit)) != here:
        sizes.append(len(_rows(stream, stream.partitions(here, there))))
        here = there

    assert sum(sizes) == 2 * 43
    assert max(sizes) <= 20
    assert stream.latestOffset({}, ReadAllAvailable()) == here == {NS.hex(): 3, HOT.hex(): 40}


@pytest.mark.usefixtures("filled")
def test_an_empty_range_has_no_partition() -> None:
    """Nothing to read plans no task, and the task Spark plans instead reads nothing."""
    end = {NS.hex(): 3, HOT.hex(): 40}
    batch = _source(startingOffsets="latest").reader(StructType())

    assert _stream().partitions(end, end) == []
    assert list(batch.partitions()) == []
    assert list(batch.read(InputPartition(None))) == []


@pytest.mark.usefixtures("filled")
def test_batch_reader_reads_everything_once() -> None:
    """A batch goes from the starting offsets to the heads of now."""
    reader = _source(startingOffsets=f'{{"{HOT.hex()}": 38}}').reader(StructType())

    rows = _rows(reader, list(reader.partitions()))

    assert rows == sorted(
        [(r, s) for r in ("a:1", "b:1") for s in (1, 2, 3)]
        + [(r, s) for r in ("a:1", "b:1") for s in (39, 40)]
    )


def test_available_now_ends_at_the_heads_of_its_start(filled: Any, forge: Forge) -> None:
    """What arrives later waits for the next run, so that a run ends."""
    stream = _stream()
    stream.prepareForTriggerAvailableNow()
    filled.put("a:1", forge(NS, 4))

    end = stream.latestOffset({}, ReadAllAvailable())

    assert isinstance(stream, SupportsTriggerAvailableNow)
    assert end[NS.hex()] == 3
    assert stream.latestOffset(end, ReadMaxRows(10)) == end


def test_initial_offset_is_what_relays_still_hold(filled: Any) -> None:
    """Earliest begins there, so what was forgotten before the first run is no loss."""
    for relay in ("a:1", "b:1"):
        filled.forget(relay, HOT, 10)
    stream = _stream()

    start = stream.initialOffset()

    assert start == stream.initialOffset() == {NS.hex(): 0, HOT.hex(): 10}
    assert stream.partitions(start, {NS.hex(): 3, HOT.hex(): 40})


def test_forgotten_messages_stop_the_stream(filled: Any) -> None:
    """The error says which are lost, and travels through a traceback; on request it goes on."""
    for relay in ("a:1", "b:1"):
        filled.forget(relay, HOT, 10)
    end = {HOT.hex(): 40}

    with pytest.raises(ArchiveError, match="10 messages in 1 namespaces") as caught:
        _stream().partitions({}, end)

    assert caught.value.code == "archive.data_loss"
    found = recover("\n".join(caught.value.__notes__))
    assert found is not None
    assert found.code == "archive.data_loss"
    assert _stream(failOnDataLoss="false").partitions({}, end)


def test_what_one_relay_still_holds_is_no_loss(filled: Any) -> None:
    """The union of the relays counts."""
    filled.forget("a:1", HOT, 10)

    partitions = _stream().partitions({}, {HOT.hex(): 40})

    assert len(_rows(_stream(), partitions)) == 30 + 40


def test_a_relay_that_is_down_is_left_alone(filled: Any) -> None:
    """The plan names it, the others serve the range."""
    filled.down.add("b:1")
    stream = _stream(faultRows="true")
    (partition,) = stream.partitions({}, {NS.hex(): 3})

    assert partition.down == ("b:1",)
    assert _rows(stream, [partition]) == [("a:1", 1), ("a:1", 2), ("a:1", 3), ("b:1", 1)]


def test_name_schema_and_options() -> None:
    """The format name is luxrelay; a wrong option is refused when the source is made."""
    assert LuxRelaySource.name() == "luxrelay"
    assert _source().schema().startswith("relay STRING, namespace BINARY")
    with pytest.raises(ArchiveArgumentError, match="unknown option"):
        _source(startingOffset="earliest")


def test_a_batch_read_takes_filters_over(filled: Any) -> None:
    """Namespaces and sequences that filters rule out are not asked of the relays (push-down)."""
    reader: Any = _source(readMode="any").reader(StructType())
    other = EqualTo(("relay",), "a:1")
    filters = [
        EqualTo(("namespace",), HOT),
        In(("namespace",), (HOT, NS)),
        GreaterThan(("seq",), 10),
        LessThanOrEqual(("seq",), 12),
        other,
        IsNotNull(("seq",)),
    ]

    left = list(reader.pushFilters(filters))
    rows = _rows(reader, reader.partitions())

    assert left == [other, IsNotNull(("seq",))]
    assert [seq for _, seq in rows] == [11, 12]
    assert sum(filled.pages.values()) == 1


@pytest.mark.parametrize(
    ("taken", "seqs"),
    [
        (EqualTo(("seq",), 2), [2]),
        (GreaterThanOrEqual(("seq",), 39), [39, 40]),
        (LessThan(("seq",), 2), [1]),
    ],
)
@pytest.mark.usefixtures("filled")
def test_bounds_of_filters_are_exact(taken: Filter, seqs: list[int]) -> None:
    """A filter that is taken over is applied by nobody else."""
    reader: Any = _source(readMode="any", namespaces=HOT.hex()).reader(StructType())

    assert list(reader.pushFilters([taken])) == []
    assert [seq for _, seq in _rows(reader, reader.partitions())] == seqs


def test_lanes_are_marked_with_their_parent(memory_relays: Any, forge: Forge) -> None:
    """Rows say whose lane they came from, as the relay has it (J6)."""
    memory_relays.put("a:1", forge(NS, 1), forge(HOT, 1))
    memory_relays.put("b:1", forge(NS, 1))
    memory_relays.parents[HOT] = NS
    reader: Any = _source().reader(StructType())

    parents = {
        row["namespace"]: row["parent"]
        for part in pickle.loads(pickle.dumps(reader.partitions()))  # noqa: S301
        for batch in reader.read(part)
        for row in batch.to_pylist()
    }

    assert parents == {NS: NS, HOT: NS}
