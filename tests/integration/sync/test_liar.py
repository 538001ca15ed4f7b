"""Catching up from two relays of which one lies, while new messages arrive and things break."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from luxrelay.store import IncomingMessage, NamespaceQuery, QueryPage, RelayStore, StoredMessage
from luxrelay.sync import (
    CatchUpConfig,
    CatchUpReport,
    FairnessConfig,
    Outcome,
    RelaySyncClient,
    SyncClientConfig,
    SyncServerConfig,
    run_catchup,
)
from luxrelay.sync.messages import WireMessage
from luxrelay.sync.report import AcceptResult

if TYPE_CHECKING:
    from tests.integration.sync.conftest import Harbour, Sink

MESSAGES = int(os.environ.get("LUXRELAY_SYNC_MESSAGES", "3000"))
"""Messages missed; 60,000 in a long run (21-25)."""
LANES = 40
OMITS, FORGES = 97, 500 if MESSAGES >= 20_000 else 50
"""One in so many is left out, one in so many forged; more of them where there are few."""
FREE = FairnessConfig(out_bytes_per_s=0)


@dataclass
class Liar:
    """A relay that claims what the store holds, leaves out some messages and forges some."""

    store: RelayStore
    forged: dict[bytes, bytes] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def query(self, query: NamespaceQuery, now_ms: int) -> QueryPage:
        """Return a page with something left out and something forged."""
        page = self.store.query(query, now_ms)
        kept = [self._forge(each) for each in page.messages if self._number(each) % OMITS]
        return replace(page, messages=kept)

    @staticmethod
    def _number(message: StoredMessage) -> int:
        return int.from_bytes(message.header.content_id[:4], "big")

    def _forge(self, message: StoredMessage) -> StoredMessage:
        if self._number(message) % FORGES:
            return message
        signature = message.header.signature
        forged = replace(message.header, signature=bytes([signature[0] ^ 1]) + signature[1:])
        return replace(message, header_bytes=forged.encode())


@dataclass
class LiveSink:
    """A sink into whose store messages arrive by gossip meanwhile."""

    inner: Sink
    live: list[IncomingMessage]
    every: int

    def __post_init__(self) -> None:
        self.heads, self.gaps, self.skip_to = (
            self.inner.heads,
            self.inner.gaps,
            self.inner.skip_to,
        )
        self.stored: list[bytes] = []

    def accept(self, peer: str, parent: Any, messages: Sequence[WireMessage]) -> AcceptResult:
        """Store the page, and then some of what gossip brings."""
        result = self.inner.accept(peer, parent, messages)
        self.stored += [
            message.header
            for message, outcome in zip(messages, result.outcomes, strict=True)
            if outcome is Outcome.STORED
        ]
        arrived, self.live = self.live[: self.every], self.live[self.every :]
        self.inner.store.put_many(arrived, self.inner.now_ms)
        reached = self.inner.store.head(messages[0].namespace_id).contiguous_seq
        return replace(result, contiguous_seq=reached)


def missed(harbour: Harbour) -> tuple[list[list[IncomingMessage]], list[IncomingMessage]]:
    """Return the messages of each lane, and a few newer ones that gossip brings."""
    each = MESSAGES // LANES
    history, live = [], []
    for number in range(1, LANES + 1):
        author = harbour.author(number)
        history.append(author.messages(range(1, each + 1)))
        live += author.messages(range(each + 1, each + 3))
    return history, live


def test_catch_up_although_one_of_two_lies(harbour: Harbour) -> None:
    """21-25 to 21-28: nothing valid is lost, nothing invalid stored, and the liar is named."""
    history, live = missed(harbour)
    everything = [message for lane in history for message in lane]
    honest, source = harbour.store(everything), harbour.store(everything)
    liar = harbour.serve(Liar(source), SyncServerConfig(fairness=FREE))
    good = harbour.serve(honest, SyncServerConfig(fairness=FREE))
    ours = harbour.store()
    sink = LiveSink(harbour.sink(ours), live, every=4)

    report = run_catchup([harbour.client(liar), harbour.client(good)], sink)
    ours.put_many(sink.live, harbour.base_ms)

    each = MESSAGES // LANES
    for lane in history:
        namespace = lane[0].header.namespace_id
        assert ours.head(namespace).contiguous_seq == each + 2
        assert ours.gaps(namespace) == []
    assert ours.stats().messages == MESSAGES + len(live)
    wanted = {m.header.content_id for m in [*everything, *live]}
    assert all(ours.has(content) for content in wanted)
    by_peer = {peer.peer: peer for peer in report.peers}
    assert by_peer[liar].withheld > 0
    assert by_peer[liar].rejected > 0
    assert (by_peer[good].withheld, by_peer[good].rejected) == (0, 0)
    assert report.complete
    assert len(sink.stored) == len(set(sink.stored))  # the history came once


def catch_up(harbour: Harbour, ours: RelayStore, addresses: list[str]) -> CatchUpReport:
    """Catch up in small pages."""
    config = SyncClientConfig(page_s=2.0, call_s=2.0, connect_s=1.0, reconnect_s=0.1)
    clients = [RelaySyncClient(address, config=config) for address in addresses]
    harbour.clients += clients
    small = CatchUpConfig(page_messages=10, backoff_s=0.01, backoff_max_s=0.05)
    return run_catchup(clients, harbour.sink(ours), small)


@dataclass
class Mortal:
    """A relay that is killed while it reads a page."""

    store: RelayStore
    kill: Callable[[], None]
    queries: int
    """Reads that it lives to see."""
    dead: threading.Event = field(default_factory=threading.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def query(self, query: NamespaceQuery, now_ms: int) -> QueryPage:
        """Return a page; the last one reaches nobody."""
        self.queries -= 1
        if not self.queries:
            threading.Thread(target=self.kill, daemon=True).start()
            self.dead.set()
        return self.store.query(query, now_ms)


@dataclass
class Late:
    """A relay that lists nothing before the other one is dead."""

    store: RelayStore
    dead: threading.Event

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def heads(self, *asked: Any) -> Any:
        """Return the heads."""
        self.dead.wait(10)
        return self.store.heads(*asked)


def test_a_peer_killed_in_the_middle(harbour: Harbour) -> None:
    """21-25: the other peer brings what the one that went away did not."""
    messages = [m for n in (1, 2, 3) for m in harbour.author(n).messages(range(1, 201))]
    stores = [harbour.store(messages) for _ in range(2)]
    mortal = Mortal(stores[0], lambda: harbour.servers[0].stop(grace_s=0), queries=8)
    config = SyncServerConfig(read_messages=4)
    addresses = [
        harbour.serve(mortal, config),
        harbour.serve(Late(stores[1], mortal.dead), config),
    ]
    ours = harbour.store()

    report = catch_up(harbour, ours, addresses)

    first, second = report.peers
    assert mortal.dead.is_set()
    assert first.failures
    assert first.stored < len(messages) == first.stored + second.stored
    assert report.complete
    assert ours.tree_root() == stores[0].tree_root()


def test_a_relay_that_is_restarted(harbour: Harbour) -> None:
    """21-49: a relay that comes back is asked again, from where it was left."""
    messages = harbour.author(1).messages(range(1, 401))
    theirs, ours = harbour.store(messages), harbour.store()
    mortal = Mortal(theirs, lambda: harbour.servers[0].stop(grace_s=0), queries=20)
    address = harbour.serve(mortal, SyncServerConfig(read_messages=4))
    first = catch_up(harbour, ours, [address])
    assert mortal.dead.is_set()
    assert not first.complete
    reached = ours.head(messages[0].header.namespace_id).contiguous_seq
    assert 0 < reached == first.stored < 400
    again = harbour.serve(theirs)

    second = catch_up(harbour, ours, [again])

    assert second.complete
    assert second.stored == 400 - reached
    assert ours.tree_root() == theirs.tree_root()


def test_a_stream_that_stalls(harbour: Harbour) -> None:
    """21-25: a relay that accepts calls and sends nothing delays and changes nothing."""
    messages = harbour.author(1).messages(range(1, 101))
    theirs, ours = harbour.store(messages), harbour.store()
    stuck = threading.Event()

    class Stalled(Liar):
        """Claims everything and never answers a page."""

        def query(self, query: NamespaceQuery, now_ms: int) -> QueryPage:
            stuck.wait(20)
            return super().query(query, now_ms)

    stalled = harbour.serve(Stalled(theirs), SyncServerConfig())
    good = harbour.serve(theirs)
    try:
        report = catch_up(harbour, ours, [stalled, good])
    finally:
        stuck.set()

    assert report.complete
    assert ours.tree_root() == theirs.tree_root()
