"""The layer below in one process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from trio.testing import MockClock

from luxrelay.channel import Envelope, Messaging
from luxrelay.errors import ChannelArgumentError, MessagingError
from luxrelay.testing.wire import PAYLOAD_BYTES_MAX, Wire


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a program under a clock that jumps."""
    anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


async def taken(wire: Wire, topic: str, *, since_ms: int | None = None) -> list[Envelope]:
    """Return what arrives on a topic within ten seconds."""
    found: list[Envelope] = []
    with anyio.move_on_after(10):
        async with wire.messaging().subscribe(topic, since_ms=since_ms) as arriving:
            async for envelope in arriving:
                found.append(envelope)  # noqa: PERF401 - cut short by the clock
    return found


def test_everybody_on_the_topic_gets_it() -> None:
    """A payload reaches all subscribers of its topic, the sender too, and nobody else."""

    async def main() -> None:
        async with Wire() as wire:
            results: dict[str, list[Envelope]] = {}

            async def listen(name: str, topic: str) -> None:
                results[name] = await taken(wire, topic)

            async with anyio.create_task_group() as tasks:
                for name, topic in (("one", "t"), ("two", "t"), ("other", "u")):
                    tasks.start_soon(listen, name, topic)
                await anyio.sleep(1)
                await wire.messaging().send("t", b"x", proof=b"p")
            assert results["one"] == results["two"] == [Envelope(b"x", b"", b"p")]
            assert results["other"] == []
            assert isinstance(wire.messaging(), Messaging)

    run(main)


def measured(**settings: object) -> tuple[Wire, list[bytes]]:
    """Return a wire and what of a thousand payloads arrives."""
    wires: list[Wire] = []
    arrived: list[bytes] = []

    async def main() -> None:
        async with Wire(seed=3, **settings) as wire:  # type: ignore[arg-type]
            wires.append(wire)
            async with anyio.create_task_group() as tasks:

                async def listen() -> None:
                    arrived.extend(one.payload for one in await taken(wire, "t"))

                tasks.start_soon(listen)
                await anyio.sleep(1)
                for number in range(1_000):
                    await wire.messaging().send("t", number.to_bytes(2, "big") + bytes(30))

    run(main)
    return wires[0], arrived


def test_loss() -> None:
    """About the share that was asked for is lost, and counted."""
    wire, arrived = measured(loss=0.3)

    assert 640 < len(arrived) < 760
    assert wire.stats.lost == 1_000 - len(arrived)


def test_duplication_and_reorder() -> None:
    """Some arrive twice, and delays change the order; nothing is lost."""
    wire, arrived = measured(duplication=0.2, delay_s=(0.0, 1.0))

    assert 140 < wire.stats.repeated < 260
    assert len(arrived) == 1_000 + wire.stats.repeated
    assert len(set(arrived)) == 1_000
    assert arrived != sorted(arrived)


def test_corruption() -> None:
    """Some arrive with one bit flipped."""
    wire, arrived = measured(corruption=0.1)

    good = {number.to_bytes(2, "big") + bytes(30) for number in range(1_000)}
    bad = [payload for payload in arrived if payload not in good]
    assert 60 < wire.stats.corrupted < 140
    assert 0 < len(bad) <= wire.stats.corrupted


def test_the_same_seed_is_the_same_run() -> None:
    """A run can be repeated."""
    settings = {"loss": 0.2, "duplication": 0.2, "delay_s": (0.0, 1.0)}
    assert measured(**settings)[1] == measured(**settings)[1]


def test_queue_max_drops_what_nobody_takes() -> None:
    """A subscriber that takes nothing is left `queue_max` payloads."""

    async def main() -> None:
        async with Wire(queue_max=5) as wire:
            async with wire.messaging().subscribe("t") as arriving:
                for number in range(9):
                    await wire.messaging().send("t", bytes([number + 1]))
                await anyio.sleep(1)
                assert [(await anext(arriving)).payload[0] for _ in range(5)] == [1, 2, 3, 4, 5]
            assert wire.stats.overflowed == 4

    run(main)


def test_store() -> None:
    """With a store a late subscriber gets what was sent, and a payload is found by its hint."""

    async def main() -> None:
        async with Wire(stored=True) as wire:
            messaging = wire.messaging()
            receipt = await messaging.send("t", b"x")
            passing = await messaging.send("t", b"y", ephemeral=True)

            assert (receipt.stored, passing.stored) == (True, False)
            assert await messaging.fetch("t", receipt.hint) == b"x"
            assert await messaging.fetch("u", receipt.hint) is None
            assert await taken(wire, "t") == []
            assert await taken(wire, "t", since_ms=0) == [Envelope(b"x", receipt.hint)]

    run(main)


def test_refusals() -> None:
    """Empty and too long payloads are refused for good, everything while the wire is down."""

    async def main() -> None:
        async with Wire() as wire:
            messaging = wire.messaging()
            assert messaging.payload_bytes_max == PAYLOAD_BYTES_MAX
            for payload in (b"", bytes(PAYLOAD_BYTES_MAX + 1)):
                with pytest.raises(MessagingError) as caught:
                    await messaging.send("t", payload)
                assert caught.value.code == "channel.refused"
            wire.down = "a storm"
            with pytest.raises(MessagingError, match="a storm") as caught:
                await messaging.send("t", b"x")
            assert caught.value.code == "channel.messaging"
        with pytest.raises(ChannelArgumentError):
            Wire(loss=1.5)

    run(main)
