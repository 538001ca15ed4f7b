"""Namespaces that running nodes follow: by call, by command, by what applications ask for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from luxrelay.bus import Code, MsgHeader, NamespaceId, SigningKey, sha3_commitment, topic_namespace
from luxrelay.bus.policy import default_policy_hash
from luxrelay.cli.main import main
from luxrelay.client import (
    LaneSigner,
    Live,
    Message,
    Outgoing,
    Query,
    RelayClient,
    Subscribe,
    subscribe,
)
from luxrelay.errors import ClientRefusedError
from luxrelay.node.gateway.tokens import TokenFile
from luxrelay.sync import RelaySyncClient
from luxrelay.sync.following import FollowedLive, SubscribeWanted
from luxrelay.sync.rpc import relay_gateway_pb2 as pb
from luxrelay.sync.rpc.relay_gateway_pb2_grpc import RelayAdminStub

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

    from luxrelay.node.folder import Runtime

pytestmark = pytest.mark.slow
ROOM, HALL = "/chat/1/room", "/chat/1/hall"
ALONE: dict[str, object] = {"exchange": False, "outbound_target": 0}
"""Only the connections that a test asks for."""


class Doors:
    """A running node and its doors, with a token for all of them."""

    def __init__(self, node: NodeProcess, opened: ExitStack) -> None:
        self.node, self.opened = node, opened
        node.sections["gossip"] |= ALONE
        gateway: dict[str, object] = dict.fromkeys(
            ("listen", "admin_listen", "grpc_listen", "grpc_admin_listen"), "127.0.0.1:0"
        )
        node.sections["gateway"] = gateway
        self.runtime: Runtime
        self.token = ""

    def start(self) -> Doors:
        """Start the node, once more after a kill."""
        self.runtime = self.node.start()
        if not self.token:
            tokens = TokenFile(self.node.folder / "data", 8)
            self.token, _ = tokens.new("tester", ["read", "publish", "admin"], 0)
        self.client = self.opened.enter_context(RelayClient(self.runtime.gateway, token=self.token))
        self.admin = self.opened.enter_context(RelayClient(self.runtime.admin, token=self.token))
        return self

    def status(self) -> dict[str, Any]:
        """Return the status page."""
        with urllib.request.urlopen(f"http://{self.runtime.http}/status", timeout=10) as answer:
            return dict(json.load(answer))

    def reached(self, namespace: NamespaceId) -> int:
        """Return up to which sequence the node holds a lane."""
        return self.client.head(namespace).contiguous_seq

    def connected(self) -> int:
        """Return how many peers speak gossip with the node."""
        return len(self.status()["peers"])


@pytest.fixture
def doors(new_node: Callable[[str], NodeProcess]) -> Iterator[Callable[..., Doors]]:
    """A maker of nodes with every door; not started."""
    with ExitStack() as opened:
        yield lambda name: Doors(new_node(name), opened)


def follower_of(entry: Doors, doors: Callable[..., Doors], name: str, **gossip: object) -> Doors:
    """Return a node beside another that lists no namespace; not started."""
    node = doors(name)
    node.node.topics = []
    node.node.sections["gossip"] |= {"peers": [entry.runtime.gossip[0]], **gossip}
    return node


def now_ms() -> int:
    """Return the wall clock, Unix milliseconds."""
    return time.time_ns() // 1_000_000


class Author(LaneSigner):
    """Signs with the wall clock."""

    def next(self, blob: bytes) -> Outgoing:
        """Return the next message."""
        return self.sign(blob, now_ms())


def signer(topic: str = ROOM) -> Author:
    """Return an author of a new lane."""
    return Author(SigningKey.generate(), topic_namespace(topic))


def test_a_running_node_follows_a_namespace_and_keeps_it(
    doors: Callable[..., Doors], eventually: Callable[..., Any]
) -> None:
    """History and what comes live, through kill -9; then no longer (LP-6420 §8.2, G35)."""
    entry = doors("entry").start()
    late = follower_of(entry, doors, "late")
    late.node.sections["sync"] |= {"peers": [entry.runtime.sync]}
    late.start()
    author, room = signer(), topic_namespace(ROOM)
    entry.client.publish([author.next(b"early")])

    assert late.admin.followed() == []
    assert late.admin.follow(content_topic=ROOM).origin == "call"
    eventually(lambda: late.reached(author.namespace_id) == 1, seconds=30)
    name = f"/lux/test/relay/namespace/{room.hex()}"
    eventually(lambda: late.status()["mesh"].get(name) == 1, seconds=30)
    entry.client.publish([author.next(b"live")])
    eventually(lambda: late.reached(author.namespace_id) == 2, seconds=30)

    late.node.stop(signal.SIGKILL)
    late.start()
    (kept,) = late.admin.followed()
    assert (kept.namespace_id, kept.content_topic, kept.origin) == (room, ROOM, "call")
    entry.client.publish([author.next(b"after")])
    eventually(lambda: late.reached(author.namespace_id) == 3, seconds=30)

    late.admin.unfollow(room)
    assert late.admin.followed() == []
    eventually(lambda: name not in late.status()["mesh"], seconds=30)
    (receipt,) = late.client.publish([author.next(b"here")])
    assert (receipt.stored, receipt.code) == (False, Code.INVALID_NAMESPACE)
    assert late.reached(author.namespace_id) == 3  # what is stored stays for its time


def test_every_door_follows_and_says_why_not(
    doors: Callable[..., Doors], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """HTTP, gRPC and command: one list, the same refusals (LP-6420 §8.2, G35)."""
    node = doors("relay")
    node.node.sections["gossip"] |= {"followed_max": 2}
    node.start()
    token = tmp_path / "token"
    token.write_text(node.token)
    token.chmod(0o600)
    hall = topic_namespace(HALL)

    def command(*words: str) -> tuple[int, str]:
        place = ["--gateway", node.runtime.admin, "--token-file", str(token), "--json"]
        code = main(["namespace", *words, *place])
        said = capsys.readouterr()
        return code, said.out + said.err

    credentials = (("authorization", f"Bearer {node.token}"),)
    with grpc.insecure_channel(node.runtime.grpc_admin) as channel:
        stub = RelayAdminStub(channel)
        assert command("follow", "--topic", HALL)[0] == 0
        there = stub.Follow(
            pb.FollowRequest(content_topic="/chat/1/den"), metadata=credentials, timeout=30
        )
        listed = stub.ListFollowed(pb.ListFollowedRequest(), metadata=credentials, timeout=30)
        assert [each.origin for each in listed.namespaces] == ["file", "call", "call"]
        assert [each.namespace_id for each in listed.namespaces[1:]] == [hall, there.namespace_id]
        assert [each["origin"] for each in json.loads(command("followed")[1])] == [
            "file", "call", "call",
        ]  # fmt: skip

        # Full: the same words everywhere, with the number.
        with pytest.raises(ClientRefusedError, match="follows 2 namespaces at run time, of 2"):
            node.admin.follow(content_topic="/chat/1/more")
        assert "follows 2 namespaces at run time, of 2" in command("follow", "--topic", "/x/1/y")[1]
        with pytest.raises(grpc.RpcError, match="follows 2 namespaces at run time, of 2"):
            stub.Follow(pb.FollowRequest(content_topic="/x"), metadata=credentials, timeout=30)
        # Of the configuration: not to be unfollowed here.
        with pytest.raises(ClientRefusedError, match="stands in the node's configuration"):
            node.admin.unfollow(topic_namespace(ROOM))
        # Unknown, and what is no document of it.
        with pytest.raises(ClientRefusedError, match="does not follow the namespace"):
            node.admin.unfollow(topic_namespace("/x/1/y"))
        with pytest.raises(ClientRefusedError, match="documents"):
            node.admin.follow(content_topic="/x/1/y", documents=[b"\x00" * 40])

        stub.Unfollow(
            pb.UnfollowRequest(namespace_id=there.namespace_id), metadata=credentials, timeout=30
        )
    assert command("unfollow", "--topic", HALL)[0] == 0
    assert [each.origin for each in node.admin.followed()] == ["file"]


def test_a_validator_three_relays_away_gets_every_header_once(
    doors: Callable[..., Doors], eventually: Callable[..., Any]
) -> None:
    """By ``headers/global`` alone, and no header crosses a connection twice (LP-6420 §2.2, G34)."""
    chain = [doors("entry").start()]
    for name in ("second", "third"):
        relay = follower_of(chain[-1], doors, name)
        relay.node.topics = [ROOM]
        relay.node.sections["sync"] |= {"reconcile_interval_ms": 0}
        chain.append(relay.start())
    far = follower_of(chain[-1], doors, "far", carry="open", role="validator")
    far.node.sections["sync"] |= {"reconcile_interval_ms": 0}
    chain.append(far.start())
    entry = chain[0]
    for place, peers in zip(chain, (1, 2, 2, 1), strict=True):
        eventually(lambda place=place, peers=peers: place.connected() == peers, seconds=30)
    eventually(lambda: _meshed(chain), seconds=30)

    authors = [signer() for _ in range(5)]
    for turn in range(8):
        entry.client.publish([each.next(b"%d of %d" % (turn, n)) for n, each in enumerate(authors)])
    for author in authors:
        eventually(lambda author=author: far.reached(author.namespace_id) == 8, seconds=60)

    # Each connection carried each of the 40 headers once, in one direction.
    for before, behind in pairwise(chain):
        (brought,) = [
            peer for name, peer in behind.status()["peers"].items()
            if name == before.runtime.peer_id
        ]  # fmt: skip
        assert (brought["received"], brought["duplicates"]) == (40, 0)
    back = [chain[2].status()["peers"][far.runtime.peer_id]["received"]]
    assert back == [0]
    # Headers alone: a payload is asked for when a reader asks for it.
    page = far.client.page(Query(namespace_id=authors[0].namespace_id))
    assert [message.blob for message in page.messages] == [None] * 8
    commitment = page.messages[0].header.blob_commitment
    assert far.client.blob(commitment) == b"0 of 0"
    assert far.admin.followed() == []
    # Once the namespace is followed, those of before are fetched as well.
    far.admin.follow(content_topic=ROOM)
    lanes = [author.namespace_id for author in authors]
    eventually(lambda: all(_payloads(far, each) == 8 for each in lanes), seconds=60)


def _payloads(place: Doors, lane: NamespaceId) -> int:
    page = place.client.page(Query(namespace_id=lane))
    return sum(message.blob is not None for message in page.messages)


def _meshed(chain: list[Doors]) -> bool:
    name = f"/lux/test/relay/namespace/{topic_namespace(ROOM).hex()}"
    meshes = [place.status()["mesh"] for place in chain]
    heads = [mesh.get("/lux/test/relay/headers/global") for mesh in meshes]
    return [mesh.get(name) for mesh in meshes[:3]] == [1, 2, 1] and heads == [1, 2, 2, 1]


def test_an_open_node_catches_up_with_every_namespace(
    doors: Callable[..., Doors], eventually: Callable[..., Any]
) -> None:
    """What it never followed and never heard of comes by comparing everything (G35, J5)."""
    entry = doors("entry")
    entry.node.topics = [ROOM, HALL]
    entry.start()
    authors = [signer(ROOM), signer(HALL)]
    for author in authors:
        entry.client.publish([author.next(b"one"), author.next(b"two")])
    late = follower_of(entry, doors, "late", carry="open", global_topics=[])
    late.node.sections["sync"] |= {"peers": [entry.runtime.sync]}
    late.start()

    for author in authors:
        eventually(lambda author=author: late.reached(author.namespace_id) == 2, seconds=30)
    assert late.client.head(authors[1].namespace_id).parent == topic_namespace(HALL)


def test_an_open_node_follows_what_applications_ask_for(
    doors: Callable[..., Doors], eventually: Callable[..., Any]
) -> None:
    """A reader and a publisher each open a topic nobody listed; the oldest one gives way (G35)."""
    entry = doors("entry")
    entry.node.topics = []
    entry.node.sections["gossip"] |= {"carry": "open", "followed_max": 2}
    entry.start()
    other = follower_of(entry, doors, "other", carry="open", followed_max=2).start()
    new = topic_namespace("/new/1/room")
    told = subscribe(other.client, Subscribe(namespaces=[new]))
    live = next(told)
    assert isinstance(live, Live)
    assert live.not_carried == frozenset()
    assert [(e.namespace_id, e.origin) for e in other.admin.followed()] == [(new, "demand")]
    author = signer("/new/1/room")
    eventually(lambda: other.connected() == 1, seconds=30)
    (receipt,) = entry.client.publish([author.next(b"hello")])
    assert receipt.stored

    event = next(each for each in told if isinstance(each, Message))
    assert event.header.namespace_id == author.namespace_id
    eventually(lambda: other.client.blob(event.header.blob_commitment) == b"hello", seconds=30)
    assert [each.origin for each in entry.admin.followed()] == ["demand"]

    for number in (1, 2):
        entry.client.publish([signer(f"/new/1/{number}").next(b"x")])
    assert [each.namespace_id for each in entry.admin.followed()] == [
        topic_namespace("/new/1/1"), topic_namespace("/new/1/2"),
    ]  # fmt: skip


def test_a_reader_is_told_of_a_namespace_that_nothing_comes_of(
    doors: Callable[..., Doors], eventually: Callable[..., Any], tmp_path: Path
) -> None:
    """WebSocket, gRPC, client and command say that the node does not carry it."""
    node = doors("relay").start()
    room, other = topic_namespace(ROOM), topic_namespace("/nobody/1/here")
    told = subscribe(node.client, Subscribe(namespaces=[room, other]))
    live = next(told)
    assert isinstance(live, Live)
    assert live.not_carried == {other}
    with RelaySyncClient(node.runtime.sync) as relay:
        wanted = SubscribeWanted(namespaces=[room, other])
        with closing(relay.subscribe(wanted)) as events:
            first = next(iter(events))
    assert isinstance(first, FollowedLive)
    assert first.not_carried == {other}
    words = [sys.executable, "-m", "luxrelay", "subscribe", "--gateway", node.runtime.gateway]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen([*words, "--namespace", other.hex()], stderr=said)
    try:
        line = f"the node does not carry {other.hex()}: nothing of it may ever come"
        eventually(lambda: line in (tmp_path / "said").read_text(), seconds=60)
    finally:
        process.kill()
        process.wait()


def test_an_open_node_takes_no_other_policy_and_nobody_s_lane(
    doors: Callable[..., Doors],
) -> None:
    """Another policy hash is refused, and so is a plain message in a known lane (G35, J6, H20)."""
    node = doors("relay")
    node.node.topics = []
    node.node.sections["gossip"] |= {"carry": "open"}
    node.start()
    author = signer("/new/1/room")
    assert node.client.publish([author.next(b"first")])[0].stored

    closed = LaneSigner(SigningKey.generate(), topic_namespace("/c/1/d"), policy_hash=b"\x07" * 32)
    (other,) = node.client.publish([closed.sign(b"x", now_ms())])
    assert (other.stored, other.code) == (False, Code.POLICY_VIOLATION)
    # A stranger's plain message in what is known as somebody's lane.
    lane_id = author.namespace_id
    header = MsgHeader(
        namespace_id=lane_id,
        seq=2,
        timestamp=now_ms(),
        blob_commitment=sha3_commitment(b"squat"),
        blob_len=5,
        policy_hash=default_policy_hash(lane_id),
    )
    signed = SigningKey.generate().sign_header(header).encode()
    (squat,) = node.client.publish([Outgoing(header=signed, blob=b"squat", parent=lane_id)])
    assert (squat.stored, squat.code) == (False, Code.INVALID_NAMESPACE)


def test_the_command_catches_up_with_what_was_followed_at_run_time(
    doors: Callable[..., Doors], capsys: pytest.CaptureFixture[str]
) -> None:
    """`luxrelay sync` of a node that does not run: followed namespaces, or in an open one all."""
    entry = doors("entry").start()
    author = signer()
    entry.client.publish([author.next(b"one")])

    def synced(late: Doors) -> tuple[int, str]:
        assert late.node.stop() == 0
        words = ["sync", "--config", str(late.node.config), "--relay", entry.runtime.sync]
        code = main([*words, "--json"])
        said = capsys.readouterr()
        return code, said.out or said.err

    def follower(name: str, **gossip: object) -> Doors:
        late = follower_of(entry, doors, name, **gossip)
        late.node.sections["sync"] |= {"reconcile_interval_ms": 0}
        return late.start()

    listed = follower("listed")
    code, said = synced(listed)
    assert (code, "the node carries no namespace" in said) == (1, True)
    listed.start()
    listed.admin.follow(content_topic=ROOM)
    assert json.loads(synced(listed)[1])["stored"] == 1
    assert json.loads(synced(follower("opened", carry="open"))[1])["stored"] == 1
