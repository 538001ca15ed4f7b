"""A node end to end: from publishing at one relay to a subscriber of another; start-up; its costs.

Two relays on loopback, each a process. A message goes in by HTTP, WebSocket or gRPC at the first
and comes out of a WebSocket subscription at the second. Prints one JSON line a result: part, name,
value, unit, against, ratio, aim. Usage:

    python bench/node.py [messages]
    LUXRELAY_BENCH_STORED=0,100000,1000000 python bench/node.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from relays import TOPIC, TTL_MS, Relay

from luxrelay.bus import SigningKey, topic_namespace
from luxrelay.client import (
    Checks,
    LaneSigner,
    Live,
    Message,
    Outgoing,
    PublishStream,
    RelayClient,
    Subscribe,
    subscribe,
)
from luxrelay.node.folder import DataFolder
from luxrelay.node.gateway.tokens import TokenFile
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig
from luxrelay.sync import PublishItem, RelaySyncClient
from luxrelay.testing import message_line

PART = "node"
MESSAGES = 2_000
BATCH = 64
SINGLES = 200
PARENT = topic_namespace(TOPIC)
FILL = 5_000


def report(
    name: str,
    value: float,
    unit: str,
    *,
    against: str = "",
    ratio: float | None = None,
    aim: float | None = None,
) -> None:
    """One line of result."""
    line = {
        "part": PART, "name": name, "value": round(value, 3), "unit": unit, "against": against,
        "ratio": None if ratio is None else round(ratio, 3), "aim": aim,
    }  # fmt: skip
    print(json.dumps(line), flush=True)


class Arrivals:
    """A subscriber of the second relay; knows when each sequence came."""

    def __init__(self, address: str) -> None:
        """Follow from now on."""
        self.at: dict[tuple[bytes, int], float] = {}
        self._ready = threading.Event()
        self._client = RelayClient(address, checks=Checks(signatures=False))
        threading.Thread(target=self._run, daemon=True).start()
        self._ready.wait(60)

    def _run(self) -> None:
        for event in subscribe(self._client, Subscribe(namespaces=[PARENT])):
            if isinstance(event, Message):
                header = event.header
                self.at[header.namespace_id, header.seq] = time.perf_counter()
            elif isinstance(event, Live):
                self._ready.set()

    def wait(self, lane: bytes, last: int) -> None:
        """Return when the last message of a lane is here."""
        deadline = time.monotonic() + 120
        while (lane, last) not in self.at:
            if time.monotonic() > deadline:
                sys.exit(f"message {last} did not arrive")
            time.sleep(0.001)


Publish = Callable[[list[Outgoing]], Any]


def measure_door(name: str, publish: Publish, arrivals: Arrivals, count: int) -> float:
    """Report latency of single messages and the rate in batches; return the rate."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    sent: dict[int, float] = {}
    for seq in range(1, SINGLES + 1):
        message = signer.sign(b"x" * 100, time.time_ns() // 1_000_000)
        sent[seq] = time.perf_counter()
        publish([message])
    arrivals.wait(signer.namespace_id, SINGLES)
    took = sorted(arrivals.at[signer.namespace_id, seq] - at for seq, at in sent.items())
    report(f"{name}_p50", 1000 * took[len(took) // 2], "ms")
    report(f"{name}_p99", 1000 * took[int(len(took) * 0.99)], "ms", against="LP-6491: 500 ms",
           ratio=0.5 / took[int(len(took) * 0.99)], aim=1)  # fmt: skip
    stamp = time.time_ns() // 1_000_000
    messages = [signer.sign(b"x" * 100, stamp) for _ in range(count)]
    began = time.perf_counter()
    for start in range(0, count, BATCH):
        publish(messages[start : start + BATCH])
    accepted_s = time.perf_counter() - began
    arrivals.wait(signer.namespace_id, SINGLES + count)
    arrived_s = time.perf_counter() - began
    report(f"{name}_accepted", count / accepted_s, "messages/s")
    report(f"{name}_arrived", count / arrived_s, "messages/s")
    return count / arrived_s


def costs(name: str, process: subprocess.Popen[bytes], work: Callable[[], None]) -> None:
    """Report memory and CPU of a node while something happens."""
    seen = psutil.Process(process.pid)
    before, began = seen.cpu_times(), time.perf_counter()
    work()
    after, took = seen.cpu_times(), time.perf_counter() - began
    used = after.user + after.system - before.user - before.system
    report(f"{name}_memory", seen.memory_info().rss / 2**20, "MiB")
    report(f"{name}_cpu", 100 * used / took, "% of one core")


def fill(folder: Path, count: int) -> None:
    """Put messages into the store of a node that does not run."""
    data = DataFolder(folder / "data")
    data.identity()
    now_ms = time.time_ns() // 1_000_000
    config = RelayStoreConfig(cold_store_ttl_ms=TTL_MS, max_storage_bytes=2**36)
    with RelayStore.open(data.store, config, now_ms=now_ms) as store:
        batch = []
        for message in message_line(count, namespace_id=PARENT, first_ms=now_ms - count, step_ms=1):
            batch.append(
                IncomingMessage(
                    header=message.header, blob=message.blob, parent=PARENT, received_at=now_ms
                )
            )
            if len(batch) == FILL:
                store.put_many(batch, now_ms)
                batch = []
        if batch:
            store.put_many(batch, now_ms)


def measure_starts(folder: Path) -> None:
    """Report start-up with stores of several sizes."""
    first = 0.0
    for text in os.environ.get("LUXRELAY_BENCH_STORED", "0,100000").split(","):
        count = int(text)
        relay = Relay(folder / f"stored-{count}")
        if count:
            fill(relay.folder, count)
        _, seconds = relay.start()
        relay.stop()
        first = first or seconds
        report(
            f"start_with_{count}", seconds, "s", against="the first start", ratio=first / seconds
        )


def main(count: int) -> None:
    """Measure and report."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        measure_starts(folder)
        one = Relay(folder / "one")
        first, _ = one.start()
        two = Relay(folder / "two", first.gossip)
        second, _ = two.start()
        token, _ = TokenFile(one.folder / "data", 10).new(
            "bench", ["read", "publish"], 1_700_000_000_000
        )
        try:
            assert one.process is not None
            costs("idle", one.process, lambda: time.sleep(5))
            with RelayClient(first.gateway, token=token) as http:
                while not http.described("/v1/peers")["mesh"].get(_mesh(), 0):
                    time.sleep(0.05)
                arrivals = Arrivals(second.gateway)
                rates: dict[str, float] = {}

                def doors() -> None:
                    rates["http"] = measure_door("http", http.publish, arrivals, count)
                    with PublishStream(http) as stream:
                        rates["ws"] = measure_door("websocket", stream.publish, arrivals, count)
                    with RelaySyncClient(first.sync) as grpc:
                        rates["grpc"] = measure_door(
                            "grpc", lambda sent: grpc.publish(map(_item, sent)), arrivals, count
                        )

                costs("busy", one.process, doors)
                for name in ("http", "ws"):
                    ratio = rates[name] / rates["grpc"]
                    report(
                        f"{name}_against_grpc",
                        rates[name],
                        "messages/s",
                        against="grpc_arrived",
                        ratio=ratio,
                        aim=0.7,
                    )
        finally:
            two.stop()
            one.stop()


def _mesh() -> str:
    return f"/lux/bench/relay/namespace/{PARENT.hex()}"


def _item(message: Outgoing) -> PublishItem:
    return PublishItem(header=message.header, blob=message.blob, parent_id=message.parent)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)
