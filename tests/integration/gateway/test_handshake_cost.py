"""A handshake of TLS is paid by the address that asks for it, at both ports that speak it."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from luxrelay.sync.cost import Price

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.trial]
COUNT = 12


def charged_us(place: str) -> float:
    """Return what strangers were charged so far, microseconds."""
    return 1e6 * metric(place, "luxrelay_cost_strangers_seconds")


def metric(place: str, name: str) -> float:
    """Return one number of the node's metrics."""
    line = http.client.HTTPConnection(place, timeout=30)
    line.request("GET", "/metrics")
    text = line.getresponse().read().decode()
    line.close()
    return float(next(each for each in text.splitlines() if each.startswith(name + " ")).split()[1])


@pytest.mark.parametrize("door", ["gateway", "sync"])
def test_a_handshake_is_paid_beside_its_connection(
    new_node: Callable[[str], NodeProcess],
    certificate: tuple[str, str],
    eventually: Callable[..., Any],
    door: str,
) -> None:
    """From one address, closed when they are done: as many as its budget has, and no more."""
    node = new_node("secure")
    keys = {"tls_certificate": certificate[0], "tls_key": certificate[1]}
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": "", **keys}
    node.sections["sync"] |= keys
    place = node.start()
    host, _, port = str(place.gateway if door == "gateway" else place.sync).rpartition(":")
    context = ssl.create_default_context(cafile=certificate[0])
    context.set_alpn_protocols(["h2" if door == "sync" else "http/1.1"])
    before, pace = charged_us(place.http), metric(place.http, "luxrelay_cost_pace")

    for _ in range(COUNT):
        source = ("127.66.0.1", 0)
        with (
            socket.create_connection((host, int(port)), timeout=60, source_address=source) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as line,
        ):
            assert line.version()

    # Prices are those of another machine, and this one's pace is looked at again and again.
    pace = min(pace, metric(place.http, "luxrelay_cost_pace"))
    owed = 0.9 * pace * COUNT * (Price.CONNECTION + Price.HANDSHAKE)
    eventually(lambda: charged_us(place.http) - before >= owed, 20)
