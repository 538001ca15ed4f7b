"""Three routers under random inputs: nothing is raised, and the invariants hold after each step."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from luxrelay.bus import NamespaceId, VerdictKind
from luxrelay.errors import GossipArgumentError, RpcError
from luxrelay.gossip import (
    PROTOCOLS,
    Deliver,
    Dial,
    Disconnect,
    Discover,
    DiversityParams,
    GossipParams,
    GossipRouter,
    HeaderAnnouncement,
    MessageType,
    NodeRole,
    PeerId,
    RelayMessage,
    ScoreParams,
    Send,
    TopicKind,
    Validate,
    global_topic,
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
from luxrelay.gossip.seen import EnvelopeDigest

PARAMS = replace(
    GossipParams.small(),
    d=2,
    d_lo=2,
    d_hi=2,
    d_score=1,
    d_out=1,
    peers_max=4,
    topics_max=2,
    subscriptions_max=6,
    controls_max=8,
    pending_max=6,
    pending_peer_max=4,
    seen_max=8,
    failures_max=4,
    cache_messages_max=8,
    backoffs_max=4,
    wanted_max=6,
    wanted_peer_max=4,
    ihave_ids_max=6,
    iwant_ids_max=6,
    ihave_messages_max=3,
    message_max=600,
    queue_bytes_max=1_700,
    peer_exchange=True,
    px_peers_max=2,
    px_record_max=20,
    px_dials_max=2,
    idontwant_size_min=200,
    idontwant_ids_max=4,
    opportunistic_graft_heartbeats=2,
    rpc_max=1_024,
    frame_max=4_096,
)
SCORES = replace(ScoreParams.watching_headers(), retained_max=2, window_messages_max=3)
DIVERSITY = DiversityParams(subnet_max=2, peers_min=1, rotation_interval_s=3.0)
NODES = range(3)
NAMES = [PeerId(b"peer-%d" % number) for number in range(6)]
NAMESPACE = topic_for_namespace("net", NamespaceId(b"\x21" * 20))
TOPICS = [
    NAMESPACE,
    NAMESPACE.replace("namespace/", "namespace/0x"),
    global_topic("net", TopicKind.HEADERS_GLOBAL),
    topic_for_namespace("net", NamespaceId(b"\x22" * 20)),
]
READER = GossipParams()


def envelope(topic: str, seq: int, salt: int) -> bytes:
    """Return an encoded header message."""
    header = b"\x01\x00" + b"\x21" * 20 + seq.to_bytes(8) + bytes([salt]) * 82
    payload = HeaderAnnouncement(header_bytes=header, source=b"s", timestamp_ms=0).encode()
    return RelayMessage(type=MessageType.HEADER, topic=topic, payload=payload).encode()


MESSAGES = st.builds(
    lambda topic, seq, salt: (topic, envelope(topic, seq, salt)),
    st.sampled_from(TOPICS),
    st.integers(0, 3),
    st.integers(0, 5),
)
ANY_TOPIC = st.sampled_from([*TOPICS, "chat", ""])
SOME_IDS = st.lists(st.integers(0, 12).map(lambda n: n.to_bytes(32)) | st.binary(max_size=3))
FRAMES = st.builds(
    RPC,
    subscriptions=st.lists(
        st.builds(RPC.SubOpts, subscribe=st.booleans(), topicid=ANY_TOPIC), max_size=7
    ),
    publish=st.lists(
        st.builds(lambda m: Message(topic=m[0], data=m[1]), MESSAGES)
        | st.builds(Message, topic=ANY_TOPIC, data=st.binary(max_size=30))
        | st.builds(Message, topic=ANY_TOPIC, seqno=st.binary(max_size=2)),
        max_size=4,
    ),
    control=st.none()
    | st.builds(
        ControlMessage,
        ihave=st.lists(st.builds(ControlIHave, topicID=ANY_TOPIC, messageIDs=SOME_IDS), max_size=2),
        iwant=st.lists(st.builds(ControlIWant, messageIDs=SOME_IDS), max_size=2),
        graft=st.lists(st.builds(ControlGraft, topicID=ANY_TOPIC), max_size=3),
        idontwant=st.lists(st.builds(ControlIDontWant, messageIDs=SOME_IDS), max_size=2),
        prune=st.lists(
            st.builds(
                ControlPrune,
                topicID=ANY_TOPIC,
                backoff=st.integers(0, 2**64 - 1),
                peers=st.lists(
                    st.builds(
                        PeerInfo,
                        peerID=st.sampled_from(NAMES) | st.binary(max_size=3),
                        signedPeerRecord=st.binary(max_size=25),
                    ),
                    max_size=3,
                ),
            ),
            max_size=3,
        ),
    ),
).map(lambda frame: frame.SerializeToString())


class Routers(RuleBasedStateMachine):
    """Three routers whose driver delays, loses and forges as hypothesis likes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.routers = [
            GossipRouter(
                PARAMS,
                rng=random.Random(node),
                own_id=NAMES[node],
                scores=SCORES,
                diversity=DIVERSITY,
            )
            for node in NODES
        ]
        self.wire: deque[tuple[int, int, bytes]] = deque()
        self.waiting: list[tuple[int, Validate]] = []
        self.brought: list[dict[bytes, set[PeerId]]] = [{} for _ in NODES]
        """By node and data: the peers that sent it since it was last new there."""
        self.asked: list[set[tuple[PeerId, bytes]]] = [set() for _ in NODES]
        """By node: who has asked for which id; what they get may be an answer."""
        self.accepted: list[set[bytes]] = [set() for _ in NODES]
        self.delivered: list[dict[bytes, float]] = [{} for _ in NODES]

    @initialize(quiet=st.booleans())
    def start(self, quiet: bool) -> None:
        """Begin with nothing, or with connected routers and two forgers that follow a topic."""
        if quiet:
            return
        for pair in combinations(NODES, 2):
            self.connect(pair, dialed=True)
        for node in NODES:
            self.follow(node, NAMESPACE, on=True)
            for forger in (3, 4):
                self.meet(node, forger, outbound=forger == 4)
                self.bring(node, forger, RPC.SubOpts(subscribe=True, topicid=NAMESPACE), [])
        self.carry(len(self.wire), lose=False)
        self.wait(0.1)

    @rule(pair=st.sampled_from(list(combinations(NODES, 2))), dialed=st.booleans())
    def connect(self, pair: tuple[int, int], dialed: bool) -> None:
        """Connect two routers."""
        for own, other, outbound in ((*pair, dialed), (*reversed(pair), not dialed)):
            self.routers[own].peer_connected(NAMES[other], PROTOCOLS[0], outbound, self.now)
        self.drain()

    @rule(
        node=st.sampled_from(NODES),
        peer=st.sampled_from(range(6)),
        outbound=st.booleans(),
        address=st.sampled_from(["", "10.0.0.1", "10.0.0.2", "10.1.0.1"]),
        protected=st.booleans(),
    )
    def meet(
        self,
        node: int,
        peer: int,
        outbound: bool,
        address: str = "",
        protected: bool = False,
    ) -> None:
        """Let anybody connect, also one too many and the node itself, from anywhere."""
        self.routers[node].peer_connected(
            NAMES[peer],
            PROTOCOLS[peer % 2],
            outbound,
            self.now,
            address=address,
            protected=protected,
        )
        self.routers[node].peer_record(NAMES[peer], b"record")
        self.drain()

    @rule(
        node=st.sampled_from(NODES),
        peer=st.sampled_from(range(6)),
        score=st.sampled_from([-6000.0, -2600.0, -1100.0, -1.0, 0.0, 0.0, 5.0]),
    )
    def opine(self, node: int, peer: int, score: float) -> None:
        """Let the application think well or ill of a peer."""
        self.routers[node].app_score(NAMES[peer], score, self.now)
        self.drain()

    @rule(node=st.sampled_from(NODES), peer=st.sampled_from([3, 4]), light=st.booleans())
    def confess(self, node: int, peer: int, light: bool) -> None:
        """Let a peer say what it is, without a proof."""
        role = NodeRole.LIGHT if light else NodeRole.VALIDATOR
        assert not self.routers[node].peer_role(NAMES[peer], role, self.now, proof=b"\x00\x01x")
        self.drain()

    @rule(node=st.sampled_from(NODES), peer=st.sampled_from(range(6)))
    def part(self, node: int, peer: int) -> None:
        """Disconnect on one side only; a late frame then comes from a stranger."""
        self.routers[node].peer_disconnected(NAMES[peer], self.now)
        self.drain()

    @rule(node=st.sampled_from(NODES), topic=st.sampled_from(TOPICS), on=st.booleans())
    def follow(self, node: int, topic: str, on: bool) -> None:
        """Subscribe, or unsubscribe; one topic too many is refused and changes nothing."""
        router = self.routers[node]
        if on and len(router._mesh.topics) == PARAMS.topics_max:
            with suppress(GossipArgumentError):
                router.subscribe(topic, self.now)
        else:
            (router.subscribe if on else router.unsubscribe)(topic, self.now)
        self.drain()

    @rule(node=st.sampled_from(NODES), message=MESSAGES)
    def publish(self, node: int, message: tuple[str, bytes]) -> None:
        """Publish."""
        router, data = self.routers[node], message[1]
        digest = EnvelopeDigest(hashlib.sha256(data).digest())
        if router._memory.pending.by_digest(digest) is None:
            self.brought[node].pop(data, None)
        router.publish(*message, self.now)
        self.accepted[node].add(data)
        self.drain()

    @rule(
        node=st.sampled_from(NODES),
        peer=st.sampled_from(range(6)),
        data=st.one_of(FRAMES, st.binary(max_size=40)),
    )
    def forge(self, node: int, peer: int, data: bytes) -> None:
        """Hand a router a frame that no router made."""
        self.hand(node, peer, data)

    @rule(
        node=st.sampled_from(NODES),
        peer=st.sampled_from([3, 4]),
        subscription=st.none() | st.builds(RPC.SubOpts, subscribe=st.booleans(), topicid=ANY_TOPIC),
        messages=st.lists(MESSAGES, max_size=5),
    )
    def bring(
        self,
        node: int,
        peer: int,
        subscription: RPC.SubOpts | None,
        messages: list[tuple[str, bytes]],
    ) -> None:
        """Let a forger bring well-formed messages."""
        frame = RPC(
            subscriptions=[subscription] if subscription is not None else [],
            publish=[Message(topic=topic, data=data) for topic, data in messages],
        )
        self.hand(node, peer, frame.SerializeToString())

    @rule(
        node=st.sampled_from(NODES),
        peer=st.sampled_from([3, 4]),
        messages=st.lists(MESSAGES, min_size=1, max_size=9),
        ask=st.booleans(),
    )
    def announce(self, node: int, peer: int, messages: list[tuple[str, bytes]], ask: bool) -> None:
        """Let a forger announce or ask for ids that messages have."""
        ids = [relay_message_id(RelayMessage.decode(data)) for _, data in messages]
        control = ControlMessage(
            ihave=[] if ask else [ControlIHave(topicID=messages[0][0], messageIDs=ids)],
            iwant=[ControlIWant(messageIDs=ids)] if ask else [],
        )
        self.hand(node, peer, RPC(control=control).SerializeToString())

    @rule(count=st.integers(1, 9), lose=st.sampled_from([False, False, True]))
    def carry(self, count: int, lose: bool) -> None:
        """Carry or lose the next frames."""
        for _ in range(min(count, len(self.wire))):
            source, target, data = self.wire.popleft()
            if not lose:
                self.hand(target, source, data)

    @rule(
        index=st.integers(0, 20),
        count=st.integers(1, 8),
        kind=st.sampled_from([VerdictKind.ACCEPT, *VerdictKind]),
    )
    def judge(self, index: int, count: int, kind: VerdictKind) -> None:
        """Answer validations, in any order."""
        for _ in range(min(count, len(self.waiting))):
            node, validate = self.waiting.pop(index % len(self.waiting))
            self.routers[node].validated(validate.token, kind, self.now)
            if kind is VerdictKind.ACCEPT:
                self.accepted[node].add(validate.data)
            self.drain()

    @rule(node=st.sampled_from(NODES), token=st.integers(-1, 50))
    def judge_nonsense(self, node: int, token: int) -> None:
        """Answer a validation that nobody asked for, by IGNORE so that nothing is accepted."""
        self.routers[node].validated(token + 10_000, VerdictKind.IGNORE, self.now)

    @rule(seconds=st.sampled_from([0.0, 0.02, 0.1, 0.5, 6.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass; a heartbeat ends with every mesh at most d_hi."""
        self.now += seconds
        for router in self.routers:
            before = router._heartbeat_at
            router.wake(self.now)
            if before is not None and before <= self.now:
                assert all(
                    len(mesh) <= PARAMS.d_hi
                    and all(state.score >= 0 and not state.light for state in mesh.values())
                    for mesh in router._mesh.topics.values()
                )
        self.drain()

    def drain(self) -> None:
        """Do what the routers ask for."""
        for node, router in enumerate(self.routers):
            for action in router.drain():
                match action:
                    case Send():
                        self.check_send(node, action)
                        target = NAMES.index(action.peer)
                        if target in NODES:
                            self.wire.append((node, target, action.data))
                    case Validate():
                        self.waiting.append((node, action))
                        self.brought[node][action.data] = {action.peer}
                    case Deliver():
                        self.check_delivery(node, action)
                    case Disconnect():
                        assert action.reason
                        assert action.refuse_s >= 0
                    case Dial():
                        assert action.peer != NAMES[node]
                        assert 0 < len(action.record) <= PARAMS.px_record_max
                    case Discover():
                        assert 0 < action.count <= DIVERSITY.rotation_count

    def hand(self, node: int, peer: int, data: bytes) -> None:
        """Give a frame to a router, and note what its sender has shown to have."""
        try:
            rpc = decode_rpc(data, PARAMS)
        except RpcError:
            rpc = Rpc()
        for _, message in rpc.messages:
            self.brought[node].setdefault(message, set()).add(NAMES[peer])
        self.asked[node].update((NAMES[peer], wanted) for wanted in rpc.iwant)
        self.routers[node].received(NAMES[peer], data, self.now)
        self.drain()

    def check_send(self, node: int, send: Send) -> None:
        """A frame is bounded, readable, and brings nobody unasked what it brought us."""
        rpc = decode_rpc(send.data, READER)
        assert rpc.malformed == 0
        assert len(send.data) <= PARAMS.rpc_max or len(rpc.messages) == 1
        for _, message in rpc.messages:
            assert message in self.accepted[node]
            brought = self.brought[node].get(message, set())
            # Of peers that come and go, peers_max are remembered with a message.
            asked = (send.peer, relay_message_id(RelayMessage.decode(message)))
            if asked not in self.asked[node] and len(brought) <= PARAMS.peers_max:
                assert send.peer not in brought

    def check_delivery(self, node: int, deliver: Deliver) -> None:
        """An id is delivered after ACCEPT, and once as long as it is known."""
        assert deliver.data in self.accepted[node]
        known = self.delivered[node]
        assert (
            deliver.message_id not in known
            or self.now - known[deliver.message_id] >= PARAMS.seen_ttl_s
            or len(known) >= PARAMS.seen_max
        )
        known[deliver.message_id] = self.now

    @invariant()
    def bounds_hold(self) -> None:
        """Every bound of the parameters holds after every step."""
        for router in self.routers:
            memory, mesh = router._memory, router._mesh
            assert len(router._peers) <= PARAMS.peers_max
            assert len(memory.pending) <= PARAMS.pending_max
            assert memory.pending.size_bytes <= PARAMS.pending_bytes_max
            assert len(memory.seen) <= PARAMS.seen_max
            assert len(memory.delivered) <= PARAMS.seen_max
            assert len(memory.failures) <= PARAMS.failures_max
            assert len(memory.cache) <= PARAMS.cache_messages_max
            assert len(router._lazy) <= PARAMS.wanted_max
            assert len(mesh.backoffs) <= PARAMS.backoffs_max
            assert len(mesh.topics) <= PARAMS.topics_max
            assert len(mesh.fanouts) <= PARAMS.topics_max
            for state in router._peers:
                assert len(state.topics) <= PARAMS.topics_max
                assert 0 <= state.wanted <= PARAMS.wanted_peer_max
                assert state.outbox.size_bytes <= PARAMS.queue_bytes_max
                assert len(state.declined) <= PARAMS.idontwant_ids_max * (
                    PARAMS.idontwant_heartbeats + 1
                )
                assert len(state.ledger.topics) <= PARAMS.topics_max + 1
            scores = router._scores
            assert len(scores._live) == len(router._peers)
            assert len(scores._kept) <= SCORES.retained_max
            assert len(scores._window) <= SCORES.window_messages_max
            assert len(router._stats.topics) <= 2 * PARAMS.topics_max
            assert len(router._doorkeeper._diversity) == len(router._peers)

    @invariant()
    def meshes_hold_connected_subscribers(self) -> None:
        """Whoever is in a mesh is connected and follows the topic; only outbound exceed d_hi."""
        for router in self.routers:
            for topic, mesh in router._mesh.topics.items():
                assert set(mesh) <= set(router._peers.subscribers(topic))
                inbound = [state for state in mesh.values() if not state.outbound]
                assert len(inbound) <= PARAMS.d_hi

    @invariant()
    def scores_know_the_meshes(self) -> None:
        """Time in the mesh runs for those in it and for nobody else; no score is out of range."""
        for router in self.routers:
            for state in router._peers:
                for topic, counters in state.ledger.topics.items():
                    inside = state.peer in router._mesh.topics.get(topic, ())
                    assert counters.grafted_at is None or inside
                    assert min(counters.first, counters.mesh, counters.invalid) >= 0
                score = router._scores.score(state.ledger, self.now)
                assert score <= SCORES.topic_credit_cap + 5.0
                assert state.score >= SCORES.reject_threshold

    @invariant()
    def only_accepted_messages_are_known(self) -> None:
        """The seen set holds nothing that was not accepted or published (G1)."""
        for node, router in enumerate(self.routers):
            seen = router._memory.seen
            assert len(seen._digests) <= len(self.accepted[node])
            assert all(1 <= len(digests) <= 4 for _, digests in seen._slots.values())


TestRouters = pytest.mark.slow(Routers.TestCase)
Routers.TestCase.settings = settings(stateful_step_count=60)
