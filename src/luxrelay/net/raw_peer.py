"""A diagnostic peer: real libp2p, then exactly the bytes it is told to send.

For tests and the demonstration, where something must send what no honest router would. It has a
`RelayHost` of its own, listens on nothing, and keeps no mesh.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from luxrelay.errors import FrameError
from luxrelay.gossip import PeerId
from luxrelay.net.config import MESHSUB, NetConfig
from luxrelay.net.host import RelayHost
from luxrelay.net.streams import FrameReader, RelayStream, encode_frame

_KEPT_MAX = 1024
"""Frames kept for `received`; later ones are counted only."""


class RawPubsubPeer:
    """Connected to one relay; made by `raw_pubsub_peer`."""

    def __init__(self, host: RelayHost, relay: PeerId, stream: RelayStream) -> None:
        self.host = host
        self.relay = relay
        self._stream = stream
        self.received: list[bytes] = []
        self.received_count = 0
        self._arrived = trio.Event()

    async def send_rpc(self, rpc: bytes) -> None:
        """The RPC is on its way, framed as it should be.

        Raises:
            trio.BrokenResourceError: The relay has ended the stream.

        """
        await self._stream.send_all(encode_frame(rpc))

    async def send_raw(self, data: bytes) -> None:
        """The bytes are on their way as they are.

        Raises:
            trio.BrokenResourceError: The relay has ended the stream.

        """
        await self._stream.send_all(data)

    async def subscribe(self, topics: Sequence[str]) -> None:
        """The relay has been told that we want these topics."""
        await self.send_rpc(subscription_rpc(topics))

    async def open_stream(self, protocol: str = MESHSUB[0]) -> RelayStream:
        """A further stream to the relay."""
        return await self.host.open_stream(self.relay, protocol)

    async def wait_received(self, count: int) -> None:
        """At least so many frames have come from the relay."""
        while self.received_count < count:
            await self._arrived.wait()

    async def wait_ended(self) -> None:
        """The relay has ended our stream, or the connection."""
        while await self._stream.receive_some(4096):
            pass

    async def serve(self, stream: RelayStream) -> None:
        """Takes what the relay sends and keeps the first frames of it."""
        reader = FrameReader(stream, self.host.config)
        try:
            while frames := await reader.receive():
                self.received_count += len(frames)
                self.received.extend(frames[: max(0, _KEPT_MAX - len(self.received))])
                self._arrived.set()
                self._arrived = trio.Event()
        except FrameError:
            return


@asynccontextmanager
async def raw_pubsub_peer(
    address: str, seed: bytes, *, topics: Sequence[str] = (), deaf: bool = False
) -> AsyncIterator[RawPubsubPeer]:
    """A peer connected to the relay at ``address`` and subscribed to ``topics``.

    Args:
        address: Full multiaddress of the relay, with its peer id.
        seed: 32 bytes; the peer's identity.
        topics: What to subscribe to.
        deaf: Take the relay's stream and never read from it.

    Raises:
        AddressError, NetError: The relay cannot be reached.

    """
    host = RelayHost(seed, NetConfig(listen=()))
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run)
        waiting = trio.Event()
        peers: list[RawPubsubPeer] = []

        async def serve(stream: RelayStream) -> None:
            await waiting.wait()
            if deaf:
                await trio.sleep_forever()
            await peers[0].serve(stream)

        for protocol in MESHSUB:
            host.handle(protocol, serve)
        relay = await host.dial(address)
        peer = RawPubsubPeer(host, relay, await host.open_stream(relay, *MESHSUB))
        peers.append(peer)
        waiting.set()
        if topics:
            await peer.subscribe(topics)
        try:
            yield peer
        finally:
            nursery.cancel_scope.cancel()


def subscription_rpc(topics: Sequence[str]) -> bytes:
    """One RPC that subscribes to each topic: field 1 of ``RPC`` is {1: bool, 2: string}."""
    rpc = b""
    for topic in topics:
        name = topic.encode()
        rpc += b"\x0a" + encode_frame(b"\x08\x01\x12" + encode_frame(name))
    return rpc
