"""A participant that is killed at any moment loses nothing, and tells nothing twice.

It is a process of its own with its state in SQLite, talks with two others over a wire that loses,
delays and repeats, and is killed with SIGKILL in the midst of it, again and again. Its application
keeps each event with its position in one transaction, as the documentation tells it to.

LUXRELAY_CHANNEL_KILLS sets the rounds: 3 here, 50 in `make chaos`.

Source: decisions C2, C7.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from luxrelay.channel import MessageLost, MessageReceived, MessageSendError, create_reliable_channel
from luxrelay.channel.params import RepairConfig, SdsConfig
from luxrelay.testing.wire import Wire

pytestmark = [pytest.mark.chaos, pytest.mark.slow]
KILLS = int(os.environ.get("LUXRELAY_CHANNEL_KILLS", "3"))
DEADLINE_S = 60 + 30 * KILLS
CONFIG = SdsConfig(
    bloom_capacity=1_000,
    acknowledgement_timeout_ms=1_000,
    max_retransmissions=1_000,
    acknowledge_after_ms=100,
    sync_interval_ms=500,
    sync_interval_max_ms=1_000,
    lost_timeout_ms=10_000_000,
    repair=RepairConfig(t_min_ms=100, t_max_ms=800),
)

CHILD = '''
import sqlite3, sys
from contextlib import asynccontextmanager
from dataclasses import replace
import anyio
from luxrelay.channel import (
    ChannelReceipt, Envelope, MessageLost, MessageReceived, MessageSendError, RepairConfig,
    SdsConfig, SqlitePersistence, create_reliable_channel,
)

socket, folder = sys.argv[1:]
book = sqlite3.connect(folder + "/book.db", isolation_level=None)
book.execute("PRAGMA journal_mode = WAL")
book.execute("PRAGMA synchronous = FULL")
book.executescript("""
    CREATE TABLE IF NOT EXISTS told (position INTEGER PRIMARY KEY, kind, sender, message);
    CREATE TABLE IF NOT EXISTS sent (number INTEGER PRIMARY KEY, done INTEGER);
""")


class Line:
    payload_bytes_max = 150 * 1024

    def __init__(self, stream):
        self.stream = stream

    @asynccontextmanager
    async def subscribe(self, content_topic, *, since_ms=None):
        async def frames():
            held = b""
            async for data in self.stream:
                held += data
                while len(held) >= 4 and len(held) >= 4 + (size := int.from_bytes(held[:4])):
                    yield Envelope(held[4:4 + size])
                    held = held[4 + size:]
        yield frames()

    async def send(self, content_topic, payload, *, ephemeral=False, proof=b""):
        await self.stream.send(len(payload).to_bytes(4) + payload)
        return ChannelReceipt()

    async def fetch(self, content_topic, hint):
        return None


async def main():
    config = SdsConfig(
        persistence=SqlitePersistence(folder + "/state"), bloom_capacity=1_000,
        acknowledgement_timeout_ms=1_000, max_retransmissions=1_000, acknowledge_after_ms=100,
        sync_interval_ms=500, sync_interval_max_ms=1_000, lost_timeout_ms=10_000_000,
        repair=RepairConfig(t_min_ms=100, t_max_ms=800),
    )
    (taken,) = book.execute("SELECT coalesce(max(position), 0) FROM told").fetchone()
    (number,) = book.execute("SELECT coalesce(max(number), 0) FROM sent").fetchone()
    async with (
        await anyio.connect_unix(socket) as stream,
        create_reliable_channel(
            Line(stream), "chan", "/t", "child", sds_config=config, events_taken=taken
        ) as channel,
        anyio.create_task_group() as tasks,
    ):
        async def speak():
            nonlocal number
            while True:
                number += 1
                book.execute("INSERT INTO sent VALUES (?, 0)", (number,))
                await channel.send(b"child %d" % number + bytes(100 if number % 7 else 150_000))
                book.execute("UPDATE sent SET done = 1 WHERE number = ?", (number,))
                await anyio.sleep(0.03)

        async def stop():
            await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
            speaking.cancel()

        speaking = anyio.CancelScope()

        async def until_stopped():
            with speaking:
                await speak()

        tasks.start_soon(until_stopped)
        tasks.start_soon(stop)
        print("ready", flush=True)
        async for event in channel.events():
            if isinstance(event, MessageReceived):
                row = ("received", event.sender_id, event.message.rstrip(bytes(1)).decode())
            elif isinstance(event, (MessageSendError, MessageLost)):
                row = (type(event).__name__, "", str(event))
            else:
                row = ("other", "", "")
            book.execute("INSERT INTO told VALUES (?, ?, ?, ?)", (event.position, *row))

anyio.run(main)
'''


class Neighbour:
    """A participant in this process, and what it was told."""

    def __init__(self, name: str) -> None:
        """Begin with nothing."""
        self.name = name
        self.heard: list[tuple[str, str]] = []
        self.bad: list[object] = []
        self.sent = 0
        self.speaking = True

    async def take_part(self, wire: Wire) -> None:
        """Speak now and then, and listen."""
        async with (
            create_reliable_channel(
                wire.messaging(), "chan", "/t", self.name, sds_config=CONFIG
            ) as channel,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._speak, channel)
            async for event in channel.events():
                if isinstance(event, MessageReceived):
                    text = event.message.rstrip(bytes(1)).decode()
                    self.heard.append((event.sender_id, text))
                elif isinstance(event, MessageLost | MessageSendError):
                    self.bad.append(event)

    async def _speak(self, channel: Any) -> None:
        while self.speaking:
            await channel.send(f"{self.name} {self.sent + 1}".encode())
            self.sent += 1
            await anyio.sleep(0.1)


async def connect(wire: Wire, stream: anyio.abc.SocketStream) -> None:
    """Be the wire for a process, as long as it lives."""

    async def towards(arriving: Any) -> None:
        async for envelope in arriving:
            await stream.send(len(envelope.payload).to_bytes(4, "big") + envelope.payload)

    try:
        async with (
            stream,
            wire.messaging().subscribe("/t") as arriving,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(towards, arriving)
            held = b""
            async for data in stream:
                held += data
                while len(held) >= 4 and len(held) >= 4 + (size := int.from_bytes(held[:4], "big")):
                    wire.accept("/t", held[4 : 4 + size], ephemeral=False, proof=b"")
                    held = held[4 + size :]
            tasks.cancel_scope.cancel()
    except* (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
        pass


def start(socket: Path, folder: Path) -> subprocess.Popen[str]:
    """Start the participant and return once it takes part."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(socket), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """Return what the participant's application has written down."""
    with closing(sqlite3.connect(folder / "book.db", timeout=10)) as book:
        return book.execute(query).fetchall()


def complete(folder: Path, neighbours: list[Neighbour]) -> bool:
    """Return whether everybody has what is known to have been sent."""
    done = {f"child {number}" for (number,) in rows(folder, "SELECT number FROM sent WHERE done")}
    (heard,) = rows(folder, "SELECT count(*) FROM told WHERE kind = 'received'")[0]
    return heard >= sum(one.sent for one in neighbours) and all(
        done <= {text for sender, text in one.heard if sender == "child"} for one in neighbours
    )


async def session(folder: Path, socket: Path, neighbours: list[Neighbour]) -> None:
    """Let them talk, kill one of them again and again, then wait until all is said."""
    rng = random.Random(50)
    with anyio.fail_after(DEADLINE_S):
        async with (
            Wire(loss=0.3, delay_s=(0.0, 0.1), duplication=0.2, seed=50) as wire,
            await anyio.create_unix_listener(socket) as listener,
            anyio.create_task_group() as tasks,
        ):

            async def serve(stream: anyio.abc.SocketStream) -> None:
                await connect(wire, stream)

            tasks.start_soon(listener.serve, serve)
            for one in neighbours:
                tasks.start_soon(one.take_part, wire)
            for _ in range(KILLS):
                process = await anyio.to_thread.run_sync(start, socket, folder)
                await anyio.sleep(rng.uniform(0.0, 0.7))
                process.send_signal(signal.SIGKILL)
                await anyio.to_thread.run_sync(process.communicate)
            process = await anyio.to_thread.run_sync(start, socket, folder)
            try:
                await anyio.sleep(0.5)
                for one in neighbours:
                    one.speaking = False
                assert process.stdin is not None
                process.stdin.write("stop\n")
                process.stdin.flush()
                while not await anyio.to_thread.run_sync(complete, folder, neighbours):
                    assert process.poll() is None
                    await anyio.sleep(0.1)
            finally:
                process.kill()
                await anyio.to_thread.run_sync(process.communicate)
            tasks.cancel_scope.cancel()


def test_killed_participant_goes_on(tmp_path: Path) -> None:
    """After every kill it goes on where it was: each message once, at everybody, in order."""
    neighbours = [Neighbour("left"), Neighbour("right")]

    anyio.run(session, tmp_path, tmp_path / "s", neighbours)

    sent = dict(rows(tmp_path, "SELECT number, done FROM sent"))
    assert len(sent) > KILLS
    for one in neighbours:
        assert one.bad == []
        numbers = [int(text.split()[1]) for sender, text in one.heard if sender == "child"]
        assert numbers == sorted(set(numbers))
        assert {number for number, done in sent.items() if done} <= set(numbers) <= set(sent)
    assert rows(tmp_path, "SELECT * FROM told WHERE kind LIKE 'Message%'") == []
    for one in neighbours:
        heard = rows(
            tmp_path,
            f"SELECT message FROM told WHERE sender = '{one.name}' ORDER BY position",  # noqa: S608
        )
        assert heard == [(f"{one.name} {number}",) for number in range(1, one.sent + 1)]
