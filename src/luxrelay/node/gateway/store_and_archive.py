"""`StoreAndArchive`: reads of the store, and of the archive beyond it.

Theory of operation
-------------------
*Decides* when the archive named by ``gateway.archive`` is asked as well, and joins what both say.
*The store answers first*, in the threads that every call shares; the archive is asked afterwards,
in threads of its own, so that one that is slow or dead holds up only who asked for what it has:
not the loop, not the store's threads, not a turn of gRPC. One that does not answer leaves the
store's answer, which says that it is not complete.
*Bounds*: ``archive_calls_max`` questions at once and ``archive_waiting_max`` that wait, further
ones are refused (``gateway.busy``); ``archive_replays_max`` at once for subscriptions, which wait,
one question each.
*Searches* by time and sender have no sequence to tell what is forgotten, so both are asked, unless
the search begins within the time for which nothing can have expired.

Source: LP-6440; decisions P20, P23, P38, J2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from luxrelay.bus import MessageId
from luxrelay.errors import SyncUnreachableError
from luxrelay.node.archive_fallback import (
    SLOTS_MAX,
    Call,
    OlderMessages,
    Outcome,
    merged,
    span_below,
)
from luxrelay.node.gateway.bounds import Work
from luxrelay.node.gateway.config import GatewayConfig
from luxrelay.node.gateway.subscription import ReadPage
from luxrelay.store import (
    IndexPage,
    NamespaceHead,
    NamespaceQuery,
    QueryPage,
    RelayStore,
    SenderQuery,
    StoredMessage,
    TimeQuery,
)

Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A page of a search."""

    messages: list[StoredMessage]
    """In the order of the index."""
    has_more: bool
    """True when it goes on at ``next_cursor``."""
    next_cursor: bytes
    """Where the next page begins; empty exactly when ``has_more`` is False."""
    partial: bool
    """Whether older messages may be missing, because the archive did not answer."""

    @classmethod
    def of(cls, page: IndexPage, *, partial: bool = False) -> Found:
        """Return a page of an index as one of a search."""
        return cls(
            messages=page.messages,
            has_more=page.has_more,
            next_cursor=page.next_cursor,
            partial=partial,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderStats:
    """What the archive was asked."""

    calls: Mapping[tuple[Call, Outcome], int] = field(default_factory=dict)
    """Questions by kind and outcome."""
    messages: int = 0
    """Messages that it gave and that held."""
    busy: int = 0
    """Questions refused because too many waited."""


class StoreAndArchive:
    """The store of a node and the archive behind it; its methods run on the loop."""

    def __init__(
        self,
        *,
        store: RelayStore,
        older: OlderMessages | None,
        blob: Callable[[bytes], bytes | None],
        work: Work,
        config: GatewayConfig,
        clock_ms: Callable[[], int],
        window_ms: int,
    ) -> None:
        """Keep the parts; ``blob`` asks the node and its peers, in a worker thread."""
        self._store = store
        self._older = older
        self._blob = blob
        self._work = work
        self._pages = Work(config.pages_max, config.work_waiting_max, work.meter)
        """Each holds its messages, and the answer that is made of them, in memory."""
        self._clock_ms = clock_ms
        self._window_ms = window_ms
        self._aside = Work(config.archive_calls_max, config.archive_waiting_max, work.meter)
        # One question a subscriber, over WebSocket and over gRPC: none is ever refused.
        self._replays = Work(config.archive_replays_max, 2 * config.subscribers_max, work.meter)

    @property
    def refused(self) -> int:
        """Pages refused because too many waited."""
        return self._pages.refused

    def stats(self) -> OlderStats:
        """Return what the archive was asked so far."""
        if self._older is None:
            return OlderStats()
        return OlderStats(
            calls=self._older.calls(),
            messages=self._older.messages,
            busy=self._aside.refused,
        )

    def lacks(self, query: NamespaceQuery, earliest_seq: int) -> bool:
        """Return whether an archive is to be asked; an offset counts in the store. Any thread."""
        asked = self._older is not None and not query.offset
        return asked and span_below(query, earliest_seq) is not None

    async def page(self, query: NamespaceQuery, shown: Callable[[QueryPage], Shown]) -> Shown:
        """Return what ``shown`` makes, in a worker, of a page of a namespace.

        Raises:
            GatewayError: too many wait for the store or the archive.

        """

        def work() -> tuple[QueryPage, Shown | None]:
            page = self._store.query(query, self._clock_ms())
            return page, None if self.lacks(query, page.earliest_seq) else shown(page)

        page, answer = await self._pages.run(work)
        if answer is None:
            page = await self.before(query, page)
            answer = await self._pages.run(partial(shown, page))
        return answer

    async def before(self, query: NamespaceQuery, page: QueryPage) -> QueryPage:
        """Return the archive's page where the store's begins too late, else the store's.

        Raises:
            GatewayError: too many wait for the archive.

        """
        older = self._older
        if older is None or span_below(query, page.earliest_seq) is None:
            return page
        try:
            found = await self._aside.run(partial(older.before, query, page.earliest_seq))
        except SyncUnreachableError:
            return page
        if found is None:
            return page
        more = found.has_more or page.has_more or bool(page.messages)
        return QueryPage(
            messages=found.messages,
            has_more=more,
            next_cursor=found.next_cursor if more else b"",
            earliest_seq=found.earliest_seq,
            last_seq=found.messages[-1].seq,
            gaps=found.gaps,
        )

    async def search(
        self, query: TimeQuery | SenderQuery, shown: Callable[[Found], Shown]
    ) -> Shown:
        """Return what ``shown`` makes, in a worker, of a page of a search by time or by sender.

        Raises:
            GatewayError: too many wait for the store or the archive.

        """
        older = self._older
        if older is None or not self._may_have_expired(query):
            return await self._pages.run(lambda: shown(Found.of(self._search(query))))
        stored = await self._pages.run(partial(self._search, query))
        try:
            archived = await self._aside.run(partial(older.search, query))
        except SyncUnreachableError:
            found = Found.of(stored, partial=True)
        else:
            found = Found.of(merged(query, stored, archived))
        return await self._pages.run(partial(shown, found))

    def _search(self, query: TimeQuery | SenderQuery) -> IndexPage:
        if isinstance(query, SenderQuery):
            return self._store.query_sender(query, self._clock_ms())
        return self._store.query_time(query, self._clock_ms())

    def _may_have_expired(self, query: TimeQuery | SenderQuery) -> bool:
        if 0 < query.to_time < query.from_time:  # nothing lies there
            return False
        return query.from_time <= max(0, self._clock_ms() - self._window_ms)

    async def slot(self, message_id: MessageId) -> list[StoredMessage]:
        """Return every candidate of a slot.

        Raises:
            GatewayError: too many wait for the store or the archive.

        """
        ask = partial(self._store.get_messages, [message_id], self._clock_ms())
        found, _ = await self._work.run(ask)
        return found or (await self.slots([message_id]))[0]

    async def slots(
        self, ids: Sequence[MessageId]
    ) -> tuple[list[StoredMessage], Sequence[MessageId]]:
        """Return the archived candidates of slots that the store lacks, and the slots without any.

        Those in neither were not looked for: ``SLOTS_MAX`` are at once.

        Raises:
            GatewayError: too many wait for the archive.

        """
        if self._older is None:
            return [], ids
        asked = ids[:SLOTS_MAX]
        try:
            found = await self._aside.run(partial(self._older.slots, asked))
        except SyncUnreachableError:
            return [], ids
        there = {message.header.message_id for message in found}
        return found, [each for each in asked if each not in there]

    async def blob(self, commitment: bytes) -> bytes | None:
        """Return a blob: the node's own, a peer's, or the archive's; None without one.

        Raises:
            GatewayError: too many wait for the store or the archive.

        """
        held = await self._work.run(partial(self._blob, commitment))
        return held if held is not None else await self.archived_blob(commitment)

    async def archived_blob(self, commitment: bytes) -> bytes | None:
        """Return the archive's blob; None without one.

        Raises:
            GatewayError: too many wait for the archive.

        """
        if self._older is None:
            return None
        try:
            return await self._aside.run(partial(self._older.blob, commitment))
        except SyncUnreachableError:
            return None

    async def replay(self, query: NamespaceQuery, page: QueryPage, head: NamespaceHead) -> ReadPage:
        """Return a subscriber's page: what the archive has below the store's, then the store's.

        Args:
            query: What was asked.
            page: What the store gave.
            head: The head of the namespace, read after it: what expired between the two was in the
                page or is below its floor.

        """
        stored = ReadPage(
            page.messages, page.next_cursor, head.floor, held=max(head.latest_seq, head.floor)
        )
        # A namespace of which nothing is left is asked for up to where it reached.
        earliest = page.earliest_seq or (head.latest_seq + 1 if head.latest_seq else 0)
        if self._older is None or span_below(query, earliest) is None:
            return stored
        try:
            found = await self._replays.run(partial(self._older.before, query, earliest))
        except SyncUnreachableError:
            return stored._replace(unanswered=True)
        if found is None:
            return stored
        if found.has_more:
            return ReadPage(found.messages, found.next_cursor, head.floor)
        return stored._replace(messages=[*found.messages, *page.messages])
