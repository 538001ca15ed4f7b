"""Calls of the admin listener: tokens, bans, peers, followed namespaces.

They stand on a listener of their own, which is on loopback unless configured otherwise, and each
needs a token with the scope ``admin``.

Source: docs/reference/http.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import trio

from luxrelay.bus import NamespaceId, topic_namespace
from luxrelay.bus import constants as c
from luxrelay.bus.signed_policy import SignedPolicy
from luxrelay.errors import GatewayError, PolicyError
from luxrelay.node.carried import DOCUMENTS_MAX, CarriedNamespace, CarriedNamespaces
from luxrelay.node.gateway.bounds import Work
from luxrelay.node.gateway.calls import (
    JSON_TYPE,
    HttpAnswer,
    Param,
    Request,
    Response,
    Route,
    Scope,
    as_json,
    hex_bytes,
    parsed_json,
    text_of,
)
from luxrelay.node.gateway.routes import NAMESPACE, ok, problem_answers, read
from luxrelay.node.gateway.schemas import ref
from luxrelay.node.gateway.tokens import TokenFile
from luxrelay.text import clean
from luxrelay.wire import to_hex

_RATE_MAX: Final = 2**40
_DAYS_MAX: Final = 3650
BAN_S_MAX: Final = 3650 * 86_400
"""Longest ban, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerControl:
    """What may be done with peers, named by their ids in base58; all on the loop."""

    disconnect: Callable[[str], Awaitable[bool]]
    """Drop the connection; False when there is none."""
    ban: Callable[[str, int, str], Awaitable[bool]]
    """Keep a peer out for so many seconds, for a reason; False when the id is none."""
    lift: Callable[[str], bool]
    """End a ban; False when there is none."""
    bans: Callable[[], list[dict[str, Any]]]
    """Every ban in force: ``peerId``, ``untilMs``, ``reason``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminParts:
    """What the admin calls stand on."""

    tokens: TokenFile
    work: Work
    peers: PeerControl
    carried: CarriedNamespaces
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
        if not await self._parts.peers.disconnect(peer):
            raise GatewayError(
                "no such peer is connected",
                where=peer[:80],
                hint="GET /v1/peers of the gateway shows who is",
                code="gateway.absent",
            )
        return Response(status=204)

    async def bans(self, request: Request) -> Response:
        """Return every ban in force."""
        del request
        await trio.lowlevel.checkpoint()
        return as_json({"bans": self._parts.peers.bans()})

    async def new_ban(self, request: Request) -> Response:
        """Keep a peer out; its connection is dropped."""
        value = parsed_json(request.body)
        _check_members(value, ("peerId", "seconds", "reason"))
        seconds, reason = value["seconds"], value["reason"]
        if type(seconds) is not int or not 1 <= seconds <= BAN_S_MAX:
            raise GatewayError(f"expected a whole number from 1 to {BAN_S_MAX}", where="seconds")
        if not isinstance(reason, str) or not 1 <= len(reason) <= 200:
            raise GatewayError("expected text of 1 to 200 characters", where="reason")
        if not isinstance(value["peerId"], str) or not await self._parts.peers.ban(
            value["peerId"], seconds, reason
        ):
            raise GatewayError("expected a peer id in base58", where="peerId")
        return Response(status=204)

    async def lift_ban(self, request: Request) -> Response:
        """End a ban before its time."""
        await trio.lowlevel.checkpoint()
        peer: str = request.values["peer_id"]
        if not self._parts.peers.lift(peer):
            raise GatewayError(
                "no such peer is banned",
                where=peer[:80],
                hint="GET /admin/v1/bans shows who is",
                code="gateway.absent",
            )
        return Response(status=204)

    async def namespaces(self, request: Request) -> Response:
        """Return what the node follows."""
        del request
        await trio.lowlevel.checkpoint()
        carried = self._parts.carried
        return as_json(
            {
                "carry": "open" if carried.everything else "listed",
                "followedMax": carried.followed_max,
                "namespaces": [_followed(entry) for entry in carried.entries()],
            }
        )

    async def follow(self, request: Request) -> Response:
        """Follow a namespace from now on, restarts included."""
        value = parsed_json(request.body)
        _check_members(value, (), ("namespaceId", "contentTopic", "documents"))
        topic, name = value.get("contentTopic", ""), value.get("namespaceId")
        if not isinstance(topic, str) or len(topic) > 256 or bool(topic) == (name is not None):
            raise GatewayError("expected either namespaceId or contentTopic", where="body")
        namespace = topic_namespace(topic) if topic else _namespace(name)
        documents = _documents(value.get("documents", []))

        def work() -> bool:
            return self._parts.carried.follow(namespace, content_topic=topic, documents=documents)

        try:
            new = await self._parts.work.run(work)
        except PolicyError as error:
            raise GatewayError(
                error.what, where=f"documents: {error.where}", hint=error.hint
            ) from error
        except OSError as error:
            raise _unwritten(error) from error
        (entry,) = (e for e in self._parts.carried.entries() if e.namespace_id == namespace)
        return as_json(_followed(entry), 201 if new else 200)

    async def unfollow(self, request: Request) -> Response:
        """Follow a namespace no longer."""
        namespace: NamespaceId = request.values["namespace"]
        try:
            left = await self._parts.work.run(partial(self._parts.carried.unfollow, namespace))
        except OSError as error:
            raise _unwritten(error) from error
        if not left:
            raise GatewayError(
                "the node does not follow the namespace",
                where=namespace.hex(),
                hint="GET /admin/v1/namespaces shows what it follows",
                code="gateway.absent",
            )
        return Response(status=204)


def _followed(entry: CarriedNamespace) -> dict[str, Any]:
    return {
        "namespaceId": to_hex(entry.namespace_id),
        "contentTopic": entry.content_topic,
        "origin": entry.origin,
        "documents": len(entry.documents),
    }


def _namespace(value: Any) -> NamespaceId:
    if not isinstance(value, str):
        raise GatewayError("expected hex digits", where="namespaceId")
    found = hex_bytes(value, "namespaceId")
    if len(found) != c.NAMESPACE_BYTES or not any(found):
        raise GatewayError("expected a namespace id of 20 bytes, not all zero", where="namespaceId")
    return NamespaceId(found)


def _documents(value: Any) -> list[SignedPolicy]:
    if not isinstance(value, list) or len(value) > DOCUMENTS_MAX:
        raise GatewayError(f"expected a list of {DOCUMENTS_MAX} at most", where="documents")
    found = []
    for index, each in enumerate(value):
        where = f"documents[{index}]"
        if not isinstance(each, str):
            raise GatewayError("expected hex digits", where=where)
        try:
            found.append(SignedPolicy.decode(hex_bytes(each, where)))
        except PolicyError as error:
            raise GatewayError(error.what, where=where, hint=error.hint) from error
    return found


def _unwritten(error: OSError) -> GatewayError:
    return GatewayError(
        f"the list of followed namespaces cannot be written: {error.strerror}",
        where="data_dir",
        hint="look after the node's disk; nothing has changed",
        code="gateway.fault",
    )


def admin_routes(admin: Admin) -> list[Route]:
    """Return the routes of the admin listener."""
    token_id = Param(
        name="token_id", place="path", kind=text_of(1, 64), sentence="The token's id, 8 hex digits."
    )
    peer_id = Param(
        name="peer_id", place="path", kind=text_of(1, 128), sentence="The peer's id, base58."
    )
    return [
        *_following_routes(admin),
        read("/admin/v1/tokens", admin.tokens, "Every token", "Tokens", scope=Scope.ADMIN),
        Route(
            method="POST",
            path="/admin/v1/tokens",
            scope=Scope.ADMIN,
            summary="Make a token",
            bodies={JSON_TYPE: ref("NewToken")},
            answers={
                201: HttpAnswer("The token; its text is shown once.", {JSON_TYPE: ref("Token")})
            }
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
        read("/admin/v1/bans", admin.bans, "Every ban in force", "Bans", scope=Scope.ADMIN),
        Route(
            method="POST",
            path="/admin/v1/bans",
            scope=Scope.ADMIN,
            summary="Ban a peer",
            sentence="Of two bans the one that lasts longer counts.",
            bodies={JSON_TYPE: ref("NewBan")},
            answers={204: HttpAnswer("It is kept out.")} | problem_answers(415),
            handler=admin.new_ban,
        ),
        Route(
            method="DELETE",
            path="/admin/v1/bans/{peer_id}",
            scope=Scope.ADMIN,
            summary="Lift a ban",
            params=(peer_id,),
            answers={204: HttpAnswer("The peer may come back.")} | problem_answers(404),
            handler=admin.lift_ban,
        ),
        Route(
            method="DELETE",
            path="/admin/v1/connections/{peer_id}",
            scope=Scope.ADMIN,
            summary="Disconnect a peer",
            params=(peer_id,),
            answers={204: HttpAnswer("It is disconnected.")} | problem_answers(404),
            handler=admin.disconnect,
        ),
    ]


def _following_routes(admin: Admin) -> list[Route]:
    return [
        read(
            "/admin/v1/namespaces",
            admin.namespaces,
            "Every namespace that the node follows",
            "FollowedNamespaces",
            scope=Scope.ADMIN,
        ),
        Route(
            method="POST",
            path="/admin/v1/namespaces",
            scope=Scope.ADMIN,
            summary="Follow a namespace",
            sentence="With its signed policies, or by its default policy without; restarts "
            "included. One that is followed already gets the policies that are given.",
            bodies={JSON_TYPE: ref("NewFollowed")},
            answers={
                200: HttpAnswer("It is followed already.", {JSON_TYPE: ref("FollowedNamespace")}),
                201: HttpAnswer("It is followed.", {JSON_TYPE: ref("FollowedNamespace")}),
            }
            | problem_answers(409, 415),
            handler=admin.follow,
        ),
        Route(
            method="DELETE",
            path="/admin/v1/namespaces/{namespace}",
            scope=Scope.ADMIN,
            summary="Follow a namespace no longer",
            sentence="What is stored of it stays until its time is over.",
            params=(NAMESPACE,),
            answers={204: HttpAnswer("It is not followed.")} | problem_answers(404, 409),
            handler=admin.unfollow,
        ),
    ]


def _check_members(value: Any, needed: Sequence[str], more: Sequence[str] = ()) -> None:
    """Refuse a body that is no object, has a member that is none, or lacks one.

    Raises:
        GatewayError: the first member that does not fit, by its name.

    """
    if not isinstance(value, dict):
        raise GatewayError(f"expected an object with {' and '.join(needed)}", where="body")
    known = (*needed, *more)
    for name in value:
        if name not in known:
            raise GatewayError(
                f"there is no member {clean(name, 40)!r}",
                where="body",
                hint=f"the members are {', '.join(known)}",
            )
    for name in needed:
        if name not in value:
            raise GatewayError(f"the member {name!r} is missing", where="body")


def _new_token(value: Any) -> dict[str, Any]:
    _check_members(value, ("name", "scopes"), ("days", "requestsPerS", "publishBytesPerS"))
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
