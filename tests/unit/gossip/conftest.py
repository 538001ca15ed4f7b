"""Small gossip networks in memory: routers, a queue of frames, virtual time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

import pytest

from luxrelay.bus import NamespaceId, VerdictKind
from luxrelay.gossip import (
    Deliver,
    Dial,
    Disconnect,
    Discover,
    DiversityParams,
    Echo,
    GossipParams,
    GossipRouter,
    HeaderAnnouncement,
    MessageType,
    PeerId,
    PlaceResolver,
    RelayMessage,
    ScoreParams,
    Send,
    Validate,
    encode_header_with_blob,
    relay_message_id,
    topic_for_namespace,
)
from luxrelay.gossip.rpc import Rpc, decode_rpc
from luxrelay.gossip.rpc_pb2 import (
    RPC,
    ControlGraft,
    ControlIDontWant,
    ControlIHave,
    ControlIWant,
    ControlMessage,
    ControlPrune,
    Message,
    PeerInfo,
)

PROTOCOL = "/meshsub/1.1.0"
READER = GossipParams()
"""Limits with which frames are read in tests."""


def peer_id(number: int) -> PeerId:
    """Return the peer id of a router of a network."""
    return PeerId(b"peer-%04d" % number)


def header_bytes(namespace_id: bytes, seq: int, salt: int = 0) -> bytes:
    """Return 210 bytes with a namespace and a sequence where a header has them."""
    return (
        b"\x01\x00"
        + namespace_id
        + seq.to_bytes(8)
        + b"\x00" * 8
        + salt.to_bytes(8)
        + b"\x00" * 164
    )


def envelope(
    topic: str,
    seq: int = 1,
    *,
    salt: int = 0,
    blob: bytes | None = None,
    lane: bytes = b"\x22" * 20,
) -> bytes:
    """Return an encoded header message; ``salt`` makes another message of the same slot."""
    announcement = HeaderAnnouncement(
        header_bytes=header_bytes(lane, seq, salt), source=b"source", timestamp_ms=1
    )
    if blob is None:
        kind, payload = MessageType.HEADER, announcement.encode()
    else:
        kind = MessageType.HEADER_WITH_BLOB
        payload = encode_header_with_blob(announcement, blob)
    return RelayMessage(type=kind, topic=topic, payload=payload).encode()


def topic_of(number: int) -> str:
    """Return the topic of a namespace."""
    return topic_for_namespace("testnet", NamespaceId(number.to_bytes(20)))


def frame(
    *,
    subscribe: Iterable[str] = (),
    unsubscribe: Iterable[str] = (),
    messages: Iterable[tuple[str, bytes]] = (),
    ihave: Iterable[tuple[str, list[bytes]]] = (),
    iwant: Iterable[list[bytes]] = (),
    graft: Iterable[str] = (),
    prune: Iterable[tuple[str, int]] = (),
    suggest: Iterable[tuple[bytes, bytes]] = (),
    idontwant: Iterable[list[bytes]] = (),
) -> bytes:
    """Return an RPC as a peer of ours would write it by hand."""
    subscriptions = [RPC.SubOpts(subscribe=True, topicid=topic) for topic in subscribe]
    subscriptions += [RPC.SubOpts(subscribe=False, topicid=topic) for topic in unsubscribe]
    control = ControlMessage(
        ihave=[ControlIHave(topicID=topic, messageIDs=ids) for topic, ids in ihave],
        iwant=[ControlIWant(messageIDs=ids) for ids in iwant],
        idontwant=[ControlIDontWant(messageIDs=ids) for ids in idontwant],
        graft=[ControlGraft(topicID=topic) for topic in graft],
        prune=[
            ControlPrune(
                topicID=topic,
                backoff=backoff,
                peers=[PeerInfo(peerID=peer, signedPeerRecord=record) for peer, record in suggest],
            )
            for topic, backoff in prune
        ],
    )
    return RPC(
        subscriptions=subscriptions,
        publish=[Message(topic=topic, data=data) for topic, data in messages],
        control=control if control.ByteSize() else None,
    ).SerializeToString()


@dataclass
class Drained:
    """The actions of one `drain`, sorted."""

    validate: list[Validate] = field(default_factory=list)
    deliver: list[Deliver] = field(default_factory=list)
    disconnect: list[Disconnect] = field(default_factory=list)
    dial: list[Dial] = field(default_factory=list)
    discover: list[Discover] = field(default_factory=list)
    echo: list[Echo] = field(default_factory=list)
    frames: dict[PeerId, list[bytes]] = field(default_factory=dict)

    def rpc(self, peer: PeerId) -> Rpc:
        """Return everything sent to a peer as one value."""
        merged = Rpc()
        for data in self.frames.get(peer, []):
            part = decode_rpc(data, READER)
            merged.subscriptions += part.subscriptions
            merged.messages += part.messages
            merged.ihave += [(topic, list(ids)) for topic, ids in part.ihave]
            merged.iwant += part.iwant
            merged.idontwant += part.idontwant
            merged.graft += part.graft
            merged.prune += part.prune
            merged.suggested += part.suggested
        return merged

    def receivers(self, data: bytes) -> set[PeerId]:
        """Return the peers that a message is sent to."""
        return {peer for peer in self.frames if data in [m for _, m in self.rpc(peer).messages]}


class Desk:
    """One router whose peers are played by the test."""

    def __init__(
        self,
        params: GossipParams | None = None,
        seed: int = 1,
        *,
        scores: ScoreParams | None = None,
        diversity: DiversityParams | None = None,
        resolver: PlaceResolver | None = None,
        validators: Container[bytes] = frozenset(),
    ) -> None:
        self.params = params or GossipParams()
        self.router = GossipRouter(
            self.params,
            rng=random.Random(seed),
            own_id=PeerId(b"the desk"),
            scores=scores,
            diversity=diversity,
            resolver=resolver,
            validators=validators,
        )
        self.now = 100.0

    def peers(
        self,
        count: int,
        *topics: str,
        outbound: Iterable[int] = (),
        protocol: str = PROTOCOL,
    ) -> list[PeerId]:
        """Connect peers that subscribe to topics, and forget what that caused."""
        made = [peer_id(number) for number in range(count)]
        dialed = set(outbound)
        for number, peer in enumerate(made):
            self.router.peer_connected(peer, protocol, number in dialed, self.now)
            if topics:
                self.router.received(peer, frame(subscribe=topics), self.now)
        self.now += self.params.graft_delay_s
        self.router.wake(self.now)
        self.router.drain()
        return made

    def receive(self, peer: PeerId, data: bytes) -> Drained:
        """Hand a frame to the router and return what it asks for."""
        self.router.received(peer, data, self.now)
        return self.drain()

    def message(self, peer: PeerId, topic: str, data: bytes) -> Drained:
        """Hand a message to the router and return what it asks for."""
        return self.receive(peer, frame(messages=[(topic, data)]))

    def sign_of_life(self, *peers: PeerId) -> None:
        """Let a moment pass in which something that says nothing comes from the peers."""
        self.now += 0.01
        for peer in peers:
            self.receive(peer, frame())

    def verdict(self, validate: Validate, kind: VerdictKind) -> Drained:
        """Answer a validation and return what the router asks for."""
        self.router.validated(validate.token, kind, self.now)
        return self.drain()

    def accept(self, peer: PeerId, topic: str, data: bytes) -> Drained:
        """Bring a message and accept it."""
        (validate,) = self.message(peer, topic, data).validate
        return self.verdict(validate, VerdictKind.ACCEPT)

    def heartbeat(self) -> Drained:
        """Go to the next heartbeat and return what it causes."""
        self.now = max(self.now, self.router._heartbeat_at or self.now)
        self.router.wake(self.now)
        return self.drain()

    def beat(self, seconds: float) -> None:
        """Let time pass heartbeat by heartbeat, and forget what it causes."""
        until = self.now + seconds
        while self.now < until:
            self.heartbeat()

    def drain(self) -> Drained:
        """Return the actions since the last call."""
        drained = Drained()
        for action in self.router.drain():
            match action:
                case Send():
                    drained.frames.setdefault(action.peer, []).append(action.data)
                case Validate():
                    drained.validate.append(action)
                case Deliver():
                    drained.deliver.append(action)
                case Disconnect():
                    drained.disconnect.append(action)
                case Dial():
                    drained.dial.append(action)
                case Discover():
                    drained.discover.append(action)
                case Echo():
                    drained.echo.append(action)
        return drained


class World:
    """Routers that carry each other's frames in virtual time; nothing is lost, nothing waits."""

    def __init__(
        self,
        count: int,
        params: GossipParams | None = None,
        seed: int = 1,
        *,
        plain: Container[int] = (),
    ) -> None:
        self.params = params or GossipParams.small()
        self.plain = plain
        """Routers of which the others do not know that they pass headers on."""
        self.now = 0.0
        self.judge: Callable[[int, bytes], VerdictKind] = lambda _node, _data: VerdictKind.ACCEPT
        self.routers = [
            GossipRouter(self.params, rng=random.Random(seed * 1000 + n), own_id=peer_id(n))
            for n in range(count)
        ]
        self.delivered: list[list[Deliver]] = [[] for _ in range(count)]
        self.validated: list[list[Validate]] = [[] for _ in range(count)]
        self.carried: list[tuple[int, int, bytes]] = []
        """From, to, frame: all that was ever sent."""
        self.disconnects: list[tuple[int, int]] = []
        self.cut: set[tuple[int, int]] = set()
        """Links that swallow what they are given."""
        self._queue: deque[tuple[int, int, bytes]] = deque()

    def connect(self, a: int, b: int) -> None:
        """Let ``a`` dial ``b``."""
        self.routers[a].peer_connected(peer_id(b), PROTOCOL, True, self.now)
        self.routers[b].peer_connected(peer_id(a), PROTOCOL, False, self.now)
        for one, other in ((a, b), (b, a)):
            if other not in self.plain:
                self.routers[one].peer_passes_on(peer_id(other))

    def connect_all(self) -> None:
        """Connect every pair; the lower number dials."""
        for a in range(len(self.routers)):
            for b in range(a + 1, len(self.routers)):
                self.connect(a, b)

    def disconnect(self, a: int, b: int) -> None:
        """Cut a connection; both sides learn it."""
        self.routers[a].peer_disconnected(peer_id(b), self.now)
        self.routers[b].peer_disconnected(peer_id(a), self.now)

    def subscribe(self, topic: str, nodes: Iterable[int] | None = None) -> None:
        """Let nodes, or all of them, follow a topic, and wait for the first grafts."""
        for node in range(len(self.routers)) if nodes is None else nodes:
            self.routers[node].subscribe(topic, self.now)
        self.run(self.params.graft_delay_s)

    def publish(self, node: int, topic: str, data: bytes) -> int:
        """Publish and carry everything that follows from it."""
        count = self.routers[node].publish(topic, data, self.now)
        self.settle()
        return count

    def settle(self) -> None:
        """Do actions and carry frames until nothing is left to do."""
        while True:
            busy = False
            for node in range(len(self.routers)):
                busy |= self._act(node)
            while self._queue:
                busy = True
                source, target, data = self._queue.popleft()
                if (source, target) not in self.cut:
                    self.routers[target].received(peer_id(source), data, self.now)
            if not busy:
                return

    def run(self, seconds: float) -> None:
        """Let time pass, heartbeat by heartbeat."""
        end = self.now + seconds
        self.settle()
        while True:
            due = min(router.wake_at() or end for router in self.routers)
            if due > end:
                break
            self.now = max(self.now, due)
            for router in self.routers:
                router.wake(self.now)
            self.settle()
        self.now = end

    def heartbeats(self, count: int) -> None:
        """Let a number of heartbeats pass."""
        self.run(count * self.params.heartbeat_interval_s)

    def mesh_sizes(self, topic: str) -> list[int]:
        """Return the mesh size of each node on a topic."""
        return [router.stats().mesh.get(topic, 0) for router in self.routers]

    def received_messages(self, node: int) -> list[tuple[int, bytes]]:
        """Return every message sent to a node, with who sent it."""
        return [
            (source, data)
            for source, target, raw in self.carried
            if target == node
            for _, data in decode_rpc(raw, READER).messages
        ]

    def _act(self, node: int) -> bool:
        actions = self.routers[node].drain()
        for action in actions:
            match action:
                case Send():
                    target = int(action.peer[5:])
                    self.carried.append((node, target, action.data))
                    self._queue.append((node, target, action.data))
                case Validate():
                    self.validated[node].append(action)
                    kind = self.judge(node, action.data)
                    self.routers[node].validated(action.token, kind, self.now)
                case Deliver():
                    self.delivered[node].append(action)
                case Disconnect():
                    self.disconnects.append((node, int(action.peer[5:])))
        return bool(actions)


class Kit:
    """What the tests of this folder build with."""

    Desk = Desk
    World = World
    peer_id = staticmethod(peer_id)
    envelope = staticmethod(envelope)
    header_bytes = staticmethod(header_bytes)
    topic_of = staticmethod(topic_of)
    id_of = staticmethod(lambda data: relay_message_id(RelayMessage.decode(data)))
    frame = staticmethod(frame)


@pytest.fixture
def kit() -> type[Kit]:
    """The builders above, since test files do not import one another."""
    return Kit
