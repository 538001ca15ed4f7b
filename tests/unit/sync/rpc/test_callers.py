"""Whom a call comes from."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from luxrelay.sync.rpc.callers import Caller, caller_of


@dataclass
class Context:
    """What gRPC tells of a call."""

    name: str
    auth: dict[str, list[bytes]] = field(default_factory=dict)

    def peer(self) -> str:
        """Return the peer as gRPC writes it."""
        return self.name

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return what has been proven."""
        return self.auth


@pytest.mark.parametrize(
    ("peer", "caller"),
    [
        ("ipv4:203.0.113.9:5000", Caller("203.0.113.9", "", local=False)),
        ("ipv4:203.0.113.9:6000", Caller("203.0.113.9", "", local=False)),
        ("ipv6:%5B2001:db8::1%5D:5000", Caller("2001:db8::1", "", local=False)),
        ("ipv4:127.0.0.1:5000", Caller("127.0.0.1:5000", "", local=True)),
        ("ipv6:%5B::1%5D:5000", Caller("::1:5000", "", local=True)),
        ("unix:", Caller("unknown", "", local=False)),
        ("", Caller("unknown", "", local=False)),
    ],
)
def test_a_peer_is_an_address(peer: str, caller: Caller) -> None:
    """P34: connections of one address are one peer; on the loopback each is its own."""
    assert caller_of(Context(peer)) == caller  # type: ignore[arg-type]


def test_lasting_streams_of_a_site_share_their_places() -> None:
    """Who has one IPv6 network has one share of them; programs of this machine have their own."""
    peers = ("ipv6:%5B2001:db8::1%5D:5000", "ipv6:%5B2001:db8::2%5D:5000", "ipv4:203.0.113.9:5")
    shares = [caller_of(Context(peer)).share for peer in peers]  # type: ignore[arg-type]
    local = [caller_of(Context(f"ipv4:127.0.0.1:{port}")).share for port in (5, 6)]  # type: ignore[arg-type]

    assert shares == ["2001:db8::", "2001:db8::", "203.0.113.9"]
    assert local == ["127.0.0.1:5", "127.0.0.1:6"]
