"""Gossip on loopback, against the bare stream and against gossipsub of other makes.

Networks of two and of ten nodes, 1 KiB messages, with and without a signature on each, beside the
same networks of js-libp2p, go-libp2p-pubsub and py-libp2p's own GossipSub, each in a process of its
own, one after the other; before them two relays in one process against the bare stream between
them. Both sides of a ratio have as many messages under way. CPU is that of all nodes together, so
it compares even where the machine is busy. Every case has its rows: where a make is not built, does
not end in time or loses messages, they say so instead of a ratio.

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
FEW = {
    ("js-libp2p", 10): (8, 96),
    ("py-libp2p", 2): (8, 96),
    ("py-libp2p", 10): (8, 8),
}
"""Window and count where more get lost or it takes too long; ours is measured with the same."""
DELIVERED_MIN = 0.95
"""Share of the messages that a network has to deliver for its figures to mean anything."""
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
    value: float | None,
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
        "value": None if value is None else round(value, 1),
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
        with trio.fail_after(30):
            while router.stats().mesh.get(TOPIC) != 1:  # noqa: ASYNC110 - nobody is called back
                await trio.sleep(0.01)
        with trio.fail_after(NETWORK_S):
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
            aim=None,
        )
        nursery.cancel_scope.cancel()


def network(
    name: str, nodes: int, *, window: int, count: int, signed: bool
) -> tuple[dict[str, Any] | None, str]:
    """What one network of one make does, or why there is no figure of it."""
    command = PEERS[name]
    left = BUDGET_S - (time.monotonic() - BEGAN)
    if left <= 0:
        return None, f"the {BUDGET_S} s of all networks were over"
    missing = [part for part in command if part.startswith(str(MADE)) and not Path(part).exists()]
    if missing or shutil.which(command[0]) is None:
        return None, "not built, see make interop"
    config = {
        "nodes": nodes,
        "messages": count,
        "window": window,
        "size": 1024,
        "signed": signed,
        "topic": TOPIC,
    }
    limit_s = min(NETWORK_S, left)
    try:
        done = subprocess.run(
            [*command, json.dumps(config)],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        # A make that measures and then does not end has measured all the same.
        text, said = _text(late.stdout), f"not done within {limit_s:.0f} s"
    else:
        text, said = done.stdout, " ".join(done.stderr.split())[-120:] or "it said nothing"
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        return None, said
    found: dict[str, Any] = json.loads(lines[-1])
    delivered = found.get("delivered", 1.0)
    if delivered < DELIVERED_MIN:
        return None, f"{100 * (1 - delivered):.0f} % lost"
    return found, ""


def _text(output: bytes | str | None) -> str:
    return output.decode() if isinstance(output, bytes) else output or ""


def lost_by(found: dict[str, Any]) -> str:
    """What a network did not deliver, for the row's text; empty when nothing was lost."""
    delivered = found.get("delivered", 1.0)
    return "" if delivered >= 1 else f", {100 * (1 - delivered):.0f} % lost"


def compare(nodes: int, *, signed: bool) -> None:
    """Our network beside the others', in one run; a row for each, with or without a figure."""
    kind = f"{nodes} nodes, {'signed' if signed else 'unsigned'}"
    usual = WINDOW[nodes], COUNT[nodes]
    measured: dict[tuple[int, int], tuple[dict[str, Any] | None, str]] = {}
    for name in (None, "js-libp2p", "py-libp2p", "go-libp2p-pubsub"):
        window, count = usual if name is None else FEW.get((name, nodes), usual)
        if (window, count) not in measured:
            measured[window, count] = network(
                "luxrelay", nodes, window=window, count=count, signed=signed
            )
        ours, why = measured[window, count]
        if name is not None:
            theirs, reason = network(name, nodes, window=window, count=count, signed=signed)
            label = f"{kind}, {window} under way"
            if ours is None or theirs is None:
                without(label, ours, f"luxrelay: {why}" if ours is None else f"{name}: {reason}")
            else:
                beside(name, label, ours, theirs, aim=AIMS.get((name, signed)))
        elif ours is not None:
            report(f"latency p50, {kind}", ours["p50_ms"], "ms")
            report(f"latency p99, {kind}", ours["p99_ms"], "ms")


def without(label: str, ours: dict[str, Any] | None, reason: str) -> None:
    """The rows of a make of which there is no figure, or of which ours has none."""
    for row, value, unit in (
        ("messages", ours["messages_per_s"] if ours else None, "messages/s"),
        ("CPU", ours["cpu_ms"] * 1000 if ours else None, "us/message"),
    ):
        report(f"{row}, {label}", value, unit, against=f"no figure of {reason}")


def beside(
    name: str, label: str, ours: dict[str, Any], theirs: dict[str, Any], *, aim: float | None
) -> None:
    """The rows of one other make."""
    report(
        f"messages, {label}",
        ours["messages_per_s"],
        "messages/s",
        against=f"{name}: {theirs['messages_per_s']:.0f}{lost_by(theirs)}",
        ratio=ours["messages_per_s"] / theirs["messages_per_s"],
        aim=aim,
    )
    report(
        f"CPU, {label}",
        ours["cpu_ms"] * 1000,
        "us/message",
        against=f"{name}: {theirs['cpu_ms'] * 1000:.0f}, p99 {theirs['p99_ms']:.0f} ms",
        ratio=theirs["cpu_ms"] / ours["cpu_ms"],
    )


def two_relays(count: int) -> None:
    """The rows of two relays against the bare stream; named when they do not come."""
    try:
        trio.run(main, count)
    except (trio.TooSlowError, BaseExceptionGroup) as error:
        report("gossip_two_relays", None, "messages/s", against=f"no figure, {error!r}"[:120])


if __name__ == "__main__":
    two_relays(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)
    for node_count in NODES:
        for with_signature in (False, True):
            compare(node_count, signed=with_signature)
