"""The library's swarm, with its slots given back and its own will taken away.

Faults worked around: an inbound slot is held until the swarm ends instead of until the connection
ends, so after `inbound_max` connections in a node's life every later one is refused (`inbound` has
the places now, and gives none of a peer's to a stranger); the swarm
dials peers it has heard of and prunes connections by rules of its own (both are ours to decide,
G21); a peer that disconnects leaves its data behind in the peer store; and any exception of a
stream handler ends every connection.

Whether a connection still has somebody at its other end: a ping, and a sign of life in time.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import trio
from libp2p.abc import IMuxedConn, INetConn, INetStream
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import IOException
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.rcmgr import Direction
from libp2p.stream_muxer.yamux.yamux import FLAG_SYN, TYPE_PING, YAMUX_HEADER_FORMAT
from libp2p.tools.anyio_service.api import InternalManagerAPI
from multiaddr import Multiaddr

from luxrelay.gossip import PeerId
from luxrelay.net.config import NetConfig
from luxrelay.net.connections import ConnectionLimits
from luxrelay.net.guarded import Faults
from luxrelay.net.inbound import Inbound, InboundCounters
from luxrelay.net.negotiation import NoiseYamuxUpgrader
from luxrelay.net.transport import RelayTcp
from luxrelay.net.yamux import GuardedStream, GuardedYamux

_HEADER: Final = struct.Struct(YAMUX_HEADER_FORMAT)
_POLL_S: Final = 0.02
_PROBES_MAX: Final = 10
"""Times that a peer is given to answer while bytes before the question go their way."""
_VALUE: Final = 0x4C585250
"""What the ping carries; the answer is not told from any other frame."""


async def answers(muxed: IMuxedConn, seconds: float) -> bool:
    """Whether the peer sends any frame within so long of being pinged.

    The multiplexer counts how often the peer has missed a ping, and starts at zero with each frame.
    """
    if not isinstance(muxed, GuardedYamux) or muxed.is_closed:
        return False
    muxed._misses = max(1, muxed._misses)  # noqa: SLF001 - the one number that tells silence
    with trio.move_on_after(seconds):
        try:
            await muxed.write_frame(_HEADER.pack(0, TYPE_PING, FLAG_SYN, 0, _VALUE))
        except IOException:
            return False
        while muxed._misses:  # noqa: SLF001 - set by the reader of the connection
            if muxed.is_closed:
                return False
            await trio.sleep(_POLL_S)
        return True
    return False


async def answers_behind(
    muxed: IMuxedConn, seconds: float, taken: Callable[[], tuple[int, int] | None]
) -> bool:
    """Whether the peer answers, given more time while what stands before the ping moves.

    A narrow link needs longer for what is on its way than a silent peer is given.

    Args:
        muxed: The connection.
        seconds: Time for an answer, again after each in which something moved.
        taken: Bytes that the peer's machine has not acknowledged, and those that it has; None when
            the system does not say.

    """
    before = taken()
    for _ in range(_PROBES_MAX):
        if await answers(muxed, seconds):
            return True
        after = taken()
        if before is None or after is None or not after[0] or after[1] <= before[1]:
            return False
        before = after
    return False


@dataclass(slots=True)
class SwarmCounters(InboundCounters):
    """What happened to connections and streams of one host."""

    banned_refused: int = 0
    """Connections closed because the peer is not let in at present."""
    replaced: int = 0
    """Connections closed because their peer came anew and they were silent."""
    duplicates_refused: int = 0
    """Connections closed because the peer had `peer_connections_max` already."""
    handler_errors: int = 0
    """Stream handlers that ended in an exception; the stream is reset, nothing else happens."""


class _UnwantedError(SwarmException):
    """The peer has its fill of connections, is banned, or is ourselves."""


class _IdleConnector(AutoConnector):
    """Never dials: whom to know is decided by the driver."""

    async def run_background_task(self, nursery: trio.Nursery) -> None:
        """Nothing is started."""

    async def maybe_connect(self) -> None:
        """Nobody is dialled."""

    def record_disconnect(self, peer_id: ID) -> None:
        """Nothing is remembered."""


class _GuardedManager:
    """The library's manager of tasks, in which a task that fails ends itself and no other.

    The library runs both halves of each connection in the swarm's own nursery, so that whatever one
    of them raises ends all connections, and the node.
    """

    def __init__(self, manager: InternalManagerAPI, faults: Faults) -> None:
        self._manager = manager
        self._faults = faults

    def __getattr__(self, name: str) -> object:
        """Everything but `run_task` is the library's."""
        return getattr(self._manager, name)

    def run_task(
        self, work: Callable[..., Awaitable[object]], *args: object, name: str | None = None
    ) -> None:
        """The work runs; if it fails, what it belongs to is closed."""
        self._manager.run_task(self._run, work, *args, name=name)

    async def _run(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        if await self._faults.run("connection", work, *args):
            return
        close = getattr(getattr(work, "__self__", None), "close", None)
        if close is not None and not isinstance(getattr(work, "__self__", None), Swarm):
            await self._faults.run("connection", close)


class RelaySwarm(Swarm):
    """Connections and streams of one host, within the bounds of its `NetConfig`."""

    def __init__(
        self,
        peer_id: ID,
        peerstore: PeerStore,
        upgrader: NoiseYamuxUpgrader,
        transport: RelayTcp,
        config: NetConfig,
    ) -> None:
        self.config = config
        self.counters = SwarmCounters()
        self.on_change: Callable[[], None] = lambda: None
        self.on_lost: Callable[[PeerId, str], None] = lambda _peer, _cause: None
        """Told why a connection is over."""
        self.refuses: Callable[[PeerId], bool] = lambda _peer: False
        """Whether a peer is not let in, whichever side dialled."""
        self.faults = Faults()
        self._registry = transport.registry
        self.limits = ConnectionLimits(config)
        self._dialled_hosts: dict[INetConn, str] = {}
        self._since: dict[INetConn, float] = {}
        """When each connection was registered."""
        total = config.inbound_max + config.outbound_max
        super().__init__(
            peer_id,
            peerstore,
            upgrader,
            [transport],
            RetryConfig(max_retries=0),
            ConnectionConfig(
                max_connections=total,
                min_connections=config.outbound_max,  # the library's inbound cap is the difference
                low_watermark=total,
                high_watermark=total,
                max_connections_per_peer=config.peer_connections_max,
                inbound_upgrade_timeout=config.handshake_timeout_s,
                outbound_upgrade_timeout=config.handshake_timeout_s,
            ),
        )
        self.auto_connector = _IdleConnector(self)
        self.inbound = Inbound(
            config,
            upgrader,
            self.limits,
            add=partial(self.add_conn, direction="inbound"),
            unwanted=_UnwantedError,
            counters=self.counters,
        )

    @property
    def manager(self) -> InternalManagerAPI:
        """Who runs our tasks; each on its own account."""
        return cast("InternalManagerAPI", _GuardedManager(self._manager, self.faults))

    def count(self, *, outbound: bool) -> int:
        """Open connections in one direction."""
        return sum(went_out(conn) == outbound for conn in self.get_connections())

    async def _handle_inbound_connection(
        self, read_write_closer: ReadWriteCloser, maddr: Multiaddr
    ) -> None:
        del maddr
        await self.inbound.serve(read_write_closer)

    async def add_conn(self, muxed_conn: IMuxedConn, direction: str = "unknown") -> SwarmConn:
        """The connection is registered and its streams are served.

        Raises:
            SwarmException: It is one too many for this peer, the peer is banned, or it is us.

        """
        if self.refuses(PeerId(muxed_conn.peer_id.to_bytes())):
            self.counters.banned_refused += 1
            await muxed_conn.close()
            raise _UnwantedError(f"{muxed_conn.peer_id} is not let in")
        peer_id = muxed_conn.peer_id
        if peer_id == self.self_id or (self._full(peer_id, 1) and not await self._room(muxed_conn)):
            self.counters.duplicates_refused += 1
            await muxed_conn.close()
            raise _UnwantedError(f"no further connection with {peer_id}")
        older = self.get_connections(peer_id)
        conn = await self._started(muxed_conn, direction)
        self._since[conn] = trio.current_time()
        if went_out(conn):
            self._dialled_hosts[conn] = host_of(conn)
            self.limits.opened(self._dialled_hosts[conn])
        if self._full(peer_id, 0) and not await self._prevails(conn):
            self.counters.duplicates_refused += 1
            await conn.close()
            raise _UnwantedError(f"no further connection with {peer_id}")
        if older:
            self.manager.run_task(self._probe, older)
        return conn

    async def _started(self, muxed_conn: IMuxedConn, direction: str) -> SwarmConn:
        try:
            with trio.fail_after(self.config.handshake_timeout_s):  # the library waits for ever
                return await super().add_conn(muxed_conn, direction)
        except trio.TooSlowError:
            await muxed_conn.close()
            raise SwarmException(
                f"the connection with {muxed_conn.peer_id} does not start"
            ) from None

    def _full(self, peer_id: ID, more: int) -> bool:
        held = sum(not conn.is_closed for conn in self.connections.get(peer_id, ()))
        return held + more > self.config.peer_connections_max

    async def _room(self, muxed_conn: IMuxedConn) -> bool:
        """Whether a peer that has its fill gets a place for a new connection.

        The newest connection of a proven identity takes the place of a silent one.
        """
        peer_id, outbound = muxed_conn.peer_id, muxed_conn.is_initiator
        for conn in self._crossing(peer_id, outbound=outbound):
            if self._kept(peer_id, outbound=outbound):
                self.counters.replaced += 1
                await conn.close()
                return not self._full(peer_id, 1)
        await self._probe(self.get_connections(peer_id))
        return not self._full(peer_id, 1)

    async def _prevails(self, conn: SwarmConn) -> bool:
        """Whether a connection stays though another was registered while it started."""
        peer_id, outbound = conn.muxed_conn.peer_id, went_out(conn)
        crossing = self._crossing(peer_id, outbound=outbound)
        if not crossing or not self._kept(peer_id, outbound=outbound):
            return False
        self.counters.replaced += 1
        await crossing[0].close()
        return not self._full(peer_id, 0)

    def _crossing(self, peer_id: ID, *, outbound: bool) -> list[INetConn]:
        """The young connections of a peer in the other direction.

        Two that dial each other at once could take each other for silent, or each close what the
        other keeps, because neither connection has begun at both ends.
        """
        young = trio.current_time() - self.config.handshake_timeout_s
        return [
            conn
            for conn in self.get_connections(peer_id)
            if went_out(conn) != outbound and self._since.get(conn, math.inf) > young
        ]

    def _kept(self, peer_id: ID, *, outbound: bool) -> bool:
        """Whether both ends keep the connection of this direction: the one of the lower id."""
        return outbound == (self.self_id.to_bytes() < peer_id.to_bytes())

    async def _probe(self, conns: Sequence[INetConn]) -> None:
        await self.probe(conns, self.config.probe_timeout_s)

    async def probe(self, conns: Sequence[INetConn], seconds: float) -> None:
        """Those of a peer's connections over which nobody answers within so long are closed."""
        async with trio.open_nursery() as nursery:
            for conn in conns:
                self.faults.start(nursery, "probe", self._close_if_silent, conn, seconds)

    async def _close_if_silent(self, conn: INetConn, seconds: float) -> None:
        taken = partial(self._taken, conn)
        if conn.is_closed or await answers_behind(conn.muxed_conn, seconds, taken):
            return
        if not conn.is_closed:
            self.counters.replaced += 1
            await conn.close()

    def _taken(self, conn: INetConn) -> tuple[int, int] | None:
        """What the system says of a connection's bytes; see `answers_behind`."""
        remote = remote_of(conn)
        there = (each for each in self._registry.open if each.get_remote_address() == remote)
        stream = next(there, None)
        return None if stream is None else stream.taken()

    def remove_conn(self, swarm_conn: SwarmConn) -> None:
        """The connection is forgotten, and all data of peers that have none left."""
        super().remove_conn(swarm_conn)
        muxed = swarm_conn.muxed_conn
        if isinstance(muxed, GuardedYamux) and not self.get_connections(muxed.peer_id):
            self.on_lost(PeerId(muxed.peer_id.to_bytes()), muxed.cause.value)
        self._since.pop(swarm_conn, None)
        dialled = self._dialled_hosts.pop(swarm_conn, None)
        if dialled is not None:
            self.limits.closed(dialled)
        for peer_id in self.peerstore.peer_ids():
            if peer_id not in self.connections and peer_id != self.self_id:
                self.peerstore.clear_peerdata(peer_id)
        self.on_change()

    async def notify_connected(self, conn: INetConn) -> None:
        """Those who watch know of the connection."""
        self.on_change()
        await super().notify_connected(conn)

    def _trim_connections(self, peer_id: ID) -> None:
        """The library chooses none of a peer's connections; `add_conn` does."""

    def _schedule_prune(self) -> None:
        """Nothing is pruned behind our back."""

    def _schedule_auto_connect(self) -> None:
        """Nobody is dialled behind our back."""

    def guard_handler(
        self, handler: Callable[[INetStream], Awaitable[None]]
    ) -> Callable[[INetStream], Awaitable[None]]:
        """The handler, made harmless: an exception resets its stream and is counted."""

        async def guarded(stream: INetStream) -> None:
            if await self.faults.run("stream", handler, stream):
                _abandon(stream)
                return
            self.counters.handler_errors += 1
            with self.faults.contained("reset"):
                await stream.reset()

        return guarded


def _abandon(stream: INetStream) -> None:
    """The handler has ended: what the peer still sends on the stream is held no longer."""
    muxed = getattr(stream, "muxed_stream", None)
    if isinstance(muxed, GuardedStream):
        muxed.abandon()


def went_out(conn: INetConn) -> bool:
    """Whether we dialled the connection."""
    return isinstance(conn, SwarmConn) and conn.direction == Direction.OUTBOUND


def remote_host(connection: object) -> str:
    """The IP address of the other end, empty when it cannot be told."""
    ask = getattr(connection, "get_remote_address", None)
    remote = ask() if ask is not None else None
    return str(remote[0]) if remote else ""


def remote_of(conn: INetConn) -> tuple[str, int] | None:
    """IP address and port of the other end of an established connection."""
    ask = getattr(getattr(conn.muxed_conn, "secured_conn", None), "get_remote_address", None)
    remote = ask() if ask is not None else None
    return (str(remote[0]), int(remote[1])) if remote else None


def host_of(conn: INetConn) -> str:
    """The IP address of the other end of an established connection."""
    return remote_host(getattr(conn.muxed_conn, "secured_conn", None))
