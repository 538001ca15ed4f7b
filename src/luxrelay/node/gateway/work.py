"""Store work of the gateway: bounded threads with a bounded queue.

What a thread spends is charged to the caller that the task works for (`PAYER`).

Budget of bytes for bodies and WebSocket messages that are being received.

One budget for a listener's requests and its WebSockets. Callers without a token share a quarter of
it, so that they take nothing from those who publish.

Source: architecture, rules 3 and 4; architecture, rule 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from luxrelay.errors import GatewayError
from luxrelay.sync.rpc.metering import PAYER, SharedMeter


class Bodies:
    """Counts bytes that are held."""

    def __init__(self, bytes_max: int) -> None:
        """Start with none of ``bytes_max``."""
        self._max = bytes_max
        self._strangers_max = max(1, bytes_max // 4)
        self._held = self._strangers = 0
        self.refused = 0
        """Pieces that there was no room for."""

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self._held

    def hold(self, size: int, *, known: bool = True) -> None:
        """Count bytes of a body; ``known`` says whether a token came with it.

        Raises:
            GatewayError: all together would be too many (``gateway.busy``); nothing is counted.

        """
        full = self._held + size > self._max
        if full or (not known and self._strangers + size > self._strangers_max):
            self.refused += 1
            raise GatewayError("too much is being uploaded", code="gateway.busy")
        self._held += size
        if not known:
            self._strangers += size

    def let_go(self, size: int, *, known: bool = True) -> None:
        """Count them no longer."""
        self._held -= size
        if not known:
            self._strangers -= size


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
