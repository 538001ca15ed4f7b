"""What the node makes of its configuration."""

import subprocess
import sys
from pathlib import Path

from luxrelay.net import NetConfig
from luxrelay.node.config import parse_config
from luxrelay.node.peering import diversity_of, gossip_params_of, net_config_of

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


def test_peers_keys_reach_network_and_router() -> None:
    """What the file says about peers is what the network room and the router are given."""
    text = """
    [node]
    data_dir = "data"
    network = "testnet"
    [gossip]
    role = "light"
    bootstrap = ["/dns4/relay.example/tcp/9640/p2p/PEER"]
    announce = ["/dns4/here.example/tcp/9640"]
    exchange = false
    dht = true
    dht_interval_ms = 9000
    outbound_target = 3
    peers_min = 5
    rotation_interval_ms = 7000
    rotation_count = 1
    group_peers_max = 6
    outbound_distinct_min = 2
    address_connections_max = 7
    subnet_connections_max = 8
    exempt_loopback = true
    require_hello = true
    validator_proof = "0x0102"
    validators = ["0xabcd"]
    """.replace("PEER", PEER)
    config = parse_config(text, source="relay.toml", base=Path("/etc"))

    net, params, diversity = net_config_of(config), gossip_params_of(config), diversity_of(config)

    assert (net.network, net.roles, net.validator_proof) == ("testnet", ("light",), b"\x01\x02")
    assert net.bootstrap == (f"/dns4/relay.example/tcp/9640/p2p/{PEER}",)
    assert net.announce == ("/dns4/here.example/tcp/9640",)
    assert (net.dht, net.dht_interval_s) == (True, 9.0)
    assert (net.exchange, net.outbound_target, net.peers_min) == (False, 3, 5)
    assert (net.address_connections_max, net.subnet_connections_max) == (7, 8)
    assert (net.loopback_exempt, net.require_hello) == (True, True)
    assert (params.peer_exchange, params.exempt_loopback) == (False, True)
    assert (diversity.subnet_max, diversity.peers_min) == (6, 5)
    assert diversity.outbound_distinct_min == 2
    assert (diversity.rotation_interval_s, diversity.rotation_count) == (7.0, 1)
    assert config.peering.validators == {b"\xab\xcd"}


def test_every_configured_peer_gets_a_connection() -> None:
    """More peers than a third of the connections may still all be dialled."""
    peers = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}" for port in range(1, 31)]

    config = net_config(f"peers = {peers}")

    assert (config.outbound_max, config.inbound_max) == (30, 20)


def test_a_node_s_process_is_prompt() -> None:
    """What the start made is out of the collector's rounds, and the lock changes hands soon."""
    code = (
        "import gc, sys; from luxrelay.node.node import SWITCH_S, be_prompt; be_prompt(); "
        "assert gc.get_freeze_count() > 100_000; assert sys.getswitchinterval() < 2 * SWITCH_S"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
