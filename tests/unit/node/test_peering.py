"""What a node's file says about peers, as the parameters of its router."""

from pathlib import Path

import pytest

from luxrelay.node.config import NodeConfig, parse_config
from luxrelay.node.peering import gossip_params_of


def config_of(gossip: str) -> NodeConfig:
    """Return a configuration with this section of gossip."""
    text = f"""
    [node]
    data_dir = "data"
    network = "test"
    [gossip]
    {gossip}
    """
    return parse_config(text, source="relay.toml", base=Path("/etc"))


@pytest.mark.parametrize("role", ["validator", "relay", "light", "da-operator"])
def test_a_light_node_alone_has_no_mesh(role: str) -> None:
    """The role of the file reaches the router (20-01, G26)."""
    assert gossip_params_of(config_of(f'role = "{role}"')).light == (role == "light")
