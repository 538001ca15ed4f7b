"""Gossip on loopback, against the bare stream and against gossipsub of other makes.

Networks of two and of ten nodes, 1 KiB messages, with and without a signature on each, beside the
same networks of js-libp2p, go-libp2p-pubsub and py-libp2p's own GossipSub, each in a process of its
own, one after the other; then two relays in one process against the bare stream between them. CPU
is that of all nodes together, so it compares even where the machine is busy. The programs of js and
go are built by `make interop`; without them their rows are left out, aloud.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim. Usage:

    python bench/net.py [messages]     LUXRELAY_BENCH_NODES=2 leaves the networks of ten out
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from luxrelay.bus import NamespaceId, VerdictKind
from luxrelay.gossip import (
    GossipParams,
    GossipRouter,
    HeaderAnnouncement,
    MessageType,
    RelayMessage,
    Validate,
    topic_for_namespace,
)
from luxrelay.net import GossipDriver, NetConfig, RelayHost, RelayStream
from luxrelay.net.streams import FrameReader, PeerWriter

PART = "net"
MESSAGES = 20_000
MESSAGE_BYTES = 300
WARM_UP = 2_000
RAW = "/bench/raw/1.0.0"
NAMESPACE = b"\x22" * 20
TOPIC = topic_for_namespace("bench", NamespaceId(NAMESPACE))
FOLDER = Path(__file__).resolve().parent
MADE = FOLDER.parent / ".make"
NODES = [int(text) for text in os.environ.get("LUXRELAY_BENCH_NODES", "2,10").split(",")]
WINDOW = {2: 64, 10: 16}
"""Messages under way at once, by nodes."""
COUNT = {2: 2_000, 10: 96}
COUNT_SLOW = {2: 96, 10: 8}
"""Messages of py-libp2p's GossipSub, which is that much slower."""
DELIVERED_MIN = 0.95
"""Share of the messages that a network has to deliver for its figures to mean anything."""
WINDOW_FEW = 8
"""Messages under way at once where more get lost: py-libp2p, and ten nodes of js-libp2p."""
PEERS = {
    "luxrelay": [sys.executable, "-W", "ignore", str(FOLDER / "gossip_networks.py"), "luxrelay"],
    "js-libp2p": ["node", str(MADE / "interop-js" / "bench.mjs")],
    "go-libp2p-pubsub": [str(MADE / "interop-go-peer"), "bench"],
    "py-libp2p": [sys.executable, "-W", "ignore", str(FOLDER / "gossip_networks.py"), "py-libp2p"],
}
AIMS = {("js-libp2p", False): 1.0, ("py-libp2p", False): 3.0, ("py-libp2p", True): 3.0}
"""Least ratio of messages a second, by peer and whether messages are signed."""
NETWORK_S = 90
"""Seconds for one network."""
BUDGET_S = 400
"""Seconds for all of them; those that would begin later are left out, aloud."""
BEGAN = time.monotonic()
CONFIG = NetConfig(listen=("/ip4/127.0.0.1/tcp/0",), loopback_exempt=True)


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
        "part": PART,
        "name": name,
        "value": round(value, 1),
        "unit": unit,
        "against": against,
        "ratio": None if ratio is None else round(ratio, 3),
        "aim": aim,
    }
    print(json.dumps(line), flush=True)


def envelope(seq: int) -> bytes:
    """A header message of `MESSAGE_BYTES` bytes."""
    header = b"\x01\x00" + NAMESPACE + seq.to_bytes(8) + bytes(MESSAGE_BYTES - len(TOPIC) - 56)
    announcement = HeaderAnnouncement(header_bytes=header, source=b"source", timestamp_ms=1)
    return RelayMessage(
        type=MessageType.HEADER, topic=TOPIC, payload=announcement.encode()
    ).encode()


async def accept(batch: list[Validate]) -> list[VerdictKind]:
    """A verdict that costs nothing, so that only the network and the router are measured."""
    await trio.lowlevel.checkpoint()
    return [VerdictKind.ACCEPT] * len(batch)


async def timed(work: Callable[[], Awaitable[None]]) -> float:
    """Seconds of wall clock."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def raw_rate(sender: RelayHost, receiver: RelayHost, count: int) -> float:
    """Frames a second over one stream, batched as the driver does it."""
    got = 0
    done = trio.Event()

    async def take(stream: RelayStream) -> None:
        nonlocal got
        reader = FrameReader(stream, CONFIG)
        while frames := await reader.receive():
            got += len(frames)
            if got >= count:
                done.set()

    receiver.handle(RAW, take)
    payload = bytes(MESSAGE_BYTES)
    async with trio.open_nursery() as nursery:
        writer = PeerWriter(await sender.open_stream(receiver.peer_id, RAW), CONFIG)
        nursery.start_soon(writer.run)

        async def push() -> None:
            for _ in range(count):
                while writer.queued_frames > 1_000:
                    await trio.lowlevel.checkpoint()
                writer.offer(payload)
            await done.wait()

        seconds = await timed(push)
        nursery.cancel_scope.cancel()
    return count / seconds


async def gossip_rate(sender: GossipDriver, delivered: list[int], first: int, count: int) -> float:
    """Messages a second from `publish` at one relay to delivery at the other."""
    items = [(TOPIC, envelope(first + seq)) for seq in range(count)]
    target = delivered[0] + count

    async def push() -> None:
        await sender.publish(items)
        while delivered[0] < target:  # noqa: ASYNC110 - counted by a callback that cannot wait
            await trio.sleep(0.001)

    return count / await timed(push)


def relay(seed: bytes, delivered: list[int]) -> tuple[RelayHost, GossipRouter, GossipDriver]:
    """A host, a router and a driver."""
    host = RelayHost(seed * 32, CONFIG)
    router = GossipRouter(GossipParams(), rng=random.Random(1), own_id=host.peer_id)

    def count(_action: object) -> None:
        delivered[0] += 1

    driver = GossipDriver(
        router, host, validate=accept, config=CONFIG, rng=random.Random(2), deliver=count
    )
    return host, router, driver


async def main(count: int) -> None:
    """Measure and report."""
    delivered = [0]
    one, router, one_driver = relay(b"1", [0])
    two, _, two_driver = relay(b"2", delivered)
    async with trio.open_nursery() as nursery:
        for task in (one.run, two.run, one_driver.run, two_driver.run):
            await nursery.start(task)
        for driver in (one_driver, two_driver):
            driver.subscribe(TOPIC)
        await one_driver.connect(two.addresses[0])
        with trio.fail_after(10):
            while router.stats().mesh.get(TOPIC) != 1:  # noqa: ASYNC110 - nobody is called back
                await trio.sleep(0.01)
        raw = await raw_rate(one, two, 5 * count)
        await gossip_rate(one_driver, delivered, 0, WARM_UP)
        gossip = await gossip_rate(one_driver, delivered, WARM_UP, count)
        report("raw_stream", raw, "messages/s")
        report(
            "gossip_two_relays",
            gossip,
            "messages/s",
            against="raw_stream",
            ratio=gossip / raw,
            aim=4_000,
        )
        nursery.cancel_scope.cancel()


def network(name: str, nodes: int, *, signed: bool) -> dict[str, Any] | None:
    """What one network of one make does; None when it cannot be run or does not end in time."""
    command = PEERS[name]
    left = BUDGET_S - (time.monotonic() - BEGAN)
    if left <= 0:
        print(f"no time left for {name} with {nodes} nodes", file=sys.stderr)
        return None
    missing = [part for part in command if part.startswith(str(MADE)) and not Path(part).exists()]
    if missing or shutil.which(command[0]) is None:
        print(f"{name} is not built: make interop", file=sys.stderr)
        return None
    slow = name == "py-libp2p"
    few = slow or (name == "js-libp2p" and nodes > 2)
    config = {
        "nodes": nodes,
        "messages": (COUNT_SLOW if slow else COUNT)[nodes],
        "window": min(WINDOW[nodes], WINDOW_FEW) if few else WINDOW[nodes],
        "size": 1024,
        "signed": signed,
        "topic": TOPIC,
    }
    try:
        done = subprocess.run(
            [*command, json.dumps(config)],
            capture_output=True,
            text=True,
            timeout=min(NETWORK_S, left),
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"{name} with {nodes} nodes did not end in time", file=sys.stderr)
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        print(f"{name} with {nodes} nodes: {done.stderr[-300:]}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def lost_by(found: dict[str, Any]) -> str:
    """What a network did not deliver, for the row's text; empty when nothing was lost."""
    delivered = found.get("delivered", 1.0)
    return "" if delivered >= 1 else f", {100 * (1 - delivered):.0f} % lost"


def compare(nodes: int, *, signed: bool) -> None:
    """Our network beside the others', in one run."""
    kind = f"{nodes} nodes, {'signed' if signed else 'unsigned'}"
    ours = network("luxrelay", nodes, signed=signed)
    if ours is None:
        return
    report(f"latency p50, {kind}", ours["p50_ms"], "ms")
    report(f"latency p99, {kind}", ours["p99_ms"], "ms")
    for name in ("js-libp2p", "go-libp2p-pubsub", "py-libp2p"):
        theirs = network(name, nodes, signed=signed)
        if theirs is None:
            continue
        if theirs.get("delivered", 1.0) < DELIVERED_MIN:
            lost = 100 * (1 - theirs["delivered"])
            print(f"{name}, {kind}: {lost:.0f} % lost, left out", file=sys.stderr)
            continue
        report(
            f"messages, {kind}",
            ours["messages_per_s"],
            "messages/s",
            against=f"{name}: {theirs['messages_per_s']:.0f}{lost_by(theirs)}",
            ratio=ours["messages_per_s"] / theirs["messages_per_s"],
            aim=AIMS.get((name, signed)),
        )
        report(
            f"CPU, {kind}",
            ours["cpu_ms"] * 1000,
            "us/message",
            against=f"{name}: {theirs['cpu_ms'] * 1000:.0f}, p99 {theirs['p99_ms']:.0f} ms",
            ratio=theirs["cpu_ms"] / ours["cpu_ms"],
        )


if __name__ == "__main__":
    for node_count in NODES:
        for with_signature in (False, True):
            compare(node_count, signed=with_signature)
    trio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)
