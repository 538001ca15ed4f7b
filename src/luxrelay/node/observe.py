"""The observation listener: /metrics, /healthz and /status over HTTP.

Read-only, for operators and their tools. Requests are answered from snapshots in a bounded number
of threads. A client has ``TIMEOUT_S`` for its whole request and as long again for the answer, by
however many bytes it comes; when all places are taken, the oldest that has not said what it wants
makes room, so that health is answered beside any number of slow clients. Pages of other sites are
kept out by the gate for browsers.

Source: LP-6490, LP-6491; user-10.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from typing import Any, Final

from luxrelay.errors import NodeError
from luxrelay.node.gate import Gate
from luxrelay.node.logs import log
from luxrelay.text import clean

TIMEOUT_S: Final = 5.0
"""Seconds a client may take for its whole request, and for reading the answer."""
CLIENTS_MAX: Final = 16
"""Connections at once; for a further one the oldest without a whole request makes room."""

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


_Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type and body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """What the listener shows; each is called for every request, from its thread."""

    metrics: Callable[[], bytes]
    """Prometheus text."""
    healthy: Callable[[], tuple[bool, dict[str, Any]]]
    """Whether the node works, and why not."""
    status: Callable[[], dict[str, Any]]
    """The state at a glance."""


class Observer:
    """Serves the three pages until it is stopped."""

    def __init__(self, listen: str, views: Views, hosts: Sequence[str] = ()) -> None:
        """Bind ``listen`` (``host:port``; port 0 takes a free one).

        Args:
            listen: Where it answers.
            views: What it shows.
            hosts: Names under which it may be asked, besides localhost and addresses.

        Raises:
            NodeError: the port cannot be had.

        """
        host, _, port = listen.rpartition(":")
        try:
            self._server = _Server((host.strip("[]"), int(port)), views, Gate(hosts))
        except (OSError, OverflowError) as error:
            raise NodeError(
                f"cannot open the HTTP port: {getattr(error, 'strerror', None) or error}",
                where=listen,
            ) from error
        self.address = f"{host}:{self._server.server_address[1]}"
        """Where it really listens."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="observe", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@dataclass(slots=True)
class _Place:
    """One client's connection."""

    client: socket
    until: float
    """When it is cut off, monotonic seconds."""
    asked: bool = False
    """Whether its whole request is there."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 4 * CLIENTS_MAX

    def __init__(self, address: tuple[str, int], views: Views, gate: Gate) -> None:
        super().__init__(address, _Handler)
        self.views = views
        self.gate = gate
        self._lock = threading.Lock()
        self._places: dict[int, _Place] = {}
        """Open connections by the id of their socket, the oldest first."""
        self.cut = 0
        """Clients that were cut off: too slow, or others wanted the place."""

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            room = len(self._places) < CLIENTS_MAX or self._make_room()
            if room:
                until = time.monotonic() + TIMEOUT_S
                self._places[id(request)] = _Place(request, until)
        if not room:
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._places.pop(id(request), None)

    def service_actions(self) -> None:
        """Cut off who has had its time; called several times a second."""
        with self._lock:
            now = time.monotonic()
            for number, place in list(self._places.items()):
                if place.until <= now:
                    self._cut(number)

    def answers(self, request: socket) -> None:
        """Note that a whole request is there: its place is safe until the answer is taken."""
        with self._lock:
            place = self._places.get(id(request))
            if place is not None:
                place.asked, place.until = True, time.monotonic() + TIMEOUT_S

    def _make_room(self) -> bool:
        for number, place in self._places.items():
            if not place.asked:
                self._cut(number)
                return True
        return False

    def _cut(self, number: int) -> None:
        """Let a client go; its thread finds the end of the stream and ends."""
        self.cut += 1
        with suppress(OSError):  # it went by itself
            self._places.pop(number).client.shutdown(SHUT_RDWR)

    def handle_error(self, request: socket | Any, client_address: Any) -> None:
        """Drop a client that broke off; its fault is not worth a traceback."""


class _Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT_S
    server: _Server
    server_version = "luxrelay"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one page."""
        self.server.answers(self.connection)
        strange = self.server.gate.refusal(self.headers.get("Host"))
        if strange:
            shown = {"error": f"the name {clean(strange, 80)!r} is not one of this node",
                     "hint": "add it to http.hosts"}  # fmt: skip
            self._reply(_as_json(HTTPStatus.FORBIDDEN, shown))
            return
        try:
            answer = self._page(self.path.partition("?")[0])
        except Exception as error:  # noqa: BLE001  a page that fails must not look empty
            log(logging.ERROR, "a page failed", path=self.path[:80], error=repr(error))
            answer = _as_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "see the node's log"})
        self._reply(answer)

    def _reply(self, answer: _Answer) -> None:
        status, kind, body = answer
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def _page(self, path: str) -> _Answer:
        views = self.server.views
        if path == "/metrics":
            return HTTPStatus.OK, _METRICS_TYPE, views.metrics()
        if path == "/healthz":
            healthy, body = views.healthy()
            return _as_json(HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE, body)
        if path == "/status":
            return _as_json(HTTPStatus.OK, views.status())
        pages = ["/healthz", "/metrics", "/status"]
        return _as_json(HTTPStatus.NOT_FOUND, {"error": "no such page", "pages": pages})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name there
        """Requests of monitors are not worth a line each."""


def _as_json(status: HTTPStatus, body: dict[str, Any]) -> _Answer:
    return status, "application/json", json.dumps(body, indent=1).encode() + b"\n"
