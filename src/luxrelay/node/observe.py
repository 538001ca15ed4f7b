"""The observation listener: /metrics, /healthz and /status over HTTP.

Read-only, for operators and their tools. Requests are answered from snapshots in a bounded number
of threads; a client that says nothing is cut off after ``TIMEOUT_S``.

Source: LP-6490, LP-6491; what users ask 10.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from typing import Any, Final

from luxrelay.errors import NodeError
from luxrelay.node.logs import log

TIMEOUT_S: Final = 5.0
"""Seconds a client may take for its request or for reading the answer."""
CLIENTS_MAX: Final = 16
"""Requests answered at once; a further connection is closed at once."""

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

    def __init__(self, listen: str, views: Views) -> None:
        """Bind ``listen`` (``host:port``; port 0 takes a free one).

        Raises:
            NodeError: the port cannot be had.

        """
        host, _, port = listen.rpartition(":")
        try:
            self._server = _Server((host.strip("[]"), int(port)), views)
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = CLIENTS_MAX

    def __init__(self, address: tuple[str, int], views: Views) -> None:
        super().__init__(address, _Handler)
        self.views = views
        self._slots = threading.BoundedSemaphore(CLIENTS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: socket | Any, client_address: Any) -> None:
        """Drop a client that broke off; its fault is not worth a traceback."""


class _Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT_S
    server: _Server
    server_version = "luxrelay"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one page."""
        try:
            answer = self._page(self.path.partition("?")[0])
        except Exception as error:  # noqa: BLE001  a page that fails must not look empty
            log(logging.ERROR, "a page failed", path=self.path[:80], error=repr(error))
            answer = _as_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "see the node's log"})
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
