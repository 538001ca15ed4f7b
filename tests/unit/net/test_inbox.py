"""Messages wait in bounded number and are judged in batches; our failures cost nobody a penalty."""

from __future__ import annotations

from dataclasses import replace

import trio
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import VerdictKind
from luxrelay.gossip import MessageType, PeerId, RelayMessage, Validate
from luxrelay.net.config import NetConfig
from luxrelay.net.driver import VerdictInbox, slices
from luxrelay.net.links import DriverCounters

CONFIG = NetConfig(inbox_max=5, batch_max=3)


def item(token: int) -> Validate:
    """A message that waits."""
    message = RelayMessage(type=MessageType.HEADER, topic="t", payload=b"")
    return Validate(token=token, peer=PeerId(b"p"), topic="t", message=message, data=b"")


async def accept(batch: list[Validate]) -> list[VerdictKind]:
    """Everything is fine."""
    return [VerdictKind.ACCEPT] * len(batch)


async def test_batches_in_order() -> None:
    """What waits comes out in order, at most `batch_max` at once."""
    counters = DriverCounters()
    inbox = VerdictInbox(accept, CONFIG, counters)
    for token in range(5):
        assert inbox.put(item(token))

    first, second = await inbox.take(), await inbox.take()

    assert [message.token for message, _ in first] == [0, 1, 2]
    assert [message.token for message, _ in second] == [3, 4]
    assert {kind for _, kind in first + second} == {VerdictKind.ACCEPT}
    assert counters.batches == 2


async def test_refuse_above_max() -> None:
    """The sixth of five is refused and counted."""
    counters = DriverCounters()
    inbox = VerdictInbox(accept, CONFIG, counters)

    taken = [inbox.put(item(token)) for token in range(6)]

    assert taken == [True] * 5 + [False]
    assert counters.inbox_overflows == 1


async def test_wait_for_first_message() -> None:
    """An empty inbox waits without a batch."""
    inbox = VerdictInbox(accept, CONFIG, DriverCounters())
    found: list[int] = []

    async def take() -> None:
        found.extend(message.token for message, _ in await inbox.take())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.sleep(10)
        inbox.put(item(7))

    assert found == [7]


async def test_failure_and_miscount_are_ignore() -> None:
    """A validator that raises, or gives another number of verdicts, yields IGNORE for all."""

    async def fail(_batch: list[Validate]) -> list[VerdictKind]:
        raise OSError("disk trouble")

    async def miscount(batch: list[Validate]) -> list[VerdictKind]:
        return [VerdictKind.REJECT] * (len(batch) + 1)

    for validate in (fail, miscount):
        counters = DriverCounters()
        inbox = VerdictInbox(validate, replace(CONFIG, batch_max=2), counters)
        inbox.put(item(1))
        inbox.put(item(2))

        judged = await inbox.take()

        assert [kind for _, kind in judged] == [VerdictKind.IGNORE] * 2
        assert counters.validate_errors == 1


@given(st.lists(st.binary(max_size=20)), st.integers(1, 7), st.integers(1, 50))
def test_slices_keep_order_and_bounds(items: list[bytes], count_max: int, bytes_max: int) -> None:
    """Runs put together are the items; none has too many, or two items too much."""
    runs = list(slices(items, count_max, len, bytes_max=bytes_max))

    assert [item for run in runs for item in run] == items
    assert all(0 < len(run) <= count_max for run in runs)
    assert all(sum(map(len, run[:-1])) < bytes_max for run in runs)
