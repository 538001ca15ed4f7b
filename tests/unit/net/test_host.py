"""What a host refuses before it touches the network; the rest is in the integration tests."""

from __future__ import annotations

import pytest

from luxrelay.errors import AddressError, ConfigError
from luxrelay.gossip import peer_id_of
from luxrelay.net.config import NetConfig
from luxrelay.net.host import RelayHost


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
async def test_refuse_seed_of_other_length(seed: bytes) -> None:
    """An identity seed has 32 bytes."""
    with pytest.raises(ConfigError, match="32 bytes"):
        RelayHost(seed, NetConfig())


async def test_refuse_listen_address() -> None:
    """A listen address that cannot be one is refused when the host is made."""
    with pytest.raises(AddressError, match="nonsense"):
        RelayHost(bytes(32), NetConfig(listen=("nonsense",)))


async def test_peer_id_carries_key() -> None:
    """The peer id is the one gossip makes of the same public key (G7)."""
    host = RelayHost(bytes(32), NetConfig())
    key = bytes.fromhex("3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29")

    assert host.peer_id == peer_id_of(key)
    assert len(host.peer_id) == 38
    assert host.peer_text == "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
