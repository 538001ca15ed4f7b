"""The observation listener: /metrics, /healthz and /status over HTTP.

Read-only, for operators and their tools. Requests are answered from snapshots in a bounded number
of threads (`luxrelay.pages`), so that health is answered beside any number of slow clients. Pages
of other sites are kept out by the gate for browsers.

Source: LP-6490, LP-6491.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from luxrelay.errors import NodeError
from luxrelay.gate import Gate
from luxrelay.net.guarded import Faults
from luxrelay.pages import Answer, PageRules, PageServer

TIMEOUT_S: Final = 5.0
"""Seconds a client may take for its whole request, and for reading 64 KiB of the answer."""
CLIENTS_MAX: Final = 16
"""Connections at once; for a further one the oldest without a whole request makes room."""

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_HINTS: Final = {
    "Host": "add it to http.hosts",
    "Origin": "open the page itself; no other site may ask here",
}


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
        self._views = views
        self.faults = Faults(logger=logging.getLogger("luxrelay.node.observe"))
        """What failed although nobody expected it."""
        try:
            self._server = PageServer(
                (host.strip("[]"), int(port)),
                self._page,
                PageRules(
                    gate=Gate(hosts),
                    hints=_HINTS,
                    clients_max=CLIENTS_MAX,
                    timeout_s=TIMEOUT_S,
                    fault=self.faults.note,
                ),
                name="observe",
            )
        except (OSError, OverflowError) as error:
            raise NodeError(
                f"cannot open the HTTP port: {getattr(error, 'strerror', None) or error}",
                where=listen,
            ) from error
        self.address = f"{host}:{self._server.port}"
        """Where it really listens."""

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.stop()

    def _page(self, target: str) -> Answer:
        path = target.partition("?")[0]
        if path == "/metrics":
            return HTTPStatus.OK, _METRICS_TYPE, self._views.metrics()
        if path == "/healthz":
            healthy, body = self._views.healthy()
            return _as_json(HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE, body)
        if path == "/status":
            return _as_json(HTTPStatus.OK, self._views.status())
        pages = ["/healthz", "/metrics", "/status"]
        return _as_json(HTTPStatus.NOT_FOUND, {"error": "no such page", "pages": pages})


def _as_json(status: HTTPStatus, body: dict[str, Any]) -> Answer:
    return status, "application/json", json.dumps(body, indent=1).encode() + b"\n"
