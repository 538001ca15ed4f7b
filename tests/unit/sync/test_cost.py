"""What a caller may cost, over all doors."""

from __future__ import annotations

import threading
from dataclasses import fields

import pytest

from luxrelay.errors import SyncArgumentError
from luxrelay.sync.cost import CostConfig, CostMeter, Payer, Price, price_of_piece, price_of_sent
from luxrelay.sync.rpc.metering import SharedMeter

SMALL = CostConfig(stranger_us_per_s=100.0, stranger_burst_us=1_000.0, known_us_per_s=1e6)
ONE = Payer.at("192.0.2.1")


def test_a_stranger_costs_its_burst_and_then_its_rate() -> None:
    """Over a minute an address costs its burst, sixty seconds of its rate, and one piece more."""
    meter, spent = CostMeter(SMALL), 0.0
    for tick in range(60_000):
        if not meter.take(ONE, 50.0, tick / 1_000):
            spent += 50.0
    assert 6_900 <= spent <= 1_000 + 60 * 100 + 50


def test_work_that_may_not_begin_is_not_charged() -> None:
    """In debt nothing is taken, and the wait says when the debt is paid."""
    meter = CostMeter(SMALL)
    assert meter.take(ONE, 1_200.0, 0.0) == 0.0
    assert meter.take(ONE, 10.0, 0.0) == pytest.approx(2.0)
    assert meter.take(ONE, 10.0, 1.0) == pytest.approx(1.0)
    assert meter.take(ONE, 10.0, 2.0) == 0.0


def test_what_was_not_needed_is_given_back() -> None:
    """A bound is taken before the work, the difference is settled after it."""
    meter = CostMeter(SMALL)
    meter.take(ONE, 1_500.0, 0.0)
    meter.settle(ONE, -1_400.0, 0.0)
    assert meter.take(ONE, 10.0, 0.0) == 0.0
    assert meter.spent_us == pytest.approx(110.0)


def test_a_token_pays_from_its_own_bucket() -> None:
    """What strangers of the address owe is nothing to a token."""
    meter = CostMeter(SMALL)
    meter.take(ONE, 1e9, 0.0)
    assert meter.take(Payer("token:1", known=True), 10.0, 0.0) == 0.0
    assert meter.owed_us(ONE, 0.0) > 0


def test_many_addresses_share_their_network_and_all_strangers_one_budget() -> None:
    """A /16 has four shares; a neighbour in it waits, an address elsewhere does not."""
    meter = CostMeter(SMALL)
    for last in range(1, 6):
        meter.take(Payer.at(f"192.0.2.{last}"), 900.0, 0.0)
    assert meter.take(Payer.at("192.0.9.9"), 1.0, 0.0) > 0
    assert meter.take(Payer.at("198.51.100.1"), 1.0, 0.0) == 0.0
    for first in range(1, 12):
        meter.take(Payer.at(f"{first}.1.1.1"), 900.0, 0.0)
    assert meter.take(Payer.at("203.0.113.1"), 1.0, 0.0) > 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("", "no address"),
    ],
)
def test_addresses_that_are_one_payer(one: str, other: str) -> None:
    """IPv6 pays by /64; a mapped address is the IPv4 one; what is no address pays together."""
    assert Payer.at(one) == Payer.at(other)


def test_payers_are_bounded() -> None:
    """The payer idle longest is forgotten."""
    meter = CostMeter(CostConfig(payers_max=10))
    for number in range(1_000):
        meter.take(Payer.at(f"10.0.{number // 250}.{number % 250}"), 1.0, 0.0)
    assert meter.payers == 10


def test_no_rate_means_no_limit() -> None:
    """A rate of 0 counts nothing."""
    meter = CostMeter(CostConfig(stranger_us_per_s=0, known_us_per_s=0))
    assert not any(meter.take(ONE, 1e9, 0.0) for _ in range(10))
    assert not meter.take(Payer("t", known=True), 1e9, 0.0)


@pytest.mark.parametrize("name", [each.name for each in fields(CostConfig)])
def test_refuse_what_cannot_work(name: str) -> None:
    """No number of the configuration is negative."""
    with pytest.raises(SyncArgumentError):
        CostConfig(**{name: -1})


def test_a_refusal_says_who_how_much_and_when() -> None:
    """The text has the payer, its rate and the seconds; refusals are counted."""
    config = CostConfig(stranger_us_per_s=1_000.0, stranger_burst_us=1.0, wait_max_s=0.01)
    meter = SharedMeter(config)
    ended = threading.Event()
    assert not meter.wait_turn(ONE, 60e6, ended)
    why = meter.wait_turn(ONE, 1.0, ended)
    assert why.startswith("the address 192.0.2.1 costs more than 1 ms of CPU time a second")
    assert "ask again in 6" in why
    assert meter.stats().refused == 1


def test_places_to_wait_are_bounded() -> None:
    """Without a place to wait the caller is refused at once."""
    config = CostConfig(stranger_us_per_s=1.0, stranger_burst_us=1.0, waiting_max=0, wait_max_s=60)
    meter = SharedMeter(config)
    meter.take(ONE, 1e6)
    assert "ask again" in meter.wait_turn(ONE, 1.0, threading.Event())
    assert meter.stats().waited == 0


def test_what_a_thread_spends_is_what_is_charged() -> None:
    """A bound that was too low is made up for by what was measured."""
    meter = SharedMeter(CostConfig())
    meter.take(ONE, 1.0)
    with meter.measured(ONE, 1.0):
        sum(range(200_000))
    assert meter.stats().strangers_us > 100


def test_the_smallest_piece_costs_a_read() -> None:
    """A kibibyte costs more than a read, nothing at all costs nothing."""
    assert price_of_piece(0) == 0
    assert price_of_piece(1) == price_of_piece(100) == Price.PIECE
    assert price_of_piece(10_240) == 10 * Price.SENT


@pytest.mark.parametrize("size", [1, 120, 853, 2_000])
@pytest.mark.parametrize("requests", [1, 7, 136])
def test_requests_that_came_in_one_piece_are_given_back_no_more_than_it_cost(
    size: int, requests: int
) -> None:
    """Good messages would earn budget otherwise."""
    assert requests * price_of_sent(size) <= price_of_piece(requests * size) + 1e-6
