"""Lost peers are dialled again at intervals that grow, in virtual time."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import cast

import trio
import trio.testing

from luxrelay.errors import NetError
from luxrelay.gossip import PeerId
from luxrelay.net.book import KEPT_MAX
from luxrelay.net.config import NetConfig
from luxrelay.net.driver import Redialler
from luxrelay.net.host import RelayHost
from luxrelay.net.links import DriverCounters

PEER = PeerId(b"p")
CONFIG = NetConfig(redial_min_s=1.0, redial_max_s=8.0, steady_s=5.0)


class Elsewhere:
    """A network where the peer answers when told to, and stays as long as told."""

    def __init__(self, stays_s: list[float]) -> None:
        self._stays_s = stays_s
        self._until = float("-inf")
        self.dials: list[float] = []
        self.addresses: tuple[str, ...] = ()

    async def dial(self, *addresses: str) -> PeerId:
        """The next stay begins, or nobody answers."""
        self.dials.append(trio.current_time())
        self.addresses = addresses
        if not self._stays_s or not self._stays_s[0]:
            self._stays_s = self._stays_s[1:]
            raise NetError("nobody answers", where=addresses[0])
        self._until = trio.current_time() + self._stays_s.pop(0)
        return PEER

    def is_connected(self, _peer: PeerId) -> bool:
        """Whether the stay lasts."""
        return trio.current_time() < self._until

    async def wait_changed(self) -> None:
        """The stay is over."""
        await trio.sleep_until(self._until)


async def dials(stays_s: list[float], seconds: float) -> tuple[list[float], DriverCounters]:
    """When the peer was dialled, counted from the first dial."""
    network, counters = Elsewhere(stays_s), DriverCounters()
    redialler = Redialler(cast("RelayHost", network), CONFIG, random.Random(1), counters)
    with trio.move_on_after(seconds):
        await redialler.keep(["/ip4/10.0.0.1/tcp/1"], PEER)
    return [at - network.dials[0] for at in network.dials], counters


async def test_intervals_double_up_to_max() -> None:
    """Each interval is between half and all of 1, 2, 4, 8, 8 … seconds."""
    times, counters = await dials([], 40.0)

    gaps = [later - earlier for earlier, later in pairwise(times)]
    for gap, whole in zip(gaps, [1, 2, 4, 8, 8, 8], strict=False):
        assert whole / 2 <= gap <= whole
    assert counters.dials_failed == len(times)


async def test_steady_connection_starts_over() -> None:
    """After a connection that held for `steady_s` the first interval is the short one again."""
    times, counters = await dials([0, 0, 0, 20.0], 59.0)

    lost_at = times[3] + 20.0
    assert 0.5 <= times[4] - lost_at <= 1.0
    assert counters.dials == 1


async def test_flapping_connection_does_not_start_over() -> None:
    """A peer that hangs up at once is dialled less and less often too."""
    times, counters = await dials([0.1] * 5, 40.0)

    gaps = [later - earlier - 0.1 for earlier, later in pairwise(times)]
    for gap, whole in zip(gaps, [1, 2, 4, 8], strict=False):
        assert whole / 2 - 0.01 <= gap <= whole + 0.01
    assert counters.dials == 5


async def test_a_peer_that_moved_is_dialled_there_first_and_at_once() -> None:
    """A newer record ends the pause; its address goes first and what was before behind it (G40)."""
    network = Elsewhere([])
    redialler = Redialler(cast("RelayHost", network), CONFIG, random.Random(1), DriverCounters())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(redialler.keep, ["given"], PEER)
        await trio.sleep(30.0)
        assert network.addresses == ("given",)
        at = trio.current_time()
        for number in range(20):
            redialler.follow(PEER, [f"{number}"])
        await trio.testing.wait_all_tasks_blocked()

        assert network.dials[-1] == at
        assert network.addresses == (*(f"{n}" for n in range(19, 19 - KEPT_MAX, -1)), "given")
        count = len(network.dials)
        redialler.follow(PEER, ["19"])  # no news
        await trio.testing.wait_all_tasks_blocked()
        assert len(network.dials) == count
        nursery.cancel_scope.cancel()
