"""TCP for the libp2p swarm: sockets that are bound plainly, counted, and cut when time is up.

The library's own listener binds with SO_REUSEPORT, so that a second node on the same port starts
without an error and steals half of the connections. Ours does not; and it remembers why a port
could not be had, which `Swarm.listen` throws away.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import sys
import termios
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import trio
from libp2p.abc import IListener, IRawConnection, ITransport
from libp2p.custom_types import THandler
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.transport.exceptions import OpenConnectionError
from libp2p.utils.multiaddr_utils import multiaddr_from_socket
from multiaddr import Multiaddr

from luxrelay.errors import AddressError
from luxrelay.net.addresses import parse_address, parse_listen_address
from luxrelay.net.guarded import Faults
from luxrelay.net.send_window import FLOOR, SendWindow, SocketLook

_READ_BYTES: Final = 65_536
_UNSENT_MAX: Final = 256 * 1024
"""Bytes that cancelled writes may leave behind before the connection is given up."""
_UNBOUNDED: Final = 2**31 - 1
_BACKLOG: Final = 128
_INFO_BYTES: Final = 152
_INFO_RTTS: Final = (68, 148)
_INFO_CLOSED: Final = 7
"""Of struct tcp_info: its bytes, where the round trips stand, and TCP_CLOSE in its first byte."""
_ACCEPT_PAUSE_S: Final = 0.1
"""Seconds before a listener goes on that could not accept."""
ACCEPT_CAPACITY: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""What `accept` says when there are too many descriptors, or no memory for one."""


@dataclass(slots=True)
class TrafficCounters:
    """Bytes on the wire, encrypted and with all framing."""

    bytes_in: int = 0
    """Bytes received on all connections."""
    bytes_out: int = 0
    """Bytes sent on all connections."""
    held_back: int = 0
    """Looks at connections whose window was full: what was to be sent waited (P51)."""
    handler_errors: int = 0
    """Connections that ended in an exception nobody expected."""
    accept_errors: int = 0
    """Connections that could not be accepted, for want of descriptors or another reason."""


@dataclass(slots=True)
class SocketRegistry:
    """The open sockets of one host, so that none survives it."""

    traffic: TrafficCounters = field(default_factory=TrafficCounters)
    """What went over all of them."""
    open: set[RelayTcpStream] = field(default_factory=set)
    """Sockets not closed yet."""
    faults: Faults = field(default_factory=Faults)
    """Where failures are noted that end one connection."""

    async def cut_all(self) -> None:
        """Every socket is closed, without a farewell and without waiting."""
        for stream in list(self.open):
            await stream.cut()


class RelayTcpStream(ReadWriteCloser):
    """One TCP connection, read through a buffer so that small reads cost no system call."""

    def __init__(self, stream: trio.SocketStream, registry: SocketRegistry) -> None:
        self._stream = stream
        self._registry = registry
        self._buffer = b""
        self._unsent = b""
        self._window = SendWindow()
        self._sent, self._granted = 0, FLOOR
        self._still: tuple[int, float] | None = None
        """Bytes that were acknowledged while others waited for it, and since when."""
        self._write_lock = trio.Lock()
        self._read_lock = trio.Lock()
        self._remote = _remote_of(stream)
        self.local_host = _local_of(stream)
        """IP address of this machine that the connection is from; empty when it cannot be told."""
        self.on_first: Callable[[], None] | None = None
        """Called once, when the first bytes have come."""
        self.before_read: Callable[[], Awaitable[None]] | None = None
        """Waits until more may be taken from the socket."""
        registry.open.add(self)

    async def read(self, n: int | None = None) -> bytes:
        """Up to ``n`` bytes, or whatever is there; empty at the end."""
        if n == 0:
            return b""
        async with self._read_lock:
            if not self._buffer:
                self._buffer = await self._receive()
            if n is None or len(self._buffer) <= n:
                chunk, self._buffer = self._buffer, b""
            else:
                chunk, self._buffer = self._buffer[:n], self._buffer[n:]
            return chunk

    async def _receive(self) -> bytes:
        if self.before_read is not None:
            await self.before_read()
        try:
            chunk = bytes(await self._stream.receive_some(_READ_BYTES))
        except trio.BrokenResourceError as error:
            raise ConnectionClosedError("the peer broke the connection", transport="tcp") from error
        except trio.ClosedResourceError:
            return b""
        self._registry.traffic.bytes_in += len(chunk)
        if self.on_first is not None and chunk:
            first, self.on_first = self.on_first, None
            first()
        return chunk

    async def write(self, data: bytes) -> None:
        """All of ``data`` is in the socket's buffer.

        A write that is cancelled is not taken back: the bytes belong to a Noise message that counts
        already, and half of one would end the connection for all its streams. What is left of it
        goes first with the next write.

        Raises:
            ConnectionClosedError: The connection is gone. (The library's own stream returns in
                silence when it was closed on our side, and the writer believes it succeeded.)

        """
        if len(self._unsent) > _UNSENT_MAX:
            await self.cut()
            raise ConnectionClosedError("the peer takes nothing any more", transport="tcp")
        self._unsent += data
        async with self._write_lock:
            try:
                while self._unsent:
                    if self._sent >= self._granted:
                        self._granted = self._sent + await self._room()
                    room = self._granted - self._sent
                    sent = await self._stream.socket.send(self._unsent[:room])
                    self._unsent = self._unsent[sent:]
                    self._sent += sent
                    self._registry.traffic.bytes_out += sent
            except (OSError, trio.ClosedResourceError) as error:
                raise ConnectionClosedError("the connection is gone", transport="tcp") from error

    async def _room(self) -> int:
        """Bytes that may be handed to the system, once there is room for some (P51)."""
        while True:
            look = _look_at(self._stream.socket)
            if look is None:
                return _UNBOUNDED
            room = self._window.room(self._sent, look, trio.current_time())
            if room:
                return room
            self._registry.traffic.held_back += 1
            await trio.sleep(self._window.pause_s(look))

    def taken(self) -> tuple[int, int] | None:
        """Bytes that the other end has not acknowledged, and those that it has; None if unsaid."""
        look = _look_at(self._stream.socket)
        return None if look is None else (look.in_flight, self._sent - look.in_flight)

    def waits_s(self, now: float) -> float | None:
        """Seconds by which round trips are above the shortest; None if unsaid.

        The usual one, or the one under way: nothing was acknowledged since an earlier look, though
        something could have been. The usual one follows slowly when little is sent.
        """
        look = _look_at(self._stream.socket)
        if look is None or look.closed:
            return None
        acknowledged = self._sent - look.in_flight
        if not look.in_flight or self._still is None or self._still[0] != acknowledged:
            self._still = (acknowledged, now) if look.in_flight else None
        still_s = 0.0 if self._still is None else now - self._still[1]
        return max(look.rtt_s, still_s) - look.shortest_s

    async def close(self) -> None:
        """The socket is closed; what the kernel holds is still sent."""
        self._registry.open.discard(self)
        await self._stream.aclose()

    async def cut(self) -> None:
        """The socket is closed at once, even inside a cancelled scope."""
        self._registry.open.discard(self)
        await trio.aclose_forcefully(self._stream)

    def narrow(self, unsent: int) -> None:
        """The system holds about so many bytes that are not on the wire; 0 as many as it likes."""
        option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
        if option is not None:
            with suppress(OSError):  # it is closed
                self._stream.setsockopt(socket.IPPROTO_TCP, option, unsent or _UNBOUNDED)

    @property
    def crowded(self) -> bool:
        """Whether what was sent last stood in a queue on its way."""
        return self._window.crowded

    @property
    def closed(self) -> bool:
        """Whether the socket was closed on our side."""
        return self not in self._registry.open

    def get_remote_address(self) -> tuple[str, int] | None:
        """Host and port of the other end (IPv6 too, which the library's stream leaves out)."""
        return self._remote


def _look_at(sock: trio.socket.SocketType) -> SocketLook | None:
    """What the system says of a TCP socket; None where it does not say it.

    Source: tcp(7), TCP_INFO and SIOCOUTQ, which are Linux's.
    """
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, _INFO_BYTES)
        waiting = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):  # it is closed, or no TCP socket
        return None
    if len(info) < _INFO_BYTES:
        return None
    rtt_us, shortest_us = (int.from_bytes(info[at : at + 4], sys.byteorder) for at in _INFO_RTTS)
    return SocketLook(
        int.from_bytes(waiting, sys.byteorder),
        rtt_us / 1e6,
        min(shortest_us, rtt_us) / 1e6,
        info[0] == _INFO_CLOSED,
    )


def _remote_of(stream: trio.SocketStream) -> tuple[str, int] | None:
    try:
        name = stream.socket.getpeername()
    except OSError:
        return None
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


def _local_of(stream: trio.SocketStream) -> str:
    try:
        name = stream.socket.getsockname()
    except OSError:
        return ""
    return str(name[0]) if isinstance(name, tuple) else ""


def is_here(host: str) -> bool:
    """Whether an IP address is one of this machine; also when that cannot be told."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


class RelayTcpListener(IListener):
    """Listens on one address and gives each connection a task that cannot harm the others."""

    background_nursery: trio.Nursery
    """Set by the swarm before `listen` is called."""

    def __init__(self, handler: THandler, transport: RelayTcp) -> None:
        self._handler = handler
        self._transport = transport
        self._sockets: Sequence[trio.SocketListener] = ()
        self._scope = trio.CancelScope()

    async def listen(self, maddr: Multiaddr) -> None:
        """The address is bound and connections are accepted.

        Raises:
            OpenConnectionError: It is not; `RelayTcp.refused` holds the reason.

        """
        try:
            address = parse_listen_address(str(maddr))
            self._sockets = await trio.open_tcp_listeners(
                address.port, host=address.host, backlog=_BACKLOG
            )
        except (OSError, AddressError) as error:
            self._transport.refused[str(maddr)] = error
            raise OpenConnectionError(str(error)) from error
        self.background_nursery.start_soon(self._serve)

    async def _serve(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                for listener in self._sockets:
                    nursery.start_soon(self._listen, listener)

    async def _listen(self, listener: trio.SocketListener) -> None:
        """Connections are accepted whatever `accept` says of one of them.

        Besides want of descriptors it tells of networks that went away, of packets that a filter
        stopped and of peers that left while they waited; none of it is the listener's end.
        """
        registry = self._transport.registry
        while True:
            try:
                stream = await listener.accept()
            except trio.ClosedResourceError:
                return
            except OSError as error:
                registry.traffic.accept_errors += 1
                registry.faults.note("accept", error)
                if error.errno in ACCEPT_CAPACITY:
                    self._transport.make_room()
                await trio.sleep(_ACCEPT_PAUSE_S)
            else:
                self.background_nursery.start_soon(self._accept, stream)

    async def _accept(self, stream: trio.SocketStream) -> None:
        registry = self._transport.registry
        connection = RelayTcpStream(stream, registry)
        handler: Callable[[ReadWriteCloser], Awaitable[None]] = self._handler
        try:
            if not await registry.faults.run("inbound", handler, connection):
                registry.traffic.handler_errors += 1
        finally:
            await connection.cut()

    def get_addrs(self) -> tuple[Multiaddr, ...]:
        """The addresses really bound, with the port the system chose."""
        return tuple(multiaddr_from_socket(listener.socket) for listener in self._sockets)

    async def close(self) -> None:
        """Nothing is accepted any more; connections go on."""
        self._scope.cancel()
        for listener in self._sockets:
            await trio.aclose_forcefully(listener)


class RelayTcp(ITransport):
    """Dials and listens on plain TCP multiaddresses, names included."""

    def __init__(self, registry: SocketRegistry) -> None:
        self.registry = registry
        self.refused: dict[str, OSError | AddressError] = {}
        self.local_host: str | None = None
        """Address of this machine to dial from; None lets the system choose."""
        self.make_room: Callable[[], object] = lambda: None
        """Called when no further connection can be had for want of descriptors."""

    async def dial(self, maddr: Multiaddr) -> IRawConnection:
        """A TCP connection to the address.

        Raises:
            OpenConnectionError: There is none to be had.

        """
        try:
            address = parse_address(str(maddr))
            stream = await trio.open_tcp_stream(
                address.host, address.port, local_address=self.local_host
            )
        except (OSError, AddressError) as error:
            raise OpenConnectionError(f"cannot connect to {maddr}: {error}") from error
        return RawConnection(RelayTcpStream(stream, self.registry), initiator=True)

    def create_listener(self, handler_function: THandler) -> RelayTcpListener:
        """A listener that is not bound yet."""
        return RelayTcpListener(handler_function, self)

    def can_dial(self, maddr: Multiaddr) -> bool:
        """Whether the address is plain TCP."""
        try:
            parse_address(str(maddr))
        except AddressError:
            return False
        return True

    def can_listen(self, maddr: Multiaddr) -> bool:
        """Whether the address is plain TCP; `listen` says what else is wrong with it."""
        return self.can_dial(maddr)

    def protocols(self) -> list[str]:
        """The multiaddress protocols served here."""
        return ["tcp"]
