"""The gate for browsers: names and origins."""

import pytest

from luxrelay.gate import BrowserGate, host_name

GATE = BrowserGate(("relay.example.org",), ("https://chat.example.org",))


@pytest.mark.parametrize(
    "host",
    [
        None,
        "127.0.0.1",
        "192.0.2.1:80",
        "[::1]:9",
        "localhost",
        "LOCALHOST.:1",
        "Relay.Example.org",
    ],
)
def test_names_of_ours_pass(host: str | None) -> None:
    """Addresses, localhost and listed names, in any case, with a port or a last dot."""
    assert GATE.refusal(host, None) is None


@pytest.mark.trial
@pytest.mark.parametrize(
    "host",
    ["evil.example", "", " ", "a b", "127.0.0.1.evil.example", "localhost.evil", "[::1].evil",
     "user@127.0.0.1", "127.0.0.1:x", "127.0.0.1, evil", "relay.example.org.evil", "%6cocalhost"],
)  # fmt: skip
def test_names_that_are_not_ours_are_refused(host: str) -> None:
    """With the name in the reason, whatever the origin says."""
    for origin in (None, f"http://{host}", "https://chat.example.org"):
        refusal = GATE.refusal(host, origin)
        assert refusal is not None
        assert refusal.where == "Host"
        assert host_name(host) in refusal.why


@pytest.mark.trial
@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1", "null"),
        ("127.0.0.1", ""),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "file://127.0.0.1"),
        ("127.0.0.1", "http://127.0.0.1.evil"),
        ("127.0.0.1:1", "http://127.0.0.1:2"),
        ("127.0.0.1:80", "https://127.0.0.1"),
        ("localhost", "http://127.0.0.1"),
        ("relay.example.org", "https://chat.example.org.evil"),
        ("relay.example.org", "http://chat.example.org"),
        ("relay.example.org", "https://chat.example.org:444"),
        ("relay.example.org", "https://chat.example.org, https://evil.example"),
        (None, "http://127.0.0.1"),
    ],
)
def test_origins_that_are_not_ours_are_refused(host: str | None, origin: str) -> None:
    """Another site, port or scheme, none at all, and any when nobody says who we are."""
    refusal = GATE.refusal(host, origin)
    assert refusal is not None
    assert refusal.where == "Origin"


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:9643", "http://127.0.0.1:9643"),
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("relay.example.org:443", "https://relay.example.org"),
        ("RELAY.example.org", "https://relay.EXAMPLE.org"),
        ("localhost", "https://chat.example.org"),
    ],
)
def test_our_pages_and_listed_ones_pass(host: str, origin: str) -> None:
    """A default port may be said or not."""
    assert GATE.refusal(host, origin) is None


def test_a_listener_of_tls_has_pages_of_https_only() -> None:
    """In the clear the same name is another origin."""
    gate = BrowserGate(tls=True)

    assert gate.refusal("localhost", "https://localhost") is None
    assert gate.refusal("localhost", "http://localhost") is not None


def test_a_listed_origin_may_read() -> None:
    """As it is listed, and no other."""
    assert GATE.allows("https://chat.example.org")
    assert not GATE.allows("https://relay.example.org")
