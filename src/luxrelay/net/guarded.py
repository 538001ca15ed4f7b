"""Containment of failures: each ends one connection, is counted and logged.

Theory of operation
  Decides: that an exception of one stream, connection or round goes no further, and when it is
    logged.
  Does not know: what the guarded work is, or which of its errors are expected; those the work
    handles itself, before they come here.
  `contained` is the context manager; `run` and `start` wrap one task; `keep` runs background work
    that must not end: it is begun anew after a pause that doubles.
  Passes: cancellation, `KeyboardInterrupt` and `SystemExit`, also when a nursery raised them in one
    group with failures. The failures of such a group are counted, the rest goes on.
  Bounds: those of `luxrelay.failures`.

Source: LP-6420 §1.3; decision G21.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Final, TypeVarTuple

import trio

from luxrelay.failures import EVERY_S, FailureLog
from luxrelay.pause import doubled

_TEXT_MAX: Final = 200
_Args = TypeVarTuple("_Args")


class Faults:
    """Failures that were contained, by kind; any thread may note one.

    Args:
        logger: Where the lines go.
        clock: Monotonic seconds.
        every_s: Seconds between two lines about one kind.

    """

    def __init__(
        self,
        *,
        logger: logging.Logger | None = None,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = EVERY_S,
    ) -> None:
        self._logger = logger or logging.getLogger("luxrelay.net")
        self._log = FailureLog(clock, every_s)

    def counts(self) -> dict[str, int]:
        """How many failures of each kind were contained."""
        return self._log.counts()

    def note(self, kind: str, error: BaseException) -> None:
        """Count a failure, and log it unless one of its kind was logged a moment ago.

        Args:
            kind: What failed, from a closed set of the program's own words.
            error: How; the first failure of a group is logged.

        """
        counted, told = self._log.note(kind)
        if told:
            fields = {"kind": counted, "failures": told, **_described(error)}
            self._logger.warning("failure contained", extra={"fields": fields})

    @contextmanager
    def contained(self, kind: str) -> Iterator[None]:
        """What the block raises is noted and goes no further; cancellation passes."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - this is the place for all that is unexpected
            self.note(kind, error)
        except BaseExceptionGroup as group:
            failures, rest = group.split(Exception)
            if failures is not None:
                self.note(kind, failures)
            if rest is not None:
                raise _alone(rest) from None

    async def run(
        self, kind: str, work: Callable[[*_Args], Awaitable[object]], *args: *_Args
    ) -> bool:
        """Whether the work came to its end; a failure is noted and goes no further."""
        with self.contained(kind):
            await work(*args)
            return True
        return False

    def start(
        self,
        nursery: trio.Nursery,
        kind: str,
        work: Callable[[*_Args], Awaitable[object]],
        *args: *_Args,
    ) -> None:
        """The work runs in the nursery and cannot end it."""
        nursery.start_soon(self.run, kind, work, *args)

    async def keep(
        self,
        kind: str,
        work: Callable[[], Awaitable[object]],
        *,
        pause_s: float = 0.5,
        pause_max_s: float = 60.0,
    ) -> None:
        """Background work runs until it returns or is cancelled, begun anew after a failure.

        Args:
            kind: What the failures count as.
            work: What runs; it has to bear being begun anew.
            pause_s: Seconds before it is begun anew the first time; doubled with each failure.
            pause_max_s: Longest pause, seconds; work that ran longer than that starts again at
                ``pause_s``.

        """
        failures = 0
        while True:
            began = trio.current_time()
            if await self.run(kind, work):
                return
            if trio.current_time() - began > pause_max_s:
                failures = 0
            failures += 1
            await trio.sleep(doubled(pause_s, failures, pause_max_s))


def _alone(rest: BaseException) -> BaseException:
    """The one exception of a group, or the group; trio takes either."""
    while isinstance(rest, BaseExceptionGroup) and len(rest.exceptions) == 1:
        rest = rest.exceptions[0]
    return rest


def _described(error: BaseException) -> dict[str, str]:
    """Type, text and place of the first failure; the text may be a peer's, so it is quoted."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    found = {"error": f"{type(error).__name__}: {str(error)[:_TEXT_MAX]!a}"}
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is not None:
        code = traceback.tb_frame.f_code
        found["at"] = f"{PurePath(code.co_filename).name}:{traceback.tb_lineno}"
    return found
