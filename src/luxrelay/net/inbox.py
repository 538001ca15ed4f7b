"""Messages waiting for a verdict, and the batches in which they get it."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

import trio

from luxrelay.bus import VerdictKind
from luxrelay.gossip import Validate
from luxrelay.net.config import NetConfig
from luxrelay.net.links import DriverCounters

T = TypeVar("T")
Validator = Callable[[list[Validate]], Awaitable[list[VerdictKind]]]
"""Judges a batch: one verdict for each message, in order."""

FED_BYTES: Final = 1024 * 1024
"""Bytes fed to the router before it is drained: a quarter of what it gathers for a peer."""


class VerdictInbox:
    """A bounded queue that gives up all it holds, at most `batch_max` at once, judged.

    Args:
        validate: Judges a batch.
        config: `inbox_max` and `batch_max`.
        counters: Where overflows, batches and failures are counted.

    """

    def __init__(self, validate: Validator, config: NetConfig, counters: DriverCounters) -> None:
        self._validate = validate
        self._config = config
        self._counters = counters
        self._waiting: deque[Validate] = deque()
        self._filled = trio.Event()

    def put(self, item: Validate) -> bool:
        """Whether the message waits for a verdict; False when `inbox_max` are waiting."""
        if len(self._waiting) >= self._config.inbox_max:
            self._counters.inbox_overflows += 1
            return False
        self._waiting.append(item)
        self._filled.set()
        return True

    async def take(self) -> list[tuple[Validate, VerdictKind]]:
        """The next batch with its verdicts; IGNORE for all of it when `validate` fails.

        Our own trouble is never a peer's fault (the verdict table), so a failure is counted and
        not raised.
        """
        while not self._waiting:
            self._filled = trio.Event()
            await self._filled.wait()
        size = min(len(self._waiting), self._config.batch_max)
        batch = [self._waiting.popleft() for _ in range(size)]
        self._counters.batches += 1
        try:
            verdicts = await self._validate(batch)
        except Exception:  # noqa: BLE001 - see the docstring
            verdicts = []
        if len(verdicts) != len(batch):
            self._counters.validate_errors += 1
            verdicts = [VerdictKind.IGNORE] * len(batch)
        return list(zip(batch, verdicts, strict=True))


def slices(
    items: Sequence[T], count_max: int, size: Callable[[T], int], *, bytes_max: int = FED_BYTES
) -> Iterator[Sequence[T]]:
    """The items in order, in runs of so many and of little more than so many bytes."""
    start = weight = 0
    for index, item in enumerate(items):
        weight += size(item)
        if weight >= bytes_max or index + 1 - start >= count_max:
            yield items[start : index + 1]
            start, weight = index + 1, 0
    if start < len(items):
        yield items[start:]
