"""Two listeners of a node on one port are found before it starts."""

from __future__ import annotations

import pytest

from luxrelay.node.listeners import sharing_a_port


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("127.0.0.1:9641", "127.0.0.1:9641", True),
        ("localhost:9641", "127.0.0.1:9641", True),
        ("/ip4/127.0.0.1/tcp/9641", "127.0.0.1:9641", True),
        ("/ip4/0.0.0.0/tcp/9641", "127.0.0.1:9641", True),
        ("192.0.2.1:9641", "[::]:9641", True),
        ("127.0.0.1:9641", "127.0.0.1:9642", False),
        ("127.0.0.1:9641", "192.0.2.1:9641", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("127.0.0.1:9641", "", False),
        ("nonsense", "nonsense", False),
    ],
)
def test_who_wants_the_same_port(one: str, other: str, *, clash: bool) -> None:
    """Every address is in the way of each; port 0 of none."""
    first, second = ("sync", "listen", one), ("http", "listen", other)

    assert list(sharing_a_port([first, second])) == ([(second, first)] if clash else [])
