"""Plays sequences at a door: over TCP byte by byte, and over gRPC's own client."""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import trio
from hostile_bytes import EOF, RST, STALL, Sequence, dice
from hostile_rpc import PREFACE
from siege import PATIENCE_S

from luxrelay.client import Outgoing

RECENT = 500
"""Sequences that are kept, to be written down when one of them did harm."""
REUSED_MAX = 40
"""Sequences over one connection."""
ANSWER_S = (0.03, 0.08, 0.25)
"""How long an answer is waited for, seconds."""
CALL_S = 3.0
"""Longest that a call is waited for, seconds."""
OPENINGS = {"http": b"", "grpc": PREFACE}
CLIENT = "client-"
"""Before the name of a listener: the sequence is a call of gRPC's own client."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What one process attacks, and with what."""

    door: str
    seed: int
    token: str
    """With the scopes read and publish, at times admin."""
    messages: tuple[Outgoing, ...]
    """Valid ones, to be spoiled."""
    places: dict[str, str]
    """Name of a listener to its ``host:port``; of gossip its multiaddress."""
    frames: int = 100
    """Frames of one handshake at gossip and reconcile."""


class ByteSiege:
    """Plays sequences of bytes from many loopback addresses.

    Args:
        order: The door and its listeners.
        make: Number to sequence; of gRPC also the first stream's number.
        opening: What a new connection begins with.

    """

    def __init__(self, order: Order, make: Callable[..., Sequence], opening: bytes) -> None:
        self._seed, self._door, self._places = order.seed, order.door, order.places
        self._make = make
        self._opening = opening
        self._calls = CallSiege(order.places, order.token)
        self.recent: deque[Sequence] = deque(maxlen=RECENT)
        self.counts: Counter[str] = Counter()

    async def run(self, numbers: Iterator[int], workers: int) -> None:
        """Plays every number once; every connection is closed when it returns."""
        try:
            async with trio.open_nursery() as nursery:
                for worker in range(workers):
                    nursery.start_soon(self._worker, numbers, worker)
        finally:
            self._calls.close()

    async def _worker(self, numbers: Iterator[int], worker: int) -> None:
        kept: dict[str, tuple[trio.SocketStream, int]] = {}
        try:
            for number in numbers:
                await self._one(number, worker, kept)
                self.counts["played"] += 1
        finally:
            for stream, _ in kept.values():
                await _end(stream, hard=False)

    async def _one(
        self, number: int, worker: int, kept: dict[str, tuple[trio.SocketStream, int]]
    ) -> None:
        sequence = self._make(number)
        where = sequence.where
        rng = dice(self._seed, "play", number)
        if where.startswith(CLIENT):
            self.recent.append(sequence)
            work = partial(self._calls.play, sequence, self._seed)
            heard = await trio.to_thread.run_sync(work)
            self.counts["answered"] += heard
            self.counts["calls"] += 1
            return
        stream, used = kept.pop(where, (None, 0))
        if stream is not None and not await self._is_open(stream):
            await _end(stream, hard=False)
            stream, used = None, 0
        if self._door == "grpc" and used:
            sequence = self._make(number, 1 + 10 * used)
        self.recent.append(sequence)
        again = False
        try:
            with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                if stream is None:
                    with trio.fail_after(PATIENCE_S):
                        stream = await self._open(rng, where, worker)
                    self.counts["connections"] += 1
                patience = rng.choice(ANSWER_S)
                again = await self.play(stream, sequence, patience) and used < REUSED_MAX
                again = again and rng.random() < 0.9
        finally:
            if stream is not None and not again:
                await _end(stream, hard=rng.random() < 0.3)
        if stream is not None and again:
            kept[where] = (stream, used + 1)

    async def _is_open(self, stream: trio.SocketStream) -> bool:
        """Read what came late; whether the other side has left the connection open."""
        look = select.poll()
        look.register(stream.socket.fileno(), select.POLLIN)
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            while look.poll(0):
                data = await stream.receive_some(262_144)
                self.counts["answered"] += bool(data)
                if not data:
                    return False
            return True
        return False

    def _address(self, where: str) -> tuple[str, int]:
        host, _, port = self._places.get(where, self._places["gateway"]).rpartition(":")
        return host, int(port)

    async def _open(self, rng: random.Random, where: str, worker: int) -> trio.SocketStream:
        raw = trio.socket.socket()
        try:
            await raw.bind((f"127.{rng.randrange(1, 255)}.{worker}.{rng.randrange(1, 255)}", 0))
            await raw.connect(self._address(where))
        except BaseException:
            raw.close()
            raise
        stream = trio.SocketStream(raw)
        try:
            if self._opening and where != "handshake":
                await self._begin(stream)
        except BaseException:
            await _end(stream, hard=True)
            raise
        return stream

    async def _begin(self, stream: trio.SocketStream) -> None:
        await stream.send_all(self._opening)
        if self._door != "websocket":
            return
        answer = b""
        with trio.move_on_after(5) as scope:
            answer = await stream.receive_some(4096)
        self.counts["silent"] += scope.cancelled_caught
        if b" 101 " not in answer:
            self.counts["refused"] += 1
            raise trio.BrokenResourceError

    async def play(self, stream: trio.SocketStream, sequence: Sequence, patience_s: float) -> bool:
        """Send it, wait a moment for an answer; True when the connection may be used again."""
        with trio.move_on_after(3) as scope:
            for step in sequence.steps:
                if isinstance(step, bytes):
                    await stream.send_all(step)
                elif step == EOF:
                    await stream.send_eof()
                elif step == RST:
                    await _end(stream, hard=True)
                    return False
                else:
                    await trio.sleep(0.5)
        if scope.cancelled_caught:
            return False
        with trio.move_on_after(patience_s):
            data = await stream.receive_some(262_144)
            self.counts["answered"] += bool(data)
            return bool(data) and EOF not in sequence.steps
        return EOF not in sequence.steps


async def _end(stream: trio.SocketStream, *, hard: bool) -> None:
    if hard:
        with suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    await trio.aclose_forcefully(stream)


class CallSiege:
    """Calls of gRPC's own client, cut where a program would not cut them.

    The steps of a sequence are the path, how it is called, and the messages. How: `EOF` sends the
    messages and reads to the end; `RST` cancels the call, now, after some answers or from another
    thread; `STALL` sends the messages and neither ends the stream nor reads it.
    """

    def __init__(self, places: dict[str, str], token: str) -> None:
        self._places, self._token = places, token
        self._local = threading.local()
        self._lock = threading.Lock()
        self._channels: list[grpc.Channel] = []

    def _channel(self, where: str, *, fresh: bool) -> grpc.Channel:
        held: dict[str, grpc.Channel] = self._local.__dict__.setdefault("held", {})
        if fresh and where in held:
            old = held.pop(where)
            with self._lock:
                self._channels.remove(old)
            old.close()
        if where not in held:
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
            held[where] = grpc.insecure_channel(self._places[where], options=options)
            with self._lock:
                self._channels.append(held[where])
        return held[where]

    def play(self, sequence: Sequence, seed: int) -> bool:
        """Call once; whether anything was answered but an error."""
        rng = dice(seed, "call", sequence.number)
        path, how, *messages = sequence.steps
        where = sequence.where.removeprefix(CLIENT)
        channel = self._channel(where, fresh=rng.random() < 0.03)
        call: Any = channel.stream_stream(str(path))  # bytes out, bytes in, whatever the method is
        over = threading.Event()

        def said() -> Iterator[bytes]:
            for message in messages:
                assert isinstance(message, bytes)
                yield message
            if how == STALL:
                over.wait(CALL_S)

        shown = (("authorization", f"Bearer {self._token}"),) if rng.random() < 0.7 else None
        answers = call(said(), timeout=CALL_S, metadata=shown)
        timer = threading.Timer(rng.choice((0.001, 0.01, 0.05)), answers.cancel)
        try:
            if how == RST:
                timer.start()
            return self._read(rng, str(how), answers)
        finally:
            over.set()
            answers.cancel()
            timer.cancel()

    def _read(self, rng: random.Random, how: str, answers: Any) -> bool:
        if (how == RST and rng.random() < 0.4) or (how == STALL and rng.random() < 0.8):
            return False  # cancelled at once
        heard = False
        with suppress(grpc.RpcError):
            for number, _ in enumerate(answers):
                heard = True
                if number >= (50 if how == EOF else rng.choice((0, 3))):
                    break
        return heard

    def close(self) -> None:
        """Close every channel."""
        with self._lock:
            several, self._channels = self._channels, []
            self._local = threading.local()
        for channel in several:
            channel.close()
