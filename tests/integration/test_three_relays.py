"""Three relays as processes: gossip, an outage, catching up."""

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.bus import MsgHeader, SigningKey, lane, sha3_commitment, topic_namespace
from luxrelay.bus.policy import default_policy
from luxrelay.cli.main import main
from luxrelay.sync import PublishItem, RelaySyncClient

pytestmark = pytest.mark.slow
PARENT = topic_namespace("/chat/1/room")
POLICY = default_policy(PARENT).policy_hash


class Lane:
    """One sender's lane."""

    def __init__(self) -> None:
        self.key = SigningKey.generate()
        self.namespace_id = lane(PARENT, self.key.public_field)
        self.seq = 0

    def next(self, blob: bytes = b"") -> PublishItem:
        """Return the next signed message."""
        self.seq += 1
        blob = blob or f"message {self.seq}".encode()
        header = MsgHeader(
            namespace_id=self.namespace_id,
            seq=self.seq,
            timestamp=time.time_ns() // 1_000_000,
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=POLICY,
        )
        signed = self.key.sign_header(header).encode()
        return PublishItem(header=signed, blob=blob, parent_id=PARENT)


def mesh_size(address: str) -> int:
    """Return how many mesh peers a relay has."""
    with urllib.request.urlopen(f"http://{address}/status", timeout=10) as answer:
        return sum(json.load(answer)["mesh"].values())


def held(address: str) -> dict[bytes, tuple[int, int]]:
    """Return namespace to (contiguous, messages) of one relay."""
    with RelaySyncClient(address) as relay:
        heads = relay.list_heads(PARENT)
        return {h.namespace_id: (h.contiguous_seq, h.messages) for h in heads if h.messages}


def test_gossip_outage_and_catch_up(
    new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """A relay that was away ends with exactly what the others hold (21-49, 21-25, 21-15)."""
    nodes = [new_node(f"relay-{i}") for i in (1, 2, 3)]
    runtimes = []
    for node in nodes:
        node.sections["gossip"]["peers"] = [r.gossip[0] for r in runtimes]
        node.sections["sync"]["peers"] = [r.sync for r in runtimes]
        runtimes.append(node.start())
    lanes = [Lane() for _ in range(5)]
    with RelaySyncClient(runtimes[0].sync) as entry:
        receipts = entry.publish(each.next() for each in lanes for _ in range(20))
        assert all(receipt.stored for receipt in receipts)
        expected = {each.namespace_id: (20, 20) for each in lanes}
        for runtime in runtimes:
            eventually(lambda runtime=runtime: held(runtime.sync) == expected)

        assert nodes[2].stop() == 0
        entry.publish(each.next() for each in lanes for _ in range(30))
        runtimes[2] = nodes[2].start()
        entry.publish(each.next() for each in lanes for _ in range(10))

    expected = {each.namespace_id: (60, 60) for each in lanes}
    for runtime in runtimes:
        eventually(lambda runtime=runtime: held(runtime.sync) == expected)


def test_a_relay_without_sync_peers_reconciles_with_gossip_peers(
    new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """What was sent before a relay came reaches it over the reconcile stream (J5, 21-25)."""
    first, second = new_node("relay-1"), new_node("relay-2")
    entry, author = first.start(), Lane()
    with RelaySyncClient(entry.sync) as relay:
        relay.publish(author.next() for _ in range(50))
    second.sections["gossip"]["peers"] = [entry.gossip[0]]
    second.sections["sync"]["reconcile_interval_ms"] = 500
    other = second.start()

    eventually(lambda: held(other.sync) == {author.namespace_id: (50, 50)})

    eventually(lambda: sample(other.http, "luxrelay_catch_up_reconcile_stored_total") == 50)
    assert sample(entry.http, "luxrelay_reconcile_stream_questions_total") >= 2
    assert sample(other.http, "luxrelay_blob_fetch_in_flight") == 0


def test_a_relay_may_close_its_stream(
    new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """With sync.reconcile_stream off, peers of gossip read nothing of the store."""
    first, second = new_node("relay-1"), new_node("relay-2")
    first.sections["sync"]["reconcile_stream"] = False
    entry, author = first.start(), Lane()
    with RelaySyncClient(entry.sync) as relay:
        relay.publish(author.next() for _ in range(5))
    second.sections["gossip"]["peers"] = [entry.gossip[0]]
    second.sections["sync"]["reconcile_interval_ms"] = 200
    other = second.start()

    eventually(lambda: sample(other.http, "luxrelay_catch_up_failures_total") >= 2)

    assert held(other.sync) == {}
    assert sample(entry.http, "luxrelay_reconcile_stream_questions_total") == 0


def sample(address: str, name: str) -> float:
    """Return a number of the metrics page."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_large_blob_reaches_relays_that_heard_of_its_header(
    new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """A blob too large for an announcement is fetched by those that gossip told of it (J7)."""
    first, second = new_node("relay-1"), new_node("relay-2")
    entry = first.start()
    second.sections["gossip"]["peers"] = [entry.gossip[0]]
    second.sections["sync"]["peers"] = [entry.sync]
    other = second.start()
    eventually(lambda: mesh_size(entry.http))
    author, blob = Lane(), b"x" * 100_000

    with RelaySyncClient(entry.sync) as relay, RelaySyncClient(other.sync) as reader:
        (receipt,) = relay.publish([author.next(blob)])
        assert receipt.peers_sent == 1

        def served() -> bool:
            found, _ = reader.get_messages([receipt.message_id])
            return [message.blob for message in found] == [blob]

        eventually(served)


def test_gateway_fetches_a_blob_that_its_relay_lacks(
    new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """21-37: a blob comes through the gateway before the next catch-up, and stays."""
    first, second = new_node("relay-1"), new_node("relay-2")
    entry = first.start()
    second.sections["gossip"]["peers"] = [entry.gossip[0]]
    second.sections["sync"] |= {"peers": [entry.sync], "interval_ms": 86_400_000}
    second.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    other = second.start()
    eventually(lambda: mesh_size(entry.http))
    blob = b"x" * 100_000
    with RelaySyncClient(entry.sync) as relay:
        relay.publish([Lane().next(blob)])
    eventually(lambda: held(other.sync))
    commitment = sha3_commitment(blob)

    url = f"http://{other.gateway}/v1/blobs/{commitment.hex()}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.read() == blob
    with RelaySyncClient(other.sync) as reader:
        assert reader.get_blob(commitment) == blob


def test_query_says_when_only_the_header_is_there(
    new_node: Callable[[str], Any],
    eventually: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A blob that a relay does not hold does not look like an empty one."""
    first, second = new_node("relay-1"), new_node("relay-2")
    entry = first.start()
    second.sections["gossip"] |= {"peers": [entry.gossip[0]], "blob_streams": False}
    other = second.start()
    eventually(lambda: mesh_size(entry.http))
    with RelaySyncClient(entry.sync) as relay:
        relay.publish([Lane().next(b"x" * 100_000)])
    eventually(lambda: held(other.sync))

    assert main(["query", "--relay", other.sync, "--topic", "/chat/1/room", "--lanes"]) == 0

    assert "holds the header only" in capsys.readouterr().out
