"""A node under attack: who attacks, who is served meanwhile, and what is watched."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from hostile_bytes import EOF, RST, Sequence, dice
from hostile_rpc import PREFACE

from luxrelay.bus import MsgHeader, SigningKey, topic_namespace
from luxrelay.client import LaneSigner, Message, Outgoing, RelayClient, Retry, Subscribe, subscribe
from luxrelay.sync import PublishItem, RelaySyncClient
from luxrelay.sync.following import Followed, SubscribeWanted

TOPIC = "/chat/1/room"
PARENT = topic_namespace(TOPIC)
RECENT = 500
"""Sequences that are kept, to be written down when one of them did harm."""
FAULT = re.compile(r'a module failed|Traceback|"level": ?"(error|critical)"')
PATIENCE_S = 120.0
"""Within this time an honest client is served on any machine."""


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def valid_messages(count: int) -> list[Outgoing]:
    """Signed messages of a few senders, to be spoiled."""
    signers = [LaneSigner(SigningKey.generate(), PARENT) for _ in range(4)]
    begin = now_ms() - 60_000
    return [
        signers[place % 4].sign(b"material %d" % place, begin + place) for place in range(count)
    ]


class Honest:
    """Publishes over HTTP and gRPC in turn, and reads over WebSocket, gRPC and a second node."""

    def __init__(self, gateway: str, sync: str, neighbour: str, token: str) -> None:
        self._gateway, self._sync, self._neighbour = gateway, sync, neighbour
        self._token = token
        self._signer = LaneSigner(SigningKey.generate(), PARENT)
        self._over = threading.Event()
        self.failures: list[str] = []
        self.waits: list[float] = []
        """Seconds that each publication took."""
        self.published = 0
        self.read: dict[str, set[int]] = {"websocket": set(), "grpc": set()}
        for work in (self._publish, self._read_socket, self._read_rpc):
            threading.Thread(target=self._guarded, args=(work,), daemon=True).start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  whatever it meets is told
            if not self._over.is_set():
                self.failures.append(f"{work.__name__}: {error!r}")

    def _publish(self) -> None:
        with (
            RelayClient(self._gateway, token=self._token, timeout_s=PATIENCE_S) as client,
            RelaySyncClient(self._sync) as sync,
        ):
            while not self._over.is_set():
                message = self._signer.sign(b"honest %d" % self.published, now_ms())
                begun = time.monotonic()
                if self.published % 2:
                    stored = client.publish([message])[0].stored
                else:
                    item = PublishItem(
                        header=message.header, blob=message.blob, parent_id=message.parent
                    )
                    stored = sync.publish([item])[0].stored
                self.waits.append(time.monotonic() - begun)
                assert stored, f"message {self.published} was refused"
                self.published += 1
                self._over.wait(0.25)

    def _read_socket(self) -> None:
        client = RelayClient(self._gateway, token=self._token, timeout_s=PATIENCE_S)
        wanted = Subscribe(namespaces=[PARENT])
        for event in subscribe(client, wanted, retry=Retry(attempts_max=1)):
            if isinstance(event, Message):
                self._note("websocket", event.header.namespace_id, event.header.seq)

    def _read_rpc(self) -> None:
        with RelaySyncClient(self._sync) as client:
            for event in client.subscribe(SubscribeWanted(namespaces=(PARENT,))):
                if isinstance(event, Followed):
                    header = MsgHeader.decode(event.message.header)
                    self._note("grpc", header.namespace_id, header.seq)

    def _note(self, door: str, namespace_id: bytes, seq: int) -> None:
        if namespace_id == self._signer.namespace_id:
            self.read[door].add(seq)

    def check(self) -> None:
        """Nobody has met a failure so far."""
        assert not self.failures, self.failures

    def end(self, eventually: Callable[..., Any]) -> None:
        """Everything that was published came to every reader, and to the other node."""
        before = self.published
        eventually(lambda: self.published > before or self.failures, PATIENCE_S)
        self.check()
        wanted = set(range(1, self.published + 1))
        for door in self.read:
            eventually(lambda: wanted <= self.read[door] or self.failures, PATIENCE_S)  # noqa: B023
        self.check()
        with RelaySyncClient(self._neighbour) as other:
            lane = self._signer.namespace_id
            eventually(lambda: other.get_head(lane).contiguous_seq >= max(wanted), PATIENCE_S)
        self._over.set()


class Watch:
    """What the process holds: resident memory, descriptors, threads and tasks."""

    def __init__(self, pid: int, pages: str) -> None:
        self._proc = Path(f"/proc/{pid}")
        self._pages = pages

    def page(self, path: str) -> str:
        """A page of the node."""
        for _ in range(100):
            with (
                suppress(OSError),
                urllib.request.urlopen(f"http://{self._pages}{path}", timeout=PATIENCE_S) as answer,
            ):
                return str(answer.read().decode())
            time.sleep(0.1)
        raise AssertionError(f"{path} is not answered")

    def rss_kib(self) -> int:
        """Resident memory."""
        status = (self._proc / "status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def held(self) -> dict[str, int]:
        """Descriptors, threads and tasks now."""
        tasks = re.search(r"^luxrelay_process_tasks (\S+)$", self.page("/metrics"), re.MULTILINE)
        assert tasks is not None
        return {
            "fds": len(list((self._proc / "fd").iterdir())),
            "threads": len(list((self._proc / "task").iterdir())),
            "tasks": int(float(tasks[1])),
        }

    def settled(self) -> dict[str, int]:
        """The same, once three looks in a row agree or a minute has gone."""
        looks = [self.held()]
        for _ in range(60):
            time.sleep(1)
            looks.append(self.held())
            if len(looks) > 12 and all(
                max(look[name] for look in looks[-3:]) - looks[-1][name] <= 1 for name in looks[-1]
            ):
                break
        return looks[-1]


class ByteSiege:
    """Plays sequences of bytes from many loopback addresses.

    Args:
        places: Name of a listener to its ``host:port``.
        make: Number to sequence; of gRPC also the first stream's number.
        opening: What a new connection begins with, and how many bytes of the answer end it.

    """

    def __init__(
        self,
        seed: int,
        door: str,
        places: dict[str, str],
        make: Callable[..., Sequence],
        opening: bytes,
    ) -> None:
        self._seed, self._door, self._places, self._make = seed, door, places, make
        self._opening = opening
        self.recent: deque[Sequence] = deque(maxlen=RECENT)
        self.counts: Counter[str] = Counter()
        self.done = 0

    async def run(self, numbers: Iterator[int], workers: int) -> None:
        """Plays every number once."""
        async with trio.open_nursery() as nursery:
            for worker in range(workers):
                nursery.start_soon(self._worker, numbers, worker)

    async def _worker(self, numbers: Iterator[int], worker: int) -> None:
        kept: dict[str, tuple[trio.SocketStream, int]] = {}
        for number in numbers:
            sequence = self._make(number)
            where = sequence.where
            stream, used = kept.pop(where, (None, 0))
            if self._door == "grpc" and used:
                sequence = self._make(number, 1 + 10 * used)
            rng = dice(self._seed, "play", number)
            self.recent.append(sequence)
            with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                if stream is None:
                    with trio.fail_after(PATIENCE_S):
                        stream = await self._open(rng, where, worker)
                    self.counts["connections"] += 1
                if await self.play(stream, sequence) and used < 40 and rng.random() < 0.9:
                    kept[where] = (stream, used + 1)
                    stream = None
            if stream is not None:
                await _end(stream, hard=rng.random() < 0.3)
            self.done += 1
        for stream, _ in kept.values():
            await _end(stream, hard=False)

    def _address(self, where: str) -> tuple[str, int]:
        host, _, port = self._places.get(where, self._places["gateway"]).rpartition(":")
        return host, int(port)

    async def _open(self, rng: Any, where: str, worker: int) -> trio.SocketStream:
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

    async def play(self, stream: trio.SocketStream, sequence: Sequence) -> bool:
        """Send it; True when the connection may be used again."""
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
        with trio.move_on_after(0.04) as scope:
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


OPENINGS = {"http": b"", "grpc": PREFACE}
