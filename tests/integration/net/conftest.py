"""Real hosts on loopback ports of the system's choice; async tests run under trio."""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from luxrelay.bus import NamespaceId, VerdictKind
from luxrelay.gossip import (
    GossipParams,
    GossipRouter,
    HeaderAnnouncement,
    MessageType,
    RelayMessage,
    Validate,
    topic_for_namespace,
)
from luxrelay.net import GossipDriver, NetConfig, RelayHost, Validator, raw_pubsub_peer
from luxrelay.net.bans import BanList

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

    def __init__(self, host: RelayHost, validate: Validator | None, config: NetConfig) -> None:
        self.host = host
        self.delivered: list[bytes] = []
        self.judged = 0
        self.router = GossipRouter(
            replace(GossipParams.small(), exempt_loopback=True),
            rng=random.Random(7),
            own_id=host.peer_id,
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
        self, nursery: trio.Nursery, name: str, *, bans_path: Path | None = None, **bounds: Any
    ) -> RelayHost:
        """A running host whose identity follows from its name."""
        config = self.config(**bounds)
        bans = BanList(config.bans_max, bans_path)
        bans.load(0)
        host = RelayHost(seed(name), config, bans=bans)
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
        **bounds: Any,
    ) -> Relay:
        """A host with a router and a driver, all running."""
        host = await self.host(nursery, name, **bounds)
        relay = Relay(host, validate, replace(host.config, peers=peers))
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

    async def proxy(self, nursery: trio.Nursery, address: str) -> Proxy:
        """A TCP proxy in front of the address."""
        proxy = Proxy(address)
        await nursery.start(proxy.run)
        return proxy


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
