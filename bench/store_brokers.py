"""The store against the brokers a user would pick instead, in one run on one machine.

Redis Streams and NATS JetStream get the same records: an encoded header of a message and its blob
of 1 KiB, spread over the same lanes. Ours checks duplicates, writes every row, keeps the Merkle
tree and counts quotas; theirs appends. Each pair takes turns, and the best of the rounds counts.
Batches of 1, 32 and 256 are one `put` of ours, one pipeline of Redis, one window of acknowledged
publishes of JetStream.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import peers_nats
import peers_redis
from messages import NOW, arrivals, checked, result
from redis import Redis

from luxrelay.bus import NamespaceId
from luxrelay.store import Durability, NamespaceQuery, RelayStore, RelayStoreConfig

MESSAGES = int(os.environ.get("LUXRELAY_BENCH_MESSAGES", "20000"))
ROUNDS = 3
LANES = 8
BLOB_BYTES = 1_024
SYNCED_ONES = 1_000
"""Messages where every single one waits for the disk."""
SCANNED = 5 * MESSAGES
LARGE = RelayStoreConfig(max_storage_bytes=8 << 30, namespace_quota_bytes=4 << 30)

Figures = Callable[[Path, int, int], float]
"""Messages a second: in a folder, so many messages, so many at a time."""


class Contest:
    """The same messages for everyone."""

    def __init__(self) -> None:
        self.messages = checked(arrivals(MESSAGES, LANES, BLOB_BYTES))
        self.records = [
            (b"s%d" % (at % LANES), message.header.encode(), message.blob or b"")
            for at, message in enumerate(self.messages)
        ]
        self.payloads = [(f"b.{at % LANES}", h + b) for at, (_, h, b) in enumerate(self.records)]

    def ours(self, durability: Durability) -> Figures:
        """Return the figure of the store at a durability, until all is durable.

        With ``fsync`` each `put_many` is durable before the next one; with ``group`` puts go on and
        the last receipt is waited for, as JetStream's window and Redis's everysec do.
        """

        def measure(folder: Path, count: int, batch: int) -> float:
            config = replace(LARGE, durability=durability)
            with RelayStore.open(folder, config, now_ms=NOW) as store:
                began = perf_counter()
                for start in range(0, count, batch):
                    some = self.messages[start : min(start + batch, count)]
                    if durability is Durability.FSYNC:
                        store.put_many(some, NOW)
                    else:
                        receipt = store.put(some, NOW)
                assert durability is Durability.FSYNC or receipt.wait(60)
                return count / (perf_counter() - began)

        return measure

    def redis(self, appendfsync: str) -> Figures:
        """Return the figure of Redis Streams."""

        def measure(folder: Path, count: int, batch: int) -> float:
            with peers_redis.redis_server(folder, appendfsync=appendfsync) as client:
                return peers_redis.add_all(client, self.records[:count], batch)

        return measure

    def jetstream(self, *, sync_always: bool) -> Figures:
        """Return the figure of JetStream's file storage."""

        def measure(folder: Path, count: int, batch: int) -> float:
            with peers_nats.nats_server(folder, sync_always=sync_always) as url:
                return float(
                    peers_nats.with_stream(
                        url,
                        lambda context: peers_nats.publish_all(
                            context, self.payloads[:count], batch
                        ),
                    )
                )

        return measure


def in_turn(folder: Path, one: Figures, other: Figures, count: int, batch: int) -> list[float]:
    """Return the best of both over the rounds, each in a fresh folder."""
    bests = [0.0, 0.0]
    for _ in range(ROUNDS):
        for at, measure in enumerate((one, other)):
            shutil.rmtree(folder, ignore_errors=True)
            bests[at] = max(bests[at], measure(folder, count, batch))
    return bests


def scan(folder: Path) -> dict[str, Any]:
    """Return how fast one namespace is read with its blobs, against XREAD of 1,000 records."""
    messages = checked(arrivals(SCANNED, 1, BLOB_BYTES))
    records = [(b"s", m.header.encode(), m.blob or b"") for m in messages]
    with (
        RelayStore.open(folder / "ours", LARGE, now_ms=NOW) as store,
        peers_redis.redis_server(folder / "redis") as client,
    ):
        for start in range(0, SCANNED, 256):
            store.put(messages[start : start + 256], NOW).wait(60)
        peers_redis.add_all(client, records)
        name = messages[0].header.namespace_id
        rates = [(read_ours(store, name), read_redis(client)) for _ in range(ROUNDS)]
    ours, theirs = (max(column) for column in zip(*rates, strict=True))
    name_of = f"scan of {SCANNED:,} messages of a namespace with blobs"
    return result(name_of, ours, "Redis, XREAD count 1000", theirs, 1.3)


def read_ours(store: RelayStore, namespace: NamespaceId) -> float:
    """Return messages a second through `RelayStore.query`, page by page."""
    began, count, cursor = perf_counter(), 0, b""
    while True:
        page = store.query(NamespaceQuery(namespace_id=namespace, cursor=cursor), NOW)
        count += sum(1 for message in page.messages if message.blob is not None)
        if not page.has_more:
            break
        cursor = page.next_cursor
    assert count == SCANNED, count
    return count / (perf_counter() - began)


def read_redis(client: Redis) -> float:
    """Return records a second through XREAD."""
    return peers_redis.read_all(client, [b"s"])


def run(folder: Path) -> Iterator[dict[str, Any]]:
    """Measure every pair."""
    contest = Contest()
    group, fsync = contest.ours(Durability.GROUP), contest.ours(Durability.FSYNC)
    everysec, always = contest.redis("everysec"), contest.redis("always")
    lazy, synced = contest.jetstream(sync_always=False), contest.jetstream(sync_always=True)
    pairs = [
        ("group", group, "Redis Streams, appendfsync everysec", everysec, 0.7),
        ("group", group, "JetStream, its default sync", lazy, 2.0),
        ("fsync", fsync, "Redis Streams, appendfsync always", always, 1.0),
        ("fsync", fsync, "JetStream, sync always", synced, 8.0),
    ]
    for durability, ours, against, theirs, aim in pairs:
        for batch in (256, 32, 1):
            count = {256: MESSAGES, 32: MESSAGES // 4, 1: SYNCED_ONES}[batch]
            mine, other = in_turn(folder, ours, theirs, count, batch)
            name = f"put of 1 KiB, {batch} at a time, durability {durability}"
            yield result(name, mine, against, other, aim)
    shutil.rmtree(folder, ignore_errors=True)
    yield scan(folder)


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp(prefix="luxrelay-bench-"))
    try:
        for row in run(place / "round"):
            print(json.dumps(row), flush=True)
    except FileNotFoundError as missing:
        print(f"brokers are not measured: {missing}", file=sys.stderr)
    finally:
        shutil.rmtree(place, ignore_errors=True)
