"""The observation listener: /metrics, /healthz and /status over HTTP.

Read-only, for operators and their tools. Requests are answered from snapshots in a bounded number
of threads (`luxrelay.pages`), so that health is answered beside any number of slow clients. Pages
of other sites are kept out by the gate for browsers.

What an address costs here has a meter of its own (`PagesToll`, of the same code as that of the
other doors): a client that owes at the gateway must not make its machine's health check fail.

Source: LP-6490, LP-6491; decisions P33, P34.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from luxrelay.errors import NodeError
from luxrelay.gate import BrowserGate
from luxrelay.net.guarded import Faults
from luxrelay.pages import Answer, PageRules, PageServer, PageStats, Shared
from luxrelay.sync.cost import CostConfig, Payer
from luxrelay.sync.rpc.metering import SharedMeter

CONNECTION_US: Final = 500.0
"""CPU time of a connection beside what its thread is seen to spend: accept, thread, the kernel."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverConfig:
    """Where the listener answers, to whom, and what that may cost."""

    listen: str
    """``host:port``; port 0 takes a free one."""
    hosts: Sequence[str] = ()
    """Names under which it may be asked, besides localhost and addresses."""
    accepts_per_s: float = 100.0
    """Connections taken from one queue a second."""
    clients_max: int = 16
    """Connections at once; for a further one the oldest without a whole request makes room."""
    timeout_ms: int = 5_000
    """For a whole request, and for reading 64 KiB of the answer."""
    stranger_ms_per_s: float = 40.0
    """CPU time that one address may cost a second; 0 for no limit."""
    stranger_burst_ms: float = 300.0
    """CPU time that such an address may cost at once after it was quiet."""
    known_ms_per_s: float = 1_000.0
    """CPU time of one of ``known_hosts``."""
    known_hosts: Sequence[str] = ()
    """Addresses that pay as one with a token."""
    pace: Callable[[], float] = lambda: 1.0
    """How many times as long this machine takes as the one on which prices were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverStats:
    """What the listener did so far."""

    pages: PageStats = field(default_factory=PageStats)
    charged_s: float = 0.0
    """CPU time charged to addresses, seconds."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """Failures that nobody expected, by kind."""


class PagesToll:
    """The meter of this listener, by address."""

    def __init__(self, config: ObserverConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with full buckets."""
        self._meter = SharedMeter(
            CostConfig(
                stranger_us_per_s=1_000.0 * config.stranger_ms_per_s,
                stranger_burst_us=1_000.0 * config.stranger_burst_ms,
                known_us_per_s=1_000.0 * config.known_ms_per_s,
            ),
            clock,
            known_hosts=config.known_hosts,
            pace=config.pace,
        )

    def take(self, host: str) -> float:
        """Charge a connection and return 0, or return the seconds to wait and charge nothing."""
        return self._meter.take(Payer.at(host), CONNECTION_US)

    def settle(self, host: str, spent_us: float) -> None:
        """Charge what a connection's thread has spent."""
        self._meter.settle(Payer.at(host), self._meter.priced_us(spent_us / 1e6))

    def refuse(self, host: str, wait_s: float) -> str:
        """Return why, with numbers and when again; logged once a minute."""
        return self._meter.refuse(Payer.at(host), wait_s)

    @property
    def charged_s(self) -> float:
        """CPU time charged to addresses so far, seconds."""
        return self._meter.stats().strangers_us / 1e6


class Observer:
    """Serves the three pages until it is stopped."""

    def __init__(self, config: ObserverConfig, views: Views) -> None:
        """Bind ``config.listen`` and show ``views``.

        Raises:
            NodeError: the port cannot be had.

        """
        host, _, port = config.listen.rpartition(":")
        self._pages = {
            "/metrics": Shared(lambda: (HTTPStatus.OK, _METRICS_TYPE, views.metrics())),
            "/healthz": Shared(lambda: _health(*views.healthy())),
            "/status": Shared(lambda: _as_json(HTTPStatus.OK, views.status())),
        }
        self.faults = Faults(logger=logging.getLogger("luxrelay.node.observe"))
        """What failed although nobody expected it."""
        self.toll = PagesToll(config)
        """What addresses cost here."""
        try:
            self._server = PageServer(
                (host.strip("[]"), int(port)),
                self._page,
                PageRules(
                    gate=BrowserGate(config.hosts),
                    hints=_HINTS,
                    accepts_per_s=config.accepts_per_s,
                    pace=config.pace,
                    clients_max=config.clients_max,
                    timeout_s=config.timeout_ms / 1000,
                    fault=self.faults.note,
                    toll=self.toll,
                ),
                name="observe",
            )
        except (OSError, OverflowError) as error:
            raise NodeError(
                f"cannot open the HTTP port: {getattr(error, 'strerror', None) or error}",
                where=config.listen,
            ) from error
        self.address = f"{host}:{self._server.port}"
        """Where it really listens."""

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.stop()

    def stats(self) -> ObserverStats:
        """Return what the listener did so far."""
        return ObserverStats(
            pages=self._server.stats(), charged_s=self.toll.charged_s, faults=self.faults.counts()
        )

    def _page(self, target: str) -> Answer:
        page = self._pages.get(target.partition("?")[0])
        if page is not None:
            return page()
        pages = sorted(self._pages)
        return _as_json(HTTPStatus.NOT_FOUND, {"error": "no such page", "pages": pages})


def _health(healthy: bool, body: dict[str, Any]) -> Answer:
    return _as_json(HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE, body)


def _as_json(status: HTTPStatus, body: dict[str, Any]) -> Answer:
    return status, "application/json", json.dumps(body, indent=1).encode() + b"\n"
