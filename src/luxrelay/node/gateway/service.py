"""`GatewayService`: both listeners of a node, from their parts.

The OpenAPI document, made from the routes.

Source: docs/reference/http.md; LP-6490; OpenAPI 3.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import trio

from luxrelay.net.scopes import ReadyReport
from luxrelay.node.archive_fallback import OlderMessages
from luxrelay.node.dashboard.live import Dashboard
from luxrelay.node.gateway.admin import Admin, AdminParts, PeerControl, admin_routes
from luxrelay.node.gateway.bounds import Bodies
from luxrelay.node.gateway.calls import Param, Request, Response, Route, Scope, as_json
from luxrelay.node.gateway.http import Gateway, GatewayParts
from luxrelay.node.gateway.http_auth import RoutedApp
from luxrelay.node.gateway.routes import public_routes, read
from luxrelay.node.gateway.rpc import GatewayRpc
from luxrelay.node.gateway.schemas import SCHEMAS
from luxrelay.node.gateway.server import HttpServer, ServerCounters
from luxrelay.node.gateway.store_and_archive import OlderStats, StoreAndArchive
from luxrelay.node.gateway.tokens import TokenFile
from luxrelay.node.gateway.websocket import StreamCounters, StreamParts, Streams
from luxrelay.node.listeners import named
from luxrelay.node.stages.deliver import Feed

_DESCRIPTION: Final = (
    "Publish signed LP-6411 messages to a relay, read what it holds, and follow it live. Integers "
    "may be as large as 2^64-1; bytes are 0x and hex digits, blobs base64."
)


def document(routes: Sequence[Route], title: str, version: str) -> dict[str, Any]:
    """Return the document of a listener."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": version,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Made with `luxrelay node token new`.",
                }
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    words = [w.strip("{}") for w in route.path.split("/") if w and w != "v1"]
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]).replace(".", "_"),
        "summary": route.summary,
        "responses": {
            str(status): {
                "description": answer.sentence,
                **(
                    {"content": {kind: {"schema": s} for kind, s in answer.content.items()}}
                    if answer.content
                    else {}
                ),
            }
            for status, answer in sorted(route.answers.items())
        },
    }
    if route.sentence:
        operation["description"] = route.sentence
    if route.params:
        operation["parameters"] = [_parameter(param) for param in route.params]
    if route.bodies:
        operation["requestBody"] = {
            "required": True,
            "content": {kind: {"schema": schema} for kind, schema in route.bodies.items()},
        }
    if route.scope is not Scope.NOTHING:
        operation["security"] = [{"token": []}]
        operation["x-luxrelay-scope"] = route.scope.value
        if route.scope is Scope.READ:
            operation["security"].append({})
    return operation


def _parameter(param: Param) -> dict[str, Any]:
    schema = dict(param.kind.schema)
    if isinstance(param.default, bool | int | str) and param.default != "":
        schema["default"] = param.default
    return {
        "name": param.name,
        "in": param.place,
        "required": param.required or param.place == "path",
        "description": param.sentence,
        "schema": schema,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStats:
    """What the gateway counts."""

    public: ServerCounters
    admin: ServerCounters
    streams: StreamCounters
    refused: dict[str, int]
    """Refusals of the public listener by code."""
    busy: int
    """Calls refused because too many waited for the store."""
    contained: dict[str, int] = field(default_factory=dict)
    """Failures that ended one connection, by kind."""
    older: OlderStats = field(default_factory=OlderStats)
    """What an archive was asked."""

    @classmethod
    def none(cls) -> GatewayStats:
        """Return those of a node without a gateway."""
        return cls(
            public=ServerCounters(),
            admin=ServerCounters(),
            streams=StreamCounters(),
            refused={},
            busy=0,
        )


class Addresses(NamedTuple):
    """Where a gateway answers, each ``host:port``; empty for what is off."""

    public: str
    admin: str
    grpc: str
    grpc_admin: str


async def _close_at_last(older: OlderMessages) -> None:
    """Give the connection to an archive up when the gateway ends."""
    try:
        await trio.sleep_forever()
    finally:
        older.close()


class GatewayService:
    """The gateway of one node."""

    def __init__(
        self,
        parts: GatewayParts,
        feed: Feed,
        dashboard: Dashboard,
        tokens: TokenFile,
        peers: PeerControl,
    ) -> None:
        """Put the listeners together; `run` opens their ports."""
        config = parts.config
        self._config = config
        self._parts = parts
        self._holdings = holdings = StoreAndArchive(
            store=parts.store,
            older=parts.older,
            blob=parts.blob,
            work=parts.work,
            config=config,
            clock_ms=parts.clock_ms,
            window_ms=parts.sync.window_ms,
        )
        bodies = Bodies(config.bodies_bytes_max)
        self._streams = Streams(
            StreamParts(
                store=parts.store,
                holdings=holdings,
                feed=feed,
                publish=parts.publish,
                work=parts.work,
                rates=parts.rates,
                bodies=bodies,
                config=config,
                clock_ms=parts.clock_ms,
                in_order=parts.in_order,
                carries=parts.carried.asked,
            )
        )
        gateway = Gateway(parts, holdings)
        version = str(parts.info.get("version", ""))
        self._dashboard = dashboard
        public = [*public_routes(gateway, self._streams), *dashboard.routes()]
        public.append(_document_route(public, "LuxRelay gateway", version))
        admin = Admin(
            AdminParts(
                tokens=tokens,
                work=parts.work,
                peers=peers,
                carried=parts.carried,
                clock_ms=parts.clock_ms,
            )
        )
        private = admin_routes(admin)
        private.append(_document_route(private, "LuxRelay admin calls", version))
        reading = frozenset({Scope.READ}) if config.anonymous_read else frozenset()
        self._public_app = self._app(public, tokens, reading, config.listen)
        pace = (lambda: 1.0) if parts.meter is None else parts.meter.pace
        self.public = HttpServer(config.listen, self._public_app, config, bodies, pace=pace)
        self._rpc = GatewayRpc(parts, feed, gateway, admin, tokens, holdings=holdings)
        self.admin = HttpServer(
            config.admin_listen,
            self._app(private, tokens, frozenset(), config.admin_listen),
            config,
            pace=pace,
        )

    def _app(
        self,
        routes: list[Route],
        tokens: TokenFile,
        anonymous: frozenset[Scope],
        listen: str,
    ) -> RoutedApp:
        return RoutedApp(
            routes,
            tokens,
            self._parts.rates,
            self._config,
            anonymous=anonymous,
            listen=listen,
            clock_ms=self._parts.clock_ms,
        )

    async def run(self, *, task_status: ReadyReport[Addresses] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; ``task_status`` gets the addresses, empty for what is off.

        Raises:
            NodeError: a port or the certificate cannot be had.
            SyncUnreachableError: a port of gRPC cannot be had.
            SyncArgumentError: gRPC cannot use the certificate.

        """
        async with trio.open_nursery() as nursery:
            if self._parts.older is not None:
                nursery.start_soon(_close_at_last, self._parts.older)
            with named("gateway", "listen"):
                public = await nursery.start(self.public.run)
            admin = ""
            if self._config.admin_listen:
                with named("gateway", "admin_listen"):
                    admin = await nursery.start(self.admin.run)
            rpc = await nursery.start(self._rpc.run)
            nursery.start_soon(self.public.faults.keep, "dashboard", self._dashboard.sample)
            task_status.started(Addresses(public, admin, *rpc))

    def stats(self) -> GatewayStats:
        """Return the counters as they stand."""
        return GatewayStats(
            public=self.public.counters,
            admin=self.admin.counters,
            streams=self._streams.counters,
            refused=dict(self._public_app.refused),
            busy=self._parts.work.refused + self._holdings.refused,
            contained=dict(
                Counter(self.public.faults.counts()) + Counter(self.admin.faults.counts())
            ),
            older=self._holdings.stats(),
        )


def _document_route(routes: list[Route], title: str, version: str) -> Route:
    made: dict[str, Any] = {}

    async def answer(request: Request) -> Response:
        del request
        await trio.lowlevel.checkpoint()
        if not made:
            made.update(document([*routes, route], title, version))
        return as_json(made)

    route = read("/openapi.json", answer, "This document", "Status", scope=Scope.NOTHING)
    return route
