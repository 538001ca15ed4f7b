"""What a stranger does to a node in `bench/cost_of_strangers.py`, by the name of the attack.

Each function works until a time of the steady clock, in one of several threads of a process.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import os
import queue
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import grpc
import trio
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub
from libp2p.exceptions import BaseLibp2pError

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    lane,
    sha3_commitment,
    topic_namespace,
)
from luxrelay.bus.policy import default_policy
from luxrelay.errors import LuxRelayError
from luxrelay.gossip import topic_for_namespace
from luxrelay.gossip.envelope import MessageType, RelayMessage
from luxrelay.gossip.rpc_pb2 import RPC
from luxrelay.net.raw_peer import raw_pubsub_peer
from luxrelay.node.folder import Runtime
from luxrelay.sync import PublishItem
from luxrelay.sync.rpc import relay_node_pb2 as node_pb
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.relay_node_pb2_grpc import RelayNodeStub
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncStub

NETWORK: Final = "bench"
TOPIC: Final = "/bench/1/cost"
PARENT: Final = topic_namespace(TOPIC)
POLICY: Final = default_policy(PARENT).policy_hash
RANGES: Final = 65_535
TINY: Final = {
    "skip": b"\x02\x00\x00",
    "fp": b"\x02\x00\x01" + b"\x07" * 16,
    "list0": b"\x02\x00\x02\x00",
    "prefix": b"\x02\x20" + b"\x80" * 32 + b"\x00",
}
GAP_WAIT_MS: Final = 600_000
GAP_SOCKETS: Final = 4
"""Subscriptions of a thread that wait for a gap."""
BAD_ITEMS: Final = 200
"""Messages with a wrong signature in one request."""
KEY: Final = SigningKey.from_seed(SignatureScheme.ED25519, bytes(32))
LANE: Final = lane(PARENT, KEY.public_field)
GAP_KEY: Final = SigningKey.from_seed(SignatureScheme.ED25519, b"\1" * 32)
GAP_LANE: Final = lane(PARENT, GAP_KEY.public_field)
HEAD: Final = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX: "
# Who has no token may not publish, and no other route takes a body: it is refused by its head.
BODY: Final = (
    b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 1000000\r\n\r\n"
)
LOST: Final = (OSError, LuxRelayError, BaseLibp2pError, trio.BrokenResourceError)

Kind = Callable[[float], None]


def item(key: SigningKey, seq: int, blob: bytes = b"x", namespace: bytes = b"") -> PublishItem:
    """Return a signed message of a lane."""
    header = MsgHeader(
        namespace_id=NamespaceId(namespace) if namespace else lane(PARENT, key.public_field),
        seq=seq,
        timestamp=time.time_ns() // 1_000_000,
        blob_commitment=sha3_commitment(blob),
        blob_len=len(blob),
        policy_hash=POLICY,
    )
    return PublishItem(header=key.sign_header(header).encode(), blob=blob, parent_id=PARENT)


def reconcile(place: Runtime, until: float, piece: bytes) -> None:
    """Send messages of tiny ranges, one after another."""
    payload = b"\x61" + piece * RANGES
    while time.monotonic() < until:
        waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        waiting.put(pb.ReconcileRequest(method=pb.RECONCILE_METHOD_RANGES, payload=payload))
        with suppress(grpc.RpcError), grpc.insecure_channel(place.sync) as channel:
            left = until - time.monotonic()
            for _ in RelaySyncStub(channel).Reconcile(iter(waiting.get, None), timeout=left):
                waiting.put(pb.ReconcileRequest(payload=payload))
        waiting.put(None)


def pages(place: Runtime, until: float) -> None:
    """Make every call that reads the store, one after another."""
    ids = [os.urandom(32) for _ in range(1_000)]
    asked = itertools.cycle(
        (
            ("GetMessages", pb.GetMessagesRequest(ids=ids)),
            ("ListHeads", pb.ListHeadsRequest()),
            ("ListHeld", pb.ListHeldRequest()),
            ("GetDigests", pb.DigestsRequest(namespace_id=LANE, blocks=64)),
            ("SyncNamespace", pb.SyncRequest(namespace_id=LANE, max_messages=10_000)),
        )
    )
    with grpc.insecure_channel(place.sync) as channel:
        stub = RelaySyncStub(channel)
        while time.monotonic() < until:
            method, request = next(asked)
            with suppress(grpc.RpcError):
                found = getattr(stub, method)(request, timeout=max(0.1, until - time.monotonic()))
                if hasattr(found, "__next__"):
                    for _ in found:
                        pass


def resets(place: Runtime, until: float) -> None:
    """Begin calls and cancel them at once: an HTTP/2 reset each."""
    with grpc.insecure_channel(place.sync) as channel:
        call = RelaySyncStub(channel).GetNamespaceHead
        request = pb.NamespaceHeadRequest(namespace_id=bytes(20))
        while time.monotonic() < until:
            call.future(request).cancel()


def reflection(place: Runtime, until: float) -> None:
    """Ask for the files of a service, again and again on one stream."""

    def ask() -> Any:
        while time.monotonic() < until:
            yield reflection_pb2.ServerReflectionRequest(
                file_containing_symbol="lux.relay.v1.RelaySync"
            )

    with grpc.insecure_channel(place.sync) as channel:
        while time.monotonic() < until:
            with suppress(grpc.RpcError):
                left = max(0.1, until - time.monotonic())
                for _ in ServerReflectionStub(channel).ServerReflectionInfo(ask(), timeout=left):
                    pass


def http_paths(place: Runtime, until: float, paths: Sequence[str]) -> None:
    """Ask the gateway for paths again and again."""
    asked = itertools.cycle(paths)
    while time.monotonic() < until:
        line = http.client.HTTPConnection(place.gateway, timeout=10)
        with suppress(OSError, http.client.HTTPException):
            while time.monotonic() < until:
                line.request("GET", next(asked))
                line.getresponse().read()
        line.close()


def operator_page(place: Runtime, until: float, path: str) -> None:
    """Ask the operator's port for a page, each time over a connection of its own."""
    while time.monotonic() < until:
        line = http.client.HTTPConnection(place.http, timeout=10)
        with suppress(OSError, http.client.HTTPException):
            line.request("GET", path)
            line.getresponse().read()
        line.close()


def frames(place: Runtime, until: float, frame: bytes) -> None:
    """Send a flood of WebSocket frames."""
    while time.monotonic() < until:
        with suppress(OSError), _websocket(place) as sock:
            while time.monotonic() < until:
                with suppress(TimeoutError):
                    sock.send(frame * (65_536 // len(frame)))
                with suppress(TimeoutError, BlockingIOError):
                    sock.recv(65_536, socket.MSG_DONTWAIT)


def drips(until: float, address: str, head: bytes, drop: bytes) -> None:
    """Begin a request, and send the rest of it as tiny pieces as a socket takes, for ever."""
    host, _, port = address.rpartition(":")
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection((host, int(port)), 5) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(head)
            while time.monotonic() < until:
                sock.sendall(drop)


def websocket_drips(place: Runtime, until: float) -> None:
    """Send a WebSocket message of a megabyte byte by byte."""
    while time.monotonic() < until:
        with suppress(OSError), _websocket(place) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(b"\x81\xff" + (1 << 20).to_bytes(8) + bytes(4))
            while time.monotonic() < until:
                sock.sendall(b" ")


def subscriptions(place: Runtime, until: float) -> None:
    """Subscribe, take what is told at once, and begin again."""
    while time.monotonic() < until:
        with suppress(OSError), _websocket(place) as sock:
            sock.sendall(_subscribe(LANE, 0))
            with suppress(TimeoutError):
                while time.monotonic() < until and sock.recv(1 << 20):
                    pass


def gap_waits(place: Runtime, until: float) -> None:
    """Wait behind a gap with many subscriptions while messages come; over both doors."""
    socks = []
    with grpc.insecure_channel(place.sync) as channel:
        for _ in range(GAP_SOCKETS):
            with suppress(OSError):
                sock = _websocket(place)
                sock.sendall(_subscribe(GAP_LANE, GAP_WAIT_MS))
                socks.append(sock)
        wanted = node_pb.SubscribeRequest(
            namespaces=[GAP_LANE], without_lanes=True, gap_wait_ms=GAP_WAIT_MS
        )
        for _ in range(2):
            call = RelayNodeStub(channel).Subscribe(wanted)
            threading.Thread(target=_drain, args=(call,), daemon=True).start()
        while time.monotonic() < until:
            for sock in socks:
                with suppress(OSError):
                    sock.recv(1 << 20, socket.MSG_DONTWAIT)
            time.sleep(0.02)
    for sock in socks:
        sock.close()


def _drain(call: Any) -> None:
    with suppress(grpc.RpcError):
        for _ in call:
            pass


def bad_signatures(place: Runtime, until: float) -> None:
    """Publish messages whose signature is of another message."""
    good = item(KEY, 1, b"y")
    bad = good.header[:-1] + bytes([good.header[-1] ^ 1])
    request = node_pb.PublishRequest(
        items=[
            node_pb.PublishItem(header=bad, blob=good.blob, parent_id=PARENT)
            for _ in range(BAD_ITEMS)
        ]
    )
    with grpc.insecure_channel(place.sync) as channel:
        while time.monotonic() < until:
            with suppress(grpc.RpcError):
                left = max(0.1, until - time.monotonic())
                asked = itertools.takewhile(
                    lambda _: time.monotonic() < until, itertools.repeat(request)
                )
                for _ in RelayNodeStub(channel).Publish(asked, timeout=left):
                    pass


def sockets(until: float, address: str) -> None:
    """Connect and leave, again and again."""
    host, _, port = address.rpartition(":")
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
            pass


def connections(place: Runtime, until: float) -> None:
    """Make a call on ever new connections to the sync port."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    request = pb.NamespaceHeadRequest(namespace_id=bytes(20))
    while time.monotonic() < until:
        with (
            suppress(grpc.RpcError),
            grpc.insecure_channel(place.sync, options=options) as channel,
        ):
            RelaySyncStub(channel).GetNamespaceHead(request, timeout=5)


def handshakes(place: Runtime, until: float) -> None:
    """Come as ever new peers over gossip, and leave."""

    async def come() -> None:
        while time.monotonic() < until:
            with suppress(*LOST), trio.move_on_after(5):
                async with raw_pubsub_peer(place.gossip[0], os.urandom(32)):
                    pass

    with suppress(BaseExceptionGroup):
        trio.run(come)


def empty_publishes(place: Runtime, until: float) -> None:
    """Publish nothing, request after request on one stream, each as soon as it is answered."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    while time.monotonic() < until:
        waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        waiting.put(node_pb.PublishRequest())
        with grpc.insecure_channel(place.sync, options=own) as channel, suppress(grpc.RpcError):
            for _ in RelayNodeStub(channel).Publish(iter(waiting.get, None), timeout=60):
                if time.monotonic() > until:
                    waiting.put(None)
                    return
                waiting.put(node_pb.PublishRequest())
        waiting.put(None)


def gossip_frames(place: Runtime, until: float) -> None:
    """Flood as a peer: hints, questions, bad signatures and bytes that are no frame."""
    topic = topic_for_namespace(NETWORK, PARENT)
    rng = random.Random(threading.get_ident())

    async def one() -> None:
        async with raw_pubsub_peer(place.gossip[0], os.urandom(32), topics=[topic]) as peer:
            ready = [_rpc(rng, topic, kind) for kind in range(4) for _ in range(8)]
            for number in itertools.count():
                await peer.send_rpc(ready[number * 7 % (24 if number % 1_000 else 32)])
                if time.monotonic() > until:
                    return

    async def flood() -> None:
        while time.monotonic() < until:
            with suppress(*LOST), trio.move_on_after(until - time.monotonic()):
                await one()
            await trio.sleep(0.01)

    while time.monotonic() < until:
        with suppress(BaseExceptionGroup):
            trio.run(flood)


def _rpc(rng: random.Random, topic: str, kind: int) -> bytes:
    made = RPC()
    ids = [rng.randbytes(32) for _ in range(90)]
    if kind == 0:
        made.control.ihave.add(topicID=topic, messageIDs=ids)
    elif kind == 1:
        made.control.iwant.add(messageIDs=ids)
    elif kind == 2:
        good = item(KEY, rng.randrange(2, 10**6))
        bad = good.header[:-1] + bytes([good.header[-1] ^ 1])
        payload = len(bad).to_bytes(2) + bad + good.blob
        envelope = RelayMessage(type=MessageType.HEADER, topic=topic, payload=payload)
        made.publish.add(data=envelope.encode(), topic=topic)
    else:
        return rng.randbytes(1_000)
    return made.SerializeToString()


def _tcp_of(place: Runtime) -> str:
    parts = place.gossip[0].split("/")
    return f"{parts[2]}:{parts[4]}"


def _subscribe(namespace: bytes, gap_wait_ms: int) -> bytes:
    wanted = {
        "type": "subscribe",
        "namespaces": [namespace.hex()],
        "after": 0,
        "lanes": False,
        "gapWaitMs": gap_wait_ms,
    }
    text = json.dumps(wanted).encode()
    return b"\x81\xfe" + len(text).to_bytes(2) + bytes(4) + text


def _websocket(place: Runtime) -> socket.socket:
    host, _, port = place.gateway.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=0.5)
    key = base64.b64encode(os.urandom(16)).decode()
    sock.sendall(
        f"GET /v1/stream HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    sock.recv(4_096)
    return sock


def secure_handshakes(until: float, address: str) -> None:
    """Shake hands by TLS, say nothing and leave."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    while time.monotonic() < until:
        with (
            suppress(OSError),
            socket.create_connection((host, int(port)), 5) as raw,
            context.wrap_socket(raw, server_hostname="localhost"),
        ):
            pass


def kinds(place: Runtime) -> dict[str, Kind]:
    """Return what one thread of a sender does, by the name of the attack."""
    paths = [f"/v1/namespaces/0x{LANE.hex()}/messages?limit=1000", "/v1/namespaces"]
    return {
        **{
            f"reconcile {name}": partial(_late, reconcile, place, piece)
            for name, piece in TINY.items()
        },
        "pages": lambda until: pages(place, until),
        "HTTP/2 resets": lambda until: resets(place, until),
        "reflection": lambda until: reflection(place, until),
        "HTTP requests": lambda until: http_paths(place, until, ["/v1/status"]),
        "HTTP pages": lambda until: http_paths(place, until, paths),
        "pings": lambda until: frames(place, until, b"\x89\x80\0\0\0\0"),
        "pongs": lambda until: frames(place, until, b"\x8a\x80\0\0\0\0"),
        "drips, WebSocket": lambda until: websocket_drips(place, until),
        "drips, head": lambda until: drips(until, place.gateway, HEAD, b"x"),
        "drips, refused body": lambda until: drips(until, place.gateway, BODY, b" "),
        "drips, pages port": lambda until: drips(until, place.http, HEAD, b"x"),
        "drips, gossip": lambda until: drips(until, _tcp_of(place), b"\x13", b"/"),
        "subscriptions": lambda until: subscriptions(place, until),
        "gap waits": lambda until: gap_waits(place, until),
        "bad signatures": lambda until: bad_signatures(place, until),
        "empty publishes": lambda until: empty_publishes(place, until),
        **{
            f"pages port {path}": partial(_late_page, place, path)
            for path in ("/metrics", "/status", "/healthz", "/nothing")
        },
        "sockets, pages port": lambda until: sockets(until, place.http),
        "sockets, HTTP": lambda until: sockets(until, place.gateway),
        "sockets, gRPC": lambda until: sockets(until, place.sync),
        "connections, gRPC": lambda until: connections(place, until),
        "TLS handshakes, HTTP": lambda until: secure_handshakes(until, place.gateway),
        "TLS handshakes, gRPC": lambda until: secure_handshakes(until, place.grpc),
        "gossip handshakes": lambda until: handshakes(place, until),
        "gossip frames": lambda until: gossip_frames(place, until),
    }


def _late_page(place: Runtime, path: str, until: float) -> None:
    operator_page(place, until, path)


def _late(
    work: Callable[[Runtime, float, bytes], None], place: Runtime, piece: bytes, until: float
) -> None:
    work(place, until, piece)
