"""The gate for browsers stands before every route of every listener that speaks HTTP."""

import re
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from luxrelay.archive.loopback import LoopbackServer
from luxrelay.node.observe import Observer, ObserverConfig, Views

from .conftest import Stand

pytestmark = [pytest.mark.slow, pytest.mark.trial]
Maker = Callable[..., Stand]
SOURCES = Path(__file__).resolve().parents[3] / "src" / "luxrelay"
UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
LISTED = b"https://chat.example.org"
STRANGE = {
    "another name": (b"evil.example", b""),
    "a name that begins as ours": (b"127.0.0.1.evil.example", b""),
    "a name that ends as ours": (b"evil-localhost:1", b""),
    "a bound name with its own origin": (b"evil.example", b"http://evil.example"),
    "a bound name with a listed origin": (b"evil.example", LISTED),
    "no name": (b"", b""),
    "a site": (b"127.0.0.1", b"https://evil.example"),
    "a site with our name inside": (b"127.0.0.1", b"http://127.0.0.1.evil.example"),
    "no site": (b"127.0.0.1", b"null"),
    "another port": (b"127.0.0.1:9643", b"http://127.0.0.1:9999"),
    "a listed one in another scheme": (b"127.0.0.1", b"http://chat.example.org"),
    "a listed one beside another": (b"127.0.0.1", LISTED + b", https://evil.example"),
    "a file": (b"127.0.0.1", b"file://"),
}


class Listener:
    """One listener, its routes, and a token that it takes."""

    def __init__(self, address: str, routes: list[tuple[str, str]], token: str = "") -> None:
        host, _, port = address.rpartition(":")
        self.address = host, int(port)
        self.routes = routes
        self.token = f"Authorization: Bearer {token}\r\n".encode() if token else b""

    def ask(self, method: str, path: str, *lines: bytes) -> bytes:
        """Return what is answered."""
        request = f"{method} {path} HTTP/1.1\r\n".encode() + b"".join(lines) + b"\r\n"
        with socket.create_connection(self.address, 60) as stream:
            stream.sendall(request)
            received = b""
            while b"\r\n\r\n" not in received and (part := stream.recv(65_536)):
                received += part
            length = re.search(rb"Content-Length: (\d+)", received)
            wanted = int(length[1]) if length and method != "HEAD" else 0
            while len(received.partition(b"\r\n\r\n")[2]) < wanted:
                received += stream.recv(65_536)
        return received


def described(stand: Stand, *, admin: bool) -> Listener:
    """Return a listener of the gateway with the routes that its own description lists."""
    paths = stand.fetch("/openapi.json", admin=admin).json["paths"]
    routes = [
        (method.upper(), re.sub(r"\{[^}]*\}", "00", path))
        for path, methods in paths.items()
        for method in methods
        if method in {"get", "post", "put", "delete", "patch"}
    ]
    assert len(routes) > 5
    address = stand.admin_address if admin else stand.address
    return Listener(address, routes, stand.token("read", "publish", "admin"))


@pytest.fixture
def listeners(stand_with: Maker) -> Iterator[dict[str, Listener]]:
    """Every listener that speaks HTTP, as the node and the archive start them."""
    stand = stand_with(anonymous="anybody", cors_origins=(LISTED.decode(),))
    views = Views(metrics=lambda: b"x 1\n", healthy=lambda: (True, {}), status=lambda: {"a": 1})
    observer = Observer(ObserverConfig(listen="127.0.0.1:0"), views)
    with LoopbackServer(
        lambda _: (200, "text/plain", b"secret"),
        0,
        busy=(503, "text/plain", b"busy"),
        calls_max=4,
        timeout_s=60,
    ) as archive:
        pages = [("GET", path) for path in ("/metrics", "/healthz", "/status", "/nothing")]
        yield {
            "gateway": described(stand, admin=False),
            "admin": described(stand, admin=True),
            "pages": Listener(observer.address, pages),
            "archive": Listener(f"127.0.0.1:{archive.port}", [("GET", "/v1/messages")]),
        }
    observer.stop()


@pytest.mark.parametrize("name", ["gateway", "admin", "pages", "archive"])
def test_no_route_answers_another_sites_page(listeners: dict[str, Listener], name: str) -> None:
    """Wrong Host and foreign Origin are 403 with the reason, whatever the method and the token."""
    listener = listeners[name]
    routes = {*listener.routes, ("GET", "/no/such/path")}
    routes |= {(m, path) for _, path in listener.routes for m in ("HEAD", "OPTIONS", "PUT")}
    for kind, (host, origin) in STRANGE.items():
        lines = [b"Host: " + host + b"\r\n"]
        if origin:
            lines.append(b"Origin: " + origin + b"\r\n")
        for method, path in sorted(routes):
            for more in {b"", listener.token, UPGRADE + listener.token}:
                answer = listener.ask(method, path, *lines, more)
                told = (name, kind, method, path, answer[:300])
                assert answer[9:12] == b"403", told
                assert b"secret" not in answer, told
                if method != "HEAD":
                    assert b"is not one of this node" in answer or b"another origin" in answer, told
                assert b"Access-Control-Allow-Origin: *" not in answer, told


@pytest.mark.parametrize("name", ["gateway", "admin", "pages", "archive"])
def test_every_route_answers_a_page_of_ours(listeners: dict[str, Listener], name: str) -> None:
    """The same requests under names of ours, without an origin or with ours, pass the gate."""
    listener = listeners[name]
    for host in (b"127.0.0.1", b"LOCALHOST.", b"[::1]:9643", b"192.0.2.1:80"):
        for lines in ((), (b"Origin: http://" + host.removesuffix(b":80").lower() + b"\r\n",)):
            for method, path in listener.routes:
                answer = listener.ask(
                    method, path, b"Host: " + host + b"\r\n", *lines, listener.token
                )
                assert answer[9:12] != b"403", (name, host, lines, method, path, answer[:300])


def test_a_listed_site_may_call_the_gateway(listeners: dict[str, Listener]) -> None:
    """It gets the headers with which a browser lets its pages read."""
    for name in ("gateway", "admin"):
        answer = listeners[name].ask(
            "GET", "/openapi.json", b"Host: 127.0.0.1\r\n", b"Origin: " + LISTED + b"\r\n"
        )
        assert answer[9:12] == b"200"
        assert b"Access-Control-Allow-Origin: " + LISTED in answer


def test_with_tls_a_page_of_ours_is_of_https(
    stand_with: Maker, certificate: tuple[str, str]
) -> None:
    """A page of the same name in the clear is of another origin; a proxy's name is not believed."""
    stand = stand_with(tls_certificate=certificate[0], tls_key=certificate[1])
    context = ssl.create_default_context(cafile=certificate[0])
    host, _, port = stand.address.rpartition(":")

    def status(*headers: str) -> int:
        lines = "".join(f"{each}\r\n" for each in headers)
        with (
            socket.create_connection((host, int(port)), 60) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as stream,
        ):
            stream.sendall(f"GET /v1/limits HTTP/1.1\r\n{lines}\r\n".encode())
            return int(stream.recv(4096)[9:12])

    assert status("Host: localhost", "Origin: https://localhost") == 200
    assert status("Host: localhost", "Origin: http://localhost") == 403


def test_what_a_proxy_says_the_name_was_is_not_believed(stand_with: Maker) -> None:
    """`X-Forwarded-Host` and `Forwarded` open and close nothing, from a trusted proxy either."""
    stand = stand_with(trusted_proxies=("127.0.0.0/8",), hosts=("relay.example.org",))
    for header in ("X-Forwarded-Host", "X-Host", "X-Original-Host", "Forwarded"):
        for name in ("relay.example.org", "evil.example"):
            value = f"for=192.0.2.1;host={name}" if header == "Forwarded" else name
            sent: dict[str, Any] = {header: value}
            assert stand.fetch("/v1/limits", Host="evil.example", **sent).status == 403
            assert stand.fetch("/v1/limits", Host="relay.example.org", **sent).status == 200


def test_two_names_or_origins_are_none(listeners: dict[str, Listener]) -> None:
    """Repeated headers are refused, whichever of them is ours."""
    own, evil = b"Host: 127.0.0.1\r\n", b"Host: evil.example\r\n"
    for name, listener in listeners.items():
        method, path = next(route for route in listener.routes if route[0] == "GET")
        for lines in (
            (own, evil),
            (evil, own),
            (own, b"Origin: http://127.0.0.1\r\nOrigin: https://evil.example\r\n"),
            (own, b"Origin: https://evil.example\r\nOrigin: http://127.0.0.1\r\n"),
        ):
            status = listener.ask(method, path, *lines)[9:12]
            assert status in {b"400", b"403"}, (name, lines)


def test_only_two_modules_open_http_listeners() -> None:
    """A further one would have to ask the gate, and stand in the table above."""
    found = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if re.search(r"http\.server|h11\.SERVER|wsgiref|start_http_server|socketserver",
                     path.read_text())
    }  # fmt: skip
    assert found == {"pages.py", "node/gateway/server.py"}


def test_what_is_refused_costs_its_address_a_request(stand_with: Maker) -> None:
    """Wrong names, paths, methods and queries are counted like any other request."""
    for path, headers in (
        ("/v1/limits", {"Host": "evil.example"}),
        ("/v1/limits", {"Origin": "https://evil.example"}),
        ("/no/such/path", {}),
        ("/v1/limits?a=1&a=2", {}),
        ("/v1/limits", {"Authorization": "Basic x"}),
    ):
        stand = stand_with(requests_per_s=2)
        statuses = [stand.fetch(path, **headers).status for _ in range(14)]
        assert 429 in statuses, (path, headers)
