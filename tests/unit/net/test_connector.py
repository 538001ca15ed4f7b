"""The connector: a small network that never has enough peers is asked now and then, not always."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import trio
from trio.testing import MockClock

from luxrelay.gossip import PeerId
from luxrelay.net import DriverCounters, NetConfig
from luxrelay.net.connector import Connector

OTHER = PeerId(b"other")


class Lonely:
    """A host with one peer, which wants more, and an exchange that knows nobody."""

    peer_id = PeerId(b"me")

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.counters = SimpleNamespace(refused=0)

    def is_connected(self, peer: PeerId) -> bool:
        """Say which one is there."""
        return peer == OTHER

    def connected(self) -> list[PeerId]:
        """Return the one."""
        return [OTHER]

    def outbound_count(self) -> int:
        """Return 1."""
        return 1

    async def ask(self, peer: PeerId) -> list[Any]:
        """Know nobody, at once."""
        assert peer == OTHER
        self.asked.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        return []


def test_an_answer_does_not_bring_the_next_question() -> None:
    """One question an interval, although the target is never reached and answers come at once."""
    lonely = Lonely()
    config = NetConfig(exchange=True)
    connector = Connector(
        lonely,  # type: ignore[arg-type]
        config,
        lonely,  # type: ignore[arg-type]
        rng=random.Random(1),
        counters=DriverCounters(),
        kept=(),
        refuses=lambda _: "",
        greeted=lambda: [OTHER],
    )

    async def work() -> None:
        with trio.move_on_after(10.5 * config.upkeep_interval_s):
            await connector.run()

    trio.run(work, clock=MockClock(autojump_threshold=0))
    assert 10 <= len(lonely.asked) <= 11
