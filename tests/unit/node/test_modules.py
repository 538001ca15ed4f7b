"""Modules: order of start and stop, restarts with a doubling pause, going down in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from luxrelay.errors import NodeError
from luxrelay.node.modules import Module, Modules, ModulesConfig, Run, in_order


class Story:
    """What happened, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def lasting(self, name: str, *, slow_s: float = 0.0) -> Run:
        """Return a module that runs until it is stopped, and takes ``slow_s`` to end."""

        async def run(report: Any) -> None:
            self.lines.append(f"start {name}")
            report.started(None)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(slow_s)
                self.lines.append(f"stop {name}")

        return run

    def failing(
        self, name: str, times: int, *, after_s: float = 0.0, unstarted: bool = False
    ) -> Run:
        """Return a module that fails so many times, but the first before it started, then lasts."""
        left = [times]

        async def run(report: Any) -> None:
            self.lines.append(f"start {name} {trio.current_time() - self.began:g}")
            if not unstarted or left[0] == times:
                report.started(None)
            await trio.sleep(after_s)
            if left[0]:
                left[0] -= 1
                raise NodeError("it broke", where=name)
            await trio.sleep_forever()

        return run

    began = 0.0


def play(work: Callable[[], Awaitable[None]]) -> None:
    """Run with a clock that jumps to the next deadline."""
    trio.run(work, clock=MockClock(autojump_threshold=0))


def module(name: str, run: Run, *needs: str, restart: bool = False) -> Module:
    """Return a module."""
    return Module(name=name, run=run, needs=needs, restart=restart)


def test_started_after_their_needs_and_stopped_in_reverse() -> None:
    """Each is waited for before the one that it needs is stopped."""
    story = Story()
    modules = Modules(
        [
            module("gossip", story.lasting("gossip", slow_s=5), "store"),
            module("upkeep", story.lasting("upkeep"), "gossip", "store"),
            module("store", story.lasting("store")),
        ]
    )

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: modules.run(task_status=task_status))
            assert {s["state"] for s in modules.status().values()} == {"running"}
            nursery.cancel_scope.cancel()

    play(work)
    assert story.lines == [
        "start store",
        "start gossip",
        "start upkeep",
        "stop upkeep",
        "stop gossip",
        "stop store",
    ]
    assert {s["state"] for s in modules.status().values()} == {"stopped"}


def test_a_failed_module_comes_back_after_a_doubling_pause() -> None:
    """0.5, 1 and 2 seconds; the others do not notice."""
    story = Story()
    modules = Modules(
        [
            module("store", story.lasting("store")),
            module("gateway", story.failing("gateway", 3), "store", restart=True),
        ]
    )

    async def work() -> None:
        story.began = trio.current_time()
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: modules.run(task_status=task_status))
            await trio.sleep(0.1)
            status = modules.status()["gateway"]
            assert status["state"] == "pausing"
            assert "it broke" in status["error"]
            await trio.sleep(10)
            assert modules.status()["gateway"]["state"] == "running"
            assert modules.status()["gateway"]["restarts"] == 3
            nursery.cancel_scope.cancel()

    play(work)
    assert [line for line in story.lines if "gateway" in line] == [
        "start gateway 0",
        "start gateway 0.5",
        "start gateway 1.5",
        "start gateway 3.5",
    ]


def test_one_that_fails_too_often_takes_the_node_down_in_order() -> None:
    """After failures_max the error comes out, and what ran has been stopped."""
    story = Story()
    modules = Modules(
        [
            module("store", story.lasting("store")),
            module("gateway", story.failing("gateway", 99, unstarted=True), "store", restart=True),
        ],
        ModulesConfig(failures_max=3),
    )

    async def work() -> None:
        story.began = trio.current_time()
        with pytest.raises(BaseExceptionGroup) as caught:
            await modules.run()
        assert caught.group_contains(NodeError, match="it broke")

    play(work)
    assert sum("start gateway" in line for line in story.lines) == 4
    assert story.lines[-1] == "stop store"
    assert modules.status()["gateway"]["state"] == "failed"


@pytest.mark.trial
def test_nobody_spends_the_restarts_of_a_module_that_runs() -> None:
    """One that fails after its start, a hundred times in a row, is started again."""
    story = Story()
    modules = Modules(
        [module("gateway", story.failing("gateway", 100), restart=True)],
        ModulesConfig(failures_max=3),
    )

    async def work() -> None:
        story.began = trio.current_time()
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: modules.run(task_status=task_status))
            await trio.sleep(60 * 101)
            assert modules.status()["gateway"]["state"] == "running"
            assert modules.status()["gateway"]["restarts"] == 100
            nursery.cancel_scope.cancel()

    play(work)


def test_failures_far_apart_are_forgotten() -> None:
    """A module that ran well for long enough starts its count anew."""
    story = Story()
    modules = Modules(
        [module("sync", story.failing("sync", 10, after_s=400), restart=True)],
        ModulesConfig(failures_max=3),
    )

    async def work() -> None:
        story.began = trio.current_time()
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: modules.run(task_status=task_status))
            await trio.sleep(400 * 11)
            assert modules.status()["sync"]["state"] == "running"
            nursery.cancel_scope.cancel()

    play(work)


def test_one_that_may_not_be_restarted_takes_the_node_down() -> None:
    """The first failure is the last."""
    story = Story()
    modules = Modules([module("gossip", story.failing("gossip", 1, after_s=1))])

    async def work() -> None:
        with pytest.raises(BaseExceptionGroup):
            await modules.run()

    play(work)


def test_a_failure_while_starting_is_the_node_not_starting() -> None:
    """A port that is taken is said at once, also of a module that may be restarted."""

    async def run(report: Any) -> None:
        assert report
        raise NodeError("the port is taken", where="gateway")

    story = Story()
    modules = Modules(
        [module("store", story.lasting("store")), module("gateway", run, "store", restart=True)]
    )

    async def work() -> None:
        with pytest.raises(BaseExceptionGroup) as caught:
            await modules.run()
        assert caught.group_contains(NodeError, match="port is taken")

    play(work)
    assert story.lines == ["start store", "stop store"]


def test_one_that_does_not_end_is_left_behind() -> None:
    """The others still stop; the wait is bounded."""
    story = Story()
    modules = Modules(
        [
            module("store", story.lasting("store")),
            module("stuck", story.lasting("stuck", slow_s=100), "store"),
        ],
        ModulesConfig(stop_s=5),
    )

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: modules.run(task_status=task_status))
            nursery.cancel_scope.cancel()

    play(work)
    assert story.lines[-2:] == ["stop store", "stop stuck"]


@pytest.mark.parametrize(
    "modules",
    [
        [("a", "b"), ("b", "a")],
        [("a", "missing")],
        [("a",), ("a",)],
    ],
)
def test_needs_that_cannot_be_met_are_refused(modules: list[tuple[str, ...]]) -> None:
    """A circle, a need that is no module, and a name twice."""
    story = Story()
    made = [module(name, story.lasting(name), *needs) for name, *needs in modules]
    with pytest.raises(NodeError):
        in_order(made)
