"""The store and the archive behind it read as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from luxrelay.bus import MessageId, NamespaceId, SigningKey
from luxrelay.errors import GatewayError, SyncUnreachableError
from luxrelay.node.archive_fallback import SLOTS_MAX, OlderMessages, OlderPage, span_below
from luxrelay.node.gateway.bounds import Work
from luxrelay.node.gateway.config import GATEWAY_KEYS, GatewayConfig
from luxrelay.node.gateway.store_and_archive import Found, StoreAndArchive
from luxrelay.node.gateway.subscription import Subscription, Tell, TellGap, TellLive, Told
from luxrelay.store import (
    IncomingMessage,
    IndexPage,
    NamespaceQuery,
    QueryPage,
    RelayStore,
    RelayStoreConfig,
    SenderQuery,
    StoredMessage,
    TimeQuery,
)
from luxrelay.testing import message_line, signing_key

LANE = NamespaceId(b"\x01" * 20)
TTL_MS = 3_600_000
T0 = 1_785_974_400_000
LATER = T0 + TTL_MS + 10
"""What came at T0 has expired, what came at T0 + 100 has not."""


def _text(seq: int) -> bytes:
    return b"x%d" % seq


class Shelf(OlderMessages):
    """An archive that is a store in this process; fails on demand."""

    def __init__(self, store: RelayStore) -> None:
        super().__init__("127.0.0.1:1")
        self._store = store
        self.away = False
        self.asked = 0

    def _ask(self, call: Any, work: Callable[[], Any]) -> Any:
        self.asked += 1
        self._count(call, "failed" if self.away else "answered")
        if self.away:
            raise SyncUnreachableError("away", where="shelf")
        return work()

    def _before(self, query: NamespaceQuery, from_seq: int, to_seq: int) -> OlderPage | None:
        page = self._store.query(replace(query, from_seq=from_seq, to_seq=to_seq), T0)
        if not page.messages:
            return None
        last = page.messages[-1]
        return OlderPage(
            messages=page.messages,
            has_more=page.has_more,
            next_cursor=last.seq.to_bytes(8, "big") + last.header.content_id,
            earliest_seq=page.earliest_seq,
            gaps=page.gaps,
        )

    def _search(self, query: TimeQuery | SenderQuery) -> IndexPage:
        if isinstance(query, SenderQuery):
            return self._store.query_sender(query, T0)
        return self._store.query_time(query, T0)

    def slots(self, ids: Sequence[bytes]) -> list[StoredMessage]:
        """Return the candidates of slots."""
        wanted = [MessageId(each) for each in ids]
        return list(self._ask("slots", lambda: self._store.get_messages(wanted, T0)[0]))

    def blob(self, commitment: bytes) -> bytes | None:
        """Return a blob."""
        found: bytes | None = self._ask("blob", lambda: self._store.get_blob(commitment, T0))
        return found


class Desk:
    """Holdings over a store that has forgotten and a shelf that has not."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        small = RelayStoreConfig.small()
        self.store = RelayStore.open(
            folder / "store", replace(small, cold_store_ttl_ms=TTL_MS), now_ms=T0
        )
        self.archive = RelayStore.open(folder / "archive", small, now_ms=T0)
        self.shelf = Shelf(self.archive)
        self.now = LATER
        self.holdings = StoreAndArchive(
            store=self.store,
            older=self.shelf,
            blob=lambda commitment: self.store.get_blob(commitment, self.now),
            work=Work(4, 16),
            config=replace(GatewayConfig(), **changes),
            clock_ms=lambda: self.now,
            window_ms=TTL_MS,
        )

    def put(
        self,
        count: int,
        *,
        old: int,
        key: SigningKey | None = None,
        archived: Sequence[int] | None = None,
    ) -> None:
        """Store a line of which the first ``old`` have expired; the archive has all, or some."""
        lines = (
            message_line(old, namespace_id=LANE, key=key, blob=_text, first_ms=T0, step_ms=0),
            message_line(
                count - old, namespace_id=LANE, key=key, blob=_text, first_seq=old + 1,
                first_ms=T0 + 100, step_ms=0,
            ),
        )  # fmt: skip
        rows = [
            IncomingMessage(
                header=each.header, blob=each.blob, parent=LANE, received_at=each.header.timestamp
            )
            for line in lines
            for each in line
        ]
        self.store.put_many(rows, T0 + 100)
        kept = range(1, count + 1) if archived is None else archived
        self.archive.put_many([each for each in rows if each.header.seq in kept], T0 + 100)
        assert self.store.stats().messages

    def told(self, after: int = 0, page: int = 3) -> list[Tell]:
        """Return what a subscriber is told until there is nothing to read."""
        return trio.run(self._told, after, page)

    async def _told(self, after: int, limit: int) -> list[Tell]:
        follower = Subscription(lanes_max=1, gap_wait_ms=0)
        follower.follow(LANE, LANE, after)
        told: list[Tell] = []
        while (read := follower.next_read()) is not None:
            query = NamespaceQuery(
                namespace_id=LANE, from_seq=read.after, limit=limit, cursor=read.cursor
            )
            page = self.store.query(query, self.now)
            found = await self.holdings.replay(query, page, self.store.head(LANE))
            follower.page(read, found, 0.0, self.now)
            told += follower.drain()
        return told

    def close(self) -> None:
        """Close both stores."""
        self.shelf.close()
        self.store.close()
        self.archive.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """A maker of holdings."""
    desks: list[Desk] = []

    def new(**changes: Any) -> Desk:
        desks.append(Desk(tmp_path / str(len(desks)), **changes))
        return desks[-1]

    yield new
    for desk in desks:
        desk.close()


def _seqs(told: Sequence[Tell]) -> list[int]:
    return [each.message.seq for each in told if isinstance(each, Told)]


@pytest.mark.parametrize("collected", [False, True])
def test_a_subscriber_gets_each_candidate_once_and_in_order(
    make: Callable[..., Desk], collected: bool
) -> None:
    """From the archive, then from the store, whether what expired was deleted or not yet.

    Slots with several candidates may be cut by any end of a page.
    """
    desk = make()
    for number in (1, 2, 3):
        desk.put(9, old=5, key=signing_key(number=number))
    if collected:
        desk.store.expire(LATER)
    every = desk.archive.query(NamespaceQuery(namespace_id=LANE), T0).messages

    for page in range(1, 8):
        for after in (0, 3, 5, 8):
            told = desk.told(after, page)
            wanted = [each.header for each in every if each.seq > after]
            assert [each.message.header for each in told if isinstance(each, Told)] == wanted
            assert not any(isinstance(each, TellGap) for each in told)
            assert isinstance(told[-1], TellLive)
    desk.shelf.asked = 0
    desk.told(5)
    assert desk.shelf.asked == 0  # the store has it all


def test_what_the_archive_lacks_is_a_gap(make: Callable[..., Desk]) -> None:
    """Between its messages, and between it and the store; nothing is told twice."""
    desk = make()
    desk.put(9, old=6, archived=[1, 2, 4])
    desk.store.expire(LATER)

    for page in (1, 2, 9):
        told = desk.told(page=page)
        assert _seqs(told) == [1, 2, 4, 7, 8, 9]
        gaps = [(each.first, each.last, each.reason) for each in told if isinstance(each, TellGap)]
        assert gaps == [(3, 3, "expired"), (5, 6, "expired")]


def test_a_namespace_of_which_nothing_is_left(make: Callable[..., Desk]) -> None:
    """All of it comes from the archive, up to where it reached, and is asked for once."""
    desk = make()
    desk.put(4, old=4)
    desk.store.expire(LATER)

    assert _seqs(desk.told()) == [1, 2, 3, 4]
    desk.shelf.asked = 0
    assert _seqs(desk.told(after=4)) == []
    assert desk.shelf.asked == 0


def test_an_archive_that_is_away_leaves_a_gap_that_says_so(make: Callable[..., Desk]) -> None:
    """The subscriber is not held up, and knows that asking again may help."""
    desk = make()
    desk.put(6, old=4)
    desk.store.expire(LATER)
    desk.shelf.away = True

    told = desk.told()
    assert _seqs(told) == [5, 6]
    assert [(each.first, each.last, each.reason) for each in told if isinstance(each, TellGap)] == [
        (1, 4, "unanswered")
    ]


def test_pages_while_the_expired_is_not_yet_deleted(make: Callable[..., Desk]) -> None:
    """A reader's cursor in the middle of it does not jump to what is still served."""
    desk = make()
    desk.put(9, old=6)

    async def read(limit: int) -> list[int]:
        found: list[int] = []
        cursor = b""
        while True:
            query = NamespaceQuery(namespace_id=LANE, limit=limit, cursor=cursor)
            page: QueryPage = await desk.holdings.page(query, lambda page: page)
            found += [each.seq for each in page.messages]
            cursor = page.next_cursor
            if not cursor:
                return found

    for limit in range(1, 10):
        assert trio.run(read, limit) == list(range(1, 10))


def test_a_search_asks_the_archive_where_something_may_have_expired(
    make: Callable[..., Desk],
) -> None:
    """Both pages are one; a recent search and an empty one ask the store alone."""
    desk = make()
    desk.put(6, old=4)
    desk.store.expire(LATER)

    def search(**bounds: int) -> Found:
        return trio.run(desk.holdings.search, TimeQuery(**bounds), lambda found: found)

    page = search()
    assert sorted(each.seq for each in page.messages) == [1, 2, 3, 4, 5, 6]
    assert not page.partial
    desk.shelf.away, desk.shelf.asked = True, 0
    assert search().partial
    assert [each.seq for each in search().messages] == [5, 6]
    desk.shelf.asked = 0
    assert not search(from_time=LATER - TTL_MS + 1).partial
    assert not search(from_time=T0 + 2, to_time=T0 + 1).partial
    assert desk.shelf.asked == 0


def test_slots_and_blobs_that_only_the_archive_has(make: Callable[..., Desk]) -> None:
    """SLOTS_MAX slots at once; the others are left for another time."""
    desk = make()
    desk.put(SLOTS_MAX + 3, old=SLOTS_MAX + 2)
    desk.store.expire(LATER)
    headers = [
        each.header for each in desk.archive.query(NamespaceQuery(namespace_id=LANE), T0).messages
    ]
    ids = [header.message_id for header in headers]
    unknown = MessageId(b"u" * 32)

    assert [each.header for each in trio.run(desk.holdings.slot, ids[0])] == headers[:1]
    found, missing = trio.run(desk.holdings.slots, [unknown, *ids])
    assert [each.header for each in found] == headers[: SLOTS_MAX - 1]
    assert missing == [unknown]
    assert trio.run(desk.holdings.blob, headers[0].blob_commitment) == b"x1"
    assert trio.run(desk.holdings.blob, headers[-1].blob_commitment) == b"x%d" % len(headers)
    desk.shelf.away = True
    assert trio.run(desk.holdings.slots, ids[:1]) == ([], ids[:1])
    assert trio.run(desk.holdings.blob, headers[0].blob_commitment) is None
    assert desk.holdings.stats().calls["blob", "failed"] == 1


def test_questions_that_wait_are_bounded_and_hold_up_no_other(make: Callable[..., Desk]) -> None:
    """archive_calls_max at once, archive_waiting_max that wait; subscriptions wait apart.

    The store goes on meanwhile.
    """
    desk = make(archive_calls_max=1, archive_waiting_max=2, archive_replays_max=1)
    desk.put(6, old=4)
    desk.store.expire(LATER)
    query = NamespaceQuery(namespace_id=LANE)
    answers: list[list[int]] = []

    async def ask() -> None:
        page: QueryPage = await desk.holdings.page(query, lambda page: page)
        answers.append([each.seq for each in page.messages])

    async def replay() -> None:
        page = desk.store.query(query, LATER)
        found = await desk.holdings.replay(query, page, desk.store.head(LANE))
        answers.append([each.seq for each in found.messages])

    async def main() -> None:
        loop, begun, go = trio.lowlevel.current_trio_token(), trio.Semaphore(0), trio.Event()
        read = desk.shelf._before

        def slow(*args: Any) -> OlderPage | None:
            trio.from_thread.run_sync(begun.release, trio_token=loop)
            trio.from_thread.run(go.wait, trio_token=loop)
            return read(*args)

        desk.shelf._before = slow  # type: ignore[method-assign]
        with trio.fail_after(60):
            await together(begun, go)

    async def together(begun: trio.Semaphore, go: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            for work in (ask, ask, ask, replay, replay, replay):
                nursery.start_soon(work)
            try:
                await begun.acquire()
                await begun.acquire()
                while desk.holdings._aside._limiter.statistics().tasks_waiting < 2:
                    await trio.lowlevel.checkpoint()
                with pytest.raises(GatewayError, match="busy"):
                    await ask()
                recent = NamespaceQuery(namespace_id=LANE, from_seq=4)
                page: QueryPage = await desk.holdings.page(recent, lambda page: page)
                assert [each.seq for each in page.messages] == [5, 6]
                assert begun.value == 0  # no third question was put
            finally:
                go.set()  # threads that wait for it cannot be cancelled

    trio.run(main)
    assert sorted(answers) == [[1, 2, 3, 4]] * 3 + [[1, 2, 3, 4, 5, 6]] * 3
    assert desk.holdings.stats().busy == 1


def test_the_archive_never_takes_every_stream_of_grpc() -> None:
    """A call that waits for it holds a stream's place, of which a gateway has 24."""
    most = {"archive_calls_max": 8, "archive_waiting_max": 12}
    checks = {key.name: key.check for key in GATEWAY_KEYS}
    for name, value in most.items():
        assert checks[name](value) is None
        assert checks[name](value + 1) is not None
    assert sum(most.values()) < 24


def test_spans_below_a_store() -> None:
    """From (exclusive) and to; None where the store has everything."""
    for query, earliest, span in (
        (NamespaceQuery(namespace_id=LANE), 5, (0, 4)),
        (NamespaceQuery(namespace_id=LANE), 1, None),
        (NamespaceQuery(namespace_id=LANE, from_seq=4), 5, None),
        (NamespaceQuery(namespace_id=LANE, from_seq=2, to_seq=3), 9, (2, 3)),
    ):
        assert span_below(query, earliest) == span
