"""The store's ingest and reading, against RocksDB alone in the same run.

The limits of ingest are minimal loops over rocksdict that do nothing but write, with the store's
own options and in the same batches: the very rows that the store writes for each message (five, in
one table; this is checked), as they come and sorted within a batch; and the rows of a store that
follows LP-6421 §1.2 literally (seven a message, each in a column family of its own). Messages and
rows are made a batch at a time outside of the measured time, as the stage before would; the first
batch, which makes the store's first slice, is not measured either. With
``fsync`` both sync after each batch. The limit of reading is an iterator over the header rows that
looks at nothing. Ours and theirs take turns, so that other load disturbs both alike; the best round
of each counts. Reads by id and the Merkle tree are measured against these figures.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from messages import NOW, Arrival, arrivals, checked, percentile, result

from luxrelay.bus import MessageId, NamespaceId
from luxrelay.store import (
    Durability,
    IncomingMessage,
    NamespaceQuery,
    PutOutcome,
    RelayStore,
    RelayStoreConfig,
    layout,
)
from luxrelay.store.layout import BlobPlace, MessageRow
from luxrelay.store.merkle import MerkleTree
from luxrelay.store.rocks import Database
from luxrelay.store.slices import expiry_of

MESSAGES = int(os.environ.get("LUXRELAY_BENCH_MESSAGES", "20000"))
ROUNDS = 3
LANES = 8
BLOB_BYTES = 1_024
SHARES = {
    (1, Durability.OS): 2,
    (1, Durability.FSYNC): 20,
    (32, Durability.FSYNC): 4,
}
"""Part of the messages that is enough for small batches."""
LARGE = RelayStoreConfig(max_storage_bytes=8 << 30, namespace_quota_bytes=4 << 30)

RawRow = tuple[str, bytes, bytes]
"""Table, key, value."""
RowsOf = Callable[[list[IncomingMessage]], Iterable[RawRow]]
PLAIN_KINDS = {layout.HEADERS, layout.TIMES, layout.CONTENTS, layout.SLOTS, layout.REFERENCES}


def header_row(message: IncomingMessage) -> tuple[bytes, MessageRow]:
    """Return key and row of a message."""
    header, blob = message.header, message.blob or b""
    expires_at = expiry_of(LARGE, message.received_at, header.timestamp)
    key = layout.slot_key(header.namespace_id, header.seq) + header.content_id
    place, encoded = BlobPlace.INLINE, header.encode()
    return key, MessageRow(NOW, expires_at, 0, place, len(blob), b"", encoded, blob)


def same_rows(messages: list[IncomingMessage]) -> Iterator[RawRow]:
    """Yield the rows that the store writes for each message."""
    for message in messages:
        key, row = header_row(message)
        yield "slice", layout.HEADERS + key, layout.encode_row(row)
        for kind, name, value in layout.index_rows(key, row):
            yield "slice", kind + name, value
        name = layout.SLOTS + message.header.message_id
        yield "slice", name, key[: layout.SLOT_BYTES]


def sorted_rows(messages: list[IncomingMessage]) -> list[RawRow]:
    """Return the same, in the order of keys."""
    return sorted(same_rows(messages))


def seven_rows(messages: list[IncomingMessage]) -> Iterator[RawRow]:
    """Yield the rows of LP-6421 §1.2, each key in its own family."""
    for message in messages:
        header, (key, row) = message.header, header_row(message)
        stamp = layout.u64(header.timestamp)
        yield "headers", key, layout.encode_row(row)
        yield "times", stamp + key, b""
        yield "expiries", layout.u64(row.expires_at) + key, b""
        yield "senders", header.sender_address + key, b""
        yield "slots", header.message_id, key[: layout.SLOT_BYTES]
        yield "contents", header.content_id, key[: layout.SLOT_BYTES] + stamp + stamp
        yield "references", header.blob_commitment + key, b"\x01"


def batches(arrived: list[Arrival], batch: int) -> Iterator[list[IncomingMessage]]:
    """Yield messages as the verifying stage hands them on."""
    for start in range(0, len(arrived), batch):
        yield checked(arrived[start : start + batch])


def put_all(folder: Path, arrived: list[Arrival], batch: int, durability: Durability) -> float:
    """Return messages a second through the store, until all are as durable as promised."""
    config = RelayStoreConfig(
        max_storage_bytes=LARGE.max_storage_bytes,
        namespace_quota_bytes=LARGE.namespace_quota_bytes,
        durability=durability,
    )
    spent = 0.0
    with RelayStore.open(folder, config, now_ms=NOW) as store:
        for messages in batches(arrived, batch):
            began = time.perf_counter()
            if durability is Durability.GROUP:
                receipt = store.put(messages, NOW)
                outcomes = receipt.outcomes
            else:
                outcomes = store.put_many(messages, NOW)
            spent += time.perf_counter() - began
            if messages[0].header.seq == 1:
                spent = 0.0
            assert outcomes.count(PutOutcome.STORED) == len(messages)
        if durability is Durability.GROUP:
            began = time.perf_counter()
            assert receipt.wait(30)
            spent += time.perf_counter() - began
    return (len(arrived) - batch) / spent


def put_raw(folder: Path, arrived: list[Arrival], batch: int, rows_of: RowsOf, sync: bool) -> float:
    """Return messages a second when nothing is done but writing their rows."""
    names = sorted({name for name, _, _ in rows_of(checked(arrived[:1]))})
    database = open_raw(folder, names)
    handles = {name: database.table(name).handle for name in names}
    spent = 0.0
    for messages in batches(arrived, batch):
        rows = list(rows_of(messages))
        began = time.perf_counter()
        written = database.batch()
        put = written.native.put
        for name, key, value in rows:
            put(key, value, handles[name])  # type: ignore[arg-type]  # opaque here
        database.write(written)
        if sync:
            database.sync()
        spent += time.perf_counter() - began
        if messages[0].header.seq == 1:
            spent = 0.0
    handles.clear()
    database.close()
    return (len(arrived) - batch) / spent


def open_raw(folder: Path, names: list[str]) -> Database:
    """Return a database with the store's options."""
    buffer_bytes, cache_bytes = LARGE.write_buffer_bytes, LARGE.block_cache_bytes
    return Database.open(
        folder, names, write_buffer_bytes=buffer_bytes, block_cache_bytes=cache_bytes
    )


def require_same(ours: Path, raw: Path) -> None:
    """The rows of messages in the store are those of the bare loop, byte for byte."""
    inside = next(ours.rglob("CURRENT")).parent
    databases = [open_raw(inside, ["default"]), open_raw(raw, ["slice"])]
    found = []
    for database in databases:
        names = [name for name in database.names if name.startswith("slice")]
        rows = [row for name in names for row in database.scan(name, b"", b"")]
        found.append([row for row in rows if row[0][:1] in PLAIN_KINDS])
        database.close()
    assert found[0] == found[1], "the bare loop does not write the rows of the store"


def read_all(store: RelayStore, namespaces: list[NamespaceId]) -> float:
    """Return messages a second through `RelayStore.query`, page by page."""
    began, count = time.perf_counter(), 0
    for namespace in namespaces:
        cursor = b""
        while True:
            page = store.query(NamespaceQuery(namespace_id=namespace, cursor=cursor), NOW)
            count += len(page.messages)
            if not page.has_more:
                break
            cursor = page.next_cursor
    assert count == MESSAGES
    return count / (time.perf_counter() - began)


def read_raw(folder: Path) -> float:
    """Return header rows a second through a bare iterator."""
    database = open_raw(folder, ["headers"])
    began = time.perf_counter()
    count = sum(1 for _ in database.table("headers").rows.items())
    spent = time.perf_counter() - began
    database.close()
    assert count == MESSAGES
    return count / spent


def read_points(store: RelayStore, ids: list[MessageId], now_ms: int) -> list[float]:
    """Return what `get_messages` of one id takes, seconds."""
    taken = []
    for wanted in random.Random(1).choices(ids, k=5_000):
        began = time.perf_counter()
        found, _ = store.get_messages([wanted], now_ms)
        taken.append(time.perf_counter() - began)
        assert found
    return taken


def hash_sets() -> list[dict[str, Any]]:
    """Measure the Merkle tree."""
    chance = random.Random(1).randbytes(32 * 1_000_000)
    ids = [chance[at : at + 32] for at in range(0, len(chance), 32)]
    began = time.perf_counter()
    tree = MerkleTree(ids)
    built = time.perf_counter() - began
    taken = []
    for start in range(0, 100_000, 1_000):
        chunk = ids[start : start + 1_000]
        began = time.perf_counter()
        tree.xor_batch(chunk, removed=True)
        taken.append(time.perf_counter() - began)
    chunk_s = percentile(taken, 0.5)
    return [
        result("tree from 1,000,000 ids", 1e6 / built, "1 s", 1e6, 1.0, unit="ids/s"),
        result("xor_batch of 1,000 ids", 1e3 / chunk_s, "150 us", 1e3 / 150e-6, 1.0, unit="ids/s"),
    ]


def in_turn(folder: Path, measures: list[Callable[[Path], float]]) -> list[float]:
    """Return the best of each figure over the rounds, each in a folder of its own."""
    bests = [0.0] * len(measures)
    for _ in range(ROUNDS):
        shutil.rmtree(folder, ignore_errors=True)
        for at, measure in enumerate(measures):
            place = folder / str(at)
            place.mkdir(parents=True)
            bests[at] = max(bests[at], measure(place))
    return bests


def ingest(folder: Path, arrived: list[Arrival]) -> Iterator[dict[str, Any]]:
    """Measure putting; the last round at 256 without syncs stays in ``folder``."""
    same = ("rocksdict, the same rows as they come", same_rows, 0.7)
    ordered = ("rocksdict, the same rows sorted within a batch", sorted_rows, 0.5)
    seven = ("rocksdict, the seven rows of LP-6421", seven_rows, 0.7)
    ways: list[tuple[int, Durability, list[tuple[str, RowsOf, float]]]] = [
        (1, Durability.OS, [(*same[:2], 0.0)]),
        (32, Durability.OS, [(*same[:2], 0.0)]),
        (1, Durability.FSYNC, [(*same[:2], 0.0)]),
        (32, Durability.FSYNC, [(*same[:2], 0.0)]),
        (256, Durability.FSYNC, [same]),
        (256, Durability.GROUP, [same]),
        (256, Durability.OS, [same, ordered, seven]),
    ]
    for batch, durability, limits in ways:
        some = arrived[: MESSAGES // SHARES.get((batch, durability), 1)]
        sync = durability is Durability.FSYNC
        ours = partial(put_all, arrived=some, batch=batch, durability=durability)
        bare = [
            partial(put_raw, arrived=some, batch=batch, rows_of=rows_of, sync=sync)
            for _, rows_of, _ in limits
        ]
        mine, *theirs = in_turn(folder, [ours, *bare])
        name = f"put of 1 KiB, {batch} at a time, durability {durability}"
        for (against, _, aim), limit in zip(limits, theirs, strict=True):
            yield result(name, mine, against, limit, aim)


def reading(ours: Path, raw: Path, arrived: list[Arrival]) -> Iterator[dict[str, Any]]:
    """Measure pages and single messages of a closed store that is opened again."""
    headers = [message.header for message in checked(arrived)]
    namespaces = sorted({header.namespace_id for header in headers})
    rates = []
    for _ in range(ROUNDS):
        with RelayStore.open(ours, LARGE, now_ms=NOW) as store:
            rates.append((read_all(store, namespaces), read_raw(raw)))
    pages, bare = (max(column) for column in zip(*rates, strict=True))
    yield result("query, pages of 1,000", pages, "a bare iterator over the rows", bare, 0.1)
    with RelayStore.open(ours, LARGE, now_ms=NOW) as store:
        taken = read_points(store, [header.message_id for header in headers], NOW + 120_000)
    p99 = 1 / percentile(taken, 0.99)
    yield result("get_messages of one id, p99", p99, "1 ms", 1_000, 1.0, unit="reads/s")


def run(folder: Path) -> Iterator[dict[str, Any]]:
    """Measure everything."""
    arrived = list(arrivals(MESSAGES, LANES, BLOB_BYTES))
    yield from ingest(folder, arrived)
    require_same(folder / "0", folder / "1")
    yield from reading(folder / "0", folder / "3", arrived)
    yield from hash_sets()


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp(prefix="luxrelay-bench-"))
    try:
        for row in run(place / "round"):
            print(json.dumps(row), flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
