"""An archive that is asked for what a node no longer has: honest, lying, away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, sha3_commitment
from luxrelay.bus.bound import sign_header_bound
from luxrelay.node.older import QUIET_S, OlderMessages
from luxrelay.store import IncomingMessage, NamespaceQuery, QueryPage, RelayStore
from luxrelay.sync import RelaySyncServer, SyncClientConfig, SyncServerConfig

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

    assert [each.header for each in honest.slot(header.message_id)] == [header]
    assert honest.slot(b"\x00" * 32) == []
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

    assert _seqs(older, 0) is None
    assert _seqs(older, 0, to_seq=1) is None
    assert older.slot(true.message_id) == []
    assert older.blob(true.blob_commitment) is None
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
        assert _seqs(older, 0, limit=2, cursor=page.next_cursor) is None
        older.close()
        server.stop(0)


def test_bound_signatures_are_those_of_the_network(serve: Serve) -> None:
    """On such a network LP-6411's own signature is none, and elsewhere theirs is none (H3e)."""
    bound = sign_header_bound(KEY, _header(1), "main")
    address = serve(_message(bound))

    for network, seqs in (("main", [1]), ("test", None), ("", None)):
        older = OlderMessages(address, network=network, config=PATIENT)
        assert _seqs(older, 0) == seqs
        older.close()


def test_an_archive_that_is_away_costs_one_try() -> None:
    """Callers are not made to wait for it again and again."""
    clock = Clock()
    older = OlderMessages("127.0.0.1:1", clock=clock)

    assert _seqs(older, 0) is None
    clock.now = QUIET_S - 1
    assert _seqs(older, 0) is None
    assert older._quiet_until == QUIET_S
    clock.now = QUIET_S
    assert older.blob(b"\x00" * 32) is None
    assert older._quiet_until == 2 * QUIET_S
    older.close()
