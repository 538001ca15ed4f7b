"""Multiaddresses and peer ids: what is taken, and that nothing but AddressError is raised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import AddressError
from luxrelay.net.addresses import (
    parse_address,
    parse_listen_address,
    parse_peer_address,
    peer_id_from_text,
    peer_text,
)

PEER = "12D3KooWMbbPVGsZYh3ChQjue712NHHGNybRRXwnuSpezYjGbCDS"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("/ip4/127.0.0.1/tcp/9640", "127.0.0.1", 9640),
        ("/ip6/::1/tcp/0", "::1", 0),
        ("/dns4/relay.example/tcp/1", "relay.example", 1),
        ("/dns6/relay.example/tcp/1", "relay.example", 1),
        ("/dns/relay.example/tcp/65535", "relay.example", 65535),
    ],
)
def test_parse_plain_tcp(text: str, host: str, port: int) -> None:
    """Plain TCP on an IP address or a name is taken apart."""
    address = parse_address(text)

    assert (address.host, address.port, address.peer, address.text) == (host, port, None, text)
    assert str(address.multiaddr()) == text


def test_parse_peer_address() -> None:
    """The peer id behind an address has 38 bytes and prints as it was (G7)."""
    address, peer = parse_peer_address(f"/ip4/10.0.0.1/tcp/9640/p2p/{PEER}")

    assert len(peer) == 38
    assert address.peer == peer
    assert peer_text(peer) == PEER
    assert peer_id_from_text(PEER) == peer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "localhost:9640",
        "/ip4/127.0.0.1",
        "/ip4/127.0.0.1/udp/9640",
        "/ip4/127.0.0.1/udp/9640/quic-v1",
        "/ip4/127.0.0.1/tcp/9640/ws",
        "/ip4/127.0.0.1/tcp/70000",
        "/ip4/300.0.0.1/tcp/1",
        f"/p2p/{PEER}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit",
        "/ip4/1.2.3.4/tcp/1/p2p/nobody",
        "/ip4/127.0.0.1/tcp/1" + "/" * 600,
    ],
)
def test_refuse_other_addresses(text: str) -> None:
    """What is no plain TCP address is refused."""
    with pytest.raises(AddressError):
        parse_address(text)


@pytest.mark.parametrize("text", ["/ip4/1.2.3.4/tcp/1", f"/ip4/1.2.3.4/tcp/0/p2p/{PEER}"])
def test_refuse_undialable(text: str) -> None:
    """A peer without an id or with port 0 cannot be dialled; the hint says what to do."""
    with pytest.raises(AddressError, match="append /p2p/"):
        parse_peer_address(text)


@pytest.mark.parametrize("text", ["/dns4/a/tcp/1", f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}"])
def test_refuse_unlistenable(text: str) -> None:
    """Names and peers cannot be listened on."""
    with pytest.raises(AddressError, match="cannot be listened on"):
        parse_listen_address(text)


@given(st.text(max_size=80) | st.from_regex(r"(/[a-z0-9]{1,8}){1,6}", fullmatch=True))
def test_nothing_but_address_errors(text: str) -> None:
    """Any text is an address or an AddressError."""
    try:
        parse_address(text)
    except AddressError:
        return


@given(st.text(max_size=60))
def test_nothing_but_address_errors_from_peer_ids(text: str) -> None:
    """Any text is a peer id or an AddressError."""
    try:
        peer_id_from_text(text)
    except AddressError:
        return


def test_an_empty_text_is_no_peer_id() -> None:
    """The library takes it for an id of no bytes; nobody has that."""
    with pytest.raises(AddressError, match="empty"):
        peer_id_from_text("")


def test_a_long_peer_id_is_refused_unread() -> None:
    """The library takes the square of the length; 128 characters are many more than any has."""
    with pytest.raises(AddressError, match="129 characters"):
        peer_id_from_text("2" * 129)
    peer_id_from_text("2" * 128)
