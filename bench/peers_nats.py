"""NATS JetStream as a peer of the benchmarks: a server of our own on loopback, and its streams.

The server is built from its Go module by `install_peers.py` into bench/.peers. It takes a free
port, keeps its data in the given folder and ends with the `with` block. The client is nats-py, run
by asyncio, with a window of publishes whose acknowledgements are awaited.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
from nats.errors import TimeoutError as NatsTimeoutError

PROGRAM = Path(__file__).resolve().parent / ".peers" / "nats-server"
START_S = 10
IN_FLIGHT = 256
"""Publishes that wait for their acknowledgement at once."""


@contextmanager
def nats_server(folder: Path, *, sync_always: bool = False) -> Iterator[str]:
    """Start a server with JetStream in files and yield its address.

    Args:
        folder: where its data go; made when it is missing.
        sync_always: an fsync before each acknowledgement; else every two minutes, its default.

    Raises:
        FileNotFoundError: the server was not built.
        TimeoutError: it did not come up in time.

    """
    if not PROGRAM.exists():
        raise FileNotFoundError("nats-server: run bench/install_peers.py")
    folder.mkdir(parents=True, exist_ok=True)
    sync = "always" if sync_always else "2m"
    settings = folder / "nats.conf"
    settings.write_text(
        f'listen: "127.0.0.1:-1"\nports_file_dir: "{folder}"\n'
        f'jetstream {{ store_dir: "{folder / "data"}", sync_interval: {sync} }}\n'
    )
    with subprocess.Popen(
        [str(PROGRAM), "-c", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield address(folder / f"nats-server_{process.pid}.ports")
        finally:
            process.terminate()
            process.wait(START_S)


def address(ports: Path) -> str:
    """Return the address the server wrote down.

    Raises:
        TimeoutError: it did not in ten seconds.

    """
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if ports.exists() and (text := ports.read_text()).strip():
            return str(json.loads(text)["nats"][0])
        time.sleep(0.02)
    raise TimeoutError("nats-server did not come up")


def with_stream(url: str, work: Callable[[Any], Awaitable[Any]], *, wait_s: float = 120) -> Any:
    """Return what `work` returns when given a JetStream context with a stream `b` over `b.*`."""

    async def run() -> Any:
        connection = await nats.connect(url)
        try:
            context = connection.jetstream(timeout=wait_s)
            await context.add_stream(name="b", subjects=["b.*"], storage="file")
            return await work(context)
        finally:
            await connection.close()

    return asyncio.run(run())


async def publish_all(
    context: Any, records: Sequence[tuple[str, bytes]], in_flight: int = IN_FLIGHT
) -> float:
    """Return records a second, `in_flight` publishes at a time, every acknowledgement awaited.

    Args:
        context: a JetStream context with a stream over the subjects.
        records: (subject, payload) each.
        in_flight: publishes whose acknowledgements are awaited together.

    """
    began = time.perf_counter()
    for start in range(0, len(records), in_flight):
        window = records[start : start + in_flight]
        await asyncio.gather(*(context.publish(subject, payload) for subject, payload in window))
    return len(records) / (time.perf_counter() - began)


async def pull_all(context: Any, count: int, batch: int = 1_000) -> float:
    """Return records a second through a pull consumer, each acknowledged."""
    consumer = await context.pull_subscribe("b.*", durable="bench")
    began, seen = time.perf_counter(), 0
    while seen < count:
        try:
            messages = await consumer.fetch(batch, timeout=START_S)
        except NatsTimeoutError as error:
            raise TimeoutError(f"JetStream gave {seen} of {count}") from error
        for message in messages:
            await message.ack()
        seen += len(messages)
    return seen / (time.perf_counter() - began)
