"""An archive behind the sync port, through the real service and client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from luxrelay.archive.serving import SEARCH_BYTES_MAX, SEARCH_MAX, ArchiveStore
from luxrelay.bus import MsgHeader, NamespaceId, message_id, sender_address, sha3_commitment
from luxrelay.errors import SyncArgumentError
from luxrelay.store import IndexPage, NamespaceQuery, SenderQuery, TimeQuery
from luxrelay.sync import RelaySyncClient, RelaySyncServer, SyncServerConfig, WireMessage
from luxrelay.sync.rpc.gateway_server import SearchRpcServer

A, B, LANE = NamespaceId(b"a" * 20), NamespaceId(b"b" * 20), NamespaceId(b"l" * 20)
NOW = 1_704_067_260_000
Forge = Callable[..., WireMessage]


@pytest.fixture
def messages(forge: Forge) -> list[WireMessage]:
    """A namespace with a hole and a contested slot, and another."""
    made = [forge(A, seq, blob=b"text %d" % seq) for seq in range(3, 30) if seq != 20]
    return [*made, forge(A, 9, blob=b"rival"), forge(B, 1)]


@pytest.fixture
def store(
    archive_of: Callable[..., Path], messages: list[WireMessage], tmp_path: Path
) -> ArchiveStore:
    """The archive as a store."""
    return ArchiveStore(archive_of(tmp_path / "archive", messages))


@pytest.fixture
def client(store: ArchiveStore) -> Iterator[RelaySyncClient]:
    """A client of a server in front of it."""
    server = RelaySyncServer(store, SyncServerConfig(port=0), clock_ms=lambda: NOW)
    with RelaySyncClient(f"127.0.0.1:{server.start()}") as relay:
        yield relay
    server.stop(0)


@pytest.fixture
def searched(store: ArchiveStore) -> Iterator[RelaySyncClient]:
    """A client of a server that is searched as well."""
    server = SearchRpcServer(store, SyncServerConfig(port=0), clock_ms=lambda: NOW)
    with RelaySyncClient(f"127.0.0.1:{server.start()}") as relay:
        yield relay
    server.stop(0)


def test_pages_are_those_of_a_relay(client: RelaySyncClient, messages: list[WireMessage]) -> None:
    """Everything in order of sequence, page by page, with bounds as LP-6421 has them (P20)."""
    pages = list(client.iter_pages(A, page_messages=4))
    some = client.sync_page(A, 4, 6)

    served = [message for page in pages for message in page.messages]
    wanted = [message for message in messages if message.namespace_id == A]
    assert sorted(served, key=lambda m: m.header) == sorted(wanted, key=lambda m: m.header)
    assert [m.seq for m in served] == sorted(m.seq for m in wanted)
    assert [m.seq for m in some.messages] == [5, 6]


def test_heads_say_how_far_it_reaches(client: RelaySyncClient) -> None:
    """First, contiguous and last sequence, and the floor below which nothing is to come."""
    heads = {head.namespace_id: head for head in client.list_heads()}

    assert set(heads) == {A, B}
    assert (heads[A].earliest_seq, heads[A].contiguous_seq, heads[A].latest_seq) == (3, 19, 29)
    assert (heads[A].messages, heads[A].floor_seq, heads[A].watermark) == (27, 2, None)
    assert client.get_head(LANE).latest_seq == 0
    assert [head.namespace_id for head in client.list_heads(B)] == [B]
    held = {lane.namespace_id: lane.spans for lane in client.list_held()}
    assert [tuple(span) for span in held[A]] == [(3, 19), (21, 29)]


def test_slots_contents_and_blobs(client: RelaySyncClient, messages: list[WireMessage]) -> None:
    """By id, with what is missing named."""
    header = MsgHeader.decode(messages[0].header)
    unknown = message_id(A, 20)

    found, missing = client.get_messages([message_id(A, 9), unknown])
    contents, none = client.get_contents([header.content_id, b"\x00" * 32])

    assert sorted(m.blob for m in found) == [b"rival", b"text 9"]
    assert missing == [unknown]
    assert [m.header for m in contents] == [messages[0].header]
    assert none == [b"\x00" * 32]
    assert client.get_blob(sha3_commitment(b"text 5")) == b"text 5"


def test_pages_of_heads_and_times(store: ArchiveStore) -> None:
    """Heads come in pages; times of a query hold together with its sequences (P21)."""
    first, cursor = store.heads(None, b"", 1)
    rest, end = store.heads(None, cursor, 1)
    late = store.query(NamespaceQuery(namespace_id=A, from_time=1_704_067_200_028), NOW)

    assert [head.namespace_id for head in (*first, *rest)] == [A, B]
    assert end == b""
    assert [message.seq for message in late.messages] == [28, 29]


def test_news_are_seen_after_a_refresh(
    archive_of: Callable[..., Path], forge: Forge, store: ArchiveStore, tmp_path: Path
) -> None:
    """The server looks again from time to time."""
    archive_of(tmp_path / "archive", [forge(A, 20)])

    assert store.head(A).contiguous_seq == 19
    store.refresh()
    assert store.head(A).contiguous_seq == 29


def test_reconciliation_is_refused(store: ArchiveStore) -> None:
    """It is for relays among themselves."""
    for ask in (store.tree_nodes, store.stamps, store.bucket_ids, lambda: store.tree_buckets(0)):
        with pytest.raises(SyncArgumentError, match="reconciliation"):
            ask()


def _order(message: WireMessage) -> tuple[bytes, int, bytes]:
    header = MsgHeader.decode(message.header)
    return header.namespace_id, header.seq, header.content_id


def _search(client: RelaySyncClient, sender: bytes = b"", **bounds: int) -> list[WireMessage]:
    found: list[WireMessage] = []
    cursor = b""
    while True:
        page = client.search(sender, limit=4, cursor=cursor, **bounds)
        assert 0 < len(page.messages) <= 4
        found += page.messages
        cursor = page.next_cursor
        if not cursor:
            return found


def test_searches_are_in_the_order_of_a_store(
    searched: RelaySyncClient, messages: list[WireMessage]
) -> None:
    """By time, and of a sender by namespace and sequence, page by page (P38, LP-6440)."""
    stamps = {message.header: MsgHeader.decode(message.header).timestamp for message in messages}
    sender = sender_address(MsgHeader.decode(messages[0].header).sender_pub_key)
    middle = sorted(stamps.values())[10]

    assert _search(searched) == sorted(messages, key=lambda m: (stamps[m.header], *_order(m)))
    assert _search(searched, sender) == sorted(messages, key=_order)
    late = [message for message in messages if stamps[message.header] >= middle]
    assert _search(searched, sender, from_time=middle) == sorted(late, key=_order)
    assert searched.search(b"s" * 20).messages == []


def test_times_and_sequences_that_no_table_has(store: ArchiveStore) -> None:
    """The wire has u64; beyond the tables there is nothing, and no fault."""
    far, top = 2**63, b"\xff" * 60
    sender = next(iter(store.query_time(TimeQuery(limit=1), NOW).messages)).header.sender_pub_key
    for page in (
        store.query_time(TimeQuery(from_time=far), NOW),
        store.query_time(TimeQuery(cursor=b"\xff" * 8 + top), NOW),
        store.query_time(TimeQuery(from_time=NOW + 1, to_time=NOW), NOW),
        store.query_sender(SenderQuery(sender=sender_address(sender), from_time=far), NOW),
        store.query_sender(SenderQuery(sender=sender_address(sender), cursor=top), NOW),
    ):
        assert (page.messages, page.has_more, page.next_cursor) == ([], False, b"")
    behind = bytes(A) + b"\xff" * 40
    page = store.query_sender(SenderQuery(sender=sender_address(sender), cursor=behind), NOW)
    assert [each.namespace_id for each in page.messages] == [B]


@pytest.mark.parametrize("by", ["time", "sender"])
def test_a_page_of_a_search_ends_by_count_and_by_bytes(
    archive_of: Callable[..., Path], forge: Forge, tmp_path: Path, by: str
) -> None:
    """SEARCH_MAX messages, SEARCH_BYTES_MAX of payload, and one message whatever its size."""
    many = [forge(A, seq, blob=b"") for seq in range(1, SEARCH_MAX + 2)]
    large = [forge(B, seq, blob=bytes(400 * 1024)) for seq in range(1, 4)]
    store = ArchiveStore(archive_of(tmp_path / "archive", [*many, *large], roots=False))
    sender = sender_address(MsgHeader.decode(many[0].header).sender_pub_key)

    def ask(cursor: bytes = b"", max_bytes: int = 0) -> IndexPage:
        bounds: dict[str, Any] = {"cursor": cursor, "max_bytes": max_bytes}
        if by == "time":
            return store.query_time(TimeQuery(**bounds), NOW)
        return store.query_sender(SenderQuery(sender=sender, **bounds), NOW)

    first = ask()
    assert first.has_more
    sizes = [len(each.blob or b"") for each in first.messages]
    assert len(sizes) == SEARCH_MAX or sum(sizes) + 400 * 1024 > SEARCH_BYTES_MAX
    rest, cursor = list(first.messages), first.next_cursor
    while cursor:
        page = ask(cursor, 1)
        assert sum(len(each.blob or b"") > 0 for each in page.messages) <= 1
        rest, cursor = [*rest, *page.messages], page.next_cursor
    assert len(rest) == len(many) + len(large)
