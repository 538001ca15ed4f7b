"""The channel to one relay, before it is dialled."""

from __future__ import annotations

import pickle

import pytest

from luxrelay.errors import SyncArgumentError
from luxrelay.sync import ClientTls
from luxrelay.sync.rpc.connection import RelayConnection


@pytest.mark.parametrize("host", ["relay.example.org", "192.0.2.1", "[2001:db8::1]"])
def test_a_token_does_not_travel_in_the_clear(host: str) -> None:
    """It needs TLS, a loopback address, or the word of who knows the way; pickles keep it."""
    with pytest.raises(SyncArgumentError, match="in the clear"):
        RelayConnection(f"{host}:9645", token="lrt_x")  # noqa: S106  no real token
    RelayConnection(f"{host}:9645")
    RelayConnection(f"{host}:9645", token="lrt_x", tls=ClientTls())  # noqa: S106
    allowed = RelayConnection(f"{host}:9645", token="lrt_x", token_in_clear=True)  # noqa: S106

    assert pickle.loads(pickle.dumps(allowed)).address == allowed.address  # noqa: S301  our own


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "[::1]"])
def test_a_token_stays_on_this_machine(host: str) -> None:
    """A loopback address needs no TLS."""
    RelayConnection(f"{host}:9645", token="lrt_x")  # noqa: S106  no real token
