"""The calls of the public listener: publish, query, heads, gaps, blobs, peers, policies.

Each call is one method of `Gateway` and one row of `Gateway.routes`; what touches the store runs in
`Work`. Answers are whole in memory and bounded by the configuration.

Source: LP-6421 §2.2, §4, §5.2; P18–P23, P38; user-01, user-02, user-05 to user-07; RFC 9110 §14.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, Final

import trio

from luxrelay.bus import Code, MessageId, NamespaceId, topic_namespace
from luxrelay.bus import constants as c
from luxrelay.bus.policy_json import policy_to_json
from luxrelay.bus.registry import PolicySource
from luxrelay.errors import GatewayError
from luxrelay.gossip import PeerId
from luxrelay.net import NetStats
from luxrelay.net.addresses import peer_text
from luxrelay.net.peer_clocks import ClockOffset
from luxrelay.node.archive_fallback import OlderMessages
from luxrelay.node.carried import CarriedNamespace, CarriedNamespaces
from luxrelay.node.gateway.bounds import Work
from luxrelay.node.gateway.calls import (
    BYTES_TYPE,
    MESSAGES_TYPE,
    Request,
    Response,
    as_json,
    head_json,
    hex_text,
    items_of_bytes,
    items_of_json,
    message_json,
    parsed_json,
    quota_json,
    receipt_json,
    records,
)
from luxrelay.node.gateway.config import GatewayConfig
from luxrelay.node.gateway.http_auth import Rates
from luxrelay.node.gateway.problem import failure
from luxrelay.node.gateway.store_and_archive import Found, StoreAndArchive
from luxrelay.node.gateway.subscription import InOrder
from luxrelay.store import (
    NamespaceQuery,
    QueryPage,
    RelayStore,
    SenderQuery,
    StoredMessage,
    TimeQuery,
)
from luxrelay.sync import PublishItem, PublishReceipt, QuotaUse, SyncServerConfig
from luxrelay.sync.cost import price_of_refused
from luxrelay.sync.rpc.metering import SharedMeter
from luxrelay.sync.rpc.stats import SyncCounters

_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)
_IMMUTABLE: Final = "public, max-age=31536000, immutable"
_REFUSED: Final = {
    Code.STORE_FULL: "store.full",
    Code.LOCAL_FAULT: "store.io",
    Code.CONTENTION: "gateway.conflict",
    Code.SEQUENCE_GAP: "gateway.conflict",
    Code.RATE_LIMITED: "gateway.rate",
}
"""Error codes of refusals that are not the message's own fault alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts:
    """What the calls stand on."""

    store: RelayStore
    publish: Callable[[Sequence[PublishItem]], Sequence[PublishReceipt]]
    """May block; called in a worker thread."""
    blob: Callable[[bytes], bytes | None]
    """The blob of a commitment, the node's own or a peer's; called in a worker thread."""
    receipts: Callable[[Sequence[bytes]], Sequence[PublishReceipt]]
    """What is known of messages that were published here, by digest."""
    quotas: Callable[[Sequence[bytes]], Sequence[QuotaUse]]
    """What was counted of prepaid quotas, by account."""
    net: Callable[[], NetStats]
    """Called on the loop."""
    explain: Callable[[PeerId], Mapping[str, Any] | None]
    """A peer's score, term by term; None when there is none. Called on the loop."""
    status: Callable[[], dict[str, Any]]
    """The state at a glance; called in a worker thread."""
    carried: CarriedNamespaces
    registry: PolicySource
    work: Work
    rates: Rates
    config: GatewayConfig
    clock_ms: Callable[[], int]
    info: Mapping[str, Any]
    """Name, version, network and peer id of the node."""
    message_rates: Callable[[], Mapping[str, Any]] = dict
    """What a node takes of live messages now, as `/v1/limits` names it."""
    calls: SyncCounters | None = None
    """Counts calls over gRPC beside those of the sync port; None counts them apart."""
    meter: SharedMeter | None = None
    """What callers may cost, at all doors of the node together."""
    older: OlderMessages | None = None
    """An archive that is asked for what the store has no more; None without one."""
    in_order: InOrder | None = None
    """Judges for ordered views; None gives none."""
    sync: SyncServerConfig = field(default_factory=SyncServerConfig)
    """The sync port's window, validators and rates, which hold over gRPC as well."""


class Gateway:
    """Answers the calls."""

    def __init__(self, parts: GatewayParts, holdings: StoreAndArchive) -> None:
        """Keep the parts."""
        self._parts = parts
        self._holdings = holdings

    async def publish(self, request: Request) -> Response:
        """Take signed messages; the answer leaves when they are durable (user-05)."""
        parts = self._parts
        parts.rates.publish(request.caller, len(request.body), trio.current_time())
        taken = parts.rates.signatures(request.caller, len(request.body))
        items_max = parts.config.publish_items_max

        def work() -> Sequence[PublishReceipt]:
            if request.content_type == MESSAGES_TYPE:
                items = items_of_bytes(request.body, items_max)
            else:
                items = items_of_json(parsed_json(request.body), items_max)
            return parts.publish(items)

        receipts: Sequence[PublishReceipt] = ()
        try:
            receipts = await parts.work.run(work)
        finally:
            parts.rates.settle(request.caller, price_of_refused(receipts) - taken)
        shown = [receipt_json(receipt) for receipt in receipts]
        refused = next((each for each in receipts if not each.stored), None)
        if refused is None:
            return as_json({"receipts": shown})
        error = GatewayError(
            refused.reason or "the message was not taken",
            where=f"messages[{receipts.index(refused)}]",
            code=_REFUSED.get(Code(refused.code), "gateway.refused"),
        )
        error.retry_after_ms = max(each.retry_after_ms for each in receipts if not each.stored)
        return failure(error, receipts=shown)

    async def receipt(self, request: Request) -> Response:
        """Return what has become of a message that was published here."""
        digest: bytes = request.values["digest"]
        (receipt,) = await self._parts.work.run(partial(self._parts.receipts, [digest]))
        if not receipt.stored:
            raise GatewayError(
                "this node does not remember the message",
                where=hex_text(digest),
                code="gateway.absent",
            )
        return as_json(receipt_json(receipt))

    async def quota(self, request: Request) -> Response:
        """Return what was counted of a prepaid quota (S7)."""
        await trio.lowlevel.checkpoint()
        (use,) = self._parts.quotas([request.values["account"]])
        return as_json(quota_json(use))

    async def query(self, request: Request) -> Response:
        """Return one page of a namespace, ascending by sequence."""
        values = request.values
        query = NamespaceQuery(
            namespace_id=NamespaceId(values["namespace"]),
            from_seq=values["after_seq"],
            to_seq=values["to_seq"],
            from_time=values["from_ms"],
            to_time=values["to_ms"],
            limit=min(values["limit"], self._parts.config.page_messages_max),
            max_bytes=self._parts.config.page_bytes_max,
            offset=values["offset"],
            cursor=_cursor(values["cursor"], 40),
        )
        store = self._parts.store

        def shown(page: QueryPage) -> Response:
            parent = store.head(query.namespace_id).parent
            store.mark_regressed(page.messages)
            expired = query.from_seq + 1 < page.earliest_seq and not query.cursor
            about = {
                "complete": not (page.has_more or page.gaps or expired),
                "hasMore": page.has_more,
                "nextCursor": page.next_cursor.hex(),
                "earliestSeq": page.earliest_seq,
                "lastSeq": page.last_seq,
                "gaps": [{"first": first, "last": last} for first, last in page.gaps[:1000]],
            }
            return _page(request, [(each, parent) for each in page.messages], about)

        return await self._holdings.page(query, shown)

    async def search(self, request: Request) -> Response:
        """Return messages of all namespaces by time, or of one sender (P38)."""
        values = request.values
        store, config, sender = self._parts.store, self._parts.config, values["sender"]
        bounds = {
            "from_time": values["from_ms"],
            "to_time": values["to_ms"],
            "limit": min(values["limit"], config.page_messages_max),
            "max_bytes": config.page_bytes_max,
        }
        query: TimeQuery | SenderQuery
        if sender is None:
            query = TimeQuery(cursor=_cursor(values["cursor"], 68), **bounds)
        else:
            query = SenderQuery(sender=sender, cursor=_cursor(values["cursor"], 60), **bounds)

        def shown(page: Found) -> Response:
            about = {
                "complete": not (page.has_more or page.partial),
                "hasMore": page.has_more,
                "nextCursor": page.next_cursor.hex(),
            }
            found = [(each, store.head(each.namespace_id).parent) for each in page.messages]
            store.mark_regressed(page.messages)
            return _page(request, found, about)

        return await self._holdings.search(query, shown)

    async def message(self, request: Request) -> Response:
        """Return every candidate of a slot."""
        wanted = MessageId(request.values["message"])
        found = await self._holdings.slot(wanted)
        if not found:
            raise GatewayError(
                "no message is held under this id",
                where=hex_text(wanted),
                code="gateway.absent",
            )
        store = self._parts.store

        def work() -> Response:
            parent = store.head(found[0].namespace_id).parent
            store.mark_regressed(found)
            shown = [message_json(each, parent) for each in found]
            return as_json({"messages": shown, "missing": []})

        return await self._parts.work.run(work)

    async def heads(self, request: Request) -> Response:
        """Return the heads of a namespace and its lanes, or of all namespaces (J6)."""
        values = request.values
        parent = None if values["parent"] is None else NamespaceId(values["parent"])
        limit = min(values["limit"], self._parts.config.heads_max)
        cursor = _cursor(values["cursor"], c.NAMESPACE_BYTES)
        heads, following = await self._parts.work.run(
            partial(self._parts.store.heads, parent, cursor, limit)
        )
        return as_json(
            {"heads": [head_json(each) for each in heads], "nextCursor": following.hex()}
        )

    async def head(self, request: Request) -> Response:
        """Return how far a namespace reaches; zeros for an unknown one."""
        namespace_id = NamespaceId(request.values["namespace"])
        head = await self._parts.work.run(partial(self._parts.store.head, namespace_id))
        return as_json(head_json(head))

    async def gaps(self, request: Request) -> Response:
        """Return what is missing between the floor and the latest sequence."""
        namespace_id = NamespaceId(request.values["namespace"])
        store = self._parts.store

        def work() -> Response:
            gaps = store.gaps(namespace_id, request.values["limit"])
            head = store.head(namespace_id)
            return as_json(
                {
                    "gaps": [{"first": first, "last": last} for first, last in gaps],
                    "contiguousSeq": head.contiguous_seq,
                    "latestSeq": head.latest_seq,
                }
            )

        return await self._parts.work.run(work)

    async def blob(self, request: Request) -> Response:
        """Return a blob, or the range of it that is asked for."""
        commitment: bytes = request.values["commitment"]
        blob = await self._holdings.blob(commitment)
        if blob is None:
            raise GatewayError(
                "no blob is held under this commitment",
                where=hex_text(commitment),
                code="gateway.absent",
            )
        return _ranged(request.headers, blob, f'"{commitment.hex()}"')

    async def peers(self, request: Request) -> Response:
        """Return the connected peers with what they sent, and their score by term."""
        del request
        net = self._parts.net()
        await trio.lowlevel.checkpoint()
        return as_json(
            {
                "peers": peer_rows(net, self._parts.explain),
                "mesh": dict(net.router.mesh),
                "clock": clock_json(net.clock),
            }
        )

    async def policies(self, request: Request) -> Response:
        """Return the policies of the namespaces that the node carries."""
        del request
        await trio.lowlevel.checkpoint()
        shown = [self._policy(each) for each in self._parts.carried.entries()]
        return as_json({"policies": shown})

    async def policy(self, request: Request) -> Response:
        """Return the policies of one namespace."""
        wanted = request.values["namespace"]
        await trio.lowlevel.checkpoint()
        for each in self._parts.carried.entries():
            if each.namespace_id == wanted:
                return as_json(self._policy(each))
        raise GatewayError(
            "this node does not carry the namespace",
            where=hex_text(wanted),
            hint="GET /v1/policies lists those that it carries",
            code="gateway.absent",
        )

    async def topic(self, request: Request) -> Response:
        """Return the namespace of a content topic (J6)."""
        await trio.lowlevel.checkpoint()
        topic: str = request.values["content_topic"]
        namespace_id = topic_namespace(topic)
        return as_json({"namespaceId": hex_text(namespace_id), "contentTopic": topic})

    async def status(self, request: Request) -> Response:
        """Return the state at a glance."""
        del request
        return as_json(await self._parts.work.run(self._parts.status))

    async def limits(self, request: Request) -> Response:
        """Return the bounds a client meets (user-02, user-09)."""
        del request
        await trio.lowlevel.checkpoint()
        parts = self._parts
        return as_json({**parts.info, **advertised(parts.config), **parts.message_rates()})

    def _policy(self, each: CarriedNamespace) -> dict[str, Any]:
        now_ms = self._parts.clock_ms()
        records_ = self._parts.registry.in_force(each.namespace_id, None, now_ms)
        hashes = [record.policy_hash for record in records_] or [each.policy_hash]
        return {
            "namespaceId": hex_text(each.namespace_id),
            "contentTopic": each.content_topic,
            "policyHashes": [hex_text(value) for value in hashes],
            "policies": [policy_to_json(record.policy) for record in records_],
        }


def advertised(config: GatewayConfig) -> dict[str, Any]:
    """Return the bounds that a client meets."""
    hidden = {"tls_certificate", "tls_key", "hosts", "trusted_proxies", "cors_origins"}
    hidden |= {each.name for each in fields(config) if each.name.endswith("listen")}
    return {
        _camel(each.name): getattr(config, each.name)
        for each in fields(config)
        if each.name not in hidden
    } | {"blobBytesMax": c.MAX_BLOB_BYTES}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def clock_json(clock: ClockOffset) -> dict[str, Any]:
    """Return what the peers' clocks say of ours as JSON."""
    return {
        "known": clock.known,
        "offsetMs": clock.offset_ms,
        "spreadMs": clock.spread_ms,
        "peers": clock.peers,
    }


def peer_rows(
    net: NetStats, explain: Callable[[PeerId], Mapping[str, Any] | None]
) -> list[dict[str, Any]]:
    """Return one row a connected peer, ordered by peer id."""
    rows = []
    for peer, link in net.peers.items():
        stats = net.router.peers.get(peer)
        counters = asdict(stats) if stats is not None else {}
        row: dict[str, Any] = {"peerId": peer_text(PeerId(peer))}
        row |= {_camel(name): value for name, value in counters.items()}
        row |= {_camel(name): value for name, value in asdict(link).items()}
        row["clockOffsetMs"] = net.clock_offsets.get(peer)
        row["score"] = explain(peer)
        rows.append(row)
    return sorted(rows, key=lambda row: str(row["peerId"]))


def _cursor(cursor: bytes, length: int) -> bytes:
    if len(cursor) not in (0, length):
        raise GatewayError("not a cursor that this call gave", where="query cursor")
    return cursor


def _page(
    request: Request, found: list[tuple[StoredMessage, NamespaceId]], about: dict[str, Any]
) -> Response:
    if request.accepts(MESSAGES_TYPE):
        text = json.dumps(about, separators=(",", ":"))
        if len(text) > 8192:  # a header is no place for a thousand gaps
            text = json.dumps({**about, "gaps": about["gaps"][:100]}, separators=(",", ":"))
        return Response(
            content_type=MESSAGES_TYPE, body=records(found), headers=[("Luxrelay-Page", text)]
        )
    return as_json({"messages": [message_json(each, parent) for each, parent in found], **about})


def _ranged(headers: Mapping[str, str], blob: bytes, tag: str) -> Response:
    """Return the whole or a part, as RFC 9110 §13 and §14 say; several ranges get the whole."""
    kept = [("ETag", tag), ("Accept-Ranges", "bytes"), ("Cache-Control", _IMMUTABLE)]
    kept.append(("Content-Security-Policy", "sandbox"))  # peers choose these bytes
    known = [
        each.strip().removeprefix("W/") for each in headers.get("if-none-match", "").split(",")
    ]
    if tag in known or "*" in known:
        return Response(status=304, headers=kept)
    asked = _RANGE.fullmatch(headers.get("range", "").strip())
    current = headers.get("if-range", tag) == tag
    if asked is None or not current or not (asked[1] or asked[2]):
        return Response(content_type=BYTES_TYPE, body=blob, headers=kept)
    if asked[1]:
        first, last = int(asked[1]), min(int(asked[2] or len(blob)), len(blob) - 1)
        backwards = bool(asked[2]) and int(asked[2]) < first
    else:
        first, last = max(0, len(blob) - int(asked[2])), len(blob) - 1
        backwards = False
    if backwards:
        return Response(content_type=BYTES_TYPE, body=blob, headers=kept)
    if first >= len(blob):
        error = GatewayError(f"the blob has {len(blob)} bytes", where="Range", code="gateway.range")
        response = failure(error)
        response.headers.append(("Content-Range", f"bytes */{len(blob)}"))
        return response
    kept.append(("Content-Range", f"bytes {first}-{last}/{len(blob)}"))
    return Response(status=206, content_type=BYTES_TYPE, body=blob[first : last + 1], headers=kept)
