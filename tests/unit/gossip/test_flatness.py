"""What a router holds does not grow with what it has seen: messages, and peers that come and go.

The short form runs in seconds and compares Python's own count of allocated bytes, so that it says
the same on every machine. ``LUXRELAY_SOAK_MESSAGES=1000000 LUXRELAY_SOAK_PEERS=10000`` is the long
one; it compares the memory of the process, because counting every allocation takes too long.
"""

from __future__ import annotations

import gc
import os
import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import VerdictKind
from luxrelay.gossip import (
    DiversityParams,
    GossipParams,
    GossipRouter,
    PeerId,
    ScoreParams,
    Validate,
)

Kit = Any

MESSAGES = int(os.environ.get("LUXRELAY_SOAK_MESSAGES", "1200"))
PEERS = int(os.environ.get("LUXRELAY_SOAK_PEERS", "600"))
LONG = MESSAGES > 100_000
ROUNDS = 10
"""Equal parts of a run; memory after the third is compared with memory after the last."""
GROWTH_MAX = 1.05
SLACK_BYTES = 16 * 1024
"""For dictionaries that grow by leaps; a leak of 50 bytes a peer is above it."""
PARAMS = replace(
    GossipParams(),
    seen_max=max(64, MESSAGES // 40),
    failures_max=64,
    cache_messages_max=64,
    backoffs_max=64,
    topic_bytes_per_s=0.0,
)
"""Bounds that a tenth of a run fills, so that every table is full when the comparison begins."""
SCORES = replace(ScoreParams.watching_headers(), retained_max=16, window_messages_max=64)


def held_bytes() -> int:
    """Return the bytes that Python, or in the long form the process, holds now."""
    gc.collect()
    if LONG:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture
def counting() -> Iterator[None]:
    """Python counts what it allocates, except in the long form."""
    if not LONG:
        tracemalloc.start()
    yield
    tracemalloc.stop()


def drained(router: GossipRouter, now: float, kind: VerdictKind) -> None:
    """Do what the router asks for, with one verdict for all."""
    for action in router.drain():
        if isinstance(action, Validate):
            router.validated(action.token, kind, now)
    router.drain()


@pytest.mark.usefixtures("counting")
@pytest.mark.slow
def test_memory_is_flat_over_many_messages(kit: Kit) -> None:
    """Accepted, rejected, repeated, announced, asked for: tables fill, then nothing grows."""
    router = GossipRouter(PARAMS, rng=random.Random(1), own_id=PeerId(b"me"), scores=SCORES)
    router.subscribe(topic := kit.topic_of(1), 0.0)
    peers = [kit.peer_id(number) for number in range(6)]
    now, seq = 1.0, 0
    for peer in peers:
        router.peer_connected(peer, "/meshsub/1.2.0", True, now)
        router.received(peer, kit.frame(subscribe=[topic]), now)
    router.wake(now)
    held = []
    for _ in range(ROUNDS):
        for _ in range(MESSAGES // ROUNDS):
            seq += 1
            now += 0.02
            data = kit.envelope(topic, seq)
            peer = peers[seq % len(peers)]
            if seq % 50 == 0:
                router.received(peer, kit.frame(ihave=[(topic, [seq.to_bytes(32)])]), now)
                router.received(peer, kit.frame(iwant=[[kit.id_of(data)]]), now)
            router.received(peer, kit.frame(messages=[(topic, data)]), now)
            drained(router, now, VerdictKind.REJECT if seq % 4_000 == 0 else VerdictKind.ACCEPT)
            router.received(peers[0], kit.frame(messages=[(topic, data)]), now)
            router.wake(now)
        held.append(held_bytes())

    stats = router.stats()
    assert stats.accepted >= MESSAGES * 0.99
    assert stats.duplicates >= MESSAGES * 0.95
    assert stats.seen == PARAMS.seen_max or stats.seen < MESSAGES / 5
    print("held after each tenth, KiB:", [size // 1024 for size in held])
    assert held[-1] <= held[2] * GROWTH_MAX + SLACK_BYTES, held


@pytest.mark.usefixtures("counting")
@pytest.mark.slow
def test_memory_is_flat_over_many_peers(kit: Kit) -> None:
    """Peers connect, subscribe, misbehave and leave: what is kept of them is bounded."""
    router = GossipRouter(
        PARAMS,
        rng=random.Random(1),
        own_id=PeerId(b"me"),
        scores=SCORES,
        diversity=DiversityParams(),
    )
    router.subscribe(topic := kit.topic_of(1), 0.0)
    now, number = 1.0, 0
    held = []
    for _ in range(ROUNDS):
        for _ in range(PEERS // ROUNDS):
            number += 1
            now += 0.1
            peer = PeerId(b"peer-%08d" % number)
            address = f"10.{number % 40}.0.1"
            router.peer_connected(peer, "/meshsub/1.2.0", number % 2 == 0, now, address=address)
            router.peer_record(peer, b"record")
            router.received(peer, kit.frame(subscribe=[topic], graft=[topic]), now)
            router.received(peer, kit.frame(ihave=[(topic, [number.to_bytes(32)])]), now)
            router.received(peer, kit.frame(prune=[(topic, 3_000)]), now)
            if number % 3 == 0:
                router.received(peer, b"\xff", now)
            drained(router, now, VerdictKind.ACCEPT)
            router.wake(now)
            router.peer_disconnected(peer, now)
            router.drain()
        held.append(held_bytes())

    assert router.stats().peers == {}
    assert router.stats().durations_s.counts[0] == PEERS // ROUNDS * ROUNDS
    assert len(router._scores) == SCORES.retained_max
    assert len(router._mesh.backoffs) == PARAMS.backoffs_max
    print("held after each tenth, KiB:", [size // 1024 for size in held])
    assert held[-1] <= held[2] * GROWTH_MAX + SLACK_BYTES, held
