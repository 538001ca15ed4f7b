"""Messages beyond the store, from an archive on a sync port.

The gateway asks its own store first. Where a question begins below what the store still holds, the
archive named by ``gateway.archive`` answers for that part, page by page, and the store goes on
where the archive ends: both order messages alike, so one cursor serves for both. Nothing of the
archive is believed: each message is verified again, and an archive that serves something else is
not asked for a while, as one that does not answer.

*Threads*: any thread may ask, and waits meanwhile; `luxrelay.node.gateway.store_and_archive` says
how many at once. *Bounds*: one page at a time, as large as the question's own; ``SLOTS_MAX``
slots; the patience of the client.

A page of a search that stands in two places: what the store and the archive give, in one order.

A store forgets each namespace by its own rules, so a search has no time before which the archive
answers and after which the store does. Both are asked for the same page; where one of them ends
early, nothing behind its end is told, for the other may have more before it. So each message comes
once, in order, and the cursor serves for both.

Source: LP-6440; decisions P20, P23, P38, J2, J8, P18.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

from luxrelay.bus import MsgHeader, sender_address, verify_header
from luxrelay.bus import constants as c
from luxrelay.bus.bound import verify_header_bound
from luxrelay.errors import (
    HeaderError,
    SyncArgumentError,
    SyncProtocolError,
    SyncRemoteError,
    SyncUnreachableError,
)
from luxrelay.node.logs import log
from luxrelay.store import IndexPage, NamespaceQuery, SenderQuery, StoredMessage, TimeQuery
from luxrelay.sync import ClientTls, RelaySyncClient, SyncClientConfig, WireMessage

PATIENCE: Final = SyncClientConfig(call_s=5.0, page_s=10.0, connect_s=2.0)
"""A caller waits meanwhile, and can be answered without the archive."""
QUIET_S: Final = 10.0
"""Time for which an archive that failed is not asked, seconds."""
SLOTS_MAX: Final = 16
"""Slots asked for at once."""

Call = Literal["page", "search", "slots", "blob"]
Outcome = Literal["answered", "failed", "quiet"]
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderPage:
    """Messages of the archive, all below what the store holds."""

    messages: list[StoredMessage]
    """One or more, ascending by sequence."""
    has_more: bool
    """The archive has more of what was asked for."""
    next_cursor: bytes
    """Where to go on: after the last message."""
    earliest_seq: int
    """Lowest sequence that the archive holds of the namespace."""
    gaps: list[tuple[int, int]]
    """What it does not hold within the page."""


class OlderMessages:
    """An archive that is asked for what the store has forgotten.

    Every question raises SyncUnreachableError when the archive does not answer, or with something
    that does not hold; it is logged and counted here.

    Args:
        address: ``host:port`` of its sync port.
        tls: As sync peers are spoken to; None for in the clear.
        network: Name of a network whose signatures are bound (H3e); empty for LP-6411's own.
        config: How long it may take to answer.
        clock: Monotonic seconds.

    """

    def __init__(
        self,
        address: str,
        *,
        tls: ClientTls | None = None,
        network: str = "",
        config: SyncClientConfig = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = RelaySyncClient(address, config=config, tls=tls)
        self._network = network
        self._clock = clock
        self._lock = threading.Lock()
        self._quiet_until: dict[Call, float] = {}
        self._calls: Counter[tuple[Call, Outcome]] = Counter()
        self._messages = 0

    def close(self) -> None:
        """Give the connection up."""
        self._client.close()

    def calls(self) -> dict[tuple[Call, Outcome], int]:
        """Return how many questions of each kind were answered, failed, or not even asked."""
        with self._lock:
            return dict(self._calls)

    @property
    def messages(self) -> int:
        """Messages that it gave and that held."""
        return self._messages

    def before(self, query: NamespaceQuery, earliest_seq: int) -> OlderPage | None:
        """Return what the archive holds of a question below what the store holds.

        Args:
            query: The question.
            earliest_seq: Lowest sequence that the store answers with; 0 when it has nothing.

        Returns:
            None when the store has everything that was asked for, or the archive nothing more.

        Raises:
            SyncUnreachableError: it does not answer.

        """
        span = span_below(query, earliest_seq)
        return None if span is None else self._ask("page", lambda: self._before(query, *span))

    def _before(self, query: NamespaceQuery, from_seq: int, to_seq: int) -> OlderPage | None:
        # A cursor from below the beginning says nothing; an archive would refuse it.
        cursor = query.cursor if int.from_bytes(query.cursor[:8], "big") > from_seq else b""
        page = self._client.sync_page(
            query.namespace_id,
            from_seq,
            to_seq,
            query.limit,
            from_time=query.from_time,
            to_time=query.to_time,
            cursor=cursor,
            max_bytes=query.max_bytes,
        )
        messages = self._verified(page.messages)
        if not messages:
            if page.status.has_more:
                raise self._bad("an empty page that is not the last")
            return None
        if cursor and seq_place(messages[0]) <= cursor:
            raise self._bad("a page before its cursor")  # would lead its reader round for ever
        return OlderPage(
            messages=messages,
            has_more=page.status.has_more,
            next_cursor=seq_place(messages[-1]),
            earliest_seq=page.status.earliest_seq,
            gaps=[(gap.first, gap.last) for gap in page.status.gaps],
        )

    def search(self, query: TimeQuery | SenderQuery) -> IndexPage:
        """Return a page of a search by time or by sender, of the whole archive.

        Raises:
            SyncUnreachableError: it does not answer.

        """
        return self._ask("search", lambda: self._search(query))

    def _search(self, query: TimeQuery | SenderQuery) -> IndexPage:
        sender = query.sender if isinstance(query, SenderQuery) else b""
        page = self._client.search(
            sender,
            from_time=query.from_time,
            to_time=query.to_time,
            limit=query.limit,
            cursor=query.cursor,
        )
        messages, last = self._verified(page.messages), query.cursor
        for message in messages:
            header, place = message.header, place_of(query, message)
            if place <= last:
                raise self._bad("messages of a search out of their order")
            if not query.from_time <= header.timestamp <= (query.to_time or c.MAX_U64):
                raise self._bad("a message of another time than was asked for")
            if sender and sender_address(header.sender_pub_key) != sender:
                raise self._bad("a message of another sender")
            last = place
        if page.next_cursor and page.next_cursor < last:
            raise self._bad("a search that goes on before its end")
        return IndexPage(
            messages=messages, has_more=bool(page.next_cursor), next_cursor=page.next_cursor
        )

    def slots(self, ids: Sequence[bytes]) -> list[StoredMessage]:
        """Return the archived candidates of slots.

        Args:
            ids: ``SLOTS_MAX`` at most.

        Raises:
            SyncUnreachableError: it does not answer.

        """
        assert len(ids) <= SLOTS_MAX

        def ask() -> list[StoredMessage]:
            return self._verified(
                self._client.get_messages(ids, deadline_s=self._client.config.page_s)[0]
            )

        return self._ask("slots", ask)

    def blob(self, commitment: bytes) -> bytes | None:
        """Return the archived blob of a SHA3 commitment; None without one.

        Raises:
            SyncUnreachableError: it does not answer.

        """

        def ask() -> bytes | None:
            blob = self._client.get_blob(commitment)
            if blob is not None and hashlib.sha3_256(blob).digest() != commitment:
                raise self._bad("a blob of another commitment")
            return blob

        return self._ask("blob", ask)

    def _ask(self, call: Call, work: Callable[[], _Answer]) -> _Answer:
        if self._clock() < self._quiet_until.get(call, float("-inf")):
            self._count(call, "quiet")
            raise self._away("it failed a moment ago")
        try:
            answer = work()
        except (SyncUnreachableError, SyncRemoteError, SyncArgumentError) as error:
            # One that is slow at one kind of question may be quick at another; a liar is none.
            lied = isinstance(error, SyncProtocolError)
            until = self._clock() + QUIET_S
            self._quiet_until |= dict.fromkeys(get_args(Call) if lied else (call,), until)
            self._count(call, "failed")
            log(
                logging.WARNING,
                "the archive does not answer for what is no longer here",
                archive=self._client.address,
                call=call,
                what=error.what,
            )
            raise self._away(error.what) from None
        self._count(call, "answered")
        return answer

    def _count(self, call: Call, outcome: Outcome) -> None:
        with self._lock:
            self._calls[call, outcome] += 1

    def _away(self, what: str) -> SyncUnreachableError:
        return SyncUnreachableError(
            f"the archive does not answer for what is no longer here: {what}",
            where=self._client.address,
            hint="ask again in a while",
        )

    def _bad(self, what: str) -> SyncProtocolError:
        return SyncProtocolError(what, where=self._client.address)

    def _verified(self, messages: Iterable[WireMessage]) -> list[StoredMessage]:
        """Return messages as the store has them.

        Raises:
            SyncProtocolError: one of them is none.

        """
        verified = [self._stored(message) for message in messages]
        with self._lock:
            self._messages += len(verified)
        return verified

    def _stored(self, message: WireMessage) -> StoredMessage:
        try:
            header = MsgHeader.decode(message.header)
        except HeaderError as error:
            raise self._bad(error.what) from None
        if self._network:
            holds = verify_header_bound(header, self._network)
        else:
            holds = verify_header(header)
        if not holds:
            raise self._bad(f"the signature of sequence {header.seq} does not hold")
        return StoredMessage(
            header_bytes=message.header,
            blob=self._payload(header, message.blob),
            received_at=message.received_at,
            expires_at=message.expires_at,
            finality=message.finality,
            sidecar_len=message.sidecar_len,
        )

    def _payload(self, header: MsgHeader, blob: bytes) -> bytes | None:
        if not blob or header.flags & c.FLAG_KZG_COMMITMENT:  # no SHA3 to check a KZG payload by
            return None if header.blob_len else b""
        if len(blob) != header.blob_len or hashlib.sha3_256(blob).digest() != (
            header.blob_commitment
        ):
            raise self._bad(f"the payload of sequence {header.seq} is another one")
        return blob


def span_below(query: NamespaceQuery, earliest_seq: int) -> tuple[int, int] | None:
    """Return the sequences, from (exclusive) and to, that a store lacks of a question.

    Args:
        query: The question.
        earliest_seq: Lowest sequence that the store answers with; 0 when it has nothing.

    Returns:
        None when it has everything that was asked for.

    """
    begun = max(int.from_bytes(query.cursor[:8], "big"), query.from_seq + 1)
    to_seq = query.to_seq or c.MAX_U64
    if earliest_seq:
        to_seq = min(to_seq, earliest_seq - 1)
    return None if begun > to_seq else (min(query.from_seq, to_seq), to_seq)


def seq_place(message: StoredMessage) -> bytes:
    """Return the cursor of a message in its namespace: stores and archives order by it."""
    return message.seq.to_bytes(8, "big") + message.header.content_id


def place_of(query: TimeQuery | SenderQuery, message: StoredMessage) -> bytes:
    """Return the cursor of a message in a search."""
    place = message.namespace_id + seq_place(message)
    if isinstance(query, SenderQuery):
        return place
    return message.header.timestamp.to_bytes(8, "big") + place


def merged(query: TimeQuery | SenderQuery, stored: IndexPage, archived: IndexPage) -> IndexPage:
    """Return the page that one store of both would give.

    Args:
        query: What both were asked; with its own ``limit`` and ``max_bytes``.
        stored: The store's page; of a message that both have, its row is taken.
        archived: The archive's page.

    """
    rows = {place_of(query, each): each for each in archived.messages}
    rows |= {place_of(query, each): each for each in stored.messages}
    ends = [page.next_cursor for page in (stored, archived) if page.has_more]
    end = min(ends, default=b"")
    messages: list[StoredMessage] = []
    size, last = 0, query.cursor
    for place in sorted(rows):
        if end and place > end:
            break
        message = rows[place]
        size += len(message.header_bytes) + len(message.blob or b"")
        full = len(messages) >= query.limit > 0 or size > query.max_bytes > 0
        if messages and full:
            return IndexPage(messages=messages, has_more=True, next_cursor=last)
        messages.append(message)
        last = place
    return IndexPage(messages=messages, has_more=bool(end), next_cursor=end)
