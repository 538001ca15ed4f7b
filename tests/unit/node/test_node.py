"""What the node makes of its configuration."""

from pathlib import Path

from luxrelay.net import NetConfig
from luxrelay.node.config import parse_config
from luxrelay.node.parts import net_config_of

PEER = "12D3KooWGGZge4cnNezVKmNfyTU6QKrdSJiTtRqEZwAo5xGfYwa9"


def net_config(gossip: str) -> NetConfig:
    """Return the network bounds of a configuration."""
    text = f'[node]\ndata_dir = "data"\n[gossip]\n{gossip}\n'
    return net_config_of(parse_config(text, source="relay.toml", base=Path("/etc")))


def test_defaults_are_those_of_the_network_room() -> None:
    """Fifty connections are 16 out and 34 in (G21)."""
    config, default = net_config(""), NetConfig()

    assert (config.outbound_max, config.inbound_max) == (16, 34)
    assert (config.outbound_max, config.inbound_max) == (default.outbound_max, default.inbound_max)


def test_bounds_of_the_file_reach_the_network() -> None:
    """Connections and the inbox are bounded by what the file says."""
    config = net_config("connections_max = 2\ninbox_max = 17")

    assert (config.outbound_max, config.inbound_max, config.inbox_max) == (1, 1, 17)


def test_every_configured_peer_gets_a_connection() -> None:
    """More peers than a third of the connections may still all be dialled."""
    peers = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}" for port in range(1, 31)]

    config = net_config(f"peers = {peers}")

    assert (config.outbound_max, config.inbound_max) == (30, 20)
