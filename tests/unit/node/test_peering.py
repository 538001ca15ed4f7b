"""What a node's file says about peers, as the parameters of its router."""

from dataclasses import fields
from pathlib import Path

import pytest

from luxrelay.errors import ConfigError
from luxrelay.net import NetConfig
from luxrelay.node.config import NodeConfig, parse_config, problems_of
from luxrelay.node.peering import (
    diversity_of,
    gossip_params_of,
    net_config_of,
    score_params_of,
)
from luxrelay.node.port_keys import BOUNDS, PortKey
from luxrelay.node.settings import KEYS


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


KEPT_IN_CODE = {
    "peers_max": "the list of peers has its own bound in the file",
    "upkeep_interval_s": "how often we look at our own numbers",
    "bans_save_s": "how far the file of bans may lag behind",
    "close_timeout_s": "part of stop_grace_ms",
    "frame_max": "said in hello and held by every relay of the network",
    "frame_batch_max": "how the loop is shared, not what a peer may cost",
    "batch_max": "how the loop is shared",
    "publish_batch_max": "how the loop is shared",
    "patience_s": "how long our own publisher waits",
    "steady_s": "when a pause of ours begins anew",
    "stream_attempts_max": "our own tries",
    "stream_pause_max_s": "our own tries",
    "outbound_max": "a third of connections_max",
    "inbound_max": "the rest of connections_max",
}
"""Numbers of the network room without a key, and why."""
ELSEWHERE = {"dht_interval_s", "inline_blob_max", "inbox_max", "loopback_exempt"}


def test_every_bound_of_the_gossip_port_has_a_key() -> None:
    """A new number of the network room gets a key, or says why it needs none."""
    numbers = {field.name for field in fields(NetConfig) if field.type in {"int", "float"}}
    in_file = {key.name for key in KEYS if key.section == "gossip"}
    keyed = {bound.field for bound in BOUNDS} | (numbers & in_file) | (numbers & ELSEWHERE)

    assert numbers - keyed == KEPT_IN_CODE.keys()
    assert not keyed & KEPT_IN_CODE.keys()


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.name)
def test_a_bound_of_the_file_reaches_the_gossip_port(bound: PortKey) -> None:
    """Its default is the network room's own, and another value of the file arrives there."""
    low, high = bound.span
    other = next(each for each in (bound.default + 1, bound.default - 1) if low <= each <= high)
    changed = net_config_of(config_of(f"{bound.name} = {other}"))

    assert getattr(net_config_of(config_of("")), bound.field) == bound.value(bound.default)
    assert bound.value(bound.default) == getattr(NetConfig(), bound.field)
    assert getattr(changed, bound.field) == bound.value(other)


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.name)
def test_refuse_a_bound_outside_its_span(bound: PortKey) -> None:
    """The file and the line are named."""
    for value in (bound.span[0] - 1, bound.span[1] + 1):
        with pytest.raises(ConfigError, match=f"gossip.*{bound.name}|{bound.name}") as caught:
            config_of(f"{bound.name} = {value}")
        assert caught.value.where.endswith(f":6 [gossip] {bound.name}")


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ("receive_window_max = 4194304", "connection_unread_max"),
        ("redial_min_ms = 90000", "redial_max"),
    ],
)
def test_check_and_run_refuse_bounds_that_do_not_fit_together(
    lines: str, word: str, tmp_path: Path
) -> None:
    """What the network room refuses is a problem of the file, for `check` as for the start."""
    file = tmp_path / "relay.toml"
    file.write_text(f'[node]\ndata_dir = "data"\nnetwork = "test"\n[gossip]\n{lines}\n')

    assert [word in problem.what for problem in problems_of(file)] == [True]
    with pytest.raises(ConfigError, match=word):
        config_of(lines)
