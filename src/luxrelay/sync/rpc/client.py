"""`RelaySyncClient`: asks one relay, values in and values out.

Every fault leaves as one of two errors with the relay's address: `SyncUnreachableError` when it
cannot be reached, is busy or too slow (ask again, or another); `SyncRemoteError` when it answered
with something that cannot be used (ask another). What it says is checked for namespace, order,
range and size; messages themselves are not verified here, whoever receives them does that.

Source: LP-6421 §2.2, §2.3; decisions P18, P22, P23, P24, P37.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

import grpc

from luxrelay.bus import constants as c
from luxrelay.bus.header import MessageId, NamespaceId, message_id
from luxrelay.errors import SyncArgumentError, SyncRemoteError
from luxrelay.sync.heads import Head
from luxrelay.sync.messages import (
    PublishItem,
    PublishReceipt,
    SyncPage,
    WireMessage,
)
from luxrelay.sync.rpc import relay_node_pb2 as node_pb
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.config import (
    IDS_MAX,
    PAGE_BYTES_MAX,
    PAGE_MESSAGES_DEFAULT,
    PAGE_MESSAGES_MAX,
    SyncClientConfig,
    require,
)
from luxrelay.sync.rpc.faults import translated, unreachable
from luxrelay.sync.rpc.frames import (
    PageCheck,
    publish_frames,
    to_head,
    to_message,
    to_receipt,
)
from luxrelay.sync.rpc.relay_node_pb2_grpc import RelayNodeStub
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncStub
from luxrelay.sync.rpc.scope import CallScope

_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_Answer = TypeVar("_Answer")
_Answer_co = TypeVar("_Answer_co", covariant=True)


class _Streaming(Protocol[_Answer_co]):
    """What gRPC returns for a streaming call."""

    def __iter__(self) -> Iterator[_Answer_co]: ...

    def cancel(self) -> bool: ...


class RelaySyncClient:
    """A relay at ``host:port``; connects on first use, may be shared by threads, pickles.

    Args:
        address: ``host:port``; an IPv6 address in brackets.
        config: Deadlines and sizes.

    Raises:
        SyncArgumentError: the address is not of that form.

    Source: P37.

    """

    def __init__(self, address: str, *, config: SyncClientConfig | None = None) -> None:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[1]) <= 65_535:
            raise SyncArgumentError(
                f"{address!r} is no relay address",
                where="address",
                hint="write host:port, for example 127.0.0.1:9641",
            )
        self.address = address
        self.config = config or SyncClientConfig()
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._closed = False

    def sync_page(
        self,
        namespace_id: bytes,
        from_seq: int = 0,
        to_seq: int = 0,
        max_messages: int = 0,
        *,
        from_time: int = 0,
        to_time: int = 0,
        cursor: bytes = b"",
        max_bytes: int = 0,
        deadline_s: float | None = None,
        scope: CallScope | None = None,
    ) -> SyncPage:
        """Return one page of a namespace: messages ascending by sequence and how it ended.

        Args:
            namespace_id: 20 bytes.
            from_seq: Exclusive lower bound.
            to_seq: Inclusive upper bound; 0 for the relay's latest.
            max_messages: At most this many; 0 for 1,000, never above 10,000.
            from_time: Inclusive lower bound of header timestamps, Unix milliseconds.
            to_time: Inclusive upper bound, Unix milliseconds; 0 for none.
            cursor: ``status.next_cursor`` of the page before, all else unchanged.
            max_bytes: Bytes of headers and blobs; 0 for 16 MiB, which is the most.
            deadline_s: Seconds; the configuration's when not given.
            scope: Lets another thread cancel the call.

        Raises:
            SyncArgumentError: a value is out of range.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used.

        Source: LP-6421 §2.2, P18, P20, P21, P23.

        """
        _check_id("namespace_id", namespace_id, c.NAMESPACE_BYTES)
        for name, value in (
            ("from_seq", from_seq),
            ("to_seq", to_seq),
            ("from_time", from_time),
            ("to_time", to_time),
        ):
            require(name, value, 0, c.MAX_U64)
        require("max_messages", max_messages, 0, PAGE_MESSAGES_MAX)
        require("max_bytes", max_bytes, 0, PAGE_BYTES_MAX)
        request = pb.SyncRequest(
            namespace_id=namespace_id,
            from_seq=from_seq,
            to_seq=to_seq,
            from_timestamp=from_time,
            max_messages=max_messages,
            cursor=cursor,
            max_frame_messages=self.config.frame_messages,
            max_bytes=max_bytes,
            to_timestamp=to_time,
        )
        check = PageCheck(
            namespace_id=NamespaceId(namespace_id),
            from_seq=from_seq,
            to_seq=to_seq or c.MAX_U64,
            rows_max=max_messages or PAGE_MESSAGES_DEFAULT,
            bytes_max=max_bytes or PAGE_BYTES_MAX,
            gaps_max=self.config.gaps_max,
        )
        timeout = deadline_s or self.config.page_s
        try:
            for frame in self._stream(
                lambda channel: RelaySyncStub(channel).SyncNamespace(request, timeout=timeout),
                scope,
            ):
                check.take(frame)
            return check.page()
        except ValueError as error:
            raise self._bad(str(error)) from None

    def iter_pages(
        self,
        namespace_id: bytes,
        from_seq: int = 0,
        to_seq: int = 0,
        *,
        page_messages: int = 0,
        from_time: int = 0,
        to_time: int = 0,
        max_bytes: int = 0,
        deadline_s: float | None = None,
        scope: CallScope | None = None,
    ) -> Iterator[SyncPage]:
        """Yield pages by cursor until the relay has no more; arguments and errors of `sync_page`.

        Source: P24: one page is not enough after a longer absence.
        """
        cursor, last = b"", from_seq
        while True:
            page = self.sync_page(
                namespace_id,
                from_seq,
                to_seq,
                page_messages,
                from_time=from_time,
                to_time=to_time,
                cursor=cursor,
                max_bytes=max_bytes,
                deadline_s=deadline_s,
                scope=scope,
            )
            yield page
            if not page.status.has_more:
                return
            if page.status.next_cursor == cursor or page.status.last_seq < last:
                raise self._bad("the cursor does not move on")
            cursor, last = page.status.next_cursor, page.status.last_seq

    def get_messages(self, ids: Sequence[bytes]) -> tuple[list[WireMessage], list[MessageId]]:
        """Return the messages of up to 1,000 ids, and the ids the relay does not hold.

        An id names a slot, so one id may bring several candidates (J11). Asks again for what did
        not fit into one answer.

        Raises:
            SyncArgumentError: more than 1,000 ids, or an id that has not 32 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used.

        Source: LP-6421 §2.2, P22.

        """
        require("len(ids)", len(ids), 0, IDS_MAX)
        for each in ids:
            _check_id("id", each, c.HASH_BYTES)
        found: list[WireMessage] = []
        missing: list[MessageId] = []
        wanted = list(dict.fromkeys(ids))
        while wanted:
            answer = self._get_messages(wanted)
            try:
                messages = [to_message(message) for message in answer.found]
            except ValueError as error:
                raise self._bad(str(error)) from None
            slots = {message_id(message.namespace_id, message.seq) for message in messages}
            told = slots.union(answer.missing, answer.omitted)
            if told != set(wanted) or len(answer.omitted) >= len(wanted):
                raise self._bad("the ids of the answer are not the ids asked for")
            found += messages
            missing += [MessageId(each) for each in answer.missing]
            wanted = list(answer.omitted)
        return found, missing

    def get_head(self, namespace_id: bytes) -> Head:
        """Return what the relay holds of one namespace; zeros when it does not know it.

        Raises:
            SyncArgumentError: the id has not 20 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used.

        Source: LP-6421 §2.2, P22.

        """
        _check_id("namespace_id", namespace_id, c.NAMESPACE_BYTES)
        request = pb.NamespaceHeadRequest(namespace_id=namespace_id)
        answer = self._unary(
            lambda channel: RelaySyncStub(channel).GetNamespaceHead(
                request, timeout=self.config.call_s
            )
        )
        head = self._head(answer, namespace_id)
        if head.namespace_id != namespace_id:
            raise self._bad("the head of another namespace")
        return head

    def list_heads(
        self,
        parent: bytes | None = None,
        *,
        deadline_s: float | None = None,
        scope: CallScope | None = None,
    ) -> Generator[Head, None, None]:
        """Yield the heads of a parent namespace and its lanes, or of every namespace.

        Close the generator to end the call before its end.

        Raises (while iterating):
            SyncArgumentError: the parent has not 20 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used, or more than ``heads_max`` heads.

        Source: J6.

        """
        if parent is not None:
            _check_id("parent", parent, c.NAMESPACE_BYTES)
        cursor, count = b"", 0
        while True:
            following = b""
            for answer in self._heads_page(parent or b"", cursor, deadline_s, scope):
                count += 1
                if count > self.config.heads_max:
                    raise self._bad(f"more than {self.config.heads_max} heads")
                head = self._head(answer, b"")
                if parent is not None and head.parent_id != parent:
                    raise self._bad("a head of another parent")
                following = answer.next_cursor
                yield head
            if not following:
                return
            if following == cursor:
                raise self._bad("the cursor does not move on")
            cursor = following

    def publish(self, items: Iterable[PublishItem]) -> list[PublishReceipt]:
        """Return one receipt an item, in order, after the node has dealt with all of them.

        The deadline grows with what is sent: ``publish_s`` for each request it takes.

        Raises:
            SyncArgumentError: an item is above the limits of LP-6411 §5, or its parent has not
                20 bytes; nothing was sent.
            SyncUnreachableError: no answer in time; items may or may not have been taken, and
                publishing them again is harmless.
            SyncRemoteError: the node takes no messages, or answered with something else.

        Source: P37.

        """
        config = self.config
        checked = [_checked(item) for item in items]
        size = sum(len(item.header) + len(item.blob) for item in checked)
        rounds = 1 + len(checked) // config.publish_items + size // config.publish_bytes
        sent: list[int] = []

        def requests() -> Iterator[node_pb.PublishRequest]:
            for frame in publish_frames(checked, config.publish_items, config.publish_bytes):
                sent.append(len(frame.items))
                yield frame

        receipts: list[PublishReceipt] = []
        answered = 0
        for answer in self._stream(
            lambda channel: RelayNodeStub(channel).Publish(
                requests(), timeout=config.publish_s * rounds
            ),
            None,
        ):
            if answered >= len(sent) or len(answer.receipts) != sent[answered]:
                raise self._bad("receipts that do not match the items")
            try:
                receipts += [to_receipt(each) for each in answer.receipts]
            except ValueError as error:
                raise self._bad(str(error)) from None
            answered += 1
        if answered != len(sent):
            raise self._bad("the stream ended before every item had its receipt")
        return receipts

    def close(self) -> None:
        """Close the connection; calls under way end as unreachable. May be called twice."""
        with self._lock:
            channel, self._channel, self._closed = self._channel, None, True
        if channel is not None:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        """Travel as address and configuration; the other side connects by itself."""
        return (_rebuild, (self.address, self.config))

    def __repr__(self) -> str:
        return f"RelaySyncClient({self.address!r})"

    def _connect(self) -> grpc.Channel:
        with self._lock:
            if self._closed:
                raise SyncArgumentError(
                    "the client is closed", where=self.address, hint="open a new RelaySyncClient"
                )
            if self._channel is None:
                self._channel = grpc.insecure_channel(self.address, options=self._options())
            return self._channel

    def _options(self) -> list[tuple[str, int]]:
        # What gRPC calls the least time between two attempts is the most time for one.
        return [
            ("grpc.max_receive_message_length", self.config.frame_bytes_max),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", int(self.config.connect_s * 1000)),
            ("grpc.max_reconnect_backoff_ms", int(self.config.reconnect_s * 1000)),
            ("grpc.use_local_subchannel_pool", 1),  # two clients never share a connection's fate
            ("grpc.enable_http_proxy", 0),  # a relay is dialled, never fetched through a proxy
        ]

    def _get_messages(self, ids: Sequence[bytes]) -> pb.GetMessagesResponse:
        request = pb.GetMessagesRequest(ids=ids)
        return self._unary(
            lambda channel: RelaySyncStub(channel).GetMessages(request, timeout=self.config.call_s)
        )

    def _heads_page(
        self, parent: bytes, cursor: bytes, deadline_s: float | None, scope: CallScope | None
    ) -> Iterator[pb.NamespaceHeadResponse]:
        request = pb.ListHeadsRequest(parent_id=parent, cursor=cursor, limit=self.config.heads_page)
        timeout = deadline_s or self.config.call_s
        return self._stream(
            lambda channel: RelaySyncStub(channel).ListHeads(request, timeout=timeout), scope
        )

    def _unary(self, call: Callable[[grpc.Channel], _Answer]) -> _Answer:
        channel = self._connect()
        try:
            return call(channel)
        except grpc.RpcError as error:
            raise translated(error, self.address) from None
        except ValueError:  # the channel was closed by another thread in between
            raise unreachable("the client was closed", self.address) from None

    def _stream(
        self,
        start: Callable[[grpc.Channel], _Streaming[_Answer]],
        scope: CallScope | None,
    ) -> Iterator[_Answer]:
        """Yield the frames of a stream; the call ends with the iteration, however that ends."""
        channel = self._connect()
        try:
            call = start(channel)
        except ValueError:  # the channel was closed by another thread in between
            raise unreachable("the client was closed", self.address) from None
        if scope is not None:
            scope.enter(call.cancel)
        try:
            yield from call
        except grpc.RpcError as error:
            raise translated(error, self.address) from None
        finally:
            call.cancel()
            if scope is not None:
                scope.leave(call.cancel)

    def _head(self, answer: pb.NamespaceHeadResponse, asked: bytes) -> Head:
        try:
            return to_head(answer, asked)
        except ValueError as error:
            raise self._bad(str(error)) from None

    def _bad(self, what: str) -> SyncRemoteError:
        return SyncRemoteError(f"the relay's answer cannot be used: {what}", where=self.address)


def _rebuild(address: str, config: SyncClientConfig) -> RelaySyncClient:
    return RelaySyncClient(address, config=config)


def _check_id(name: str, value: object, length: int) -> None:
    if not isinstance(value, bytes) or len(value) != length:
        raise SyncArgumentError(f"{name} must be {length} bytes", where=name)


def _checked(item: PublishItem) -> PublishItem:
    require("len(header)", len(item.header), 0, c.MAX_HEADER_BYTES)
    require("len(blob)", len(item.blob), 0, c.MAX_BLOB_BYTES)
    if item.parent_id:
        _check_id("parent_id", item.parent_id, c.NAMESPACE_BYTES)
    return item
