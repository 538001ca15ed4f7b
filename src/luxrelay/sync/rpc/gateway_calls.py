"""`GatewayServicer` and `AdminServicer`: the gateway's calls as frames.

Source: ADR 0002; decisions P28, P38, J10.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from luxrelay.bus import NamespaceId
from luxrelay.bus import constants as c
from luxrelay.bus.policy_json import policy_from_json
from luxrelay.errors import GatewayError
from luxrelay.store import SenderQuery, TimeQuery
from luxrelay.sync.rpc import relay_gateway_pb2 as pb
from luxrelay.sync.rpc import relay_sync_pb2 as sync_pb
from luxrelay.sync.rpc.calls import CallBook
from luxrelay.sync.rpc.gateway_desk import GatewayDesk, SearchedStore, SearchPage
from luxrelay.sync.rpc.pages import to_frame
from luxrelay.sync.rpc.relay_gateway_pb2_grpc import RelayAdminServicer, RelayGatewayServicer
from luxrelay.sync.rpc.set_answers import check_length
from luxrelay.wire import from_hex

GAPS_MAX: Final = 10_000
"""Gaps in one answer at most."""
GAPS_DEFAULT: Final = 1_000
"""Gaps in one answer when the request says 0."""
TOKEN_ID_CHARS_MAX: Final = 64
"""Characters of a token's id at most; those that are made have 8."""
_NOTHING: Final[Mapping[str, object]] = {}

_Frame = TypeVar("_Frame", bound=Message)
_Answer = TypeVar("_Answer")


def _typed(value: dict[str, Any], frame: _Frame) -> _Frame:
    """Return the frame filled with a JSON object's members of the same names."""
    return ParseDict(value, frame, ignore_unknown_fields=True)


class _Desk:
    """Answers calls from a desk, each counted in the book."""

    def __init__(self, desk: GatewayDesk, calls: CallBook) -> None:
        self._desk = desk
        self._calls = calls

    def _answer(
        self, method: str, context: grpc.ServicerContext, work: Callable[[], _Answer]
    ) -> _Answer:
        with self._calls.call(method, context, weigh=None):
            return work()
        raise AssertionError  # the call above returns or aborts

    def _ask(
        self,
        call: str,
        values: Mapping[str, object] = _NOTHING,
        body: Mapping[str, object] = _NOTHING,
    ) -> Any:
        return self._desk.ask(call, values, body)


class GatewayServicer(_Desk, RelayGatewayServicer):
    """RelayGateway."""

    def ListPeers(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.ListPeersRequest, context: grpc.ServicerContext
    ) -> pb.ListPeersResponse:
        """Return the connected peers with their scores."""
        del request
        return self._answer(
            "ListPeers", context, lambda: _typed(self._ask("peers"), pb.ListPeersResponse())
        )

    def ListPolicies(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.ListPoliciesRequest, context: grpc.ServicerContext
    ) -> pb.ListPoliciesResponse:
        """Return the policies of the namespaces that are carried, or of one of them."""

        def work() -> pb.ListPoliciesResponse:
            if not request.namespace_id:
                found = self._ask("policies")["policies"]
            else:
                check_length("ListPoliciesRequest.namespace_id", request.namespace_id)
                found = [self._ask("policy", {"namespace": NamespaceId(request.namespace_id)})]
            return pb.ListPoliciesResponse(namespaces=map(_policies, found))

        return self._answer("ListPolicies", context, work)

    def SearchMessages(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.SearchRequest, context: grpc.ServicerContext
    ) -> pb.SearchResponse:
        """Return a page by sender or by time (P38)."""

        def work() -> pb.SearchResponse:
            if request.sender:
                check_length("SearchRequest.sender", request.sender, c.ADDRESS_BYTES)
            page = self._desk.search(
                request.sender,
                request.from_timestamp,
                request.to_timestamp,
                request.limit,
                request.cursor,
            )
            answer = _found(page, self._calls)
            answer.partial = page.partial
            return answer

        return self._answer("SearchMessages", context, work)

    def ListGaps(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.GapsRequest, context: grpc.ServicerContext
    ) -> pb.GapsResponse:
        """Return what is missing between the floor and the latest sequence."""

        def work() -> pb.GapsResponse:
            check_length("GapsRequest.namespace_id", request.namespace_id)
            limit = min(request.limit or GAPS_DEFAULT, GAPS_MAX)
            gaps, head = self._desk.gaps(NamespaceId(request.namespace_id), limit)
            return pb.GapsResponse(
                gaps=[sync_pb.SeqRange(first=first, last=last) for first, last in gaps],
                contiguous_seq=head.contiguous_seq,
                latest_seq=head.latest_seq,
            )

        return self._answer("ListGaps", context, work)

    def ReadBlob(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.ReadBlobRequest, context: grpc.ServicerContext
    ) -> pb.ReadBlobResponse:
        """Return a part of a blob; one that begins behind the end is OUT_OF_RANGE."""

        def work() -> pb.ReadBlobResponse:
            check_length("ReadBlobRequest.commitment", request.commitment, c.HASH_BYTES)
            blob = self._desk.blob(request.commitment)
            where = request.commitment.hex()
            if blob is None:
                raise GatewayError("no blob is held here", where=where, code="gateway.absent")
            if request.offset > len(blob):
                raise GatewayError(
                    f"the blob has {len(blob)} bytes", where=where, code="gateway.range"
                )
            end = request.offset + request.length if request.length else len(blob)
            data = blob[request.offset : end]
            self._calls.counters.sent(size_bytes=len(data))
            return pb.ReadBlobResponse(data=data, size_bytes=len(blob))

        return self._answer("ReadBlob", context, work)

    def DescribeNode(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.DescribeRequest, context: grpc.ServicerContext
    ) -> pb.DescribeResponse:
        """Return the state at a glance and the bounds that a client meets."""
        del request

        def work() -> pb.DescribeResponse:
            return pb.DescribeResponse(
                status_json=json.dumps(self._ask("status")),
                limits_json=json.dumps(self._ask("limits")),
            )

        return self._answer("DescribeNode", context, work)


class SearchServicer(RelayGatewayServicer):
    """The search of RelayGateway from a store; its other calls are UNIMPLEMENTED."""

    def __init__(self, store: SearchedStore, calls: CallBook, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._calls = calls
        self._clock_ms = clock_ms

    def SearchMessages(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.SearchRequest, context: grpc.ServicerContext
    ) -> pb.SearchResponse:
        """Return a page by sender or by time (P38)."""
        with self._calls.call("SearchMessages", context) as call, call.turn() as turn:
            answer = _found(self._page(request), self._calls)
            turn.read(answer.ByteSize())
            return answer
        raise AssertionError  # the call above returns or aborts

    def _page(self, request: pb.SearchRequest) -> SearchPage:
        bounds: dict[str, Any] = {
            "from_time": request.from_timestamp,
            "to_time": request.to_timestamp,
            "limit": request.limit,
            "cursor": request.cursor,
        }
        now_ms = self._clock_ms()
        if not request.sender:
            return self._store.query_time(TimeQuery(**bounds), now_ms)
        return self._store.query_sender(SenderQuery(sender=request.sender, **bounds), now_ms)


def _found(page: SearchPage, calls: CallBook) -> pb.SearchResponse:
    frames = [to_frame(each) for each in page.messages]
    sent = sum(len(each.header) + len(each.blob_data) for each in frames)
    calls.counters.sent(messages=len(frames), size_bytes=sent)
    return pb.SearchResponse(messages=frames, has_more=page.has_more, next_cursor=page.next_cursor)


class AdminServicer(_Desk, RelayAdminServicer):
    """RelayAdmin."""

    def ListBans(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.ListBansRequest, context: grpc.ServicerContext
    ) -> pb.ListBansResponse:
        """Return every ban in force."""
        del request
        return self._answer(
            "ListBans", context, lambda: _typed(self._ask("bans"), pb.ListBansResponse())
        )

    def Ban(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.BanRequest, context: grpc.ServicerContext
    ) -> pb.AdminDone:
        """Keep a peer out; its connection is dropped."""
        body = {
            "peerId": request.peer_id,
            "seconds": request.seconds,
            "reason": request.reason,
        }
        return self._done("Ban", context, "new_ban", {}, body)

    def LiftBan(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.PeerRequest, context: grpc.ServicerContext
    ) -> pb.AdminDone:
        """End a ban before its time."""
        return self._done("LiftBan", context, "lift_ban", {"peer_id": request.peer_id}, {})

    def Disconnect(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.PeerRequest, context: grpc.ServicerContext
    ) -> pb.AdminDone:
        """Drop a peer's connection."""
        return self._done("Disconnect", context, "disconnect", {"peer_id": request.peer_id}, {})

    def ListFollowed(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.ListFollowedRequest, context: grpc.ServicerContext
    ) -> pb.ListFollowedResponse:
        """Return what the node follows."""
        del request

        def work() -> pb.ListFollowedResponse:
            shown = self._ask("namespaces")
            return pb.ListFollowedResponse(
                carry=shown["carry"],
                followed_max=shown["followedMax"],
                namespaces=map(_followed, shown["namespaces"]),
            )

        return self._answer("ListFollowed", context, work)

    def Follow(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.FollowRequest, context: grpc.ServicerContext
    ) -> pb.FollowedNamespace:
        """Follow a namespace from now on."""
        body: dict[str, object] = {"documents": [each.hex() for each in request.documents]}
        if request.content_topic:
            body["contentTopic"] = request.content_topic
        if request.namespace_id:
            body["namespaceId"] = request.namespace_id.hex()
        return self._answer("Follow", context, lambda: _followed(self._ask("follow", {}, body)))

    def Unfollow(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.UnfollowRequest, context: grpc.ServicerContext
    ) -> pb.AdminDone:
        """Follow a namespace no longer."""

        def work() -> pb.AdminDone:
            check_length("UnfollowRequest.namespace_id", request.namespace_id)
            self._ask("unfollow", {"namespace": NamespaceId(request.namespace_id)})
            return pb.AdminDone()

        return self._answer("Unfollow", context, work)

    def ListTokens(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.ListTokensRequest, context: grpc.ServicerContext
    ) -> pb.ListTokensResponse:
        """Return every token without its text."""
        del request
        return self._answer(
            "ListTokens", context, lambda: _typed(self._ask("tokens"), pb.ListTokensResponse())
        )

    def NewToken(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.NewTokenRequest, context: grpc.ServicerContext
    ) -> pb.Token:
        """Make a token."""
        body = {
            "name": request.name,
            "scopes": list(request.scopes),
            "days": request.days,
            "requestsPerS": request.requests_per_s,
            "publishBytesPerS": request.publish_bytes_per_s,
        }
        return self._answer(
            "NewToken", context, lambda: _typed(self._ask("new_token", {}, body), pb.Token())
        )

    def RevokeToken(  # noqa: N802 - the name in relay_gateway.proto
        self, request: pb.TokenRequest, context: grpc.ServicerContext
    ) -> pb.Token:
        """End a token."""

        def work() -> pb.Token:
            if len(request.id) > TOKEN_ID_CHARS_MAX:
                raise GatewayError(
                    f"an id of {len(request.id)} characters",
                    where="TokenRequest.id",
                    hint=f"send {TOKEN_ID_CHARS_MAX} at most",
                )
            return _typed(self._ask("revoke_token", {"token_id": request.id}), pb.Token())

        return self._answer("RevokeToken", context, work)

    def _done(
        self,
        method: str,
        context: grpc.ServicerContext,
        call: str,
        values: Mapping[str, object],
        body: Mapping[str, object],
    ) -> pb.AdminDone:
        self._answer(method, context, lambda: self._ask(call, values, body))
        return pb.AdminDone()


def _followed(shown: Mapping[str, Any]) -> pb.FollowedNamespace:
    return pb.FollowedNamespace(
        namespace_id=from_hex(shown["namespaceId"]),
        content_topic=shown["contentTopic"],
        origin=shown["origin"],
        documents=shown["documents"],
    )


def _policies(shown: Mapping[str, Any]) -> pb.CarriedPolicies:
    return pb.CarriedPolicies(
        namespace_id=from_hex(shown["namespaceId"]),
        content_topic=shown["contentTopic"],
        policy_hashes=[from_hex(each) for each in shown["policyHashes"]],
        policies=[policy_from_json(each).encode() for each in shown["policies"]],
    )
