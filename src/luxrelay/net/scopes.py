"""Cancel scopes for the last words of a task that is being cancelled."""

from __future__ import annotations

import math
from typing import Protocol, TypeVar

import trio

T_contra = TypeVar("T_contra", contravariant=True)


class ReadyReport(Protocol[T_contra]):
    """What `trio.Nursery.start` hands to a task: called once, when it is ready."""

    def started(self, value: T_contra) -> None:
        """The task is ready and this is what its starter gets."""
        ...


def shielded(seconds: float = math.inf) -> trio.CancelScope:
    """A scope that outer cancellation does not reach, for at most so many seconds."""
    scope = trio.CancelScope()
    scope.shield = True
    scope.deadline = trio.current_time() + seconds
    return scope
