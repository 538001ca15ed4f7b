"""Rate limits and reputation as arithmetic over one monotonic clock.

Theory of operation
-------------------
*Decides* whether one more message of so many bytes fits the four layers: peer, global, namespace,
sender. *Does not know* messages, verdicts or threads; one caller at a time.
*Buckets*: each layer has a bucket of messages and one of bytes, full at first, of three seconds'
worth; both are looked at, then both are taken, so a message that fails on bytes costs no message
token (S9). A message larger than a bucket never fits.
*Order* (G20): ``admit_peer`` before anything is parsed; ``peek`` before the signature, which takes
nothing; ``charge`` after it, so that nobody spends another sender's tokens by claiming its key.
*Reputation*: 0.5 for a stranger, each event pulls it to 0.5 by 1 % and adds its impact, and time
pulls it to 0.5 too (S8). Above 0.8 the sender's limit doubles, below 0.3 it halves.
*Bounds*: ``keys_max`` buckets a layer. A bucket is dropped only when it is full again, and then
nothing is lost: a fresh one would be the same. While the oldest are not full, newcomers share a
few overflow buckets, chosen by a hash of the key; who leaves one for a bucket of its own takes
along what the shared one holds, no more. So filling the table with fresh keys slows the newcomers
and resets nobody. Reputations are bounded apart; of the oldest few the one nearest to 0.5 is
dropped, and falling back to 0.5 is what a fresh key gives to anyone at no cost.

Source: LP-6422; decisions G20, S1, S8, S9.
"""

from __future__ import annotations

import math
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from luxrelay.errors import BusArgumentError

UNLIMITED: Final = float("inf")
"""A rate that limits nothing."""
_LOOK: Final = 8
"""How many of the oldest entries are looked at for one to drop."""


class Layer(Enum):
    """What a message was measured against."""

    PEER = "peer"
    GLOBAL = "global"
    NAMESPACE = "namespace"
    SENDER = "sender"


_WHOSE: Final = {
    Layer.PEER: "the peer's rate",
    Layer.GLOBAL: "this node's rate",
    Layer.NAMESPACE: "the namespace's rate",
    Layer.SENDER: "the sender's rate",
}


class Shortfall(NamedTuple):
    """What a message was refused by, how much that allows and when a message fits again."""

    layer: Layer
    """Whose rate it is."""
    per_s: float
    """What it allows, in ``unit`` a second."""
    burst: float
    """What it allows at once after a silence, in ``unit``."""
    unit: str
    """``messages`` or ``bytes``."""
    wait_s: float
    """Seconds until the same message fits, when no other takes the place; infinite for never."""

    @property
    def retry_after_ms(self) -> int:
        """Whole milliseconds until trying again makes sense, 1 at least; 0 when it never does."""
        return 0 if math.isinf(self.wait_s) else max(1, math.ceil(self.wait_s * 1000))

    def words(self) -> str:
        """Return it for people: whose rate, how much and when again."""
        allowed = f"{self.per_s:,g} {self.unit}/s, burst {self.burst:,g}"
        again = f"again in {self.retry_after_ms:,} ms" if self.retry_after_ms else "it never fits"
        return f"{_WHOSE[self.layer]} is used up: {allowed}; {again}"


@dataclass(frozen=True, slots=True)
class Rate:
    """How much may pass."""

    messages_per_s: float
    """Messages a second."""
    bytes_per_s: float = UNLIMITED
    """Bytes a second."""
    burst_messages: float | None = None
    """Size of the message bucket; three seconds' worth when None."""
    burst_bytes: float | None = None
    """Size of the byte bucket; three seconds' worth when None (S1)."""

    def __post_init__(self) -> None:
        """Refuse rates below zero."""
        given = (self.messages_per_s, self.bytes_per_s, self.burst_messages, self.burst_bytes)
        if any(value is not None and not value >= 0 for value in given):
            raise BusArgumentError("a rate is zero or more", where="Rate")

    def sizes(self, factor: float, scale: float) -> tuple[float, float]:
        """Return the sizes of the message and the byte bucket."""
        messages, size = self.burst_messages, self.burst_bytes
        return (
            (self.messages_per_s * factor if messages is None else messages) * scale,
            (self.bytes_per_s * factor if size is None else size) * scale,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitConfig:
    """The four layers and their bounds; defaults of LP-6422, which names no byte rates."""

    peer: Rate = Rate(1000)
    """One peer's messages."""
    everything: Rate = Rate(100_000)
    """All messages of this node."""
    namespace: Rate = Rate(100)
    """One namespace, where its policy does not say otherwise."""
    sender: Rate = Rate(10)
    """One sender of neutral reputation."""
    burst_factor: float = 3.0
    """Bucket size in seconds of its rate."""
    keys_max: int = 65_536
    """Most buckets of one layer, and most reputations."""
    overflow_buckets: int = 64
    """Buckets that newcomers share while a layer is full."""
    good_above: float = 0.8
    """Reputation above which a sender's limit doubles."""
    bad_below: float = 0.3
    """Reputation below which a sender's limit halves."""
    event_decay: float = 0.99
    """What one event leaves of the distance to 0.5."""
    half_life_s: float = 600.0
    """Time in which half of the distance to 0.5 is forgotten, seconds."""

    def __post_init__(self) -> None:
        """Refuse bounds that hold nothing."""
        if self.keys_max < 1 or self.overflow_buckets < 1:
            raise BusArgumentError("bounds begin at 1", where="LimitConfig")
        if not self.half_life_s > 0 or not self.burst_factor > 0:
            raise BusArgumentError("times are above zero", where="LimitConfig")


NEUTRAL: Final = 0.5
"""A stranger's reputation (S8)."""
IMPACT_ACCEPTED: Final = 0.004
"""What an accepted message adds: a steady sender ends at 0.9."""
IMPACT_INVALID: Final = -0.1
"""What a rejected message adds."""


class TokenBucket:
    """Messages and bytes that may pass now; time that runs backwards adds nothing."""

    __slots__ = ("_bytes", "_messages", "_updated")

    def __init__(self, sizes: tuple[float, float], now: float) -> None:
        """Start full."""
        self._messages, self._bytes = sizes
        self._updated = now

    def refill(self, rate: Rate, sizes: tuple[float, float], scale: float, now: float) -> None:
        """Add what the time since the last call brings, up to ``sizes``."""
        elapsed = max(0.0, now - self._updated)
        self._updated = max(now, self._updated)
        # Unlimited buckets hold inf and stay there: inf * 0.0 would be no number.
        grown_messages = elapsed and rate.messages_per_s * scale * elapsed
        grown_bytes = elapsed and rate.bytes_per_s * scale * elapsed
        self._messages = min(sizes[0], self._messages + grown_messages)
        self._bytes = min(sizes[1], self._bytes + grown_bytes)

    def holds(self, size: int) -> bool:
        """Return True when one message of ``size`` bytes fits both buckets."""
        return self._messages >= 1 and self._bytes >= size

    def short(self, size: int) -> tuple[float, float]:
        """Return the messages and the bytes that one message of ``size`` bytes lacks."""
        return max(0.0, 1 - self._messages), max(0.0, size - self._bytes)

    def take(self, size: int) -> None:
        """Take one message of ``size`` bytes, which `holds` has allowed."""
        self._messages -= 1
        self._bytes -= size

    def give_back(self, size: int, sizes: tuple[float, float]) -> None:
        """Put ``size`` bytes back, up to ``sizes``."""
        self._bytes = min(sizes[1], self._bytes + size)

    def copy(self, sizes: tuple[float, float]) -> TokenBucket:
        """Return a bucket of ``sizes`` that holds what this one holds."""
        other = TokenBucket(sizes, self._updated)
        other._messages = min(sizes[0], self._messages)
        other._bytes = min(sizes[1], self._bytes)
        return other

    def full(self, sizes: tuple[float, float]) -> bool:
        """Return True when nothing is missing, so that a fresh bucket would be the same."""
        return self._messages >= sizes[0] and self._bytes >= sizes[1]


def _wait_s(lacking: float, needed: float, holds: float, per_s: float) -> float:
    """Return the seconds until a bucket that ``holds`` so much at most has what it lacks."""
    if not lacking:
        return 0.0
    return lacking / per_s if needed <= holds and per_s > 0 else math.inf


class _Table:
    """The buckets of one layer, oldest use first."""

    def __init__(self, config: LimitConfig) -> None:
        self._config = config
        self._rows: OrderedDict[bytes, tuple[TokenBucket, Rate, float]] = OrderedDict()
        self._overflow: dict[int, tuple[TokenBucket, Rate, float]] = {}

    def holds(self, key: bytes, rate: Rate, scale: float, size: int, now: float) -> bool:
        sizes = rate.sizes(self._config.burst_factor, scale)
        row = self._rows.get(key) or self._shared(key)
        if row is None:
            return sizes[0] >= 1 and sizes[1] >= size
        row[0].refill(rate, sizes, scale, now)
        return row[0].holds(size)

    def lack(
        self, key: bytes, rate: Rate, scale: float, size: int, now: float
    ) -> tuple[float, float, str, float]:
        """Return per second, burst, unit and wait of the bucket that refuses for longer."""
        sizes = rate.sizes(self._config.burst_factor, scale)
        row = self._rows.get(key) or self._shared(key)
        bucket = TokenBucket(sizes, now) if row is None else row[0]
        bucket.refill(rate, sizes, scale, now)
        messages, size_bytes = bucket.short(size)
        per_s = rate.messages_per_s * scale, rate.bytes_per_s * scale
        of_messages = _wait_s(messages, 1, sizes[0], per_s[0])
        of_bytes = _wait_s(size_bytes, size, sizes[1], per_s[1])
        if of_bytes > of_messages:
            return per_s[1], sizes[1], "bytes", of_bytes
        return per_s[0], sizes[0], "messages", of_messages

    def take(self, key: bytes, rate: Rate, scale: float, size: int, now: float) -> None:
        row = self._rows.get(key)
        if row is not None:
            row[0].take(size)
            self._rows[key] = (row[0], rate, scale)
            self._rows.move_to_end(key)
            return
        shared = self._shared(key)
        sizes = rate.sizes(self._config.burst_factor, scale)
        room = len(self._rows) < self._config.keys_max or self._make_room(now)
        if shared is not None and not room:
            shared[0].take(size)
            return
        fresh = TokenBucket(sizes, now) if shared is None else shared[0].copy(sizes)
        fresh.take(size)
        if room:
            self._rows[key] = (fresh, rate, scale)
        else:
            self._overflow[self._slot(key)] = (fresh, rate, scale)

    def give_back(self, key: bytes, rate: Rate, size: int) -> None:
        row = self._rows.get(key) or self._shared(key)
        if row is not None:  # without a row the bucket is full
            row[0].give_back(size, rate.sizes(self._config.burst_factor, 1.0))

    def _shared(self, key: bytes) -> tuple[TokenBucket, Rate, float] | None:
        if len(self._rows) < self._config.keys_max:
            return None
        return self._overflow.get(self._slot(key))

    def _slot(self, key: bytes) -> int:
        return zlib.crc32(key) % self._config.overflow_buckets

    def _make_room(self, now: float) -> bool:
        for key in list(islice(self._rows, _LOOK)):
            bucket, rate, scale = self._rows[key]
            sizes = rate.sizes(self._config.burst_factor, scale)
            bucket.refill(rate, sizes, scale, now)
            if bucket.full(sizes):
                del self._rows[key]
                return True
        return False

    def __len__(self) -> int:
        return len(self._rows)


class RateLimiter:
    """The four layers."""

    def __init__(self, config: LimitConfig | None = None) -> None:
        """Start with every bucket full and every sender a stranger."""
        self._config = config or LimitConfig()
        self._tables = {layer: _Table(self._config) for layer in Layer}
        self.reputation = Reputation(self._config)
        """Of senders; the caller reports events to it."""

    def admit_peer(self, peer: bytes, size: int, now: float) -> bool:
        """Take one message from a peer's bucket, or say that it is empty (G20)."""
        table, rate = self._tables[Layer.PEER], self._config.peer
        if not table.holds(peer, rate, 1.0, size, now):
            return False
        table.take(peer, rate, 1.0, size, now)
        return True

    def give_back_peer(self, peer: bytes, size: int) -> None:
        """Return bytes that `admit_peer` took and nobody sent; the message stays counted."""
        self._tables[Layer.PEER].give_back(peer, self._config.peer, size)

    def peek(
        self,
        namespace_id: bytes,
        sender: bytes,
        size: int,
        now: float,
        *,
        namespace_rate: Rate | None = None,
    ) -> Layer | None:
        """Return the first layer that would refuse the message, None when all would take it.

        Args:
            namespace_id: The namespace, for a lane its parent.
            sender: The senderPubKey field or its address.
            size: Bytes of header and blob.
            now: Monotonic seconds.
            namespace_rate: What the namespace's policy says.

        """
        for layer, key, rate, scale in self._layers(namespace_id, sender, namespace_rate, now):
            if not self._tables[layer].holds(key, rate, scale, size, now):
                return layer
        return None

    def charge(
        self,
        namespace_id: bytes,
        sender: bytes,
        size: int,
        now: float,
        *,
        namespace_rate: Rate | None = None,
    ) -> Layer | None:
        """Take the message from every layer, or from none and return the one that refuses."""
        refused = self.peek(namespace_id, sender, size, now, namespace_rate=namespace_rate)
        if refused is not None:
            return refused
        for layer, key, rate, scale in self._layers(namespace_id, sender, namespace_rate, now):
            self._tables[layer].take(key, rate, scale, size, now)
        return None

    def shortfall(
        self,
        namespace_id: bytes,
        sender: bytes,
        size: int,
        now: float,
        *,
        namespace_rate: Rate | None = None,
    ) -> Shortfall | None:
        """Return what refuses the message for longest, None when nothing does; as for `peek`."""
        found = [
            Shortfall(layer, *self._tables[layer].lack(key, rate, scale, size, now))
            for layer, key, rate, scale in self._layers(namespace_id, sender, namespace_rate, now)
        ]
        worst = max(found, key=lambda each: each.wait_s)
        return worst if worst.wait_s else None

    def peer_shortfall(self, peer: bytes, size: int, now: float) -> Shortfall:
        """Return what `admit_peer` refuses by."""
        lack = self._tables[Layer.PEER].lack(peer, self._config.peer, 1.0, size, now)
        return Shortfall(Layer.PEER, *lack)

    def tracked(self, layer: Layer) -> int:
        """Return how many keys have a bucket of their own."""
        return len(self._tables[layer])

    def _layers(
        self, namespace_id: bytes, sender: bytes, namespace_rate: Rate | None, now: float
    ) -> tuple[tuple[Layer, bytes, Rate, float], ...]:
        scale = self.reputation.scale(sender, now)
        return (
            (Layer.GLOBAL, b"", self._config.everything, 1.0),
            (Layer.NAMESPACE, namespace_id, namespace_rate or self._config.namespace, 1.0),
            (Layer.SENDER, sender, self._config.sender, scale),
        )


class Reputation:
    """What senders have earned, from 0 to 1 (S8)."""

    def __init__(self, config: LimitConfig | None = None) -> None:
        """Start with strangers only."""
        self._config = config or LimitConfig()
        self._rows: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def value(self, sender: bytes, now: float) -> float:
        """Return the sender's reputation at ``now``."""
        row = self._rows.get(sender)
        if row is None:
            return NEUTRAL
        distance, updated = row[0] - NEUTRAL, row[1]
        halves = max(0.0, now - updated) / self._config.half_life_s
        return NEUTRAL + float(distance * 0.5**halves)

    def record(self, sender: bytes, impact: float, now: float) -> float:
        """Return the sender's reputation after an event; it stays between 0 and 1."""
        distance = self.value(sender, now) - NEUTRAL
        changed = NEUTRAL + distance * self._config.event_decay + impact
        value = min(1.0, max(0.0, changed))
        if sender not in self._rows and len(self._rows) >= self._config.keys_max:
            oldest = islice(self._rows, _LOOK)
            del self._rows[min(oldest, key=lambda key: abs(self.value(key, now) - NEUTRAL))]
        self._rows[sender] = (value, now)
        self._rows.move_to_end(sender)
        return value

    def scale(self, sender: bytes, now: float) -> float:
        """Return what the sender's limit is multiplied by: 2, 1 or a half."""
        value = self.value(sender, now)
        if value > self._config.good_above:
            return 2.0
        return 0.5 if value < self._config.bad_below else 1.0

    def __len__(self) -> int:
        return len(self._rows)
