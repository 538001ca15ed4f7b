"""Limits of connections whose handshake is not complete. Pure.

Nobody has proven anything yet, so these have places of their own, apart from those of peers. One
network (an IPv4 /16, an IPv6 /32) has a quarter of them, a private one half. When there is no room,
the one that came first goes: of the network that has its share, otherwise of the largest; there of
the address that has most, and of its connections one that has said nothing yet. An honest dialler
speaks at once, is done within a few round trips, and has few connections: it is the last to go.

How often one address may let us do the arithmetic of a handshake is counted too, and only when it
comes to that, so that silent connections take nothing from those who speak.

Source: LP-6420 §1.3, LP-6422 §6; decisions G21, G23.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from luxrelay.gossip import Location, locate
from luxrelay.net.config import NetConfig

SHARE: Final = 4
"""One network has this part of the places of strangers."""
PRIVATE_SHARE: Final = 2
"""One private network has this part of them."""
_PACED_MAX: Final = 1024
"""Addresses whose handshakes are remembered before those long past are forgotten."""


def share_of(places: int, location: Location | None) -> int:
    """How many of the places one network may have; at least one."""
    part = PRIVATE_SHARE if location is not None and location.private else SHARE
    return max(1, places // part)


@dataclass(slots=True, eq=False)
class Stranger:
    """A connection in the doorway."""

    address: str
    """Who counts as one host."""
    group: str
    """Its network."""
    turn_out: Callable[[], None]
    """Ends the connection."""
    spoke: bool = False
    """Whether a byte has come."""


class Places:
    """Places that connections without merit share, the oldest first.

    Args:
        places: How many there are.
        loopback_exempt: Whether this machine's own addresses may have them all.

    """

    def __init__(self, places: int, *, loopback_exempt: bool = False) -> None:
        self._max = places
        self._loopback_exempt = loopback_exempt
        self._strangers: dict[Stranger, None] = {}

    def __len__(self) -> int:
        return len(self._strangers)

    def enter(
        self, host: str, turn_out: Callable[[], None], *, exempt: bool = False
    ) -> tuple[Stranger, bool]:
        """The connection has a place; whether another one was turned out for it.

        Args:
            host: Its address.
            turn_out: Ends it, when its place is needed.
            exempt: Whether its network may have all places.

        """
        location = locate(host)
        address, group = (location.host, location.group) if location else (host, host)
        stranger = Stranger(address, group, turn_out)
        places = self._max
        share = share_of(places, location)
        if exempt or (location is not None and location.loopback and self._loopback_exempt):
            share = places
        victim = self._victim(group, share, places)
        if victim is not None:
            self.leave(victim)
            victim.turn_out()
        self._strangers[stranger] = None
        return stranger, victim is not None

    def leave(self, stranger: Stranger) -> None:
        """The place is free; nothing happens when it was taken away."""
        self._strangers.pop(stranger, None)

    def turn_out_one(self, address: str | None = None) -> bool:
        """One place is freed, whoever has it; False when there is none to free.

        Args:
            address: Whose it has to be, as `Stranger.address`; None for anybody's.

        """
        if address is None:
            victim = self._victim("", 0, 0)
        else:
            there = [stranger for stranger in self._strangers if stranger.address == address]
            victim = next((s for s in there if not s.spoke), there[0] if there else None)
        if victim is None:
            return False
        self.leave(victim)
        victim.turn_out()
        return True

    def _victim(self, group: str, share: int, places: int) -> Stranger | None:
        groups = Counter(stranger.group for stranger in self._strangers)
        if groups[group] >= share and group in groups:
            crowded = group
        elif len(self._strangers) >= places and groups:
            crowded = groups.most_common(1)[0][0]
        else:
            return None
        there = [stranger for stranger in self._strangers if stranger.group == crowded]
        address = Counter(stranger.address for stranger in there).most_common(1)[0][0]
        there = [stranger for stranger in there if stranger.address == address]
        return next((stranger for stranger in there if not stranger.spoke), there[0])


class Doorway(Places):
    """The places of connections in the handshake.

    Args:
        config: `handshakes_max`, `handshakes_per_s`, `loopback_exempt`.

    """

    def __init__(self, config: NetConfig) -> None:
        super().__init__(config.handshakes_max, loopback_exempt=config.loopback_exempt)
        self._config = config
        self._due: dict[str, float] = {}

    def pause(self, host: str, now: float) -> float:
        """Seconds until the arithmetic of one more handshake with the host may be done."""
        location = locate(host)
        if location is None or (location.loopback and self._config.loopback_exempt):
            return 0.0
        step = 1.0 / self._config.handshakes_per_s
        due = max(self._due.get(location.host, now), now)
        if len(self._due) >= _PACED_MAX:
            self._due = {key: at for key, at in self._due.items() if at > now}
        self._due[location.host] = due + step
        return max(0.0, due - now - 1.0)
