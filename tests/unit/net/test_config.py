"""The bounds of the room hold together or are refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from luxrelay.errors import ConfigError
from luxrelay.net.config import DEFAULT_PORT, MESHSUB, NetConfig

MAY_BE_ZERO = {"inline_blob_max", "outbound_target", "peers_min", "silence_max_s"}
NUMBERS = [f.name for f in fields(NetConfig) if f.type in ("int", "float")]


def test_default_port_and_protocol() -> None:
    """The gossip host has a port and a protocol of its own (20-56)."""
    assert NetConfig().listen == ("/ip4/0.0.0.0/tcp/9640",)
    assert (DEFAULT_PORT, MESHSUB) == (9640, ("/meshsub/1.2.0", "/meshsub/1.1.0"))


def test_default_connection_numbers() -> None:
    """16 outbound and 34 inbound connections make the fifty peers of G21 (20-05)."""
    config = NetConfig()

    assert (config.outbound_max, config.inbound_max) == (16, 34)


@pytest.mark.parametrize("name", NUMBERS)
def test_refuse_bound_of_zero(name: str) -> None:
    """Every number is above zero, a few may be zero, and the error names the one that is not."""
    values: dict[str, Any] = {name: -1 if name in MAY_BE_ZERO else 0}

    with pytest.raises(ConfigError, match=name):
        NetConfig(**values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"peers": ("a", "b"), "peers_max": 1}, "peers_max"),
        ({"receive_window_max": 512 * 1024 - 1}, "receive_window_max"),
        ({"write_stall_s": 2.0, "slow_after_s": 2.0}, "slow_after_s"),
        ({"frame_max": 2048, "queue_bytes_max": 2047}, "queue_bytes_max"),
    ],
)
def test_refuse_bounds_that_do_not_fit(values: dict[str, Any], text: str) -> None:
    """Bounds that contradict each other or the library are refused with their names."""
    with pytest.raises(ConfigError, match=text):
        NetConfig(**values)
