"""What a node's configuration means for those whom it serves."""

from __future__ import annotations

from pathlib import Path

from luxrelay.node.config import parse_config
from luxrelay.node.serving import known_hosts, meter_of, serving_of
from luxrelay.sync.cost import Payer

PEER = "12D3KooWGGZge4cnNezVKmNfyTU6QKrdSJiTtRqEZwAo5xGfYwa9"
TEXT = f"""
[node]
data_dir = "data"
[gossip]
peers = ["/ip4/8.8.8.8/tcp/9640/p2p/{PEER}", "/dns4/relay.example.org/tcp/9640/p2p/{PEER}"]
[sync]
peers = ["9.9.9.9:9641", "[2001:db8::1]:9641"]
known_hosts = ["7.7.7.7"]
stranger_ms_per_s = 1
stranger_burst_ms = 1
connections_max = 12
address_connections_per_s = 3
address_connections_burst = 4
accepts_per_s = 50
publishers_max = 20
peer_publishers_max = 5
publisher_silent_ms = 250
subscribers_max = 300
peer_subscribers_max = 6
"""


def test_configured_peers_are_known_by_their_addresses() -> None:
    """They catch up at the rate of a token holder, and a stranger does not."""
    config = parse_config(TEXT, source="relay.toml", base=Path("/etc"))
    assert {"7.7.7.7", "8.8.8.8", "9.9.9.9", "2001:db8::1"} <= known_hosts(config)
    assert "relay.example.org" not in known_hosts(config)

    meter = meter_of(config)
    for host, free in (("9.9.9.9", True), ("2001:db8::1", True), ("6.6.6.6", False)):
        meter.take(Payer.at(host), 10_000)
        assert (meter.take(Payer.at(host), 1) == 0) is free, host


def test_the_bounds_of_connections_come_from_the_file() -> None:
    """Each of the four keys."""
    config = serving_of(parse_config(TEXT, source="relay.toml", base=Path("/etc")))
    assert config.connections_max == 12
    assert config.address_connections_per_s == 3
    assert config.address_connections_burst == 4
    assert config.accepts_per_s == 50


def test_the_places_of_streams_come_from_the_file() -> None:
    """Each has a thread, and so have calls that are short, however many places there are."""
    config = serving_of(parse_config(TEXT, source="relay.toml", base=Path("/etc")))
    assert (config.publishers_max, config.peer_publishers_max) == (20, 5)
    assert config.publisher_silent_s == 0.25
    assert (config.subscribers_max, config.peer_subscribers_max) == (300, 6)
    assert config.workers > config.streams_max + 320
    assert config.calls_max > config.workers
