"""One gossip network in one process, measured: LuxRelay's, or py-libp2p's own.

Prints one JSON line: messages_per_s, cpu_ms a message over all nodes, p50_ms, p99_ms, delivered
(share of what should have arrived). The programs in tests/interop/js and go measure the same with
js-libp2p and go-libp2p-pubsub. Usage, as `bench/net.py` calls it:

    python bench/gossip_networks.py luxrelay|py-libp2p CONFIG

CONFIG is JSON: nodes, messages, window, size, signed, topic. Everybody is connected with everybody,
the first node publishes, and each window of messages has arrived everywhere before the next. With
`signed`, the publisher signs and each receiver verifies one Ed25519 signature a message.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import trio

from luxrelay.bus import Digest, SignatureScheme, SigningKey, VerdictKind
from luxrelay.gossip import (
    Deliver,
    GossipParams,
    GossipRouter,
    HeaderAnnouncement,
    MessageType,
    RelayMessage,
    Validate,
)
from luxrelay.net import GossipDriver, NetConfig, RelayHost

STUCK_S = 5.0
"""Seconds without any arrival after which the rest of a window counts as lost."""
DEGREE_MIN = 4


class Network:
    """What every implementation shares: the messages, the clock and the counting."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.nodes: int = config["nodes"]
        self.messages: int = config["messages"]
        self.window: int = config["window"]
        self.size: int = config["size"]
        self.signed: bool = config["signed"]
        self.topic: str = config["topic"]
        self.latencies_us: list[int] = []
        self.key = SigningKey.from_seed(SignatureScheme.ED25519, b"\x01" * 32)
        self._seq = 0

    def envelope(self) -> bytes:
        """The next message; its announcement says when it was made, in microseconds."""
        signature = 64 if self.signed else 0
        source = 38 if self.signed else 6
        room = self.size - len(self.topic) - 20 - source - signature
        header = b"\x01\x00" + b"\x22" * 20 + self._seq.to_bytes(8) + bytes(room - 30)
        self._seq += 1
        made_us = time.time_ns() // 1000
        if self.signed:
            announcement = HeaderAnnouncement.signed(header, self.key, made_us)
        else:
            announcement = HeaderAnnouncement(
                header_bytes=header, source=b"source", timestamp_ms=made_us
            )
        return RelayMessage(
            type=MessageType.HEADER, topic=self.topic, payload=announcement.encode()
        ).encode()

    def arrived(self, data: bytes) -> None:
        """A message was delivered to an application."""
        at = len(data) - 2 - 2 - 8 - (64 if self.signed else 0)
        made_us = int.from_bytes(data[at : at + 8])
        self.latencies_us.append(time.time_ns() // 1000 - made_us)

    async def measure(self, publish: Callable[[list[bytes]], Awaitable[None]]) -> dict[str, float]:
        """Publish and wait, first to warm up and then to count."""
        await self._run(publish, min(self.messages, 4 * self.window))
        self.latencies_us.clear()
        cpu, began = time.process_time(), time.perf_counter()
        lost_s = await self._run(publish, self.messages)
        seconds = time.perf_counter() - began - lost_s
        used = time.process_time() - cpu
        times = sorted(self.latencies_us)
        due = self.messages * (self.nodes - 1)
        return {
            "messages_per_s": len(times) / (self.nodes - 1) / seconds,
            "cpu_ms": used * 1000 / self.messages,
            "p50_ms": times[len(times) // 2] / 1000,
            "p99_ms": times[int(0.99 * (len(times) - 1))] / 1000,
            "delivered": len(times) / due,
        }

    async def _run(self, publish: Callable[[list[bytes]], Awaitable[None]], count: int) -> float:
        """Seconds that were waited for messages that never came."""
        lost_s = 0.0
        for start in range(0, count, self.window):
            burst = min(self.window, count - start)
            wanted = len(self.latencies_us) + burst * (self.nodes - 1)
            await publish([self.envelope() for _ in range(burst)])
            seen, since = len(self.latencies_us), time.perf_counter()
            while len(self.latencies_us) < wanted:
                await trio.lowlevel.checkpoint()
                if len(self.latencies_us) != seen:
                    seen, since = len(self.latencies_us), time.perf_counter()
                elif time.perf_counter() - since > STUCK_S:
                    lost_s += STUCK_S
                    break
        return lost_s


async def luxrelay(network: Network) -> dict[str, float]:
    """Ours: router, driver, host, as a node runs them."""

    async def judge(batch: list[Validate]) -> list[VerdictKind]:
        await trio.lowlevel.checkpoint()
        if not network.signed:
            return [VerdictKind.ACCEPT] * len(batch)
        return [VerdictKind.ACCEPT if verified(item) else VerdictKind.REJECT for item in batch]

    def deliver(action: Deliver) -> None:
        network.arrived(action.data)

    config = NetConfig(
        listen=("/ip4/127.0.0.1/tcp/0",),
        loopback_exempt=True,
        exchange=False,
        outbound_target=0,
        handshake_timeout_s=60.0,  # ten nodes of one process shake hands; the machine may be busy
        dial_timeout_s=60.0,
    )
    params = GossipParams(exempt_loopback=True, flood_publish=False)
    async with trio.open_nursery() as nursery:
        drivers, routers, hosts = [], [], []
        for number in range(network.nodes):
            host = RelayHost(bytes([number + 1]) * 32, config)
            router = GossipRouter(params, rng=random.Random(number), own_id=host.peer_id)
            driver = GossipDriver(
                router,
                host,
                validate=judge,
                config=config,
                rng=random.Random(number),
                deliver=deliver,
            )
            await nursery.start(host.run)
            await nursery.start(driver.run)
            driver.subscribe(network.topic)
            hosts.append(host)
            routers.append(router)
            drivers.append(driver)
        for number, driver in enumerate(drivers):
            for other in hosts[number + 1 :]:
                await driver.connect(other.addresses[0])
        degree = min(network.nodes - 1, DEGREE_MIN)
        while any(r.stats().mesh.get(network.topic, 0) < degree for r in routers):  # noqa: ASYNC110
            await trio.sleep(0.05)

        async def publish(messages: list[bytes]) -> None:
            await drivers[0].publish([(network.topic, data) for data in messages])

        result = await network.measure(publish)
        nursery.cancel_scope.cancel()
    return result


def verified(item: Validate) -> bool:
    """Whether the announcement's signature holds."""
    announcement = HeaderAnnouncement.decode(item.message.payload)
    return announcement.verify(Digest(hashlib.sha3_256(announcement.header_bytes).digest()))


async def py_libp2p(network: Network) -> dict[str, float]:
    """The library's own GossipSub, with its spam limit of 10 messages a second off."""
    from libp2p import new_host
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.custom_types import TProtocol
    from libp2p.pubsub.gossipsub import GossipSub
    from libp2p.pubsub.pubsub import Pubsub
    from libp2p.tools.anyio_service import background_trio_service
    from libp2p.tools.utils import connect
    from multiaddr import Multiaddr

    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        nodes = []
        for number in range(network.nodes):
            host = new_host(key_pair=create_new_key_pair(bytes([number + 1]) * 32))
            await stack.enter_async_context(host.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]))
            router = GossipSub(
                protocols=[TProtocol("/meshsub/1.1.0")],
                degree=6,
                degree_low=4,
                degree_high=12,
                heartbeat_interval=1,
                spam_protection_enabled=False,
                eclipse_protection_enabled=False,
            )
            pubsub = Pubsub(host, router, strict_signing=network.signed)
            await stack.enter_async_context(background_trio_service(pubsub))
            await stack.enter_async_context(background_trio_service(router))
            await pubsub.wait_until_ready()
            nodes.append((host, router, pubsub))
        for number, (host, _, _) in enumerate(nodes):
            for other, _, _ in nodes[number + 1 :]:
                await connect(host, other)
        await trio.sleep(1)
        for number, (_, _, pubsub) in enumerate(nodes):
            subscription = await pubsub.subscribe(network.topic)
            nursery.start_soon(_take, network, subscription, number != 0)
        degree = min(network.nodes - 1, DEGREE_MIN)
        with trio.move_on_after(30):
            while any(len(r.mesh.get(network.topic, ())) < degree for _, r, _ in nodes):  # noqa: ASYNC110
                await trio.sleep(0.05)

        async def publish(messages: list[bytes]) -> None:
            for data in messages:
                await nodes[0][2].publish(network.topic, data)

        result = await network.measure(publish)
        print(json.dumps(result), flush=True)
        nursery.cancel_scope.cancel()
    return result


async def _take(network: Network, subscription: Any, counted: bool) -> None:
    while True:
        message = await subscription.get()
        if counted:
            network.arrived(message.data)


def main() -> None:
    """Measure one network."""
    measure = {"luxrelay": luxrelay, "py-libp2p": py_libp2p}[sys.argv[1]]
    network = Network(json.loads(sys.argv[2]))
    result = trio.run(measure, network)
    if measure is luxrelay:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
