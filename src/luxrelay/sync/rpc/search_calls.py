"""`SearchCalls`: what a client asks of an index of time or of senders.

Source: decisions P18, P38; LP-6440.
"""

from __future__ import annotations

from typing import Final

from luxrelay.bus import constants as c
from luxrelay.sync.messages import FoundPage
from luxrelay.sync.rpc import relay_gateway_pb2 as pb
from luxrelay.sync.rpc.config import PAGE_MESSAGES_MAX, require, require_id
from luxrelay.sync.rpc.connection import RelayConnection
from luxrelay.sync.rpc.frames import to_message
from luxrelay.sync.rpc.relay_gateway_pb2_grpc import RelayGatewayStub

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
        request = pb.SearchRequest(
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
