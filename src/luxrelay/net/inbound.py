"""Inbound connections, from the socket to the end: strangers first, then peers.

Three stages, each with places and a deadline of its own:

1. The handshake: places in the `Doorway`, a first byte within `first_byte_timeout_s`, the whole
   within `handshake_timeout_s`.
2. A peer that has proven an identity and nothing else: one of `inbound_max` places, within the
   limits of its address and subnet; one network has a quarter of them (a private one half), and the
   one that came first goes for a newer one. A stream for a protocol of ours within
   `speak_timeout_s`, or it is closed.
3. A peer that speaks: whoever runs the host decides how long it stays. When all places are taken,
   the one that has been silent longest goes; when all speak, the newcomer is refused.

Source: LP-6420 §1.3, LP-6422 §6; decisions G21, G23.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio
from libp2p.abc import IMuxedConn, INetConn, IRawConnection
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.abc import ReadWriteCloser
from libp2p.network.connection.raw_connection import RawConnection

from luxrelay.gossip import locate
from luxrelay.net.charging import Charges
from luxrelay.net.config import NetConfig
from luxrelay.net.connections import ConnectionLimits
from luxrelay.net.doorway import Doorway, Stranger, share_of
from luxrelay.net.negotiation import NoiseYamuxUpgrader
from luxrelay.net.scopes import shielded
from luxrelay.net.transport import RelayTcpStream
from luxrelay.net.yamux import GuardedYamux

_CUT_S: Final = 1.0
"""Seconds to close a connection in good order before its socket is cut."""


@dataclass(slots=True)
class InboundCounters:
    """What became of inbound connections."""

    inbound_accepted: int = 0
    """Inbound connections that finished the handshake and got a place."""
    inbound_refused: int = 0
    """Inbound connections turned away because all places were taken by peers that speak."""
    address_refused: int = 0
    """Inbound connections turned away because their address or subnet has enough."""
    handshakes_failed: int = 0
    """Inbound connections that were no libp2p peer, or not in time."""
    strangers_turned_out: int = 0
    """Connections in the handshake that gave their place to a newer one."""
    silent_displaced: int = 0
    """Inbound peers that had said nothing and gave their place to a newer one."""
    silent_closed: int = 0
    """Inbound peers closed because they said nothing in time."""


@dataclass(slots=True, eq=False)
class _Seat:
    """An inbound connection after its handshake."""

    muxed: GuardedYamux
    host: str
    group: str
    socket: RelayTcpStream

    @property
    def quiet(self) -> bool:
        """Whether it has said nothing yet."""
        return not self.muxed.spoke.is_set()


class Inbound:
    """Every inbound connection of one host.

    Args:
        config: Places and deadlines.
        upgrader: Does the handshakes.
        limits: Connections by address and subnet, those that we dialled included.
        add: Registers a connection whose handshake is done.
        unwanted: What ``add`` raises for a peer that is not let in, which it has counted.
        counters: Where the rest is counted.

    """

    def __init__(
        self,
        config: NetConfig,
        upgrader: NoiseYamuxUpgrader,
        limits: ConnectionLimits,
        *,
        add: Callable[[IMuxedConn], Awaitable[INetConn]],
        unwanted: type[Exception],
        counters: InboundCounters,
    ) -> None:
        self.counters = counters
        self.doorway = Doorway(config)
        self.charges = Charges()
        """What connections cost, and who waits for it."""
        self._config = config
        self._upgrader = upgrader
        self._limits = limits
        self._add = add
        self._unwanted = unwanted
        self._seats: dict[_Seat, None] = {}
        upgrader.before_noise = self._pace

    async def serve(self, socket: ReadWriteCloser) -> None:
        """The connection lives and dies inside this call."""
        assert isinstance(socket, RelayTcpStream)
        host = _host_of(socket)
        if self._limits.refusal(host):
            self.counters.address_refused += 1
            return  # the listener cuts the connection
        if len(self._seats) >= self._config.inbound_max and not self._quiet():
            self.counters.inbound_refused += 1
            return
        with self.charges.of(host) as account:
            if account is not None:
                socket.before_read = partial(self.charges.turn, account, lambda: socket.closed)
            await self._serve(socket, host)

    async def _serve(self, socket: RelayTcpStream, host: str) -> None:
        muxed = await self._handshake(socket, host)
        if muxed is None:
            return
        self.charges.prove(muxed.peer_id.to_bytes())
        seat = await self._place(muxed, host, socket)
        if seat is None:
            await self._end(muxed, socket)
            return
        self._limits.opened(host)
        try:
            await self._sit(seat)
        finally:
            self._limits.closed(host)
            self._seats.pop(seat, None)

    async def _handshake(self, socket: RelayTcpStream, host: str) -> GuardedYamux | None:
        """What carries streams; None when there was no end to the handshake, or a bad one."""
        began, config = trio.current_time(), self._config
        silent_s = min(config.first_byte_timeout_s, config.handshake_timeout_s)
        with trio.CancelScope(deadline=began + silent_s) as scope:
            stranger, turned_out = self.doorway.enter(host, scope.cancel)
            self.counters.strangers_turned_out += turned_out

            def heard() -> None:
                stranger.spoke = True
                scope.deadline = began + config.handshake_timeout_s

            socket.on_first = heard
            try:
                return await self._upgrade(socket, stranger)
            except Exception:  # noqa: BLE001 - whatever a stranger on the port provoked
                scope.cancel()
            finally:
                self.doorway.leave(stranger)
        self.counters.handshakes_failed += 1
        return None

    async def _upgrade(self, socket: RelayTcpStream, stranger: Stranger) -> GuardedYamux:
        raw = RawConnection(socket, initiator=False)
        secured = await self._upgrader.upgrade_security(raw, is_initiator=False)
        muxed = await self._upgrader.upgrade_connection(secured, secured.get_remote_peer())
        self.doorway.leave(stranger)
        assert isinstance(muxed, GuardedYamux)
        return muxed

    async def _pace(self, raw: IRawConnection) -> None:
        remote = raw.get_remote_address()
        await trio.sleep(self.doorway.pause(remote[0] if remote else "", trio.current_time()))

    async def _place(self, muxed: GuardedYamux, host: str, socket: RelayTcpStream) -> _Seat | None:
        """A place for a peer that has proven who it is; None when there is none."""
        if self._limits.refusal(host):
            self.counters.address_refused += 1
            return None
        location = locate(host)
        seat = _Seat(muxed, host, location.group if location is not None else host, socket)
        exempt = location is not None and location.loopback and self._config.loopback_exempt
        quiet = self._quiet()
        near = [each for each in quiet if each.group == seat.group]
        victim: _Seat | None = None
        if not exempt and len(near) >= share_of(self._config.inbound_max, location):
            victim = near[0]
        elif len(self._seats) >= self._config.inbound_max:
            if not quiet:
                self.counters.inbound_refused += 1
                return None
            group = Counter(each.group for each in quiet).most_common(1)[0][0]
            victim = next(each for each in quiet if each.group == group)
        self._seats[seat] = None
        if victim is not None:
            await self._displace(victim)
        return seat

    def _quiet(self) -> list[_Seat]:
        """Peers that have said nothing yet, the oldest first."""
        return [seat for seat in self._seats if seat.quiet]

    async def _displace(self, seat: _Seat) -> None:
        self._seats.pop(seat, None)
        self.counters.silent_displaced += 1
        await self._end(seat.muxed, seat.socket)

    async def _sit(self, seat: _Seat) -> None:
        """The peer is served until its connection is over."""
        muxed = seat.muxed
        try:
            conn = await self._add(muxed)
        except self._unwanted:
            return
        except (BaseLibp2pError, trio.TooSlowError):
            self.counters.handshakes_failed += 1
            return
        self.counters.inbound_accepted += 1
        with trio.move_on_after(self._config.speak_timeout_s) as late:
            await muxed.spoke.wait()
        if late.cancelled_caught:
            self.counters.silent_closed += 1
            with trio.move_on_after(_CUT_S):
                await conn.close()
            return  # the listener cuts the connection
        await muxed.event_closed.wait()

    async def _end(self, muxed: GuardedYamux, socket: RelayTcpStream) -> None:
        with shielded(_CUT_S):
            await muxed.close()
        await socket.cut()


def _host_of(socket: RelayTcpStream) -> str:
    remote = socket.get_remote_address()
    return remote[0] if remote else ""
