"""A layer below channels in one process, as unkind as you like, and reproducible.

    async with Wire(loss=0.3, delay_s=(0.01, 2.0), duplication=0.2, seed=1) as wire:
        messaging = wire.messaging()

Every payload is lost, delayed, repeated or corrupted for each receiver by itself; different delays
reorder. Time is the loop's, so under a virtual clock (`trio.testing.MockClock`) nothing is waited
for. With ``stored`` a store keeps every payload under its hash, and `fetch` and ``since_ms`` work.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.lowlevel

from luxrelay.channel.runtime.messaging import ChannelReceipt, Envelope, Messaging
from luxrelay.errors import ChannelArgumentError, MessagingError

PAYLOAD_BYTES_MAX = 150 * 1024
"""What the public layer below takes."""


@dataclass(slots=True)
class WireStats:
    """What happened on a wire, over all receivers."""

    sent: int = 0
    """Payloads given to it."""
    lost: int = 0
    """Deliveries that did not happen."""
    repeated: int = 0
    """Deliveries that happened twice."""
    corrupted: int = 0
    """Deliveries with a bit flipped."""
    overflowed: int = 0
    """Deliveries dropped because a receiver's queue was full."""


class _Queue:
    """What one subscriber has not taken."""

    def __init__(self, topic: str, limit: int) -> None:
        self.topic = topic
        self.closed = False
        self._limit = limit
        self._items: deque[Envelope] = deque()
        self._changed = anyio.Event()

    def put(self, envelope: Envelope) -> bool:
        """Have a payload, unless it is one too many."""
        if len(self._items) >= self._limit:
            return False
        self._items.append(envelope)
        self._changed.set()
        return True

    def close(self) -> None:
        """End the subscription."""
        self.closed = True
        self._changed.set()

    def __aiter__(self) -> AsyncIterator[Envelope]:
        return self

    async def __anext__(self) -> Envelope:
        while not self._items:
            if self.closed:
                raise StopAsyncIteration
            self._changed = anyio.Event()
            await self._changed.wait()
        return self._items.popleft()


class Wire:
    """One network for any number of participants; an async context.

    Args:
        loss: Share of deliveries that do not happen.
        delay_s: Shortest and longest time of a delivery, seconds.
        duplication: Share of deliveries that happen twice.
        corruption: Share of deliveries with one bit flipped.
        stored: A store keeps every payload that is not ephemeral.
        payload_bytes_max: Longest payload.
        queue_max: Payloads a subscriber may leave waiting; more are dropped.
        seed: Makes the run reproducible.

    """

    def __init__(
        self,
        *,
        loss: float = 0.0,
        delay_s: tuple[float, float] = (0.0, 0.0),
        duplication: float = 0.0,
        corruption: float = 0.0,
        stored: bool = False,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        queue_max: int = 10_000,
        seed: int = 0,
    ) -> None:
        if not all(0 <= share <= 1 for share in (loss, duplication, corruption)):
            raise ChannelArgumentError("shares lie between 0 and 1", where="Wire")
        self.loss = loss
        self.delay_s = delay_s
        self.duplication = duplication
        self.corruption = corruption
        self.stored = stored
        self.payload_bytes_max = payload_bytes_max
        self.down: str | None = None
        """Set to a reason to have every send refused for now."""
        self.stats = WireStats()
        self._queue_max = queue_max
        self._rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._queues: list[_Queue] = []
        self._flying: list[tuple[float, int, _Queue, Envelope]] = []
        self._count = 0
        self._store: dict[tuple[str, bytes], bytes] = {}
        self._history: list[tuple[str, Envelope]] = []
        self._signal = anyio.Event()
        self._stack = AsyncExitStack()
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        """Begin to deliver."""
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._tasks.start_soon(self._deliver)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """End every subscription."""
        self.close()
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        return await self._stack.__aexit__(kind, error, trace)

    def messaging(self) -> Messaging:
        """Return the layer below for one participant, or for many."""
        return _WireMessaging(self)

    def close(self) -> None:
        """End every subscription, as when the layer below closes."""
        for queue in self._queues:
            queue.close()

    def accept(
        self, topic: str, payload: bytes, *, ephemeral: bool, proof: bytes
    ) -> ChannelReceipt:
        """Put a payload on its way to everybody on the topic, its sender too.

        Raises:
            MessagingError: it is too long, or the wire is down.

        """
        if not 0 < len(payload) <= self.payload_bytes_max:
            raise MessagingError(f"{len(payload)} bytes", where=topic, code="channel.refused")
        if self.down is not None:
            raise MessagingError(self.down, where=topic)
        self.stats.sent += 1
        keep = self.stored and not ephemeral
        hint = hashlib.sha256(topic.encode() + b"\0" + payload).digest() if keep else b""
        envelope = Envelope(payload, hint, proof)
        if keep:
            self._store[topic, hint] = payload
            self._history.append((topic, envelope))
        for queue in self._queues:
            if queue.topic == topic:
                self._fly(queue, envelope)
        self._signal.set()
        return ChannelReceipt(hint, stored=keep)

    def find(self, topic: str, hint: bytes) -> bytes | None:
        """Return what the store has under a name."""
        return self._store.get((topic, hint))

    @asynccontextmanager
    async def subscribed(self, topic: str, *, replay: bool) -> AsyncIterator[_Queue]:
        """Hold a subscription; with ``replay`` it begins with all that the store has."""
        queue = _Queue(topic, self._queue_max)
        if replay:
            for of, envelope in self._history:
                if of == topic:
                    queue.put(envelope)
        self._queues.append(queue)
        try:
            yield queue
        finally:
            self._queues.remove(queue)
            queue.close()

    def _fly(self, queue: _Queue, envelope: Envelope) -> None:
        """Put a payload on its way to one subscriber."""
        rng = self._rng
        if rng.random() < self.loss:
            self.stats.lost += 1
            return
        times = 1
        if rng.random() < self.duplication:
            self.stats.repeated += 1
            times = 2
        for _ in range(times):
            arriving = envelope
            if rng.random() < self.corruption:
                self.stats.corrupted += 1
                data = bytearray(envelope.payload)
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                arriving = Envelope(bytes(data), envelope.hint, envelope.proof)
            self._count += 1
            at = anyio.current_time() + rng.uniform(*self.delay_s)
            heapq.heappush(self._flying, (at, self._count, queue, arriving))

    async def _deliver(self) -> None:
        """Hand over what has arrived, in order of time."""
        while True:
            now = anyio.current_time()
            while self._flying and self._flying[0][0] <= now:
                _, _, queue, envelope = heapq.heappop(self._flying)
                if not queue.closed and not queue.put(envelope):
                    self.stats.overflowed += 1
            self._signal = anyio.Event()
            until = self._flying[0][0] - now if self._flying else float("inf")
            with anyio.move_on_after(until):
                await self._signal.wait()


class _WireMessaging:
    """`Messaging` over a wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    @property
    def payload_bytes_max(self) -> int:
        """The wire's."""
        return self._wire.payload_bytes_max

    @asynccontextmanager
    async def subscribe(
        self, content_topic: str, *, since_ms: int | None = None
    ) -> AsyncIterator[AsyncIterator[Envelope]]:
        """Receive a topic; with any ``since_ms`` all that the store has comes first."""
        async with self._wire.subscribed(content_topic, replay=since_ms is not None) as queue:
            yield queue

    async def send(
        self, content_topic: str, payload: bytes, *, ephemeral: bool = False, proof: bytes = b""
    ) -> ChannelReceipt:
        """Put a payload on the wire."""
        await anyio.lowlevel.checkpoint()
        return self._wire.accept(content_topic, payload, ephemeral=ephemeral, proof=proof)

    async def fetch(self, content_topic: str, hint: bytes) -> bytes | None:
        """Ask the store."""
        await anyio.lowlevel.checkpoint()
        return self._wire.find(content_topic, hint)
