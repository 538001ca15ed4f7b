"""The dashboard's routes: three files, and a WebSocket that tells the state every second.

A watcher gets the samples of the last minutes, then a state every second and each stored message
soon after its commit. What a watcher does not take is not kept for it: it gets the newest state and
the newest messages of the feed's short memory.

Source: docs/how-to/dashboard.md.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any, Final

import trio

from luxrelay.errors import LuxRelayError
from luxrelay.node.dashboard.state import (
    SAMPLE_MS,
    DashboardSources,
    Samples,
    glimpse_json,
    held_state,
    network_state,
)
from luxrelay.node.gateway.bounds import Work
from luxrelay.node.gateway.calls import (
    HttpAnswer,
    HttpCaller,
    Request,
    Response,
    Route,
    Scope,
    Stream,
)
from luxrelay.node.gateway.config import GatewayConfig
from luxrelay.node.gateway.guests import Guest, Guests, group_of
from luxrelay.node.gateway.http_auth import Rates
from luxrelay.node.gateway.routes import problem_answers
from luxrelay.node.gateway.sockets import (
    CROWDED,
    GOING_AWAY,
    INTERNAL,
    SocketOverError,
    WebSocket,
)
from luxrelay.node.stages.deliver import BUCKETS_MS, Feed

WATCHERS_MAX: Final = 32
"""Dashboards open at once."""
LOOK_MS: Final = 200
"""Milliseconds between two looks at the feed for a watcher."""
PAGE_FILES: Final = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/dashboard/style.css": ("style.css", "text/css; charset=utf-8"),
    "/dashboard/script.js": ("script.js", "text/javascript; charset=utf-8"),
}
"""Path to file and content type."""
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Dashboard:
    """Serves the page and its watchers."""

    def __init__(
        self,
        sources: DashboardSources,
        feed: Feed,
        work: Work,
        config: GatewayConfig,
        *,
        rates: Rates | None = None,
    ) -> None:
        """Keep the parts, ``rates`` to charge frames; `sample` runs for as long as the gateway."""
        self._rates = rates
        self._guests = Guests(WATCHERS_MAX)
        self._ending = 0
        """Watchers that have lost their place and are not gone yet."""
        self._sources = sources
        self._feed = feed
        self._work = work
        self._config = config
        self._samples = Samples(sources)
        self._tick = trio.Event()
        self._state: dict[str, Any] = {}
        self.watchers = 0
        """Dashboards open now."""

    async def sample(self) -> None:
        """Take samples for ever; read the state while somebody watches."""
        while True:
            sample = self._samples.take()
            if self.watchers:
                with suppress(LuxRelayError):  # busy, or the store is closing: the next second
                    held = await self._work.run(lambda: held_state(self._sources))
                    self._state = {**held, "net": network_state(self._sources), "sample": sample}
            tick, self._tick = self._tick, trio.Event()
            tick.set()
            await trio.sleep(SAMPLE_MS / 1000)

    def routes(self) -> list[Route]:
        """Return the routes of the page and its WebSocket."""
        pages = [_page_route(path) for path in PAGE_FILES]
        live = Route(
            method="GET",
            path="/dashboard/live",
            scope=Scope.READ,
            summary="The dashboard's WebSocket",
            sentence="Made for the page of this node; its messages change with it.",
            answers={101: HttpAnswer("The WebSocket is open.")} | problem_answers(),
            takeover=self,
        )
        return [*pages, live]

    def check_room(self, caller: HttpCaller) -> None:
        """Return when one more may watch; one without token may lose its place for it.

        Raises:
            GatewayError: `WATCHERS_MAX` do, and none gives way (``gateway.busy``).

        """
        group = None if caller.name else group_of(caller.key)
        self._guests.make_room(self.watchers - self._ending, group)

    async def take_over(self, request: Request, stream: Stream, received: bytes) -> None:
        """Tell one watcher until it goes."""
        caller = request.caller
        socket = WebSocket(stream, received, self._config, caller, rates=self._rates)
        scope = trio.CancelScope()

        def end() -> None:
            self._ending += 1
            scope.cancel()

        guest = Guest(group_of(caller.key), end)
        if not caller.name:
            self._guests.enter(guest)
        self.watchers += 1
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(socket.keep_alive)
                    nursery.start_soon(self._tell, socket)
                    nursery.start_soon(self._tell_messages, socket)
                    while True:
                        await socket.receive()  # what a watcher says does not matter
            await socket.close(CROWDED, "gateway.busy: others need the place; bring a token")
        except* (SocketOverError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except* trio.Cancelled:
            await socket.close(GOING_AWAY, "the node stops")
            raise
        except* Exception:
            await socket.close(INTERNAL, "gateway.fault: see the node's log")
            raise
        finally:
            socket.release()
            self.watchers -= 1
            self._guests.leave(guest)
            self._ending -= guest.crowded

    async def _tell(self, socket: WebSocket) -> None:
        await socket.send(
            [_text({"type": "samples", "bounds": BUCKETS_MS, "samples": list(self._samples.kept)})]
        )
        while True:
            await self._tick.wait()
            if self._state:
                await socket.send([_text({"type": "state", **self._state})])

    async def _tell_messages(self, socket: WebSocket) -> None:
        told = 0
        while True:
            total, fresh = self._feed.since(told)
            if fresh:
                topics = {n.namespace_id: n.content_topic for n in self._sources.namespaces()}
                shown = [glimpse_json(each, topics) for each in fresh]
                said = {"type": "messages", "first": not told, "messages": shown}
                told = total
                await socket.send([_text(said)])
            await trio.sleep(LOOK_MS / 1000)


@cache
def page_file(name: str) -> bytes:
    """Return a file of the page."""
    return files("luxrelay.node.dashboard").joinpath(name).read_bytes()


def _page_route(path: str) -> Route:
    name, kind = PAGE_FILES[path]

    async def answer(request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        body = page_file(name)
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        kept = [
            ("ETag", tag),
            ("Cache-Control", "no-cache"),
            ("Content-Security-Policy", _POLICY),
            ("X-Frame-Options", "DENY"),
        ]
        if request.headers.get("if-none-match") == tag:
            return Response(status=304, headers=kept)
        return Response(content_type=kind, body=body, headers=kept)

    content = {kind.partition(";")[0]: {"type": "string"}}
    return Route(
        method="GET",
        path=path,
        scope=Scope.NOTHING,
        summary=f"The dashboard's {name}",
        answers={200: HttpAnswer("The file.", content), 304: HttpAnswer("The browser has it.")}
        | problem_answers(),
        handler=answer,
    )


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
