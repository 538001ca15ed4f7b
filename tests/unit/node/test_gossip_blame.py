"""What peers did over their streams, as their application score in gossip."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest
import trio

from luxrelay.gossip import Disconnect, GossipParams, GossipRouter, PeerId
from luxrelay.gossip.envelope import peer_id_of
from luxrelay.net.addresses import peer_text
from luxrelay.node.assembly import GossipBlame
from luxrelay.node.peer_reputation import FORGED, HALF_LIFE_MS, UNUSABLE
from luxrelay.sync.report import PeerReport

LIAR = peer_id_of(bytes(range(32)))
NAME = "p2p:" + peer_text(LIAR)


class Node:
    """A router with one peer, and the blame that reaches it."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.router = GossipRouter(GossipParams(), rng=random.Random(1), own_id=PeerId(b"own"))
        self.router.peer_connected(LIAR, "/meshsub/1.1.0", False, 0.0)
        self.router.drain()
        self.told = trio.Event()
        self.blame = GossipBlame(self._set, lambda: self.now_ms)

    def _set(self, peer: PeerId, score: float) -> None:
        self.router.app_score(peer, score, 0.0)
        self.told.set()

    async def note(self, **report: int) -> None:
        """Let a worker thread blame the peer, and wait until the router knows."""
        await trio.to_thread.run_sync(self.blame.note, PeerReport(peer=NAME, **report))
        await self.told.wait()

    def application(self) -> float:
        """The application's part of the peer's score."""
        terms = self.router.explain(LIAR, 0.0)
        assert terms is not None
        return terms.application


def on_trio(test: Callable[[Node], Awaitable[None]]) -> None:
    """Run a test on a loop, a minute at most."""

    async def main() -> None:
        with trio.fail_after(60):
            await test(Node())

    trio.run(main)


def test_a_lie_costs_the_score_in_gossip() -> None:
    """21-28: forged messages and broken answers count as P5; half is forgiven in an hour."""

    async def test(node: Node) -> None:
        await node.note(rejected=3, unusable=1, withheld=100)
        owed = 3 * FORGED + UNUSABLE
        assert node.application() == -owed

        node.now_ms = HALF_LIFE_MS
        node.blame.tell()
        assert node.application() == pytest.approx(-owed / 2)
        node.now_ms = 20 * HALF_LIFE_MS
        node.blame.tell()
        assert node.application() == 0

    on_trio(test)


def test_many_lies_cost_the_connection() -> None:
    """Who hands in five hundred forged messages and more is below -5000 and disconnected (G16)."""

    async def test(node: Node) -> None:
        await node.note(rejected=501)

        (action,) = node.router.drain()
        assert isinstance(action, Disconnect)
        assert action.peer == LIAR
        assert action.refuse_s > 0

    on_trio(test)


def test_coming_back_does_not_clear_it() -> None:
    """The router forgets the score of a peer that leaves; it is told again, again and again."""

    async def test(node: Node) -> None:
        await node.note(rejected=1)
        node.router.peer_disconnected(LIAR, 0.0)
        node.router.peer_connected(LIAR, "/meshsub/1.1.0", False, 0.0)
        node.told = trio.Event()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.blame.keep, 0.01)
            await node.told.wait()
            nursery.cancel_scope.cancel()

        assert node.application() == -FORGED

    on_trio(test)


def test_others_are_not_scored() -> None:
    """What was kept back, relays that are reached by address, and names that are none."""

    async def test(node: Node) -> None:
        for report in (
            PeerReport(peer=NAME, withheld=50),
            PeerReport(peer="127.0.0.1:9641", rejected=5),
            PeerReport(peer="p2p:nobody", rejected=5),
        ):
            node.blame.note(report)
        node.blame.tell()

        assert node.application() == 0
        await trio.lowlevel.checkpoint()

    on_trio(test)
