"""Real hosts on loopback ports of the system's choice; async tests run under trio."""

from __future__ import annotations

import inspect
import os
import random
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as new_noise_key_pair
from libp2p.exceptions import BaseLibp2pError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise.transport import Transport as NoiseTransport

from luxrelay.bus import NamespaceId, VerdictKind
from luxrelay.gossip import (
    DiversityParams,
    GossipParams,
    GossipRouter,
    HeaderAnnouncement,
    MessageType,
    RelayMessage,
    Validate,
    topic_for_namespace,
)
from luxrelay.net import GossipDriver, NetConfig, RelayHost, Validator, raw_pubsub_peer
from luxrelay.net.bans import BanList, steady_ms
from luxrelay.net.negotiation import NoiseYamuxUpgrader
from luxrelay.net.transport import RelayTcpStream, SocketRegistry

DEADLINE_S = float(os.environ.get("LUXRELAY_NET_DEADLINE_S", "120"))
"""Seconds a test may take before it has failed; hours in long runs."""
NAMESPACE = b"\x22" * 20
TOPIC = topic_for_namespace("testnet", NamespaceId(NAMESPACE))
LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test under trio."""
    test: Callable[..., Coroutine[Any, Any, None]] = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def main() -> None:
        with trio.fail_after(DEADLINE_S):
            await test(**arguments)

    trio.run(main)
    return True


async def until(condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
    """The condition holds, or the test has failed."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is somebody else's state
            await trio.sleep(0.01)


async def eventually(look: Callable[[], object], found: object, *, seconds: float = 120.0) -> None:
    """What another process answers is ``found``, or the test has failed."""
    with trio.fail_after(seconds):
        while await trio.to_thread.run_sync(look) != found:  # noqa: ASYNC110 - it is elsewhere
            await trio.sleep(0.02)


def envelope(seq: int, topic: str, size: int) -> bytes:
    """Bytes that the router takes for a header message; no signature in it is valid."""
    header = b"\x01\x00" + NAMESPACE + seq.to_bytes(8) + bytes(size - len(topic) - 56)
    announcement = HeaderAnnouncement(header_bytes=header, source=b"source", timestamp_ms=1)
    message = RelayMessage(type=MessageType.HEADER, topic=topic, payload=announcement.encode())
    return message.encode()


class Relay:
    """A host, a router, a driver, and what was delivered."""

    def __init__(
        self,
        host: RelayHost,
        validate: Validator | None,
        config: NetConfig,
        *,
        strict: bool = False,
    ) -> None:
        self.host = host
        self.delivered: list[bytes] = []
        self.judged = 0
        self.router = GossipRouter(
            replace(GossipParams.small(), exempt_loopback=not strict),
            rng=random.Random(7),
            own_id=host.peer_id,
            diversity=DiversityParams() if strict else None,
        )
        self.driver = GossipDriver(
            self.router,
            host,
            validate=validate or self._accept,
            config=config,
            rng=random.Random(8),
            deliver=lambda action: self.delivered.append(action.data),
        )

    async def _accept(self, batch: list[Validate]) -> list[VerdictKind]:
        self.judged += len(batch)
        await trio.lowlevel.checkpoint()
        return [VerdictKind.ACCEPT] * len(batch)

    @property
    def address(self) -> str:
        """Where to dial it."""
        return self.host.addresses[0]

    def mesh(self, topic: str = TOPIC) -> int:
        """Mesh peers of the topic."""
        return self.router.stats().mesh.get(topic, 0)


class World:
    """Makes hosts, and what stands between them."""

    until = staticmethod(until)
    eventually = staticmethod(eventually)
    topic = TOPIC
    raw_peer = staticmethod(raw_pubsub_peer)

    @staticmethod
    def config(**bounds: Any) -> NetConfig:
        """Loopback, with small waits."""
        return replace(
            NetConfig(listen=LOOPBACK, close_timeout_s=2.0, loopback_exempt=True), **bounds
        )

    async def host(
        self,
        nursery: trio.Nursery,
        name: str,
        *,
        bans_path: Path | None = None,
        local: str | None = None,
        **bounds: Any,
    ) -> RelayHost:
        """A running host whose identity follows from its name; it dials from its local address."""
        config = self.config(**bounds)
        bans = BanList(config.bans_max, bans_path)
        bans.load(steady_ms())
        host = RelayHost(seed(name), config, bans=bans)
        host._transport.local_host = local
        await nursery.start(host.run)
        return host

    @staticmethod
    def seed(name: str) -> bytes:
        """The identity seed of a host of that name."""
        return seed(name)

    async def relay(
        self,
        nursery: trio.Nursery,
        name: str,
        *,
        peers: tuple[str, ...] = (),
        topics: tuple[str, ...] = (TOPIC,),
        validate: Validator | None = None,
        strict: bool = False,
        **bounds: Any,
    ) -> Relay:
        """A host with a router and a driver, all running; a strict one counts loopback, too."""
        host = await self.host(nursery, name, **bounds)
        relay = Relay(host, validate, replace(host.config, peers=peers), strict=strict)
        await nursery.start(relay.driver.run)
        for topic in topics:
            relay.driver.subscribe(topic)
        return relay

    @staticmethod
    async def meshed(*relays: Relay) -> None:
        """Each relay has all the others in its mesh of the topic."""
        for relay in relays:
            await until(
                lambda relay=relay: relay.mesh() == len(relays) - 1  # type: ignore[misc]
            )

    @staticmethod
    def envelope(seq: int, *, topic: str = TOPIC, size: int = 340) -> bytes:
        """An encoded header message of so many bytes, the ``seq``-th of its namespace."""
        return envelope(seq, topic, size)

    @staticmethod
    @asynccontextmanager
    async def raw_mux(
        address: str, name: str, *, local: str | None = None
    ) -> AsyncIterator[RawMux]:
        """A connection that has proven the identity of that name, and then sends what it is told.

        Args:
            address: Multiaddress of the node, its peer id included.
            name: Whose identity is proven.
            local: Address of this machine to connect from.

        """
        parts = address.split("/")
        keys = create_new_key_pair(seed(name))
        noise = NoiseTransport(keys, noise_privkey=new_noise_key_pair().private_key)
        upgrader = NoiseYamuxUpgrader(noise, lambda secured, _: RawMux(secured), 10.0)
        socket = await trio.open_tcp_stream(parts[2], int(parts[4]), local_address=local)
        stream = RelayTcpStream(socket, SocketRegistry())
        try:
            peer = ID.from_base58(parts[6])
            raw = RawConnection(stream, initiator=True)
            secured = await upgrader.upgrade_security(raw, is_initiator=True, peer_id=peer)
            mux = await upgrader.upgrade_connection(secured, peer)
            assert isinstance(mux, RawMux)
            yield mux
        finally:
            await stream.cut()

    async def proxy(self, nursery: trio.Nursery, address: str) -> Proxy:
        """A TCP proxy in front of the address."""
        proxy = Proxy(address)
        await nursery.start(proxy.run)
        return proxy


class RawMux:
    """Yamux frames by hand over a real Noise session."""

    def __init__(self, secured: Any) -> None:
        self._secured = secured
        self.granted: Counter[int] = Counter()
        """Bytes of credit told for each stream, beyond the first window."""
        self.reset: set[int] = set()
        """Streams that the other side reset."""
        self.pongs = 0
        """Pings of ours that were answered."""
        self.over = False
        """Whether the other side hung up."""

    async def send(
        self, kind: int, flags: int, stream: int, length: int = 0, body: bytes = b""
    ) -> None:
        """One frame, true or not; nothing happens when the connection is over."""
        frame = struct.pack("!BBHII", 0, kind, flags, stream, length) + body
        try:
            await self._secured.write(frame)
        except BaseLibp2pError:
            self.over = True

    async def data(self, stream: int, body: bytes, *, flags: int = 0) -> None:
        """Frames of at most 64 KiB of data, the first with the flags."""
        for at in range(0, len(body), 65_000):
            part = body[at : at + 65_000]
            await self.send(0, flags if at == 0 else 0, stream, len(part), part)

    async def listen(self) -> None:
        """Take what comes until the other side hangs up."""
        try:
            while len(header := await self._secured.read(12)) == 12:
                _, kind, flags, stream, length = struct.unpack("!BBHII", header)
                if kind == 0 and length:
                    await self._secured.read(length)
                elif kind == 1:
                    self.granted[stream] += length
                    if flags & 8:
                        self.reset.add(stream)
                elif kind == 2 and flags & 2:
                    self.pongs += 1
        except BaseLibp2pError:
            pass
        self.over = True


def seed(name: str) -> bytes:
    """32 bytes that follow from the name."""
    return name.encode().ljust(32, b"\x00")


class Proxy:
    """Passes bytes on until it is frozen; then both ends see a network that says nothing."""

    def __init__(self, address: str) -> None:
        parts = address.split("/")
        self._port = int(parts[4])
        self._suffix = "/".join(parts[5:])
        self._flow = trio.Event()
        self._flow.set()
        self.address = ""

    def freeze(self) -> None:
        """Nothing passes any more, and nothing is closed."""
        self._flow = trio.Event()

    def thaw(self) -> None:
        """What was held back passes, and what comes after it."""
        self._flow.set()

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        self.address = f"/ip4/127.0.0.1/tcp/{port}/{self._suffix}"
        await trio.serve_listeners(self._serve, listeners, task_status=task_status)

    async def _serve(self, near: trio.SocketStream) -> None:
        async with (
            near,
            await trio.open_tcp_stream("127.0.0.1", self._port) as far,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._pump, near, far, nursery.cancel_scope)
            nursery.start_soon(self._pump, far, near, nursery.cancel_scope)

    async def _pump(
        self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        try:
            while True:
                await self._flow.wait()
                data = await source.receive_some(65_536)
                await self._flow.wait()
                if not data:
                    break
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


@pytest.fixture
def world() -> World:
    """Hosts and proxies."""
    return World()
