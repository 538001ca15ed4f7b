"""What a stranger or a page of another site does to the HTTP listeners ends its own connection."""

import base64
import contextlib
import itertools
import json
import os
import resource
import select
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import topic_namespace

ROOM = topic_namespace("/chat/1/room").hex()


class Door:
    """A running node and its HTTP listeners."""

    def __init__(self, node: Any) -> None:
        """Start it."""
        node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
        self.node = node
        self.runtime = node.start()

    def open(self, address: str) -> socket.socket:
        """Return a connection."""
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)), 30)

    def ask(self, address: str, *lines: bytes) -> bytes:
        """Return the answer to a GET with these lines, until the listener closes."""
        with self.open(address) as client:
            client.sendall(b"\r\n".join([*lines, b"Connection: close", b"", b""]))
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while data := client.recv(65_536):
                    answer += data
        return answer

    def websocket(self, *headers: bytes, path: bytes = b"/v1/stream") -> socket.socket:
        """Return a connection after the handshake's answer, which is kept in ``answer``."""
        client = self.open(self.runtime.gateway)
        key = base64.b64encode(os.urandom(16))
        upgrade = (b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 13")
        named = (
            headers
            if any(h.startswith(b"Host:") for h in headers)
            else (b"Host: 127.0.0.1", *headers)
        )
        lines = [b"GET " + path + b" HTTP/1.1", *named, *upgrade, b"Sec-WebSocket-Key: " + key]
        client.sendall(b"\r\n".join([*lines, b"", b""]))
        self.answer = client.recv(65_536)
        return client

    def serves(self) -> None:
        """Fail unless the gateway answers and no module failed."""
        answer = self.ask(self.runtime.gateway, b"GET /v1/limits HTTP/1.1", b"Host: 127.0.0.1")
        assert answer.startswith(b"HTTP/1.1 200 ")
        said = (self.node.folder / "log").read_text()
        assert "a module failed" not in said
        assert "Traceback" not in said


def frame(opcode: int, payload: bytes = b"", *, final: bool = True) -> bytes:
    """Return a masked frame of a WebSocket."""
    size = len(payload)
    head = bytes([0x80 * final | opcode, 0x80 | (min(126, size))])
    return head + (b"" if size < 126 else struct.pack(">H", size)) + bytes(4) + payload


@pytest.fixture
def door(new_node: Callable[[str], Any]) -> Door:
    """A running node."""
    return Door(new_node("relay"))


def subscribe(**members: Any) -> bytes:
    """Return a subscription with these members in place of good ones."""
    wanted = {"type": "subscribe", "namespaces": [ROOM], **members}
    return frame(1, json.dumps(wanted).encode())


CLOSE = frame(8, struct.pack(">H", 1000))
SEQUENCES = {
    "ping and close in one segment": frame(9, b"x") + CLOSE,
    "ten pings and close": frame(9, b"x") * 10 + CLOSE + frame(9, b"x"),
    "close twice": CLOSE + CLOSE,
    "message behind close": CLOSE + frame(1, b"{}"),
    "close of one byte": frame(8, b"x"),
    "close with a code that is none": frame(8, struct.pack(">H", 1005)),
    "format is a list": subscribe(format=[]),
    "format is an object": subscribe(format={}),
    "type is a list": frame(1, b'{"type":[]}'),
    "a lone surrogate in a name": frame(1, b'{"type":"subscribe","\\ud800":1}'),
    "a lone surrogate in a value": subscribe(positions={ROOM: "\ud800"}),
    "a lone surrogate as a namespace": subscribe(namespaces=["\ud800"]),
    "positions is a list": subscribe(positions=[1]),
    "lanes is a number": subscribe(lanes=10**400),
    "after is nested": subscribe(after=[[[]]]),
    "deep": frame(1, b"[" * 10_000),
    "not UTF-8": frame(1, b"\xff\xfe"),
    "an unknown opcode": frame(3, b"x"),
    "a fragment of nothing": frame(0, b"x"),
    "a publish of nothing": frame(1, b'{"type":"publish","messages":[null],"id":"\\udfff"}'),
    "bytes that are no messages": frame(2, os.urandom(100)),
}


@pytest.mark.trial
def test_what_a_websocket_sends_ends_its_own_session(door: Door) -> None:
    """Each sequence has a close, a problem or the end, and the gateway goes on."""
    for name, sequence in SEQUENCES.items():
        for _ in range(2):
            with door.websocket() as client:
                assert door.answer.startswith(b"HTTP/1.1 101 "), name
                client.sendall(sequence)
                with contextlib.suppress(ConnectionResetError):
                    client.recv(65_536)
        door.serves()


@pytest.mark.trial
def test_a_page_of_another_name_opens_no_websocket(door: Door) -> None:
    """DNS rebinding: Host and Origin agree, and neither is a name of this node."""
    hosts = [b"evil.example", b"EVIL.example:80", b"127.0.0.1.evil.example", b"localhost.evil."]
    paths = [b"/v1/stream", b"/v1/stream?namespace=" + ROOM.encode(), b"/dashboard/live"]
    for host, path in itertools.product(hosts, paths):
        with door.websocket(b"Host: " + host, b"Origin: http://" + host, path=path):
            assert door.answer.startswith(b"HTTP/1.1 403 "), door.answer[:100]


@pytest.mark.trial
def test_a_page_of_another_name_reads_nothing(door: Door) -> None:
    """The same on every listener that speaks HTTP, whether the path needs a scope or not."""
    for address, paths in (
        (door.runtime.gateway, (b"/v1/limits", b"/v1/status", b"/dashboard/", b"/healthz")),
        (door.runtime.http, (b"/metrics", b"/status", b"/healthz")),
    ):
        for path in paths:
            strange = door.ask(address, b"GET " + path + b" HTTP/1.1", b"Host: evil.example")
            assert strange.split(b" ", 2)[1] in (b"403", b"404"), (path, strange[:80])
            assert b"namespaces" not in strange
    admin = door.ask(door.runtime.admin, b"GET /admin/v1/tokens HTTP/1.1", b"Host: evil.example")
    assert admin.split(b" ", 2)[1] in (b"401", b"403")
    for name in (b"localhost", b"LOCALHOST.", b"[::1]:9", b"127.0.0.1:1"):
        known = door.ask(door.runtime.http, b"GET /healthz HTTP/1.1", b"Host: " + name)
        assert known.split(b" ", 2)[1] == b"200", (name, known)


@pytest.mark.trial
def test_slow_clients_leave_places_for_health(door: Door) -> None:
    """Forty clients that send a byte of a header now and then take no place from /healthz."""
    begin = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
    slow: list[socket.socket] = []
    try:
        for _ in range(40):
            client = door.open(door.runtime.http)
            client.sendall(begin)
            slow.append(client)
        for _ in range(20):
            for client in slow:
                with contextlib.suppress(OSError):
                    client.send(b"a")
            health = door.ask(door.runtime.http, b"GET /healthz HTTP/1.1", b"Host: 127.0.0.1")
            assert health.split(b" ", 2)[1] == b"200"
    finally:
        for client in slow:
            client.close()


@pytest.mark.trial
def test_a_request_of_the_pages_has_an_end(door: Door) -> None:
    """A client that drips is cut off although each of its bytes came in time."""
    with door.open(door.runtime.http) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        until = time.monotonic() + 60
        over = False
        while not over:
            assert time.monotonic() < until
            try:
                client.send(b"a")
            except OSError:
                break
            readable, _, _ = select.select([client], [], [], 0.2)
            over = bool(readable)


def descriptors(pid: int) -> int:
    """Return how many a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.trial
@pytest.mark.parametrize("listener", ["gateway", "admin", "http"])
def test_want_of_descriptors_ends_no_listener(
    door: Door, eventually: Callable[..., Any], listener: str
) -> None:
    """Connections beyond RLIMIT_NOFILE: told once, health answers beside them and after them."""
    pid = door.runtime.pid
    address = getattr(door.runtime, listener)
    log = door.node.folder / "log"
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)

    def told() -> int:
        lines = [json.loads(line) for line in log.read_text().splitlines() if '"accept"' in line]
        return sum(line["event"] == "failure contained" for line in lines)

    held: list[socket.socket] = []
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid) + 8, hard))
    try:
        while not told():
            assert len(held) < 400
            held.append(door.open(address))
            if len(held) > 12:
                time.sleep(0.02)  # the node notices when it accepts; nothing else can be awaited
        health = door.ask(door.runtime.http, b"GET /healthz HTTP/1.1", b"Host: 127.0.0.1")
        assert health.split(b" ", 2)[1] == b"200", health
    finally:
        for client in held:
            client.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    def answers() -> bool:
        health = door.ask(door.runtime.http, b"GET /healthz HTTP/1.1", b"Host: 127.0.0.1")
        return health.split(b" ", 2)[1] == b"200"

    eventually(answers)
    door.serves()
    assert told() <= 2
    assert door.node.process.poll() is None
