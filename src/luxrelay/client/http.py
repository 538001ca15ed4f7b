"""`RelayClient` and `AsyncRelayClient`: publish, query, heads, gaps and blobs of a node.

The blocking client keeps one connection, the asynchronous one a few; a connection that was closed
meanwhile is opened anew. Every call may be made again: publishing what is stored already is
answered as stored.

Source: docs/reference/http.md; user-05, user-07.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from luxrelay.bus import MsgHeader, NamespaceId
from luxrelay.client import calls
from luxrelay.client.calls import Call, Query
from luxrelay.client.exchange import Endpoint, Exchanges
from luxrelay.client.transport import AsyncLine, Line
from luxrelay.client.values import (
    Checks,
    CountedQuota,
    FollowedNamespace,
    Head,
    Message,
    Outgoing,
    Page,
    Receipt,
    checked_sidecar,
    sidecar_commitment,
)
from luxrelay.errors import ClientUnreachableError

Result = TypeVar("Result")
LINES_MAX: Final = 8
"""Connections that an asynchronous client keeps for later calls."""
TIMEOUT_S: Final = 30.0
"""Seconds that a connection, an answer or a frame has, and more for the bytes it brings."""


class RelayClient:
    """A blocking client of one node; any thread may call it, one call at a time.

    Args:
        address: ``host:port`` of the gateway, or its http or https URL.
        token: Bearer token; empty for calls that need none.
        checks: What is checked of each message; by default its signature.
        timeout_s: Seconds that the connection has, and each answer, and more for the bytes that
            come: one a second for 16 KiB. A stream is lost after as long without a frame, and
            after 30 s at the earliest.
        tls: Context for https; the system's certificates by default.
        token_in_clear: Whether the token may leave this machine without TLS, for a way that is
            protected otherwise.

    Raises:
        ClientArgumentError: the address or token cannot be used, or the token would travel in
            the clear.

    """

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        checks: Checks | None = None,
        timeout_s: float = TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        token_in_clear: bool = False,
    ) -> None:
        """Connect at the first call."""
        self.endpoint = Endpoint.of(address, token, token_in_clear=token_in_clear)
        """Where the node is."""
        self.checks = checks or Checks()
        """What is checked of each message."""
        self._timeout_s = timeout_s
        self._tls = tls
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._exchanges: Exchanges | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """The connection is closed; a later call opens another."""
        with self._lock:
            self._hang_up()

    def connect(self) -> Line:
        """Return a connection of its own, for a stream.

        Raises:
            ClientUnreachableError: the node cannot be reached.

        """
        return Line.open(self.endpoint, self._timeout_s, self._tls)

    def call(self, call: Call[Result]) -> Result:
        """Return the result of a call.

        Raises:
            ClientUnreachableError: the node cannot be reached, or was silent for too long.
            ClientRefusedError: it refused.
            ClientRemoteError: its answer cannot be used.

        """
        with self._lock:
            while True:
                fresh = self._line is None
                line, exchanges = self._dial()
                try:
                    result = line.run(exchanges.request(call))
                except ClientUnreachableError as error:
                    begun, error.came = exchanges.begun, bytes(exchanges.came)
                    self._hang_up()
                    if fresh or begun:
                        raise
                    continue  # a connection kept from an earlier call had ended meanwhile
                finally:
                    if not exchanges.reusable:
                        self._hang_up()
                return result

    def publish(self, messages: Sequence[Outgoing]) -> list[Receipt]:
        """Return a receipt for each message, once all have their verdict.

        A message that was not taken says so in its receipt. 256 messages and 8 MiB at once, unless
        ``limits`` names other bounds.

        Raises:
            ClientUnreachableError: no answer; publishing again is safe.
            ClientRefusedError: the call as a whole was refused.
            ClientRemoteError: the answer cannot be used.

        """
        return self.call(calls.publish(messages))

    def receipt(self, digest: bytes) -> Receipt:
        """Return what has become of a message that was published to this node."""
        return self.call(calls.receipt(digest))

    def quota(self, account: bytes) -> CountedQuota:
        """Return what the node has counted of a prepaid quota, by its hash."""
        return self.call(calls.quota(account))

    def page(self, query: Query) -> Page:
        """Return one page of a namespace."""
        return self.call(calls.query(query, self.checks))

    def messages(self, query: Query) -> Iterator[Message]:
        """Yield every message of a query, page by page."""
        while True:
            page = self.page(query)
            yield from page.messages
            if not page.has_more:
                return
            query = replace(query, cursor=page.next_cursor)

    def head(self, namespace_id: NamespaceId) -> Head:
        """Return how far a namespace reaches."""
        return self.call(calls.head(namespace_id))

    def heads(self, parent: NamespaceId | None = None) -> Iterator[Head]:
        """Yield the heads of a namespace and its lanes, or of all namespaces (J6)."""
        cursor = ""
        while True:
            found, cursor = self.call(calls.heads(parent, cursor))
            yield from found
            if not cursor:
                return

    def gaps(self, namespace_id: NamespaceId) -> list[tuple[int, int]]:
        """Return the first and last sequences of what is missing below the latest one."""
        return self.call(calls.gaps(namespace_id))

    def blob(self, commitment: bytes, first: int = 0, last: int | None = None) -> bytes:
        """Return a blob, or its bytes from ``first`` to ``last``, both inclusive.

        What came of it when the connection was lost, or silent for too long, is kept: it is gone on
        with at the byte reached, `calls.RESUMES_MAX` times at most and while bytes come.
        """
        reading = calls.BlobReading(commitment, first, last)
        while True:
            try:
                return reading.whole(self.call(reading.call()))
            except ClientUnreachableError as error:
                reading.broke(error)

    def followed(self) -> list[FollowedNamespace]:
        """Return what the node follows; for a client of the admin listener, as the next two."""
        return self.call(calls.followed())

    def follow(
        self,
        namespace_id: NamespaceId | None = None,
        *,
        content_topic: str = "",
        documents: Sequence[bytes] = (),
    ) -> FollowedNamespace:
        """Have the node follow a namespace from now on, restarts included.

        Args:
            namespace_id: Its id; this or ``content_topic``.
            content_topic: What the id is derived from.
            documents: Its signed policies, the first version first; none for the default policy.

        Raises:
            ClientRefusedError: a document does not check, or the node follows too many.

        """
        return self.call(calls.follow(namespace_id, content_topic, documents))

    def unfollow(self, namespace_id: NamespaceId) -> None:
        """Have the node follow a namespace no longer; what is stored stays for its time."""
        self.call(calls.unfollow(namespace_id))

    def sidecar(self, header: MsgHeader) -> bytes:
        """Return the TFHE sidecar that a header refers to, checked (LP-6411 §2.10).

        Raises:
            ClientArgumentError: the header refers to none.
            ClientRefusedError: the node has not got it.
            ClientRemoteError: the node sent another one.

        """
        return checked_sidecar(header, self.blob(sidecar_commitment(header)))

    def described(self, path: str) -> dict[str, Any]:
        """Return ``/v1/status``, ``/v1/limits`` or ``/v1/peers`` as the node gives it."""
        return self.call(calls.described(path))

    def _dial(self) -> tuple[Line, Exchanges]:
        if self._line is None or self._exchanges is None:
            self._line = self.connect()
            self._exchanges = Exchanges(self.endpoint)
        return self._line, self._exchanges

    def _hang_up(self) -> None:
        line, self._line, self._exchanges = self._line, None, None
        if line is not None:
            line.close()


class AsyncRelayClient:
    """The same on asyncio or trio; calls may run side by side.

    Args and errors are those of `RelayClient`.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        checks: Checks | None = None,
        timeout_s: float = TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        token_in_clear: bool = False,
    ) -> None:
        """Connect at the first call."""
        self.endpoint = Endpoint.of(address, token, token_in_clear=token_in_clear)
        """Where the node is."""
        self.checks = checks or Checks()
        """What is checked of each message."""
        self._timeout_s = timeout_s
        self._tls = tls
        self._idle: list[tuple[AsyncLine, Exchanges]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """The kept connections are closed; a later call opens another."""
        idle, self._idle = self._idle, []
        for line, _ in idle:
            await line.aclose()

    async def connect(self) -> AsyncLine:
        """Return a connection of its own, for a stream."""
        return await AsyncLine.open(self.endpoint, self._timeout_s, self._tls)

    async def call(self, call: Call[Result]) -> Result:
        """Return the result of a call; errors are those of `RelayClient.call`."""
        while True:
            fresh = not self._idle
            line, exchanges = (
                (await self.connect(), Exchanges(self.endpoint)) if fresh else self._idle.pop()
            )
            try:
                result = await line.run(exchanges.request(call))
            except ClientUnreachableError as error:
                error.came = bytes(exchanges.came)
                if fresh or exchanges.begun:
                    raise
                continue  # a connection kept from an earlier call had ended meanwhile
            finally:
                if exchanges.reusable and len(self._idle) < LINES_MAX:
                    self._idle.append((line, exchanges))
                else:
                    await line.aclose()
            return result

    async def publish(self, messages: Sequence[Outgoing]) -> list[Receipt]:
        """Return a receipt for each message; see `RelayClient.publish`."""
        return await self.call(calls.publish(messages))

    async def receipt(self, digest: bytes) -> Receipt:
        """Return what has become of a message that was published to this node."""
        return await self.call(calls.receipt(digest))

    async def quota(self, account: bytes) -> CountedQuota:
        """Return what the node has counted of a prepaid quota, by its hash."""
        return await self.call(calls.quota(account))

    async def page(self, query: Query) -> Page:
        """Return one page of a namespace."""
        return await self.call(calls.query(query, self.checks))

    async def messages(self, query: Query) -> AsyncGenerator[Message, None]:
        """Yield every message of a query, page by page."""
        while True:
            page = await self.page(query)
            for message in page.messages:
                yield message
            if not page.has_more:
                return
            query = replace(query, cursor=page.next_cursor)

    async def head(self, namespace_id: NamespaceId) -> Head:
        """Return how far a namespace reaches."""
        return await self.call(calls.head(namespace_id))

    async def heads(self, parent: NamespaceId | None = None) -> AsyncGenerator[Head, None]:
        """Yield the heads of a namespace and its lanes, or of all namespaces (J6)."""
        cursor = ""
        while True:
            found, cursor = await self.call(calls.heads(parent, cursor))
            for head in found:
                yield head
            if not cursor:
                return

    async def gaps(self, namespace_id: NamespaceId) -> list[tuple[int, int]]:
        """Return the first and last sequences of what is missing below the latest one."""
        return await self.call(calls.gaps(namespace_id))

    async def blob(self, commitment: bytes, first: int = 0, last: int | None = None) -> bytes:
        """Return a blob, or its bytes; it is gone on with as by `RelayClient.blob`."""
        reading = calls.BlobReading(commitment, first, last)
        while True:
            try:
                return reading.whole(await self.call(reading.call()))
            except ClientUnreachableError as error:
                reading.broke(error)

    async def followed(self) -> list[FollowedNamespace]:
        """Return what the node follows; for a client of the admin listener, as the next two."""
        return await self.call(calls.followed())

    async def follow(
        self,
        namespace_id: NamespaceId | None = None,
        *,
        content_topic: str = "",
        documents: Sequence[bytes] = (),
    ) -> FollowedNamespace:
        """Have the node follow a namespace; arguments and errors are those of `RelayClient`."""
        return await self.call(calls.follow(namespace_id, content_topic, documents))

    async def unfollow(self, namespace_id: NamespaceId) -> None:
        """Have the node follow a namespace no longer; what is stored stays for its time."""
        await self.call(calls.unfollow(namespace_id))

    async def sidecar(self, header: MsgHeader) -> bytes:
        """Return the TFHE sidecar that a header refers to; see `RelayClient.sidecar`."""
        return checked_sidecar(header, await self.blob(sidecar_commitment(header)))

    async def described(self, path: str) -> dict[str, Any]:
        """Return ``/v1/status``, ``/v1/limits`` or ``/v1/peers`` as the node gives it."""
        return await self.call(calls.described(path))
