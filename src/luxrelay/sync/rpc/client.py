"""`RelaySyncClient`: asks one relay, values in and values out.

Every fault leaves as one of two errors with the relay's address: `SyncUnreachableError` when it
cannot be reached, is busy or too slow (ask again, or another); `SyncRemoteError` when it answered
with something that cannot be used (ask another). What it says is checked for namespace, order,
range and size; messages themselves are not verified here, whoever receives them does that.

`SearchCalls`: what a client asks of an index of time or of senders.

Source: LP-6421 §2.2, §2.3; LP-6440; decisions P18, P22, P23, P24, P37, P38.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

import grpc

from luxrelay.bus import constants as c
from luxrelay.bus.header import MessageId, MsgHeader, NamespaceId, message_id
from luxrelay.bus.seq_ranges import ToldGaps
from luxrelay.errors import HeaderError, SyncArgumentError, SyncRemoteError, SyncUnreachableError
from luxrelay.sync.following import (
    Followed,
    FollowedDropped,
    FollowedGap,
    FollowedLive,
    FollowEvent,
    SubscribeWanted,
)
from luxrelay.sync.heads import PeerHead
from luxrelay.sync.messages import (
    FoundPage,
    LanePage,
    LaneRange,
    PageFlow,
    SyncPage,
    WireMessage,
)
from luxrelay.sync.rpc import relay_gateway_pb2 as gateway_pb
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.config import (
    IDS_MAX,
    LANES_MAX,
    PAGE_BYTES_MAX,
    PAGE_MESSAGES_DEFAULT,
    PAGE_MESSAGES_MAX,
    require,
    require_id,
)
from luxrelay.sync.rpc.connection import RelayConnection, Streaming
from luxrelay.sync.rpc.frames import PageCheck, to_head, to_message
from luxrelay.sync.rpc.node_calls import NodeCalls
from luxrelay.sync.rpc.patience import beating
from luxrelay.sync.rpc.relay_gateway_pb2_grpc import RelayGatewayStub
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncStub
from luxrelay.sync.rpc.scope import CallScope
from luxrelay.sync.rpc.set_calls import SetCalls

SENDER_CURSOR_BYTES: Final = c.NAMESPACE_BYTES + 8 + c.HASH_BYTES
"""Namespace, sequence and content id of a message."""
TIME_CURSOR_BYTES: Final = 8 + SENDER_CURSOR_BYTES
"""The same behind its timestamp."""


class SearchCalls(RelayConnection):
    """The search of RelayGateway: of a gateway over gRPC, or of an archive's sync port."""

    def search(
        self,
        sender: bytes = b"",
        *,
        from_time: int = 0,
        to_time: int = 0,
        limit: int = 0,
        cursor: bytes = b"",
    ) -> FoundPage:
        """Return a page of a sender's messages by namespace and sequence, or of all by time.

        Args:
            sender: The sender's address, 20 bytes; empty for a search by time.
            from_time: Inclusive lower bound of header timestamps, Unix milliseconds.
            to_time: Inclusive upper bound, Unix milliseconds; 0 for none.
            limit: At most this many messages; 0 for what the other side likes to give.
            cursor: ``next_cursor`` of the page before, all else unchanged.

        Raises:
            SyncArgumentError: a value is out of range.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: no search there, or an answer that cannot be used.

        Source: P38.

        """
        if sender:
            require_id("sender", sender, c.ADDRESS_BYTES)
        length = SENDER_CURSOR_BYTES if sender else TIME_CURSOR_BYTES
        if cursor:
            require_id("cursor", cursor, length)
        for name, value in (("from_time", from_time), ("to_time", to_time)):
            require(name, value, 0, c.MAX_U64)
        require("limit", limit, 0, PAGE_MESSAGES_MAX)
        request = gateway_pb.SearchRequest(
            sender=sender, from_timestamp=from_time, to_timestamp=to_time, limit=limit,
            cursor=cursor,
        )  # fmt: skip
        answer = self._unary(
            lambda channel: RelayGatewayStub(channel).SearchMessages(
                request, timeout=self.config.page_s
            )
        )
        if len(answer.messages) > (limit or PAGE_MESSAGES_MAX):
            raise self._bad(f"{len(answer.messages)} messages instead of {limit}")
        following = answer.next_cursor
        if answer.has_more != bool(following) or len(following) not in {0, length}:
            raise self._bad("a cursor that is none")
        if following and following <= cursor:
            raise self._bad("the cursor does not move on")
        try:
            messages = [to_message(each) for each in answer.messages]
        except ValueError as error:
            raise self._bad(str(error)) from None
        return FoundPage(messages=messages, next_cursor=following, partial=answer.partial)


class RelaySyncClient(SetCalls, NodeCalls, SearchCalls):
    """A relay at ``host:port``; connects on first use, may be shared by threads, pickles.

    Args:
        address: ``host:port``; an IPv6 address in brackets.
        config: Deadlines and sizes.
        tls: Whom to believe and what to show; None speaks in the clear.

    Raises:
        SyncArgumentError: the address is not of that form.

    Source: P37.

    """

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
        held: bool = False,
        deadline_s: float | None = None,
        flow: PageFlow | None = None,
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
            held: Also what is past its time and waits for the archive (J8).
            deadline_s: Seconds; the configuration's when not given.
            flow: Has a deadline by progress instead, and keeps what came of a page that is cut.
            scope: Lets another thread cancel the call.

        Raises:
            SyncArgumentError: a value is out of range.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used.

        Source: LP-6421 §2.2, P18, P20, P21, P23.

        """
        lane = LaneRange(
            namespace_id=NamespaceId(namespace_id), from_seq=from_seq, to_seq=to_seq, cursor=cursor
        )
        _check_lane(lane)
        check = self._check((lane,), max_messages, max_bytes, several=False)
        request = self._request(max_messages, from_time, to_time, max_bytes, held=held)
        request.namespace_id = namespace_id
        request.from_seq, request.to_seq, request.cursor = from_seq, to_seq, cursor
        self._run(request, check, deadline_s, flow, scope)
        try:
            return check.page()
        except ValueError as error:
            raise self._bad(str(error)) from None

    def sync_lanes(
        self,
        lanes: Sequence[LaneRange],
        max_messages: int = 0,
        *,
        from_time: int = 0,
        to_time: int = 0,
        max_bytes: int = 0,
        held: bool = False,
        deadline_s: float | None = None,
        flow: PageFlow | None = None,
        scope: CallScope | None = None,
    ) -> list[LanePage]:
        """Return one page of several namespaces: those that fitted, in the order asked.

        The page is full at ``max_messages`` or ``max_bytes``, all lanes together. The last lane
        returned may have more (``status.has_more``); lanes behind it were not looked at. A page
        brings at least one message or ends at least one lane, so `iter_lanes` always comes to an
        end.

        Args:
            lanes: Ranges, each namespace once, 256 at most.
            max_messages: As in `sync_page`.
            from_time: As in `sync_page`, for every lane.
            to_time: As in `sync_page`, for every lane.
            max_bytes: As in `sync_page`.
            held: Also what is past its time and waits for the archive (J8).
            deadline_s: Seconds; the configuration's when not given.
            flow: Has a deadline by progress instead, and keeps what came of a page that is cut.
            scope: Lets another thread cancel the call.

        Raises:
            SyncArgumentError: a value is out of range, or a namespace is named twice.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used; a relay that knows the plain protocol
                only refuses the call.

        Source: LP-6421 §2.2, P23, P24, J6.

        """
        require("len(lanes)", len(lanes), 1, LANES_MAX)
        if len({lane.namespace_id for lane in lanes}) != len(lanes):
            raise SyncArgumentError("a namespace is named twice", where="lanes")
        for lane in lanes:
            _check_lane(lane)
        check = self._check(lanes, max_messages, max_bytes, several=True)
        request = self._request(max_messages, from_time, to_time, max_bytes, held=held)
        for lane in lanes:
            request.lanes.add(
                namespace_id=lane.namespace_id,
                from_seq=lane.from_seq,
                to_seq=lane.to_seq,
                cursor=lane.cursor,
            )
        self._run(request, check, deadline_s, flow, scope)
        try:
            return check.pages()
        except ValueError as error:
            raise self._bad(str(error)) from None

    def iter_lanes(
        self,
        lanes: Iterable[LaneRange],
        max_messages: int = 0,
        *,
        max_bytes: int = 0,
        held: bool = False,
        deadline_s: float | None = None,
        scope: CallScope | None = None,
    ) -> Iterator[LanePage]:
        """Yield pages of any number of lanes until each has ended, in as few calls as possible.

        A lane may come in several pages, one after the other; ``status.has_more`` says that another
        follows. Arguments and errors are those of `sync_lanes`.

        Source: P24.
        """
        waiting, pace = list(lanes), self._pace()
        while waiting:
            asked = waiting[:LANES_MAX]
            pages = self.sync_lanes(
                asked,
                max_messages,
                max_bytes=max_bytes,
                held=held,
                deadline_s=deadline_s,
                scope=scope,
            )
            if not pages:
                raise self._bad("a page without a lane")
            pace.brought(sum(_units(page.messages) for page in pages), self.address)
            yield from pages
            pace.waits()
            del waiting[: len(pages)]
            last, page = asked[len(pages) - 1], pages[-1]
            if page.status.has_more:
                if page.status.next_cursor == last.cursor:
                    raise self._bad("the cursor does not move on")
                waiting.insert(
                    0,
                    LaneRange(
                        namespace_id=last.namespace_id,
                        from_seq=last.from_seq,
                        to_seq=last.to_seq,
                        cursor=page.status.next_cursor,
                    ),
                )

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
        held: bool = False,
        deadline_s: float | None = None,
        scope: CallScope | None = None,
    ) -> Iterator[SyncPage]:
        """Yield pages by cursor until the relay has no more; arguments and errors of `sync_page`.

        Source: P24: one page is not enough after a longer absence.
        """
        cursor, last, pace = b"", from_seq, self._pace()
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
                held=held,
                deadline_s=deadline_s,
                scope=scope,
            )
            pace.brought(_units(page.messages), self.address)
            yield page
            pace.waits()
            if not page.status.has_more:
                return
            if page.status.next_cursor == cursor or page.status.last_seq < last:
                raise self._bad("the cursor does not move on")
            cursor, last = page.status.next_cursor, page.status.last_seq

    def get_messages(
        self, ids: Sequence[bytes], *, deadline_s: float | None = None
    ) -> tuple[list[WireMessage], list[MessageId]]:
        """Return the messages of up to 1,000 ids, and the ids the relay does not hold.

        An id names a slot, so one id may bring several candidates (J11). Asks again for what did
        not fit into one answer; with ``deadline_s`` all of it takes so many seconds at most.

        Raises:
            SyncArgumentError: more than 1,000 ids, or an id that has not 32 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used.

        Source: LP-6421 §2.2, P22.

        """
        require("len(ids)", len(ids), 0, IDS_MAX)
        for each in ids:
            require_id("id", each, c.HASH_BYTES)
        found: list[WireMessage] = []
        missing: list[MessageId] = []
        wanted = list(dict.fromkeys(ids))
        ends_at = None if deadline_s is None else time.monotonic() + deadline_s
        while wanted:
            answer = self._get_messages(wanted, ends_at)
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

    def subscribe(
        self, wanted: SubscribeWanted, *, gaps: ToldGaps | None = None
    ) -> Generator[FollowEvent, None, None]:
        """Yield what the node holds behind the begin, then what comes, until it is closed.

        What came into a told gap and was not told, because nobody followed or the node's notes
        were full, is read from its pages and yielded as late (P48). The stream ends when the
        node or the network does, or says nothing for ``silence_s``; begin a new one with the
        positions and the gaps of this one. Nothing that comes has been verified.

        Args:
            wanted: What to follow.
            gaps: The told gaps of an earlier stream, read again once this one is live; those that
                are told and filled now are noted in it.

        Raises:
            SyncUnreachableError: the node is away, or gave the place to somebody else.
            SyncRemoteError: the node tells no subscribers, or something that cannot be used.

        Source: user-01; P23, P48.

        """
        told = ToldGaps() if gaps is None else gaps
        away = bool(told.ranges)
        with closing(self._follow(wanted)) as events:
            for event in events:
                match event:
                    case FollowedGap(namespace_id, first, last, expired=False):
                        told.tell(namespace_id, first, last)
                    case Followed(message, late=True):
                        told.fill(message.namespace_id, message.seq)
                yield event
                match event:
                    case FollowedLive() if away:
                        yield from self._filling(wanted, told)
                    case FollowedDropped(late=late) if late:
                        yield from self._filling(wanted, told)

    def _filling(self, wanted: SubscribeWanted, told: ToldGaps) -> Iterator[Followed]:
        """Yield what the relay holds by now of the told gaps, where it is wanted."""
        for namespace_id, first, last in told.spans():
            with suppress(SyncRemoteError):  # this namespace is not to be had here; others are
                parent = self.get_head(namespace_id).parent_id
                for page in self.iter_pages(namespace_id, first - 1, last):
                    for message in page.messages:
                        wants = self._wants(wanted, message)
                        if told.fill(namespace_id, message.seq) and wants:
                            blob = b"" if wanted.blobs == "none" else message.blob
                            yield Followed(replace(message, blob=blob), parent, late=True)

    def _wants(self, wanted: SubscribeWanted, message: WireMessage) -> bool:
        if not wanted.senders:
            return True
        try:
            header = MsgHeader.decode(message.header)
        except HeaderError as error:
            raise self._bad(str(error)) from None
        return any(
            each in {header.sender_address, header.sender_pub_key} for each in wanted.senders
        )

    def get_head(self, namespace_id: bytes) -> PeerHead:
        """Return what the relay holds of one namespace; zeros when it does not know it.

        Raises:
            SyncArgumentError: the id has not 20 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used.

        Source: LP-6421 §2.2, P22.

        """
        require_id("namespace_id", namespace_id, c.NAMESPACE_BYTES)
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
    ) -> Generator[PeerHead, None, None]:
        """Yield the heads of a parent namespace and its lanes, or of every namespace.

        Close the generator to end the call before its end.

        Raises (while iterating):
            SyncArgumentError: the parent has not 20 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: an answer that cannot be used, or more than ``heads_max`` heads.

        Source: J6.

        """
        if parent is not None:
            require_id("parent", parent, c.NAMESPACE_BYTES)
        cursor, count, pace = b"", 0, self._pace()
        while True:
            following = b""
            for answer in self._heads_page(parent or b"", cursor, deadline_s, scope):
                count += 1
                if count > self.config.heads_max:
                    raise self._too_much(f"{self.config.heads_max} heads", "heads_max")
                head = self._head(answer, b"")
                if parent is not None and head.parent_id != parent:
                    raise self._bad("a head of another parent")
                following = answer.next_cursor
                pace.brought(1, self.address)
                yield head
                pace.waits()
            if not following:
                return
            if following == cursor:
                raise self._bad("the cursor does not move on")
            cursor = following

    def _request(
        self, max_messages: int, from_time: int, to_time: int, max_bytes: int, *, held: bool
    ) -> pb.SyncRequest:
        for name, value in (("from_time", from_time), ("to_time", to_time)):
            require(name, value, 0, c.MAX_U64)
        require("max_messages", max_messages, 0, PAGE_MESSAGES_MAX)
        require("max_bytes", max_bytes, 0, PAGE_BYTES_MAX)
        return pb.SyncRequest(
            from_timestamp=from_time,
            max_messages=max_messages,
            max_frame_messages=self.config.frame_messages,
            max_bytes=max_bytes,
            to_timestamp=to_time,
            held=held,
        )

    def _check(
        self, lanes: Sequence[LaneRange], max_messages: int, max_bytes: int, *, several: bool
    ) -> PageCheck:
        return PageCheck(
            lanes,
            rows_max=max_messages or PAGE_MESSAGES_DEFAULT,
            bytes_max=max_bytes or PAGE_BYTES_MAX,
            gaps_max=self.config.gaps_max,
            several=several,
        )

    def _run(
        self,
        request: pb.SyncRequest,
        check: PageCheck,
        deadline_s: float | None,
        flow: PageFlow | None,
        scope: CallScope | None,
    ) -> None:
        timeout = deadline_s or self.config.page_s
        silence_s = None if flow is None else min(flow.silence_s, timeout)
        if flow is not None:
            request.max_frame_bytes, request.max_blob_bytes = flow.frame_bytes, flow.blob_bytes
            timeout = max(timeout, self.config.transfer_s)

        def start(channel: grpc.Channel) -> Streaming[pb.StoredMessage]:
            call = RelaySyncStub(channel).SyncNamespace(request, timeout=timeout)
            return beating(call, silence_s)

        took, size = bool if flow is None else flow.took, 0
        try:
            for frame in self._stream(start, scope):
                check.take(frame)
                took(check.size_bytes - size)
                size = check.size_bytes
        except ValueError as error:
            raise self._bad(str(error)) from None
        except SyncUnreachableError:
            if flow is None or not check.begun:
                raise
            check.cut()

    def _get_messages(self, ids: Sequence[bytes], ends_at: float | None) -> pb.GetMessagesResponse:
        request, timeout = pb.GetMessagesRequest(ids=ids), self.config.call_s
        if ends_at is not None:
            timeout = min(timeout, max(0.0, ends_at - time.monotonic()))
        return self._unary(
            lambda channel: RelaySyncStub(channel).GetMessages(request, timeout=timeout)
        )

    def _heads_page(
        self, parent: bytes, cursor: bytes, deadline_s: float | None, scope: CallScope | None
    ) -> Iterator[pb.NamespaceHeadResponse]:
        request = pb.ListHeadsRequest(parent_id=parent, cursor=cursor, limit=self.config.heads_page)
        timeout = deadline_s or self.config.call_s
        return self._stream(
            lambda channel: RelaySyncStub(channel).ListHeads(request, timeout=timeout), scope
        )

    def _head(self, answer: pb.NamespaceHeadResponse, asked: bytes) -> PeerHead:
        try:
            return to_head(answer, asked)
        except ValueError as error:
            raise self._bad(str(error)) from None


def _units(messages: Sequence[WireMessage]) -> int:
    """Return what messages are worth in rows: each one, and each half KiB of them."""
    return len(messages) + sum(len(each.header) + len(each.blob) for each in messages) // 512


def _check_lane(lane: LaneRange) -> None:
    require_id("namespace_id", lane.namespace_id, c.NAMESPACE_BYTES)
    for name, value in (("from_seq", lane.from_seq), ("to_seq", lane.to_seq)):
        require(name, value, 0, c.MAX_U64)
