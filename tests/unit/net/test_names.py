"""What a file may say is what can run: names and peer ids, checked without the library."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import AddressError
from luxrelay.net.addresses import parse_listen_address, parse_peer_address
from luxrelay.net.names import host_objection, host_port_objection, peer_id_objection
from luxrelay.node.config import problems_of
from luxrelay.node.peer_keys import PEER_ADDRESS

pytestmark = pytest.mark.trial
PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
HASHED = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
HOSTS = (
    *(f"/ip4/{host}" for host in ("127.0.0.1", "01.2.3.4", "1.2.3", "256.1.1.1", " 1.2.3.4", "")),
    *(f"/ip6/{host}" for host in ("::1", "fe80::1%eth0", "::ffff:1.2.3.4", "1:2:3", "::1 ", "")),
    *(
        f"/dns4/{host}"
        for host in (
            "relay.example",
            "relay.example.",
            "relay..example",
            ".example",
            "a" * 63 + ".example",
            "a" * 64 + ".example",
            ".".join(["a" * 60] * 4),
            ".".join(["a" * 63] * 4),
            "m\N{LATIN SMALL LETTER U WITH DIAERESIS}nchen.example",
            "xn--mnchen-3ya.example",
            "-a.example",
            "a-.example",
            "a_b.example",
            "a b.example",
            "*.example",
            "xn--",
            "xn--zzzzzz",
            "%00",
            "a%20b",
            "\N{RIGHT-TO-LEFT OVERRIDE}",
        )
    ),
    "/dnsaddr/relay.example",
    "/unix/tmp",
)
PORTS = ("/tcp/1", "/tcp/0", "/tcp/65535", "/tcp/65536", "/tcp/99999", "/tcp/-1", "/tcp/+1", "/tcp")
ENDS = (
    "",
    f"/p2p/{PEER}",
    f"/p2p/{HASHED}",
    f"/p2p/{HASHED[:-1]}",
    f"/p2p/{PEER[:-1]}",
    f"/p2p/{PEER}1",
    f"/p2p/1{PEER}",
    "/p2p/" + "1" * 20,
    "/p2p/" + "z" * 46,
    "/p2p/" + "z" * 128,
    "/p2p/",
    f"/ws/p2p/{PEER}",
    f"/quic-v1/p2p/{PEER}",
    f"/p2p/{PEER}/p2p-circuit",
)
ADDRESSES = (
    *(f"{host}/tcp/9640/p2p/{PEER}" for host in HOSTS),
    *(f"/ip4/127.0.0.1{port}/p2p/{PEER}" for port in PORTS),
    *(f"/ip4/127.0.0.1/tcp/9640{end}" for end in ENDS),
)


def runs(address: str, *, listens: bool = False) -> bool:
    """Whether the node starts with the address."""
    try:
        (parse_listen_address if listens else parse_peer_address)(address)
    except AddressError:
        return False
    return True


@pytest.mark.parametrize("section", ["peers", "bootstrap", "listen"])
def test_node_check_answers_as_node_run(tmp_path: Path, section: str) -> None:
    """Each address is taken by the check and by the start, or by neither."""
    path, taken = tmp_path / "relay.toml", []
    for each in ADDRESSES:
        address = each.removesuffix(f"/p2p/{PEER}") if section == "listen" else each
        text = address.encode("unicode-escape").decode().replace("\\x", "\\u00")
        path.write_text(f'[node]\ndata_dir = "d"\n[gossip]\n{section} = ["{text}"]\n')
        checked = not problems_of(path)
        started = runs(address, listens=section == "listen") and "/+" not in address
        assert checked == started, address  # a port with a sign is refused before the start
        taken += [address] * checked
    assert taken


@given(st.text("ab-.xn9", max_size=70), st.text("123ABCzDKoWQm", max_size=60))
def test_what_the_quick_check_takes_the_parser_does_not_choke_on(name: str, peer: str) -> None:
    """Text that fits the patterns ends in an address or an AddressError, never in another error."""
    address = f"/dns4/{name}/tcp/1/p2p/{peer}"
    if PEER_ADDRESS(address) is None and not runs(address):
        assert "xn--" in name  # IDNA's own tables decide; `problems_of` asks the parser as well


@pytest.mark.parametrize(
    ("host", "fits"),
    [
        ("127.0.0.1", True),
        ("[::1]", True),
        ("relay_1", True),
        ("localhost", True),
        ("1.2.3.999", False),
        ("relay..example", False),
        ("a" * 64, False),
        ("[1:2:3]", False),
    ],
)
def test_a_host_before_a_port_is_one_that_may_be_resolved(host: str, *, fits: bool) -> None:
    """``host:port`` takes names of containers, and nothing that no resolver takes."""
    assert (host_port_objection(host) == "") == fits


def test_objections_say_what_is_wrong() -> None:
    """Each refusal names its reason."""
    assert "63" in host_objection("dns4", "a" * 64)
    assert "zone" in host_objection("ip6", "fe80::1%eth0")
    assert "ip4" in host_objection("ip4", "1.2.3")
    assert "length" in peer_id_objection(PEER[:-1])
    assert "base58" in peer_id_objection("0OIl")
    assert peer_id_objection(PEER) == peer_id_objection(HASHED) == ""
