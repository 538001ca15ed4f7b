"""Two gossip routers in one process, without a network: how to drive a core.

A core is told what happens and answers with actions. This driver is a dozen lines; the one on
libp2p (`luxrelay.net.driver`) does the same with sockets.

    python examples/drive_the_router.py
"""

from __future__ import annotations

import random

from luxrelay.bus import VerdictKind, topic_namespace
from luxrelay.gossip import (
    Deliver,
    GossipParams,
    GossipRouter,
    HeaderAnnouncement,
    MessageType,
    PeerId,
    RelayMessage,
    Send,
    Validate,
    topic_for_namespace,
)
from luxrelay.testing import message_line, signing_key


def settle(routers: dict[PeerId, GossipRouter], names: dict[PeerId, str], now: float) -> None:
    """Do what the routers ask for, in order, until they ask for nothing."""
    busy = True
    while busy:
        busy = False
        for peer, router in routers.items():
            for action in router.drain():
                busy = True
                match action:
                    case Send(peer=target, data=data):
                        routers[target].received(peer, data, now)
                    case Validate(token=token):
                        router.validated(token, VerdictKind.ACCEPT, now)
                    case Deliver(topic=topic):
                        print(f"{names[peer]} received a message on {topic}")


def main() -> None:
    """Publish one message at Alice's router and see it delivered at Bob's."""
    now = 0.0
    names = {PeerId(b"alice"): "alice", PeerId(b"bob"): "bob"}
    routers = {
        peer: GossipRouter(GossipParams.small(), rng=random.Random(1), own_id=peer)
        for peer in names
    }

    parent = topic_namespace("/chat/1/room")
    topic = topic_for_namespace("devnet", parent)
    alice, bob = names
    routers[alice].peer_connected(bob, "/meshsub/1.1.0", True, now)
    routers[bob].peer_connected(alice, "/meshsub/1.1.0", False, now)
    for router in routers.values():
        router.subscribe(topic, now)
    settle(routers, names, now)

    (message,) = message_line(1, namespace_id=parent)
    announcement = HeaderAnnouncement.signed(message.header.encode(), signing_key(), 0)
    envelope = RelayMessage(type=MessageType.HEADER, topic=topic, payload=announcement.encode())
    routers[alice].publish(topic, envelope.encode(), now)
    settle(routers, names, now)

    # Time passes by hand: the routers say when they want to be woken, nobody sleeps.
    for router in routers.values():
        wake_at = router.wake_at()
        if wake_at is not None:
            router.wake(wake_at)
    settle(routers, names, now)


if __name__ == "__main__":
    main()
