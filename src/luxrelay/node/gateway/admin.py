"""The calls of the admin listener: tokens, and who may connect.

They stand on a listener of their own, which is on loopback unless configured otherwise, and each
needs a token with the scope ``admin``.

Source: issue of the gateway.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from luxrelay.errors import GatewayError
from luxrelay.node.gateway.calls import (
    JSON_TYPE,
    Answer,
    Param,
    Request,
    Response,
    Route,
    Scope,
    as_json,
    parsed_json,
    text_of,
)
from luxrelay.node.gateway.routes import ok, problem_answers, read
from luxrelay.node.gateway.schemas import ref
from luxrelay.node.gateway.tokens import TokenFile
from luxrelay.node.gateway.work import Work

_RATE_MAX: Final = 2**40
_DAYS_MAX: Final = 3650


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminParts:
    """What the admin calls stand on."""

    tokens: TokenFile
    work: Work
    disconnect: Callable[[str], Awaitable[bool]]
    """Drop the connection with a peer, by its id in base58; False when there is none."""
    clock_ms: Callable[[], int]


class Admin:
    """Answers the admin calls."""

    def __init__(self, parts: AdminParts) -> None:
        """Keep the parts."""
        self._parts = parts

    async def tokens(self, request: Request) -> Response:
        """Return every token without its secret."""
        del request
        found = await self._parts.work.run(self._parts.tokens.list)
        return as_json({"tokens": [token.view() for token in found]})

    async def new_token(self, request: Request) -> Response:
        """Make a token; its text is in this answer only."""
        value = _new_token(parsed_json(request.body))
        text, token = await self._parts.work.run(
            partial(
                self._parts.tokens.new,
                value["name"],
                value["scopes"],
                self._parts.clock_ms(),
                days=value["days"],
                requests_per_s=value["requestsPerS"],
                publish_bytes_per_s=value["publishBytesPerS"],
            )
        )
        return as_json({**token.view(), "token": text}, 201)

    async def revoke_token(self, request: Request) -> Response:
        """End a token."""
        token = await self._parts.work.run(
            partial(self._parts.tokens.revoke, request.values["token_id"])
        )
        return as_json(token.view())

    async def disconnect(self, request: Request) -> Response:
        """Drop a peer's connection; it may connect again."""
        peer: str = request.values["peer_id"]
        if not await self._parts.disconnect(peer):
            raise GatewayError("no such peer is connected", where=peer[:80], code="gateway.absent")
        return Response(status=204)


def admin_routes(admin: Admin) -> list[Route]:
    """Return the routes of the admin listener."""
    token_id = Param(
        name="token_id", place="path", kind=text_of(1, 64), sentence="The token's id, 8 hex digits."
    )
    peer_id = Param(
        name="peer_id", place="path", kind=text_of(1, 128), sentence="The peer's id, base58."
    )
    return [
        read("/admin/v1/tokens", admin.tokens, "Every token", "Tokens", scope=Scope.ADMIN),
        Route(
            method="POST",
            path="/admin/v1/tokens",
            scope=Scope.ADMIN,
            summary="Make a token",
            bodies={JSON_TYPE: ref("NewToken")},
            answers={201: Answer("The token; its text is shown once.", {JSON_TYPE: ref("Token")})}
            | problem_answers(415),
            handler=admin.new_token,
        ),
        Route(
            method="DELETE",
            path="/admin/v1/tokens/{token_id}",
            scope=Scope.ADMIN,
            summary="Revoke a token",
            params=(token_id,),
            answers=ok("It is valid no longer.", "Token") | problem_answers(404),
            handler=admin.revoke_token,
        ),
        Route(
            method="DELETE",
            path="/admin/v1/connections/{peer_id}",
            scope=Scope.ADMIN,
            summary="Disconnect a peer",
            params=(peer_id,),
            answers={204: Answer("It is disconnected.")} | problem_answers(404),
            handler=admin.disconnect,
        ),
    ]


def _new_token(value: Any) -> dict[str, Any]:
    known = {"name", "scopes", "days", "requestsPerS", "publishBytesPerS"}
    if not isinstance(value, dict) or not {"name", "scopes"} <= set(value) <= known:
        raise GatewayError("expected an object with name and scopes", where="body")
    if not isinstance(value["name"], str):
        raise GatewayError("expected text", where="name")
    scopes = value["scopes"]
    if not isinstance(scopes, list) or not all(isinstance(each, str) for each in scopes):
        raise GatewayError("expected a list of scopes", where="scopes")
    found = {"days": 0, "requestsPerS": 0, "publishBytesPerS": 0, **value}
    for name, maximum in (
        ("days", _DAYS_MAX), ("requestsPerS", 1_000_000), ("publishBytesPerS", _RATE_MAX)
    ):  # fmt: skip
        number = found[name]
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= maximum:
            raise GatewayError(f"expected a whole number up to {maximum}", where=name)
    return found
