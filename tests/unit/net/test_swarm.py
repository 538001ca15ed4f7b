"""The swarm's own will is gone, and its limits are the configuration's."""

from __future__ import annotations

from luxrelay.net.config import NetConfig
from luxrelay.net.host import RelayHost


async def test_limits_are_ours() -> None:
    """Inbound slots, total and per-peer connections come from the configuration (G21)."""
    config = NetConfig(inbound_max=7, outbound_max=5, peer_connections_max=3)

    swarm = RelayHost(bytes(32), config)._swarm

    assert swarm._inbound_limiter.total_tokens == 7
    assert swarm.connection_config.max_connections == 12
    assert swarm.connection_config.max_connections_per_peer == 3
    assert swarm.retry_config.max_retries == 0


async def test_dials_nobody_by_itself() -> None:
    """The library's connector knows peers to dial and dials none of them."""
    swarm = RelayHost(bytes(32), NetConfig())._swarm

    await swarm.auto_connector.start()
    await swarm.auto_connector.maybe_connect()
    swarm.auto_connector.record_disconnect(swarm.self_id)

    assert not swarm.auto_connector._is_connecting
    assert not swarm.auto_connector._recent_disconnects
    assert (swarm.count(outbound=True), swarm.count(outbound=False)) == (0, 0)
