"""What an inbound connection costs is charged, and what it brings is given back."""

from __future__ import annotations

import logging

import pytest
import trio

from luxrelay.net.account import (
    ACCEPTED_US,
    COPY_US,
    EARNED_MAX_US,
    FRAMES_PER_MESSAGE,
    OPENED_US,
    REFUSED_US,
    STEP_FACTOR,
    STEP_US,
    Account,
)
from luxrelay.net.charging import Charges, account, without_account
from luxrelay.sync.cost import CostConfig, Payer
from luxrelay.sync.rpc.metering import SharedMeter

PAYER = Payer("192.0.2.1")


def opened() -> Account:
    """Return an account whose opening is paid."""
    made = Account(PAYER)
    assert made.due() == OPENED_US
    return made


def test_what_nobody_accepts_is_charged_whole() -> None:
    """Frames of a node that accepts nothing give nothing back."""
    made = opened()
    made.spend(0.5)
    made.read(1_000, accepted=0)
    made.judged(0, 3)
    assert made.due() == 0.5e6 * STEP_FACTOR + 3 * REFUSED_US
    assert made.due() == 0


def test_a_message_gives_back_what_it_cost_and_its_copies() -> None:
    """Accepted later than it was charged; given back is no more than was charged, and a reserve."""
    made = opened()
    made.spend(0.001 / STEP_FACTOR)
    assert made.due() == pytest.approx(1_000)
    made.judged(1, 0)
    assert made.due() == pytest.approx(-ACCEPTED_US)
    made.judged(10_000, 0)
    assert made.due() == pytest.approx(-OPENED_US)
    assert made.earned_us == EARNED_MAX_US
    made.spend(EARNED_MAX_US / 1e6 / STEP_FACTOR)
    assert made.due() == pytest.approx(0)


def test_copies_are_free_as_often_as_the_node_accepted_something() -> None:
    """A flood of copies pays for all beyond an honest peer's share."""
    made = opened()
    made.spend(1)
    made.read(100, accepted=10)
    assert made.due() == 1e6 * STEP_FACTOR - 10 * FRAMES_PER_MESSAGE * COPY_US
    made.spend(1)
    made.read(100, accepted=10)
    assert made.due() == 1e6 * STEP_FACTOR


def test_what_is_left_open_is_little() -> None:
    """A connection is settled when it has cost something, or has something to get back."""
    made = opened()
    assert made.settled
    made.spend(STEP_US / 1e6)
    assert not made.settled
    made.judged(100, 0)
    assert not made.settled
    made.due()
    assert made.settled


class Clock:
    """CPU time that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return it."""
        return self.now


def make(rate: float = 100_000.0) -> tuple[Charges, Clock]:
    """Return charges whose meter follows the loop's clock."""
    clock = Clock()
    config = CostConfig(stranger_us_per_s=rate, stranger_burst_us=100_000.0)
    meter = SharedMeter(config, trio.current_time, known_hosts=["192.0.2.9"])
    return Charges(meter, clock), clock


async def test_every_task_of_a_connection_is_charged_and_the_debt_is_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Tasks that it starts too; what is owed is paid by time, counted, and logged once."""
    charges, clock = make()
    trio.lowlevel.add_instrument(charges)

    async def work() -> None:
        clock.now += 0.3

    async def own() -> None:
        without_account()
        await trio.lowlevel.checkpoint()
        clock.now += 10

    with caplog.at_level(logging.WARNING, "luxrelay.net"), charges.of("192.0.2.1") as paying:
        assert paying is not None
        assert account() is paying
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            nursery.start_soon(work)
            nursery.start_soon(own)
        began = trio.current_time()
        for _ in range(2):
            await charges.turn(paying, lambda: False)
        expected = (0.6e6 * STEP_FACTOR + OPENED_US - 100_000) / 100_000
        assert trio.current_time() - began == pytest.approx(expected, abs=0.06)
    trio.lowlevel.remove_instrument(charges)
    assert charges.held == 1
    assert [each.getMessage() for each in caplog.records] == [
        "not read from for a while: gossip of 192.0.2.1 costs too much"
    ]
    assert account() is None


class Ticking(Clock):
    """CPU time of which each look at it takes a part."""

    def __call__(self) -> float:
        """Return it, a third of a millisecond later than before."""
        self.now += 0.00033
        return self.now


async def test_connections_that_are_held_owe_no_more_for_waiting() -> None:
    """Several of one address, whose looks would cost what it pays: all are free when it has."""
    config = CostConfig(stranger_us_per_s=40_000.0, stranger_burst_us=1.0)
    meter = SharedMeter(config, trio.current_time)
    charges = Charges(meter, Ticking())
    trio.lowlevel.add_instrument(charges)
    meter.settle(PAYER, 50_000.0)

    async def connection() -> None:
        with charges.of(PAYER.name) as paying:
            assert paying is not None
            await charges.turn(paying, lambda: False)

    began = trio.current_time()
    with trio.move_on_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(connection)
    trio.lowlevel.remove_instrument(charges)
    assert charges.held == 8
    assert trio.current_time() - began < 3


async def test_a_held_connection_that_is_closed_waits_no_longer() -> None:
    """Its task ends although its address still owes."""
    charges, _ = make(1.0)
    with charges.of("192.0.2.1") as paying:
        assert paying is not None
        paying.spend(1)
        with trio.fail_after(1):
            await charges.turn(paying, lambda: True)
    assert charges.held == 1


async def test_what_is_done_for_a_peer_is_charged_to_its_connection() -> None:
    """A task begun elsewhere finds the account by who has proven to be at its other end."""
    charges, _ = make()
    with charges.of("192.0.2.1") as paying:
        charges.prove(b"peer")
        charges.charge(b"other")
        assert account() is None
        charges.charge(b"peer")
        assert account() is paying
    charges.charge(b"peer")
    assert account() is None


async def test_known_hosts_and_nodes_without_a_limit_pay_nothing() -> None:
    """Named by the operator, a rate of 0, or no meter at all."""
    for charges, host in (
        (make()[0], "192.0.2.9"),
        (make(0.0)[0], "192.0.2.1"),
        (Charges(), "192.0.2.1"),
    ):
        with charges.of(host) as paying:
            assert paying is None
