"""Ports that keep whoever asks them waiting, each in its own way."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

END_S = 20
"""Seconds in which a thread of a port that was closed has ended."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def h2_frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """Return a frame of HTTP/2."""
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


SETTINGS = h2_frame(4)
GOAWAY = h2_frame(7, struct.pack(">II", 2**31 - 1, 0))
HEADERS = h2_frame(  # :status 200, content-type application/grpc, and then no word
    1, b"\x88\x5f\x10application/grpc", flags=4, stream=1
)


class Taking:
    """Takes what comes to a port until it is closed; then no connection is open, not the last one.

    A thread that waits in ``accept`` takes one more connection when the port is only closed. So
    the port is shut down first, which ends the wait; what was taken is closed after it.
    """

    def __init__(self, port: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        """``serve`` has each connection, in its own thread; its ``OSError`` ends nothing else."""
        self._port, self._serve = port, serve
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._taking = threading.Thread(target=self._run, daemon=True)
        self._taking.start()

    @property
    def taken(self) -> int:
        """Connections that came."""
        return len(self._threads)

    def keep(self, end: socket.socket) -> socket.socket:
        """Close this one as well at the end."""
        self._open.append(end)
        return end

    def left_open(self) -> int:
        """Return how many ends are open, threads that serve among them."""
        ends = sum(end.fileno() >= 0 for end in (self._port, *self._open))
        return ends + sum(each.is_alive() for each in (self._taking, *self._threads))

    def close(self) -> None:
        """Let everything go, and wait for the threads."""
        shut(self._port)
        self._taking.join(END_S)
        ended = 0
        while ended < len(self._threads):  # one that serves may keep a further end meanwhile
            for end in self._open:
                shut(end)
            self._threads[ended].join(END_S)
            ended += 1
        for end in self._open:
            shut(end)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self.keep(self._port.accept()[0])
                thread = threading.Thread(target=self._have, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _have(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._serve(client)


def shut(end: socket.socket) -> None:
    """Close a socket, also under a thread that waits at it."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


class Listener:
    """A port that takes connections, says what it is told to, and then nothing."""

    def __init__(
        self, says: Callable[[bytes], bytes], *, backlog: int = 16, takes: bool = True
    ) -> None:
        """Listen on a free port; ``says`` answers each chunk that comes."""
        self._says = says
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._full: list[socket.socket] = []
        self._taking = Taking(self._listener, self._serve) if takes else None
        if not takes:  # a full backlog: a further SYN is dropped, as behind a black hole
            for _ in range(backlog + 8):
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex(self._listener.getsockname())
                self._full.append(client)

    @property
    def taken(self) -> int:
        """Connections that came."""
        return self._taking.taken if self._taking else 0

    def _serve(self, client: socket.socket) -> None:
        client.sendall(self._says(b""))
        while data := client.recv(65_536):
            client.sendall(self._says(data))

    def close(self) -> None:
        """Let everything go."""
        if self._taking:
            self._taking.close()
        for end in (self._listener, *self._full):
            shut(end)


def on_headers(answer: bytes) -> Callable[[bytes], bytes]:
    """Return what speaks HTTP/2 until a call comes, and answers it with ``answer``."""
    said: list[bool] = []

    def says(data: bytes) -> bytes:
        if not data:
            return SETTINGS
        if len(data) > len(PREFACE) + 64 and not said:
            said.append(True)
            return answer
        return b""

    return says


PEERS: dict[str, Callable[[], Listener]] = {
    "silence": lambda: Listener(lambda _: b""),
    "a black hole": lambda: Listener(lambda _: b"", backlog=1, takes=False),
    "settings and then nothing": lambda: Listener(lambda data: b"" if data else SETTINGS),
    "a call without an answer": lambda: Listener(on_headers(HEADERS)),
    "goaway and then nothing": lambda: Listener(on_headers(GOAWAY)),
    "headers and goaway": lambda: Listener(on_headers(HEADERS + GOAWAY)),
    "another protocol": lambda: Listener(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n"),
}


class Dripping(Listener):
    """A port that answers what it is told to, then adds a byte every so often, for ever."""

    def __init__(self, begin: bytes, more: bytes = b"a", every_s: float = 0.2) -> None:
        """Add ``more`` behind ``begin``."""
        self._begin, self._more, self._every_s = begin, more, every_s
        self._over = threading.Event()
        super().__init__(lambda _: b"")

    def _serve(self, client: socket.socket) -> None:
        client.sendall(self._begin)
        while not self._over.wait(self._every_s):
            client.sendall(self._more)

    def close(self) -> None:
        """Let everything go."""
        self._over.set()
        super().close()


class WebSockets(Dripping):
    """A port that takes every WebSocket, then sends the same frame for ever, or nothing."""

    def _serve(self, client: socket.socket) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked and (data := client.recv(65_536)):
            asked += data
        key = re.search(rb"(?i)sec-websocket-key: *([^\r\n]+)", asked)
        if key is None:
            return
        accept = base64.b64encode(hashlib.sha1(key[1] + _MAGIC, usedforsecurity=False).digest())
        self._begin = (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        super()._serve(client)


class Encrypted(Listener):
    """A port that speaks TLS, and says nothing in it."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Show the certificate."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        super().__init__(lambda _: b"")

    def _serve(self, client: socket.socket) -> None:
        with self._context.wrap_socket(
            client, server_side=True, do_handshake_on_connect=False
        ) as inside:
            assert self._taking is not None
            self._taking.keep(inside)
            inside.do_handshake()
            while inside.recv(65_536):
                pass


_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
GATEWAYS: dict[str, Callable[[], Listener]] = {
    "silence": PEERS["silence"],
    "a black hole": PEERS["a black hole"],
    "a head that drips": lambda: Dripping(b"HTTP/1.1 200 OK\r\nX: "),
    "a body that drips": lambda: Dripping(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n"
    ),
    "interim answers that drip": lambda: Dripping(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "garbage": lambda: Listener(lambda data: b"" if data else b"\x00\xff\x13\x37" * 64),
    "HTTP/2": PEERS["settings and then nothing"],
    "a WebSocket without a word": lambda: WebSockets(b"", b""),
    "a WebSocket of pings": lambda: WebSockets(b"", b"\x89\x00"),
    "a WebSocket whose frame drips": lambda: WebSockets(b"", b"\x02\x7e\xff\xff"),
}
"""Ports in a gateway's place."""
RELAYS: dict[str, Callable[[], Listener]] = {
    **PEERS,
    "bytes that drip": lambda: Dripping(SETTINGS, b"\x00"),
    "pings that drip": lambda: Dripping(SETTINGS, h2_frame(6, bytes(8), flags=1)),
    "garbage": GATEWAYS["garbage"],
}
"""Ports in a sync port's place."""


@contextlib.contextmanager
def opened(make: Callable[[], Listener]) -> Iterator[Listener]:
    """Yield a port; it is closed at the end."""
    port = make()
    try:
        yield port
    finally:
        port.close()
