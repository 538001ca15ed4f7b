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
from luxrelay.net.guarded import Faults
from luxrelay.net.records import check, seal

OTHER = PeerId(b"other")


class Lonely:
    """A host with one peer, which wants more, and an exchange that knows nobody."""

    peer_id = PeerId(b"me")

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.known: list[Any] = []
        self.counters = SimpleNamespace(refused=0)
        self.faults = Faults()

    def remote_host(self, peer: PeerId) -> str:
        """Say where the one peer is: out in the world."""
        return "9.9.9.9" if peer == OTHER else ""

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
        return self.known


def connector_of(lonely: Lonely, config: NetConfig) -> Connector:
    """A connector of a host that is alone."""
    return Connector(
        lonely,  # type: ignore[arg-type]
        config,
        lonely,  # type: ignore[arg-type]
        rng=random.Random(1),
        counters=DriverCounters(),
        kept=(),
        refuses=lambda _: "",
        greeted=lambda: [OTHER],
    )


def test_an_answer_does_not_bring_the_next_question() -> None:
    """One question an interval, although the target is never reached and answers come at once."""
    lonely = Lonely()
    config = NetConfig(exchange=True)
    connector = connector_of(lonely, config)

    async def work() -> None:
        with trio.move_on_after(10.5 * config.upkeep_interval_s):
            await connector.run()

    trio.run(work, clock=MockClock(autojump_threshold=0))
    assert 10 <= len(lonely.asked) <= 11


def test_a_stranger_aims_no_dial_at_this_machine_or_its_network() -> None:
    """Suggested in a PRUNE or in an answer, a private address is not in the book (20-03)."""
    lonely = Lonely()
    connector = connector_of(lonely, NetConfig(exchange=True, upkeep_interval_s=1.0))
    texts = ["/ip4/127.0.0.1/tcp/8545", "/ip4/10.0.0.1/tcp/22"]
    suggested, answered = (seal(bytes([n]) * 32, texts, 1) for n in (1, 2))
    honest = seal(b"\x03" * 32, [*texts, "/ip4/8.8.8.8/tcp/9640"], 1)

    connector.suggest(check(suggested).peer, suggested, OTHER)
    connector.suggest(check(honest).peer, honest, OTHER)
    lonely.known = [check(answered)]
    trio.run(connector._ask_somebody)

    assert len(connector.book) == 1
    (address,) = connector.book.addresses(check(honest).peer)
    assert address.startswith("/ip4/8.8.8.8/tcp/9640/p2p/")
    assert lonely.counters.refused == 0
