"""An archive behind the sync port, through the real service and client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from luxrelay.archive.serving import ArchiveStore
from luxrelay.bus import MsgHeader, NamespaceId, message_id, sha3_commitment
from luxrelay.errors import SyncArgumentError
from luxrelay.store import NamespaceQuery
from luxrelay.sync import RelaySyncClient, RelaySyncServer, SyncServerConfig, WireMessage

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
