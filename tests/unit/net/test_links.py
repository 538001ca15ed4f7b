"""A link's waits end when they should, and its numbers survive its streams."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from luxrelay.gossip import PeerId
from luxrelay.net.config import NetConfig
from luxrelay.net.links import LINES_MAX, REMEMBERED_MAX, Link, PeerLog
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


class Told:
    """A log of peers on a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.log = PeerLog(lambda: self.now, lambda what, fields: self.lines.append((what, fields)))

    def visit(self, name: bytes, *, stay_s: float = 1.0, reason: str = "gone") -> None:
        """A peer comes, and goes a while later."""
        link = Link(PeerId(name))
        self.log.met(link)
        self.log.met(link)  # its stream was opened anew: no second line
        self.now += stay_s
        self.log.lost(link, reason)


def test_loss_and_return_are_lines_with_reason_and_time() -> None:
    """One line each: why it is gone and how long it was here, and how long it was away."""
    told = Told()
    told.visit(b"p", stay_s=30.0, reason="it answered no ping")
    told.now += 90.0
    told.visit(b"p", stay_s=100.0)
    told.log.lost(Link(PeerId(b"never met")), "gone")

    assert [what for what, _ in told.lines] == ["peer lost", "peer is back", "peer lost"]
    lost, back, again = (fields for _, fields in told.lines)
    assert (lost["reason"], lost["connected_s"]) == ("it answered no ping", 30.0)
    assert back["away_s"] == 90.0
    assert again["connected_s"] == 100.0


def test_a_flapping_peer_has_a_line_of_a_kind_a_minute() -> None:
    """What goes unsaid is counted and told with the next line."""
    told = Told()
    for _ in range(50):
        told.visit(b"p", stay_s=1.0)
    assert [what for what, _ in told.lines] == ["peer lost", "peer is back"]

    told.now += 60.0
    told.visit(b"p")

    assert [(what, fields["unsaid"]) for what, fields in told.lines[2:]] == [
        ("peer is back", 48),
        ("peer lost", 49),
    ]


def test_many_peers_have_so_many_lines_a_minute() -> None:
    """Neither the log nor what is remembered for it grows with the peers."""
    told = Told()
    for number in range(3 * REMEMBERED_MAX):
        told.visit(b"%d" % number, stay_s=0.0)

    assert len(told.lines) == LINES_MAX
    assert len(told.log._said) <= REMEMBERED_MAX
    assert len(told.log._lost_at) <= REMEMBERED_MAX
