"""One failure, one connection: what `Faults` keeps in, and what it lets pass."""

import logging
from itertools import pairwise
from typing import NoReturn

import pytest
import trio
import trio.testing

from luxrelay.failures import KINDS_MAX
from luxrelay.net.guarded import Faults


class _Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def _fail(error: BaseException) -> NoReturn:
    await trio.lowlevel.checkpoint()
    raise error


def _lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [vars(record)["fields"] for record in caplog.records]


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        AssertionError(),
        RecursionError(),
        MemoryError(),
        ExceptionGroup("two", [ValueError(), ExceptionGroup("one", [KeyError()])]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_failure_of_one_task_reaches_no_other(error: Exception) -> None:
    """A sibling in the same nursery runs on, whatever a guarded task raises."""
    faults, siblings = Faults(), []
    async with trio.open_nursery() as nursery:
        faults.start(nursery, "streams", _fail, error)

        async def sibling() -> None:
            await trio.testing.wait_all_tasks_blocked()
            siblings.append("ran")

        nursery.start_soon(sibling)
    assert siblings == ["ran"]
    assert faults.counts() == {"streams": 1}


async def test_cancellation_passes_beside_a_failure_of_the_same_nursery() -> None:
    """A group of a failure and a cancellation: the one is counted, the other goes on."""
    faults, after = Faults(), []

    async def fails_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in the finally")

    async def both() -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.sleep_forever)
            inner.start_soon(fails_when_cancelled)

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            faults.start(nursery, "streams", both)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
        after.append("not reached")
    assert scope.cancelled_caught
    assert not after
    assert faults.counts() == {"streams": 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
async def test_the_program_can_be_ended_from_within(error: BaseException) -> None:
    """What is no failure is not contained."""
    faults = Faults()
    with pytest.raises(type(error)):
        await faults.run("streams", _fail, error)
    assert not faults.counts()


async def test_a_kind_is_logged_once_a_minute_with_its_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first failure has a line; those of the minute after it have one together."""
    clock = _Clock()
    faults = Faults(clock=clock)
    with caplog.at_level(logging.WARNING, "luxrelay.net"):
        for _ in range(100):
            await faults.run("streams", _fail, ValueError("a\nb\x1b[31m"))
        clock.now += 59.9
        await faults.run("streams", _fail, ValueError())
        assert len(_lines(caplog)) == 1
        clock.now += 0.2
        await faults.run("streams", _fail, ValueError())
    first, second = _lines(caplog)
    assert (first["failures"], second["failures"]) == (1, 101)
    assert first["error"] == r"ValueError: 'a\nb\x1b[31m'"
    assert str(first["at"]).startswith("test_guarded.py:")
    assert faults.counts() == {"streams": 102}


async def test_kinds_have_a_bound() -> None:
    """Names that should be few do not grow without end."""
    faults = Faults()
    for number in range(KINDS_MAX + 10):
        faults.note(f"kind-{number}", ValueError())
    assert len(faults.counts()) == KINDS_MAX + 1
    assert faults.counts()["other"] == 10


async def test_background_work_is_begun_anew_after_a_growing_pause() -> None:
    """Failures pause 1, 2, 4, 4 seconds; long work starts at one second again."""
    faults, began = Faults(), list[float]()

    async def work() -> None:
        began.append(trio.current_time())
        if len(began) == 5:
            await trio.sleep(10)
        if len(began) < 7:
            raise ValueError

    await faults.keep("finder", work, pause_s=1, pause_max_s=4)
    pauses = [after - before for before, after in pairwise(began)]
    assert pauses == [1, 2, 4, 4, 11, 2]
    assert faults.counts() == {"finder": 6}
