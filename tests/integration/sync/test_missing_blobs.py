"""Blobs that stored headers lack, fetched from relays over real gRPC into a real store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from luxrelay.bus import ACCEPTED, Code, NamespaceId, Verdict, sha3_commitment
from luxrelay.bus.verdict import ignore
from luxrelay.node.blobs import CALLERS_MAX, MissingBlobs
from luxrelay.node.missing_blobs import WantedBlobs
from luxrelay.store import IncomingMessage, RelayStore
from luxrelay.sync import WireMessage
from luxrelay.sync.fetch import Blame, FetchConfig
from luxrelay.sync.report import Outcome

if TYPE_CHECKING:
    from tests.integration.sync.conftest import Harbour

KNOWN = ignore(Code.DUPLICATE, "it is known")
CALM = FetchConfig(hedge_s=30, silence_s=60)


@dataclass
class Altered:
    """A real store that answers for blobs in its own way."""

    store: RelayStore
    answer: Callable[[bytes], bytes | None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def get_blob(self, commitment: bytes, now_ms: int) -> bytes | None:
        """Return what the test wants it to say."""
        del now_ms
        return self.answer(commitment)


@dataclass
class Watched:
    """A real store that notes which commitments are looked for."""

    store: RelayStore
    looks: list[bytes]

    def has_blob(self, commitment: bytes, now_ms: int) -> bool:
        """Return what the store says."""
        self.looks.append(commitment)
        return self.store.has_blob(commitment, now_ms)

    def get_blob(self, commitment: bytes, now_ms: int) -> bytes | None:
        """Return what the store says."""
        self.looks.append(commitment)
        return self.store.get_blob(commitment, now_ms)


@dataclass
class Desk:
    """A store with headers only, and what fetches their blobs."""

    store: RelayStore
    wanted: WantedBlobs
    missing: MissingBlobs
    blamed: list[Blame]

    def held(self, message: IncomingMessage) -> bool:
        """Return True when the blob of a message is stored."""
        return self.store.get_blob(message.header.blob_commitment) == message.blob


Make = Callable[[Sequence[IncomingMessage], Sequence[str]], Desk]


@pytest.fixture
def desk(harbour: Harbour) -> Iterator[Make]:
    """Return a maker of desks: headers that lack their blob, addresses of relays."""
    made: list[Desk] = []

    def make(lacking: Sequence[IncomingMessage], addresses: Sequence[str]) -> Desk:
        store = harbour.store([replace(message, blob=None) for message in lacking])
        sink = harbour.sink(store)
        wanted = WantedBlobs(ttl_ms=3_600_000)
        for message in lacking:
            wanted.add(message.header, harbour.parent)
        blamed: list[Blame] = []

        def take(parent: NamespaceId, messages: Sequence[WireMessage]) -> list[Verdict]:
            outcomes = sink.accept("", parent, messages).outcomes
            return [ACCEPTED if each is Outcome.STORED else KNOWN for each in outcomes]

        missing = MissingBlobs(
            [harbour.client(address) for address in addresses],
            store,
            take,
            wanted,
            clock_ms=lambda: harbour.base_ms,
            order=lambda peers: peers,
            blamed=blamed.append,
            config=CALM,
        )
        made.append(Desk(store, wanted, missing, blamed))
        return made[-1]

    yield make
    for each in made:
        each.missing.close()


def test_a_round_brings_what_relays_hold_between_them(harbour: Harbour, desk: Make) -> None:
    """21-37: each relay holds half, one of them lies; all true blobs are stored, it is named."""
    author = harbour.author(1)
    messages = [author.message(seq, blob=b"blob %d" % seq) for seq in range(1, 21)]
    odd, even = harbour.store(messages[::2]), harbour.store(messages[1::2])
    liar = harbour.serve(Altered(harbour.store(), lambda _: b"others"))
    ours = desk(messages, [liar, harbour.serve(odd), harbour.serve(even)])

    assert ours.missing.settle(threading.Event()) == 20
    assert all(map(ours.held, messages))
    assert {each.peer for each in ours.blamed} == {liar}
    assert len(ours.blamed) == len({each.commitment for each in ours.blamed})
    assert len(ours.wanted) == 0


def test_a_round_asks_once_for_what_nobody_has(harbour: Harbour, desk: Make) -> None:
    """21-38: a blob that nobody has costs each relay one question, round after round."""
    message = harbour.author(1).message(1, blob=b"nowhere")
    ours = desk([message], [harbour.serve(harbour.store()), harbour.serve(harbour.store())])

    assert [ours.missing.settle(threading.Event()) for _ in range(3)] == [0, 0, 0]
    assert len(ours.wanted) == 1
    for server in harbour.servers:
        assert server.stats().requests == {("GetBlobParts", "OK"): 1}


def test_a_round_looks_only_for_what_it_takes(harbour: Harbour, desk: Make) -> None:
    """21-38: what is not due costs no look into the store, and what is here already no question."""
    author = harbour.author(1)
    absent = [author.message(seq, blob=b"nowhere %d" % seq) for seq in range(1, 101)]
    here = author.message(101, blob=b"here")
    ours = desk([*absent, here], [harbour.serve(harbour.store())])
    looks: list[bytes] = []
    ours.missing._store = Watched(ours.store, looks)  # type: ignore[assignment]
    ours.store.put_many([here], harbour.base_ms)

    assert ours.missing.settle(threading.Event()) == 0
    assert len(ours.wanted) == 100
    assert harbour.servers[0].stats().requests == {("GetBlobParts", "OK"): 100}
    assert len(set(looks)) == 101
    looks.clear()
    assert ours.missing.settle(threading.Event()) == 0
    assert looks == []


def test_a_round_ends_when_the_node_stops(harbour: Harbour, desk: Make) -> None:
    """A node that stops begins no further fetch."""
    message = harbour.author(1).message(1, blob=b"there")
    ours = desk([message], [harbour.serve(harbour.store([message]))])
    stopping = threading.Event()
    stopping.set()

    assert ours.missing.settle(stopping) == 0
    assert harbour.servers[0].stats().requests == {}


def test_one_caller_gets_a_blob_and_it_stays(harbour: Harbour, desk: Make) -> None:
    """21-37: what a caller waits for is stored; what no stored header names is not asked for."""
    message = harbour.author(1).message(1, blob=b"there")
    ours = desk([message], [harbour.serve(harbour.store([message]))])

    assert ours.missing.one(sha3_commitment(b"named by nobody")) is None
    assert harbour.servers[0].stats().requests == {}
    assert ours.missing.one(message.header.blob_commitment) == b"there"
    assert ours.held(message)


def test_callers_that_wait_are_bounded_and_sent_away_at_the_end(
    harbour: Harbour, desk: Make
) -> None:
    """21-38: callers_max wait for a slow relay, the next gets None; closing frees all."""
    message = harbour.author(1).message(1, blob=b"slow")
    asked, release = threading.Event(), threading.Event()

    def slowly(_: bytes) -> bytes | None:
        asked.set()
        release.wait(60)
        return None

    ours = desk([message], [harbour.serve(Altered(harbour.store(), slowly))])
    commitment = message.header.blob_commitment
    with ThreadPoolExecutor(CALLERS_MAX + 2) as pool:
        calls = [pool.submit(ours.missing.one, commitment) for _ in range(CALLERS_MAX + 1)]
        try:
            assert asked.wait(10)
            done, waiting = wait(calls, timeout=10, return_when=FIRST_COMPLETED)
            assert [each.result() for each in done] == [None]
            closing = pool.submit(ours.missing.close)
            assert [each.result(10) for each in waiting] == [None] * CALLERS_MAX
        finally:
            release.set()
        closing.result(10)
    assert ours.missing.one(commitment) is None
