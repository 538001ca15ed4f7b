"""The store's ingest and reading, against RocksDB alone in the same run.

The limits of ingest are two minimal loops over rocksdict that do nothing but write: the very same
rows as the store (five a message, in one table), and the rows of a store that follows LP-6421 §1.2
literally (seven a message: header, time, expiry, sender, message id, content id, blob reference,
each in a column family of its own, as layout 2 had them). The limit of reading is an iterator over
the header rows that looks at nothing. Ours and theirs take turns, so that other load disturbs both
alike; the best round of each counts. The rest is measured against what issue and specification ask
for: reads by id, deletion, puts beside a deletion cycle, the Merkle tree.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rocksdict import Options, Rdict, WriteBatch

from luxrelay.bus import MsgHeader, NamespaceId, SigningKey, lane, sha3_commitment
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

MESSAGES = 20_000
BATCH = 256
ROUNDS = 3
LANES = 8
BLOB_BYTES = 200
AGED = int(os.environ.get("LUXRELAY_BENCH_AGED", "100000"))
"""Messages of the deletion figure; 1,000,000 is what the issue asks for."""
NOW = 1_764_000_000_000
PARENT = NamespaceId(b"\x22" * 20)


def made_messages() -> list[IncomingMessage]:
    """Return messages of several lanes in turn, as they come from the verifying stage."""
    keys = [SigningKey.generate() for _ in range(LANES)]
    messages = []
    for number in range(MESSAGES):
        key = keys[number % LANES]
        blob = number.to_bytes(8, "big") * (BLOB_BYTES // 8)
        header = MsgHeader(
            namespace_id=lane(PARENT, key.public_field),
            seq=number // LANES + 1,
            timestamp=NOW,
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=bytes(32),
            sender_pub_key=key.public_field,
            signature=bytes(64),
        )
        arrived = MsgHeader.decode(header.encode())
        _ = arrived.content_id  # computed when the signature and the duplicate were checked
        messages.append(IncomingMessage(header=arrived, blob=blob, parent=PARENT, received_at=NOW))
    return messages


RawRow = tuple[str, bytes, bytes]
"""Table, key, value."""
SAME_TABLES = ("slice",)
SEVEN_TABLES = ("headers", "times", "expiries", "senders", "slots", "contents", "references")


def same_rows(message: IncomingMessage) -> list[RawRow]:
    """Return the rows the store writes for a message."""
    header, blob = message.header, message.blob or b""
    key = layout.slot_key(header.namespace_id, header.seq) + header.content_id
    row = MessageRow(NOW, NOW, 0, BlobPlace.INLINE, len(blob), b"", header.encode(), blob)
    rows = [(layout.HEADERS, key, layout.encode_row(row)), *layout.index_rows(key, row)]
    rows.append((layout.SLOTS, header.message_id, key[: layout.SLOT_BYTES]))
    return [("slice", kind + name, value) for kind, name, value in rows]


def seven_rows(message: IncomingMessage) -> list[RawRow]:
    """Return the rows of LP-6421 §1.2, each key in its own family."""
    header, blob = message.header, message.blob or b""
    key = layout.slot_key(header.namespace_id, header.seq) + header.content_id
    row = MessageRow(NOW, NOW, 0, BlobPlace.INLINE, len(blob), b"", header.encode(), blob)
    stamp = layout.u64(header.timestamp)
    return [
        ("headers", key, layout.encode_row(row)),
        ("times", stamp + key, b""),
        ("expiries", layout.u64(header.timestamp + 600_000) + key, b""),
        ("senders", header.sender_address + key, b""),
        ("slots", header.message_id, key[: layout.SLOT_BYTES]),
        ("contents", header.content_id, key[: layout.SLOT_BYTES] + stamp + stamp),
        ("references", header.blob_commitment + key, b"\x01"),
    ]


def put_all(folder: Path, messages: list[IncomingMessage], durability: Durability) -> float:
    """Return messages a second through `RelayStore.put_many`."""
    config = RelayStoreConfig(durability=durability)
    with RelayStore.open(folder, config, now_ms=NOW) as store:
        began = time.perf_counter()
        for start in range(0, MESSAGES, BATCH):
            outcomes = store.put_many(messages[start : start + BATCH], NOW)
            assert outcomes.count(PutOutcome.STORED) == len(outcomes)
        return MESSAGES / (time.perf_counter() - began)


def put_grouped(folder: Path, messages: list[IncomingMessage]) -> float:
    """Return messages a second through `RelayStore.put`, until the last receipt is durable."""
    shutil.rmtree(folder)
    folder.mkdir()
    config = RelayStoreConfig(durability=Durability.GROUP)
    with RelayStore.open(folder / "group", config, now_ms=NOW) as store:
        began = time.perf_counter()
        receipts = [
            store.put(messages[start : start + BATCH], NOW) for start in range(0, MESSAGES, BATCH)
        ]
        assert receipts[-1].wait(30)
        return MESSAGES / (time.perf_counter() - began)


def put_raw(folder: Path, rows: list[list[RawRow]], tables: Sequence[str], *, sync: bool) -> float:
    """Return messages a second when nothing is done but writing their rows."""
    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.create_missing_column_families(create_missing_cfs=True)
    families = {name: Options(raw_mode=True) for name in tables}
    database = Rdict(str(folder), options, families)
    handles = {name: database.get_column_family_handle(name) for name in families}
    began = time.perf_counter()
    for start in range(0, MESSAGES, BATCH):
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for message in rows[start : start + BATCH]:
            for family, key, value in message:
                put(key, value, handles[family])
        database.write(batch)
        if sync:
            database.flush_wal(sync=True)
    spent = time.perf_counter() - began
    handles.clear()
    database.close()
    return MESSAGES / spent


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
    options = {name: Options(raw_mode=True) for name in SEVEN_TABLES}
    database = Rdict(str(folder), Options(raw_mode=True), options)
    headers = database.get_column_family("headers")
    began, count = time.perf_counter(), 0
    for _ in headers.items():
        count += 1
    spent = time.perf_counter() - began
    headers.close()
    database.close()
    assert count == MESSAGES
    return count / spent


def percentile(seconds: list[float], share: float) -> float:
    """Return the figure below which a share of the others lies."""
    return sorted(seconds)[int(share * (len(seconds) - 1))]


def read_points(folder: Path, messages: list[IncomingMessage], now_ms: int) -> list[float]:
    """Return what `get_messages` of one id takes, seconds."""
    chosen = random.Random(1).choices(messages, k=5_000)
    ids = [message.header.message_id for message in chosen]
    taken = []
    with RelayStore.open(folder, now_ms=NOW) as store:
        for wanted in ids:
            began = time.perf_counter()
            found, _ = store.get_messages([wanted], now_ms)
            taken.append(time.perf_counter() - began)
            assert found
    return taken


def put_one_by_one(store: RelayStore, messages: list[IncomingMessage]) -> list[float]:
    """Return what `put_many` of one message takes, seconds."""
    taken = []
    for message in messages:
        began = time.perf_counter()
        store.put_many([message], NOW)
        taken.append(time.perf_counter() - began)
    return taken


def beside_a_cycle(folder: Path, messages: list[IncomingMessage]) -> tuple[list[float], ...]:
    """Return put latencies alone and beside a deletion cycle, and messages deleted a second."""
    half = MESSAGES // 2
    config = RelayStoreConfig(durability=Durability.OS, cold_store_ttl_ms=1_000)
    old = [
        IncomingMessage(header=m.header, blob=m.blob, parent=PARENT, received_at=NOW - 500)
        for m in messages[:half]
    ]
    with RelayStore.open(folder, config, now_ms=NOW) as store:
        store.put_many(old, NOW - 500)
        alone = put_one_by_one(store, messages[half : half + 1_000])
        spent: list[float] = []

        def cycle() -> None:
            began = time.perf_counter()
            removed = store.expire(NOW + 500).removed_count
            spent.append(removed / (time.perf_counter() - began))

        running = threading.Thread(target=cycle)
        running.start()
        beside = put_one_by_one(store, messages[half + 1_000 : half + 1_300])
        running.join()
    return alone, beside, spent


def deletion(folder: Path, count: int) -> list[dict[str, Any]]:
    """Measure how fast nine tenths of ``count`` messages are forgotten, with their space.

    They come in ten spans of a minute; the cycle comes when nine of them are past.
    """
    key = SigningKey.generate()
    namespace = lane(PARENT, key.public_field)
    blob = random.Random(2).randbytes(BLOB_BYTES)
    commitment = sha3_commitment(blob)
    config = RelayStoreConfig(
        durability=Durability.OS,
        gc_batch_limit=count,
        namespace_quota_bytes=2**40,
        max_storage_bytes=2**40,
    )
    with RelayStore.open(folder, config, now_ms=NOW) as store:
        for start in range(0, count, BATCH):
            store.put_many(
                [
                    IncomingMessage(
                        header=MsgHeader(
                            namespace_id=namespace,
                            seq=number + 1,
                            timestamp=NOW + number * 600_000 // count,
                            blob_commitment=commitment,
                            blob_len=BLOB_BYTES,
                            policy_hash=number.to_bytes(32, "big"),
                            sender_pub_key=key.public_field,
                            signature=bytes(64),
                        ),
                        blob=blob,
                        parent=PARENT,
                        received_at=NOW + number * 600_000 // count,
                    )
                    for number in range(start, min(start + BATCH, count))
                ],
                NOW,
            )
    with RelayStore.open(folder, config, now_ms=NOW) as store:  # all rows are in table files
        before = disk_bytes(folder)
        began = time.perf_counter()
        removed = store.expire(NOW + 600_000 + 539_999).removed_count
        spent = time.perf_counter() - began
        left = disk_bytes(folder)
    name = f"delete {removed:,} aged of {count:,} messages"
    return [
        result(name, removed / spent, "450,000 a second", 450_000, 1.0),
        result(
            "disk given back by it",
            (before - left) / before,
            "nine tenths",
            0.9,
            0.95,
            unit="share",
        ),
        result(
            "disk a message", before / count, "its own bytes", 244 + BLOB_BYTES, 0.0, unit="bytes"
        ),
    ]


def disk_bytes(folder: Path) -> int:
    """Return the bytes of all table files."""
    return sum(path.stat().st_size for path in folder.rglob("*.sst"))


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


def best(measure: Callable[[], list[Any]]) -> list[float]:
    """Return the best of each figure over the rounds."""
    return [max(figures) for figures in zip(*(measure() for _ in range(ROUNDS)), strict=True)]


def result(
    name: str, ours: float, against: str, theirs: float, aim: float, *, unit: str = "messages/s"
) -> dict[str, Any]:
    """Return one result."""
    return {
        "part": "store",
        "name": name,
        "value": ours,
        "unit": unit,
        "against": against,
        "ratio": ours / theirs,
        "aim": aim,
    }


def run() -> list[dict[str, Any]]:
    """Measure everything in a temporary folder."""
    messages = made_messages()
    same = [same_rows(message) for message in messages]
    seven = [seven_rows(message) for message in messages]
    namespaces = sorted({message.header.namespace_id for message in messages})
    folder = Path(tempfile.mkdtemp(prefix="luxrelay-bench-"))

    def ingest(durability: Durability) -> list[float]:
        shutil.rmtree(folder)
        folder.mkdir()
        sync = durability is Durability.FSYNC
        return [
            put_all(folder / "ours", messages, durability),
            put_raw(folder / "same", same, SAME_TABLES, sync=sync),
            put_raw(folder / "raw", seven, SEVEN_TABLES, sync=sync),
        ]

    def reading() -> list[float]:
        with RelayStore.open(folder / "ours", now_ms=NOW) as store:
            ours = read_all(store, namespaces)
        return [ours, read_raw(folder / "raw")]

    try:
        (grouped,) = best(lambda: [put_grouped(folder, messages)])
        durable, *durable_raw = best(lambda: ingest(Durability.FSYNC))
        plain, *plain_raw = best(lambda: ingest(Durability.OS))
        read, read_bare = best(reading)
        cold = read_points(folder / "ours", messages, NOW + 120_000)
        alone, beside, deleted = beside_a_cycle(folder / "cycle", messages)
        dropped = deletion(folder / "aged", AGED)
    finally:
        shutil.rmtree(folder)
    against = ("rocksdict, the same rows", "rocksdict, the seven rows of LP-6421")
    ways = (
        ("fsync each", durable, durable_raw),
        ("durability os", plain, plain_raw),
        ("durability group, receipts awaited at the end", grouped, plain_raw),
    )
    return [
        *(
            result(f"put_many, {BATCH} at a time, {way}", ours, limit, theirs, 0.7)
            for way, ours, raw in ways
            for limit, theirs in zip(against, raw, strict=True)
        ),
        *dropped,
        result("query, pages of 1,000", read, "a bare iterator over the rows", read_bare, 0.1),
        result(
            "get_messages of one id, p99",
            1 / percentile(cold, 0.99),
            "1 ms",
            1_000,
            1.0,
            unit="reads/s",
        ),
        result("deletion cycle, half of one slice", deleted[0], "450,000 a second", 450_000, 1.0),
        result(
            "put of one message beside a deletion cycle, p99",
            1 / percentile(beside, 0.99),
            f"alone, p99 {percentile(alone, 0.99) * 1e6:.0f} us",
            1 / percentile(alone, 0.99),
            0.02,
            unit="puts/s",
        ),
        *hash_sets(),
    ]


if __name__ == "__main__":
    for row in run():
        print(json.dumps(row))
