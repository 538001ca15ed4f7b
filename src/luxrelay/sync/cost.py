"""`CostMeter`: CPU budgets of callers, over all doors together.

Theory of operation
===================

*Decides*: whether a piece of work may begin for a caller, or in how many seconds it may.

*Does not know*: doors, threads, clocks. It is told who pays, how much, and the time.

*Units*: microseconds of CPU time. `Price` is that of one machine; the meter that is asked charges
by the pace of its own (`rpc/metering.py`), so that a share of a core is one. A door takes an
upper bound **before** the work and gives back, or owes, the difference after it: what was measured
decides where it can be measured, `Price` where it cannot.

*Payers*: a proven token or certificate pays from its own bucket. Whoever proves nothing that costs
something to have (a peer identity is free) pays from the bucket of its address (IPv6: /64), from
the one of its /16 (IPv6: /48), and from the one of all strangers together.

*Rule*: work may begin while none of the payer's buckets is in debt. A bucket is therefore overdrawn
by one piece of work at most for each that runs at once, and a piece of any size is possible.

*Inputs and what they may cause*: `take` a wait; `settle` nothing.

*Timers*: none.

*Bounds*: `CostConfig`; the payer that has been idle longest is forgotten.

*What else to change when you change this*: ``rpc/metering.py`` (the lock, the clock, the pace),
``bench/cost_of_strangers.py``, which measures what the prices leave unpaid.

Source: decisions P33, P34; architecture, rule 4.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from ipaddress import IPv4Address, ip_address
from typing import Final

from luxrelay.errors import SyncArgumentError
from luxrelay.sync.messages import PublishReceipt

_EVERYBODY: Final = "strangers"
UNKNOWN: Final = "?"
"""Who pays for whatever is no address."""


class Price(IntEnum):
    """What work costs before it is measured, microseconds of CPU time."""

    CALL = 1_200
    """A gRPC call or an HTTP request without what it reads; on the way in half of it is gRPC's."""
    REQUEST = 1_000
    """A request on a stream that is open, without what is in it."""
    CONNECTION = 1_000
    """A connection that is handed on to gRPC, which greets it."""
    HANDSHAKE = 1_500
    """A handshake of TLS, beside the connection."""
    TURN = 200
    """A read of the store, before it is known how much it finds."""
    RANGE = 12
    """A range of a reconciliation message."""
    SET = 5_000
    """The set that a reconciliation compares, before its size is known."""
    FRAME = 15
    """A WebSocket frame; an empty one costs as much."""
    PONG = 120
    """An answer to a ping, beside its frame."""
    ROW = 15
    """A message that is read for a subscriber."""
    JSON = 250
    """A kibibyte of JSON that is read, of the densest."""
    SIGNATURE = 150
    """A published message, until it is known to be good: its signature is verified."""
    REFUSED = 400
    """A gRPC call that is refused, or was cancelled while its caller owed."""
    SENT = 60
    """A kibibyte that a stranger sends to gRPC, of its smallest frames, before there is a call."""
    PIECE = 50
    """The least that a read of what a stranger sends to gRPC costs, however little comes."""
    READ = 140
    """A read of what a client sends to the gateway, however little comes."""
    MEGABYTE = 6_000
    """A mebibyte sent or received, beside what is in it."""


def price_of_bytes(size: int) -> float:
    """Return what ``size`` bytes cost on their way, microseconds."""
    return size * Price.MEGABYTE / (1 << 20)


def price_of_sent(size: int) -> float:
    """Return what ``size`` bytes cost of those that a stranger sends to gRPC, microseconds."""
    return size * Price.SENT / 1024


def price_of_piece(size: int) -> float:
    """Return what a read costs of what a stranger sends to gRPC, microseconds.

    A read may hold many requests: who gives back for each of them gives `price_of_sent`, which
    never comes to more.
    """
    return max(float(Price.PIECE), price_of_sent(size)) if size else 0.0


def price_of_refused(receipts: Iterable[PublishReceipt]) -> float:
    """Return what published messages cost that were not taken, microseconds."""
    return float(sum(each.verdict != 0 for each in receipts) * Price.SIGNATURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostConfig:
    """How much CPU time callers may cost; a rate of 0 means no limit."""

    stranger_us_per_s: float = 40_000.0
    """Of one address without a token, microseconds a second: 4 % of one core."""
    stranger_burst_us: float = 1_000_000.0
    """What such an address may cost at once after it was quiet, microseconds."""
    known_us_per_s: float = 1_000_000.0
    """Of one token or proven certificate, microseconds a second."""
    group_factor: float = 4.0
    """What a /16 (IPv6: /48) may cost, as a multiple of one address."""
    strangers_factor: float = 10.0
    """What all strangers may cost together, as a multiple of one address."""
    payers_max: int = 4_096
    """Payers remembered; the one idle longest is forgotten."""
    wait_max_s: float = 2.0
    """A caller that would have to wait longer is refused."""
    waiting_max: int = 32
    """Calls that wait for their payer at once; further ones are refused."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for each in fields(self):
            low = 0.0 if each.name.endswith("_per_s") or each.name == "waiting_max" else 1e-9
            if not getattr(self, each.name) >= low:
                raise SyncArgumentError(f"{each.name} must be positive", where="CostConfig")


@dataclass(frozen=True, slots=True)
class Payer:
    """Whom work is charged to."""

    name: str
    """Token, key, or address."""
    known: bool = False
    """It has proven a token or a certificate."""

    @classmethod
    def at(cls, host: str) -> Payer:
        """Return the payer of an address; whatever is no address pays together."""
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return cls(UNKNOWN)
        mapped = getattr(address, "ipv4_mapped", None) or address
        if isinstance(mapped, IPv4Address):
            return cls(str(mapped))
        return cls(f"{mapped.exploded[:19]}::/64")

    @property
    def group(self) -> str:
        """The /16 or /48 of an address."""
        if ":" in self.name:
            return f"{self.name[:14]}::/48"
        return ".".join(self.name.split(".")[:2]) + "/16"


@dataclass(slots=True)
class Budget:
    """A rate with a burst, in debt at most as far as its user lets it."""

    rate: float
    """Units a second; 0 for no limit."""
    burst: float
    """Units that may be used at once."""
    level: float = 0.0
    at: float = 0.0

    @classmethod
    def full(cls, rate: float, burst_s: float, now: float) -> Budget:
        """Return a budget with its whole burst."""
        return cls(rate, rate * burst_s, rate * burst_s, now)

    def take(self, amount: float, now: float) -> None:
        """Use ``amount``, on credit where there is not enough."""
        if self.rate:
            self._refill(now)
            self.level -= amount

    def wait(self, now: float) -> float:
        """Return the seconds until nothing is owed."""
        if not self.rate:
            return 0.0
        self._refill(now)
        return max(0.0, -self.level / self.rate)

    def owed(self, now: float) -> float:
        """Return what is owed."""
        return self.wait(now) * self.rate

    def _refill(self, now: float) -> None:
        if now > self.at:
            self.level = min(self.burst, self.level + (now - self.at) * self.rate)
            self.at = now


class CostMeter:
    """Buckets of CPU time; see the theory above."""

    def __init__(self, config: CostConfig) -> None:
        self.config = config
        self._buckets: OrderedDict[str, Budget] = OrderedDict()
        self.spent_us = 0.0
        """What strangers have cost, microseconds; grows, and is corrected by `settle`."""

    def take(self, payer: Payer, cost_us: float, now: float) -> float:
        """Charge ``cost_us`` and return 0, or return the seconds to wait and charge nothing."""
        buckets = self._of(payer, now)
        wait = max((each.wait(now) for each in buckets), default=0.0)
        if wait > 0:
            return wait
        self._charge(payer, buckets, cost_us, now)
        return 0.0

    def settle(self, payer: Payer, more_us: float, now: float) -> None:
        """Charge what work has cost beyond what was taken; give back what is negative."""
        self._charge(payer, self._of(payer, now), more_us, now)

    def owed_us(self, payer: Payer, now: float) -> float:
        """Return what the payer owes itself, microseconds."""
        return max((each.owed(now) for each in self._of(payer, now)[:1]), default=0.0)

    @property
    def payers(self) -> int:
        """Buckets that are remembered."""
        return len(self._buckets)

    def _charge(self, payer: Payer, buckets: list[Budget], cost_us: float, now: float) -> None:
        for each in buckets:
            each.take(cost_us, now)
        if not payer.known:
            self.spent_us += cost_us

    def _of(self, payer: Payer, now: float) -> list[Budget]:
        config = self.config
        if payer.known:
            rate = config.known_us_per_s
            return [self._bucket(payer.name, rate, rate, now)] if rate else []
        rate, burst = config.stranger_us_per_s, config.stranger_burst_us
        if not rate:
            return []
        found = []
        for name, factor in (
            (payer.name, 1.0),
            (payer.group, config.group_factor),
            (_EVERYBODY, config.strangers_factor),
        ):
            found.append(self._bucket(name, rate * factor, burst * factor, now))
        return found

    def _bucket(self, name: str, rate: float, burst: float, now: float) -> Budget:
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Budget(rate, burst, burst, now)
            if len(self._buckets) > self.config.payers_max:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        return bucket
