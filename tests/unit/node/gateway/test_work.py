"""What a worker thread spends is charged to the caller that its task works for."""

from __future__ import annotations

import time

import pytest
import trio

from luxrelay.errors import GatewayError
from luxrelay.node.gateway.bounds import Work
from luxrelay.sync.cost import CostConfig, Payer
from luxrelay.sync.rpc.metering import PAYER, SharedMeter


def spend() -> str:
    """Use five milliseconds of the thread's own time."""
    until = time.thread_time() + 0.005
    while time.thread_time() < until:
        pass
    return "done"


@pytest.mark.trial
def test_what_a_thread_spends_is_charged_to_the_caller_of_its_task() -> None:
    """To nobody where no caller is known."""
    meter = SharedMeter(CostConfig())

    async def main() -> None:
        work = Work(1, 1, meter)
        PAYER.set(None)
        assert await work.run(spend) == "done"
        assert meter.stats().strangers_us == 0
        PAYER.set(Payer.at("8.8.8.8"))
        assert await work.run(spend) == "done"

    trio.run(main)
    assert meter.stats().strangers_us >= 4_000


def test_what_fails_is_charged_as_well() -> None:
    """The caller gets its error, and has paid."""
    meter = SharedMeter(CostConfig())

    def fail() -> None:
        spend()
        raise GatewayError("no", where="here")

    async def main() -> None:
        PAYER.set(Payer.at("8.8.8.8"))
        with pytest.raises(GatewayError):
            await Work(1, 1, meter).run(fail)

    trio.run(main)
    assert meter.stats().strangers_us >= 4_000
