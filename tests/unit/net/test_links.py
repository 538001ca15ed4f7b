"""A link's waits end when they should, and its numbers survive its streams."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from luxrelay.gossip import PeerId
from luxrelay.net.config import NetConfig
from luxrelay.net.links import Link
from luxrelay.net.streams import PeerWriter


def writer() -> PeerWriter:
    """A writer with one frame waiting."""
    stream, _ = trio.testing.memory_stream_pair()
    made = PeerWriter(stream, NetConfig())
    made.offer(b"abc")
    return made


async def test_wait_for_room() -> None:
    """Whoever reads from the peer waits until few enough of its messages are pending."""
    link = Link(PeerId(b"p"))
    link.pending = 10

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.wait_room, 4)
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1
            link.judged(2)

    assert link.pending == 4


async def test_closed_link_holds_nobody() -> None:
    """When the peer is gone, those who wait for room or for a stream go on, and readers stop."""
    link = Link(PeerId(b"p"))
    link.pending = 10
    ready: list[bool] = []

    async def wait_ready() -> None:
        ready.append(await link.wait_ready())

    async def read() -> None:
        with trio.CancelScope() as scope:
            link.readers.add(scope)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.wait_room, 4)
        nursery.start_soon(wait_ready)
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        link.close()

    assert ready == [False]


async def test_snapshot_counts_queue() -> None:
    """A snapshot shows what waits for the peer and for verdicts."""
    link = Link(PeerId(b"p"))
    link.writer = writer()
    link.pending = 3

    now = link.snapshot()

    assert (now.queued_frames, now.queued_bytes, now.pending) == (1, 4, 3)


async def test_numbers_survive_stream() -> None:
    """Frames sent over a stream that ended still count."""
    link = Link(PeerId(b"p"))
    link.writer = old = writer()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(old.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    link.detach()
    link.detach()

    assert link.writer is None
    assert (link.snapshot().frames_out, link.snapshot().bytes_out) == (1, 4)


def test_greetings_become_rare() -> None:
    """A peer that opens stream after stream is greeted anew, ever less often."""
    link = Link(PeerId(b"p"))

    greeted = [at for at in range(1_000) if link.greets_again(at * 0.01)]
    pauses = [later - earlier for earlier, later in itertools.pairwise(greeted)]

    assert greeted[0] == 0
    assert pauses == pytest.approx([5, 10, 20, 40, 80, 160, 320], abs=1)
