"""Whom the one meter of a node takes for known."""

from __future__ import annotations

from itertools import count

import pytest

from luxrelay.sync.cost import CostConfig, Payer
from luxrelay.sync.rpc.metering import SharedMeter


def test_addresses_that_the_operator_named_pay_as_those_with_a_token() -> None:
    """An archive or a relay that catches up is not held to the budget of strangers."""
    config = CostConfig(stranger_us_per_s=10, stranger_burst_us=10, known_us_per_s=1_000_000)
    meter = SharedMeter(config, lambda: 0.0, known_hosts=["8.8.8.8", "relay.example.org", "::1"])
    for host in ("8.8.8.8", "::ffff:8.8.8.8", "::1"):
        assert not meter.take(Payer.at(host), 1_000)
        assert not meter.take(Payer.at(host), 1_000)
    assert meter.stats().strangers_us == 0
    stranger, nobody = Payer.at("9.9.9.9"), Payer.at("relay.example.org")
    for payer in (stranger, nobody):
        assert not meter.take(payer, 11)
        assert meter.take(payer, 1) > 0


def test_a_refusal_names_the_address_and_its_own_rate() -> None:
    """Whoever is known by its address has no token to be told of."""
    meter = SharedMeter(CostConfig(known_us_per_s=2_000), known_hosts=["8.8.8.8"])
    assert meter.refuse(Payer.at("8.8.8.8"), 1).startswith("the address 8.8.8.8 costs more than 2 ")
    assert meter.refuse(Payer("token:1", known=True), 1).startswith("this token costs more than 2 ")


def test_a_stranger_has_the_same_share_of_a_core_on_a_slow_machine() -> None:
    """What is priced is allowed half as often, what is measured for as long as before (P34)."""
    stranger, cpu = Payer.at("9.9.9.9"), count(0.0, 0.004)
    config = CostConfig(stranger_us_per_s=40_000, stranger_burst_us=1_000)
    now = 0.0
    meter = SharedMeter(config, lambda: now, pace=lambda: 2.0, cpu_clock=lambda: next(cpu))
    allowed = 0
    for tick in range(100_000):
        now = tick / 10_000
        allowed += not meter.take(stranger, 1_000)
    assert allowed == pytest.approx(200, abs=2)  # of 1 ms there, 2 ms here: 4 % of ten seconds

    before_us = meter.stats().strangers_us
    assert before_us == pytest.approx(allowed * 2_000)
    assert "more than 40 ms" in meter.refuse(stranger, 1.0)
    now += 60.0
    before_us = meter.stats().strangers_us
    with meter.measured(stranger, 0.0):
        pass
    assert meter.stats().strangers_us - before_us == pytest.approx(4_000)  # of this machine
