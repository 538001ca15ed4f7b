"""Reliable channels: the SDS core against @waku/sds, the full stack against our core alone.

Run: ``python bench/channel.py``. Prints one JSON object a line: part, name, value, unit, against,
ratio, aim. Both cores encode and decode the wire and carry the default Bloom filter; the peer is
built by ``make .make/interop-sds/peer.mjs`` and measures inside its own process. Without it the
rows of the core stand beside nothing. Ours and theirs take turns, and the best round of each
counts. The stack in memory is compared by processor time, which a busy machine disturbs least; the
stack on a disk by the clock.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from luxrelay.channel import (
    MessageReceived,
    Persistence,
    SdsConfig,
    SqlitePersistence,
    create_reliable_channel,
)
from luxrelay.channel.actions import Broadcast
from luxrelay.channel.params import SegmentationConfig
from luxrelay.channel.sds import Sds
from luxrelay.channel.segments import split
from luxrelay.channel.state import Journal
from luxrelay.channel.wire import SdsMessage
from luxrelay.testing.wire import Wire

PEER = Path(__file__).resolve().parents[1] / ".make" / "interop-sds" / "peer.mjs"
MESSAGES = 400
STACK_MESSAGES = 300
ROUNDS = 3
PAYLOAD_BYTES = 200
NOW_MS = 1_700_000_000_000
HISTORIES = (2, 200)
"""Entries of a causal history: the specification's, and the peer's own default."""


def core(name: str, history: int) -> Sds:
    """Return a machine that names so many messages."""
    config = SdsConfig(causal_history_size=history, causal_history_max=history)
    return Sds("bench", name, config, Journal(), random.Random(1), now=0.0, now_ms=NOW_MS)


def payload(number: int) -> bytes:
    """Return a payload of its own."""
    return number.to_bytes(4, "big") + bytes(PAYLOAD_BYTES - 4)


def send_round(history: int) -> tuple[float, list[bytes]]:
    """Return messages a second of sending, and what was sent."""
    machine, made = core("one", history), []
    began = time.perf_counter()
    for number in range(MESSAGES):
        machine.send(payload(number), 0.0, NOW_MS)
        for action in machine.drain():
            if isinstance(action, Broadcast):
                made.append(action.data)
                machine.dispatched(action.message_id, b"", 0.0)
    return MESSAGES / (time.perf_counter() - began), made


def receive_round(history: int) -> float:
    """Return messages a second of receiving."""
    made = send_round(history)[1]
    machine = core("other", history)
    began = time.perf_counter()
    for data in made:
        machine.receive(SdsMessage.decode(data), data, b"", 0.0, NOW_MS)
        machine.drain()
    spent = time.perf_counter() - began
    assert machine.stats.delivered == MESSAGES
    return MESSAGES / spent


class Peer:
    """@waku/sds in a process of its own."""

    def __init__(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            ["node", str(PEER)],  # noqa: S607 - wherever node is
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def rate(self, kind: str, history: int) -> float:
        """Return messages a second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "do": "bench", "kind": kind, "count": MESSAGES, "size": PAYLOAD_BYTES,
            "options": {"causalHistorySize": history},
        }  # fmt: skip
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer.get("delivered", MESSAGES) == MESSAGES
        return float(MESSAGES / answer["seconds"])

    def end(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def stack_round(persistence: Callable[[], Persistence] | None) -> tuple[float, float]:
    """Return messages a second from `send` at one participant to the event at another.

    By the clock, and by the processor time of both participants together.
    """

    async def main() -> tuple[float, float]:
        def config() -> SdsConfig:
            return SdsConfig(persistence=None if persistence is None else persistence())

        async with (
            Wire() as wire,
            create_reliable_channel(
                wire.messaging(), "bench", "/b", "one", sds_config=config()
            ) as one,
            create_reliable_channel(
                wire.messaging(), "bench", "/b", "other", sds_config=config()
            ) as other,
            anyio.create_task_group() as tasks,
        ):

            async def send() -> None:
                for number in range(STACK_MESSAGES):
                    await one.send(payload(number))

            began, cpu = time.perf_counter(), time.process_time()
            tasks.start_soon(send)
            count = 0
            async for event in other.events():
                count += isinstance(event, MessageReceived)
                if count == STACK_MESSAGES:
                    break
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        return STACK_MESSAGES / seconds, STACK_MESSAGES / cpu

    return anyio.run(main)


def overhead(size: int, capacity: int) -> int:
    """Return the bytes on the wire beside a payload, in a channel with a past."""
    config = SdsConfig(bloom_capacity=capacity)
    machine = Sds("bench", "alice", config, Journal(), random.Random(1), now=0.0, now_ms=NOW_MS)
    total = 0
    for number in range(10):
        total = 0
        for segment in split(payload(number)[:4] + bytes(size - 4), SegmentationConfig()):
            machine.send(segment, 0.0, NOW_MS)
            for action in machine.drain():
                if isinstance(action, Broadcast):
                    total += len(action.data)
                    machine.dispatched(action.message_id, bytes(32), 0.0)
    return total - size


def row(name: str, value: float, unit: str, **more: Any) -> None:
    """Print a result."""
    empty: dict[str, Any] = {"against": "", "ratio": None, "aim": None}
    print(
        json.dumps({"part": "channel", "name": name, "value": value, "unit": unit, **empty, **more})
    )


def measure_core() -> float:
    """Measure the core beside the peer's; return messages through ours a processor second."""
    peer = Peer() if PEER.exists() and shutil.which("node") else None
    best: dict[tuple[str, str, int], float] = {}
    for _ in range(ROUNDS):
        for history in HISTORIES:
            rates = {
                ("ours", "send"): send_round(history)[0],
                ("ours", "receive"): receive_round(history),
            }
            if peer is not None:
                rates["theirs", "send"] = peer.rate("send", history)
                rates["theirs", "receive"] = peer.rate("receive", history)
            for (whose, kind), rate in rates.items():
                best[whose, kind, history] = max(best.get((whose, kind, history), 0.0), rate)
    if peer is not None:
        peer.end()
    for history in HISTORIES:
        for kind in ("send", "receive"):
            ours, theirs = best["ours", kind, history], best.get(("theirs", kind, history))
            against = {} if theirs is None else {
                "against": "@waku/sds in Node", "ratio": ours / theirs, "aim": 1.0,
            }  # fmt: skip
            row(f"SDS core, {kind}, history of {history}", ours, "messages/s", **against)
    cpu = time.process_time()
    receive_round(2)
    return MESSAGES / (time.process_time() - cpu)


def main() -> None:
    """Measure and print."""
    trip = measure_core()
    memory = [stack_round(None) for _ in range(ROUNDS)]
    cpu = max(rate for _, rate in memory)
    row("full stack in memory, one to one", cpu, "messages/CPU s",
        against="our core, send and receive", ratio=cpu / trip)  # fmt: skip
    clock = max(rate for rate, _ in memory)
    rates = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            rates.append(stack_round(lambda folder=folder: SqlitePersistence(folder))[0])  # type: ignore[misc]
    row("full stack with SQLite, synced", max(rates), "messages/s",
        against="the same in memory", ratio=max(rates) / clock)  # fmt: skip
    for size in (20, 1_000, 100_000, 1_000_000):
        for capacity in (0, 1_000, 10_000):
            value = overhead(size, capacity)
            row(f"overhead of {size} B, filter for {capacity}", value, "bytes",
                against="the payload", ratio=value / size)  # fmt: skip


if __name__ == "__main__":
    main()
