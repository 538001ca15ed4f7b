"""The modules of a node: started in the order of their needs, watched, and stopped in reverse.

Theory of operation
-------------------
A module is an async function that starts, reports that it has, and runs until it is cancelled. It
starts when all it needs has started. *Failure*: a module that may be restarted is started again
after a pause that doubles; one that may not, or of which too many starts fail, takes the node down
in order. One that ran is started again for ever, so that nobody outside can end the node with it.
*Order*: each module runs behind a shield of its own, so that a signal does not reach all of them at
once: they are cancelled one after another, the last to start first, and each is waited for. All
together have `stop_s`; a module that does not end is named in the log and left behind.

Source: LP-6490.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

import trio

from luxrelay.errors import LuxRelayError, NodeError
from luxrelay.net.scopes import ReadyReport
from luxrelay.node.logs import log
from luxrelay.pause import doubled

Run: TypeAlias = Callable[[ReadyReport[None]], Awaitable[None]]
"""Starts, calls ``started`` of what it is given, and runs until it is cancelled."""


class ModuleState(Enum):
    """Where a module stands."""

    WAITING = "waiting"
    """Not started yet."""
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    """It failed and is started again after a pause."""
    FAILED = "failed"
    """It failed and takes the node down."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One part of the node with a life of its own."""

    name: str
    run: Run
    needs: tuple[str, ...] = ()
    """Modules that must have started before it starts."""
    restart: bool = False
    """Whether a failure starts it again; otherwise it takes the node down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulesConfig:
    """Bounds of watching."""

    pause_s: float = 0.5
    """Pause before the first restart, seconds; it doubles with each failure."""
    pause_max_s: float = 60.0
    """Longest pause, seconds."""
    calm_s: float = 300.0
    """After so long without a failure earlier ones are forgotten, seconds."""
    failures_max: int = 8
    """Starts that may fail in a row; then the node goes down. A module that has run is started
    again as often as it fails."""
    stop_s: float = 5.0
    """Longest that all modules together may take to end, seconds; the last to be stopped still
    have a moment each."""
    stop_least_s: float = 0.2
    """What a module has to end although others took the time of all, seconds."""


class _Watched:
    """A module and what has become of it."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.state = ModuleState.WAITING
        self.failures = 0
        self.unstarted = 0
        self.restarts = 0
        self.error = ""
        self.scope = trio.CancelScope(shield=True)
        self.ended = trio.Event()


class Modules:
    """Runs the modules of one node."""

    def __init__(
        self,
        modules: Sequence[Module],
        config: ModulesConfig | None = None,
        *,
        stopping: Callable[[], object] = bool,
    ) -> None:
        """Order the modules by their needs.

        Args:
            modules: What to run.
            config: Bounds.
            stopping: Called once, when the stop begins.

        Raises:
            NodeError: a name stands twice, a need is no module, or needs go round in a circle.

        """
        self._config = config or ModulesConfig()
        self._stopping = stopping
        self._watched = [_Watched(module) for module in in_order(modules)]

    def status(self) -> dict[str, dict[str, Any]]:
        """Return what has become of each module, in the order of starting."""
        return {
            watched.module.name: {
                "state": watched.state.value,
                "restarts": watched.restarts,
                "error": watched.error,
            }
            for watched in self._watched
        }

    async def run(self, *, task_status: ReadyReport[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled, then stop every module in order."""
        async with trio.open_nursery() as nursery:
            begun: list[_Watched] = []
            try:
                for watched in self._watched:
                    begun.append(watched)
                    await nursery.start(self._keep, watched)
                task_status.started(None)
                await trio.sleep_forever()
            finally:
                self._stopping()
                until = trio.current_time() + self._config.stop_s
                with trio.CancelScope(shield=True):
                    for watched in reversed(begun):
                        await self._stop(watched, until)

    def hanging(self) -> list[str]:
        """Return the modules that have begun and not ended."""
        return [
            watched.module.name
            for watched in self._watched
            if watched.state is not ModuleState.WAITING and not watched.ended.is_set()
        ]

    async def _stop(self, watched: _Watched, until: float) -> None:
        watched.scope.cancel()
        left_s = max(self._config.stop_least_s, until - trio.current_time())
        with trio.move_on_after(left_s):
            await watched.ended.wait()
            return
        log(logging.ERROR, "a module does not end", module=watched.module.name)

    async def _keep(self, watched: _Watched, *, task_status: ReadyReport[None]) -> None:
        """Run one module again and again until it is stopped or must not go on."""
        reported = _Once(task_status, watched)
        try:
            with watched.scope:
                while True:
                    watched.state = ModuleState.STARTING
                    began = trio.current_time()
                    try:
                        await watched.module.run(reported)
                    except Exception as error:
                        if not reported.done:  # the node does not start; its caller says why
                            watched.state, watched.error = ModuleState.FAILED, _words(error)
                            raise
                        self._failed(watched, error, trio.current_time() - began)
                        if watched.state is ModuleState.FAILED:
                            raise
                    else:
                        watched.state = ModuleState.STOPPED
                        reported.started(None)
                        return
                    await trio.sleep(self._pause(watched))
                    watched.restarts += 1
        finally:
            if watched.state is not ModuleState.FAILED:
                watched.state = ModuleState.STOPPED
            watched.ended.set()

    def _failed(self, watched: _Watched, error: Exception, lasted_s: float) -> None:
        if lasted_s >= self._config.calm_s:
            watched.failures = 0
        watched.failures += 1
        # What ran has failed by something from outside, which must not add up to an end (G21).
        if watched.state is ModuleState.RUNNING:
            watched.unstarted = 0
        else:
            watched.unstarted += 1
        watched.error = _words(error)
        final = not watched.module.restart or watched.unstarted >= self._config.failures_max
        watched.state = ModuleState.FAILED if final else ModuleState.PAUSING
        log(
            logging.ERROR,
            "a module failed",
            module=watched.module.name,
            error=watched.error,
            failures=watched.failures,
            next="the node stops" if final else f"again in {self._pause(watched):.1f} s",
        )

    def _pause(self, watched: _Watched) -> float:
        return doubled(self._config.pause_s, watched.failures, self._config.pause_max_s)


class _Once:
    """Tells the first start to who waits for it, and each to the status."""

    def __init__(self, report: ReadyReport[None], watched: _Watched) -> None:
        self._report = report
        self._watched = watched
        self.done = False

    def started(self, value: None = None) -> None:
        """Take a module's word that it has started."""
        if self._watched.state is ModuleState.STARTING:
            self._watched.state = ModuleState.RUNNING
        if not self.done:
            self.done = True
            self._report.started(value)


def in_order(modules: Sequence[Module]) -> list[Module]:
    """Return the modules so that each stands after all it needs, else in the order given.

    Raises:
        NodeError: a name stands twice, a need is no module, or needs go round in a circle.

    """
    known = {module.name: module for module in modules}
    if len(known) != len(modules):
        raise NodeError("two modules have one name", where="modules", hint="a fault of ours")
    placed: dict[str, Module] = {}
    while len(placed) < len(known):
        ready = next(
            (
                module
                for module in modules
                if module.name not in placed and all(need in placed for need in module.needs)
            ),
            None,
        )
        if ready is None:
            rest = sorted(set(known) - set(placed))
            raise NodeError(
                f"these modules need what is not there or each other: {', '.join(rest)}",
                where="modules",
                hint="a fault of ours",
            )
        placed[ready.name] = ready
    return list(placed.values())


def _words(error: Exception) -> str:
    found: BaseException = error
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return str(found) if isinstance(found, LuxRelayError) else f"{type(found).__name__}: {found}"


DOWN: Final = frozenset({ModuleState.FAILED.value, ModuleState.PAUSING.value})
"""States in which a module does not do its work."""
