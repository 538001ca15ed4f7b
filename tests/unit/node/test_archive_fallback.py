"""An archive that is asked for what a node no longer has: honest, lying, away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    sender_address,
    sha3_commitment,
)
from luxrelay.bus.bound import sign_header_bound
from luxrelay.errors import SyncUnreachableError
from luxrelay.node.archive_fallback import QUIET_S, OlderMessages
from luxrelay.store import (
    IncomingMessage,
    IndexPage,
    NamespaceQuery,
    QueryPage,
    RelayStore,
    SenderQuery,
    TimeQuery,
)
from luxrelay.sync import RelaySyncServer, SyncClientConfig, SyncServerConfig
from luxrelay.sync.rpc.gateway_server import SearchRpcServer

NS = NamespaceId(b"n" * 20)
NOW = 1_785_974_400_000
KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"\x07" * 32)
PATIENT = SyncClientConfig(call_s=60, page_s=60, connect_s=60)
"""A busy machine is no archive that is away."""


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def _header(seq: int) -> MsgHeader:
    return MsgHeader(
        namespace_id=NS,
        seq=seq,
        timestamp=NOW + seq,
        blob_commitment=sha3_commitment(b"text %d" % seq),
        blob_len=len(b"text %d" % seq),
        policy_hash=b"p" * 32,
    )


def _message(header: MsgHeader, blob: bytes | None = None) -> IncomingMessage:
    held = b"text %d" % header.seq if blob is None else blob
    return IncomingMessage(header=header, blob=held, parent=NS, received_at=NOW)


Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serve messages on a sync port; nothing checks them there."""
    ends: list[Callable[[], object]] = []

    def start(*messages: IncomingMessage) -> str:
        store = RelayStore.open(tmp_path / f"store{len(ends)}", now_ms=NOW)
        store.put_many(messages, NOW)
        server = RelaySyncServer(store, SyncServerConfig(port=0), clock_ms=lambda: NOW)
        ends.extend((store.close, lambda: server.stop(0)))
        return f"127.0.0.1:{server.start()}"

    yield start
    for end in reversed(ends):
        end()


@pytest.fixture
def honest(serve: Serve) -> Iterator[OlderMessages]:
    """Five messages, the third of them missing."""
    older = OlderMessages(serve(*(_message(KEY.sign_header(_header(seq))) for seq in (1, 2, 4, 5))))
    yield older
    older.close()


def _seqs(older: OlderMessages, earliest: int, **query: int | bytes) -> list[int] | None:
    page = older.before(NamespaceQuery(namespace_id=NS, **query), earliest)  # type: ignore[arg-type]
    return None if page is None else [message.seq for message in page.messages]


def test_it_answers_below_what_the_store_holds_and_not_above(honest: OlderMessages) -> None:
    """Bounds and cursors are those of the question; a store with nothing is below everything."""
    assert _seqs(honest, 5) == [1, 2, 4]
    assert _seqs(honest, 0) == [1, 2, 4, 5]
    assert _seqs(honest, 5, from_seq=1, to_seq=2) == [2]
    assert _seqs(honest, 1) is None
    assert _seqs(honest, 5, from_seq=4) is None
    assert _seqs(honest, 4, from_seq=2) is None
    assert _seqs(honest, 0, from_seq=2**63) is None
    assert _seqs(honest, 0, to_seq=4, from_time=NOW + 2) == [2, 4]

    page = honest.before(NamespaceQuery(namespace_id=NS, limit=2), 5)
    assert page is not None
    assert (page.has_more, page.earliest_seq) == (True, 1)
    assert _seqs(honest, 5, cursor=page.next_cursor) == [4]
    rest = honest.before(NamespaceQuery(namespace_id=NS, cursor=page.next_cursor), 5)
    assert rest is not None
    assert rest.gaps == [(3, 3)]
    assert _seqs(honest, 5, cursor=rest.next_cursor) is None


def test_slots_and_blobs(honest: OlderMessages) -> None:
    """By id and by commitment; what is not there is not there."""
    header = KEY.sign_header(_header(2))

    assert [each.header for each in honest.slots([header.message_id, b"\x00" * 32])] == [header]
    assert honest.slots([b"\x00" * 32]) == []
    assert honest.blob(header.blob_commitment) == b"text 2"
    assert honest.blob(b"\x00" * 32) is None


@pytest.mark.parametrize("lie", ["signature", "payload"])
def test_an_archive_that_lies_serves_nothing_and_is_left_alone(serve: Serve, lie: str) -> None:
    """One message that is none spoils the page; it is asked again after QUIET_S."""
    true = KEY.sign_header(_header(1))
    broken = {
        "signature": _message(replace(true, seq=2)),
        "payload": _message(KEY.sign_header(_header(2)), b"text 3"),
    }[lie]
    clock = Clock()
    older = OlderMessages(serve(_message(true), broken), config=PATIENT, clock=clock)

    with pytest.raises(SyncUnreachableError, match=r"does not hold|another one"):
        _seqs(older, 0)
    for ask in _questions(older, true):
        with pytest.raises(SyncUnreachableError, match="a moment ago"):
            ask()
    assert older.calls() == {
        ("page", "failed"): 1,
        **{(call, "quiet"): 1 for call in ("page", "slots", "blob", "search")},
    }
    clock.now = QUIET_S
    assert _seqs(older, 0, to_seq=1) == [1]
    assert older.blob(true.blob_commitment) == b"text 1"
    older.close()


class Repeating:
    """A store that answers every question from its beginning."""

    def __init__(self, store: RelayStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def query(self, query: NamespaceQuery, now_ms: int) -> QueryPage:
        """Return the first page, whatever the cursor."""
        return self._store.query(replace(query, cursor=b""), now_ms)


def test_an_archive_that_goes_back_leads_nobody_round(tmp_path: Path) -> None:
    """A page before its cursor would be read for ever."""
    with RelayStore.open(tmp_path / "store", now_ms=NOW) as store:
        store.put_many([_message(KEY.sign_header(_header(seq))) for seq in (1, 2, 3)], NOW)
        server = RelaySyncServer(Repeating(store), SyncServerConfig(port=0), clock_ms=lambda: NOW)
        older = OlderMessages(f"127.0.0.1:{server.start()}", config=PATIENT)
        page = older.before(NamespaceQuery(namespace_id=NS, limit=2), 0)
        assert page is not None
        with pytest.raises(SyncUnreachableError, match="before its cursor"):
            _seqs(older, 0, limit=2, cursor=page.next_cursor)
        older.close()
        server.stop(0)


def test_bound_signatures_are_those_of_the_network(serve: Serve) -> None:
    """On such a network LP-6411's own signature is none, and elsewhere theirs is none (H3e)."""
    bound = sign_header_bound(KEY, _header(1), "main")
    address = serve(_message(bound))

    for network, holds in (("main", True), ("test", False), ("", False)):
        older = OlderMessages(address, network=network, config=PATIENT)
        with nullcontext() if holds else pytest.raises(SyncUnreachableError, match="signature"):
            assert _seqs(older, 0) == [1]
        assert older.messages == holds
        older.close()


def test_an_archive_that_is_away_costs_one_try_of_each_question() -> None:
    """Callers are not made to wait for it again and again."""
    clock = Clock()
    older = OlderMessages("127.0.0.1:1", clock=clock)

    for ask in _questions(older, _header(1)):
        for now, outcome in ((0, "failed"), (QUIET_S - 1, "quiet"), (QUIET_S, "failed")):
            clock.now = now
            before = older.calls()
            with pytest.raises(SyncUnreachableError, match=r"127\.0\.0\.1:1"):
                ask()
            (changed,) = dict(older.calls().items() - before.items())
            assert changed[1] == outcome
        clock.now = 0
    older.close()
    clock.now = 2 * QUIET_S
    with pytest.raises(SyncUnreachableError, match="closed"):
        older.slots([b"\x00" * 32])


SENDER = sender_address(KEY.sign_header(_header(1)).sender_pub_key)


def _questions(older: OlderMessages, header: MsgHeader) -> list[Callable[[], object]]:
    """Return one question of each kind."""
    return [
        lambda: _seqs(older, 0, to_seq=1),
        lambda: older.slots([header.message_id]),
        lambda: older.blob(header.blob_commitment),
        lambda: older.search(TimeQuery()),
    ]


@pytest.fixture
def searched(tmp_path: Path) -> Iterator[OlderMessages]:
    """An archive of four messages that is searched as well."""
    with RelayStore.open(tmp_path / "searched", now_ms=NOW) as store:
        store.put_many([_message(KEY.sign_header(_header(seq))) for seq in (4, 2, 1, 3)], NOW)
        yield from _archive(store)


def _archive(store: Any) -> Iterator[OlderMessages]:
    server = SearchRpcServer(store, SyncServerConfig(port=0), clock_ms=lambda: NOW)
    older = OlderMessages(f"127.0.0.1:{server.start()}", config=PATIENT)
    yield older
    older.close()
    server.stop(0)


@pytest.mark.parametrize("query", [TimeQuery(), SenderQuery(sender=SENDER)])
def test_searches_by_time_and_by_sender(
    searched: OlderMessages, query: TimeQuery | SenderQuery
) -> None:
    """Page by page, with the bounds of the question."""
    first = searched.search(replace(query, limit=3))
    rest = searched.search(replace(query, limit=3, cursor=first.next_cursor))
    some = searched.search(replace(query, from_time=NOW + 2, to_time=NOW + 3))

    assert [each.seq for each in first.messages] == [1, 2, 3]
    assert [each.seq for each in rest.messages] == [4]
    assert (first.has_more, rest.has_more, rest.next_cursor) == (True, False, b"")
    assert [each.seq for each in some.messages] == [2, 3]
    assert searched.search(SenderQuery(sender=b"s" * 20)).messages == []


class LyingSearch:
    """An index that says something else than it was asked."""

    def __init__(self, store: RelayStore, lie: str) -> None:
        self._store = store
        self._lie = lie

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def query_time(self, query: TimeQuery, now_ms: int) -> IndexPage:
        """Return the first messages of all, in some order."""
        del query
        page = self._store.query_time(TimeQuery(limit=2), now_ms)
        if self._lie == "order":
            page.messages.reverse()
        elif self._lie == "cursor":
            return replace(page, next_cursor=bytes(67) + b"\x01")
        elif self._lie == "signature":
            header = replace(page.messages[0].header, timestamp=NOW + 9)
            page.messages.append(replace(page.messages[0], header_bytes=header.encode()))
        return page

    def query_sender(self, query: SenderQuery, now_ms: int) -> IndexPage:
        """Return another sender's messages."""
        return self._store.query_sender(replace(query, sender=SENDER), now_ms)


@pytest.mark.parametrize(
    ("lie", "query", "what"),
    [
        ("order", TimeQuery(), "out of their order"),
        ("cursor", TimeQuery(), "goes on before its end"),
        ("signature", TimeQuery(), "does not hold"),
        ("time", TimeQuery(from_time=NOW + 2), "another time"),
        ("again", TimeQuery(cursor=(NOW + 2).to_bytes(8, "big") + b"\xff" * 60), "order|move on"),
        ("sender", SenderQuery(sender=b"s" * 20), "another sender"),
        ("many", TimeQuery(limit=1), "2 messages instead of 1"),
    ],
)
def test_a_search_that_lies_is_found_out(
    tmp_path: Path, lie: str, query: TimeQuery | SenderQuery, what: str
) -> None:
    """Nothing of such a page is told."""
    with RelayStore.open(tmp_path / "store", now_ms=NOW) as store:
        store.put_many([_message(KEY.sign_header(_header(seq))) for seq in (1, 2, 3)], NOW)
        for older in _archive(LyingSearch(store, lie)):
            with pytest.raises(SyncUnreachableError, match=what):
                older.search(query)


def test_a_relay_in_the_place_of_an_archive_gives_pages_all_the_same(
    honest: OlderMessages,
) -> None:
    """It is not searched, which keeps nobody from its pages."""
    with pytest.raises(SyncUnreachableError, match="does not offer"):
        honest.search(TimeQuery())
    assert _seqs(honest, 5) == [1, 2, 4]


def test_no_cursor_of_a_caller_makes_the_archive_refuse(honest: OlderMessages) -> None:
    """A caller writes cursors as it likes; one refusal would keep others from the archive."""
    below, above = (2).to_bytes(8, "big") + b"c" * 32, b"\xff" * 40

    assert _seqs(honest, 0, from_seq=2, cursor=below) == [4, 5]
    assert _seqs(honest, 5, from_seq=4, cursor=below) is None
    assert _seqs(honest, 5, cursor=above) is None
    assert _seqs(honest, 0, from_seq=4, to_seq=2) is None
    assert ("page", "failed") not in honest.calls()
