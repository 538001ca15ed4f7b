"""One mesh of today's node and an earlier release's, which keeps running beside it.

The earlier source comes out of the history (`git archive`) into ``build/`` and runs on the packages
of today's environment. A shallow clone has no history: then these tests are skipped and say so.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import (
    CiphertextType,
    Identity,
    IdentityType,
    MsgHeader,
    NamespacePolicy,
    SignedPolicy,
    SigningKey,
    TFHECiphertext,
    sha3_commitment,
    topic_namespace,
)
from luxrelay.bus.policy import EncryptionMode
from luxrelay.client import (
    NO_RETRY,
    LaneSigner,
    Message,
    Outgoing,
    Query,
    RelayClient,
    Subscribe,
    subscribe,
)
from luxrelay.errors import ClientRefusedError, SyncRemoteError
from luxrelay.node.folder import Runtime
from luxrelay.node.keyfile import create_key_file
from luxrelay.sync import PublishItem, RelaySyncClient
from luxrelay.sync.following import Followed, SubscribeWanted

ROOT = Path(__file__).resolve().parents[2]
OLD = "482efbd"
"""The commit that today's node has to get on with: the last one before connections, files and
frames got their bounds."""
PARENT = topic_namespace("/chat/1/room")
COUNT = 20
"""Messages published at each node."""
FAR_MS = 3_600_000
"""An interval that never ends within a test: what crosses then came by another way."""

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module")
def old_source() -> Path:
    """The earlier release's package folder, taken out of the history once."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip(f"no history here: a node of {OLD} needs git and a clone")
    archived = subprocess.run(
        [git, "-C", str(ROOT), "archive", OLD, "src"], capture_output=True, check=False
    )
    if archived.returncode:
        said = archived.stderr.decode(errors="replace").strip()
        pytest.skip(f"commit {OLD} is not in this clone (git fetch --unshallow): {said}")
    target = ROOT / "build" / f"node-{OLD}"
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as tree:
        tree.extractall(target, filter="data")
    source = target / "src"
    told = subprocess.run(
        [sys.executable, "-c", "import luxrelay; print(luxrelay.__file__)"],
        env={"PYTHONPATH": str(source)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(told.stdout.strip()).is_relative_to(source), "the environment hides the old source"
    return source


def configured(new_node: Callable[[str], Any], name: str, source: Path | None) -> Any:
    """A node process of either release; gossip and sync of its peers are set by the test."""
    node = new_node(name)
    node.source = source
    node.sections["sync"] |= {"reconcile_interval_ms": FAR_MS}
    return node


def messages(runtime: Runtime) -> int:
    """Return how many messages a node holds."""
    with urllib.request.urlopen(f"http://{runtime.http}/status", timeout=30) as answer:
        return int(json.loads(answer.read())["store"]["messages"])


def publish(runtime: Runtime, count: int = COUNT) -> None:
    """Publish messages of one new lane at a node."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    now_ms = time.time_ns() // 1_000_000
    signed = [signer.sign(f"message {n}".encode(), now_ms) for n in range(count)]
    items = [PublishItem(header=s.header, blob=s.blob, parent_id=PARENT) for s in signed]
    with RelaySyncClient(runtime.sync) as client:
        receipts = list(client.publish(items))
    assert all(receipt.stored for receipt in receipts), [receipt.reason for receipt in receipts]


@pytest.mark.parametrize("dialler", ["old", "new"])
def test_messages_published_at_either_reach_the_other_by_gossip(
    dialler: str,
    old_source: Path,
    new_node: Callable[[str], Any],
    eventually: Callable[..., Any],
) -> None:
    """Whoever dials, both are in one mesh; neither asks the other's sync port."""
    kinds = {"old": old_source, "new": None}
    dialled = "new" if dialler == "old" else "old"
    first = configured(new_node, dialled, kinds[dialled])
    there = first.start()
    second = configured(new_node, dialler, kinds[dialler])
    second.sections["gossip"] |= {"peers": [there.gossip[0]]}
    here = second.start()
    eventually(lambda: meshed(there) and meshed(here))

    publish(here)
    eventually(lambda: messages(there) == COUNT)
    publish(there)
    eventually(lambda: messages(here) == 2 * COUNT)

    assert first.stop() == 0
    assert second.stop() == 0


def meshed(runtime: Runtime) -> bool:
    """Say whether the node has a peer in the mesh of its topic."""
    with urllib.request.urlopen(f"http://{runtime.http}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return any(
        line.startswith("relay_mesh_size") and float(line.rpartition(" ")[2]) >= 1 for line in lines
    )


def test_the_clock_of_an_earlier_node_is_known_by_what_it_announces(
    old_source: Path, new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """Its hello tells no time, and it stays; the messages that are published at it do (G36)."""
    old = configured(new_node, "old", old_source)
    there = old.start()
    node = configured(new_node, "new", None)
    node.sections["gossip"] |= {"peers": [there.gossip[0]], "clock_peers_min": 1}
    here = node.start()
    eventually(lambda: meshed(there) and meshed(here))

    def clock() -> Any:
        with urllib.request.urlopen(f"http://{here.http}/healthz", timeout=30) as answer:
            return json.load(answer)["clock"]

    assert clock()["peers"] == 0
    publish(there)
    eventually(lambda: clock()["state"] == "right")
    assert clock()["peers"] == 1
    assert abs(clock()["offset_ms"]) < 5_000

    assert node.stop() == 0
    assert old.stop() == 0


@pytest.mark.parametrize("way", ["heads", "comparison"])
@pytest.mark.parametrize("asker", ["old", "new"])
def test_either_catches_up_from_the_other(
    asker: str,
    way: str,
    old_source: Path,
    new_node: Callable[[str], Any],
    eventually: Callable[..., Any],
) -> None:
    """What was published before the asker began comes over the sync port or the comparison."""
    kinds = {"old": old_source, "new": None}
    other = "new" if asker == "old" else "old"
    holder = configured(new_node, other, kinds[other])
    held = holder.start()
    publish(held)
    node = configured(new_node, asker, kinds[asker])
    if way == "heads":
        node.sections["sync"] |= {"peers": [held.sync]}
    else:  # the stream of reconciliation between peers of gossip, without a sync port
        node.sections["gossip"] |= {"peers": [held.gossip[0]]}
        node.sections["sync"] |= {"reconcile_interval_ms": 300}
    runtime = node.start()

    eventually(lambda: messages(runtime) == COUNT)

    assert node.stop() == 0
    assert holder.stop() == 0


@pytest.mark.parametrize("opener", ["old", "new"])
def test_either_opens_the_folder_of_the_other(
    opener: str, old_source: Path, new_node: Callable[[str], Any]
) -> None:
    """Messages, identity and tokens stay; a folder is handed back and opened there again."""
    kinds = {"old": old_source, "new": None}
    node = configured(new_node, "relay", kinds["new" if opener == "old" else "old"])
    first = node.start()
    publish(first)
    assert node.stop() == 0

    node.source = kinds[opener]
    taken = node.start()
    assert messages(taken) == COUNT
    assert taken.gossip[0].rpartition("/")[2] == first.gossip[0].rpartition("/")[2]
    publish(taken)
    assert node.stop() == 0

    node.source = kinds["new" if opener == "old" else "old"]
    again = node.start()
    assert messages(again) == 2 * COUNT
    assert node.stop() == 0


@pytest.mark.parametrize("way", ["gossip", "sync"])
def test_large_blobs_cross_between_releases(
    way: str, old_source: Path, new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """P50: above what gossip carries a blob is asked for, whole of the older one, in both ways."""
    old, new = configured(new_node, "old", old_source), configured(new_node, "new", None)
    there = old.start()
    new.sections["gossip"] |= {"peers": [there.gossip[0]], "blob_streams": way == "gossip"}
    if way == "sync":
        new.sections["sync"] |= {"peers": [there.sync], "interval_ms": 500}
    here = new.start()
    eventually(lambda: meshed(there) and meshed(here))
    signer = LaneSigner(SigningKey.generate(), PARENT)
    ways = ((there, here), (here, there)) if way == "gossip" else ((there, here),)
    for first, second in ways:
        blob = random.Random(first.sync).randbytes(1_500_000)
        signed = signer.sign(blob, time.time_ns() // 1_000_000)
        item = PublishItem(header=signed.header, blob=blob, parent_id=PARENT)
        with RelaySyncClient(first.sync) as client:
            assert next(iter(client.publish([item]))).stored
        with RelaySyncClient(second.sync) as client:
            read = partial(client.get_blob, sha3_commitment(blob))
            eventually(read)
            assert read() == blob
    assert new.stop() == 0
    assert old.stop() == 0


def test_time_that_went_back_at_an_old_node_is_marked_at_a_new_one(
    old_source: Path, new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """The old one takes it; the new one does not by gossip, and does as history (H13)."""
    old, new = configured(new_node, "old", old_source), configured(new_node, "new", None)
    there = old.start()
    new.sections["gossip"] |= {"peers": [there.gossip[0]]}
    new.sections["sync"] |= {"peers": [there.sync], "interval_ms": 500}
    new.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    here = new.start()
    eventually(lambda: meshed(there) and meshed(here))
    key, now_ms = SigningKey.generate(), time.time_ns() // 1_000_000
    lane = LaneSigner(key, PARENT)
    first = lane.sign(b"first", now_ms)
    back = LaneSigner(key, PARENT, next_seq=2).sign(b"second", now_ms - 5_000)

    with RelaySyncClient(there.sync) as client:
        for each in (first, back):
            item = PublishItem(header=each.header, blob=each.blob, parent_id=PARENT)
            (receipt,) = client.publish([item])
            assert receipt.stored, receipt.reason
    eventually(lambda: messages(here) == 2)

    with RelayClient(here.gateway) as reader:
        found = list(reader.messages(Query(namespace_id=lane.namespace_id)))
    assert [each.regressed for each in found] == [False, True]


def test_an_old_node_is_not_believed_to_give_what_it_does_not_know(
    old_source: Path, new_node: Callable[[str], Any]
) -> None:
    """Over gRPC it does not confirm it, over a WebSocket it refuses it; what it knows it gives."""
    old = configured(new_node, "old", old_source)
    old.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    there = old.start()
    publish(there, 2)

    with RelaySyncClient(there.sync) as client:
        with closing(client.subscribe(SubscribeWanted(namespaces=[PARENT]))) as events:
            assert isinstance(next(events), Followed)
        asked = SubscribeWanted(namespaces=[PARENT], ordered=True)
        ordered = client.subscribe(asked)
        with closing(ordered), pytest.raises(SyncRemoteError, match="older version"):
            next(ordered)
    with RelayClient(there.gateway) as reader:
        plain = subscribe(reader, Subscribe(namespaces=[PARENT]), retry=NO_RETRY)
        assert isinstance(next(plain), Message)
        for wish in ({"ordered": True}, {"blobs": "later"}, {"max_rate": 5}):
            events = subscribe(reader, Subscribe(namespaces=[PARENT], **wish), retry=NO_RETRY)  # type: ignore[arg-type]
            with pytest.raises(ClientRefusedError, match="unknown member"):
                next(events)


def test_headers_pass_through_an_old_relay(
    old_source: Path, new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """It is sent both copies, and hands on what names a lane's parent without looking (G34)."""
    alone = {"exchange": False, "outbound_target": 0}
    entry = configured(new_node, "entry", None)
    entry.sections["gossip"] |= alone
    first = entry.start()
    between = configured(new_node, "between", old_source)
    between.sections["gossip"] |= {**alone, "peers": [first.gossip[0]]}
    middle = between.start()
    far = configured(new_node, "far", None)
    far.sections["gossip"] |= {
        **alone, "peers": [middle.gossip[0]], "carry": "open", "role": "validator",
    }  # fmt: skip
    far.topics = []
    last = far.start()
    for runtime, peers in ((first, 1), (middle, 2), (last, 1)):
        eventually(lambda runtime=runtime, peers=peers: followers(runtime) == peers)

    publish(first)
    eventually(lambda: messages(last) == COUNT)
    with RelaySyncClient(last.sync) as client:
        (head,) = client.list_heads(PARENT)
    assert head.parent_id == PARENT
    for node in (far, between, entry):
        assert node.stop() == 0


def followers(runtime: Runtime) -> int:
    """Return how many peers are in the node's mesh of all headers."""
    with urllib.request.urlopen(f"http://{runtime.http}/status", timeout=30) as answer:
        mesh = json.load(answer)["mesh"]
    return int(mesh.get("/lux/test/relay/headers/global", 0))


def test_a_message_with_a_sidecar_passes_an_old_node_that_keeps_none(
    old_source: Path, new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """It gets the message, is not blamed for what it does not have, and the client is told."""
    owner = SigningKey.generate()
    policy = NamespacePolicy(
        owner=Identity(IdentityType.RAW_KEY, owner.public_field),
        encryption_mode=EncryptionMode.TFHE,
        tfhe_orch=True,
    )
    signed = SignedPolicy(network="test", namespace_id=PARENT, policy=policy).signed_by(owner)
    nodes = {}
    for name, source in (("old", old_source), ("new", None), ("last", None)):
        nodes[name] = configured(new_node, name, source)
        nodes[name].policy = signed.encode().hex()
        nodes[name].sections["node"]["signing"] = "bound"
    there = nodes["old"].start()
    nodes["new"].sections["gossip"] |= {"peers": [there.gossip[0]]}
    here = nodes["new"].start()
    eventually(lambda: meshed(there) and meshed(here))
    signer = LaneSigner(
        SigningKey.generate(), PARENT, policy_hash=policy.policy_hash, bound_network="test"
    )
    secret = TFHECiphertext(type=CiphertextType.U8, data=b"opaque")
    one, two = (
        signer.sign(text, time.time_ns() // 1_000_000, ciphertext=secret) for text in (b"1", b"2")
    )

    def item(message: Outgoing) -> PublishItem:
        return PublishItem(
            header=message.header, blob=message.blob, parent_id=PARENT, sidecar=message.sidecar
        )

    with RelaySyncClient(here.sync) as client:
        (receipt,) = client.publish([item(one)])
    assert receipt.stored, receipt.reason
    eventually(lambda: messages(there) == 1)

    with RelaySyncClient(there.sync) as client, pytest.raises(SyncRemoteError, match="sidecars"):
        client.publish([item(two)])
    eventually(lambda: messages(here) == 2)
    nodes["last"].sections["sync"] |= {"peers": [there.sync, here.sync]}
    last = nodes["last"].start()
    eventually(lambda: messages(last) == 2)
    reference = MsgHeader.decode(one.header).tfhe_sidecar
    assert reference is not None
    with RelaySyncClient(last.sync) as client:
        eventually(lambda: client.get_blob(reference.commitment) == one.sidecar)
    assert meshed(there)
    assert meshed(here)
    for runtime in (here, last):  # nobody has the other one; it is told, and nobody is blamed
        eventually(lambda runtime=runtime: status(runtime)["wanted"]["sidecars"] == 1)
        assert status(runtime)["catch_up"]["penalties"] == {}


def status(runtime: Runtime) -> dict[str, Any]:
    """Return a node's status page."""
    with urllib.request.urlopen(f"http://{runtime.http}/status", timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_an_earlier_node_takes_what_a_quota_of_today_pays(
    old_source: Path, new_node: Callable[[str], Any], tmp_path: Path
) -> None:
    """It cannot tell what is left (`GetQuotas`), so the command counts alone."""
    issuer, alice = SigningKey.generate(), tmp_path / "alice.pem"
    node = configured(new_node, "old", old_source)
    node.sections["fees"] = {"prepaid_issuers": [issuer.public_field.hex()], "free_tier": False}
    place = node.start()
    create_key_file(tmp_path / "issuer.pem", issuer, None)
    create_key_file(alice, SigningKey.generate(), None)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "luxrelay", *words],
            capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        )  # fmt: skip

    owner = run("keys", "export-public", "alice.pem").stdout.strip()
    issued = run("fees", "issue", "--key", "issuer.pem", "--network", "test", "--owner", owner,
                 "--messages", "2", "--topic", "/chat/1/room")  # fmt: skip
    (tmp_path / "quota").write_text(issued.stdout)
    publishing = ("publish", "--relay", place.sync, "--topic", "/chat/1/room", "--key", "alice.pem")

    done = run(*publishing, "--quota", "quota", "one", "two", "three")

    assert done.returncode == 1
    assert "first line that is not known as stored: 3" in done.stderr
    assert messages(place) == 2
    refused = run(*publishing, "--quota", "quota", "three")
    assert "the quota is used up" in refused.stderr  # by the node: another process counts anew
