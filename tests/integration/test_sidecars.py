"""TFHE sidecars: published, fetched, checked and shown by node processes; swapped ones refused."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from luxrelay.bus import (
    CiphertextType,
    Code,
    MsgHeader,
    NamespaceId,
    SigningKey,
    TFHECiphertext,
    TFHESidecar,
    attach_sidecar,
    check_sidecar,
    sha3_commitment,
    topic_namespace,
)
from luxrelay.bus.bound import sign_header_bound
from luxrelay.cli.main import main
from luxrelay.client import (
    NO_RETRY,
    Checks,
    LaneSigner,
    Outgoing,
    PublishStream,
    Query,
    RelayClient,
    Subscribe,
    subscribe,
)
from luxrelay.client import Message as ClientMessage
from luxrelay.errors import LuxRelayError
from luxrelay.gossip import (
    HeaderAnnouncement,
    MessageType,
    RelayMessage,
    encode_header_with_blob,
    topic_for_namespace,
)
from luxrelay.gossip.rpc_pb2 import RPC, Message
from luxrelay.net import raw_pubsub_peer
from luxrelay.node.gateway.tokens import TokenFile
from luxrelay.sync import PublishItem, RelaySyncClient
from luxrelay.sync.following import Followed, SubscribeWanted

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

    from luxrelay.node.folder import Runtime

pytestmark = pytest.mark.slow
TOPIC = "/chat/1/room"
PARENT = topic_namespace(TOPIC)
NETWORK = "closed"
CHECKS = Checks(bound_network=NETWORK)
SECRET = TFHECiphertext(type=CiphertextType.U64, data=b"opaque " * 1000)
"""Too large for an announcement."""


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must succeed, and returns what it printed."""

    def run(*arguments: object) -> str:
        assert main([str(each) for each in arguments]) == 0
        return capsys.readouterr().out.strip()

    return run


@dataclass(frozen=True)
class Stand:
    """Nodes of one network whose namespace demands sidecars, and what a sender needs."""

    policy_hash: bytes
    signed_policy: str
    new_node: Callable[[str], NodeProcess]

    def node(self, name: str, **of_node: object) -> NodeProcess:
        """A node that is not started yet."""
        node = self.new_node(name)
        node.sections["node"] |= {"signing": "bound", "network": NETWORK} | of_node
        node.sections["gateway"] = {
            "listen": "127.0.0.1:0", "admin_listen": "", "grpc_listen": "127.0.0.1:0",
        }  # fmt: skip
        node.policy = self.signed_policy
        return node

    def signer(self, *, bound: str = NETWORK) -> LaneSigner:
        """A new sender."""
        return LaneSigner(
            SigningKey.generate(), PARENT, policy_hash=self.policy_hash, bound_network=bound
        )


@pytest.fixture
def stand(
    new_node: Callable[[str], NodeProcess], printed: Callable[..., str], tmp_path: Path
) -> Stand:
    """A policy that demands a sidecar of every message, signed."""
    owner = tmp_path / "owner.pem"
    printed("keys", "new", owner)
    form = json.dumps(
        {
            "owner": {"type": "raw_key", "value": printed("keys", "export-public", owner)},
            "encryptionMode": "tfhe",
            "tfheOrch": True,
        }
    )
    policy = printed("policy", "sign", form, "--key", owner, "--network", NETWORK, "--topic", TOPIC)
    digest = printed("policy", "encode", form, "--hash")
    return Stand(bytes.fromhex(digest.removeprefix("0x")), policy, new_node)


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def page(address: str, path: str) -> str:
    """Return a page of a running node."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def wanted(place: Runtime) -> dict[str, int]:
    """Return how many blobs and sidecars a node asks for."""
    found: dict[str, int] = json.loads(page(place.http, "/status"))["wanted"]
    return found


def token_of(node: NodeProcess) -> str:
    """Return a token that may read and publish, of a node that is not started yet."""
    (node.folder / "data").mkdir(parents=True, exist_ok=True, mode=0o700)
    text, _ = TokenFile(node.folder / "data", 8).new("tester", ["read", "publish"], 0)
    return text


def sidecar_at(place: Runtime, header: MsgHeader) -> bytes:
    """Return the sidecar as a node's gateway gives it; empty when it has none."""
    assert header.tfhe_sidecar is not None
    with RelayClient(place.gateway, checks=CHECKS) as client:
        (message,) = client.page(Query(namespace_id=header.namespace_id)).messages
        assert message.header == header
        return client.sidecar(header) if message.sidecar_held else b""


def test_a_sidecar_reaches_every_node_and_is_checked(
    stand: Stand,
    eventually: Callable[..., Any],
    printed: Callable[..., str],
    tmp_path: Path,
) -> None:
    """Published by command at one, fetched over gossip's peers, and by catching up (11-35, 11-36).

    It is stored under its own commitment, is bound to its header, and outlives a restart.
    """
    first, second, third = (stand.node(name) for name in ("first", "second", "third"))
    second.sections["sync"]["interval_ms"] = third.sections["sync"]["interval_ms"] = 3_600_000
    here = first.start()
    second.sections["gossip"]["peers"] = list(here.gossip)
    there = second.start()
    key, ciphertext = tmp_path / "alice.pem", tmp_path / "ciphertext"
    printed("keys", "new", key)
    ciphertext.write_bytes(SECRET.data)
    eventually(lambda: json.loads(page(there.http, "/status"))["peers"])
    policy = ["--policy-hash", stand.policy_hash.hex(), "--bound", NETWORK]
    relay = ["--relay", here.sync, "--topic", TOPIC]

    (receipt,) = json.loads(
        printed("publish", *relay, "--key", key, *policy, "--json",
                "--sidecar", ciphertext, "--sidecar-type", "u64", "hello")
    )  # fmt: skip

    assert receipt["stored"], receipt
    with RelaySyncClient(here.sync) as client:
        (message,) = client.sync_page(
            NamespaceId(bytes.fromhex(receipt["namespaceId"][2:]))
        ).messages
    header = MsgHeader.decode(message.header)
    own = sidecar_at(here, header)
    assert check_sidecar(header, own).accepted
    assert TFHESidecar.decode(own).ciphertext == SECRET.data
    assert TFHESidecar.decode(own).ciphertext_type is CiphertextType.U64
    assert message.sidecar_len == len(own)

    eventually(lambda: _stored(there) and sidecar_at(there, header) == own, seconds=30)
    eventually(lambda: wanted(there) == {"blobs": 0, "sidecars": 0}, seconds=30)
    assert "luxrelay_sidecars_wanted 0.0" in page(there.http, "/metrics")

    third.sections["sync"]["peers"] = [there.sync]
    late = third.start()
    eventually(lambda: _stored(late) and sidecar_at(late, header) == own, seconds=30)
    third.stop()
    late = third.start()
    assert sidecar_at(late, header) == own

    query = ["query", "--relay", late.sync, "--namespace", header.namespace_id.hex()]
    (shown,) = json.loads(printed(*query, "--sidecars", "--json"))["messages"]
    assert (shown["sidecarHeld"], shown["sidecar"]) == (True, "0x" + own.hex())
    assert "sidecar" not in json.loads(printed(*query, "--json"))["messages"][0]
    told = page(late.gateway, f"/v1/namespaces/{header.namespace_id.hex()}/messages")
    assert json.loads(told)["messages"][0]["sidecarHeld"] is True


def _stored(place: Runtime) -> bool:
    return int(json.loads(page(place.http, "/status"))["store"]["messages"]) > 0


def _known(place: Runtime, token: str) -> bool:
    """Whether the node knows the token already."""
    with RelayClient(place.gateway, token=token) as client:
        try:
            client.head(PARENT)
        except LuxRelayError:
            return False
    return True


Answer = tuple[int, bool]
"""Code of a receipt, and whether the message is stored."""
Door = Callable[[Outgoing], Answer]


def _doors(stack: ExitStack, place: Runtime, token: str) -> Iterator[tuple[str, Door]]:
    """Yield the doors where applications publish, by name."""
    http = stack.enter_context(RelayClient(place.gateway, token=token))
    ports = {
        "gRPC": stack.enter_context(RelaySyncClient(place.sync)),
        "gRPC of the gateway": stack.enter_context(RelaySyncClient(place.grpc, token=token)),
    }
    stream = stack.enter_context(PublishStream(http))

    def by_http(message: Outgoing) -> Answer:
        (receipt,) = http.publish([message])
        return receipt.code, receipt.stored

    def by_websocket(message: Outgoing) -> Answer:
        (receipt,) = stream.publish([message])
        return receipt.code, receipt.stored

    def by_grpc(client: RelaySyncClient, message: Outgoing) -> Answer:
        item = PublishItem(
            header=message.header,
            blob=message.blob,
            parent_id=message.parent,
            sidecar=message.sidecar,
        )
        (receipt,) = client.publish([item])
        return receipt.code, receipt.stored

    def by_json(message: Outgoing) -> Answer:
        entry = {
            "header": message.header.hex(),
            "blob": b64encode(message.blob).decode(),
            "parentId": message.parent.hex(),
            "sidecar": b64encode(message.sidecar).decode(),
        }
        request = urllib.request.Request(
            f"http://{place.gateway}/v1/messages",
            json.dumps({"messages": [entry]}).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our node
                (receipt,) = json.loads(answer.read())["receipts"]
        except urllib.error.HTTPError as refused:
            (receipt,) = json.loads(refused.read())["receipts"]
        return receipt["code"], receipt["stored"]

    yield "HTTP", by_http
    yield "JSON", by_json
    yield "WebSocket", by_websocket
    for name, client in ports.items():
        yield name, partial(by_grpc, client)


def swapped(message: Outgoing, ciphertext: TFHECiphertext) -> Outgoing:
    """Return the message as a hop makes it: same signature, another sidecar that binds as well."""
    header, sidecar = attach_sidecar(MsgHeader.decode(message.header), ciphertext)
    assert check_sidecar(header, sidecar).accepted
    return replace(message, header=header.encode(), sidecar=sidecar)


def test_each_door_refuses_what_is_not_the_senders_sidecar(
    stand: Stand, eventually: Callable[..., Any]
) -> None:
    """A swapped reference, other bytes, another epoch and none at all: each with its code (H3).

    What was refused stands in nobody's way, before the sender's own message and after it.
    """
    node = stand.node("relay")
    place = node.start()
    token = token_of(node)
    other = replace(SECRET, data=b"another")
    with ExitStack() as stack:
        eventually(partial(_known, place, token), seconds=30)
        for name, door in _doors(stack, place, token):
            signer = stand.signer()
            own = signer.sign(b"hello", now_ms(), ciphertext=SECRET)
            wrong = TFHESidecar.decode(own.sidecar)
            later = replace(wrong, epoch=wrong.epoch + 1).encode()
            refused = {
                "swapped": (swapped(own, other), Code.INVALID_SIGNATURE),
                "without": (replace(own, sidecar=b""), Code.SIDECAR_INVALID),
                "others": (replace(own, sidecar=swapped(own, other).sidecar), Code.SIDECAR_INVALID),
                "later": (replace(own, sidecar=later), Code.SIDECAR_INVALID),
                "garbage": (replace(own, sidecar=b"garbage"), Code.SIDECAR_INVALID),
            }
            for what, (message, code) in refused.items():
                assert door(message) == (code, False), (name, what)
            assert door(own) == (Code.OK, True), name
            assert door(own) == (Code.DUPLICATE, True), name
            assert door(replace(own, sidecar=b"")) == (Code.DUPLICATE, True), name
            for what in ("swapped", "others", "later", "garbage"):
                message, code = refused[what]
                assert door(message)[0] in {code, Code.DUPLICATE}, (name, what)
            assert door(refused["swapped"][0]) == (Code.INVALID_SIGNATURE, False), name
            assert sidecar_at(place, MsgHeader.decode(own.header)) == own.sidecar, name
            plain = stand.signer().sign(b"plain", now_ms())
            assert door(plain)[1] is False, name
            assert door(replace(plain, sidecar=own.sidecar))[1] is False, name


def test_the_command_tells_why_a_sidecar_is_refused(
    stand: Stand,
    printed: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Without `--bound` the answer has code and remedy; an operator may decide otherwise (H3)."""
    node = stand.node("relay", signing="literal")
    place = node.start()
    key, ciphertext = tmp_path / "alice.pem", tmp_path / "ciphertext"
    printed("keys", "new", key)
    ciphertext.write_bytes(b"opaque")
    publish = ["publish", "--relay", place.sync, "--topic", TOPIC, "--key", str(key), "--json",
               "--policy-hash", stand.policy_hash.hex(), "--sidecar", str(ciphertext)]  # fmt: skip

    assert main([*publish, "hello"]) == 1
    (receipt,) = json.loads(capsys.readouterr().out)
    assert receipt["code"] == Code.SIDECAR_INVALID
    assert 'node.signing = "bound"' in receipt["reason"]
    assert main([*publish, "one", "two"]) != 0
    assert "one message" in capsys.readouterr().err
    ciphertext.write_bytes(b"")
    assert main([*publish, "hello"]) != 0
    assert "empty" in capsys.readouterr().err

    node.stop()
    node.sections["node"]["unsigned_sidecars"] = True
    publish[2] = node.start().sync
    ciphertext.write_bytes(b"opaque")
    (receipt,) = json.loads(printed(*publish, "hello"))
    assert receipt["stored"]


def test_a_header_is_signed_with_its_sidecar_by_command(
    stand: Stand, printed: Callable[..., str], tmp_path: Path
) -> None:
    """`header sign --sidecar` writes the container that is published beside the header."""
    key, ciphertext, out = (tmp_path / name for name in ("alice.pem", "ciphertext", "sidecar"))
    printed("keys", "new", key)
    ciphertext.write_bytes(b"opaque")
    (tmp_path / "blob").write_bytes(b"hello")
    signer = stand.signer()
    form = {
        "namespaceId": "0x" + signer.namespace_id.hex(),
        "seq": 1,
        "policyHash": "0x" + stand.policy_hash.hex(),
    }
    sign = ["header", "sign", json.dumps(form), "--key", key, "--blob", tmp_path / "blob"]
    sidecar = ["--sidecar", ciphertext, "--sidecar-epoch", 7, "--bound", NETWORK]

    signed = printed(*sign, *sidecar, "--sidecar-out", out)

    header = MsgHeader.decode(bytes.fromhex(signed[2:]))
    assert check_sidecar(header, out.read_bytes()).accepted
    assert header.tfhe_sidecar is not None
    assert header.tfhe_sidecar.epoch == 7
    assert main([str(each) for each in [*sign, *sidecar]]) != 0


def envelope(message: Outgoing, relay: SigningKey) -> bytes:
    """Return the message as a relay of this identity announces it."""
    announcement = HeaderAnnouncement.signed(message.header, relay, now_ms())
    topic = topic_for_namespace(NETWORK, PARENT)
    payload = encode_header_with_blob(announcement, message.blob)
    return RelayMessage(type=MessageType.HEADER_WITH_BLOB, topic=topic, payload=payload).encode()


def gossiped(place: Runtime, messages: Sequence[Outgoing], until: Callable[[], bool]) -> None:
    """A peer with an identity of its own has sent the messages, and what it waits for is so."""
    seed = bytes(range(32))
    relay = SigningKey.from_seed(SigningKey.generate().scheme, seed)
    topic = topic_for_namespace(NETWORK, PARENT)

    async def send() -> None:
        async with raw_pubsub_peer(place.gossip[0], seed, topics=[topic]) as peer:
            await peer.wait_received(1)
            for each in messages:
                data = envelope(each, relay)
                rpc = RPC(publish=[Message(topic=topic, data=data)])
                await peer.send_rpc(rpc.SerializeToString())
            with trio.fail_after(30):
                while not await trio.to_thread.run_sync(until):  # noqa: ASYNC110 - it is elsewhere
                    await trio.sleep(0.05)

    trio.run(send)


def refused(place: Runtime, door: str, code: Code) -> float:
    """Return how many messages of a door a node has refused with a code."""
    name = f'code="{code.name.lower()}"'
    total = 0.0
    for line in page(place.http, "/metrics").splitlines():
        if line.startswith("luxrelay_verdicts_total") and f'door="{door}"' in line and name in line:
            total += float(line.rpartition(" ")[2])
    return total


def test_a_hop_that_swaps_the_reference_displaces_nothing(
    stand: Stand, eventually: Callable[..., Any]
) -> None:
    """The swapped header comes first over gossip and is refused, the sender's is taken (H3)."""
    node = stand.node("relay")
    place = node.start()
    own = stand.signer().sign(b"hello", now_ms(), ciphertext=SECRET)
    hostile = swapped(own, replace(SECRET, data=b"another"))

    gossiped(place, [hostile], lambda: refused(place, "gossip", Code.INVALID_SIGNATURE) == 1)
    assert not _stored(place)
    gossiped(place, [own], lambda: _stored(place))
    assert wanted(place) == {"blobs": 0, "sidecars": 1}
    assert sidecar_at(place, MsgHeader.decode(own.header)) == b""
    assert "luxrelay_sidecars_wanted 1.0" in page(place.http, "/metrics")

    with RelaySyncClient(place.sync) as client:  # what the sender has handed to another node
        item = PublishItem(header=own.header, blob=own.blob, parent_id=PARENT, sidecar=own.sidecar)
        (receipt,) = client.publish([item])
    assert (receipt.code, receipt.stored) == (Code.DUPLICATE, True)
    assert sidecar_at(place, MsgHeader.decode(own.header)) == own.sidecar
    eventually(lambda: wanted(place)["sidecars"] == 0, seconds=30)


def test_bytes_that_are_no_sidecar_are_asked_for_once(
    stand: Stand, eventually: Callable[..., Any]
) -> None:
    """A sender refers to bytes that are a blob of others: they are refused, nobody is blamed."""
    holder, asker = stand.node("holder"), stand.node("asker")
    there = holder.start()
    asker.sections["gossip"]["peers"] = list(there.gossip)
    asker.sections["sync"]["interval_ms"] = 3_600_000
    here = asker.start()
    eventually(lambda: json.loads(page(here.http, "/status"))["peers"])
    blob = b"no sidecar " * 1_000
    first = stand.signer().sign(blob, now_ms(), ciphertext=SECRET)
    with RelaySyncClient(there.sync) as client:
        item = PublishItem(header=first.header, blob=blob, parent_id=PARENT, sidecar=first.sidecar)
        assert client.publish([item])[0].stored
    key = SigningKey.generate()
    honest = LaneSigner(key, PARENT, policy_hash=stand.policy_hash, bound_network=NETWORK).sign(
        b"hello", now_ms(), ciphertext=SECRET
    )
    header = MsgHeader.decode(honest.header)
    assert header.tfhe_sidecar is not None
    reference = replace(header.tfhe_sidecar, commitment=sha3_commitment(blob))
    wrong = sign_header_bound(key, replace(header, tfhe_sidecar=reference), NETWORK)

    gossiped(
        here,
        [replace(honest, header=wrong.encode())],
        lambda: refused(here, "sync", Code.SIDECAR_INVALID) == 1,
    )

    eventually(lambda: wanted(here) == {"blobs": 0, "sidecars": 0}, seconds=30)
    assert refused(here, "sync", Code.SIDECAR_INVALID) == 1
    assert "luxrelay_blob_fetch_blamed_total 0.0" in page(here.http, "/metrics")
    assert sidecar_at(here, wrong) == b""


def test_a_subscriber_is_told_when_the_sidecar_comes(
    stand: Stand,
) -> None:
    """Who asked for what comes later is told the message again, over WebSocket and gRPC."""
    place = stand.node("relay").start()
    own = stand.signer().sign(b"hello", now_ms(), ciphertext=SECRET)
    gossiped(place, [own], lambda: _stored(place))
    with ExitStack() as stack:
        reader = stack.enter_context(RelayClient(place.gateway, checks=CHECKS))
        stream = subscribe(reader, Subscribe(namespaces=[PARENT], blobs="later"), retry=NO_RETRY)
        client = stack.enter_context(RelaySyncClient(place.sync))
        followed = client.subscribe(SubscribeWanted(namespaces=[PARENT], blobs="later"))
        told = (event for event in stream if isinstance(event, ClientMessage))
        followed_messages = (each for each in followed if isinstance(each, Followed))
        first, at_first = next(told), next(followed_messages)
        assert (first.sidecar_held, first.completes, first.blob) == (False, False, b"hello")
        assert (at_first.message.sidecar_len, at_first.completes) == (0, False)

        item = PublishItem(header=own.header, blob=own.blob, parent_id=PARENT, sidecar=own.sidecar)
        assert client.publish([item])[0].stored

        again, later = next(told), next(followed_messages)
        assert (again.sidecar_held, again.completes, again.header) == (True, True, first.header)
        assert (later.message.sidecar_len, later.completes) == (len(own.sidecar), True)
        followed.close()
        stream.close()
