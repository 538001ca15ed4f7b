"""The pages for operators."""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator

import pytest

from luxrelay.errors import NodeError
from luxrelay.node.observe import Observer, ObserverConfig, Views

CONFIG = ObserverConfig(listen="127.0.0.1:0", stranger_burst_ms=60_000)


@pytest.fixture
def observer() -> Iterator[Observer]:
    """A listener on a port of the system's choice."""
    views = Views(
        metrics=lambda: b"relay_peer_count 2\n",
        healthy=lambda: (False, {"ready": False, "fault": "disk full"}),
        status=lambda: {"name": "relay-1"},
    )
    observer = Observer(CONFIG, views)
    yield observer
    observer.stop()


def get(observer: Observer, path: str) -> tuple[int, bytes]:
    """Return status and body of one page."""
    connection = http.client.HTTPConnection(observer.address, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_pages(observer: Observer) -> None:
    """Metrics as text, status as JSON, an unhealthy node as 503, another page as 404."""
    assert get(observer, "/metrics") == (200, b"relay_peer_count 2\n")
    assert json.loads(get(observer, "/status?x=1")[1]) == {"name": "relay-1"}
    status, body = get(observer, "/healthz")
    assert (status, json.loads(body)["fault"]) == (503, "disk full")
    assert get(observer, "/etc/passwd")[0] == 404


def test_garbage_leaves_it_alive(observer: Observer) -> None:
    """Bytes that are no request are answered or dropped, and the next request is served."""
    host, _, port = observer.address.rpartition(":")
    for garbage in (b"\x00" * 4096 + b"\r\n\r\n", b"GET\r\n\r\n", b"PUT / HTTP/1.1\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=5) as client:
            client.sendall(garbage)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass

    assert get(observer, "/metrics")[0] == 200


def test_clients_are_bounded(observer: Observer) -> None:
    """With every place taken by a silent client the oldest makes room, and one more is answered."""
    host, _, port = observer.address.rpartition(":")
    silent = [
        socket.create_connection((host, int(port)), timeout=30) for _ in range(CONFIG.clients_max)
    ]
    try:
        with socket.create_connection((host, int(port)), timeout=30) as extra:
            extra.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert extra.recv(12) == b"HTTP/1.0 200"
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""
    finally:
        for client in silent:
            client.close()


@pytest.mark.trial
@pytest.mark.parametrize("header", ["Host: evil.example", "Origin: https://evil.example"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "BREW"])
def test_pages_of_other_sites_are_refused(observer: Observer, method: str, header: str) -> None:
    """Whatever the method; the answer says why, and which key to set."""
    host, _, port = observer.address.rpartition(":")
    own = "" if header.startswith("Host") else "Host: 127.0.0.1\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(f"{method} /status HTTP/1.1\r\n{own}{header}\r\n\r\n".encode())
        answer = client.makefile("rb").read()

    assert answer.startswith(b"HTTP/1.0 403 ")
    assert b"evil.example" in answer
    assert b"hint" in answer


def test_occupied_port_is_one_clear_line(observer: Observer) -> None:
    """A port that is taken is named, with what to do."""
    views = Views(metrics=bytes, healthy=lambda: (True, {}), status=dict)
    with pytest.raises(NodeError) as caught:
        Observer(ObserverConfig(listen=observer.address), views)

    assert observer.address in str(caught.value)
    assert caught.value.code == "node.port"
