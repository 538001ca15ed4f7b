"""What reads or writes the store, in a bounded number of threads with a bounded queue.

Source: architecture, rules 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from luxrelay.errors import GatewayError

Result = TypeVar("Result")


class Work:
    """Runs blocking calls beside the loop."""

    def __init__(self, at_once_max: int, waiting_max: int) -> None:
        """Run ``at_once_max`` calls at once, let ``waiting_max`` wait and refuse the rest."""
        self._limiter = trio.CapacityLimiter(at_once_max)
        self._waiting_max = waiting_max
        self.refused = 0
        """Calls refused."""

    async def run(self, call: Callable[[], Result]) -> Result:
        """Return what the call returns.

        Raises:
            GatewayError: too many wait already (``gateway.busy``).

        """
        if self._limiter.statistics().tasks_waiting >= self._waiting_max:
            self.refused += 1
            raise GatewayError("the node is busy", code="gateway.busy")
        return await trio.to_thread.run_sync(call, limiter=self._limiter)
