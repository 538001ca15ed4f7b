"""Catching up against Redis and JetStream, many clients at once, the bytes of reconciling.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim. Servers run in
processes of their own; runs of ours and of the others take turns.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    VerifyKey,
    lane,
    sha3_commitment,
    verify_header,
)
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig
from luxrelay.sync import FairnessConfig, RelaySyncClient, RelaySyncServer, SyncServerConfig
from luxrelay.sync.held import to_steps
from luxrelay.sync.holes import spans_of
from luxrelay.sync.idset import SortedIds
from luxrelay.sync.negentropy import Initiator, Responder
from luxrelay.sync.reconcile import TreeInitiator, TreeResponder

MESSAGES = int(os.environ.get("LUXRELAY_BENCH_SYNC", "50000"))
BLOB_BYTES = 1_024
IDS = int(os.environ.get("LUXRELAY_BENCH_IDS", "1000000"))
DIFFERENCES = IDS // 1_000
CLIENTS = 200
REPEATS = 3
PARENT = NamespaceId(b"\x22" * 20)
KEY = SigningKey.from_seed(SignatureScheme.ED25519, bytes(32))
LANE = lane(PARENT, KEY.public_field)
FREE = FairnessConfig(out_bytes_per_s=0)
PUBLIC_RANDOM, PUBLIC_NEWEST = 1_350_000, 34_000
"""Bytes that Negentropy's own implementation needs for 1,000 differences in a million ids."""


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
                        policy_hash=bytes(32),
                    )
                ),
                blob=blob,
                parent=PARENT,
                received_at=stamp,
            )
            for seq in range(start, min(count, start + 999) + 1)
        ]


def serve(channel: Connection) -> None:
    """Serve a filled store; say port and memory when asked, until told to stop."""
    with tempfile.TemporaryDirectory() as folder:
        store = RelayStore.open(Path(folder) / "store", RelayStoreConfig(), now_ms=now_ms())
        for group in messages(MESSAGES):
            store.put_many(group, now_ms())
        server = RelaySyncServer(store, SyncServerConfig(port=0, fairness=FREE), clock_ms=now_ms)
        channel.send(server.start())
        while channel.recv() != "stop":
            channel.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        server.stop(grace_s=0)
        store.close()


@contextmanager
def relay() -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield the address of a relay in another process, and how to ask for its memory."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,))
    process.start()

    def memory() -> int:
        ours.send("memory")
        return int(ours.recv())

    try:
        yield f"127.0.0.1:{ours.recv()}", memory
    finally:
        ours.send("stop")
        process.join()


def paged(client: RelaySyncClient, *, verified: bool = False) -> float:
    """Return messages a second of paging everything."""
    began, count = time.perf_counter(), 0
    for page in client.iter_pages(LANE, page_messages=5_000):
        if verified:
            assert all(verify_header(MsgHeader.decode(each.header)) for each in page.messages)
        count += len(page.messages)
    assert count == MESSAGES
    return MESSAGES / (time.perf_counter() - began)


def verify_rate() -> float:
    """Return raw Ed25519 verifications a second of one core."""
    header = next(messages(1))[0].header
    key, digest = VerifyKey(header.sender_pub_key), header.header_hash
    rounds = 5_000
    began = time.perf_counter()
    for _ in range(rounds):
        assert key.verify(digest, header.signature)
    return rounds / (time.perf_counter() - began)


def beside_redis(folder: Path, ours: Callable[[], float]) -> list[tuple[float, float]]:
    """Return ours and XREAD of as many records of this size, in turns."""
    import peers_redis

    header, blob = bytes(211), bytes(BLOB_BYTES)
    with peers_redis.redis_server(folder) as client:
        peers_redis.add_all(client, [(b"s", header, blob)] * MESSAGES)
        return [(ours(), float(peers_redis.read_all(client, [b"s"]))) for _ in range(REPEATS)]


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
    with relay() as (address, memory), RelaySyncClient(address) as client:
        client.get_head(LANE)
        plain = [paged(client)]
        before = memory()
        checked, raw = [], []
        for _ in range(REPEATS):
            plain.append(paged(client))
            checked.append(paged(client, verified=True))
            raw.append(verify_rate())
        grown = memory() - before
        ours = statistics.median(plain)
        size = f"{MESSAGES:,} messages of 1 KiB"
        others = {
            "Redis XREAD": beside_redis,
            "JetStream pull consumer": beside_jetstream,
        }
        for name, measure in others.items():
            with tempfile.TemporaryDirectory() as folder:
                try:
                    pairs = measure(Path(folder), partial(paged, client))
                except (FileNotFoundError, ImportError) as missing:
                    say(f"catch-up of {size}", ours, "messages/s", f"{name}: {missing}", None, 1.0)
                    continue
            value = statistics.median(mine for mine, _ in pairs)
            ratio = statistics.median(mine / theirs for mine, theirs in pairs)
            against = f"{name}: {statistics.median(theirs for _, theirs in pairs):,.0f}/s"
            say(f"catch-up of {size}", value, "messages/s", against, ratio, 1.0)
        say(f"catch-up of {size}", ours, "messages/s", "aim 100,000/s", ours / 100_000, 1.0)
        verified, limit = statistics.median(checked), statistics.median(raw)
        against = f"raw Ed25519 of one core: {limit:,.0f}/s"
        name = "… every signature verified, one thread"
        say(name, verified, "messages/s", against, verified / limit, 0.8)
        say("server memory grown in six of them", grown / 2**20, "MiB", "16 MiB", None, 16)
        shares(address, memory)


def shares(address: str, memory: Callable[[], int]) -> None:
    """Print how evenly many clients are served at once."""
    before, done = memory(), []
    ready = threading.Barrier(CLIENTS)

    def pull() -> None:
        with RelaySyncClient(address) as client:
            client.get_head(LANE)
            ready.wait()
            began = time.perf_counter()
            page = client.sync_page(LANE, max_messages=500, deadline_s=120)
            assert len(page.messages) == 500
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
    say("server memory grown meanwhile", (memory() - before) / 2**20, "MiB", "128 MiB", None, 128)


class Tree:
    """A set of ids as the tree method wants it."""

    def __init__(self, ids: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        from luxrelay.store.merkle import MerkleTree

        self._sorted = sorted(row.tobytes() for row in ids)
        self._tree = MerkleTree(self._sorted)

    def nodes(self) -> list[bytes]:
        """Return the hashes."""
        return self._tree.nodes()

    def buckets(self, node: int) -> bytes:
        """Return a node's buckets."""
        return self._tree.buckets(node)

    def ids(self, bucket: int, limit: int) -> list[bytes]:
        """Return a bucket's ids."""
        from bisect import bisect_left

        low = bisect_left(self._sorted, bucket.to_bytes(2, "big"))
        stop = (bucket + 1).to_bytes(3, "big")[1:] if bucket < 65_535 else b"\xff" * 33
        high = bisect_left(self._sorted, stop) if bucket < 65_535 else len(self._sorted)
        return self._sorted[low : min(high, low + limit)]


def exchange(initiator: Any, responder: Any) -> tuple[int, int]:
    """Return bytes and rounds of a reconciliation."""
    total, rounds = 0, 0
    message = initiator.start()
    while message is not None:
        rounds += 1
        answer = responder.receive(message)
        total += len(message) + len(answer)
        message = initiator.receive(answer)
    return total, rounds


def intervals(held: list[list[int]]) -> int:
    """Return the bytes of interval lists: namespace, parent and steps, as protobuf has them."""
    from luxrelay.sync.rpc import relay_sync_pb2 as pb

    return sum(
        pb.HeldNamespace(
            namespace_id=bytes(20), parent_id=bytes(20), steps=to_steps(spans_of(seqs))
        ).ByteSize()
        for seqs in held
    )


def reconcile() -> None:
    """Print bytes and rounds of the three methods for three kinds of difference."""
    rng = np.random.default_rng(7)
    stamps = (now_ms() - 600_000 + np.sort(rng.integers(0, 600_000, IDS))).astype(np.uint64)
    ids = rng.integers(0, 256, (IDS, 32), dtype=np.uint8)
    all_bytes = 32 * IDS
    lanes = 40
    everybody = np.ones(IDS, np.bool_)
    chosen = everybody.copy()
    chosen[rng.choice(IDS, DIFFERENCES, replace=False)] = False
    newest = everybody.copy()
    newest[-DIFFERENCES:] = False
    forked = ids.copy()
    forked[IDS // 2] ^= 1
    cases = {
        "random": (ids, chosen, ids, everybody, PUBLIC_RANDOM),
        "newest": (ids, newest, ids, everybody, PUBLIC_NEWEST),
        "a fork in a slot": (forked, everybody, ids, everybody, None),
    }
    for name, (mine, held, theirs, other, public) in cases.items():
        ours = SortedIds(stamps[held], mine[held])
        them = SortedIds(stamps[other], theirs[other])
        initiator = Initiator(ours)
        size, rounds = exchange(initiator, Responder(them))
        found = len(initiator.need)
        assert found == (1 if public is None else DIFFERENCES), found
        what = f"{found:,} of {IDS:,} ids differ ({name})"
        known = "no public figure" if public is None else f"public Negentropy: {public:,} B"
        aim = {PUBLIC_RANDOM: 1_350_000, PUBLIC_NEWEST: 40_000}.get(public or 0, 40_000)
        against = f"{known}; all ids: {all_bytes:,} B"
        say(
            f"ranges, {rounds} rounds: {what}",
            size,
            "B",
            against,
            all_bytes / size,
            all_bytes / aim,
        )
        against = f"all ids: {all_bytes:,} B"
        tree = TreeInitiator(Tree(mine[held]))
        size, rounds = exchange(tree, TreeResponder(Tree(theirs[other])))
        assert set(tree.need) == set(initiator.need)
        title = f"Merkle tree, {rounds} rounds: {what}"
        say(title, size, "B", against, all_bytes / size, 10)
        if public is not None:
            seqs = np.arange(IDS) // lanes + 1
            listed = [seqs[held & (np.arange(IDS) % lanes == at)].tolist() for at in range(lanes)]
            size = intervals(listed)
            title = f"interval lists, 1 round: {what}"
            say(title, size, "B", against, all_bytes / size, all_bytes / 10_000)


def main() -> None:
    """Print every figure; ``reconcile`` as an argument prints the bytes alone."""
    if "reconcile" not in sys.argv:
        catch_up()
    reconcile()


if __name__ == "__main__":
    main()
