"""Whom the one meter of a node takes for known."""

from __future__ import annotations

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
