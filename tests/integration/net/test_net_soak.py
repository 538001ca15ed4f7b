"""Memory of a relay over many messages and many connections, on real sockets.

The short form counts Python's objects and runs in seconds. ``make soak`` runs 1,000,000 messages
and 10,000 connects, compares the memory of the process after three tenths of them with the memory
at the end, and prints both.
"""

from __future__ import annotations

import gc
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from luxrelay.net.config import MESHSUB

pytestmark = pytest.mark.slow
MESSAGES = int(os.environ.get("LUXRELAY_SOAK_NET_MESSAGES", "3000"))
"""Messages of the long line between two relays."""
CONNECTS = int(os.environ.get("LUXRELAY_SOAK_NET_CONNECTS", "20"))
"""Peers that come and go."""
GROWTH_MAX = 1.05
"""The long form's memory at the end, in that after three tenths."""
LONG_MESSAGES, LONG_CONNECTS = 100_000, 1_000
"""From here on a run is long: the tables have been full for most of it."""
OBJECTS_MAX = 2_500
"""Objects that a short run may leave; fewer than one for each of its messages."""
ABREAST = 4
"""Visitors at one time."""
BATCH = 100
ARRIVAL_S = 15.0
"""Seconds for a batch to arrive; beyond it what is missing counts as lost, in a long run."""


def rss_bytes() -> int:
    """The memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def count_objects() -> int:
    """Python's objects that the collector knows."""
    gc.collect()
    return len(gc.get_objects())


def flat(before: int, after: int, *, long: bool, what: str) -> None:
    """Memory has not grown with what happened between two looks."""
    if not long:
        assert after - before < OBJECTS_MAX, (before, after)
        return
    print(f"\nafter three tenths of {what}: {before / 2**20:.1f} MiB, "
          f"at the end {after / 2**20:.1f} MiB")  # fmt: skip
    assert after < before * GROWTH_MAX, (before, after)


def cached(relay: Any) -> int:
    """Messages that a relay keeps for peers that ask for them."""
    return len(relay.router._memory.cache)


def told(relay: Any) -> str:
    """What a relay's counters say of lost messages."""
    stats, driver = relay.router.stats(), relay.driver.counters
    return f"ignored {stats.ignored}, stalled {driver.dropped_stalled}, busy {driver}"


def has_delivered(relay: Any, count: int) -> bool:
    """Whether so many messages have been delivered at a relay."""
    return bool(relay.driver.counters.delivered >= count)


async def hold(_stream: Any) -> None:
    """Take a stream and never say anything."""
    await trio.sleep_forever()


async def test_memory_is_flat_over_messages(world: Any) -> None:
    """A line of messages through two relays is delivered whole and leaves nothing (20-58)."""
    long = MESSAGES >= LONG_MESSAGES
    look = rss_bytes if long else count_objects
    async with trio.open_nursery() as nursery:
        near = await world.relay(nursery, "near")
        far = await world.relay(nursery, "far", peers=(near.address,))
        await world.meshed(near, far)

        lost = 0

        async def send(first: int, last: int) -> None:
            nonlocal lost
            for start in range(first, last, BATCH):
                items = [
                    (world.topic, world.envelope(seq + 1))
                    for seq in range(start, min(start + BATCH, last))
                ]
                await near.driver.publish(items)
                due = start + len(items) - lost
                with trio.move_on_after(ARRIVAL_S):
                    await world.until(partial(has_delivered, far, due), seconds=2 * ARRIVAL_S)
                missing = due - far.driver.counters.delivered
                if missing:  # why is not known; perhaps a peer that counted as stalled
                    lost += missing
                    print(
                        f"\n{missing} lost of those up to {due + lost:,}; {told(far)}; {told(near)}"
                    )
                    await world.meshed(near, far)
                far.delivered.clear()
                near.delivered.clear()

        async def forgotten() -> None:
            # The window of messages that peers may ask for is no leak, however fast they come.
            await world.until(lambda: not any(cached(each) for each in (near, far)), seconds=60)

        warm = 3 * MESSAGES // 10
        await send(0, warm)
        await forgotten()
        before = look()
        await send(warm, MESSAGES)
        await forgotten()
        after = look()

        assert far.driver.counters.delivered == MESSAGES - lost
        assert lost <= (MESSAGES // 1_000 if long else 0)
        assert far.router.stats().duplicates == 0
        nursery.cancel_scope.cancel()
    flat(before, after, long=long, what=f"{MESSAGES:,} messages")


async def test_memory_is_flat_over_connects(world: Any) -> None:
    """Peers that come and go, each under a new identity and with gossip, leave nothing (20-58)."""
    long = CONNECTS >= LONG_CONNECTS
    look = rss_bytes if long else count_objects
    async with trio.open_nursery() as nursery:
        relay = await world.relay(nursery, "relay")

        async def visit(number: int, done: trio.Semaphore) -> None:
            async with trio.open_nursery() as visitor:
                host = await world.host(visitor, f"visitor {number}", listen=())
                for protocol in MESHSUB:
                    host.handle(protocol, hold)
                await host.dial(relay.address)
                await host.open_stream(relay.host.peer_id, *MESHSUB)
                await world.until(lambda: host.peer_id in relay.router.stats().peers, seconds=30)
                visitor.cancel_scope.cancel()
            done.release()

        async def visits(first: int, last: int) -> None:
            places = trio.Semaphore(ABREAST)
            async with trio.open_nursery() as visitors:
                for number in range(first, last):
                    await places.acquire()
                    visitors.start_soon(visit, number, places)
            await world.until(lambda: not relay.host.connected(), seconds=60)

        warm = 3 * CONNECTS // 10
        await visits(0, warm)
        before = look()
        await visits(warm, CONNECTS)
        after = look()

        assert relay.host.stats().swarm.inbound_accepted >= CONNECTS
        assert relay.driver._links == {}
        assert len(relay.host._swarm.limits) == 0
        assert relay.host._host.get_peerstore().peer_ids() == [relay.host._swarm.self_id]
        nursery.cancel_scope.cancel()
    flat(before, after, long=long, what=f"{CONNECTS:,} connects")
