"""Store work of the gateway: bounded threads with a bounded queue.

What a thread spends is charged to the caller that the task works for (`PAYER`).

Source: architecture, rules 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from luxrelay.errors import GatewayError
from luxrelay.sync.rpc.metering import PAYER, SharedMeter

Result = TypeVar("Result")


class Work:
    """Runs blocking calls beside the loop."""

    def __init__(
        self, at_once_max: int, waiting_max: int, meter: SharedMeter | None = None
    ) -> None:
        """Run ``at_once_max`` calls at once, let ``waiting_max`` wait and refuse the rest.

        Requests without token get half of both, so that the others do not wait behind them.
        """
        self.meter = meter
        """What callers may cost; None counts nothing."""
        self._limiter = trio.CapacityLimiter(at_once_max)
        self._strangers = trio.CapacityLimiter(max(1, at_once_max // 2))
        self._waiting_max = waiting_max
        self.refused = 0
        """Calls refused."""

    async def run(self, call: Callable[[], Result]) -> Result:
        """Return what the call returns.

        Raises:
            GatewayError: too many wait already (``gateway.busy``).

        """
        meter, payer = self.meter, PAYER.get()
        if payer is None or payer.known:
            limiter, waiting_max = self._limiter, self._waiting_max
        else:
            limiter, waiting_max = self._strangers, max(1, self._waiting_max // 2)
        if limiter.statistics().tasks_waiting >= waiting_max:
            self.refused += 1
            raise GatewayError("the node is busy", code="gateway.busy")
        if meter is None or payer is None:
            return await trio.to_thread.run_sync(call, limiter=limiter)

        def charged() -> Result:
            with meter.measured(payer, 0.0):
                return call()

        return await trio.to_thread.run_sync(charged, limiter=limiter)
