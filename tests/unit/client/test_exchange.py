"""Where a gateway is, and what may be said on the way there."""

from __future__ import annotations

import pytest

from luxrelay.client import AsyncRelayClient, RelayClient
from luxrelay.client.exchange import Endpoint
from luxrelay.errors import ClientArgumentError

NEAR = ("127.0.0.1:9643", "127.9.9.9:1", "[::1]:9643", "localhost:9643", "http://LOCALHOST:9643")
TOKEN = "lrt_" + "s" * 43
FAR = (
    "192.0.2.1:9643",
    "http://relay.example:9643",
    "127.0.0.1.example:9643",
    "localhost.example:80",
    "[2001:db8::1]:9643",
    "0.0.0.0:9643",
    "http://127.0.0.1@relay.example:9643",
)


@pytest.mark.parametrize("address", FAR)
@pytest.mark.parametrize("kind", [RelayClient, AsyncRelayClient])
def test_no_token_in_the_clear_beyond_this_machine(
    kind: type[RelayClient | AsyncRelayClient], address: str
) -> None:
    """A token for another machine wants TLS, or the word of the caller."""
    with pytest.raises(ClientArgumentError, match="in the clear") as refused:
        kind(address, token=TOKEN)

    assert "https://" in str(refused.value)
    assert TOKEN not in str(refused.value)
    assert kind(address).endpoint.token == ""
    assert kind(address, token=TOKEN, token_in_clear=True).endpoint.token == TOKEN


@pytest.mark.parametrize("address", [*NEAR, "https://relay.example"])
def test_a_token_for_this_machine_or_over_tls(address: str) -> None:
    """Loopback has no way on which it could be read, and TLS hides it."""
    assert Endpoint.of(address, TOKEN).token == TOKEN


@pytest.mark.parametrize(
    ("address", "place", "host"),
    [
        ("127.0.0.1", "127.0.0.1:80", "127.0.0.1"),
        ("https://relay.example", "relay.example:443", "relay.example"),
        ("[::1]:9643", "[::1]:9643", "[::1]:9643"),
    ],
)
def test_errors_name_the_port_also_where_none_was_given(
    address: str, place: str, host: str
) -> None:
    """The port that is tried is shown to people; `Host` leaves out the usual one."""
    endpoint = Endpoint.of(address)

    assert (endpoint.place, endpoint.authority) == (place, host)
