"""What a connection to the gateway costs its address before anybody has said a word."""

from __future__ import annotations

from luxrelay.node.gateway.config import GatewayConfig
from luxrelay.node.gateway.http_auth import Rates
from luxrelay.sync.cost import CostConfig, Price
from luxrelay.sync.rpc.metering import SharedMeter

HOST = "192.0.2.7"
SECURE = GatewayConfig(listen="192.0.2.1:443", tls_certificate="cert.pem", tls_key="key.pem")
PLAIN = GatewayConfig(listen="127.0.0.1:80")


def rates(config: GatewayConfig, burst_us: float) -> tuple[Rates, SharedMeter]:
    """Return rates with a budget, at a time that stands still."""
    cost = CostConfig(stranger_us_per_s=1_000.0, stranger_burst_us=burst_us)
    meter = SharedMeter(cost, lambda: 0.0)
    return Rates(config, meter), meter


def paid(meter: SharedMeter) -> float:
    """Return what strangers were charged, microseconds."""
    return meter.stats().strangers_us


def test_a_handshake_is_part_of_the_price_of_a_connection() -> None:
    """With TLS a connection costs its handshake as well, without it does not."""
    for config, price in (
        (SECURE, Price.CONNECTION + Price.HANDSHAKE),
        (PLAIN, Price.CONNECTION),
    ):
        made, meter = rates(config, 1e6)
        assert made.connected(HOST) == 0
        assert paid(meter) == price


def test_a_connection_that_is_held_pays_its_handshake_too() -> None:
    """It shakes hands after a while, whatever its address owes; the debt grows with each."""
    made, meter = rates(SECURE, 1.0)
    made.connected(HOST)
    before = paid(meter)

    waits = [made.connected(HOST) for _ in range(3)]

    assert 0 < waits[0] < waits[1] < waits[2]
    assert paid(meter) - before == 3 * (Price.REFUSED + Price.HANDSHAKE)


def test_a_token_behind_a_handshake_gives_it_back() -> None:
    """Who shows one pays for the connection alone, as without TLS."""
    made, meter = rates(SECURE, 1e6)
    made.connected(HOST)
    made.proved(HOST)
    assert paid(meter) == Price.CONNECTION

    plain, meter = rates(PLAIN, 1e6)
    plain.connected(HOST)
    plain.proved(HOST)
    assert paid(meter) == Price.CONNECTION
