"""The hello message: what goes in comes out, and nothing else is let in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import HelloError
from luxrelay.net.hello import HELLO_MAX, Hello

OURS = Hello(network="testnet", roles=("relay", "light"), agent="a", record=b"\x00\xff", time_ms=5)


def message(**changes: Any) -> bytes:
    """Our hello with some keys changed."""
    return json.dumps({**json.loads(OURS.encode()), **changes}).encode()


def test_hello_comes_back() -> None:
    """Decoding what was encoded gives the same hello."""
    assert Hello.decode(OURS.encode()) == OURS


def test_pass_over_unknown_keys_and_missing_ones() -> None:
    """A later version may say more, a small peer less."""
    theirs = Hello.decode(b'{"version": 1, "network": "testnet", "colour": "blue"}')

    assert theirs == Hello(network="testnet", roles=(), frame_max=0)


@pytest.mark.parametrize(
    ("theirs", "word"),
    [
        (Hello(network="mainnet"), "mainnet"),
        (Hello(network="testnet", version=2), "version 2"),
    ],
)
def test_object_to_another_network_or_version(theirs: Hello, word: str) -> None:
    """Another network or version is objected to by name, our own is not (20-55)."""
    assert word in OURS.objection(theirs)
    assert OURS.objection(Hello(network="testnet")) == ""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"3",
        b"[" * HELLO_MAX,
        b" " * (HELLO_MAX + 1),
        message(version="1"),
        message(version=True),
        message(version=-1),
        message(version=2**53),
        message(network=""),
        message(network=3),
        message(network="x" * 65),
        message(agent="x" * 65),
        message(roles="relay"),
        message(roles=["relay"] * 9),
        message(roles=[3]),
        message(roles=["x" * 65]),
        message(limits=3),
        message(limits={"frame_max": "1"}),
        message(record=3),
        message(record="?"),
        message(record="A" * 10_000),
        message(proof="?"),
        message(proof="A" * 40_000),
        message(time_ms="1"),
        message(time_ms=-1),
        message(time_ms=2**53),
    ],
    ids=range(28),
)
def test_refuse_what_is_no_hello(data: bytes) -> None:
    """Each broken field is refused."""
    with pytest.raises(HelloError):
        Hello.decode(data)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_nothing_but_hello_errors(data: bytes) -> None:
    """Whatever the bytes are, only the one documented error is raised."""
    try:
        Hello.decode(data)
    except HelloError:
        return
