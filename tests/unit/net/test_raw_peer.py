"""The diagnostic peer's one message of its own is what a router reads."""

from __future__ import annotations

from luxrelay.gossip import GossipParams
from luxrelay.gossip.rpc import decode_rpc
from luxrelay.net.raw_peer import subscription_rpc


def test_subscription_is_read_by_router() -> None:
    """Each topic is one subscription of the RPC."""
    topics = ["/lux/testnet/relay/headers/global", "x" * 200]

    rpc = decode_rpc(subscription_rpc(topics), GossipParams())

    assert rpc.subscriptions == [(True, topic) for topic in topics]
