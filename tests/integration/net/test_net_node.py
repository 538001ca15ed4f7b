"""What a node's file says about peers, topics and blobs holds on the node as it is put together."""

from __future__ import annotations

import json
import random
import threading
import urllib.request
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from luxrelay.bus import SignatureScheme, SigningKey, sha3_commitment, topic_namespace
from luxrelay.bus.policy import default_policy
from luxrelay.client import LaneSigner
from luxrelay.gossip import (
    BlobAvailabilityHint,
    BlockAnnouncement,
    MessageType,
    PeerId,
    RelayMessage,
    TopicKind,
    global_topic,
    peer_id_of,
    topic_for_namespace,
    validator_proof,
)
from luxrelay.gossip.rpc_pb2 import RPC, Message
from luxrelay.net.addresses import peer_text
from luxrelay.net.blobs import BlobExchange
from luxrelay.node.assembly import Parts, assemble, store_config_of
from luxrelay.node.config import NodeConfig, parse_config
from luxrelay.node.folder import Runtime
from luxrelay.node.ingress import wall_ms
from luxrelay.node.node import Node
from luxrelay.node.policies import CurrentPolicies
from luxrelay.node.tracing import Traces
from luxrelay.store import RelayStore
from luxrelay.sync import PublishItem, RelaySyncClient

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.slow
PARENT = topic_namespace("/chat/1/room")
FINALIZED = global_topic("devnet", TopicKind.BLOCKS_FINALIZED)
HINTS = global_topic("devnet", TopicKind.BLOBS_AVAILABLE)


@contextmanager
def assembled(folder: Path, gossip: str) -> Iterator[Parts]:
    """The parts of a node of this configuration, on a store of its own."""
    text = f"""
    [node]
    data_dir = "data"
    network = "devnet"
    [gossip]
    listen = ["/ip4/127.0.0.1/tcp/0"]
    heartbeat_ms = 50
    {gossip}
    """
    config = parse_config(text, source="relay.toml", base=folder)
    config.data_dir.mkdir()
    with RelayStore.open(folder / "store", store_config_of(config), now_ms=wall_ms()) as store:
        parts = assemble(
            config,
            SigningKey.generate(),
            store,
            CurrentPolicies(config),
            rng=random.Random(5),
            stopping=threading.Event(),
            traces=Traces(),
        )
        try:
            yield parts
        finally:
            parts.judge.close()


async def start(nursery: trio.Nursery, parts: Parts) -> str:
    """Run host and driver; return where to dial."""
    addresses = await nursery.start(parts.host.run)
    await nursery.start(parts.driver.run)
    return str(addresses[0])


async def test_diversity_reaches_the_nodes_router(world: Any, tmp_path: Path) -> None:
    """With one peer a /16 the second peer of this machine is refused (20-30, G23)."""
    with assembled(tmp_path, "private_group_peers_max = 1") as parts:
        async with trio.open_nursery() as nursery:
            address = await start(nursery, parts)
            for name in ("one", "two"):
                relay = await world.relay(nursery, name)
                await relay.driver.connect(address)

            await world.until(lambda: parts.driver.stats().router.refused >= 1)
            assert len(parts.driver.stats().router.peers) == 1
            nursery.cancel_scope.cancel()


async def test_places_reach_the_nodes_router(world: Any, tmp_path: Path) -> None:
    """With one peer of an autonomous system the second one of it is refused (20-30, 20-31, G21)."""
    (tmp_path / "places.csv").write_text("127.0.0.0/8,64500,EU\n")
    with assembled(tmp_path, 'places = "places.csv"\nsystem_peers_max = 1') as parts:
        async with trio.open_nursery() as nursery:
            address = await start(nursery, parts)
            for name in ("one", "two"):
                relay = await world.relay(nursery, name)
                await relay.driver.connect(address)

            await world.until(lambda: parts.driver.stats().router.refused >= 1)
            assert "AS64500" in parts.driver._router.refuses("127.0.0.1", outbound=False)
            nursery.cancel_scope.cancel()


async def test_rotation_reaches_the_nodes_router(world: Any, tmp_path: Path) -> None:
    """After the interval of the file an outbound peer is let go (20-32, G22)."""
    text = "exempt_loopback = true\npeers_min = 0\nrotation_interval_ms = 1000\noutbound_target = 0"
    with assembled(tmp_path, text) as parts:
        async with trio.open_nursery() as nursery:
            await start(nursery, parts)
            for name in ("one", "two"):
                relay = await world.relay(nursery, name)
                await parts.driver.connect(relay.address)
            await world.until(lambda: len(parts.driver.stats().router.peers) == 2)

            await world.until(lambda: parts.driver.stats().router.rotated == 1)
            nursery.cancel_scope.cancel()


async def test_a_light_node_is_in_no_mesh_of_its_own(world: Any, tmp_path: Path) -> None:
    """The role of the file keeps a node out of meshes, and it still hears (20-01, G26)."""
    text = 'exempt_loopback = true\nrole = "light"\noutbound_target = 0'
    with assembled(tmp_path, text) as parts:
        async with trio.open_nursery() as nursery:
            address = await start(nursery, parts)
            parts.driver.subscribe(world.topic)
            relay = await world.relay(nursery, "one")
            relay.driver.subscribe(world.topic)
            await relay.driver.connect(address)
            mesh = parts.driver._router._mesh
            await world.until(lambda: len(mesh._peers.subscribers(world.topic)) == 1)
            known = mesh._beats
            await world.until(lambda: mesh._beats >= known + 5)

            await relay.driver.publish([(world.topic, world.envelope(1))])
            await world.until(lambda: parts.driver.stats().router.received == 1)

            assert mesh.topics[world.topic] == {}
            assert relay.driver.stats().router.grafts_refused == 0
            nursery.cancel_scope.cancel()


async def test_validators_reach_the_nodes_router(world: Any, tmp_path: Path) -> None:
    """A peer that a listed validator vouches for has its credit, another has not (20-48, G24)."""
    key = SigningKey.generate()
    text = f'exempt_loopback = true\nvalidators = ["{key.public_field.hex()}"]'
    with assembled(tmp_path, text) as parts:
        async with trio.open_nursery() as nursery:
            address = await start(nursery, parts)
            plain = await world.relay(nursery, "plain")
            identity = SigningKey.from_seed(SignatureScheme.ED25519, world.seed("proven"))
            proof = validator_proof(key, PeerId(peer_id_of(identity.public_field[1:])))
            proven = await world.relay(
                nursery, "proven", roles=("validator",), validator_proof=proof
            )
            for relay in (plain, proven):
                await relay.driver.connect(address)
            await world.until(lambda: len(parts.driver.stats().router.peers) == 2)

            credit = {}
            for name, relay in (("plain", plain), ("proven", proven)):
                terms = parts.driver.explain(relay.host.peer_id)
                assert terms is not None
                credit[name] = terms.application
            assert credit == {"plain": 0.0, "proven": 50.0}
            nursery.cancel_scope.cancel()


def page(address: str, path: str) -> bytes:
    """Return a page of a running node."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        body: bytes = answer.read()
        return body


async def run_node(
    nursery: trio.Nursery, folder: Path, gossip: str, peer: Runtime | None
) -> Runtime:
    """Run a whole node in this process, with one peer or none, without sync peers."""
    config = node_config(folder, gossip, [] if peer is None else [peer.gossip[0]])
    runtime: Runtime = await nursery.start(Node(config, rng=random.Random(5)).run)
    return runtime


def node_config(folder: Path, gossip: str, peers: list[str]) -> NodeConfig:
    """A configuration of a node that has no sync peers."""
    text = f"""
    [node]
    data_dir = "data"
    [gossip]
    listen = ["/ip4/127.0.0.1/tcp/0"]
    heartbeat_ms = 100
    exempt_loopback = true
    outbound_target = 0
    peers = {peers}
    {gossip}
    [sync]
    listen = "127.0.0.1:0"
    allow_publish = true
    [http]
    listen = "127.0.0.1:0"
    [gateway]
    listen = ""
    [[namespace]]
    content_topic = "/chat/1/room"
    """
    folder.mkdir()
    return parse_config(text, source="relay.toml", base=folder)


async def test_large_blobs_and_claims_cross_relays(world: Any, tmp_path: Path) -> None:
    """A blob of 1 MiB and a block announcement get from one end to the other (20-01, 20-11)."""
    blob = random.Random(3).randbytes(1024 * 1024)
    signer = LaneSigner(
        SigningKey.generate(), PARENT, policy_hash=default_policy(PARENT).policy_hash
    )
    async with trio.open_nursery() as nursery:
        near = await run_node(nursery, tmp_path / "near", 'role = "light"', None)
        middle = await run_node(nursery, tmp_path / "middle", 'role = "da-operator"', near)
        far = await run_node(nursery, tmp_path / "far", 'role = "da-operator"', middle)
        async with world.raw_peer(
            far.gossip[0], world.seed("watcher"), topics=[HINTS, FINALIZED]
        ) as watcher:
            await watcher.wait_received(1)
            # Hints of one blob share an id, so that nothing brings a second one later: who says
            # so before its neighbours are in its mesh is not heard.
            for node, neighbours in ((middle, 1), (far, 2)):  # a light node is in no mesh
                await world.eventually(partial(meshed, node, HINTS, neighbours), True)

            await publish(near, signer, blob)
            with RelaySyncClient(far.sync) as last:
                await world.eventually(partial(last.get_blob, sha3_commitment(blob)), blob)
            await watcher.send_rpc(block_rpc(world.seed("watcher"), height=7))
            await world.eventually(partial(height, near), 7)
            # The publisher and both DA operators say that they have the blob.
            await world.until(lambda: len(hinting(watcher.received)) == 3)

        metrics = (await trio.to_thread.run_sync(page, far.http, "/metrics")).decode()
        assert "luxrelay_blob_stream_fetched_total 1.0" in metrics
        assert "luxrelay_blobs_wanted 0.0" in metrics
        assert 'luxrelay_blocks_announced_total{kind="finalized"} 1.0' in metrics
        check_metrics(metrics)
        nursery.cancel_scope.cancel()


async def test_who_asks_before_a_relay_has_it_is_told_when_it_has(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P50: in a line of relays the last one has a blob soon after the one before it."""
    blob = random.Random(4).randbytes(300_000)
    signer = LaneSigner(
        SigningKey.generate(), PARENT, policy_hash=default_policy(PARENT).policy_hash
    )
    gate, answer, shut = trio.Event(), BlobExchange._answer, set[str]()

    async def held_back(self: BlobExchange, *asked: Any) -> None:
        if peer_text(self._host.peer_id) in shut:
            await gate.wait()
        await answer(self, *asked)

    monkeypatch.setattr(BlobExchange, "_answer", held_back)

    async with trio.open_nursery() as nursery:
        near = await run_node(nursery, tmp_path / "near", "", None)
        shut.add(near.gossip[0].rpartition("/")[2])
        middle = await run_node(nursery, tmp_path / "middle", "", near)
        far = await run_node(nursery, tmp_path / "far", "", middle)
        topic = topic_for_namespace("devnet", PARENT)
        await world.eventually(partial(meshed, middle, topic, 2), True)
        await publish(near, signer, blob)
        await world.eventually(partial(counted, middle, "luxrelay_blob_stream_unknown"), True)
        gate.set()
        with RelaySyncClient(far.sync) as last:
            await world.eventually(partial(last.get_blob, sha3_commitment(blob)), blob)
        await world.eventually(partial(counted, middle, "luxrelay_blob_stream_told"), True)
        nursery.cancel_scope.cancel()


def check_metrics(text: str) -> None:
    """The figures of LP-6420 §9 stand in a real scrape, with LP-6491's names (20-42, 20-44)."""
    families = {family.name: family for family in text_string_to_metric_families(text)}
    topic = topic_for_namespace("devnet", PARENT)
    by_topic = {
        name: {sample.labels["topic"]: sample.value for sample in families[name].samples}
        for name in (
            "relay_messages_received",
            "relay_messages_published",
            "relay_duplicate_ratio",
            "relay_invalid_ratio",
            "relay_mesh_size",
        )
    }
    assert all(topic in values for values in by_topic.values())
    assert by_topic["relay_messages_received"][topic] == 1
    assert by_topic["relay_invalid_ratio"][topic] == 0
    for name in ("relay_message_latency_ms", "luxda_relay_latency_ms"):
        counts = [s.value for s in families[name].samples if s.name.endswith("_count")]
        assert counts == [1.0]
    peers = [families[name].samples[0].value for name in ("relay_peer_count", "luxda_peer_count")]
    assert peers[0] == peers[1] >= 1
    assert families["luxda_headers_processed"].samples[0].value >= 1
    assert families["luxda_blobs_stored_bytes"].samples[0].value >= 1024 * 1024
    fetched = families["luxda_da_retrieval_latency_ms"].samples
    assert [sample.value for sample in fetched if sample.name.endswith("_count")] == [1.0]


async def publish(node: Runtime, signer: LaneSigner, blob: bytes) -> None:
    """A node has stored and announced a message of this blob."""
    signed = signer.sign(blob, wall_ms())
    item = PublishItem(header=signed.header, blob=blob, parent_id=PARENT)
    with RelaySyncClient(node.sync) as relay:
        (receipt,) = await trio.to_thread.run_sync(relay.publish, [item])
    assert receipt.stored, receipt


def block_rpc(seed: bytes, *, height: int) -> bytes:
    """An RPC with the announcement of a finalized block, by the peer of this seed."""
    proposer = SigningKey.from_seed(SignatureScheme.ED25519, seed)
    block = BlockAnnouncement(
        block_hash=b"\x07" * 32,
        height=height,
        proposer=peer_id_of(proposer.public_field[1:]),
        timestamp_ms=wall_ms(),
    )
    message = RelayMessage(type=MessageType.BLOCK, topic=FINALIZED, payload=block.encode())
    data = message.signed_by(proposer).encode()
    return RPC(publish=[Message(topic=FINALIZED, data=data)]).SerializeToString()


def height(node: Runtime) -> int:
    """The highest finalized height that a node has heard of."""
    return int(json.loads(page(node.http, "/status"))["blocks"]["height"])


def counted(node: Runtime, name: str) -> bool:
    """Whether a counter of a node is above zero."""
    families = text_string_to_metric_families(page(node.http, "/metrics").decode())
    return any(
        sample.value > 0
        for family in families
        if family.name == name
        for sample in family.samples
        if sample.name.endswith("_total")
    )


def meshed(node: Runtime, topic: str, peers: int) -> bool:
    """Whether so many peers are in a node's mesh of a topic."""
    mesh = json.loads(page(node.http, "/status"))["mesh"]
    return int(mesh.get(topic, 0)) >= peers


def hinting(frames: list[bytes]) -> set[bytes]:
    """Who has said in these frames that it has a blob."""
    found = set()
    for frame in frames:
        for each in RPC.FromString(frame).publish:
            if each.topic == HINTS:
                envelope = RelayMessage.decode(each.data)
                found |= set(BlobAvailabilityHint.decode(envelope.payload).providers)
    return found
