"""What the driver does before there is a network; the rest is in the integration tests."""

from __future__ import annotations

import random

import pytest

from luxrelay.bus import NamespaceId, VerdictKind
from luxrelay.errors import AddressError, TopicError
from luxrelay.gossip import GossipParams, GossipRouter, Validate, topic_for_namespace
from luxrelay.net.config import NetConfig
from luxrelay.net.driver import GossipDriver
from luxrelay.net.host import RelayHost

TOPIC = topic_for_namespace("testnet", NamespaceId(bytes(19) + b"\x20"))


async def accept(batch: list[Validate]) -> list[VerdictKind]:
    """Everything is fine."""
    return [VerdictKind.ACCEPT] * len(batch)


def driver(*peers: str) -> GossipDriver:
    """A driver that does not run."""
    config = NetConfig(peers=peers)
    host = RelayHost(bytes(32), config)
    router = GossipRouter(GossipParams.small(), rng=random.Random(1), own_id=host.peer_id)
    return GossipDriver(router, host, validate=accept, config=config, rng=random.Random(2))


async def test_refuse_peer_without_id() -> None:
    """A configured peer needs a full address, and the error says so before anything runs."""
    with pytest.raises(AddressError, match="append /p2p/"):
        driver("/ip4/127.0.0.1/tcp/9640")


async def test_leave_out_own_address() -> None:
    """One list of peers fits all nodes: a node leaves itself out."""
    own = RelayHost(bytes(32), NetConfig()).peer_text

    assert driver(f"/ip4/127.0.0.1/tcp/9640/p2p/{own}")._kept == {}


async def test_subscribe_before_running() -> None:
    """Subscriptions made before there is a peer are greeted with later (20-41)."""
    made = driver()

    made.subscribe(TOPIC)
    made.unsubscribe(TOPIC)
    made.subscribe(TOPIC)

    assert made.stats().router.mesh == {TOPIC: 0}
    with pytest.raises(TopicError):
        made.subscribe("nonsense")


async def test_publish_to_nobody() -> None:
    """Without peers a publish goes to none and nothing waits."""
    assert await driver().publish([]) == []
