"""A read of what strangers send to the gateway is paid for, however little comes with it."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from tests.integration.gateway.test_handshake_cost import charged_us

from luxrelay.node.gateway.server import FREE_READS, PAUSE_S, PaidReads
from luxrelay.sync.cost import Price

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

PIECES = 60
HEAD = b"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n"
UPGRADE = HEAD.replace(b"status", b"stream") + (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def unread(port: int) -> int:
    """Return the bytes that a listener of this machine has not read from a client's port."""
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, _, queues, *_ = row.split()
        if int(remote.rpartition(":")[2], 16) == port:
            return int(queues.partition(":")[2], 16)
    raise AssertionError(port)


@contextlib.contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    """Connect from an address of a stranger."""
    host, _, port = address.rpartition(":")
    source = ("127.66.0.1", 0)
    with socket.create_connection((host, int(port)), timeout=60, source_address=source) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield line


def hello() -> bytes:
    """Return the first bytes that a client says of TLS."""
    said = ssl.MemoryBIO()
    line = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        line.do_handshake()
    return said.read()


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells what is unread")
@pytest.mark.parametrize("door", ["head", "WebSocket", "TLS"])
def test_each_read_of_a_tiny_piece_is_charged(
    new_node: Callable[[str], NodeProcess],
    certificate: tuple[str, str],
    eventually: Callable[..., Any],
    door: str,
) -> None:
    """A byte is sent when the one before was read: of a head, a long message, a record of TLS."""
    node = new_node("paid")
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    if door == "TLS":
        keys = {"tls_certificate": certificate[0], "tls_key": certificate[1]}
        node.sections["gateway"] |= keys
    place = node.start()
    with connected(str(place.gateway)) as line:
        port = line.getsockname()[1]
        if door == "WebSocket":
            line.sendall(UPGRADE)
            assert line.recv(4096).startswith(b"HTTP/1.1 101")
            line.sendall(b"\x81\xff" + (1 << 20).to_bytes(8) + bytes(4))
        elif door == "head":
            line.sendall(HEAD + b"X: ")
        eventually(lambda: not unread(port))
        before = charged_us(place.http)
        for piece in (hello() if door == "TLS" else bytes(b"x" * PIECES))[:PIECES]:
            line.sendall(bytes([piece]))
            eventually(lambda: not unread(port))
    eventually(lambda: charged_us(place.http) - before >= PIECES * Price.READ, 30)


class _Raw:
    """A socket that always has a byte."""

    async def receive_some(self, _: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return b"x"


@pytest.mark.parametrize(("price_s", "wait_s"), [(0.5, 0.5 * (FREE_READS + 1)), (1e-6, PAUSE_S)])
def test_further_reads_of_a_request_wait_while_their_payer_owes(
    price_s: float, wait_s: float
) -> None:
    """The first do not, so that a token can be shown; a short debt still lasts a pause."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    owed = [0.0]

    def paid(count: int) -> float:
        owed[0] = max(owed[0], clock.current_time()) + count * price_s
        return owed[0] - clock.current_time()

    async def read() -> list[float]:
        reads = PaidReads(_Raw())  # type: ignore[arg-type]  # as much of a socket as is read
        took = []
        for _ in range(2):
            reads.begin(paid)
            for count in (FREE_READS, 1):
                began = trio.current_time()
                for _ in range(count):
                    await reads.receive_some(1)
                took.append(trio.current_time() - began)
        return took

    at_once, waited, again, waited_again = trio.run(read, clock=clock)
    assert at_once == again == 0.0
    assert waited == pytest.approx(wait_s)
    assert waited_again == pytest.approx(waited)
