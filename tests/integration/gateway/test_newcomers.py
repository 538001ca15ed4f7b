"""Connections that send no request, or read no answer, take no places from those who do."""

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from luxrelay.bus import SigningKey
from luxrelay.client import LaneSigner

from .conftest import PARENT, Stand, now_ms

pytestmark = [pytest.mark.slow, pytest.mark.trial]
Maker = Callable[..., Stand]
ASK = b"GET /v1/limits HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SOCKET = (
    b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
PING = b"\x81\x8f\x00\x00\x00\x00" + b'{"type":"ping"}'
SMALL = {"connections_max": 64, "connections_per_address_max": 16, "newcomers_max": 32}


def connect(stand: Stand, source: str = "127.0.0.1", *, admin: bool = False) -> socket.socket:
    """Return a plain connection from an address of this machine."""
    host, _, port = (stand.admin_address if admin else stand.address).rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0))


def over(stream: socket.socket) -> bool:
    """Return whether the other side ends the connection; what comes before is dropped."""
    try:
        while stream.recv(65_536):
            pass
    except ConnectionError:
        pass
    return True


def answered(stream: socket.socket, request: bytes = ASK + b"\r\n") -> bytes:
    """Return the status of the answer to a request; empty when there is none."""
    try:
        stream.sendall(request)
        return stream.recv(65_536)[9:12]
    except ConnectionError:
        return b""


@pytest.mark.parametrize("begin", [b"", b"G", ASK], ids=["silent", "a byte", "half a head"])
@pytest.mark.parametrize("admin", [False, True], ids=["public", "admin"])
def test_connections_without_a_request_keep_nobody_out(
    stand_with: Maker, eventually: Callable[..., Any], begin: bytes, *, admin: bool
) -> None:
    """Hundreds from many addresses; whoever asks is answered, and sockets go on."""
    stand = stand_with(**SMALL, first_byte_ms=600_000, request_ms=600_000, idle_ms=600_000)
    token = f"Authorization: Bearer {stand.token('read', 'admin')}\r\n".encode()
    with ExitStack() as stack:
        follower = stack.enter_context(connect(stand))
        assert answered(follower, SOCKET + token + b"\r\n") == b"101"
        for network in range(16):
            for number in range(16):
                held = stack.enter_context(connect(stand, f"127.{network + 3}.0.1", admin=admin))
                held.sendall(begin)
                if number % 8 == 0:
                    with connect(stand, "127.200.0.1", admin=admin) as honest:
                        request = ASK.replace(b"/v1/limits", b"/openapi.json") + b"\r\n"
                        assert answered(honest, request) == b"200"
        server = stand.service.admin if admin else stand.service.public
        eventually(lambda: server.counters.crowded >= 16 * 16 - 64)  # they are taken at a pace
        eventually(lambda: server.counters.open <= 64)
        follower.sendall(PING)
        assert b"pong" in follower.recv(4096)


def test_connections_that_were_answered_and_wait_give_way(stand_with: Maker) -> None:
    """Kept alive from every address to its limit; a newcomer is answered, a token holder stays."""
    stand = stand_with(**SMALL, idle_ms=600_000)
    token = f"Authorization: Bearer {stand.token('read')}\r\n".encode()
    with ExitStack() as stack:
        holder = stack.enter_context(connect(stand))
        assert answered(holder, ASK + token + b"\r\n") == b"200"
        for network in range(8):
            for _ in range(16):
                held = stack.enter_context(connect(stand, f"127.{network + 3}.0.1"))
                assert answered(held) == b"200"
        assert stand.service.public.counters.refused == 0
        assert answered(holder, ASK + token + b"\r\n") == b"200"


def test_readers_that_take_nothing_give_way(
    stand_with: Maker, eventually: Callable[..., Any]
) -> None:
    """Each asks for a long answer from an address of its own and leaves it unread."""
    stand = stand_with(
        connections_max=8,
        stall_ms=600_000,
        page_bytes_max=16 * 1024 * 1024,
        answers_bytes_max=1024 * 1024 * 1024,  # what is unread has a bound of its own
    )
    signer = LaneSigner(SigningKey.generate(), PARENT)
    stand.publish([signer.sign(os.urandom(2_000_000), now_ms()) for _ in range(4)])
    path = f"GET /v1/namespaces/{signer.namespace_id.hex()}/messages HTTP/1.1\r\n"
    with ExitStack() as stack:
        for network in range(8):
            held = stack.enter_context(connect(stand, f"127.{network + 3}.0.1"))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            held.sendall(path.encode() + b"Host: 127.0.0.1\r\n\r\n")
            eventually(lambda n=network: len(stand.service.public._seats.busy) == n + 1)
        with connect(stand, "127.200.0.1") as honest:
            assert answered(honest) == b"200"
    assert stand.service.public.counters.crowded == 1


def test_a_connection_that_says_nothing_is_closed_within_seconds(stand_with: Maker) -> None:
    """`first_byte_ms` for the first byte; `idle_ms` only between two requests."""
    stand = stand_with(first_byte_ms=200, idle_ms=600_000)
    with connect(stand) as silent, connect(stand) as waits:
        assert answered(waits) == b"200"
        assert over(silent)
        assert answered(waits) == b"200"


def test_a_head_that_drips_has_an_end(stand_with: Maker) -> None:
    """However often a byte comes, the whole head has `request_ms`."""
    stand = stand_with(request_ms=500, first_byte_ms=600_000, idle_ms=600_000)
    with connect(stand) as drips, connect(stand) as again:
        assert answered(again) == b"200"
        for stream in (drips, again):
            stream.sendall(ASK + b"X: ")
            stream.settimeout(0.05)
            received = b""
            while not received:
                try:
                    stream.sendall(b"a")
                    received = stream.recv(4096)
                except TimeoutError:
                    continue
            assert received.startswith(b"HTTP/1.1 408 ")
