"""The public routes as one table: parameters and answers of each call.

The OpenAPI document and the checks of requests are both made from it.

Source: docs/reference/http.md.
"""

from __future__ import annotations

from typing import Final

from luxrelay.bus import constants as c
from luxrelay.node.gateway.calls import (
    BYTES_TYPE,
    FLAG,
    JSON_TYPE,
    MESSAGES_TYPE,
    Handler,
    HttpAnswer,
    Param,
    Route,
    Scope,
    cursor_of,
    hex_of,
    one_of,
    text_of,
    whole,
)
from luxrelay.node.gateway.http import Gateway
from luxrelay.node.gateway.problem import CONTENT_TYPE
from luxrelay.node.gateway.schemas import Schema, ref
from luxrelay.node.gateway.websocket import Streams
from luxrelay.store.config import OFFSET_MAX

_U64: Final = whole(0, c.MAX_U64)
_BINARY: Final[Schema] = {"type": "string", "format": "binary"}

NAMESPACE: Final = Param(
    name="namespace", place="path", kind=hex_of(20), sentence="Namespace id, 40 hex digits."
)
_LIMIT: Final = Param(
    name="limit", kind=_U64, default=100, sentence="Most entries; more than the cap means the cap."
)
_CURSOR: Final = Param(
    name="cursor", kind=cursor_of(80), default=b"", sentence="nextCursor of the page before."
)
_OFFSET: Final = Param(
    name="offset",
    kind=whole(0, OFFSET_MAX),
    default=0,
    sentence="Matches of the store passed over before a first page; a cursor is stable.",
)
_FROM_MS: Final = Param(
    name="from_ms", kind=_U64, default=0, sentence="Timestamps from here on, Unix milliseconds."
)
_TO_MS: Final = Param(
    name="to_ms", kind=_U64, default=0, sentence="Timestamps up to here, inclusive; 0 = no bound."
)


def problem_answers(*statuses: int) -> dict[int, HttpAnswer]:
    """Return the failures that a call may give, each a problem."""
    words = {
        400: "Something in the request does not fit.",
        401: "A token is missing or unknown.",
        403: "The token or the web origin does not allow it.",
        404: "Nothing is held under this id.",
        409: "Another message holds the slot; the receipt names the next sequence.",
        413: "The body is too large.",
        415: "A content type that the call does not take.",
        416: "The range lies outside the blob.",
        422: "The node refused a message; its receipt says why.",
        429: "The caller is too fast; see Retry-After.",
        503: "The node is busy or its disk refuses; see Retry-After.",
        507: "The store or the namespace has no room; the detail says which and how much.",
    }
    every = {400, 401, 403, 413, 429, 503, *statuses}
    return {each: HttpAnswer(words[each], {CONTENT_TYPE: ref("Problem")}) for each in sorted(every)}


def ok(sentence: str, schema: str) -> dict[int, HttpAnswer]:
    """Return a success with a JSON body."""
    return {200: HttpAnswer(sentence, {JSON_TYPE: ref(schema)})}


def _page_answers(sentence: str) -> dict[int, HttpAnswer]:
    content = {JSON_TYPE: ref("Page"), MESSAGES_TYPE: _BINARY}
    return {200: HttpAnswer(sentence, content)} | problem_answers()


def read(
    path: str,
    handler: Handler,
    summary: str,
    schema: str,
    *params: Param,
    scope: Scope = Scope.READ,
    statuses: tuple[int, ...] = (),
    sentence: str = "",
) -> Route:
    """Return a GET route with a JSON answer."""
    return Route(
        method="GET",
        path=path,
        scope=scope,
        summary=summary,
        sentence=sentence,
        params=params,
        answers=ok(summary + ".", schema) | problem_answers(*statuses),
        handler=handler,
    )


def public_routes(gateway: Gateway, streams: Streams) -> list[Route]:
    """Return the routes of the public listener."""
    return [
        _publish(gateway),
        *_messages(gateway),
        *_namespaces(gateway),
        _blob(gateway),
        read(
            "/v1/receipts/{digest}",
            gateway.receipt,
            "What has become of a published message",
            "Receipt",
            Param(
                name="digest",
                place="path",
                kind=hex_of(32),
                sentence="SHA3-256 of the header as published, 64 hex digits.",
            ),
            scope=Scope.PUBLISH,
            statuses=(404,),
            sentence="seenBack grows while peers announce the message to the node.",
        ),
        read(
            "/v1/quotas/{account}",
            gateway.quota,
            "What the node has counted of a prepaid quota",
            "Quota",
            Param(
                name="account",
                place="path",
                kind=hex_of(32),
                sentence="The quota's hash, 64 hex digits, as `luxrelay fees show` prints it.",
            ),
            sentence="charged is false, and all else zero, for a quota that paid nothing here; "
            "/v1/limits names the issuers whose quotas count.",
        ),
        read("/v1/peers", gateway.peers, "Connected peers with their scores", "Peers"),
        read("/v1/policies", gateway.policies, "Policies of the carried namespaces", "Policies"),
        read("/v1/status", gateway.status, "The node at a glance", "Status"),
        read(
            "/v1/topics",
            gateway.topic,
            "The namespace of a content topic",
            "Namespace",
            Param(
                name="content_topic",
                kind=text_of(1, 1024),
                required=True,
                sentence="Such as /chat/1/room.",
            ),
            scope=Scope.NOTHING,
        ),
        read(
            "/v1/limits",
            gateway.limits,
            "The bounds that a client meets",
            "Limits",
            scope=Scope.NOTHING,
        ),
        _stream(streams),
    ]


def _publish(gateway: Gateway) -> Route:
    return Route(
        method="POST",
        path="/v1/messages",
        scope=Scope.PUBLISH,
        summary="Publish signed messages",
        sentence="Answered when every message has its verdict and is durable. Publishing a message "
        "again is safe: what is stored already is answered as stored. When one is not stored, the "
        "status is that of the first such message and the problem carries all receipts.",
        bodies={JSON_TYPE: ref("Publish"), MESSAGES_TYPE: _BINARY},
        answers=ok("Every message is stored.", "Receipts") | problem_answers(409, 415, 422, 507),
        handler=gateway.publish,
    )


def _messages(gateway: Gateway) -> list[Route]:
    sender = Param(name="sender", kind=hex_of(20), sentence="Only this sender's address (P38).")
    return [
        Route(
            method="GET",
            path="/v1/messages",
            scope=Scope.READ,
            summary="Messages of all namespaces, by time or sender",
            params=(sender, _FROM_MS, _TO_MS, _LIMIT, _CURSOR),
            answers=_page_answers("One page."),
            handler=gateway.search,
        ),
        read(
            "/v1/messages/{message}",
            gateway.message,
            "Every message of a slot",
            "Found",
            Param(
                name="message",
                place="path",
                kind=hex_of(32),
                sentence="SHA3-256(namespaceId ‖ seq), 64 hex digits.",
            ),
            statuses=(404,),
        ),
    ]


def _namespaces(gateway: Gateway) -> list[Route]:
    parent = Param(name="parent", kind=hex_of(20), sentence="Only this namespace and its lanes.")
    query = (
        NAMESPACE,
        Param(name="after_seq", kind=_U64, default=0, sentence="Only sequences above this one."),
        Param(name="to_seq", kind=_U64, default=0, sentence="Up to it, inclusive; 0 = latest."),
        _OFFSET,
        _FROM_MS,
        _TO_MS,
        _LIMIT,
        _CURSOR,
    )
    gap_limit = Param(name="limit", kind=whole(1, 10_000), default=1000, sentence="Most gaps.")
    return [
        read(
            "/v1/namespaces",
            gateway.heads,
            "Heads of a namespace and its lanes, or of all",
            "Heads",
            parent,
            _LIMIT,
            _CURSOR,
        ),
        read(
            "/v1/namespaces/{namespace}",
            gateway.head,
            "How far a namespace reaches",
            "Head",
            NAMESPACE,
        ),
        read(
            "/v1/namespaces/{namespace}/gaps",
            gateway.gaps,
            "What is missing below the latest sequence",
            "Gaps",
            NAMESPACE,
            gap_limit,
        ),
        Route(
            method="GET",
            path="/v1/namespaces/{namespace}/messages",
            scope=Scope.READ,
            summary="Messages of a namespace, ascending by sequence",
            sentence="With Accept: application/vnd.luxrelay.messages the messages come as bytes "
            "and the rest of the answer in the header Luxrelay-Page.",
            params=query,
            answers=_page_answers("One page; complete says whether anything is missing in it."),
            handler=gateway.query,
        ),
        read(
            "/v1/namespaces/{namespace}/policy",
            gateway.policy,
            "The policies in force in a namespace",
            "Policy",
            NAMESPACE,
            statuses=(404,),
        ),
    ]


def _blob(gateway: Gateway) -> Route:
    whole_blob = {BYTES_TYPE: _BINARY}
    return Route(
        method="GET",
        path="/v1/blobs/{commitment}",
        scope=Scope.READ,
        summary="A blob, whole or a range of it",
        params=(
            Param(
                name="commitment",
                place="path",
                kind=hex_of(32),
                sentence="What the header commits to, 64 hex digits.",
            ),
        ),
        answers={
            200: HttpAnswer("The blob.", whole_blob),
            206: HttpAnswer("The range asked for.", whole_blob),
            304: HttpAnswer("The client has it."),
        }
        | problem_answers(404, 416),
        handler=gateway.blob,
    )


def _stream(streams: Streams) -> Route:
    return Route(
        method="GET",
        path="/v1/stream",
        scope=Scope.NOTHING,
        summary="A WebSocket: subscribe from a sequence, publish",
        sentence="With a namespace the subscription begins at once; otherwise send a subscribe "
        "message. docs/reference/http.md lists the messages of both sides.",
        params=(
            Param(name="namespace", kind=hex_of(20), sentence="Subscribe to it at once."),
            Param(
                name="after",
                kind=text_of(1, 20),
                default="0",
                sentence='Begin behind this sequence, or at "latest".',
            ),
            Param(
                name="lanes", kind=FLAG, default=True, sentence="With the lanes of the namespace."
            ),
            Param(
                name="ordered",
                kind=FLAG,
                default=False,
                sentence="As a validator reads: exactly the next sequence, or nothing.",
            ),
            Param(
                name="blobs",
                kind=one_of("held", "later", "none"),
                default="held",
                sentence="Payloads that are here, also those that come later, or none.",
            ),
            Param(
                name="format",
                kind=one_of("json", "binary"),
                default="json",
                sentence="How messages come.",
            ),
        ),
        answers={101: HttpAnswer("The WebSocket is open.")} | problem_answers(),
        takeover=streams,
    )
