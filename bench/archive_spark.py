"""The archive on Spark: ingest against a blind copy and against the cores, tasks, the source.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim. Ours and the limit
take turns in one warm session; the best round of each counts.

LUXRELAY_BENCH_ROUNDS rounds are timed, 3 unless it is given, after five that warm Spark: a JVM that
has just begun compiles for longer than it works. One and two tasks are measured in JVMs of the same
age. LUXRELAY_BENCH_INGEST rows, 200,000 as a micro-batch has by itself, of as many messages that
stand once each, lie in two segment files of Parquet.
Ingest is what a micro-batch costs: reading, checks by columns, a look for copies, files of
``raw`` and ``messages``, two commits. Rows that may have been read, of segment files, are first
looked for in the tables by their slots. Ingest appends to tables that are there, as every batch of
an archive but the first does, and so does the copy: Delta looks at the log of a table before it
appends to it.
The source is measured with LUXRELAY_BENCH_SOURCE messages of one relay in a process of its own,
against a source that yields rows of the same width from memory; both are counted and forgotten.
The same relay is ingested by tasks that read where they check, as `ingest` does, and by rows that
Spark hands over; each call asks the relay for its heads and starts a planner.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from nacl import bindings
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from luxrelay.archive import ArchiveSession, decode
from luxrelay.archive import rules as archive_rules
from luxrelay.archive.batches import BatchTables
from luxrelay.archive.decode import check_batch
from luxrelay.archive.folder import writing
from luxrelay.archive.part_files import Check
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.schema import RAW
from luxrelay.archive.segments import SegmentTask
from luxrelay.archive.session import SessionConfig
from luxrelay.archive.tables import prepare_tables
from luxrelay.archive.task_source import TASKS_DDL
from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, sha3_commitment
from luxrelay.store import IncomingMessage, RelayStore
from luxrelay.sync import FairnessConfig, RelaySyncServer, SyncServerConfig

ROWS = int(os.environ.get("LUXRELAY_BENCH_INGEST", "200000"))
SOURCE_ROWS = int(os.environ.get("LUXRELAY_BENCH_SOURCE", "40000"))
FILES = 2
NAMESPACES = 200
SENDERS = 40
BLOB_BYTES = 400
ROUNDS = int(os.environ.get("LUXRELAY_BENCH_ROUNDS", "3"))
WARM = 5
AGAIN = 3
"""Rounds that warm what comes next in a session that is warm."""
STAMP = 1_785_974_400_000
KEYS = [
    SigningKey.from_seed(SignatureScheme.ED25519, bytes([number]) * 32)
    for number in range(1, SENDERS + 1)
]
NAMES = [NamespaceId(bytes([number]) * 20) for number in range(1, NAMESPACES + 1)]


def say(name: str, value: float, against: str, ratio: float, aim: float | None) -> None:
    """Print one result."""
    row = {"part": "archive", "name": name, "value": value, "unit": "rows/s"}
    print(json.dumps({**row, "against": against, "ratio": ratio, "aim": aim}), flush=True)


def signed(rows: int) -> Iterator[tuple[MsgHeader, bytes]]:
    """Yield valid messages with their payloads."""
    for number in range(rows):
        place = number % NAMESPACES
        blob = (b"%d a line of chat and what else it says; " % number * 12)[:BLOB_BYTES]
        header = MsgHeader(
            namespace_id=NAMES[place],
            seq=number // NAMESPACES + 1,
            timestamp=STAMP + number,
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=bytes(32),
        )
        yield KEYS[place % SENDERS].sign_header(header), blob


def raw_rows(rows: int) -> pa.Table:
    """Return them as one relay would serve them."""
    values = [
        {
            "relay": "127.0.0.1:9641",
            "namespace": header.namespace_id,
            "parent": header.namespace_id,
            "seq": header.seq,
            "header": header.encode(),
            "blob": blob,
            "received_at": header.timestamp + 40,
            "expires_at": header.timestamp + 600_000,
            "finality": 0,
        }
        for header, blob in signed(rows)
    ]
    return pa.Table.from_pylist(values, schema=RAW.arrow())


def unsigned(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check everything but signatures; runs on executors."""
    kept, name, rules = decode._check_signature, "_check_signature", ArchiveRules()
    # By its module: this function travels by value, and a good outcome is known by identity.
    setattr(decode, name, lambda *_: archive_rules.GOOD)
    try:
        for batch in batches:
            yield check_batch(batch, rules)
    finally:
        setattr(decode, name, kept)  # the process goes on to other tasks


class Unsigned(BatchTables):
    """Writes batches without looking at signatures."""

    @property
    def check(self) -> Check:
        """Raw rows into checked ones; runs on executors."""
        return unsigned


class Ingest:
    """Rows in Parquet files, and what may be done with them."""

    def __init__(self, spark: SparkSession, raw: Path, work: Path) -> None:
        self._spark, self._raw = spark, raw
        tasks = [(bytearray(pickle.dumps(SegmentTask(path))),) for path in sorted(raw.iterdir())]
        self._tasks = spark.createDataFrame(tasks, TASKS_DDL)  # a task of Spark for each core
        self._archive, self._copies = work / "archive", str(work / "copies")
        self._batches = count()
        with writing(self._archive) as made:
            prepare_tables(made)
        self._rows().limit(0).write.format("delta").save(self._copies)

    def _rows(self) -> DataFrame:
        return self._spark.read.parquet(str(self._raw))

    def copy(self) -> None:
        """Append the rows to a Delta table, blindly."""
        self._rows().write.format("delta").mode("append").save(self._copies)

    def batch(self, kind: type[BatchTables] = BatchTables) -> None:
        """Make of them what a micro-batch makes."""
        assert self.write(self._tasks, kind) == ROWS

    def write(self, frame: DataFrame, kind: type[BatchTables] = BatchTables) -> int:
        """Make of a frame what a micro-batch makes; return how many messages it had."""
        with writing(self._archive) as folder:
            done = kind(folder=folder).write(frame, next(self._batches))
        assert done.report.rejected == 0
        return done.report.messages

    def unseen(self) -> float:
        """Make what a micro-batch of segment files makes of slots that nobody knows; seconds."""
        name = f"unseen-{next(self._batches)}"
        with writing(self._archive.with_name(name)) as folder:
            prepare_tables(folder)
            tables = BatchTables(folder=folder, again=True, rereads=True)
            took = seconds(lambda: tables.write(self._tasks, 0))
        shutil.rmtree(folder.path)
        return took


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def best(*calls: Callable[[], object], warm: int) -> list[float]:
    """Return the shortest time of each; they take turns, ``warm`` rounds do not count."""
    found = [float("inf")] * len(calls)
    for number in range(warm + ROUNDS):
        for place, call in enumerate(calls):
            took = seconds(call)
            if number >= warm:
                found[place] = min(found[place], took)
    return found


HELD: list[list[tuple[bytes, bytes]]] = []
"""What each process of the limit verifies; in its memory before it is timed."""


def hold(parts: list[list[tuple[bytes, bytes]]]) -> None:
    """Keep what is verified later; runs once in each process of the limit."""
    HELD.extend(parts)


def verify(place: int) -> None:
    """Verify signatures, nothing else."""
    for joined, key in HELD[place]:
        bindings.crypto_sign_open(joined, key)


def signatures(raw: pa.Table) -> list[tuple[bytes, bytes]]:
    """Return what libsodium needs of each row: signature and message in one, and the key."""
    headers = [MsgHeader.decode(data) for data in raw.column("header").to_pylist()]
    return [
        (header.signature + header.header_hash, header.sender_pub_key[1:]) for header in headers
    ]


class MemorySource(DataSource):
    """Yields rows of the width that a relay's have, from memory."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "memory-rows"

    def schema(self) -> str:
        """Return the columns of the rows."""
        return RAW.plain_ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        del schema
        return MemoryReader()


class MemoryReader(DataSourceReader):
    """Two tasks, and batches as large as ours."""

    BATCH = 2_000

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield rows."""
        del partition
        row = {
            "relay": "127.0.0.1:9641", "namespace": bytes(20), "parent": bytes(20), "seq": 1,
            "header": bytes(250), "blob": bytes(BLOB_BYTES), "received_at": STAMP,
            "expires_at": STAMP, "finality": 0,
        }  # fmt: skip
        batch = pa.RecordBatch.from_pylist([row] * self.BATCH, schema=RAW.arrow())
        for left in range(SOURCE_ROWS // 2, 0, -self.BATCH):
            yield batch.slice(0, min(left, self.BATCH))


def serve(channel: Connection) -> None:
    """Serve a filled store until told to stop."""
    with tempfile.TemporaryDirectory() as folder:
        store = RelayStore.open(Path(folder) / "store", now_ms=STAMP)
        group = []
        for header, blob in signed(SOURCE_ROWS):
            group.append(
                IncomingMessage(
                    header=header, blob=blob, parent=header.namespace_id, received_at=STAMP
                )
            )
            if len(group) == 1_000:
                store.put_many(group, STAMP)
                group = []
        store.put_many(group, STAMP)
        free = FairnessConfig(out_bytes_per_s=0)
        server = RelaySyncServer(
            store, SyncServerConfig(port=0, fairness=free), clock_ms=lambda: STAMP
        )
        channel.send(server.start())
        channel.recv()
        server.stop(grace_s=0)
        store.close()


@contextmanager
def relay() -> Iterator[str]:
    """Yield the address of a relay in another process."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=serve, args=(theirs,))
    process.start()
    try:
        yield f"127.0.0.1:{ours.recv()}"
    finally:
        ours.send("stop")
        process.join()


def all_rows(frame: DataFrame) -> Callable[[], None]:
    """Return a call that reads every row and keeps none."""
    return lambda: frame.write.format("noop").mode("overwrite").save()


def session(tasks: int) -> ArchiveSession:
    """Start Spark as a long run would have it."""
    config = SessionConfig(master=f"local[{tasks}]", tasks=tasks, quick=False)
    return ArchiveSession(config)


def measure_source(spark: SparkSession, ingest: Ingest) -> None:
    """Print the source against one that has its rows in memory, and ingest from a relay."""
    spark.dataSource.register(MemorySource)
    with relay() as address:
        options = {"relays": address, "heads": "latest", "numPartitions": "2"}

        def taken(way: str) -> Callable[[], None]:
            frame = spark.read.format("luxrelay").options(**options, deliver=way).load()

            def call() -> None:
                assert ingest.write(frame) == SOURCE_ROWS

            return call

        here, through = best(taken("tasks"), taken("rows"), warm=AGAIN)
        say(
            "ingest from a relay on the same two cores", SOURCE_ROWS / here,
            "its rows by way of the JVM", through / here, None,
        )  # fmt: skip
        pulled = spark.read.format("luxrelay").options(**options).load()
        assert pulled.count() == SOURCE_ROWS
        memory = spark.read.format("memory-rows").load()
        ours, limit = best(all_rows(pulled), all_rows(memory), warm=AGAIN)
    say(
        "source, one relay, two tasks", SOURCE_ROWS / ours,
        "a source of rows of the same width in memory", limit / ours, None,
    )  # fmt: skip


def measure_ingest(work: Path) -> None:
    """Print ingest without and with signatures, and by one and two tasks."""
    table, raw = raw_rows(ROWS), work / "raw"
    raw.mkdir()
    for number in range(FILES):
        size = -(-ROWS // FILES)
        pq.write_table(table.slice(number * size, size), raw / f"{number}.parquet")
    pairs = signatures(table)
    with session(1) as one:
        single = Ingest(one.spark, raw, work / "one")
        (alone,) = best(single.batch, warm=WARM)
    parts = [pairs[::2], pairs[1::2]]
    spawning = multiprocessing.get_context("spawn")
    with session(2) as two, spawning.Pool(2, hold, (parts,)) as pool:
        ingest = Ingest(two.spark, raw, work / "two")
        cores, ours = best(lambda: pool.map(verify, (0, 1), 1), ingest.batch, warm=WARM)
        half = min(seconds(lambda: pool.apply(verify, (0,))) for _ in range(ROUNDS))
        say(
            "the cores: PyNaCl verification by two processes", ROWS / cores,
            "by one", 2 * half / cores, None,
        )  # fmt: skip
        say("ingest", ROWS / ours, "PyNaCl verification on two cores", cores / ours, 0.8)
        say("ingest, two tasks", ROWS / ours, "one task", alone / ours, 1.7)
        copied, blind = best(ingest.copy, lambda: ingest.batch(Unsigned), warm=AGAIN)
        say(
            "ingest, no signatures", ROWS / blind, "Spark appending the same Parquet to Delta",
            copied / blind, 0.5,
        )  # fmt: skip
        unseen = min(ingest.unseen() for _ in range(AGAIN + ROUNDS))
        say(
            "ingest, rows that may have been read and were not", ROWS / unseen,
            "PyNaCl verification on two cores", cores / unseen, None,
        )  # fmt: skip
        measure_source(two.spark, ingest)


def main() -> None:
    """Measure ingest and the source."""
    with tempfile.TemporaryDirectory(prefix="luxrelay-bench-") as name:
        measure_ingest(Path(name))


if __name__ == "__main__":
    main()
