"""Pages of searches that stand in two stores."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, sender_address
from luxrelay.node.archive_fallback import merged, place_of, seq_place
from luxrelay.store import IndexPage, SenderQuery, StoredMessage, TimeQuery

NOW = 1_785_974_400_000
KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"\x07" * 32)


def _row(name: int, seq: int, stamp: int, content: int) -> StoredMessage:
    header = MsgHeader(
        namespace_id=NamespaceId(bytes([name]) * 20),
        seq=seq,
        timestamp=NOW + stamp,
        blob_commitment=bytes([content]) * 32,
        blob_len=1,
        policy_hash=b"p" * 32,
    )
    signed = KEY.sign_header(header)
    return StoredMessage(signed.encode(), b"x", received_at=NOW, expires_at=NOW + 1)


ROWS = [
    _row(name, seq, seq // 2, content)
    for name in (1, 2)
    for seq in range(1, 8)
    for content in (1, 2)
]
QUERIES: list[TimeQuery | SenderQuery] = [
    TimeQuery(),
    SenderQuery(sender=sender_address(ROWS[0].header.sender_pub_key)),
]


def _index(rows: list[StoredMessage], size: int) -> Callable[[TimeQuery | SenderQuery], IndexPage]:
    """An index of these rows, ``size`` a page; its last page says that it has more and has not."""

    def ask(query: TimeQuery | SenderQuery) -> IndexPage:
        places = sorted((place_of(query, row), row) for row in rows)
        rest = [each for each in places if each[0] > query.cursor]
        page, more = rest[:size], len(rest) >= size
        return IndexPage(
            messages=[row for _, row in page],
            has_more=more,
            next_cursor=page[-1][0] if more else b"",
        )

    return ask


@pytest.mark.parametrize("query", QUERIES)
def test_each_message_comes_once_and_in_order(query: TimeQuery | SenderQuery) -> None:
    """Whatever the two hold and however long their pages are, the pages give the whole."""
    rng = random.Random(11)
    for trial in range(60):
        store = [row for row in ROWS if rng.random() < 0.5]
        archive = [row for row in ROWS if rng.random() < 0.5]
        here, there = _index(store, rng.randint(1, 6)), _index(archive, rng.randint(1, 6))
        asked = replace(query, limit=rng.randint(1, 7), max_bytes=rng.choice([0, 1, 900]))
        found: list[StoredMessage] = []
        while True:
            page = merged(asked, here(asked), there(asked))
            assert page.has_more == bool(page.next_cursor)
            assert len(page.messages) <= asked.limit
            assert page.next_cursor > asked.cursor or not page.has_more
            found += page.messages
            if not page.has_more:
                break
            asked = replace(asked, cursor=page.next_cursor)
        known = {place_of(query, row): row for row in (*store, *archive)}
        assert [place_of(query, row) for row in found] == sorted(known), trial


def test_of_a_message_that_both_have_the_stores_row_is_told() -> None:
    """It knows more of its finality."""
    row = ROWS[0]
    newer = StoredMessage(row.header_bytes, b"x", received_at=NOW, expires_at=NOW, finality=2)
    ends = {"has_more": False, "next_cursor": b""}
    page = merged(
        TimeQuery(),
        IndexPage(messages=[newer], **ends),
        IndexPage(messages=[row], **ends),  # type: ignore[arg-type]
    )

    assert [each.finality for each in page.messages] == [2]


def test_a_page_ends_by_bytes_but_has_one_message() -> None:
    """``max_bytes`` counts header and payload."""
    query = TimeQuery(max_bytes=1)
    empty = IndexPage(messages=[], has_more=False, next_cursor=b"")
    page = merged(query, _index(ROWS, 99)(query), empty)

    assert (len(page.messages), page.has_more) == (1, True)
    assert page.next_cursor[28:] == seq_place(page.messages[0])
