"""Catching up against JetStream and Redis, with and without verification, and many clients at once.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim. Servers run in
processes of their own; runs of ours and of the others take turns. What a row measures:

* *stream*: pages over gRPC as values, checked for namespace, order, range and size; no signature.
* *every signature verified*: the same, and each header decoded and verified on as many threads as
  the machine has cores, beside raw verification on as many.
* *into a node's store*: a node's own catch-up: pages, rules, signatures, one durable batch a page.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from luxrelay.bus import (
    MsgHeader,
    SignatureScheme,
    SigningKey,
    VerifyKey,
    lane,
    sha3_commitment,
    topic_namespace,
    verify_header,
)
from luxrelay.bus.policy import default_policy
from luxrelay.node.catch_up import POSTPONED_MAX, StoreSink
from luxrelay.node.ingress import Doors
from luxrelay.node.missing_blobs import WantedBlobs
from luxrelay.node.stages.verify import Judge, JudgeConfig, StoreKnowledge
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig
from luxrelay.sync import (
    FairnessConfig,
    RelaySyncClient,
    RelaySyncServer,
    SyncServerConfig,
    WireMessage,
    run_catchup,
)
from luxrelay.sync.postponed import PostponedMessages

MESSAGES = int(os.environ.get("LUXRELAY_BENCH_SYNC", "100000"))
VERIFIED = min(MESSAGES, int(os.environ.get("LUXRELAY_BENCH_VERIFIED", "20000")))
"""Messages whose signatures are verified in one run."""
BLOB_BYTES = 1_024
CLIENTS = int(os.environ.get("LUXRELAY_BENCH_CLIENTS", "200"))
REPEATS = 3
CORES = os.cpu_count() or 1
PAGE = 10_000
"""Messages a page, the most there is; XREAD is asked for as many."""
TTL_MS = 3_600_000
ROOMY = RelayStoreConfig(cold_store_ttl_ms=TTL_MS, namespace_quota_bytes=2**30)
"""One sender takes a tenth of a store with the defaults, which is less than what is sent here."""
PARENT = topic_namespace("/bench/1/sync")
POLICY = default_policy(PARENT).policy_hash
KEY = SigningKey.from_seed(SignatureScheme.ED25519, bytes(32))
LANE = lane(PARENT, KEY.public_field)
FREE = FairnessConfig(out_bytes_per_s=0)


def now_ms() -> int:
    """Return the wall clock, Unix milliseconds."""
    return time.time_ns() // 1_000_000


def say(  # noqa: PLR0917 - the columns of a row
    name: str, value: float, unit: str, against: str, ratio: float | None, aim: float
) -> None:
    """Print one result."""
    row = {"part": "sync", "name": name, "value": value, "unit": unit}
    print(json.dumps({**row, "against": against, "ratio": ratio, "aim": aim}), flush=True)


def messages(count: int) -> Iterator[list[IncomingMessage]]:
    """Yield signed messages of one lane in groups."""
    blob = bytes(BLOB_BYTES)
    commitment, stamp = sha3_commitment(blob), now_ms()
    for start in range(1, count + 1, 1_000):
        yield [
            IncomingMessage(
                header=KEY.sign_header(
                    MsgHeader(
                        namespace_id=LANE,
                        seq=seq,
                        timestamp=stamp,
                        blob_commitment=commitment,
                        blob_len=BLOB_BYTES,
                        policy_hash=POLICY,
                    )
                ),
                blob=blob,
                parent=PARENT,
                received_at=stamp,
            )
            for seq in range(start, min(count, start + 999) + 1)
        ]


def serve(channel: Connection) -> None:
    """Serve a filled store; say port, and bytes and seconds used when asked, until told to stop."""
    with tempfile.TemporaryDirectory() as folder:
        store = RelayStore.open(Path(folder) / "store", ROOMY, now_ms=now_ms())
        for group in messages(MESSAGES):
            store.put_many(group, now_ms())
        server = RelaySyncServer(store, SyncServerConfig(port=0, fairness=FREE), clock_ms=now_ms)
        channel.send(server.start())
        while channel.recv() != "stop":
            used = resource.getrusage(resource.RUSAGE_SELF)
            channel.send((used.ru_maxrss * 1024, used.ru_utime + used.ru_stime))
        server.stop(grace_s=0)
        store.close()


@contextmanager
def relay() -> Iterator[tuple[str, Callable[[], tuple[int, float]]]]:
    """Yield the address of a relay in another process, and how to ask for what it has used.

    That is memory in bytes, the most so far, and seconds of CPU.
    """
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,))
    process.start()

    def used() -> tuple[int, float]:
        ours.send("used")
        size, seconds = ours.recv()
        return int(size), float(seconds)

    try:
        yield f"127.0.0.1:{ours.recv()}", used
    finally:
        ours.send("stop")
        process.join()


def streamed(client: RelaySyncClient) -> float:
    """Return messages a second of paging everything."""
    began, count = time.perf_counter(), 0
    for page in client.iter_pages(LANE, page_messages=PAGE):
        count += len(page.messages)
    assert count == MESSAGES
    return MESSAGES / (time.perf_counter() - began)


def all_hold(part: Sequence[WireMessage]) -> bool:
    """Return True when every header decodes and its signature holds."""
    return all(verify_header(MsgHeader.decode(each.header)) for each in part)


def verified(client: RelaySyncClient) -> float:
    """Return messages a second of paging and verifying, a page's parts on a thread each."""
    checks: list[Future[bool]] = []
    began, count = time.perf_counter(), 0
    with ThreadPoolExecutor(CORES) as pool:
        for page in client.iter_pages(LANE, to_seq=VERIFIED, page_messages=1_000):
            count += len(page.messages)
            part = -(-len(page.messages) // CORES)
            checks += [
                pool.submit(all_hold, page.messages[start : start + part])
                for start in range(0, len(page.messages), part)
            ]
        assert all(check.result() for check in checks)
    assert count == VERIFIED
    return VERIFIED / (time.perf_counter() - began)


def verify_rate() -> float:
    """Return raw Ed25519 verifications a second on as many threads."""
    header = next(messages(1))[0].header
    key, digest, signature = VerifyKey(header.sender_pub_key), header.header_hash, header.signature
    share = VERIFIED // CORES

    def work(_: int) -> bool:
        return all(key.verify(digest, signature) for _ in range(share))

    with ThreadPoolExecutor(CORES) as pool:
        began = time.perf_counter()
        assert all(pool.map(work, range(CORES)))
        return share * CORES / (time.perf_counter() - began)


def stored(client: RelaySyncClient, folder: Path) -> float:
    """Return messages a second of a node's own catch-up into an empty store."""
    store = RelayStore.open(folder / "store", ROOMY, now_ms=now_ms())
    policies = {PARENT: frozenset({POLICY})}
    judging = JudgeConfig(ttl_ms=TTL_MS, threads=CORES)
    judge = Judge(StoreKnowledge(store), policies, judging, now_ms)
    doors = Doors(
        store=store,
        judge=judge,
        identity=KEY,
        network="bench",
        inline_blob_max=0,
        clock_ms=now_ms,
        spread=lambda items: [0] * len(items),
        wanted=WantedBlobs(ttl_ms=TTL_MS),
    )
    enough = threading.Event()

    class Counted(StoreSink):
        """Says when enough is stored."""

        def accept(self, *page: Any) -> Any:
            """Store a page."""
            result = super().accept(*page)
            if store.stats().messages >= VERIFIED:
                enough.set()
            return result

    try:
        began = time.perf_counter()
        sink = Counted(store, doors, PostponedMessages(POSTPONED_MAX))
        run_catchup([client], sink, parent=PARENT, cancelled=enough)
        return store.stats().messages / (time.perf_counter() - began)
    finally:
        judge.close()
        store.close()


def beside_redis(folder: Path, ours: Callable[[], float]) -> list[tuple[float, float]]:
    """Return ours and XREAD of as many records of this size, in turns."""
    import peers_redis

    header, blob = bytes(211), bytes(BLOB_BYTES)
    with peers_redis.redis_server(folder) as client:
        peers_redis.add_all(client, [(b"s", header, blob)] * MESSAGES)
        return [(ours(), float(peers_redis.read_all(client, [b"s"], PAGE))) for _ in range(REPEATS)]


def beside_jetstream(folder: Path, ours: Callable[[], float]) -> list[tuple[float, float]]:
    """Return ours before and after, and a pull consumer of as many records of this size."""
    import peers_nats

    async def work(context: Any) -> list[tuple[float, float]]:
        await peers_nats.publish_all(context, [("b.s", bytes(211 + BLOB_BYTES))] * MESSAGES)
        before = ours()
        pulled = float(await peers_nats.pull_all(context, MESSAGES))
        return [(before, pulled), (ours(), pulled)]

    with peers_nats.nats_server(folder) as url:
        return list(peers_nats.with_stream(url, work))


def catch_up() -> None:
    """Print the figures of catching up, and of the server's memory."""
    with relay() as (address, used), RelaySyncClient(address) as client:
        client.get_head(LANE)
        plain = [streamed(client)]
        before, own = used(), time.process_time()
        plain += [streamed(client) for _ in range(REPEATS)]
        own, after = time.process_time() - own, used()
        each = 1e6 / (REPEATS * MESSAGES)
        grown, theirs = after[0] - before[0], after[1] - before[1]
        size = f"stream of {MESSAGES:,} messages of 1 KiB"
        beside_peers(client, size)
        ours = statistics.median(plain)
        say(size, ours, "messages/s", "aim 100,000/s", ours / 100_000, 1.0)
        parts = f"relay {theirs * each:.1f}, client {own * each:.1f}"
        say("CPU of the stream", (own + theirs) * each, "us a message", parts, None, 20)
        say("server memory grown in three of them", grown / 2**20, "MiB", "16 MiB", None, 16)
        with_checks(client)
        shares(address, used)


def beside_peers(client: RelaySyncClient, size: str) -> None:
    """Print the stream beside what Redis and JetStream give a Python client."""
    others = {"Redis XREAD": beside_redis, "JetStream pull consumer": beside_jetstream}
    for name, measure in others.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                pairs = measure(Path(folder), partial(streamed, client))
            except (FileNotFoundError, ImportError) as missing:
                say(size, streamed(client), "messages/s", f"{name}: {missing}", None, 1.0)
                continue
        value = statistics.median(mine for mine, _ in pairs)
        ratio = statistics.median(mine / theirs for mine, theirs in pairs)
        against = f"{name}: {statistics.median(theirs for _, theirs in pairs):,.0f}/s"
        say(size, value, "messages/s", against, ratio, 1.0)


def with_checks(client: RelaySyncClient) -> None:
    """Print catching up with every signature verified, and into a node's store."""
    rows: dict[str, list[tuple[float, float]]] = {"every signature verified": []}
    rows["into a node's store, durable"] = []
    for _ in range(REPEATS):
        raw = verify_rate()
        rows["every signature verified"].append((verified(client), raw))
        with tempfile.TemporaryDirectory() as folder:
            rows["into a node's store, durable"].append((stored(client, Path(folder)), raw))
    for name, pairs in rows.items():
        value = statistics.median(mine for mine, _ in pairs)
        ratio = statistics.median(mine / raw for mine, raw in pairs)
        limit = statistics.median(raw for _, raw in pairs)
        against = f"raw Ed25519 on {CORES} threads: {limit:,.0f}/s"
        aim = 0.8 if name == "every signature verified" else 0.5
        say(f"{VERIFIED:,} messages, {name}", value, "messages/s", against, ratio, aim)


def shares(address: str, used: Callable[[], tuple[int, float]]) -> None:
    """Print how evenly many clients are served at once."""
    before, done = used()[0], []
    ready = threading.Barrier(CLIENTS)

    def pull() -> None:
        with RelaySyncClient(address) as client:
            client.get_head(LANE)
            ready.wait()
            began = time.perf_counter()
            page = client.sync_page(LANE, max_messages=500, deadline_s=120)
            assert len(page.messages) == min(500, MESSAGES)
            done.append(time.perf_counter() - began)

    threads = [threading.Thread(target=pull) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == CLIENTS
    slowest, middle = max(done), statistics.median(done)
    against = f"the slowest: {slowest:.2f} s"
    name = f"{CLIENTS} clients at once, 500 messages each"
    say(name, middle, "s median", against, middle / slowest, 0.3)
    say("server memory grown meanwhile", (used()[0] - before) / 2**20, "MiB", "128 MiB", None, 128)


if __name__ == "__main__":
    catch_up()
