"""Pages hold what was asked for, in order, within their bounds, and say what is missing."""

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.bus import MessageId, NamespaceId
from luxrelay.errors import StoreArgumentError
from luxrelay.store import NamespaceQuery, QueryPage, RelayStore

Opener = Callable[..., RelayStore]


@pytest.fixture
def store(forge: Any, open_store: Opener, now: int) -> RelayStore:
    """A store with sequences 1 to 12, one second apart."""
    opened = open_store()
    opened.put_many([forge.message(seq, at=now + seq * 1000) for seq in range(1, 13)], now)
    return opened


@pytest.fixture
def ask(store: RelayStore, parent: Any, now: int) -> Callable[..., QueryPage]:
    """Query the store's one namespace."""

    def query(**fields: Any) -> QueryPage:
        return store.query(NamespaceQuery(namespace_id=parent, **fields), now + 20_000)

    return query


def seqs(page: QueryPage) -> list[int]:
    """Return the sequences of a page."""
    return [message.seq for message in page.messages]


def test_from_is_exclusive_and_to_is_inclusive(ask: Callable[..., QueryPage]) -> None:
    """from_seq is left out, to_seq is included, 0 is no bound (21-18, P20)."""
    assert seqs(ask(from_seq=3, to_seq=6)) == [4, 5, 6]
    assert seqs(ask(from_seq=9)) == [10, 11, 12]
    assert seqs(ask(to_seq=2)) == [1, 2]
    assert seqs(ask()) == list(range(1, 13))
    assert seqs(ask(from_seq=12)) == []
    assert seqs(ask(from_seq=2**64 - 1)) == []
    assert seqs(ask(from_seq=6, to_seq=3)) == []


def test_both_ends_of_a_time_range_are_included(ask: Callable[..., QueryPage], now: int) -> None:
    """from_time and to_time are inclusive milliseconds, joined with sequences (21-19, P7, P21)."""
    assert seqs(ask(from_time=now + 4000, to_time=now + 6000)) == [4, 5, 6]
    assert seqs(ask(from_time=now + 4001, to_time=now + 5999)) == [5]
    assert seqs(ask(from_time=now + 4000, to_time=now + 6000, from_seq=4, to_seq=5)) == [5]


def test_order_holds_across_digit_lengths(ask: Callable[..., QueryPage]) -> None:
    """Sequence 10 comes after 9, also at a page's edge (21-07, P5)."""
    assert seqs(ask(from_seq=8, limit=2)) == [9, 10]


def test_a_page_is_bounded_in_messages(ask: Callable[..., QueryPage]) -> None:
    """A limit bounds the page; the cursor goes on without loss or repetition (21-20, P19)."""
    first = ask(limit=5)
    second = ask(limit=5, cursor=first.next_cursor)
    third = ask(limit=5, cursor=second.next_cursor)

    assert [seqs(page) for page in (first, second, third)] == [
        [1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10],
        [11, 12],
    ]
    assert [page.has_more for page in (first, second, third)] == [True, True, False]
    assert third.next_cursor == b""


def test_a_page_filled_exactly_is_the_last(ask: Callable[..., QueryPage]) -> None:
    """has_more means one more message is there, not that the page is full (wisp 174)."""
    page = ask(limit=12)

    assert (len(page.messages), page.has_more) == (12, False)


def test_limit_zero_is_the_default(forge: Any, open_store: Opener, parent: Any, now: int) -> None:
    """Limit 0 gives page_messages_default, a large one page_messages_max (21-33, P18)."""
    store = open_store(page_messages_default=3, page_messages_max=4)
    store.put_many([forge.message(seq) for seq in range(1, 9)], now)

    def length(limit: int) -> int:
        query = NamespaceQuery(namespace_id=parent, limit=limit)
        return len(store.query(query, now).messages)

    assert [length(limit) for limit in (0, 1, 4, 5, 2**32)] == [3, 1, 4, 4, 4]


def test_a_page_is_bounded_in_bytes(ask: Callable[..., QueryPage]) -> None:
    """max_bytes ends a page, but never before its first message (21-20)."""
    one = len(ask(limit=1).messages[0].header_bytes) + 5

    assert seqs(ask(max_bytes=3 * one)) == [1, 2, 3]
    assert seqs(ask(max_bytes=3 * one - 1)) == [1, 2]
    assert seqs(ask(max_bytes=1)) == [1]
    assert ask(max_bytes=1).has_more


def test_a_page_is_bounded_by_page_bytes_max(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """The configured cap holds whatever a query asks for (P18)."""
    store = open_store(page_bytes_max=2 * 1024**2 + 8 * 1024)
    store.put_many([forge.message(seq, blob=bytes(1024**2)) for seq in (1, 2, 3)], now)
    page = store.query(NamespaceQuery(namespace_id=parent, max_bytes=2**40), now)

    assert seqs(page) == [1, 2]
    assert page.has_more


def test_a_narrow_filter_cannot_hold_a_reader(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """After page_rows_max rows the page ends, and its cursor goes on."""
    store = open_store(page_rows_max=4)
    store.put_many([forge.message(seq, at=now + seq) for seq in range(1, 11)], now)
    found, cursor, pages = [], b"", 0
    while True:
        query = NamespaceQuery(namespace_id=parent, from_time=now + 9, cursor=cursor)
        page = store.query(query, now + 10)
        found += seqs(page)
        pages += 1
        if not page.has_more:
            break
        cursor = page.next_cursor

    assert found == [9, 10]
    assert pages == 3


def test_expired_rows_count_as_rows(forge: Any, open_store: Opener, parent: Any, now: int) -> None:
    """A page that ends among expired rows has a cursor that goes on behind them."""
    store = open_store(page_rows_max=3)
    store.put_many([forge.message(seq, at=now - 10) for seq in range(1, 6)], now - 10)
    store.put_many([forge.message(6, at=now)], now)
    later = now - 10 + 600_000
    first = store.query(NamespaceQuery(namespace_id=parent), later)
    second = store.query(NamespaceQuery(namespace_id=parent, cursor=first.next_cursor), later)

    middle = store.query(NamespaceQuery(namespace_id=parent, from_seq=3), later)

    assert (first.messages, first.has_more, first.earliest_seq) == ([], True, 4)
    assert (seqs(second), second.has_more, second.earliest_seq) == ([6], False, 6)
    assert (seqs(middle), middle.earliest_seq) == ([6], 6)


def test_skip_the_first_matches(ask: Callable[..., QueryPage]) -> None:
    """An offset passes over matches of the first page only (21-32, P19)."""
    first = ask(from_seq=2, offset=3, limit=2)

    assert seqs(first) == [6, 7]
    assert seqs(ask(from_seq=2, offset=3, limit=2, cursor=first.next_cursor)) == [8, 9]


def test_refuse_an_offset_above_the_cap(ask: Callable[..., QueryPage]) -> None:
    """offset_max bounds the rows a query may throw away (P19)."""
    assert seqs(ask(offset=10_000)) == []
    with pytest.raises(StoreArgumentError):
        ask(offset=10_001)


@pytest.mark.parametrize(
    "fields",
    [
        {"namespace_id": NamespaceId(b"short")},
        {"from_seq": -1},
        {"to_seq": 2**64},
        {"limit": -1},
        {"from_time": 1_764_000_000},
        {"to_time": 1_764_000_000},
        {"cursor": b"made up"},
    ],
)
def test_refuse_queries_that_mean_nothing(fields: dict[str, Any], parent: Any) -> None:
    """Wrong lengths, ranges and seconds are refused (21-54, P8)."""
    with pytest.raises(StoreArgumentError):
        NamespaceQuery(**{"namespace_id": parent, **fields})


def test_a_page_tells_its_gaps(forge: Any, open_store: Opener, parent: Any, now: int) -> None:
    """Gaps between the page's begin and end are listed, and only those (21-22, P23)."""
    store = open_store()
    store.put_many([forge.message(seq) for seq in (1, 2, 5, 8, 9)], now)

    def page(**fields: Any) -> QueryPage:
        return store.query(NamespaceQuery(namespace_id=parent, **fields), now)

    assert page().gaps == [(3, 4), (6, 7)]
    assert page(limit=3).gaps == [(3, 4)]
    assert page(cursor=page(limit=3).next_cursor).gaps == [(6, 7)]
    assert page(from_seq=3, to_seq=6).gaps == [(4, 4), (6, 6)]
    assert page(from_seq=9).gaps == []


def test_a_page_lists_gaps_max_gaps(forge: Any, open_store: Opener, parent: Any, now: int) -> None:
    """The lowest gaps_max gaps are listed."""
    store = open_store(gaps_max=2)
    store.put_many([forge.message(seq) for seq in (2, 4, 6, 8)], now)

    assert store.query(NamespaceQuery(namespace_id=parent), now).gaps == [(1, 1), (3, 3)]


def test_expired_messages_are_not_served(
    ask: Callable[..., QueryPage], store: RelayStore, parent: Any, now: int
) -> None:
    """Before any deletion cycle a page starts at the first message that still lives (21-13)."""
    page = store.query(NamespaceQuery(namespace_id=parent), now + 612_000)

    assert page.messages == []
    assert page.earliest_seq == 0
    assert ask().earliest_seq == 1


def test_the_earliest_sequence_is_one_that_is_served(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """A client that asks from 0 learns where the window begins (21-22)."""
    store = open_store()
    store.put_many(
        [
            forge.message(seq, at=now + seq * 1000, received_at=now + seq * 1000)
            for seq in (1, 2, 3)
        ],
        now + 3000,
    )
    page = store.query(NamespaceQuery(namespace_id=parent), now + 601_000)

    assert (seqs(page), page.earliest_seq, page.last_seq) == ([2, 3], 2, 3)
    assert store.query(NamespaceQuery(namespace_id=parent, from_seq=2), now + 601_000).gaps == []


def test_an_unknown_namespace_is_an_empty_page(store: RelayStore, now: int) -> None:
    """Nothing known is an empty, complete page (21-22)."""
    page = store.query(NamespaceQuery(namespace_id=NamespaceId(b"u" * 20)), now)

    assert page == QueryPage(
        messages=[], has_more=False, next_cursor=b"", earliest_seq=0, last_seq=0, gaps=[]
    )


def test_candidates_of_a_slot_may_be_split_by_a_page(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """A cursor inside a slot goes on with the next candidate (21-33)."""
    store = open_store()
    store.put_many([forge.message(1, sender=sender) for sender in (1, 2, 3)], now)
    found, cursor = [], b""
    for _ in range(3):
        query = NamespaceQuery(namespace_id=parent, limit=1, cursor=cursor)
        page = store.query(query, now)
        found += [message.header.content_id for message in page.messages]
        cursor = page.next_cursor

    assert len(set(found)) == 3
    assert found == sorted(found)
    assert cursor == b""


def test_a_cursor_survives_inserts_and_expiry(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """What comes and goes before the cursor does not move it (21-33, P19)."""
    store = open_store()
    store.put_many([forge.message(seq, at=now + seq * 1000) for seq in (2, 4, 6, 8)], now + 600)
    page = store.query(NamespaceQuery(namespace_id=parent, limit=2), now + 9000)
    store.put_many([forge.message(3, at=now + 3000), forge.message(7, at=now + 7000)], now + 9000)
    query = NamespaceQuery(namespace_id=parent, limit=9, cursor=page.next_cursor)

    assert seqs(store.query(query, now + 9000)) == [6, 7, 8]
    store.expire(now + 606_000)
    assert seqs(store.query(query, now + 606_000)) == [7, 8]


def test_a_stored_message_is_what_was_put(
    forge: Any, open_store: Opener, parent: Any, now: int
) -> None:
    """Header bytes, blob, arrival, expiry and source come back as they went in (21-08, 21-48)."""
    message = forge.message(1, at=now - 5, received_at=now, source=b"peer", blob=b"x" * 5000)
    store = open_store()
    store.put_many([message], now)
    (found,) = store.query(NamespaceQuery(namespace_id=parent), now).messages

    assert found.header_bytes == message.header.encode()
    assert (found.blob, found.source, found.finality) == (message.blob, b"peer", 0)
    assert (found.received_at, found.expires_at) == (now, now - 5 + 600_000)


def test_messages_by_id(store: RelayStore, forge: Any, now: int) -> None:
    """Ids that are known give messages, the others are listed (21-23, P10)."""
    known = [forge.message(seq, at=now + seq * 1000).header.message_id for seq in (3, 1)]
    unknown = MessageId(bytes(32))
    found, missing = store.get_messages([known[0], unknown, known[1]], now)

    assert [message.seq for message in found] == [3, 1]
    assert missing == [unknown]


def test_an_expired_message_is_missing(store: RelayStore, forge: Any, now: int) -> None:
    """By id as by page, what is past its time is not there (P14)."""
    wanted = forge.message(3, at=now + 3000).header.message_id

    assert store.get_messages([wanted], now + 700_000) == ([], [wanted])


def test_refuse_too_many_ids(store: RelayStore, now: int) -> None:
    """ids_max ids are answered, one more is refused (21-23, P22)."""
    ids = [MessageId(bytes(31) + b"1")] * 1000

    assert store.get_messages(ids, now) == ([], ids)
    with pytest.raises(StoreArgumentError):
        store.get_messages([*ids, ids[0]], now)
    with pytest.raises(StoreArgumentError):
        store.get_messages([MessageId(b"short")], now)


def test_an_answer_by_id_is_bounded_in_bytes(forge: Any, open_store: Opener, now: int) -> None:
    """Ids that do not fit are in neither list, to be asked for again (P18)."""
    store = open_store(page_bytes_max=2 * 1024**2 + 8 * 1024)
    messages = [forge.message(seq, blob=bytes(1024**2)) for seq in (1, 2, 3)]
    store.put_many(messages, now)
    found, missing = store.get_messages([each.header.message_id for each in messages], now)

    assert [message.seq for message in found] == [1, 2]
    assert missing == []
