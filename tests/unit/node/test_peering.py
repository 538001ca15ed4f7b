"""What a node's file says about peers, as the parameters of its router."""

from pathlib import Path

import pytest

from luxrelay.errors import ConfigError
from luxrelay.node.config import NodeConfig, parse_config
from luxrelay.node.peering import diversity_of, gossip_params_of, score_params_of


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


def test_the_routers_numbers_are_those_of_the_file() -> None:
    """Degrees, weights and how many peers of one system there may be (20-13, 20-30, G18)."""
    config = config_of(
        """mesh = ["d=5", "d_hi=9"]
        scores = ["namespace.weight=0.7"]
        system_peers_max = 3
        regions_min = 2"""
    )

    assert (gossip_params_of(config).d, gossip_params_of(config).d_hi) == (5, 9)
    assert score_params_of(config).namespace.weight == 0.7
    assert (diversity_of(config).asn_max, diversity_of(config).regions_min) == (3, 2)


@pytest.mark.parametrize(
    ("key", "line"), [("mesh", 'mesh = ["d=40"]'), ("scores", 'scores = ["a=1"]')]
)
def test_refuse_numbers_that_do_not_fit(key: str, line: str) -> None:
    """The file and the line are named, and nothing is started (20-13)."""
    with pytest.raises(ConfigError) as caught:
        config_of(line)

    assert caught.value.where.endswith(f":6 [gossip] {key}")
