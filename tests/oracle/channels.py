"""Channel sessions on an unkind network in virtual time: a driver without a loop."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from luxrelay.channel.actions import Fetch
from luxrelay.channel.announcing import Announce
from luxrelay.channel.events import ChannelEvent, MessageReceived, ReliableSendId
from luxrelay.channel.outbox import Dispatch
from luxrelay.channel.params import (
    ChannelConfig,
    RateLimitConfig,
    RepairConfig,
    SdsConfig,
    SegmentationConfig,
)
from luxrelay.channel.session import ChannelSession
from luxrelay.channel.state import Row, StateTable

EPOCH_MS = 1_700_000_000_000
PAYLOAD_BYTES_MAX = 150 * 1024
SDS = SdsConfig(
    bloom_capacity=1_000,
    sync_interval_ms=10_000,
    sync_interval_max_ms=40_000,
    repair=RepairConfig(t_min_ms=500, t_max_ms=3_000),
)


class CrashError(Exception):
    """The process is gone."""


class Member:
    """A session, its rows, and an application that takes every event at once."""

    def __init__(self, net: SessionNet, name: str, **settings: Any) -> None:
        """Begin with nothing."""
        self.net, self.name = net, name
        self.settings = settings
        self.rows: dict[tuple[StateTable, bytes], bytes] = {}
        self.events: list[ChannelEvent] = []
        self.taken = 0
        self.takes = True
        self.refuse: Callable[[Dispatch], tuple[str, bool] | None] = lambda _: None
        self.dispatched: list[tuple[float, Dispatch]] = []
        self.crash_after: int | None = None
        self.starts = 0
        self.session = self._made()
        self.session.restore([], net.now, net.now_ms)
        self.step()

    def _made(self) -> ChannelSession:
        values: dict[str, Any] = {
            "segmentation": SegmentationConfig(),
            "sds": SDS,
            "rate_limit": RateLimitConfig(),
            "config": ChannelConfig(),
            "encryption": None,
            **self.settings,
        }
        self.starts += 1  # two starts at one virtual time draw differently, as two processes do
        return ChannelSession(
            channel_id="chan",
            sender_id=self.name,
            payload_bytes_max=PAYLOAD_BYTES_MAX,
            rng=random.Random(f"{self.net.seed} {self.name} {self.starts}"),
            now=self.net.now,
            now_ms=self.net.now_ms,
            **values,
        )

    def restart(self) -> None:
        """Begin anew from the rows; the application remembers what it has taken."""
        self.session = self._made()
        rows = [Row(table, key, value) for (table, key), value in sorted(self.rows.items())]
        self.session.restore(rows, self.net.now, self.net.now_ms, taken=self.taken)
        self.step()

    def do(self, act: Callable[[], Any]) -> Any:
        """Feed an input and let it take effect; a crash on the way restarts the member."""
        try:
            result = act()
            self.step()
        except CrashError:
            self.restart()
            return None
        return result

    def send(self, payload: bytes) -> ReliableSendId:
        """Send a payload."""
        request: ReliableSendId = self.do(
            lambda: self.session.send(payload, self.net.now, self.net.now_ms)
        )
        return request

    def take(self, payload: bytes, hint: bytes = b"", proof: bytes = b"") -> None:
        """Receive a payload."""
        self.do(lambda: self.session.receive(payload, hint, proof, self.net.now, self.net.now_ms))

    def wake(self) -> None:
        """Do what is due."""
        if self.session.wake_at() <= self.net.now:
            self.do(lambda: self.session.wake(self.net.now, self.net.now_ms))

    def step(self) -> None:
        """Commit, then do the actions, until there are none; may crash at any point."""
        answers: deque[Callable[[], None]] = deque()
        while True:
            self._may_crash()
            for row in self.session.changes():
                if row.value is None:
                    self.rows.pop((row.table, row.key), None)
                else:
                    self.rows[row.table, row.key] = row.value
            self._may_crash()
            for action in self.session.drain():
                answer = self._act(action)
                if answer is not None:
                    answers.append(answer)
                self._may_crash()
            if not answers:
                return
            answers.popleft()()

    def _may_crash(self) -> None:
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                self.crash_after = None
                raise CrashError

    def _act(self, action: Dispatch | Fetch | Announce) -> Callable[[], None] | None:
        """Do one action, and return what the session is to be told of it."""
        session, net = self.session, self.net
        if isinstance(action, Announce):
            self.events.append(action.event)
            if not self.takes:
                return None
            self.taken = action.event.position
            position = self.taken
            return lambda: session.taken(position)
        if isinstance(action, Fetch):
            name, hint = action.entry.message_id, action.entry.retrieval_hint or b""

            def fetched() -> None:
                found = net.store.get(hint)
                if found is not None:
                    session.receive(found, hint, b"", net.now, net.now_ms, fetched=True)
                session.fetched(name, net.now)

            return fetched
        refused = self.refuse(action)
        if refused is not None:
            text, forever = refused
            return lambda: session.dispatch_failed(
                action.ticket, text, net.now, net.now_ms, refused=forever
            )
        self.dispatched.append((net.now, action))
        hint = net.broadcast(action.payload, action.proof)
        return lambda: session.dispatched(action.ticket, hint, net.now, net.now_ms)

    # What came out

    def received(self) -> list[tuple[str, bytes]]:
        """Return senders and payloads in order."""
        return [
            (one.sender_id, one.message) for one in self.events if isinstance(one, MessageReceived)
        ]

    def told(self, *kinds: type[ChannelEvent]) -> list[Any]:
        """Return events of some kinds in order."""
        return [one for one in self.events if isinstance(one, kinds)]


class SessionNet:
    """Everybody hears everybody, or not."""

    def __init__(
        self,
        names: Iterable[str],
        *,
        loss: float = 0.0,
        repeat: float = 0.0,
        corrupt: float = 0.0,
        delay_s: tuple[float, float] = (0.01, 0.02),
        stored: bool = False,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        """Begin at a fixed time; the settings go to every member."""
        self.seed = seed
        self.rng = random.Random(seed)
        self.loss, self.repeat, self.corrupt = loss, repeat, corrupt
        self.delay_s, self.stored = delay_s, stored
        self.now = 100.0
        self.skew_ms = 0
        self.flying: list[tuple[float, int, str, bytes, bytes, bytes]] = []
        self.count = 0
        self.store: dict[bytes, bytes] = {}
        self.members: dict[str, Member] = {}
        for name in names:
            self.members[name] = Member(self, name, **settings)

    @property
    def now_ms(self) -> int:
        """Unix milliseconds."""
        return EPOCH_MS + int(self.now * 1000) + self.skew_ms

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def broadcast(self, payload: bytes, proof: bytes = b"") -> bytes:
        """Put a payload on its way to everybody; return its hint."""
        self.count += 1
        hint = self.count.to_bytes(4, "big") if self.stored else b""
        if self.stored:
            self.store[hint] = payload
        for name in self.members:
            if self.rng.random() < self.loss:
                continue
            for _ in range(2 if self.rng.random() < self.repeat else 1):
                arriving = payload
                if self.rng.random() < self.corrupt:
                    data = bytearray(payload)
                    data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
                    arriving = bytes(data)
                self.count += 1
                at = self.now + self.rng.uniform(*self.delay_s)
                heapq.heappush(self.flying, (at, self.count, name, arriving, hint, proof))
        return hint

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass, or stop as soon as ``until`` holds; return whether it does."""
        end = self.now + seconds
        while not until():
            times = [one.session.wake_at() for one in self.members.values()]
            if self.flying:
                times.append(self.flying[0][0])
            at = min(times, default=end)
            if at > end:
                self.now = max(self.now, end)
                return until()
            self.now = max(self.now, at)
            while self.flying and self.flying[0][0] <= self.now:
                _, _, name, payload, hint, proof = heapq.heappop(self.flying)
                self.members[name].take(payload, hint, proof)
            for one in self.members.values():
                one.wake()
        return True


def quick(**changes: Any) -> SdsConfig:
    """Return the small configuration with changes."""
    return replace(SDS, **changes)
