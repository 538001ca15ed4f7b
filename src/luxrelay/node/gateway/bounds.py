"""Bounds of an HTTP listener: places of connections, bytes of bodies, threads of work.

Places, and the order of giving way. Pure.

A connection is a *newcomer* until the head of its first request is whole: newcomers have places of
their own (`newcomers_max`), a quarter for one /16 or /32, half for a private network, and the
oldest goes (`luxrelay.net.transport`). Then it is *busy* while it is answered, and *idle* between
requests. A WebSocket has left these sets; `luxrelay.node.gateway.guests` counts it.

When a listener has `connections_max`, or an address its share of them, a newcomer takes the place
of

1. an idle connection whose last request brought no valid token,
2. a newcomer,
3. a connection that is being answered without a token, so that whoever reads slowly ends nobody,
4. an idle connection of a token holder, which opens another one when it has something to ask,

each time of the network and the address that has most of its kind, the oldest first. A token holder
whose request is being answered, and a WebSocket, give way to nobody; a newcomer who finds none to
take its place from is refused.

Bytes of bodies and of WebSocket messages that are being received: one budget for a listener's
requests and its WebSockets. Callers without a token share a quarter of it, so that they take
nothing from those who publish.

Blocking work runs in bounded threads with a bounded queue; what a thread spends is charged to the
caller that the task works for (`PAYER`).

Source: architecture, rules 3 and 4; decisions G21, G23.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import trio

from luxrelay.errors import GatewayError
from luxrelay.gossip import locate
from luxrelay.net.doorway import Places, Stranger
from luxrelay.sync.rpc.metering import PAYER, SharedMeter


class Seat:
    """One connection's place; what it is told moves it from set to set."""

    def __init__(self, seats: Seats, host: str, end: Callable[[], object], *, proxy: bool) -> None:
        """Take a place among the newcomers."""
        self._seats = seats
        self._host = host
        self._end = end
        self.address = address_of(host)
        self.taken = False
        """Whether it lost its place to a newcomer."""
        self._known = False
        self._in = seats.newcomers
        self._place: Stranger | None = None
        self._place, _ = seats.newcomers.enter(host, self._lost, exempt=proxy)

    def spoke(self) -> None:
        """Note that a byte came: the silent go first."""
        if self._place is not None:
            self._place.spoke = True

    def asked(self) -> None:
        """Note that the head of a request is whole."""
        self._move(self._seats.busy)

    def proved(self) -> None:
        """Note that the request brought a valid token: nobody takes its place now."""
        self._known = True
        self._move(None)

    def rests(self) -> None:
        """Note that the answer was taken."""
        self._move(self._seats.known if self._known else self._seats.idle)
        self._known = False

    def stays(self) -> None:
        """Note that it has become a WebSocket, which others count."""
        self._move(None)

    def leave(self) -> None:
        """Give the place up; nothing happens when it was taken away."""
        self._move(None)
        if not self.taken:
            self._seats.left(self)

    def _move(self, places: Places | None) -> None:
        if self._place is not None:
            self._in.leave(self._place)
            self._place = None
        if places is not None and not self.taken:
            self._in = places
            self._place, _ = places.enter(self._host, self._lost, exempt=True)

    def _lost(self) -> None:
        self._place = None
        self.taken = True
        self._seats.left(self)
        self._seats.crowded += 1
        self._end()


class Seats:
    """All connections of one listener.

    Args:
        connections_max: How many there may be.
        per_address_max: Of one address (IPv6: /64).
        newcomers_max: Of those that have not asked yet.

    """

    def __init__(self, connections_max: int, per_address_max: int, newcomers_max: int) -> None:
        """Start without connections."""
        self._max = connections_max
        self._per_address_max = per_address_max
        self._open: Counter[str] = Counter()
        self.newcomers = Places(newcomers_max)
        self.idle = Places(connections_max)
        self.busy = Places(connections_max)
        self.known = Places(connections_max)
        self.crowded = 0
        """Connections that lost their place to a newcomer."""

    def __len__(self) -> int:
        return self._open.total()

    def enter(self, host: str, end: Callable[[], object], *, proxy: bool) -> Seat | None:
        """Return a place, and end whoever gives way for it; None when nobody does.

        Args:
            host: Address of the client's end.
            end: Ends the connection; called once at the most.
            proxy: Whether it is a trusted proxy's, whose connections are those of many.

        """
        address = address_of(host)
        if (
            not proxy
            and self._open[address] >= self._per_address_max
            and not self._turn_out(address)
        ):
            return None
        if len(self) >= self._max and not self._turn_out(None):
            return None
        seat = Seat(self, host, end, proxy=proxy)
        self._open[address] += 1
        return seat

    def left(self, seat: Seat) -> None:
        """Count a connection no longer."""
        self._open[seat.address] -= 1
        if self._open[seat.address] <= 0:
            del self._open[seat.address]

    def turn_out_one(self) -> bool:
        """End one connection that may give way; False when there is none."""
        return self._turn_out(None)

    def _turn_out(self, address: str | None) -> bool:
        order = (self.idle, self.newcomers, self.busy, self.known)
        return any(places.turn_out_one(address) for places in order)


def address_of(host: str) -> str:
    """Return what an address is counted under: the IPv4 address, or the /64 of an IPv6 one."""
    location = locate(host)
    return host if location is None else location.host


class Bodies:
    """Counts bytes that are held."""

    def __init__(self, bytes_max: int) -> None:
        """Start with none of ``bytes_max``."""
        self._max = bytes_max
        self._strangers_max = max(1, bytes_max // 4)
        self._held = self._strangers = 0
        self.refused = 0
        """Pieces that there was no room for."""

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self._held

    def hold(self, size: int, *, known: bool = True) -> None:
        """Count bytes of a body; ``known`` says whether a token came with it.

        Raises:
            GatewayError: all together would be too many (``gateway.busy``); nothing is counted.

        """
        full = self._held + size > self._max
        if full or (not known and self._strangers + size > self._strangers_max):
            self.refused += 1
            raise GatewayError("too much is being uploaded", code="gateway.busy")
        self._held += size
        if not known:
            self._strangers += size

    def let_go(self, size: int, *, known: bool = True) -> None:
        """Count them no longer."""
        self._held -= size
        if not known:
            self._strangers -= size


Result = TypeVar("Result")


class Work:
    """Runs blocking calls beside the loop."""

    def __init__(
        self, at_once_max: int, waiting_max: int, meter: SharedMeter | None = None
    ) -> None:
        """Run ``at_once_max`` calls at once, let ``waiting_max`` wait and refuse the rest.

        Requests without token get half of both, so that the others do not wait behind them.
        """
        self.meter = meter
        """What callers may cost; None counts nothing."""
        self._limiter = trio.CapacityLimiter(at_once_max)
        self._strangers = trio.CapacityLimiter(max(1, at_once_max // 2))
        self._waiting_max = waiting_max
        self.refused = 0
        """Calls refused."""

    async def run(self, call: Callable[[], Result]) -> Result:
        """Return what the call returns.

        Raises:
            GatewayError: too many wait already (``gateway.busy``).

        """
        meter, payer = self.meter, PAYER.get()
        if payer is None or payer.known:
            limiter, waiting_max = self._limiter, self._waiting_max
        else:
            limiter, waiting_max = self._strangers, max(1, self._waiting_max // 2)
        if limiter.statistics().tasks_waiting >= waiting_max:
            self.refused += 1
            raise GatewayError("the node is busy", code="gateway.busy")
        if meter is None or payer is None:
            return await trio.to_thread.run_sync(call, limiter=limiter)

        def charged() -> Result:
            with meter.measured(payer, 0.0):
                return call()

        return await trio.to_thread.run_sync(charged, limiter=limiter)
