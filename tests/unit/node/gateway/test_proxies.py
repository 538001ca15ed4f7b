"""Whose address counts behind a proxy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.gate import HOPS_MAX, Proxies

pytestmark = pytest.mark.trial
PROXY = "10.0.0.1"
CLIENT = "203.0.113.9"
PROXIES = Proxies(("10.0.0.0/8", "2001:db8:ff::/48"))
FORWARDED = {
    "one": ("for=203.0.113.9", CLIENT),
    "upper case": ("For=203.0.113.9;PROTO=http;By=10.0.0.1", CLIENT),
    "behind others": ("by=10.0.0.1;host=evil.example;for=203.0.113.9", CLIENT),
    "with a port": ('for="203.0.113.9:4711"', CLIENT),
    "with a hidden port": ('for="203.0.113.9:_x"', CLIENT),
    "a port without quotes": ("for=203.0.113.9:4711", CLIENT),
    "IPv6": ('for="[2001:db8:cafe::17]"', "2001:db8:cafe::17"),
    "IPv6 with a port": ('for="[2001:db8:cafe::17]:4711"', "2001:db8:cafe::17"),
    "IPv4 in IPv6": ('for="[::ffff:203.0.113.9]"', CLIENT),
    "a spoofed prefix": ("for=192.0.2.1, for=203.0.113.9", CLIENT),
    "a quoted comma": ('for="192.0.2.1, for=192.0.2.2", for=203.0.113.9', CLIENT),
    "a quoted quote": (r'for="\", for=192.0.2.2", for=203.0.113.9', CLIENT),
    "trusted hops": ('for=203.0.113.9, for=10.9.9.9, for="[2001:db8:ff::1]:1"', CLIENT),
    "all trusted": ("for=10.0.0.3, for=10.0.0.2", "10.0.0.3"),
    "unknown": ("for=203.0.113.9, for=unknown", PROXY),
    "hidden": ("for=203.0.113.9, for=_gazonk", PROXY),
    "hidden behind a trusted hop": ("for=_x, for=10.0.0.2", "10.0.0.2"),
    "an element without for": ("for=203.0.113.9, proto=https", PROXY),
    "for twice": ("for=192.0.2.1;for=203.0.113.9", PROXY),
    "an open quote": ('for=", for=203.0.113.9', PROXY),
    "no value": ("for=", PROXY),
    "no name": ("=203.0.113.9", PROXY),
    "rubbish": (";;;", PROXY),
    "empty": ("", PROXY),
    "no address": ("for=203.0.113.999", PROXY),
    "brackets without end": ('for="[2001:db8::1"', PROXY),
    "two ports": ('for="203.0.113.9:1:2"', PROXY),
}


@pytest.mark.parametrize("name", FORWARDED)
def test_forwarded_names_the_last_hop_that_is_not_trusted(name: str) -> None:
    """RFC 7239; what cannot be read leaves the proxy that wrote it."""
    header, client = FORWARDED[name]
    assert PROXIES.client(PROXY, [], [header]) == client


LISTS = {
    "one": ([CLIENT], CLIENT),
    "a spoofed prefix": (["192.0.2.1, 203.0.113.9"], CLIENT),
    "several headers": (["192.0.2.1", "203.0.113.9", "10.0.0.2"], CLIENT),
    "a port": (["203.0.113.9:4711"], CLIENT),
    "IPv6": (["2001:db8:cafe::17"], "2001:db8:cafe::17"),
    "IPv6 in brackets": (["[2001:db8:cafe::17]"], "2001:db8:cafe::17"),
    "IPv6 with a port": (["[2001:db8:cafe::17]:443"], "2001:db8:cafe::17"),
    "IPv4 in IPv6": (["::ffff:203.0.113.9"], CLIENT),
    "trusted by its IPv6 form": (["203.0.113.9, ::ffff:10.0.0.7"], CLIENT),
    "unknown": (["203.0.113.9, unknown"], PROXY),
    "empty": ([""], PROXY),
    "commas": ([",,,"], PROXY),
    "brackets without end": (["[::1"], PROXY),
    "octal": (["0203.0.113.9"], PROXY),
    "a zone": (["fe80::1%eth0"], "fe80::1"),
}


@pytest.mark.parametrize("name", LISTS)
def test_x_forwarded_for_names_the_last_hop_that_is_not_trusted(name: str) -> None:
    """Repeated headers are one list; what cannot be read leaves the proxy that wrote it."""
    headers, client = LISTS[name]
    assert PROXIES.client(PROXY, headers, []) == client


def test_where_both_headers_disagree_the_proxy_counts() -> None:
    """A client that writes the one its proxy does not keep is nobody else for it."""
    for listed, described in (
        ([CLIENT], ["for=192.0.2.1"]),
        (["192.0.2.1"], ["for=203.0.113.9"]),
        ([CLIENT], ["for=unknown"]),
        ([CLIENT], ["rubbish"]),
        ([CLIENT], [""]),
    ):
        assert PROXIES.client(PROXY, listed, described) == PROXY
    assert PROXIES.client(PROXY, [f"1.1.1.1, {CLIENT}"], ['for="[::ffff:203.0.113.9]:1"']) == CLIENT


def test_from_others_no_header_is_looked_at() -> None:
    """A client that calls us itself is who it is."""
    assert PROXIES.client("192.0.2.7", ["1.1.1.1"], ["for=1.1.1.1"]) == "192.0.2.7"
    assert PROXIES.client("", ["1.1.1.1"], ["for=1.1.1.1"]) == ""
    assert Proxies(()).client(PROXY, ["1.1.1.1"], []) == PROXY


def test_hops_are_bounded() -> None:
    """Beyond so many trusted ones nobody is looked for."""
    hops = [CLIENT, *["10.0.0.2"] * HOPS_MAX]
    assert PROXIES.client(PROXY, [", ".join(hops)], []) == "10.0.0.2"
    assert PROXIES.client(PROXY, [", ".join(hops[:-1])], []) == CLIENT


@given(st.text(max_size=60), st.sampled_from([", ", ","]))
def test_what_a_client_writes_in_front_names_nobody(prefix: str, comma: str) -> None:
    """The proxy's own entry counts, or the proxy; never an address that the client chose."""
    for spoofed in (prefix, f"for=192.0.2.1{prefix}", f'for="192.0.2.1{prefix}'):
        found = PROXIES.client(PROXY, [], [f"{spoofed}{comma}for={CLIENT}"])
        assert found in {CLIENT, PROXY}
        assert PROXIES.client(PROXY, [], [spoofed, f"for={CLIENT}"]) == CLIENT
    assert PROXIES.client(PROXY, [f"{prefix}{comma}{CLIENT}"], []) == CLIENT
