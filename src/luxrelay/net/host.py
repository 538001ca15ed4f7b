"""The libp2p host: identity, listening, dialling, streams; all of it bounded and closable.

Theory of operation
  Decides: who may connect (as far as numbers go), and when a connection is over.
  Does not know: what is spoken on streams.
  py-libp2p is used as host and transport only; what it does wrong is put right in the modules
  beside this one: `yamux` (window, dead peers), `swarm` (slots, exceptions, own will),
  `negotiation` (Noise and Yamux alone, bounded lines), `transport` (busy ports), `quiet` (logs).
  Bounds: every number in `NetConfig` down to `close_timeout_s`.
  Deviations: keepalive is Yamux's own ping, which every libp2p answers, instead of the ping
  protocol, which is answered too.

Identify: who we are, where we listen and what we speak, told to whoever asks.

The library would say that it is the library; we say the program and its version. What peers push
about themselves is not taken: nothing here would use it, and a stranger could fill the peer store.

py-libp2p logs through our loggers only, never to a terminal of its own accord.

At import the library sets its logger to WARNING without a handler, so that Python's handler of
last resort prints every warning to standard error; and its connection module calls
`logging.debug` on the module, which installs a handler on the root logger as a side effect.
Peers cause most of these lines, so a hostile peer could fill a log with them. We count instead.

Names of peers are looked up in a few threads of their own, and so many addresses of each.

A resolver that does not answer keeps its thread for half a minute, whoever gives up meanwhile. In
the threads that a node does its work in, some dozens of such names would leave none for the store.
A name may also stand for hundreds of addresses, each of which would be tried.

Source: LP-6420 §1.1; LP-6420 §1.3; decisions G29, G21.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from statistics import median_low
from typing import Any, Final

import trio
from libp2p.abc import INetConn, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import PublicKey
from libp2p.crypto.x25519 import create_new_key_pair as new_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.host.basic_host import BasicHost
from libp2p.host.exceptions import StreamFailure
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.protocol_muxer.exceptions import MultiselectClientError, MultiselectError
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.tools.anyio_service import TrioManager
from multiaddr import Multiaddr

from luxrelay.conduct import Cause
from luxrelay.errors import AddressError, ConfigError, NetError
from luxrelay.gossip import PeerId
from luxrelay.net.addresses import (
    TcpAddress,
    parse_address,
    parse_listen_address,
    parse_peer_address,
    peer_text,
)
from luxrelay.net.bans import Ban, BanList, steady_ms
from luxrelay.net.charging import Charges, Meter
from luxrelay.net.config import NetConfig
from luxrelay.net.dialler import Dialler
from luxrelay.net.guarded import Faults
from luxrelay.net.negotiation import (
    LineCommunicator,
    NoiseYamuxUpgrader,
    UnspokenError,
    select_protocol,
)
from luxrelay.net.records import ADDRESSES_MAX, is_everywhere, nearness, seal
from luxrelay.net.scopes import ReadyReport, shielded
from luxrelay.net.streams import FAREWELL_S, RelayStream, StreamHandler, encode_frame
from luxrelay.net.swarm import RelaySwarm, SwarmCounters, host_of, remote_of, went_out
from luxrelay.net.transport import RelayTcp, SocketRegistry, is_here
from luxrelay.net.unread import UnreadBudget
from luxrelay.net.yamux import GuardedStream, GuardedYamux, MuxCounters


class NameResolver(trio.abc.HostnameResolver):
    """Looks names up for one trio run.

    Args:
        lookups_max: Lookups at one time; a further one waits.
        addresses_max: Addresses of a name that are used.
        look_up: Does it, in a thread; as `socket.getaddrinfo`.

    """

    def __init__(
        self,
        lookups_max: int,
        addresses_max: int,
        look_up: Callable[..., list[Any]] = socket.getaddrinfo,
    ) -> None:
        self._threads = trio.CapacityLimiter(lookups_max)
        self._addresses_max = addresses_max
        self._look_up = look_up

    async def getaddrinfo(  # noqa: PLR0917 - trio's own order
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,  # noqa: A002 - trio's own name
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """The first addresses of the name.

        Raises:
            OSError: There is none, or the resolver cannot be reached.

        """
        look_up = partial(self._look_up, host, port, family, type, proto, flags)
        found: list[Any] = await self._in_thread(look_up)
        return found[: self._addresses_max]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        """The name of an address."""
        found: tuple[str, str] = await self._in_thread(partial(socket.getnameinfo, sockaddr, flags))
        return found

    async def _in_thread(self, look_up: Callable[[], Any]) -> Any:
        return await trio.to_thread.run_sync(  # type: ignore[call-arg]  # the stubs are older
            look_up, abandon_on_cancel=True, limiter=self._threads
        )


_THIS_MACHINE: Final = 2
_SLOW_UNSENT: Final = 16 * 1024
"""Bytes that the system holds for a slow peer beside those that are on the wire."""
_NAME: Final = "libp2p"
_DEBUG_SWITCH: Final = "LIBP2P_DEBUG"


def quiet_libp2p() -> None:
    """The library is silent unless the operator sets ``LIBP2P_DEBUG`` (calling twice is fine)."""
    import libp2p.network.connection.swarm_connection as connection_module  # noqa: PLC0415 - heavy

    logger = logging.getLogger(_NAME)
    vars(connection_module)["logging"] = logger.getChild("connection")
    if os.environ.get(_DEBUG_SWITCH):
        return
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    logger.setLevel(logging.CRITICAL)


IDENTIFY: Final = "/ipfs/id/1.0.0"
IDENTIFY_PUSH: Final = "/ipfs/id/push/1.0.0"
_PROTOCOL_VERSION: Final = "ipfs/0.1.0"
"""What every libp2p host says here."""


def answer(
    *,
    key: PublicKey,
    agent: str,
    addresses: Sequence[str],
    protocols: Sequence[str],
    record: bytes,
    observed: tuple[str, int] | None,
) -> bytes:
    """The message, with its length in front.

    Args:
        key: Our public key.
        agent: Program and version.
        addresses: Multiaddresses that we listen on, without peer id.
        protocols: What a stream may be opened for.
        record: Our signed peer record; empty when there is none.
        observed: Host and port that the peer connects from.

    """
    message = Identify(
        protocol_version=_PROTOCOL_VERSION,
        agent_version=agent,
        public_key=key.serialize(),
        listen_addrs=[Multiaddr(text).to_bytes() for text in addresses],
        observed_addr=_observed(observed),
        protocols=protocols,
        signedPeerRecord=record,
    )
    return encode_frame(message.SerializeToString())


def _observed(remote: tuple[str, int] | None) -> bytes:
    if remote is None:
        return b""
    host = ip_address(remote[0].partition("%")[0])
    mapped = getattr(host, "ipv4_mapped", None)
    host = host if mapped is None else mapped
    return bytes(Multiaddr(f"/ip{host.version}/{host}/tcp/{remote[1]}").to_bytes())


async def send(stream: INetStream, message: bytes) -> None:
    """The peer has been told, or is gone."""
    with contextlib.suppress(BaseLibp2pError):
        await stream.write(message)
        await stream.close()


_SEED_BYTES: Final = 32
_LIBRARY: Final = frozenset({IDENTIFY, "/ipfs/ping/1.0.0"})
"""Protocols of every libp2p host: a stream for one of them does not make a peer of ours."""
_CLOSE_S: Final = 2.0
"""Seconds to close one connection in good order, cancelled or not."""


class _BoundedHost(BasicHost):
    """The library's host (identify, ping) with protocol lines bounded in both directions."""

    async def serve_stream(self, net_stream: INetStream) -> None:
        """The stream's protocol is agreed on and its handler has run."""
        network = self.get_network()
        assert isinstance(network, RelaySwarm)
        try:
            protocol, handler = await self.multiselect.negotiate(
                LineCommunicator(net_stream, network.config.negotiation_lines_max),
                math.ceil(network.config.handshake_timeout_s),
            )
        except MultiselectError:
            await net_stream.reset()
            return
        if protocol is None or handler is None:
            await net_stream.reset()
            return
        net_stream.set_protocol(protocol)
        _agree(net_stream, ours=protocol not in _LIBRARY)
        await handler(net_stream)

    async def new_stream(self, peer_id: ID, protocol_ids: Sequence[TProtocol]) -> INetStream:
        """A stream of the first protocol the peer speaks, over the newest connection.

        Raises:
            StreamFailure: The peer speaks none, or is not connected.

        """
        network = self.get_network()
        assert isinstance(network, RelaySwarm)
        live = [conn for conn in network.get_connections(peer_id) if _is_live(conn)]
        if not live:
            raise StreamFailure(f"{peer_id} is not connected")
        stream = await live[-1].new_stream()  # the newest: an older one may be dead unnoticed
        try:
            config = network.config
            protocol = await select_protocol(
                stream, protocol_ids, config.handshake_timeout_s, config.negotiation_lines_max
            )
        except MultiselectClientError as error:
            raise StreamFailure(f"{peer_id} speaks none of {protocol_ids}") from error
        except BaseException:
            with shielded(FAREWELL_S):
                await stream.reset()
            raise
        stream.set_protocol(TProtocol(protocol))
        _agree(stream, ours=protocol not in _LIBRARY)
        return stream


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStats:
    """A snapshot of one host."""

    inbound: int
    """Open inbound connections."""
    outbound: int
    """Open outbound connections."""
    peers: int
    """Peers with at least one connection."""
    bytes_in: int
    """Bytes received since the start, encryption and framing included."""
    bytes_out: int
    """Bytes sent since the start, encryption and framing included."""
    swarm: SwarmCounters
    """Connections and handlers, counted."""
    mux: MuxCounters
    """What the multiplexers stopped."""
    accept_errors: int = 0
    """Connections that could not be accepted."""
    held_back: int = 0
    """Looks at connections that had as much on its way as their path carries (P51)."""
    unread: int = 0
    """Bytes of all peers that nobody has read yet."""
    held: int = 0
    """How often a connection was not read from because its address had cost too much."""


class RelayHost:
    """One identity on the network: listens, dials, opens streams, serves handlers.

    Args:
        seed: 32 bytes of Ed25519 seed; the peer id follows from it (G7).
        config: Bounds and listen addresses.
        bans: Who is not let in; an empty list in memory when None.
        clock_ms: The wall clock: numbers of our records, and until when a ban is in force.
        steady_ms: A clock that nobody sets, for bans; milliseconds.
        meter: What inbound connections of strangers are charged to; nothing when None.

    Raises:
        ConfigError: The seed has another length.
        AddressError: A listen address cannot be parsed.

    """

    def __init__(
        self,
        seed: bytes,
        config: NetConfig,
        *,
        bans: BanList | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        steady_ms: Callable[[], int] = steady_ms,
        meter: Meter | None = None,
    ) -> None:
        if len(seed) != _SEED_BYTES:
            raise ConfigError(
                f"An identity seed has {_SEED_BYTES} bytes, not {len(seed)}",
                where="RelayHost",
                hint="`luxrelay keys new` makes one",
            )
        quiet_libp2p()
        self.config = config
        self.bans = bans if bans is not None else BanList(config.bans_max)
        self.wall_ms, self.steady_ms = clock_ms, steady_ms
        self.heard_ms = steady_ms()
        """When the last byte of a peer came, by the steady clock; at first, when it was made."""
        self._seed = seed
        self._listen = [parse_listen_address(text).multiaddr() for text in config.listen]
        self.keys = keys = create_new_key_pair(seed)
        own_id = ID.from_pubkey(keys.public_key)
        self.peer_id = PeerId(own_id.to_bytes())
        self.mux_counters = MuxCounters()
        self.faults = Faults()
        """What peers provoked and what went no further than their stream or connection."""
        self.resolver = NameResolver(config.lookups_max, config.name_addresses_max)
        """Looks up the names that are dialled."""
        self.unread = UnreadBudget(config.unread_max)
        """Bytes of all peers that nobody has read yet."""
        self._registry = SocketRegistry(faults=self.faults)
        self._transport = RelayTcp(self._registry)
        peerstore = PeerStore()
        peerstore.add_key_pair(own_id, keys)
        upgrader = NoiseYamuxUpgrader(
            NoiseTransport(keys, noise_privkey=new_noise_key_pair().private_key),
            lambda secured, peer: GuardedYamux(
                secured,
                peer,
                config,
                self.mux_counters,
                budget=self.unread,
                faults=self.faults,
                heard=self._note_heard,
            ),
            config.handshake_timeout_s,
            config.negotiation_lines_max,
        )
        self._swarm = RelaySwarm(own_id, peerstore, upgrader, self._transport, config)
        self._listen_to_swarm(meter)
        self._host = _BoundedHost(self._swarm, disable_identify_address_discovery=True)
        self._swarm.set_stream_handler(self._swarm.guard_handler(self._host.serve_stream))
        self._host.set_stream_handler(TProtocol(IDENTIFY), self._identify)
        self.unhandle(IDENTIFY_PUSH)
        self._changed = trio.Event()
        self._begin_records()
        self._dialler = self._make_dialler()

    def _listen_to_swarm(self, meter: Meter | None) -> None:
        self._transport.make_room = self._swarm.inbound.doorway.turn_out_one
        self.charges = self._swarm.inbound.charges = Charges(meter)
        """What inbound connections cost."""
        self._swarm.on_change = self._note_change
        self._swarm.on_lost = self._note_lost
        self._swarm.faults = self.faults
        self._swarm.refuses = lambda peer: self.bans.banned(peer, steady_ms()) is not None

    def _begin_records(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self._lost: dict[PeerId, str] = {}
        self._number, self._record = 0, b""
        self._sealed: list[str] = []
        self._locals: set[str] = set()
        self.here: Callable[[str], bool] = is_here
        """Whether an IP address is one of this machine."""

    def _make_dialler(self) -> Dialler:
        return Dialler(
            self.config,
            connect=lambda address, peer: self._swarm.dial_addr(address.multiaddr(), ID(peer)),
            is_connected=self.is_connected,
            outbound=self.outbound_count,
            refusal=self._refusal,
            faults=self.faults,
        )

    @property
    def peer_text(self) -> str:
        """The peer id in base58."""
        return peer_text(self.peer_id)

    async def run(
        self, *, task_status: ReadyReport[tuple[str, ...]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listens and serves until cancelled; `started` gives the bound addresses.

        Raises:
            NetError: A port cannot be had (``net.port``).

        """
        inner = shielded()
        trio.socket.set_custom_hostname_resolver(self.resolver)
        refused: NetError | None = None

        async def serve() -> None:
            with inner:
                await TrioManager.run_service(self._swarm)

        if self.charges.meter is not None:
            trio.lowlevel.add_instrument(self.charges)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            try:
                await self._start_listening()
                self._dialler.nursery = nursery
                task_status.started(self.addresses)
                await trio.sleep_forever()
            except NetError as error:
                refused = error  # raised below, where no nursery wraps it
            finally:
                self._dialler.nursery = None
                with shielded(self.config.close_timeout_s):
                    await self._close()
                with shielded():
                    await self._registry.cut_all()
                inner.cancel()
                if self.charges.meter is not None:
                    trio.lowlevel.remove_instrument(self.charges)
        if refused is not None:
            raise refused

    async def _start_listening(self) -> None:
        await self._swarm.listen(*self._listen)
        for text, error in self._transport.refused.items():
            raise NetError(
                f"Cannot listen: {getattr(error, 'strerror', None) or error}",
                where=text,
                code="net.port",
            ) from error
        suffix = f"/p2p/{self.peer_text}"
        self.addresses = tuple(f"{a}{suffix}" for a in self._host.get_transport_addrs())

    async def _close(self) -> None:
        for listener in self._swarm.listeners.values():
            await listener.close()  # first, or peers that are hung up on would be let in again
        async with trio.open_nursery() as nursery:
            for conn in self._swarm.get_connections():
                nursery.start_soon(self._close_connection, conn)
        await self._host.close()

    async def _close_connection(self, conn: INetConn) -> None:
        # Shielded, or the swarm would keep a connection that nobody closes again.
        with shielded(_CLOSE_S), contextlib.suppress(BaseLibp2pError):  # it may be closing already
            await conn.close()

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Streams of ``protocol`` are given to the handler, and are over when it returns."""

        async def serve(stream: INetStream) -> None:
            relay_stream = RelayStream(stream, protocol)
            try:
                await handler(relay_stream)
            finally:
                await relay_stream.reset()

        self._host.set_stream_handler(TProtocol(protocol), serve)

    async def _identify(self, stream: INetStream) -> None:
        message = answer(
            key=self.keys.public_key,
            agent=self.config.agent,
            addresses=[text.partition("/p2p/")[0] for text in self.addresses],
            protocols=[str(name) for name in self._host.multiselect.get_protocols() if name],
            record=self.own_record(),
            observed=stream.get_remote_address(),
        )
        await send(stream, message)

    def unhandle(self, protocol: str) -> None:
        """Streams of ``protocol`` are refused; those under way go on."""
        self._host.multiselect.handlers.pop(TProtocol(protocol), None)

    async def dial(self, address: str, *others: str, chosen: bool = True) -> PeerId:
        """There is a connection with the peer at the address; its id is returned.

        Args:
            address: Multiaddress with the peer's id.
            others: Further addresses of the same peer, tried in turn.
            chosen: False for a peer that nobody here named: it counts against the limits of its
                address and subnet.

        Raises:
            AddressError: The address cannot be dialled, or is our own.
            NetError: The peer cannot be reached, is somebody else, is banned, or we have enough
                connections. Who dials a peer that is being dialled gets the same result.

        """
        parsed, peer = parse_peer_address(address)
        if peer == self.peer_id:
            raise AddressError("The address is our own", where=address, hint="name another node")
        targets = [parsed]
        for text in others:
            further, same = parse_peer_address(text)
            if same != peer:
                raise AddressError("The address is another peer's", where=text)
            targets.append(further)
        await self._dialler.dial(targets, peer, chosen=chosen)
        return peer

    def _refusal(self, address: TcpAddress, peer: PeerId, chosen: bool) -> str:
        ban = self.bans.banned(peer, self.steady_ms())
        reason = f"it is banned ({ban.reason})" if ban is not None else ""
        if not chosen and not reason:
            reason = self._swarm.limits.refusal(address.host)
        return f"The peer is not dialled: {reason}" if reason else ""

    async def ban(self, peer: PeerId, seconds: float, reason: str) -> None:
        """The peer is disconnected and not let in for so long."""
        self.bans.ban(peer, self.steady_ms() + int(seconds * 1000), reason)
        await self.disconnect(peer, reason)

    def banned(self) -> dict[PeerId, Ban]:
        """Who is not let in now, and until when by the wall clock as it stands."""
        ahead_ms = self.wall_ms() - self.steady_ms()
        found = self.bans.all(self.steady_ms())
        return {peer: Ban(ban.until_ms + ahead_ms, ban.reason) for peer, ban in found.items()}

    def remote_host(self, peer: PeerId) -> str:
        """The IP address of a connected peer; empty when there is none."""
        live = self.connections(peer)
        return host_of(live[-1]) if live else ""

    def own_record(self) -> bytes:
        """Our signed peer record; empty when nobody could dial us by it."""
        addresses = self._own_addresses()
        if addresses != self._sealed:
            self._number = max(self._number + 1, self.wall_ms())
            self._record = seal(self._seed, addresses, self._number) if addresses else b""
            self._sealed = addresses
        return self._record

    def _own_addresses(self) -> list[str]:
        """Where others can dial us: as configured, or as we listen.

        Who listens everywhere is at the addresses that its connections come from.
        """
        texts = self.config.announce or tuple(a.partition("/p2p/")[0] for a in self.addresses)
        found: list[str] = []
        for text in texts:
            address = parse_address(text)
            if not is_everywhere(address.host):
                found.append(text)
                continue
            wide = ":" in address.host
            form = f"/ip{6 if wide else 4}/{{}}/tcp/{address.port}"
            found += [form.format(h) for h in self._local_hosts() if (":" in h) == wide]
        return found[:ADDRESSES_MAX]

    def _local_hosts(self) -> list[str]:
        """Addresses of this machine that connections are from, or were while it has them."""
        now = {stream.local_host for stream in self._registry.open} - {""}
        self._locals = {host for host in {*self._locals, *now} if self.here(host)}
        far = [host for host in self._locals if nearness(host) != _THIS_MACHINE]
        return sorted(far or self._locals)

    async def leave_gone_addresses(self) -> None:
        """Connections from addresses that this machine no longer has are closed."""
        streams = list(self._registry.open)
        gone = {s.local_host for s in streams if s.local_host and not self.here(s.local_host)}
        for stream in streams:
            if stream.local_host in gone:
                await stream.cut()

    async def close_if_silent(self, peer: PeerId, seconds: float) -> None:
        """The connections with a peer over which nothing comes within so long are closed."""
        await self._swarm.probe(self._swarm.get_connections(ID(peer)), seconds)

    async def open_stream(self, peer: PeerId, *protocols: str) -> RelayStream:
        """A stream to a connected peer, of the first of ``protocols`` that it speaks.

        Raises:
            NetError: There is no connection, or the peer speaks none of the protocols.

        """
        if not self.is_connected(peer):
            raise NetError("The peer is not connected", where=peer_text(peer))
        try:
            with trio.fail_after(2 * self.config.handshake_timeout_s):
                names = [TProtocol(protocol) for protocol in protocols]
                stream = await self._host.new_stream(ID(peer), names)
        except (BaseLibp2pError, trio.TooSlowError, KeyError) as error:
            raise NetError(
                f"The peer opens no stream for {' or '.join(protocols)}", where=peer_text(peer)
            ) from error
        return RelayStream(stream, str(stream.get_protocol()))

    async def let_go(self, peer: PeerId, known: Sequence[INetConn], seconds: float) -> None:
        """The peer's connections are over, by our hand after so many seconds.

        Returns at once when there is one that is not among the known ones: whoever serves the peer
        begins anew with it.
        """
        with trio.move_on_after(seconds) as scope:
            while (live := self.connections(peer)) and all(conn in known for conn in live):
                await self.wait_changed()
        if scope.cancelled_caught:
            await self.disconnect(peer)

    async def disconnect(self, peer: PeerId, reason: str = Cause.CLOSED.value) -> None:
        """All connections with the peer are closed, for a reason that its loss is told with."""
        self._note_lost(peer, reason)
        async with trio.open_nursery() as nursery:
            for conn in self._swarm.get_connections(ID(peer)):
                nursery.start_soon(self._close_connection, conn)

    def narrow(self, peer: PeerId, *, slow: bool) -> None:
        """Little of what we write to a slow peer waits in the system's buffers, where it is late.

        So its queue here shows how slow it is, and what is urgent overtakes what is not. On systems
        without such a bound nothing changes.
        """
        ends = {remote_of(conn) for conn in self._swarm.get_connections(ID(peer))}
        for stream in list(self._registry.open):
            if stream.get_remote_address() in ends:
                stream.narrow(_SLOW_UNSENT if slow else 0)

    def crowded(self, peer: PeerId) -> bool:
        """Whether what we send to a peer stands in queues: a link on the way carries no more."""
        ends = {remote_of(conn) for conn in self._swarm.get_connections(ID(peer))}
        return any(x.crowded and x.get_remote_address() in ends for x in self._registry.open)

    @property
    def bytes_moved(self) -> int:
        """Bytes that came and went over all connections, with all framing."""
        return self._registry.traffic.bytes_in + self._registry.traffic.bytes_out

    def waits_s(self) -> float:
        """Seconds that packets of most connections stand in queues; 0 where it is not said."""
        now = trio.current_time()
        found = (each.waits_s(now) for each in self._registry.open)
        return median_low([each for each in found if each is not None] or [0.0])

    def is_connected(self, peer: PeerId) -> bool:
        """Whether a stream to the peer may be tried."""
        return bool(self.connections(peer))

    def connections(self, peer: PeerId) -> list[INetConn]:
        """The connections over which a stream may be tried, the newest last."""
        return [conn for conn in self._swarm.get_connections(ID(peer)) if _is_live(conn)]

    def connected(self) -> tuple[PeerId, ...]:
        """The peers with at least one live connection."""
        return tuple(
            PeerId(peer.to_bytes())
            for peer, conns in self._swarm.connections.items()
            if any(_is_live(conn) for conn in conns)
        )

    def outbound_count(self) -> int:
        """Open connections that we dialled."""
        return self._swarm.count(outbound=True)

    def dialled(self, peer: PeerId) -> bool:
        """Whether we opened a connection with the peer ourselves."""
        return any(went_out(conn) for conn in self._swarm.get_connections(ID(peer)))

    async def wait_changed(self) -> None:
        """A connection came or went since the call."""
        await self._changed.wait()

    def _note_heard(self) -> None:
        self.heard_ms = self.steady_ms()

    async def probe(self) -> None:
        """Every connection was pinged, as far as it takes a ping at once."""
        async with trio.open_nursery() as nursery:
            for conns in list(self._swarm.connections.values()):
                for conn in conns:
                    if isinstance(conn.muxed_conn, GuardedYamux):
                        self.faults.start(nursery, "probe", conn.muxed_conn.ping)

    def lost_why(self, peer: PeerId) -> str:
        """Why the last connection with the peer is over, asked once."""
        return self._lost.pop(peer, Cause.ENDED.value)

    def _note_lost(self, peer: PeerId, reason: str) -> None:
        # What we decided comes before what the connection saw of it.
        self._lost.setdefault(peer, reason)
        if len(self._lost) > self.config.book_max:
            del self._lost[next(iter(self._lost))]

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def stats(self) -> HostStats:
        """Numbers as they are now; the counters in it go on counting."""
        traffic = self._registry.traffic
        return HostStats(
            inbound=self._swarm.count(outbound=False),
            outbound=self._swarm.count(outbound=True),
            peers=len(self._swarm.connections),
            bytes_in=traffic.bytes_in,
            bytes_out=traffic.bytes_out,
            swarm=self._swarm.counters,
            mux=self.mux_counters,
            accept_errors=traffic.accept_errors,
            held_back=traffic.held_back,
            held=self.charges.held,
            unread=self.unread.held,
        )


def _agree(stream: INetStream, *, ours: bool) -> None:
    """The whole window of the stream may be used; one for a protocol of ours shows good will."""
    muxed = getattr(stream, "muxed_stream", None)
    if isinstance(muxed, GuardedStream):
        muxed.agree()
        if ours:
            muxed.mux.spoke.set()


def declined(error: NetError) -> bool:
    """Whether the peer said that it does not speak the protocol.

    A stream that was reset, cut or late before it was agreed on says nothing about protocols.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, UnspokenError):
        found = found.__cause__
    return found is not None


def _is_live(conn: INetConn) -> bool:
    muxed = conn.muxed_conn
    return not conn.is_closed and isinstance(muxed, GuardedYamux) and muxed.is_established
