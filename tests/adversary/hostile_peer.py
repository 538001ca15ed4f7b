"""Hostile peers: real Noise and Yamux handshakes, then frames that no honest router would send.

A peer lies in what it sends and in what it answers, stalls, resets, and leaves in the middle. Its
frames follow from the seed and its number.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from collections.abc import Sequence as Several
from contextlib import suppress
from typing import Any

import trio
from hostile_bytes import (
    EOF,
    RST,
    Sequence,
    dice,
    json_text,
    odd_json,
    odd_proto,
    spoiled,
    steps_of,
)
from hostile_play import RECENT
from libp2p.exceptions import BaseLibp2pError

from luxrelay.bus import MsgHeader, NamespaceId
from luxrelay.client import Outgoing
from luxrelay.errors import LuxRelayError
from luxrelay.gossip import topic_for_namespace
from luxrelay.gossip.envelope import MessageType, RelayMessage
from luxrelay.gossip.rpc_pb2 import RPC
from luxrelay.net.blobs import BLOB_RANGES, BLOBS, BlobRequest, CommitmentKind
from luxrelay.net.config import MESHSUB, NetConfig
from luxrelay.net.exchange import PEERS
from luxrelay.net.hello import HELLO, Hello
from luxrelay.net.host import RelayHost
from luxrelay.net.reconcile import RECONCILE
from luxrelay.net.streams import RelayStream, encode_frame
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.stream_kinds import END, PART, REFUSED, REQUESTS, StreamKind

IDENTIFY, IDENTIFY_PUSH, PING = "/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0", "/ipfs/ping/1.0.0"
NETWORK = "test"
LOST = (LuxRelayError, BaseLibp2pError, trio.BrokenResourceError, trio.ClosedResourceError)
ANSWERS: dict[StreamKind, Any] = {
    StreamKind.LIST_HELD: pb.HeldNamespace,
    StreamKind.RECONCILE: pb.ReconcileReply,
    StreamKind.GET_MESSAGES: pb.GetMessagesResponse,
    StreamKind.SYNC_NAMESPACE: pb.StoredMessage,
    StreamKind.GET_NAMESPACE_HEAD: pb.NamespaceHeadResponse,
    StreamKind.GET_DIGESTS: pb.DigestsResponse,
    StreamKind.LIST_HEADS: pb.NamespaceHeadResponse,
}


class PeerAttack:
    """Makes frames and plays peers against one node.

    Args:
        seed: Of the run.
        address: The node's multiaddress.
        messages: Valid messages to spoil.

    """

    def __init__(self, seed: int, address: str, messages: Several[Outgoing]) -> None:
        self._seed = seed
        self._address = address
        self._messages = messages
        self.recent: deque[Sequence] = deque(maxlen=RECENT)
        self.counts: Counter[str] = Counter()

    # What is said.

    def _envelope(self, rng: random.Random, topic: str) -> bytes:
        held = rng.choice(self._messages)
        payload = len(held.header).to_bytes(2) + held.header
        kind = rng.choice(list(MessageType))
        if rng.random() < 0.7:
            payload = rng.choice(
                (held.header, payload, payload + held.blob, held.header + held.blob)
            )
        data = RelayMessage(type=kind, topic=topic, payload=payload).encode()
        return spoiled(rng, data) if rng.random() < 0.5 else data

    def gossip(self, rng: random.Random) -> bytes:
        """One pubsub RPC."""
        rpc = RPC()
        held = rng.choice(self._messages)
        topics = [
            topic_for_namespace(NETWORK, NamespaceId(held.parent)),
            topic_for_namespace("other", NamespaceId(held.parent)),
        ]
        topic = rng.choice((*topics, topics[0], "x", ""))
        for _ in range(rng.choice((1, 1, 2, 6))):
            kind = rng.randrange(8)
            if kind == 0:
                rpc.subscriptions.add(subscribe=rng.random() < 0.8, topicid=topic)
            elif kind in {1, 2}:
                rpc.publish.add(data=self._envelope(rng, topic or "x"), topic=topic)
            elif kind == 3:
                rpc.control.ihave.add(
                    topicID=topic, messageIDs=[rng.randbytes(32)] * rng.choice((1, 90))
                )
            elif kind == 4:
                rpc.control.iwant.add(messageIDs=[rng.randbytes(rng.choice((0, 32, 33)))])
            elif kind == 5:
                rpc.control.graft.add(topicID=topic)
            elif kind == 6:
                prune = rpc.control.prune.add(topicID=topic, backoff=rng.choice((0, 1, 2**64 - 1)))
                prune.peers.add(peerID=rng.randbytes(38), signedPeerRecord=rng.randbytes(80))
            else:
                rpc.control.idontwant.add(messageIDs=[rng.randbytes(32)])
        for _ in range(rng.choice((0, 0, 1, 2))):
            odd_proto(rng, rpc)
        data = rpc.SerializeToString()
        return spoiled(rng, data) if rng.random() < 0.15 else data

    def hello(self, rng: random.Random) -> bytes:
        """One hello, at times a true one."""
        value = {
            "version": 1, "network": NETWORK, "roles": ["relay"], "agent": "a",
            "limits": {"frameMax": 2**20, "inlineBlobMax": 1}, "proof": "", "record": "",
        }  # fmt: skip
        return json_text(rng, odd_json(rng, value)) if rng.random() < 0.5 else TRUE_HELLO

    def question(self, rng: random.Random) -> bytes:
        """A question of the reconcile stream."""
        kind = rng.choice(list(StreamKind))
        request = REQUESTS[kind]()
        held = rng.choice(self._messages)
        for name in ("namespace_id", "parent_id"):
            if hasattr(request, name):
                setattr(request, name, held.parent)
        if kind is StreamKind.RECONCILE:
            request.method = rng.choice((1, 2))
            request.payload = rng.choice((b"\x61", b"\x61\x00\x00\x02\x00", rng.randbytes(50)))
        for _ in range(rng.choice((0, 1, 1, 3))):
            odd_proto(rng, request)
        data = bytes([kind]) + request.SerializeToString()
        return spoiled(rng, data) if rng.random() < 0.2 else data

    def answer(self, rng: random.Random, question: bytes) -> list[bytes]:
        """Frames that answer a question of the node's, falsely."""
        try:
            kind = StreamKind(question[0])
        except (IndexError, ValueError):
            return [END]
        frames = []
        for _ in range(rng.choice((0, 1, 1, 3, 20))):
            part = self._part(rng, kind)
            for _ in range(rng.choice((0, 1, 1, 2))):
                odd_proto(rng, part)
            data = part.SerializeToString()
            frames.append(PART + (spoiled(rng, data) if rng.random() < 0.15 else data))
        end = rng.random()
        if end < 0.7:
            frames.append(END)
        elif end < 0.85:
            frames.append(REFUSED + rng.choice((b"", b"\x05no", b"\xff\xff\xfe", b"\x00" * 600)))
        if rng.random() < 0.1:
            rng.shuffle(frames)
        if rng.random() < 0.1:
            frames.append(rng.choice((b"", b"\x07", END, rng.randbytes(9))))
        return frames

    def _part(self, rng: random.Random, kind: StreamKind) -> Any:
        held = rng.choice(self._messages)
        namespace = MsgHeader.decode(held.header).namespace_id
        part = ANSWERS[kind]()
        if kind is StreamKind.LIST_HELD:
            part.namespace_id, part.parent_id = namespace, held.parent
            part.steps.extend(rng.choice(([1, 40], [1, 2, 3, 4], [2**64 - 1, 2**64 - 1], [1])))
        elif kind is StreamKind.RECONCILE:
            part.payload = rng.choice(
                (b"", b"\x61", b"\x61\x00\x00\x02\x01" + rng.randbytes(32), rng.randbytes(30))
            )
        elif kind is StreamKind.GET_MESSAGES:
            part.found.add(header=held.header, blob_data=held.blob)
        elif kind is StreamKind.SYNC_NAMESPACE:
            if rng.random() < 0.6:
                part.header, part.blob_data = held.header, held.blob
            else:
                part.status.complete, part.status.last_seq = True, rng.choice((0, 3, 2**64 - 1))
                part.status.namespace_id = namespace
        elif kind in {StreamKind.GET_NAMESPACE_HEAD, StreamKind.LIST_HEADS}:
            part.namespace_id, part.parent_id = namespace, held.parent
            part.earliest_seq, part.latest_seq = 1, rng.choice((1, 60, 2**64 - 1))
            part.contiguous_head, part.messages = part.latest_seq, 50
        return part

    def _blob(self, rng: random.Random) -> bytes:
        commitment = MsgHeader.decode(rng.choice(self._messages).header).blob_commitment
        data = BlobRequest(commitment=commitment, length=rng.choice((1, 20, 2_097_152))).encode()
        return spoiled(rng, data)

    def _range(self, rng: random.Random) -> bytes:
        commitment = MsgHeader.decode(rng.choice(self._messages).header).blob_commitment
        length, offset = rng.choice((1, 20, 2_097_152)), rng.choice((0, 0, 19, 2**32 - 1))
        kind = CommitmentKind(rng.randrange(4))
        count = rng.choice((0, 1, 2_097_152))
        asked = BlobRequest(
            commitment=commitment, length=length, kind=kind, offset=offset, count=count
        )
        return spoiled(rng, asked.encode_range())

    def frames(self, rng: random.Random, protocol: str) -> list[bytes]:
        """Frames for a stream of the protocol, lengths before them."""
        make: Callable[[random.Random], bytes] = {
            HELLO: self.hello,
            RECONCILE: self.question,
            BLOBS: self._blob,
            BLOB_RANGES: self._range,
        }.get(protocol, self.gossip if protocol in MESHSUB else lambda rng: rng.randbytes(32))
        made = [make(rng) for _ in range(rng.choice((1, 3, 8)))]
        if rng.random() < 0.03:
            return [encode_frame(b"")] * rng.choice((1, 40)) + [b"\xff" * 10]
        return [encode_frame(each) for each in made]

    # Who says it.

    async def peer(self, door: str, number: int, frames_wanted: int) -> None:
        """One handshake and about so many frames; door is ``gossip`` or ``reconcile``."""
        rng = dice(self._seed, door, number)
        if rng.random() < 0.05:
            await self._half_a_handshake(rng)
        host = RelayHost(rng.randbytes(32), NetConfig(listen=(), connection_streams_max=64))
        lying = dice(self._seed, door + "-answers", number)

        async def lie(stream: RelayStream) -> None:
            with suppress(*LOST):
                await self._lie(lying, stream)

        for protocol in (*MESHSUB, HELLO, IDENTIFY, BLOBS, BLOB_RANGES, PEERS, RECONCILE):
            host.handle(protocol, lie)
        async with trio.open_nursery() as nursery:
            await nursery.start(host.run)
            with suppress(*LOST), trio.move_on_after(20):
                relay = await host.dial(self._address)
                self.counts["handshakes"] += 1
                await self._speak(rng, host, relay, door, number, frames_wanted)
                if rng.random() < 0.1 or door == "reconcile":
                    await trio.sleep(rng.choice((0.0, 0.2, 0.6)))  # a stall, or time to be asked
            nursery.cancel_scope.cancel()

    async def _speak(  # noqa: PLR0917
        self, rng: random.Random, host: RelayHost, relay: Any, door: str, number: int, wanted: int
    ) -> None:
        choice = (RECONCILE,) if door == "reconcile" else (
            *MESHSUB, *MESHSUB, *MESHSUB, HELLO, IDENTIFY, IDENTIFY_PUSH, PING, BLOBS, BLOB_RANGES,
            PEERS,
        )  # fmt: skip
        sent = 0
        if door == "reconcile":
            # So that the node takes us for a peer of its topic, and asks us too.
            with suppress(*LOST):
                stream = await host.open_stream(relay, *MESHSUB)
                topic = topic_for_namespace(NETWORK, NamespaceId(self._messages[0].parent))
                rpc = RPC()
                rpc.subscriptions.add(subscribe=True, topicid=topic)
                await stream.send_all(encode_frame(rpc.SerializeToString()))
        while sent < wanted:
            protocol = rng.choice(choice)
            frames = self.frames(rng, protocol)
            sent += len(frames)
            self.counts["frames"] += len(frames)
            sequence = Sequence(door, protocol, number, steps_of(rng, frames))
            self.recent.append(sequence)
            with suppress(*LOST):
                stream = await host.open_stream(relay, protocol)
                with trio.move_on_after(2):
                    await self._steps(stream, sequence)
                    if rng.random() < 0.5:
                        with trio.move_on_after(0.05):
                            await stream.receive_some(65_536)
                if rng.random() < 0.7:
                    await stream.reset()
            if not host.is_connected(relay):
                return

    async def _steps(self, stream: RelayStream, sequence: Sequence) -> None:
        for step in sequence.steps:
            if isinstance(step, bytes):
                await stream.send_all(step)
            elif step == EOF:
                await stream.send_eof()
            elif step == RST:
                await stream.reset()
                return
            else:
                await trio.sleep(0.3)

    async def _lie(self, rng: random.Random, stream: RelayStream) -> None:
        """Answer what the node asks."""
        if rng.random() < 0.05:
            await trio.sleep(1)
        while data := await stream.receive_some(65_536):
            if stream.protocol == RECONCILE:
                frames = [encode_frame(each) for each in self.answer(rng, data[1:])]
            elif stream.protocol == HELLO:
                frames = [encode_frame(self.hello(rng))]
            elif stream.protocol in MESHSUB:
                continue
            else:
                frames = self.frames(rng, stream.protocol)
            self.counts["frames"] += len(frames)
            self.counts["answers"] += len(frames)
            if not frames:
                return
            sequence = Sequence("answers", stream.protocol, 0, steps_of(rng, frames))
            self.recent.append(sequence)
            await self._steps(stream, sequence)
        if stream.protocol in {IDENTIFY, PEERS}:
            await stream.send_all(encode_frame(rng.randbytes(60)))

    async def _half_a_handshake(self, rng: random.Random) -> None:
        port = int(self._address.split("/tcp/")[1].split("/")[0])
        with suppress(OSError, trio.BrokenResourceError), trio.move_on_after(2):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                begin = b"\x13/multistream/1.0.0\n\x07/noise\n"
                await stream.send_all(spoiled(rng, begin + b"\x00\x20" + rng.randbytes(32)))
                with trio.move_on_after(0.1):
                    await stream.receive_some(4096)


TRUE_HELLO = Hello(network=NETWORK, agent="a").encode()
