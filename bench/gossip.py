"""Gossip room: what the router costs beside the encoding it cannot avoid.

Run: ``python bench/gossip.py``. Prints one JSON object a line with part, name, value, unit,
against, ratio and aim. Every figure stands beside a limit measured in the same run, so that a slow
machine changes the values and hardly the ratios.

The network is a full mesh of three routers in memory. One message is published at one of them,
sent to the other two, validated there (always accepted), forwarded to the third as a copy, and
delivered. The limit is the same work without a router: one encoding of the frame and, for each
frame that was carried, decoding frame and envelope and naming the message.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time

from luxrelay.bus import NamespaceId, VerdictKind
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
    encode_header_with_blob,
    relay_message_id,
    topic_for_namespace,
)
from luxrelay.gossip.rpc import decode_rpc, encode_message

NODES = 3
MESSAGES = 2_000
BATCH = 64
"""Messages published between two drains, as a node does under load."""
REPEATS = 5
AIM = 0.25
"""Share of the limit that the router is to reach."""
TOPIC = topic_for_namespace("bench", NamespaceId(b"\x21" * 20))
PARAMS = GossipParams()
NAMES = [PeerId(b"node-%d" % number) for number in range(NODES)]


def made_messages(blob_bytes: int) -> list[bytes]:
    """Return encoded envelopes with consecutive sequence numbers and random-looking headers."""
    rng = random.Random(20)
    messages = []
    for seq in range(1, MESSAGES + 1):
        header = b"\x01\x00" + b"\x21" * 20 + seq.to_bytes(8) + rng.randbytes(180)
        announcement = HeaderAnnouncement(
            header_bytes=header, source=bytes(38), timestamp_ms=seq, signature=rng.randbytes(64)
        )
        payload = encode_header_with_blob(announcement, rng.randbytes(blob_bytes))
        messages.append(
            RelayMessage(type=MessageType.HEADER_WITH_BLOB, topic=TOPIC, payload=payload).encode()
        )
    return messages


class Network:
    """Three routers that carry each other's frames at once."""

    def __init__(self) -> None:
        self.routers = [
            GossipRouter(PARAMS, rng=random.Random(node), own_id=NAMES[node])
            for node in range(NODES)
        ]
        self.now = 0.0
        self.delivered = 0
        self.frames = 0
        for a, own in enumerate(self.routers):
            for b in range(NODES):
                if a != b:
                    own.peer_connected(NAMES[b], "/meshsub/1.1.0", a < b, self.now)
            own.subscribe(TOPIC, self.now)
        self.settle()
        self.beat()
        assert all(router.stats().mesh[TOPIC] == NODES - 1 for router in self.routers)

    def beat(self) -> None:
        """Let one heartbeat pass."""
        self.now += PARAMS.heartbeat_interval_s
        for router in self.routers:
            router.wake(self.now)
        self.settle()

    def settle(self) -> None:
        """Do actions until none is left."""
        busy = True
        while busy:
            busy = False
            for node, router in enumerate(self.routers):
                for action in router.drain():
                    busy = True
                    match action:
                        case Send():
                            self.frames += 1
                            target = self.routers[NAMES.index(action.peer)]
                            target.received(NAMES[node], action.data, self.now)
                        case Validate():
                            router.validated(action.token, VerdictKind.ACCEPT, self.now)
                        case Deliver():
                            self.delivered += 1


def through_routers(messages: list[bytes]) -> float:
    """Return messages a second through the network, heartbeats included."""
    network = Network()
    begin = time.perf_counter()
    for start in range(0, len(messages), BATCH):
        for data in messages[start : start + BATCH]:
            network.routers[0].publish(TOPIC, data, network.now)
        network.settle()
        network.now += 0.1
        for router in network.routers:
            router.wake(network.now)
        network.settle()
    elapsed = time.perf_counter() - begin
    assert network.delivered == (NODES - 1) * len(messages)
    return len(messages) / elapsed


def codec_only(messages: list[bytes]) -> float:
    """Return messages a second when they are only encoded and decoded.

    Each message is encoded at the publisher and at the two forwarders, and each of the four frames
    that carry it (two from the publisher, one between the others each way) is decoded.
    """
    begin = time.perf_counter()
    for start in range(0, len(messages), BATCH):
        batch = messages[start : start + BATCH]
        for _ in range(NODES):
            frame = b"".join([encode_message(TOPIC, data) for data in batch])
        for _ in range(4):
            for _, data in decode_rpc(frame, PARAMS).messages:
                relay_message_id(RelayMessage.decode(data))
    return len(messages) / (time.perf_counter() - begin)


def measured(messages: list[bytes]) -> tuple[float, float, float]:
    """Return value, limit and ratio: medians of runs that take turns on the same machine."""
    pairs = []
    for _ in range(REPEATS):
        gc.collect()
        limit = codec_only(messages)
        gc.collect()
        pairs.append((through_routers(messages), limit))
    return (
        statistics.median(value for value, _ in pairs),
        statistics.median(limit for _, limit in pairs),
        statistics.median(value / limit for value, limit in pairs),
    )


def main() -> None:
    """Print the figures."""
    for blob_bytes in (200, 4_096):
        messages = made_messages(blob_bytes)
        value, limit, ratio = measured(messages)
        print(
            json.dumps(
                {
                    "part": "gossip",
                    "name": f"router, full mesh of {NODES}, blob {blob_bytes} B",
                    "value": round(value),
                    "unit": "messages/s",
                    "against": f"the same messages only encoded and decoded: {round(limit)}/s",
                    "ratio": round(ratio, 3),
                    "aim": AIM,
                }
            )
        )


if __name__ == "__main__":
    main()
