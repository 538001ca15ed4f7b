"""Redis as a peer of the benchmarks: a server of our own on a socket in a folder, and its streams.

The server is what the distribution packages (`redis-server`); `install_peers.py` installs it. It
listens on no port, keeps its data in the given folder and ends with the `with` block.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

START_S = 10
PIPELINE = 256
"""Commands a pipeline; what clients of Redis use for bulk writes."""


@contextmanager
def redis_server(folder: Path, *, appendfsync: str = "everysec") -> Iterator[Redis]:
    """Start a server with an append-only file and yield a client.

    Args:
        folder: where its data and its socket go; made when it is missing.
        appendfsync: `always`, `everysec` or `no`.

    Raises:
        FileNotFoundError: no redis-server on the path.
        TimeoutError: it did not answer in time.

    """
    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError("redis-server: run bench/install_peers.py")
    folder.mkdir(parents=True, exist_ok=True)
    socket = folder / "redis.sock"
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "dir": str(folder),
        "save": "",
        "appendonly": "yes",
        "appendfsync": appendfsync,
        "daemonize": "no",
        "logfile": str(folder / "redis.log"),
    }
    arguments = [word for key, value in settings.items() for word in (f"--{key}", value)]
    with subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL) as process:
        client = Redis(unix_socket_path=str(socket))
        try:
            await_redis(client)
            yield client
        finally:
            client.close()
            process.terminate()
            process.wait(START_S)


def await_redis(client: Redis) -> None:
    """Return when the server answers.

    Raises:
        TimeoutError: it did not in ten seconds.

    """
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        with suppress(RedisConnectionError):
            if client.ping():
                return
        time.sleep(0.02)
    raise TimeoutError("redis-server did not answer")


def add_all(
    client: Redis, records: Sequence[tuple[bytes, bytes, bytes]], batch: int = PIPELINE
) -> float:
    """Return records a second through XADD, a pipeline a batch, each batch acknowledged.

    Args:
        client: of a running server.
        records: (stream, header, blob) each.
        batch: commands in a pipeline.

    """
    began = time.perf_counter()
    for start in range(0, len(records), batch):
        pipeline = client.pipeline(transaction=False)
        for stream, header, blob in records[start : start + batch]:
            pipeline.xadd(stream, {b"h": header, b"b": blob})
        pipeline.execute()
    return len(records) / (time.perf_counter() - began)


def read_all(client: Redis, streams: Sequence[bytes], count: int = 1_000) -> float:
    """Return records a second through XREAD, stream after stream, `count` records a call."""
    began, seen = time.perf_counter(), 0
    for stream in streams:
        last = b"0-0"
        while True:
            answer: Any = client.xread({stream: last}, count=count)
            if not answer:
                break
            pairs = answer[stream][0] if isinstance(answer, dict) else answer[0][1]
            seen += len(pairs)
            last = pairs[-1][0]
    return seen / (time.perf_counter() - began)
