"""Which request may be answered: its route, its origin, its caller, its rate.

Theory of operation
-------------------
*Decides* in this order, cheapest first: the name and the web origin, path and method, caller, rate,
scope, parameters, type and length of the body. Nothing of a body is read before.
*Browsers*: `luxrelay.gate` is asked first, whatever is asked for, with or without a token; pages of
``cors_origins`` get the headers with which they may read answers.
*Rates*: a bucket of requests and one of published bytes for each token or address; WebSocket
messages count as requests, and what is refused before its caller is known costs its address one.

Source: docs/reference/http.md; user-09; RFC 6455 §10.2; RFC 6750.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha1
from ipaddress import ip_address
from typing import Final

import trio

from luxrelay.bus.constants import MIN_HEADER_BYTES
from luxrelay.bus.limits import LimitConfig, Rate, RateLimiter
from luxrelay.errors import GatewayError
from luxrelay.gate import BrowserGate
from luxrelay.node.gateway.calls import (
    HttpCaller,
    MethodError,
    Request,
    Response,
    Route,
    Scope,
    Stream,
    parsed,
)
from luxrelay.node.gateway.config import GatewayConfig
from luxrelay.node.gateway.server import Admission, RequestHead
from luxrelay.node.gateway.tokens import TokenFile
from luxrelay.sync.cost import Payer, Price, price_of_bytes
from luxrelay.sync.rpc.metering import PAYER, SharedMeter

SUBPROTOCOL: Final = "luxrelay.v1"
TOKEN_PROTOCOL: Final = "luxrelay.token."  # noqa: S105  a prefix; the token comes behind it
"""Browsers cannot set headers of a WebSocket: the token may come as a subprotocol."""
_HINTS: Final = {
    "Host": "add it to gateway.hosts",
    "Origin": "add it to gateway.cors_origins if its pages may call",
}
_IPV4_BYTES: Final = 4
_PREFIX_BYTES: Final = 8
"""Bytes of an IPv6 /64."""
_LOOK_AGAIN_S: Final = 1.0
_HANDSHAKE: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Rates:
    """Buckets of every caller; used from the loop only, and with the loop's clock."""

    def __init__(self, config: GatewayConfig, meter: SharedMeter | None = None) -> None:
        """Start with full buckets; ``meter`` counts what callers cost at all doors."""
        self._config = config
        self._meter = meter
        self._limiters: dict[Rate, RateLimiter] = {}

    def request(self, caller: HttpCaller, now: float) -> None:
        """Take one request.

        Raises:
            GatewayError: there is none left (``gateway.rate``).

        """
        self._take(Rate(caller.requests_per_s or self._config.requests_per_s), caller, 0, now)
        wait_s = self.begin(caller, Price.CALL)
        if wait_s and self._meter is not None:
            raise _too_fast(self._meter.refuse(payer_of(caller), wait_s), wait_s)

    def begin(self, caller: HttpCaller, cost_us: float) -> float:
        """Charge work before it is done; return the seconds to wait instead, 0 for none."""
        return 0.0 if self._meter is None else self._meter.take(payer_of(caller), cost_us)

    def connected(self, host: str) -> float:
        """Charge a connection; return the seconds until its address owes nothing, 0 for none."""
        if self._meter is None:
            return 0.0
        payer = Payer.at(host)
        handshake_us = Price.HANDSHAKE * bool(self._config.tls_certificate)
        wait_s = self._meter.take(payer, Price.CONNECTION + handshake_us)
        if wait_s:  # it is held for a while, and shakes hands then
            self._meter.charge_refused(payer, Price.REFUSED + handshake_us)
        return wait_s

    def proved(self, host: str) -> None:
        """Give a handshake back to an address that showed a token behind it."""
        if self._meter is not None and self._config.tls_certificate:
            self._meter.settle(Payer.at(host), -Price.HANDSHAKE)

    def read(self, payer: Payer, count: int) -> float:
        """Charge reads; return the seconds until their payer owes nothing, 0 for none."""
        if self._meter is None:
            return 0.0
        self._meter.settle(payer, count * Price.READ)
        return self._meter.take(payer, 0.0)

    def settle(self, caller: HttpCaller, more_us: float) -> None:
        """Charge what work has cost beyond what was taken; negative to give back."""
        if self._meter is not None:
            self._meter.settle(payer_of(caller), more_us)

    async def patience(self, caller: HttpCaller, cost_us: float) -> None:
        """Charge work before it is done, after waiting until its caller may cost it."""
        while wait_s := self.begin(caller, cost_us):  # noqa: ASYNC110 - time alone pays a debt
            await trio.sleep(min(wait_s, _LOOK_AGAIN_S))

    def signatures(self, caller: HttpCaller, size: int) -> float:
        """Charge the signatures that so many published bytes may hold; return what was taken.

        Who settles gives back those of messages that were taken: bad ones and repeated ones cost.

        Raises:
            GatewayError: the caller has cost too much (``gateway.rate``).

        """
        count = min(self._config.publish_items_max, 1 + size // MIN_HEADER_BYTES)
        wait_s = self.begin(caller, count * Price.SIGNATURE)
        if wait_s and self._meter is not None:
            raise _too_fast(self._meter.refuse(payer_of(caller), wait_s), wait_s)
        return float(count * Price.SIGNATURE)

    def sent(self, caller: HttpCaller, size: int) -> None:
        """Charge bytes that were sent."""
        self.settle(caller, price_of_bytes(size))

    def publish(self, caller: HttpCaller, size: int, now: float) -> None:
        """Take so many published bytes.

        Raises:
            GatewayError: there are not as many left (``gateway.rate``).

        """
        bytes_per_s = caller.publish_bytes_per_s or self._config.publish_bytes_per_s
        self._take(Rate(float("inf"), bytes_per_s), caller, size, now)

    def _take(self, rate: Rate, caller: HttpCaller, size: int, now: float) -> None:
        limiter = self._limiters.get(rate)
        if limiter is None:
            limits = LimitConfig(peer=rate, keys_max=self._config.rate_keys_max)
            limiter = self._limiters[rate] = RateLimiter(limits)
        if not limiter.admit_peer(caller.key, size, now):
            what = "bytes" if size else "requests"
            short = limiter.peer_shortfall(caller.key, size, now)
            allowed = f"{short.per_s:,g} are allowed, burst {short.burst:,g}"
            wait_ms = short.retry_after_ms
            again = f"again in {wait_ms:,} ms" if wait_ms else f"{size:,} never fit"
            raise _too_fast(f"too many {what} a second: {allowed}; {again}", short.wait_s)


def _too_fast(why: str, wait_s: float) -> GatewayError:
    error = GatewayError(why, code="gateway.rate")
    error.retry_after_ms = 0 if math.isinf(wait_s) else max(1, math.ceil(wait_s * 1000))
    return error


def payer_of(caller: HttpCaller) -> Payer:
    """Return what a caller's work is charged to: its token, or its address."""
    if caller.name:
        return Payer(f"token:{caller.key.hex()}", known=True)
    if len(caller.key) == _IPV4_BYTES:
        return Payer.at(str(ip_address(caller.key)))
    if len(caller.key) == _PREFIX_BYTES:
        return Payer.at(str(ip_address(caller.key + bytes(8))))
    return Payer.at("")


@dataclass(slots=True, kw_only=True)
class _Admitted(Admission):
    """A request with its route and caller."""

    request: Request
    route: Route
    rates: Rates
    body_bytes_max: int
    upgrade: Response | None
    known: bool

    async def answer(self, body: bytes) -> Response:
        request = self.request
        assert self.route.handler is not None, "a WebSocket is taken over"
        PAYER.set(payer_of(request.caller))
        response = await self.route.handler(
            Request(
                method=request.method,
                path=request.path,
                headers=request.headers,
                values=request.values,
                body=body,
                content_type=request.content_type,
                caller=request.caller,
            )
        )
        self.rates.settle(request.caller, price_of_bytes(len(body) + len(response.body)))
        return response

    def read(self, count: int) -> float:
        return self.rates.read(payer_of(self.request.caller), count)

    async def take_over(self, stream: Stream, received: bytes) -> None:
        assert self.route.takeover is not None
        PAYER.set(payer_of(self.request.caller))
        await self.route.takeover.take_over(self.request, stream, received)


class RoutedApp:
    """Admits requests to the routes of one listener."""

    def __init__(
        self,
        routes: Sequence[Route],
        tokens: TokenFile,
        rates: Rates,
        config: GatewayConfig,
        *,
        anonymous: frozenset[Scope],
        clock_ms: Callable[[], int],
        listen: str,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """Take the routes, the tokens, what a caller without one may do, and where it listens."""
        self._routes = [(route.pattern, route) for route in routes]
        self._tokens = tokens
        self._rates = rates
        self._config = config
        self._anonymous = anonymous
        self._admin = any(route.scope is Scope.ADMIN for route in routes)
        """Whether this is the listener of admin calls."""
        hosts = (*config.hosts, listen.rpartition(":")[0])
        self._gate = BrowserGate(hosts, config.cors_origins, tls=bool(config.tls_certificate))
        self._clock_ms = clock_ms
        self._clock = clock
        self.refused: dict[str, int] = {}
        """Refusals by code."""

    def admit(self, head: RequestHead) -> Admission:
        """Return the admitted request.

        Raises:
            GatewayError: it is refused.

        """
        try:
            return self._admit(head)
        except GatewayError as error:
            self.refused[error.code] = self.refused.get(error.code, 0) + 1
            raise

    def charge(self, address: bytes) -> None:
        """Take one request of whoever has no other name than its address.

        Raises:
            GatewayError: there is none left (``gateway.rate``).

        """
        self._rates.request(HttpCaller(key=address, scopes=frozenset()), self._clock())

    def connected(self, host: str) -> float:
        """Charge a connection of an address; return the seconds until it owes nothing."""
        return self._rates.connected(host)

    def proved(self, host: str) -> None:
        """Note that a connection of an address has shown a token, for the first time."""
        self._rates.proved(host)

    def read(self, host: str, count: int) -> float:
        """Charge reads of an address; return the seconds until it owes nothing."""
        return self._rates.read(Payer.at(host), count)

    def _admit(self, head: RequestHead) -> Admission:
        try:
            self._check_gate(head)
            if head.method == "OPTIONS":
                preflight = self._preflight(head)
                self.charge(head.address)
                return preflight
            route, found = self._find(head)
            caller = self._caller(head)
        except GatewayError:
            # Guessing names, paths and tokens costs the guesser's address its rate.
            self.charge(head.address)
            raise
        self._rates.request(caller, self._clock())
        if route.scope is not Scope.NOTHING:
            self._check_scope(route.scope, caller, head)
        if route.takeover is not None:
            route.takeover.check_room(caller)
        if route.bodies:
            _check_type(route, _content_type(head))
        values = parsed(route.params, {"path": found, "query": head.query, "header": head.headers})
        request = Request(
            method=head.method,
            path=head.path,
            headers=head.headers,
            values=values,
            body=b"",
            content_type=_content_type(head),
            caller=caller,
        )
        return _Admitted(
            request=request,
            route=route,
            rates=self._rates,
            body_bytes_max=self._config.body_bytes_max if route.bodies else 0,
            upgrade=_handshake(head) if route.takeover else None,
            known=bool(caller.name),
        )

    def decorate(self, head: RequestHead, response: Response) -> None:
        """Add what every answer carries."""
        named = {name.lower() for name, _ in response.headers}
        for name, text in (
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            if name.lower() not in named and response.status != 101:
                response.headers.append((name, text))
        origin = head.headers.get("origin", "")
        if self._gate.allows(origin):
            response.headers += [
                ("Access-Control-Allow-Origin", origin),
                (
                    "Access-Control-Expose-Headers",
                    "Luxrelay-Page, Retry-After, Content-Range, ETag",
                ),
                ("Vary", "Origin"),
            ]

    def _find(self, head: RequestHead) -> tuple[Route, dict[str, str]]:
        methods: list[str] = []
        for pattern, route in self._routes:
            match = pattern.fullmatch(head.path)
            if match is None:
                continue
            if route.method == ("GET" if head.method == "HEAD" else head.method):
                return route, match.groupdict()
            methods.append(route.method)
        if methods:
            allowed = _allowed(methods)
            error = MethodError(
                f"the path does not take {head.method[:20]!r}",
                where=head.path[:80],
                hint="use " + " or ".join(each for each in allowed if each != "OPTIONS"),
            )
            error.allowed = tuple(allowed)
            raise error
        raise self._no_path(head)

    def _no_path(self, head: RequestHead) -> GatewayError:
        """Return the refusal of a path; one of the node's other listener is told where it is."""
        hint = "/openapi.json lists every path"
        if head.path.startswith("/admin/") and not self._admin:
            hint = "admin calls are on another port: gateway.admin_listen"
        elif self._admin and not head.path.startswith("/admin/"):
            hint = "only /admin/v1/... is on this port; the other calls are on gateway.listen"
        return GatewayError(
            "there is no such path on this port",
            where=head.path[:80],
            hint=hint,
            code="gateway.absent",
        )

    def _caller(self, head: RequestHead) -> HttpCaller:
        text = _bearer(head)
        if text is None:
            return HttpCaller(key=head.address, scopes=self._anonymous)
        caller = self._tokens.caller(text, self._clock_ms(), self._clock())
        return replace(caller, holds=partial(self._holds, caller.key))

    def _holds(self, key: bytes) -> bool:
        return self._tokens.holds(key, self._clock_ms(), self._clock())

    def _check_scope(self, scope: Scope, caller: HttpCaller, head: RequestHead) -> None:
        if not caller.name:
            if scope not in caller.scopes:
                raise GatewayError(
                    "the call needs a token", where=head.path[:80], code="gateway.token"
                )
        elif scope not in caller.scopes:
            raise GatewayError(f"the token lacks the scope {scope.value!r}", code="gateway.scope")

    def _preflight(self, head: RequestHead) -> Admission:
        origin = head.headers.get("origin", "")
        methods = sorted({r.method for p, r in self._routes if p.fullmatch(head.path)})
        if not methods:
            raise self._no_path(head)
        self.charge(head.address)
        response = Response(status=204, headers=[("Allow", ", ".join(_allowed(methods)))])
        if self._gate.allows(origin):
            response.headers += [
                ("Access-Control-Allow-Methods", ", ".join(methods)),
                ("Access-Control-Allow-Headers", "Authorization, Content-Type, Range"),
                ("Access-Control-Max-Age", "600"),
            ]
        payer = payer_of(HttpCaller(key=head.address, scopes=frozenset()))
        return _Preflight(response, partial(self._rates.read, payer))

    def _check_gate(self, head: RequestHead) -> None:
        host = head.authority or head.headers.get("host")
        refusal = self._gate.refusal(host, head.headers.get("origin"))
        if refusal is not None:
            raise GatewayError(
                refusal.why, where=refusal.where, hint=_HINTS[refusal.where], code="gateway.origin"
            )


class _Preflight(Admission):
    """The answer to a browser that asks before it sends."""

    body_bytes_max = 0
    upgrade = None
    known = False

    def __init__(self, response: Response, paid: Callable[[int], float]) -> None:
        self._response = response
        self._paid = paid

    def read(self, count: int) -> float:
        return self._paid(count)

    async def answer(self, body: bytes) -> Response:
        del body
        return self._response

    async def take_over(self, stream: Stream, received: bytes) -> None:
        raise AssertionError((stream, received))


def _allowed(methods: Sequence[str]) -> list[str]:
    """Return what `Allow` has for a path with these routes: the same in every answer."""
    return sorted({*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])})


def _content_type(head: RequestHead) -> str:
    return head.headers.get("content-type", "").partition(";")[0].strip().lower()


def _check_type(route: Route, content_type: str) -> None:
    if content_type not in route.bodies:
        raise GatewayError(
            f"the call does not take {content_type[:80] or 'a body without a type'!r}",
            where="Content-Type",
            hint="send " + " or ".join(route.bodies),
            code="gateway.media",
        )


def _bearer(head: RequestHead) -> str | None:
    given = head.headers.get("authorization")
    if given is not None:
        kind, _, text = given.partition(" ")
        if kind.lower() != "bearer":
            raise GatewayError(
                "only Bearer tokens are known", where="Authorization", code="gateway.token"
            )
        return text.strip()
    for name in _protocols(head):
        if name.startswith(TOKEN_PROTOCOL):
            return name.removeprefix(TOKEN_PROTOCOL)
    return None


def _protocols(head: RequestHead) -> list[str]:
    return [p.strip() for p in head.headers.get("sec-websocket-protocol", "").split(",")]


def _handshake(head: RequestHead) -> Response:
    """Return the 101 of RFC 6455 §4.2.2.

    Raises:
        GatewayError: the request is no WebSocket handshake of version 13.

    """
    if head.method != "GET" or head.version != "1.1":
        raise GatewayError("a handshake is a GET of HTTP/1.1", where="request line")
    if "content-length" in head.headers or "transfer-encoding" in head.headers:
        raise GatewayError("a handshake has no body", where="headers")
    key = head.headers.get("sec-websocket-key", "")
    try:
        sound = len(b64decode(key, validate=True)) == 16
    except ValueError:
        sound = False
    upgrades = head.headers.get("upgrade", "").lower() == "websocket"
    connection = [p.strip() for p in head.headers.get("connection", "").lower().split(",")]
    if not (sound and upgrades and "upgrade" in connection):
        raise GatewayError(
            "the path speaks WebSocket only", where=head.path[:80], hint="open a WebSocket there"
        )
    if head.headers.get("sec-websocket-version") != "13":
        raise GatewayError("WebSocket of another version", where="Sec-WebSocket-Version")
    accept = b64encode(sha1(key.encode() + _HANDSHAKE, usedforsecurity=False).digest()).decode()
    headers = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", accept),
    ]
    if SUBPROTOCOL in _protocols(head):
        headers.append(("Sec-WebSocket-Protocol", SUBPROTOCOL))
    return Response(status=101, headers=headers)
