"""Clocks over real connections: hello tells them, again and again, and silence is looked at."""

from __future__ import annotations

import json
from typing import Any

import trio

from luxrelay.net.hello import Hello

AHEAD_MS = 300_000


def set_ahead(relay: Any, ahead_ms: int) -> None:
    """The wall clock of a relay is so far ahead from now on."""
    base = relay.host.steady_ms
    relay.host.wall_ms = lambda: base() + ahead_ms


def offset(relay: Any) -> int:
    """How far a relay's clock is ahead of its peers', rounded to seconds."""
    return int(round(relay.driver.stats().clock.offset_ms, -3))


async def test_hello_tells_clocks_and_is_asked_again(world: Any) -> None:
    """Two that are right and one that is not: each side knows, also when one is set (G36)."""
    async with trio.open_nursery() as nursery:
        one, two, wrong = [
            await world.relay(nursery, name, clock_interval_s=0.2) for name in ("a", "b", "c")
        ]
        for relay in (one, two):
            set_ahead(relay, 0)
        set_ahead(wrong, AHEAD_MS)
        await two.driver.connect(one.address)
        await wrong.driver.connect(one.address)
        await wrong.driver.connect(two.address)
        await world.until(lambda: wrong.driver.stats().clock.peers == 2)
        assert wrong.driver.stats().clock.known
        await world.until(lambda: offset(wrong) == AHEAD_MS)
        await world.until(lambda: one.driver.stats().clock.peers == 2)
        assert offset(one) == 0  # of two, the one nearer to its own
        told = one.driver.stats().clock_offsets[wrong.host.peer_id]
        assert abs(told + AHEAD_MS) < 1_000

        for relay in (one, two):  # the others jump: known with the next hello
            set_ahead(relay, AHEAD_MS)
        await world.until(lambda: offset(wrong) == 0)
        await one.host.disconnect(wrong.host.peer_id)
        await world.until(lambda: wrong.host.peer_id not in one.driver.stats().clock_offsets)
        nursery.cancel_scope.cancel()


class OlderHello(Hello):
    """A hello of commit 482efbd."""

    def encode(self) -> bytes:
        """The message without the key that it did not have."""
        document = json.loads(super().encode())
        del document["time_ms"]
        return json.dumps(document).encode()


async def test_a_peer_whose_hello_tells_no_time_stays_and_is_not_asked(world: Any) -> None:
    """It passes over the key that it does not know, and its clock is not known (G36)."""
    async with trio.open_nursery() as nursery:
        one, old = [await world.relay(nursery, n, clock_interval_s=0.1) for n in ("a", "b")]
        own = old.driver._greeter.own
        old.driver._greeter.own = lambda: OlderHello(
            **{name: getattr(own(), name) for name in Hello.__slots__}
        )
        await one.driver.connect(old.address)
        await world.until(lambda: old.driver.clocks.tellers() == [one.host.peer_id])
        await world.until(lambda: one.driver.greeted() == (1, 0, 1))
        assert one.driver.clocks.tellers() == []
        assert one.driver.stats().clock.peers == 0
        nursery.cancel_scope.cancel()


async def test_silence_is_asked_before_it_is_believed(world: Any) -> None:
    """Idle peers answer pings; a black hole does not, and a host alone expects nobody (G37)."""
    async with trio.open_nursery() as nursery:
        server = await world.relay(nursery, "server", clock_interval_s=60.0)
        alone = await world.relay(nursery, "alone")
        assert alone.driver.quiet_s() is None
        proxy = await world.proxy(nursery, server.address)
        near = await world.relay(nursery, "near", silence_max_s=1.5, clock_interval_s=60.0)
        assert near.driver.quiet_s() is None
        await near.driver.connect(proxy.address)
        await world.until(lambda: near.driver.stats().router.peers)
        quiet: list[float] = []
        with trio.move_on_after(4.0):
            while True:
                quiet.append(near.driver.quiet_s() or 0.0)
                await trio.sleep(0.05)
        assert min(quiet[len(quiet) // 2 :]) < 1.0  # bytes came in the second half, too
        proxy.freeze()
        await world.until(lambda: (near.driver.quiet_s() or 0.0) > 1.5)
        nursery.cancel_scope.cancel()
