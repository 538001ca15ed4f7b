"""Pages by time and by sender, across namespaces."""

from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.errors import StoreArgumentError
from luxrelay.store import RelayStore, SenderQuery, TimeQuery
from luxrelay.store.reading.indexes import SENDER_CURSOR_BYTES, TIME_CURSOR_BYTES
from luxrelay.store.rocks import RocksTable

Opener = Callable[..., RelayStore]


def stamps(store: RelayStore, now: int, **fields: Any) -> list[int]:
    """Return the timestamps of one page by time, relative to ``now``."""
    page = store.query_time(TimeQuery(**fields), now)
    return [message.timestamp - now for message in page.messages]


def test_both_ends_of_a_span_are_inclusive(forge: Any, open_store: Opener, now: int) -> None:
    """[from, to] in milliseconds, ascending, across namespaces (21-34, P7)."""
    store = open_store()
    store.put_many([forge.in_lane(1, sender, at=now + sender) for sender in (5, 3, 1, 4, 2)], now)

    assert stamps(store, now) == [1, 2, 3, 4, 5]
    assert stamps(store, now, from_time=now + 2, to_time=now + 4) == [2, 3, 4]
    assert stamps(store, now, from_time=now + 3) == [3, 4, 5]
    assert stamps(store, now, to_time=now + 2) == [1, 2]
    assert stamps(store, now, to_time=2**64 - 1) == [1, 2, 3, 4, 5]


def test_times_of_any_digits_are_in_order(forge: Any, open_store: Opener, now: int) -> None:
    """999 comes before 1000 whatever the number of digits (21-07, P6)."""
    store = open_store(cold_store_ttl_ms=10**15, retention_window_ms=10**15)
    times = [10**12 - 1, 10**12, 10**11 + 5]
    store.put_many(
        [forge.in_lane(1, n, at=at, received_at=now) for n, at in enumerate(times, 1)], now
    )
    page = store.query_time(TimeQuery(), now)

    assert [message.timestamp for message in page.messages] == sorted(times)


def test_pages_by_time_go_on_at_the_cursor(forge: Any, open_store: Opener, now: int) -> None:
    """A cursor stays right when messages before it go and after it come (21-33, P19)."""
    store = open_store()
    store.put_many([forge.in_lane(seq, 1, at=now + seq) for seq in (1, 2, 3, 4, 6)], now)
    first = store.query_time(TimeQuery(limit=2), now)
    store.expire(now + 600_002)
    store.put_many([forge.in_lane(5, 1, at=now + 5)], now)
    second = store.query_time(TimeQuery(limit=9, cursor=first.next_cursor), now)

    assert len(first.next_cursor) == TIME_CURSOR_BYTES
    assert [message.seq for message in first.messages] == [1, 2]
    assert [message.seq for message in second.messages] == [3, 4, 5, 6]
    assert (second.has_more, second.next_cursor) == (False, b"")


def test_find_a_senders_messages(forge: Any, open_store: Opener, now: int) -> None:
    """One sender's messages, wherever it wrote, within a span of time (21-35, P38)."""
    store = open_store()
    store.put_many([forge.in_lane(seq, 1, at=now + seq) for seq in (1, 2, 3)], now)
    store.put_many([forge.message(7, sender=1, at=now + 4), forge.in_lane(1, 2)], now)
    sender = forge.message(1, sender=1).header.sender_address
    everything = store.query_sender(SenderQuery(sender=sender), now).messages

    assert sorted(message.seq for message in everything) == [1, 2, 3, 7]
    span = SenderQuery(sender=sender, from_time=now + 2, to_time=now + 4)
    assert sorted(m.seq for m in store.query_sender(span, now).messages) == [2, 3, 7]
    first = store.query_sender(SenderQuery(sender=sender, limit=3), now)
    assert len(first.next_cursor) == SENDER_CURSOR_BYTES
    rest = store.query_sender(SenderQuery(sender=sender, cursor=first.next_cursor), now)
    assert first.messages + rest.messages == everything
    assert store.query_sender(SenderQuery(sender=bytes(20)), now).messages == []


def test_pages_are_bounded_in_messages_bytes_and_rows(
    forge: Any, open_store: Opener, now: int
) -> None:
    """Limit 0 is the default, the cap holds, bytes and rows end a page early (21-33, P18)."""
    store = open_store(page_messages_default=2, page_messages_max=3, page_rows_max=4)
    store.put_many([forge.in_lane(seq, 1, at=now + seq) for seq in range(1, 8)], now)
    size = len(forge.in_lane(1, 1).header.encode()) + 5

    assert stamps(store, now) == [1, 2]
    assert stamps(store, now, limit=99) == [1, 2, 3]
    assert stamps(store, now, max_bytes=2 * size - 1) == [1]
    late = SenderQuery(sender=forge.in_lane(1, 1).header.sender_address, from_time=now + 6)
    empty = store.query_sender(late, now)
    assert (empty.messages, empty.has_more) == ([], True)


def test_the_expired_are_passed_over(forge: Any, open_store: Opener, now: int) -> None:
    """What is past its time is not served, whether or not the cycle has been there (21-13)."""
    store = open_store()
    store.put_many([forge.in_lane(1, 1, at=now), forge.in_lane(2, 1, at=now + 5)], now)
    page = store.query_time(TimeQuery(), now + 600_000)

    assert [message.seq for message in page.messages] == [2]


def test_a_message_that_goes_meanwhile_is_passed_over(
    forge: Any, open_store: Opener, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index row whose message has just gone is no fault."""
    store = open_store()
    store.put_many([forge.in_lane(1, 1)], now)
    monkeypatch.setattr(RocksTable, "get", lambda *_: None)

    assert store.query_time(TimeQuery(), now).messages == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: TimeQuery(from_time=1_764_000_000),
        lambda: TimeQuery(to_time=5),
        lambda: TimeQuery(limit=-1),
        lambda: TimeQuery(max_bytes=2**64),
        lambda: TimeQuery(cursor=b"odd"),
        lambda: SenderQuery(sender=b"short"),
        lambda: SenderQuery(sender=bytes(20), cursor=bytes(68)),
        lambda: SenderQuery(sender=bytes(20), from_time=-1),
    ],
)
def test_refuse_queries_that_mean_nothing(make: Callable[[], Any]) -> None:
    """Wrong lengths, ranges and seconds are the caller's fault (21-54)."""
    with pytest.raises(StoreArgumentError):
        make()
