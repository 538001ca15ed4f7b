"""What a running node takes over of a changed file."""

from __future__ import annotations

from pathlib import Path

import pytest

from luxrelay.node.config import NodeConfig, parse_config
from luxrelay.node.node import Changes, changes_between

TEXT = """
[node]
data_dir = "data"
[store]
ttl_ms = 60000
[limits]
sender_messages_per_s = 10
[[namespace]]
content_topic = "/chat/1/room"
"""


def parse(text: str) -> NodeConfig:
    """Parse a text as if it stood in /etc/relay.toml."""
    return parse_config(text, source="relay.toml", base=Path("/etc"))


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("", "", Changes((), ())),
        ("per_s = 10", "per_s = 20", Changes(("limits",), ())),
        ("[store]", 'log_level = "debug"\n[store]', Changes(("log_level",), ())),
        ("[store]", 'log_levels = ["net=debug"]\n[store]', Changes(("log_levels",), ())),
        ("ttl_ms = 60000", "ttl_ms = 70000", Changes((), ("ttl_ms",))),
        ("/room", "/hall", Changes((), ("namespaces",))),
        (
            'room"',
            f'room"\npolicy_hash = "{"ab" * 32}"',
            Changes(("policies",), ()),
        ),
        ('room"', 'room"\nquota_bytes = 7', Changes((), ("quota_bytes",))),
        ('room"', 'room"\nthin_ratio = 7', Changes((), ("thin_ratio",))),
        (
            'room"',
            f'room"\nquota_bytes = 7\npolicy_hash = "{"ab" * 32}"',
            Changes(("policies",), ("quota_bytes",)),
        ),
        (
            "per_s = 10",
            'per_s = 20\n[http]\nlisten = "127.0.0.1:1"',
            Changes(("limits",), ("http_listen",)),
        ),
    ],
)
def test_what_is_taken_over_and_what_needs_a_restart(old: str, new: str, changes: Changes) -> None:
    """Rates, log levels and policies; everything else stays as it was until a restart."""
    assert old in TEXT
    assert changes_between(parse(TEXT), parse(TEXT.replace(old, new) if old else TEXT)) == changes
