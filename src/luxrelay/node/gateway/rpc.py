"""`GatewayRpc`: the gateway over gRPC, with the tokens, rates and bounds of HTTP.

Theory of operation
-------------------
*Threads*: gRPC's call the guard and the desk, which ask the loop: tokens, rates and peers belong to
it. What reads the store waits for the same places as HTTP's calls do.
*Listeners*: ``grpc_listen`` for applications, ``grpc_admin_listen`` for admin calls; each is off
while its key is empty.

Source: ADR 0002; decision P37.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import trio

from luxrelay.bus import MessageId, NamespaceId
from luxrelay.errors import GatewayError
from luxrelay.net.scopes import ReadyReport
from luxrelay.node.certificates import gateway_tls_of
from luxrelay.node.gateway.admin import Admin
from luxrelay.node.gateway.calls import HttpCaller, Request, Response, Scope
from luxrelay.node.gateway.http import Gateway, GatewayParts
from luxrelay.node.gateway.http_auth import Rates
from luxrelay.node.gateway.server import client_key
from luxrelay.node.gateway.store_and_archive import Found, StoreAndArchive
from luxrelay.node.gateway.subscription import ReadPage
from luxrelay.node.gateway.tokens import RELOAD_S, TokenFile
from luxrelay.node.listeners import named
from luxrelay.node.stages.deliver import Feed
from luxrelay.node.subscription_messages import FollowingConfig, StoreFollowing
from luxrelay.store import (
    NamespaceHead,
    NamespaceQuery,
    QueryPage,
    SenderQuery,
    StoredMessage,
    TimeQuery,
)
from luxrelay.sync import PublishItem, PublishReceipt, QuotaUse, SyncServerConfig
from luxrelay.sync.rpc.backing import StorePage
from luxrelay.sync.rpc.gateway_server import AdminRpcServer, GatewayRpcServer
from luxrelay.sync.rpc.service import RelaySyncServer
from luxrelay.sync.rpc.stats import SyncCounters

PAGE_BYTES: Final = 1024 * 1024
"""Header and blob bytes of a page of a search; one message always fits into a frame beside it."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """What publishes, as gRPC's server wants it."""

    publish: Callable[[Sequence[PublishItem]], Sequence[PublishReceipt]]
    receipts: Callable[[Sequence[bytes]], Sequence[PublishReceipt]]
    quotas: Callable[[Sequence[bytes]], Sequence[QuotaUse]]


class LoopGuard:
    """Admits callers by their tokens, on the loop."""

    def __init__(
        self, tokens: TokenFile, rates: Rates, anonymous: frozenset[Scope], parts: GatewayParts
    ) -> None:
        """Take what callers without a token may do."""
        self._tokens = tokens
        self._rates = rates
        self._anonymous = anonymous
        self._clock_ms = parts.clock_ms
        self._loop = trio.lowlevel.current_trio_token()

    def admit(self, scope: str, authorization: str, address: str) -> LoopPass:
        """Return the pass of a caller.

        Raises:
            GatewayError: it may not, or calls too often.
            TokenFileError: the file cannot be read.

        """
        caller = self.on_loop(self._admit, Scope(scope), authorization, client_key(address))
        return LoopPass(self, caller)

    def _admit(self, scope: Scope, authorization: str, key: bytes) -> HttpCaller:
        now = trio.current_time()
        if not authorization:
            caller = HttpCaller(key=key, scopes=self._anonymous)
        else:
            kind, _, text = authorization.partition(" ")
            given = text.strip() if kind.lower() == "bearer" else ""
            try:
                caller = self._tokens.caller(given, self._clock_ms(), now)
            except GatewayError:
                self._rates.request(HttpCaller(key=key, scopes=frozenset()), now)  # as over HTTP
                raise
        self._rates.request(caller, now)
        if scope not in caller.scopes:
            if not caller.name:
                raise GatewayError("the call needs a token", code="gateway.token")
            raise GatewayError(f"the token lacks the scope {scope.value!r}", code="gateway.scope")
        return caller

    def holds(self, caller: HttpCaller) -> bool:
        """Return whether a caller's token is neither revoked nor expired."""
        if not caller.name:
            return True
        now_ms = self._clock_ms()
        return self.on_loop(lambda: self._tokens.holds(caller.key, now_ms, trio.current_time()))

    def charge(self, caller: HttpCaller, size_bytes: int) -> None:
        """Take a publishing request of so many bytes from a caller's rates.

        Raises:
            GatewayError: they allow no more (``gateway.rate``), or its token is revoked or
                expired (``gateway.token``).

        """

        def take() -> None:
            now = trio.current_time()
            if caller.name and not self._tokens.holds(caller.key, self._clock_ms(), now):
                raise GatewayError("the token was revoked or has expired", code="gateway.token")
            self._rates.request(caller, trio.current_time())
            self._rates.publish(caller, size_bytes, trio.current_time())

        self.on_loop(take)

    def on_loop(self, call: Callable[..., Result], *args: Any) -> Result:
        """Return what a call on the loop returns."""
        try:
            return trio.from_thread.run_sync(call, *args, trio_token=self._loop)
        except trio.RunFinishedError as error:
            raise GatewayError("the node is stopping", code="gateway.busy") from error


class LoopPass:
    """A caller that was let in."""

    def __init__(self, guard: LoopGuard, caller: HttpCaller) -> None:
        """Keep who it is."""
        self._guard = guard
        self._caller = caller
        self._looked = time.monotonic()

    @property
    def key(self) -> str:
        """What its streams are counted under: its token or its address."""
        return f"{'token' if self._caller.name else 'address'}:{self._caller.key.hex()}"

    def allows(self, scope: str) -> bool:
        """Return whether it may do this as well."""
        return Scope(scope) in self._caller.scopes

    def holds(self) -> bool:
        """Return whether its token is neither revoked nor expired, as of the last `RELOAD_S`."""
        now = time.monotonic()
        if now - self._looked < RELOAD_S:  # frames are many, and the loop has other work
            return True
        self._looked = now
        return self._guard.holds(self._caller)

    def publish(self, size_bytes: int) -> None:
        """Charge one more publishing request."""
        self._guard.charge(self._caller, size_bytes)


class GatewayApi:
    """Answers from the same calls as HTTP does."""

    def __init__(
        self, gateway: Gateway, admin: Admin | None, parts: GatewayParts, holdings: StoreAndArchive
    ) -> None:
        """Answer admin calls with an ``admin`` only."""
        self._parts = parts
        self._holdings = holdings
        self._loop = trio.lowlevel.current_trio_token()
        self._calls: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "peers": gateway.peers,
            "policies": gateway.policies,
            "policy": gateway.policy,
            "status": gateway.status,
            "limits": gateway.limits,
        }
        if admin is not None:
            self._calls = {
                "bans": admin.bans,
                "new_ban": admin.new_ban,
                "lift_ban": admin.lift_ban,
                "disconnect": admin.disconnect,
                "namespaces": admin.namespaces,
                "follow": admin.follow,
                "unfollow": admin.unfollow,
                "tokens": admin.tokens,
                "new_token": admin.new_token,
                "revoke_token": admin.revoke_token,
            }

    def ask(self, call: str, values: Mapping[str, object], body: Mapping[str, object]) -> Any:
        """Return the JSON value that the HTTP call of this name answers with; None for none."""
        request = Request(
            method="POST" if body else "GET",
            path="",
            headers={},
            values=values,
            body=json.dumps(body).encode(),
            content_type="application/json",
            caller=HttpCaller(key=b"", scopes=frozenset()),
        )
        answer = self._wait(partial(self._calls[call], request))
        return json.loads(answer.body) if answer.body else None

    def search(self, sender: bytes, from_ms: int, to_ms: int, limit: int, cursor: bytes) -> Found:
        """Return a page of a sender's messages, or of all by time when ``sender`` is empty."""
        bounds: dict[str, Any] = {
            "from_time": from_ms,
            "to_time": to_ms,
            "limit": min(limit or 100, self._parts.config.page_messages_max),
            "max_bytes": min(PAGE_BYTES, self._parts.config.page_bytes_max),
            "cursor": cursor,
        }
        query = SenderQuery(sender=sender, **bounds) if sender else TimeQuery(**bounds)
        return self._wait(partial(self._holdings.search, query, lambda found: found))

    def gaps(
        self, namespace_id: NamespaceId, limit: int
    ) -> tuple[Sequence[tuple[int, int]], NamespaceHead]:
        """Return what is missing of a namespace, and its head."""
        store = self._parts.store
        return self._work(lambda: (store.gaps(namespace_id, limit), store.head(namespace_id)))

    def blob(self, commitment: bytes) -> bytes | None:
        """Return a blob, the node's own, a peer's or the archive's."""
        return self._wait(partial(self._holdings.blob, commitment))

    def _work(self, call: Callable[[], Result]) -> Result:
        return self._wait(partial(self._parts.work.run, call))

    def _wait(self, call: Callable[[], Awaitable[Result]]) -> Result:
        return _waited(call, self._loop)


class LoopBeyond:
    """What an archive has beyond the store, asked through the loop from gRPC's threads."""

    def __init__(self, holdings: StoreAndArchive) -> None:
        """Ask these."""
        self._holdings = holdings
        self._loop = trio.lowlevel.current_trio_token()

    def page(self, query: NamespaceQuery, page: StorePage) -> StorePage:
        """Return the page that comes before a page of the store, or that page itself."""
        assert isinstance(page, QueryPage), "it is of the store"
        if not self._holdings.lacks(query, page.earliest_seq):
            return page
        return _waited(partial(self._holdings.before, query, page), self._loop)

    def slots(self, ids: Sequence[MessageId]) -> tuple[list[StoredMessage], Sequence[MessageId]]:
        """Return messages of slots that the store lacks, and the slots that are nowhere."""
        return _waited(partial(self._holdings.slots, ids), self._loop)

    def blob(self, commitment: bytes) -> bytes | None:
        """Return a blob that the store lacks; None without one."""
        return _waited(partial(self._holdings.archived_blob, commitment), self._loop)

    def replay(self, query: NamespaceQuery, page: QueryPage, head: NamespaceHead) -> ReadPage:
        """Return a subscriber's page."""
        return _waited(partial(self._holdings.replay, query, page, head), self._loop)


def _waited(call: Callable[[], Awaitable[Result]], loop: trio.lowlevel.TrioToken) -> Result:
    try:
        return trio.from_thread.run(call, trio_token=loop)
    except (trio.RunFinishedError, trio.Cancelled) as error:
        raise GatewayError("the node is stopping", code="gateway.busy") from error


class GatewayRpc:
    """Both listeners of one node."""

    def __init__(
        self,
        parts: GatewayParts,
        feed: Feed,
        gateway: Gateway,
        admin: Admin,
        tokens: TokenFile,
        *,
        holdings: StoreAndArchive,
    ) -> None:
        """Put the servers together; `run` opens their ports."""
        self._parts = parts
        self._holdings = holdings
        self._feed = feed
        self._gateway = gateway
        self._admin = admin
        self._tokens = tokens
        self._counters = parts.calls or SyncCounters()

    async def run(
        self, *, task_status: ReadyReport[tuple[str, str]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled; ``task_status`` gets both addresses, empty for one that is off.

        Raises:
            SyncUnreachableError: a port cannot be had.
            SyncArgumentError: the certificate cannot be used.

        """
        config = self._parts.config
        served: list[tuple[RelaySyncServer, str]] = []
        addresses = []
        try:
            for key, listen, make in (
                ("grpc_listen", config.grpc_listen, self._public),
                ("grpc_admin_listen", config.grpc_admin_listen, self._private),
            ):
                if not listen:
                    addresses.append("")
                    continue
                server = make(listen)
                with named("gateway", key):
                    port = server.start()
                served.append((server, listen))
                addresses.append(f"{listen.rpartition(':')[0]}:{port}")
            task_status.started((addresses[0], addresses[1]))
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):  # its threads may still ask the loop
                for server, _ in served:
                    await trio.to_thread.run_sync(server.stop, 1.0)

    def _public(self, listen: str) -> RelaySyncServer:
        parts, config = self._parts, self._parts.config
        following = FollowingConfig(
            lanes_max=config.subscription_lanes_max, gap_wait_ms=config.gap_wait_ms
        )
        beyond = None if parts.older is None else LoopBeyond(self._holdings)
        anonymous = frozenset({Scope.READ} if config.reads_without_token(listen) else ())
        return GatewayRpcServer(
            parts.store,
            _listening(
                listen,
                parts,
                workers=64,
                streams_max=24,
                publishers_max=8,
                subscribers_max=min(24, config.subscribers_max),
                looks_max=4,
            ),
            meter=parts.meter,
            clock_ms=parts.clock_ms,
            publisher=Publishing(
                publish=parts.publish, receipts=parts.receipts, quotas=parts.quotas
            ),
            followed=StoreFollowing(
                parts.store,
                self._feed,
                parts.clock_ms,
                following,
                None if beyond is None else beyond.replay,
                in_order=parts.in_order,
                carries=parts.carried.asked,
            ),
            beyond=beyond,
            desk=GatewayApi(self._gateway, None, parts, self._holdings),
            guard=LoopGuard(self._tokens, parts.rates, anonymous, parts),
            tls=gateway_tls_of(self._parts.config),
            counters=self._counters,
        )

    def _private(self, listen: str) -> RelaySyncServer:
        parts = self._parts
        return AdminRpcServer(
            _listening(
                listen,
                parts,
                workers=16,
                streams_max=1,
                publishers_max=0,
                subscribers_max=0,
                looks_max=2,
            ),
            clock_ms=parts.clock_ms,
            desk=GatewayApi(self._gateway, self._admin, parts, self._holdings),
            guard=LoopGuard(self._tokens, parts.rates, frozenset(), parts),
            tls=gateway_tls_of(self._parts.config),
            counters=self._counters,
        )


def _listening(listen: str, parts: GatewayParts, **threads: Any) -> SyncServerConfig:
    """Return what a listener allows: the node's window and rates, and the gateway's bounds."""
    host, _, port = listen.rpartition(":")
    config = parts.config
    return replace(
        parts.sync,
        host=host,
        port=int(port),
        connections_max=config.connections_max,
        idle_ms=config.idle_ms,
        request_wait_s=config.request_ms / 1000,
        publish_items_max=config.publish_items_max,
        page_messages_max=config.page_messages_max,
        page_bytes_max=config.page_bytes_max,
        heads_read=config.heads_max,
        fairness=replace(parts.sync.fairness, stall_s=config.stall_ms / 1000),
        subscription_namespaces_max=config.subscription_namespaces_max,
        **threads,
    )
