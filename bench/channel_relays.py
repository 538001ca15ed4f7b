"""Reliable channels over two real relays: a participant at each, through the gateways.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim. The same stack on a
wire in memory, in the same run, is what the relays are measured against. Usage:

    python bench/channel_relays.py [messages]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import anyio
from channel import PAYLOAD_BYTES, payload, row, stack_round
from relays import TOPIC, Relay

from luxrelay.bus import SigningKey
from luxrelay.channel import MessageReceived, MessageSent, create_reliable_channel
from luxrelay.channel.params import SegmentationConfig
from luxrelay.channel.runtime.remote import RemoteMessaging
from luxrelay.client import AsyncRelayClient
from luxrelay.node.gateway.tokens import TokenFile

MESSAGES = 300
SINGLES = 50
DEADLINE_S = 300.0
SEGMENTS = SegmentationConfig(segment_size_bytes=16_384)


async def talk(addresses: list[str], tokens: list[str], count: int) -> dict[str, float]:
    """Return what it takes from one participant to the other, seconds and messages a second."""
    took: list[float] = []
    found: dict[str, float] = {}
    async with (
        AsyncRelayClient(addresses[0], token=tokens[0]) as first,
        AsyncRelayClient(addresses[1], token=tokens[1]) as second,
        create_reliable_channel(
            RemoteMessaging(first, SigningKey.generate()), "bench", TOPIC, "one",
            segmentation_config=SEGMENTS,
        ) as one,
        create_reliable_channel(
            RemoteMessaging(second, SigningKey.generate()), "bench", TOPIC, "other",
            segmentation_config=SEGMENTS,
        ) as other,
    ):  # fmt: skip
        heard = other.events().__aiter__()
        told = one.events().__aiter__()
        with anyio.fail_after(DEADLINE_S):
            for number in range(SINGLES + 1):
                began = time.perf_counter()
                await one.send(payload(number))
                while not isinstance(await anext(heard), MessageReceived):
                    pass
                if number:  # the first waits for the relays to find each other
                    took.append(time.perf_counter() - began)
            began, cpu = time.perf_counter(), time.process_time()

            async def send() -> None:
                for number in range(count):
                    await one.send(payload(SINGLES + 1 + number))

            async def acknowledged() -> None:
                sent = 0
                while sent < SINGLES + 1 + count:
                    sent += isinstance(await anext(told), MessageSent)
                found["acknowledged"] = count / (time.perf_counter() - began)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                tasks.start_soon(acknowledged)
                arrived = 0
                while arrived < count:
                    arrived += isinstance(await anext(heard), MessageReceived)
                found["rate"] = count / (time.perf_counter() - began)
                found["cpu"] = count / (time.process_time() - cpu)
    took.sort()
    return {**found, "p50": took[len(took) // 2], "p99": took[int(len(took) * 0.99)]}


def main(count: int) -> None:
    """Measure and print."""
    in_memory = max(stack_round(None)[0] for _ in range(3))
    with tempfile.TemporaryDirectory() as place:
        relays = [Relay(Path(place) / "one")]
        try:
            first, _ = relays[0].start()
            relays.append(Relay(Path(place) / "two", first.gossip))
            second, _ = relays[1].start()
            tokens = [
                TokenFile(relay.folder / "data", 10).new(
                    "bench", ["read", "publish"], 1_700_000_000_000
                )[0]
                for relay in relays
            ]
            found = anyio.run(talk, [first.gateway, second.gateway], tokens, count)
        finally:
            for relay in relays:
                relay.stop()
    row("over two relays, one to one", found["rate"], "messages/s",
        against="the same stack in memory", ratio=found["rate"] / in_memory)  # fmt: skip
    row("over two relays, acknowledged", found["acknowledged"], "messages/s",
        against="over two relays, one to one",
        ratio=found["acknowledged"] / found["rate"])  # fmt: skip
    row("over two relays, both participants", found["cpu"], "messages/CPU s")
    for name in ("p50", "p99"):
        row(f"over two relays, {PAYLOAD_BYTES} B, {name}", 1000 * found[name], "ms",
            against="LP-6491: 500 ms", ratio=0.5 / found[name])  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)
