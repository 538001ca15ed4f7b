"""Participants of scalable data sync on a lossy network in virtual time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable

from luxrelay.channel.actions import (
    Acknowledged,
    Action,
    Broadcast,
    DeliverMessage,
    Exhausted,
    Fetch,
    Lost,
    Purpose,
)
from luxrelay.channel.params import RepairConfig, SdsConfig
from luxrelay.channel.sds import Sds
from luxrelay.channel.state import Journal, Row, StateTable
from luxrelay.channel.wire import SdsMessage

EPOCH_MS = 1_700_000_000_000
QUICK = SdsConfig(
    bloom_capacity=100,
    acknowledgement_timeout_ms=5_000,
    sync_interval_ms=10_000,
    sync_interval_max_ms=40_000,
    repair=RepairConfig(t_min_ms=500, t_max_ms=3_000),
)
"""Small filters and short times; everything else as it is by default."""


class Participant:
    """One machine, the rows that its journal left behind, and what came out of it."""

    def __init__(self, net: Net, name: str, config: SdsConfig) -> None:
        """Begin with nothing."""
        self.net, self.name, self.config = net, name, config
        self.journal = Journal()
        self.rows: dict[tuple[StateTable, bytes], bytes] = {}
        self.machine = self._made()
        self.delivered: list[tuple[str, bytes]] = []
        self.acknowledged: list[str] = []
        self.exhausted: list[str] = []
        self.lost: list[str] = []
        self.sent: list[tuple[float, Broadcast]] = []
        self.up = True

    def _made(self) -> Sds:
        return Sds(
            "chan",
            self.name,
            self.config,
            self.journal,
            random.Random(f"{self.net.seed} {self.name}"),
            now=self.net.now,
            now_ms=self.net.now_ms,
        )

    def restart(self) -> None:
        """Crash and begin anew from the rows; what was not committed is gone."""
        self.journal.drain()
        self.machine = self._made()
        rows = [Row(table, key, value) for (table, key), value in sorted(self.rows.items())]
        self.machine.restore(rows, self.net.now, self.net.now_ms)
        self.step()

    def say(self, content: bytes) -> str:
        """Send content and return its id."""
        name = self.machine.send(content, self.net.now, self.net.now_ms)
        self.step()
        return name

    def take(self, data: bytes, hint: bytes = b"") -> None:
        """Receive bytes."""
        if self.up:
            message = SdsMessage.decode(data)
            self.machine.receive(message, data, hint, self.net.now, self.net.now_ms)
            self.step()

    def wake(self) -> None:
        """Do what is due."""
        if self.up and self.machine.wake_at() <= self.net.now:
            self.machine.wake(self.net.now, self.net.now_ms)
            self.step()

    def step(self) -> None:
        """Commit, then do the actions, as a driver must."""
        for row in self.journal.drain():
            if row.value is None:
                self.rows.pop((row.table, row.key), None)
            else:
                self.rows[row.table, row.key] = row.value
        for action in self.machine.drain():
            self.do(action)

    def do(self, action: Action) -> None:
        """Do one action."""
        match action:
            case Broadcast():
                self.sent.append((self.net.now, action))
                hint = self.net.broadcast(action.data)
                if action.purpose in {Purpose.FIRST, Purpose.AGAIN}:
                    self.machine.dispatched(action.message_id, hint, self.net.now)
            case DeliverMessage():
                self.delivered.append((action.sender_id, action.content))
            case Acknowledged():
                self.acknowledged.append(action.message_id)
            case Exhausted():
                self.exhausted.append(action.message_id)
            case Lost():
                self.lost.append(action.message_id)
            case Fetch():
                found = self.net.store.get(action.entry.retrieval_hint or b"")
                if found is not None:
                    message = SdsMessage.decode(found)
                    self.machine.receive(
                        message, found, b"", self.net.now, self.net.now_ms, fetched=True
                    )
                self.machine.fetched(action.entry.message_id, self.net.now)
                self.step()


class Net:
    """Everybody hears everybody, or not."""

    def __init__(
        self,
        names: Iterable[str],
        config: SdsConfig = QUICK,
        *,
        loss: float = 0.0,
        repeat: float = 0.0,
        delay_s: tuple[float, float] = (0.01, 0.02),
        stored: bool = False,
        seed: int = 0,
    ) -> None:
        """Begin at a fixed time."""
        self.seed = seed
        self.rng = random.Random(seed)
        self.loss, self.repeat, self.delay_s, self.stored = loss, repeat, delay_s, stored
        self.now = 100.0
        self.flying: list[tuple[float, int, str, bytes, bytes]] = []
        self.count = 0
        self.store: dict[bytes, bytes] = {}
        self.participants = {name: Participant(self, name, config) for name in names}

    @property
    def now_ms(self) -> int:
        """Unix milliseconds."""
        return EPOCH_MS + int(self.now * 1000)

    def __getitem__(self, name: str) -> Participant:
        return self.participants[name]

    def broadcast(self, data: bytes) -> bytes:
        """Put bytes on the way to everybody, the sender too; return their hint."""
        self.count += 1
        hint = self.count.to_bytes(4, "big") if self.stored else b""
        if self.stored:
            self.store[hint] = data
        for name in self.participants:
            if self.rng.random() < self.loss:
                continue
            for _ in range(2 if self.rng.random() < self.repeat else 1):
                self.count += 1
                at = self.now + self.rng.uniform(*self.delay_s)
                heapq.heappush(self.flying, (at, self.count, name, data, hint))
        return hint

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass, or stop as soon as ``until`` holds."""
        end = self.now + seconds
        while not until():
            times = [one.machine.wake_at() for one in self.participants.values() if one.up]
            if self.flying:
                times.append(self.flying[0][0])
            at = min(times, default=end)
            if at > end:
                break
            self.now = max(self.now, at)
            while self.flying and self.flying[0][0] <= self.now:
                _, _, name, data, hint = heapq.heappop(self.flying)
                self.participants[name].take(data, hint)
            for one in self.participants.values():
                one.wake()
        else:
            return
        self.now = max(self.now, end)
