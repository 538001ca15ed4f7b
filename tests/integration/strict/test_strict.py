"""Nodes on addresses 127.x.0.1, none of which is exempt from a limit because it is local."""

from __future__ import annotations

import itertools
import json
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from luxrelay.bus import SigningKey, topic_namespace
from luxrelay.client import LaneSigner
from luxrelay.errors import SyncUnreachableError
from luxrelay.sync import PublishItem, RelaySyncClient, SyncClientConfig

pytestmark = pytest.mark.slow
PARENT = topic_namespace("/chat/1/room")
NewNode = Callable[..., Any]
Eventually = Callable[..., Any]


@pytest.fixture
def strict_node(new_node: Callable[[str], Any]) -> NewNode:
    """A maker of nodes, each on a 127.x.0.1 of its own, with both exemptions off."""
    numbers = itertools.count(2)

    def make(name: str, **sync: object) -> Any:
        host = f"127.{next(numbers)}.0.1"
        node = new_node(name)
        node.sections["gossip"] |= {"listen": [f"/ip4/{host}/tcp/0"], "exempt_loopback": False}
        node.sections["sync"] |= {"listen": f"{host}:0", "exempt_loopback": False, **sync}
        return node

    return make


class Sender:
    """One application's lane."""

    def __init__(self) -> None:
        self._signer = LaneSigner(SigningKey.generate(), PARENT)
        self.lane = bytes(self._signer.namespace_id)

    def publish(self, address: str, blobs: list[bytes]) -> None:
        """Publish these payloads at a relay, which stores all of them."""
        now_ms = time.time_ns() // 1_000_000
        signed = [self._signer.sign(blob, now_ms) for blob in blobs]
        items = [PublishItem(header=m.header, blob=m.blob, parent_id=PARENT) for m in signed]
        with RelaySyncClient(address) as relay:
            assert all(receipt.stored for receipt in relay.publish(items))


def held(address: str, lane: bytes) -> list[bytes]:
    """Return the payloads of a lane that a relay's store has, in their order."""
    with RelaySyncClient(address) as relay:
        pages = list(relay.iter_pages(lane))
    return [message.blob for page in pages for message in page.messages]


def status(address: str) -> dict[str, Any]:
    """Return what a node tells of itself."""
    with urllib.request.urlopen(f"http://{address}/status", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_a_message_reaches_a_peer(strict_node: NewNode, eventually: Eventually) -> None:
    """Gossip between two addresses, over the peer's own limits."""
    first, second = strict_node("first"), strict_node("second")
    entry = first.start()
    second.sections["gossip"]["peers"] = [entry.gossip[0]]
    other = second.start()
    eventually(lambda: sum(status(other.http)["mesh"].values()))
    sender = Sender()

    sender.publish(entry.sync, [b"hello"])

    eventually(lambda: held(other.sync, sender.lane) == [b"hello"])


def test_a_relay_that_was_away_catches_up_within_its_rates(
    strict_node: NewNode, eventually: Eventually
) -> None:
    """It has a share of calls and bytes as a relay of another machine has, and comes to the end."""
    first = strict_node("first", peer_bytes_per_s=256 * 1024)
    entry = first.start()
    sender = Sender()
    blobs = [bytes([number]) * 8_000 for number in range(100)]
    sender.publish(entry.sync, blobs)
    second = strict_node("second", peers=[entry.sync])

    other = second.start()

    eventually(lambda: held(other.sync, sender.lane) == blobs)


def test_a_blob_reaches_a_peer(strict_node: NewNode, eventually: Eventually) -> None:
    """One that is too large for gossip is fetched from the peer."""
    first, second = strict_node("first"), strict_node("second")
    entry = first.start()
    second.sections["gossip"]["peers"] = [entry.gossip[0]]
    other = second.start()
    eventually(lambda: sum(status(other.http)["mesh"].values()))
    sender, blob = Sender(), bytes(range(256)) * 1_200

    sender.publish(entry.sync, [blob])

    eventually(lambda: held(other.sync, sender.lane) == [blob])


@pytest.mark.parametrize("exempt", [False, True])
def test_a_program_of_this_machine_has_a_rate_unless_it_is_exempt(
    strict_node: NewNode, exempt: bool
) -> None:
    """One call a second: further ones are refused with a time, or none is (P34, 21-40)."""
    node = strict_node("relay", peer_requests_per_s=1)
    node.sections["sync"]["exempt_loopback"] = exempt
    runtime = node.start()
    hasty = SyncClientConfig(busy_wait_s=0)

    with RelaySyncClient(runtime.sync, config=hasty) as relay:

        def refusal(_: int) -> str:
            try:
                relay.get_head(bytes(20))
            except SyncUnreachableError as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(8) as pool:
            refusals = [each for each in pool.map(refusal, range(60)) if each]

    assert any("again in" in each for each in refusals) is not exempt
    assert not (exempt and refusals)
