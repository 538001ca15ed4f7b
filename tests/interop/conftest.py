"""Peers of three languages on loopback: LuxRelay's in this process, the others as programs."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import pytest
import trio

from luxrelay.bus import NamespaceId, VerdictKind
from luxrelay.gossip import (
    Action,
    Deliver,
    GossipParams,
    GossipRouter,
    HeaderAnnouncement,
    MessageType,
    PeerId,
    RelayMessage,
    Send,
    Validate,
    topic_for_namespace,
)
from luxrelay.gossip.rpc import decode_rpc
from luxrelay.net import GossipDriver, NetConfig, RelayHost, raw_pubsub_peer
from luxrelay.net.addresses import peer_text

HERE = Path(__file__).resolve().parent
GO_PEER = HERE.parents[1] / ".make" / "interop-go-peer"
JS_PEER = HERE.parents[1] / ".make" / "interop-js" / "peer.mjs"
MESSAGES = int(os.environ.get("LUXRELAY_INTEROP_MESSAGES", "50"))
"""Messages that each side publishes in the mixed mesh."""
DEADLINE_S = 180.0 + MESSAGES / 10
"""Seconds a test may take before it has failed."""
NAMESPACE = b"\x22" * 20
TOPIC = topic_for_namespace("testnet", NamespaceId(NAMESPACE))
HEARTBEAT_S = 0.2
KINDS = ("graft", "prune", "ihave", "iwant", "idontwant")


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


def envelope(seq: int, *, namespace: bytes = NAMESPACE, size: int = 340) -> bytes:
    """The ``seq``-th header message of a namespace, of so many bytes; nothing in it is signed."""
    header = b"\x01\x00" + namespace + seq.to_bytes(8) + bytes(size - len(TOPIC) - 56)
    announcement = HeaderAnnouncement(header_bytes=header, source=b"source", timestamp_ms=1)
    message = RelayMessage(type=MessageType.HEADER, topic=TOPIC, payload=announcement.encode())
    return message.encode()


def message_id(seq: int, *, namespace: bytes = NAMESPACE) -> str:
    """The id of that message, written down from LP-6420 §4.3 and not taken from the package."""
    return hashlib.sha3_256(namespace + seq.to_bytes(8)).hexdigest()


class MeshPeer(Protocol):
    """What a test may ask of a peer, whatever it is written in."""

    name: str
    peer: str
    """Its peer id in base58."""
    address: str
    received: Counter[str]
    """Message ids handed to its application, and how often each."""

    async def dial(self, address: str) -> None:
        """A connection with the peer at the address."""
        ...

    async def hang_up(self, peer: str) -> None:
        """No connection with the peer any more."""
        ...

    async def subscribe(self, topic: str) -> None:
        """It takes part in the topic."""
        ...

    async def unsubscribe(self, topic: str) -> None:
        """It has left the topic."""
        ...

    async def publish(self, messages: list[bytes]) -> None:
        """The messages are on their way on `TOPIC`."""
        ...

    async def stats(self) -> dict[str, Any]:
        """``mesh`` and ``peers`` with base58 ids, control entries ``received`` and ``sent``."""
        ...


class WatchedRouter(GossipRouter):
    """Our router, with its control entries counted on their way in and out."""

    def __init__(self, params: GossipParams, own_id: PeerId) -> None:
        super().__init__(params, rng=random.Random(7), own_id=own_id)
        self.control_in: Counter[str] = Counter()
        self.control_out: Counter[str] = Counter()
        self.protocols: dict[PeerId, str] = {}

    def peer_connected(
        self, peer: PeerId, protocol: str, outbound: bool, now: float, **arrival: Any
    ) -> None:
        """Note the protocol."""
        self.protocols[peer] = protocol
        super().peer_connected(peer, protocol, outbound, now, **arrival)

    def received(self, peer: PeerId, rpc_bytes: bytes, now: float) -> None:
        """Count what comes."""
        self._tally(self.control_in, rpc_bytes)
        super().received(peer, rpc_bytes, now)

    def drain(self) -> list[Action]:
        """Count what goes."""
        actions = super().drain()
        for action in actions:
            if isinstance(action, Send):
                self._tally(self.control_out, action.data)
        return actions

    def _tally(self, counter: Counter[str], frame: bytes) -> None:
        rpc = decode_rpc(frame, self._params)
        for kind in KINDS:
            counter[kind] += len(getattr(rpc, kind, ()))


class OwnPeer:
    """LuxRelay: the host, the router and the driver that a node runs."""

    def __init__(self, host: RelayHost, params: GossipParams) -> None:
        self.name = "luxrelay"
        self.host = host
        self.peer = host.peer_text
        self.address = host.addresses[0]
        self.received: Counter[str] = Counter()
        self.router = WatchedRouter(params, host.peer_id)
        self.driver = GossipDriver(
            self.router,
            host,
            validate=self._accept,
            config=host.config,
            rng=random.Random(8),
            deliver=self._note,
        )

    def _note(self, action: Deliver) -> None:
        self.received[action.message_id.hex()] += 1

    async def _accept(self, batch: list[Validate]) -> list[VerdictKind]:
        await trio.lowlevel.checkpoint()
        return [VerdictKind.ACCEPT] * len(batch)

    async def dial(self, address: str) -> None:
        """See `MeshPeer`."""
        await self.driver.connect(address)

    async def hang_up(self, peer: str) -> None:
        """See `MeshPeer`."""
        for connected in self.host.connected():
            if peer_text(connected) == peer:
                await self.host.disconnect(connected)

    async def subscribe(self, topic: str) -> None:
        """See `MeshPeer`."""
        await trio.lowlevel.checkpoint()
        self.driver.subscribe(topic)

    async def unsubscribe(self, topic: str) -> None:
        """See `MeshPeer`."""
        await trio.lowlevel.checkpoint()
        self.driver.unsubscribe(topic)

    async def publish(self, messages: list[bytes]) -> None:
        """See `MeshPeer`."""
        await self.driver.publish([(TOPIC, data) for data in messages])

    async def stats(self) -> dict[str, Any]:
        """See `MeshPeer`."""
        await trio.lowlevel.checkpoint()
        mesh = {
            topic: [peer_text(peer) for peer in peers]
            for topic, peers in self.router._mesh.topics.items()
        }
        return {
            "mesh": mesh,
            "peers": [peer_text(peer) for peer in self.host.connected()],
            "protocols": {peer_text(p): protocol for p, protocol in self.router.protocols.items()},
            "received": self.router.control_in,
            "sent": self.router.control_out,
        }


class ForeignPeer:
    """A program that speaks the line protocol of README.md."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._command = command
        self.peer = ""
        self.address = ""
        self.received: Counter[str] = Counter()
        self._answers: dict[int, dict[str, Any]] = {}
        self._changed = trio.Event()
        self._asked = 0
        self._process: trio.Process | None = None

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """The program runs until this is cancelled."""
        self._process = await trio.lowlevel.open_process(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            await self._read(task_status)
        finally:
            self._process.kill()
            with trio.CancelScope(shield=True):
                await self._process.wait()

    async def _read(self, task_status: Any) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        rest = b""
        async for chunk in self._process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for text in lines:
                line = json.loads(text)
                match line:
                    case {"event": "ready", "peer": peer, "addresses": [address, *_]}:
                        self.peer, self.address = peer, address
                        task_status.started()
                    case {"event": "messages", "ids": ids}:
                        self.received.update(ids)
                    case {"answer": number}:
                        self._answers[number] = line
            self._changed.set()
            self._changed = trio.Event()
        raise AssertionError(f"the {self.name} peer has ended")

    async def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The peer's answer."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._asked += 1
        number = self._asked
        line = json.dumps({"id": number, "do": command, **arguments}) + "\n"
        await self._process.stdin.send_all(line.encode())
        while number not in self._answers:
            await self._changed.wait()
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{self.name} {command}: {answer['error']}"
        return answer

    async def dial(self, address: str) -> None:
        """See `MeshPeer`."""
        await self.ask("dial", address=address)

    async def hang_up(self, peer: str) -> None:
        """See `MeshPeer`."""
        await self.ask("hangup", peer=peer)

    async def subscribe(self, topic: str) -> None:
        """See `MeshPeer`."""
        await self.ask("subscribe", topic=topic)

    async def unsubscribe(self, topic: str) -> None:
        """See `MeshPeer`."""
        await self.ask("unsubscribe", topic=topic)

    async def publish(self, messages: list[bytes]) -> None:
        """See `MeshPeer`."""
        texts = [base64.b64encode(data).decode() for data in messages]
        await self.ask("publish", topic=TOPIC, messages=texts)

    async def stats(self) -> dict[str, Any]:
        """See `MeshPeer`."""
        answer = await self.ask("stats")
        for direction in ("received", "sent"):
            answer[direction] = Counter(answer[direction])
        return answer


class Lab:
    """Starts peers and waits for what should become true."""

    topic = TOPIC
    messages = MESSAGES
    heartbeat_s = HEARTBEAT_S
    envelope = staticmethod(envelope)
    message_id = staticmethod(message_id)
    raw_peer = staticmethod(lambda address: raw_pubsub_peer(address, bytes(32), topics=[TOPIC]))

    def __init__(self) -> None:
        self._made = 0

    def _seed(self) -> bytes:
        self._made += 1
        return bytes([self._made]) * 32

    async def own(self, nursery: trio.Nursery, **params: Any) -> OwnPeer:
        """A running peer of ours that has subscribed to the topic."""
        config = NetConfig(listen=("/ip4/127.0.0.1/tcp/0",), loopback_exempt=True)
        host = RelayHost(self._seed(), config)
        await nursery.start(host.run)
        params = {
            "heartbeat_interval_s": HEARTBEAT_S,
            "exempt_loopback": True,
            "history_length": 20,  # as many seconds as with the default heartbeat
            "history_gossip": 10,
            "unsubscribe_backoff_s": 1.0,
            **params,
        }
        peer = OwnPeer(host, GossipParams(**params))
        await nursery.start(peer.driver.run)
        await peer.subscribe(TOPIC)
        return peer

    async def foreign(self, nursery: trio.Nursery, language: str, **config: Any) -> ForeignPeer:
        """A running peer in ``js`` or ``go`` that has subscribed to the topic."""
        config = {
            "seed": self._seed().hex(),
            "heartbeatMs": int(HEARTBEAT_S * 1000),
            "backoffMs": 1000,
            **config,
        }
        program = {"js": [shutil.which("node") or "node", str(JS_PEER)], "go": [str(GO_PEER)]}
        peer = ForeignPeer(language, [*program[language], json.dumps(config)])
        await nursery.start(peer.run)
        await peer.subscribe(TOPIC)
        return peer

    async def meshed(self, *peers: MeshPeer) -> None:
        """Each peer has all the others in its mesh of the topic."""

        async def complete(peer: MeshPeer) -> bool:
            mesh = (await peer.stats())["mesh"].get(TOPIC, [])
            return {other.peer for other in peers} - {peer.peer} <= set(mesh)

        for peer in peers:
            await self.until(complete, peer)

    async def connected(self, *peers: MeshPeer) -> None:
        """Every two of the peers are connected; each has dialled those after it."""
        for number, peer in enumerate(peers):
            for other in peers[number + 1 :]:
                await peer.dial(other.address)

    @staticmethod
    async def until(condition: Callable[..., Any], *arguments: Any, seconds: float = 60.0) -> None:
        """The condition, plain or a coroutine, holds; or the test has failed."""
        with trio.fail_after(seconds):
            while True:
                held = condition(*arguments)
                if inspect.isawaitable(held):
                    held = await held
                if held:
                    return
                await trio.sleep(0.02)


@pytest.fixture
def lab() -> Lab:
    """Peers of three languages; their programs must be built."""
    missing = [path.name for path in (GO_PEER, JS_PEER) if not path.exists()]
    if missing:
        pytest.fail(f"{' and '.join(missing)} missing: run `make interop`, which builds the peers")
    return Lab()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs foreign peers."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.slow)
