"""What the client refuses before it calls anybody."""

from __future__ import annotations

from typing import Any

import pytest

from luxrelay.errors import SyncArgumentError
from luxrelay.sync.messages import PublishItem
from luxrelay.sync.rpc.client import RelaySyncClient


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":9641", "host:0", "host:65536", "ho st:1", "http://host:1", "[::1:1"],
)
def test_refuse_an_address(address: str) -> None:
    """An address is host:port; the error shows the form."""
    with pytest.raises(SyncArgumentError, match="host:port"):
        RelaySyncClient(address)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "relay.example:9641", "[::1]:9641"])
def test_take_an_address(address: str) -> None:
    """Names, IPv4 and bracketed IPv6 are addresses; nothing is dialled yet."""
    with RelaySyncClient(address) as client:
        assert repr(client) == f"RelaySyncClient({address!r})"


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.sync_page(b"short"),
        lambda client: client.sync_page("n" * 20),
        lambda client: client.sync_page(bytes(20), -1),
        lambda client: client.sync_page(bytes(20), 0, 2**64),
        lambda client: client.sync_page(bytes(20), max_messages=10_001),
        lambda client: client.sync_page(bytes(20), max_bytes=2**40),
        lambda client: client.sync_page(bytes(20), from_time=-1),
        lambda client: client.get_head(b"short"),
        lambda client: client.get_messages([b"short"]),
        lambda client: client.get_messages([bytes(32)] * 1_001),
        lambda client: list(client.list_heads(b"short")),
        lambda client: client.publish([PublishItem(header=bytes(8_193))]),
        lambda client: client.publish([PublishItem(header=b"h", blob=bytes(2**21 + 1))]),
        lambda client: client.publish([PublishItem(header=b"h", parent_id=b"short")]),
    ],
)
def test_refuse_values_out_of_range(call: Any) -> None:
    """The caller's mistakes are found without asking the relay."""
    with RelaySyncClient("127.0.0.1:1") as client, pytest.raises(SyncArgumentError):
        call(client)
