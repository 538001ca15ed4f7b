"""`SharedMeter`: the one meter of cost of a node, for all its doors and threads.

Work is priced before it is done (`Price`), by the CPU time that one machine took for it. Another
machine, or the same one at a lower clock rate, takes another time, so that by prices alone a caller
would have another share of a core there. `MachinePace` says how many times as long: a piece of work
like that of the doors (Python, hashes, calls of the system) is timed now and then, in CPU time, so
that what else runs changes little.

Source: decisions P33, P34; `luxrelay.sync.cost`.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from hashlib import sha3_256
from statistics import median
from typing import Final

from luxrelay.sync.cost import UNKNOWN, CostConfig, CostMeter, Payer, Price

_LOG: Final = logging.getLogger("luxrelay.sync")
_SAID_EVERY_S: Final = 60.0
DEBT_MAX_US: Final = 1_000_000.0
"""Debt above which refusals are charged no more, so that nobody is shut out for minutes."""
PIECE_US: Final = 500.0
"""CPU time of the piece of work on the machine of the prices, microseconds."""
PACE_MIN: Final = 1.0
"""Pace of the fastest machine: on none are prices lower than they were measured."""
PACE_MAX: Final = 16.0
"""Pace of the slowest one."""
SAMPLES: Final = 9
"""Samples of which the median counts; so many are taken at first, some milliseconds in all."""
EVERY_S: Final = 10.0
"""Seconds between two further samples, each a millisecond or two."""
PAYER: ContextVar[Payer | None] = ContextVar("luxrelay_payer", default=None)
"""Whom the work of the task or thread that runs is charged to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterStats:
    """What the meter saw; `refused` and `waited` only grow."""

    refused: int = 0
    """Pieces of work that were refused because their caller had cost too much."""
    waited: int = 0
    """Pieces of work that had to wait."""
    strangers_us: float = 0.0
    """CPU time that callers without a token were charged, microseconds."""
    payers: int = 0
    """Callers that are remembered now."""
    pace: float = 1.0
    """How many times as long this machine takes as the one on which prices were measured."""


class MachinePace:
    """The pace of this machine; any thread may ask.

    Args:
        clock: Monotonic seconds.
        cpu_clock: CPU time of the running thread, seconds.
        pair: Two sockets that are connected.

    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
        pair: Callable[[], tuple[socket.socket, socket.socket]] = socket.socketpair,
    ) -> None:
        self._pair = pair
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._took_us: deque[float] = deque(maxlen=SAMPLES)
        self._due = float("-inf")
        self._pace = 1.0
        self._looking = threading.Lock()

    def __call__(self) -> float:
        """Return the pace, 1 for that of the machine of the prices; looks when it is time."""
        if self._clock() >= self._due and self._looking.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._looking.release()
        return self._pace

    def _look(self) -> None:
        self._due = self._clock() + EVERY_S
        try:
            near, far = self._pair()
        except OSError:
            return  # a flood may have taken every descriptor; who accepts connections asks here
        with near, far:
            for _ in range(1 if self._took_us else SAMPLES):
                began = self._cpu_clock()
                _piece_of_work(near, far)
                self._took_us.append((self._cpu_clock() - began) * 1e6)
        self._pace = min(max(median(self._took_us) / PIECE_US, PACE_MIN), PACE_MAX)


@cache
def pace_here() -> MachinePace:
    """Return the pace of this machine, one for all meters of a process."""
    return MachinePace()


def _piece_of_work(near: socket.socket, far: socket.socket) -> None:
    seen: dict[bytes, int] = {}
    for number in range(1_000):
        key = b"%d" % (number % 64)
        seen[key] = seen.get(key, 0) + len(key)
    for _ in range(50):
        sha3_256(bytes(200)).digest()
    for _ in range(100):
        near.send(b".")
        far.recv(1)


class SharedMeter:
    """Lock and clock around a `CostMeter`; any thread, and the loop."""

    def __init__(
        self,
        config: CostConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        known_hosts: Iterable[str] = (),
        pace: Callable[[], float] = lambda: 1.0,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Start with full buckets.

        Args:
            config: What callers may cost on this machine.
            clock: Monotonic seconds.
            known_hosts: Whoever comes from these addresses pays as one with a token.
            pace: How many times as long this machine takes as the one of the prices.
            cpu_clock: CPU time of the running thread, seconds.

        """
        self.config = config or CostConfig()
        self._meter = CostMeter(self.config)
        self._clock = clock
        self._cpu_clock = cpu_clock
        self.pace = pace
        """How many times as long this machine takes as the one on which prices were measured."""
        self._known = {Payer.at(host).name for host in known_hosts} - {UNKNOWN}
        self._lock = threading.Lock()
        self._refused = self._waited = 0
        self._waiting: Counter[str] = Counter()
        """Threads that wait in `wait_turn`, by who pays."""
        self._say_at = float("-inf")

    def take(self, payer: Payer, cost_us: float) -> float:
        """Charge before the work; return the seconds after which it may begin, 0 for now."""
        cost_us *= self.pace()
        with self._lock:
            return self._meter.take(self._who(payer), cost_us, self._clock())

    def settle(self, payer: Payer, more_us: float) -> None:
        """Charge what work has cost beyond what was taken; negative to give back."""
        more_us *= self.pace()
        with self._lock:
            self._meter.settle(self._who(payer), more_us, self._clock())

    def wait_turn(self, payer: Payer, cost_us: float, ended: threading.Event) -> str:
        """Charge before the work, after waiting for it; return why not, or nothing.

        Called by the thread that does the work. A refused caller is held for a moment first, as
        far as there are places to wait, so that asking again at once costs little.
        """
        config = self.config
        until = self._clock() + config.wait_max_s
        while True:
            wait = self.take(payer, cost_us)
            if not wait:
                return ""
            if ended.is_set():
                self.charge_refused(payer)
                return ""
            left = until - self._clock()
            with self._lock:
                full = left <= 0 or sum(self._waiting.values()) >= config.waiting_max
                before = self._waiting[payer.name]
                if not full:
                    self._waiting[payer.name] += 1
                    self._waited += 1
            if full:  # those who wait now come first
                ahead_us = before * cost_us * self.pace()
                return self.refuse(payer, wait + ahead_us / max(1.0, self._rate(payer)))
            try:
                ended.wait(min(wait, left))
            finally:
                with self._lock:
                    self._waiting[payer.name] -= 1
                    if not self._waiting[payer.name]:
                        del self._waiting[payer.name]

    def refuse(self, payer: Payer, wait_s: float) -> str:
        """Count and charge a refusal; return its text, with numbers and when to ask again."""
        self.charge_refused(payer)
        rate, payer = self._rate(payer), self._who(payer)
        named = payer.known and payer.name not in self._known
        who = "this token" if named else f"the address {payer.name}"
        with self._lock:
            self._refused += 1
            now = self._clock()
            say = now >= self._say_at
            if say:
                self._say_at = now + _SAID_EVERY_S
        if say:
            _LOG.warning("refused: %s has cost more than %g ms a second", who, rate / 1000)
        return (
            f"{who} costs more than {rate / 1000:g} ms of CPU time a second; "
            f"ask again in {max(0.1, wait_s):.1f} s, or with a token"
        )

    def _rate(self, payer: Payer) -> float:
        known = self._who(payer).known
        return self.config.known_us_per_s if known else self.config.stranger_us_per_s

    def charge_refused(self, payer: Payer, cost_us: float = Price.REFUSED) -> None:
        """Charge what it costs to say no, while the caller owes less than it can soon pay."""
        cost_us *= self.pace()
        with self._lock:
            who, now = self._who(payer), self._clock()
            if self._meter.owed_us(who, now) < DEBT_MAX_US:
                self._meter.settle(who, cost_us, now)

    @contextmanager
    def measured(self, payer: Payer, taken_us: float) -> Iterator[None]:
        """Settle what the thread spends inside against what was taken for it."""
        began = self._cpu_clock()
        try:
            yield
        finally:
            self.settle(payer, self.priced_us(self._cpu_clock() - began) - taken_us)

    def priced_us(self, cpu_s: float) -> float:
        """Return CPU time of this machine, seconds, as that of the prices, microseconds."""
        return max(0.0, cpu_s) * 1e6 / self.pace()

    def limits(self, payer: Payer) -> bool:
        """Whether the payer is a stranger, and strangers have a limit."""
        return bool(self.config.stranger_us_per_s) and not self._who(payer).known

    def _who(self, payer: Payer) -> Payer:
        return Payer(payer.name, known=True) if payer.name in self._known else payer

    def stats(self) -> MeterStats:
        """Return the counters as they stand."""
        with self._lock:
            return MeterStats(
                refused=self._refused,
                waited=self._waited,
                strangers_us=self._meter.spent_us,
                payers=self._meter.payers,
                pace=self.pace(),
            )
