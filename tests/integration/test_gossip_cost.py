"""Gossip is on the meter of cost: who floods is not read from, who brings messages is."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from libp2p.exceptions import BaseLibp2pError

from luxrelay.bus import (
    MsgHeader,
    SignatureScheme,
    SigningKey,
    lane,
    sha3_commitment,
    topic_namespace,
)
from luxrelay.bus.policy import default_policy
from luxrelay.errors import LuxRelayError
from luxrelay.gossip import topic_for_namespace
from luxrelay.gossip.rpc_pb2 import RPC
from luxrelay.net.raw_peer import raw_pubsub_peer
from luxrelay.sync import PublishItem, RelaySyncClient

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

    from luxrelay.node.folder import Runtime

PARENT = topic_namespace("/chat/1/room")
BURST_S = 0.2
RATE = 0.02
MESSAGES = 1_000
FLOOD_S = 15.0


def metric(place: Runtime, name: str) -> float:
    """Return one number of the node's metrics."""
    line = http.client.HTTPConnection(place.http, timeout=30)
    line.request("GET", "/metrics")
    text = line.getresponse().read().decode()
    line.close()
    found = [
        each.split()[-1] for each in text.splitlines() if each.startswith((name + " ", name + "{"))
    ]
    return float(found[0]) if found else 0.0  # the page says so when it was asked too often


def cpu_s(node: NodeProcess) -> float:
    """Return the CPU time of the node's process, seconds."""
    assert node.process is not None
    text = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")


def message(number: int) -> PublishItem:
    """Return a signed message; its sender has a lane for each ten."""
    key = SigningKey.from_seed(SignatureScheme.ED25519, (number // 10).to_bytes(32))
    blob = b"m%d" % number
    header = MsgHeader(
        namespace_id=lane(PARENT, key.public_field),
        seq=1 + number % 10,
        timestamp=time.time_ns() // 1_000_000,
        blob_commitment=sha3_commitment(blob),
        blob_len=len(blob),
        policy_hash=default_policy(PARENT).policy_hash,
    )
    return PublishItem(header=key.sign_header(header).encode(), blob=blob, parent_id=PARENT)


def flood(place: Runtime, until: float) -> None:
    """Announce messages that there are not, as ever new peers, as fast as they are taken."""
    topic = topic_for_namespace("test", PARENT)
    made = RPC()
    made.control.ihave.add(topicID=topic, messageIDs=[os.urandom(32) for _ in range(90)])
    frame = made.SerializeToString()

    async def one() -> None:
        lost = (OSError, LuxRelayError, BaseLibp2pError, trio.BrokenResourceError)
        while time.monotonic() < until:
            with suppress(*lost), trio.move_on_after(max(0.0, until - time.monotonic())):
                async with raw_pubsub_peer(place.gossip[0], os.urandom(32), topics=[topic]) as peer:
                    while True:
                        await peer.send_rpc(frame)

    while time.monotonic() < until:
        with suppress(BaseExceptionGroup):
            trio.run(one)


@pytest.fixture
def metered(new_node: Callable[[str], NodeProcess]) -> NodeProcess:
    """A node whose budget for strangers is used up soon."""
    node = new_node("metered")
    node.sections["sync"] |= {"stranger_ms_per_s": 20, "stranger_burst_ms": 200}
    return node


@pytest.mark.trial
def test_a_flood_of_gossip_costs_what_its_address_may_cost(metered: NodeProcess) -> None:
    """It is not read from, whoever it says to be; before, it cost what the sender could send."""
    place = metered.start()
    began, before = time.monotonic(), cpu_s(metered)
    flood(place, began + FLOOD_S)
    took, cost = time.monotonic() - began, cpu_s(metered) - before
    assert metric(place, "luxrelay_net_held_total") > 0
    charged = metric(place, "luxrelay_cost_strangers_seconds")
    # A connection is read from once more while nothing is owed: what 64 KiB cost is beyond.
    assert BURST_S < charged < BURST_S + RATE * took + 1.0
    assert cost < BURST_S + RATE * took + 0.1 * took + 1.0
    assert "not read from for a while: gossip of 127.0.0.1" in (metered.folder / "log").read_text()


@pytest.mark.trial
def test_an_honest_peer_brings_more_than_it_costs(
    metered: NodeProcess,
    new_node: Callable[[str], NodeProcess],
    eventually: Callable[[Callable[[], object]], object],
) -> None:
    """A relay that nobody has named sends at full speed, and all of it is taken; it owes nothing.

    Its connection is never held, although reading its messages costs several times the burst.
    """
    metered.sections["sync"] |= {"interval_ms": 600_000}  # messages come by gossip
    place = metered.start()
    honest = new_node("honest")
    honest.sections["gossip"]["peers"] = list(place.gossip)
    honest.sections["sync"] |= {"known_hosts": ["127.0.0.1"]}
    at = honest.start()
    eventually(lambda: metric(at, "relay_mesh_size"))
    before = cpu_s(metered)
    with RelaySyncClient(at.sync) as client:
        for first in range(0, MESSAGES, 50):
            items = [message(number) for number in range(first, first + 50)]
            assert all(each.verdict == 0 for each in client.publish(items))
    eventually(lambda: metric(place, "luxda_headers_processed_total") >= MESSAGES)
    assert cpu_s(metered) > before
    assert metric(place, "luxrelay_cost_strangers_seconds") < BURST_S
    assert metric(place, "luxrelay_net_held_total") == 0
