"""`Arrivals`: which connections may stand at a port that others listen behind. Pure.

Theory of operation
===================

*Decides*: whether a connection has a place, which one gives its place up for it, and when it may be
handed on.

*Does not know*: sockets, threads, clocks.

*Places*: one network (an IPv4 /16, an IPv6 /32) has a quarter of them, a private one half, the
loopback all. When there is no room, one of the network that has its share goes, otherwise of the
largest; there of the address that has most, and of its connections the one that has proven least
(`Rank`), the oldest of these. A connection that has proven a token goes for nobody.

*Pace*: an address has so many connections a second that are handed on, counted when the first byte
has come: one that says nothing costs nothing behind the port. Those above the rate wait in their
places, and are refused when they would have to wait too long.

*Timers*: none; the caller asks `pause` and heeds it.

*Bounds*: `ArrivalsConfig`.

Source: LP-6420 §1.3, LP-6422 §6; decisions G21, G23, P34.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Final

from luxrelay.errors import SyncArgumentError
from luxrelay.gossip import locate
from luxrelay.sync.cost import Budget

SHARE: Final = 4
"""One network has this part of the places."""
PRIVATE_SHARE: Final = 2
"""One private network has this part of them."""


class Rank(IntEnum):
    """What a connection has shown, the least first."""

    SILENT = 0
    """No byte has come."""
    SPOKE = 1
    """Bytes have come, and no call."""
    CALLED = 2
    """A call was let in."""
    SERVED = 3
    """A call that was let in is being answered now."""
    KNOWN = 4
    """A call with a token, or of a proven certificate, was let in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalsConfig:
    """How many connections there may be, and how fast they may come."""

    places: int = 256
    """Connections at once."""
    address_per_s: float = 10.0
    """Connections of one address (IPv6: /64) that are handed on a second; 0 for no limit."""
    address_burst: float = 40.0
    """Those that are handed on at once."""
    wait_max_s: float = 10.0
    """A connection that would have to wait longer is refused."""
    hosts_max: int = 4_096
    """Addresses whose rate is remembered; the one idle longest is forgotten."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for each in fields(self):
            if not getattr(self, each.name) >= (0 if each.name == "address_per_s" else 1e-9):
                raise SyncArgumentError(f"{each.name} must be positive", where="ArrivalsConfig")


@dataclass(slots=True, eq=False)
class Arrival:
    """A connection that has a place."""

    host: str
    """Who counts as one host."""
    group: str
    """Its network."""
    turn_out: Callable[[], None]
    """Ends the connection."""
    shown: Rank = Rank.SILENT
    """What it has shown so far."""
    calls: int = 0
    """Its calls that are being answered."""

    @property
    def rank(self) -> Rank:
        """What it has shown, and whether it is served now."""
        return max(self.shown, Rank.SERVED) if self.calls else self.shown


class Arrivals:
    """The places of one port; see the theory above."""

    def __init__(self, config: ArrivalsConfig) -> None:
        self._config = config
        self._there: dict[Arrival, None] = {}
        self._rates: OrderedDict[str, Budget] = OrderedDict()

    def __len__(self) -> int:
        return len(self._there)

    def enter(self, host: str, turn_out: Callable[[], None]) -> tuple[Arrival | None, bool]:
        """Return the connection's place, or None; and whether another one was turned out for it.

        Args:
            host: Its address.
            turn_out: Ends it, when its place is needed.

        """
        location = locate(host)
        address, group = (location.host, location.group) if location else (host, host)
        places = self._config.places
        share = max(1, places // SHARE)
        if location is not None and location.loopback:
            share = places
        elif location is not None and location.private:
            share = max(1, places // PRIVATE_SHARE)
        crowded = self._crowded(group, share)
        if crowded:
            victim = self._victim(crowded)
            if victim is None:
                return None, False
            self.leave(victim)
            victim.turn_out()
        arrival = Arrival(address, group, turn_out)
        self._there[arrival] = None
        return arrival, bool(crowded)

    def leave(self, arrival: Arrival) -> None:
        """The place is free; nothing happens when it was taken away."""
        self._there.pop(arrival, None)

    def pause(self, arrival: Arrival, now: float) -> float | None:
        """Count a connection whose first byte has come.

        Returns:
            The seconds after which it may be handed on, or None: too many wait already.

        """
        arrival.shown = max(arrival.shown, Rank.SPOKE)
        config = self._config
        rate = self._rates.get(arrival.host)
        if rate is None:
            rate = Budget(config.address_per_s, config.address_burst, config.address_burst, now)
            self._rates[arrival.host] = rate
            if len(self._rates) > config.hosts_max:
                self._rates.popitem(last=False)
        self._rates.move_to_end(arrival.host)
        wait = rate.wait(now)
        if wait > config.wait_max_s:
            return None
        rate.take(1, now)
        return rate.wait(now)

    def _crowded(self, group: str, share: int) -> str:
        """Return the network that must give a place up for one more of ``group``; empty: none."""
        groups = Counter(each.group for each in self._there)
        if groups[group] >= share:
            return group
        if len(self._there) >= self._config.places:
            return groups.most_common(1)[0][0]
        return ""

    def _victim(self, group: str) -> Arrival | None:
        there = [
            each for each in self._there if each.group == group and each.rank is not Rank.KNOWN
        ]
        if not there:
            return None
        host = Counter(each.host for each in there).most_common(1)[0][0]
        return min((each for each in there if each.host == host), key=lambda each: each.rank)
