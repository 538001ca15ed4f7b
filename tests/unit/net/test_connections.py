"""Connections by address and subnet."""

from __future__ import annotations

import pytest

from luxrelay.net.config import NetConfig
from luxrelay.net.connections import ConnectionLimits

CONFIG = NetConfig(address_connections_max=2, subnet_connections_max=3)


@pytest.mark.parametrize(
    ("host", "same", "near", "far"),
    [
        ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.255", "192.0.3.1"),
        ("2001:db8:1:11::1", "2001:db8:1:11::2%eth0", "2001:db8:1:ff::1", "2001:db8:1:100::1"),
    ],
)
def test_limit_by_address_and_subnet(host: str, same: str, near: str, far: str) -> None:
    """An address has two places, its /24 or /56 three, and the next subnet its own (G23)."""
    limits = ConnectionLimits(CONFIG)

    limits.opened(host)
    assert not limits.refusal(same)
    limits.opened(same)
    assert limits.refusal(host)
    assert limits.refusal(same)
    assert not limits.refusal(near)
    limits.opened(near)
    assert limits.refusal(near)
    assert not limits.refusal(far)
    limits.closed(host)
    assert not limits.refusal(near)
    assert not limits.refusal(host)


def test_loopback_counts_unless_exempt() -> None:
    """This machine's addresses are limited like others, except in a development network (G23)."""
    bounds = {"private_address_connections_max": 2}
    strict = ConnectionLimits(NetConfig(**bounds))
    lenient = ConnectionLimits(NetConfig(**bounds, loopback_exempt=True))

    for limits in (strict, lenient):
        for _ in range(2):
            limits.opened("127.0.0.1")

    assert strict.refusal("127.0.0.1")
    assert not lenient.refusal("127.0.0.1")


@pytest.mark.trial
@pytest.mark.parametrize("net", ["10.1.2.{}", "172.20.2.{}", "192.168.2.{}", "100.64.2.{}"])
def test_private_networks_have_numbers_of_their_own(net: str) -> None:
    """Ten relays in one private /24 have two connections with each other."""
    limits = ConnectionLimits(CONFIG)

    for number in range(10):
        for _ in range(2):
            assert not limits.refusal(net.format(number))
            limits.opened(net.format(number))
    for _ in range(22):
        limits.opened(net.format(1))
    assert "has 24 connections" in limits.refusal(net.format(1))
    for number in range(10, 16):
        limits.opened(net.format(number))
    assert "/24 has 48 connections" in limits.refusal(net.format(99))


def test_nothing_is_kept_of_closed_connections() -> None:
    """Counters of addresses that have no connection any more are gone; unknown hosts are free."""
    limits = ConnectionLimits(CONFIG)
    for number in range(200):
        limits.opened(f"192.0.{number}.1")
    for number in range(200):
        limits.closed(f"192.0.{number}.1")
    limits.opened("")
    limits.closed("relay.example")

    assert len(limits) == 0
    assert not limits.refusal("")
