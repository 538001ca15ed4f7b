"""Catching up over real gRPC between real stores."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from luxrelay.bus import sha3_commitment
from luxrelay.errors import StoreError, SyncArgumentError
from luxrelay.sync import (
    AcceptResult,
    CatchUpConfig,
    CatchUpProgress,
    CatchUpReport,
    SeqRange,
    SyncClientConfig,
    SyncServerConfig,
    WireMessage,
    run_catchup,
)
from luxrelay.sync.transfer import LinkWindow, TransferConfig

BASE_MS = 1_800_000_000_000
SMALL = CatchUpConfig(page_messages=16, backoff_s=0.01, backoff_max_s=0.05)


def held(store: Any, namespace_id: bytes) -> list[int]:
    """Return the sequences a store holds, by its gaps."""
    head = store.head(namespace_id)
    gaps = store.gaps(namespace_id)
    missing = {seq for first, last in gaps for seq in range(first, last + 1)}
    return [seq for seq in range(head.earliest_seq or 1, head.latest_seq + 1) if seq not in missing]


def catch_up(harbour: Any, sink: Any, *clients: Any, **options: Any) -> CatchUpReport:
    """Run a small catch-up."""
    options.setdefault("config", SMALL)
    return run_catchup(clients, sink, parent=harbour.parent, **options)


def test_page_to_the_head(harbour: Any) -> None:
    """21-25, P24: an absence of many pages is caught up whole, without a duplicate."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 201)))
    sink = harbour.sink(harbour.store(author.messages(range(1, 6))))

    report = catch_up(harbour, sink, client)

    assert held(sink.store, author.lane) == list(range(1, 201))
    assert (report.complete, report.stored, report.duplicate) == (True, 195, 0)
    assert report.pages == 13  # 195 messages in pages of 16
    assert (report.namespaces, report.namespaces_done, report.holes_left) == (1, 1, ())


def test_ask_nothing_when_level(harbour: Any) -> None:
    """A node that is level with its peers asks for heads and for no page."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 11)))
    sink = harbour.sink(harbour.store(author.messages(range(1, 11))))

    report = catch_up(harbour, sink, client)

    assert (report.complete, report.pages, report.namespaces) == (True, 0, 0)


def test_ask_only_where_a_peer_is_ahead(harbour: Any) -> None:
    """J6: of many lanes only the ones in which a peer is ahead are asked for."""
    authors = [harbour.author(number) for number in range(1, 41)]
    common = [each.message(1) for each in authors]
    ahead = [each.message(2) for each in authors[:3]]
    client = harbour.relay([*common, *ahead])
    sink = harbour.sink(harbour.store(common))

    report = catch_up(harbour, sink, client)

    assert (report.pages, report.stored, report.complete) == (3, 3, True)


@pytest.mark.slow
def test_catch_up_many_lanes(harbour: Any) -> None:
    """Hundreds of short lanes are caught up in one run from two peers that share the work."""
    authors = [harbour.author(number % 256) for number in range(1, 201)]
    messages = [message for each in authors for message in each.messages((1, 2, 3))]
    listed = [threading.Event(), threading.Event()]

    class Waiting:
        """Gives pages once both relays have been asked what they hold."""

        def __init__(self, number: int) -> None:
            self.number, self.store = number, harbour.store(messages)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.store, name)

        def heads(self, *asked: Any) -> Any:
            listed[self.number].set()
            return self.store.heads(*asked)

        def query(self, *asked: Any) -> Any:
            assert all(each.wait(60) for each in listed)
            return self.store.query(*asked)

    clients = [harbour.client(harbour.serve(Waiting(number))) for number in (0, 1)]
    sink = harbour.sink(harbour.store())

    report = catch_up(harbour, sink, *clients)

    assert (report.complete, report.stored, report.namespaces) == (True, 600, 200)
    assert all(peer.pages > 0 for peer in report.peers)


def test_ask_another_peer_for_a_hole(harbour: Any) -> None:
    """21-26, P25: what peer A omits comes from peer B; the head is contiguous only then."""
    author = harbour.author()
    a = harbour.relay(author.messages([1, 2, 3, 4, 6, 7, 8]))
    b = harbour.relay(author.messages([4, 5, 6]))
    sink = harbour.sink(harbour.store())

    alone = catch_up(harbour, sink, a)
    before = sink.store.head(author.lane)
    both = catch_up(harbour, sink, a, b)

    assert not alone.complete
    assert alone.holes_left == ((author.lane, SeqRange(5, 5)),)
    assert (before.contiguous_seq, before.latest_seq) == (4, 8)
    assert both.complete
    assert sink.store.head(author.lane).contiguous_seq == 8
    assert both.received == 1


def test_drop_a_forged_message_and_keep_the_rest(harbour: Any) -> None:
    """21-27: forged in a stream: dropped, its peer counted, the rest kept, B asked for it."""
    author = harbour.author()
    messages = author.messages(range(1, 11))
    liar = harbour.relay([*messages[:4], harbour.forged(messages[4]), *messages[5:]])
    honest = harbour.relay(messages)
    sink = harbour.sink(harbour.store())

    alone = catch_up(harbour, sink, liar)
    both = catch_up(harbour, sink, liar, honest)

    assert (alone.rejected, alone.stored) == (1, 9)
    assert alone.holes_left == ((author.lane, SeqRange(5, 5)),)
    assert both.complete
    assert held(sink.store, author.lane) == list(range(1, 11))
    assert both.peers[1].rejected == 0


def test_give_up_a_peer_that_forges(harbour: Any) -> None:
    """21-27: after rejected_max invalid messages a peer is not asked again."""
    author = harbour.author()
    messages = author.messages(range(1, 101))
    liar = harbour.relay([harbour.forged(message) for message in messages])
    honest = harbour.relay(messages)
    sink = harbour.sink(harbour.store())

    config = CatchUpConfig(page_messages=16, rejected_max=15)

    alone = catch_up(harbour, sink, liar, config=config)
    both = catch_up(harbour, sink, liar, honest, config=config)

    assert "invalid" in alone.peers[0].given_up
    assert (alone.peers[0].pages, alone.complete) == (1, False)
    assert both.complete
    assert both.peers[1].given_up == ""
    assert held(sink.store, author.lane) == list(range(1, 101))


def test_skip_what_everybody_has_forgotten(harbour: Any) -> None:
    """P25: a hole that every peer has forgotten is given up, and the sink records it."""
    author = harbour.author()
    a = harbour.relay(author.messages(range(50, 61)))
    b = harbour.relay(author.messages(range(40, 61)))
    sink = harbour.sink(harbour.store(author.messages([1, 2])))

    report = catch_up(harbour, sink, a, b)

    assert sink.skips == [(author.lane, harbour.parent, 39)]
    assert report.skipped == ((author.lane, SeqRange(3, 39)),)
    assert report.skipped_messages == 37
    assert sink.store.head(author.lane).contiguous_seq == 60
    assert report.complete


def test_go_on_with_the_peers_that_answer(harbour: Any) -> None:
    """A peer that is away, and one without a store (21-56), cost nothing but their mention."""
    author = harbour.author()
    gone = harbour.relay()
    harbour.servers[0].stop(grace_s=0)
    storeless = harbour.client(harbour.serve(None))
    good = harbour.relay(author.messages(range(1, 31)))
    sink = harbour.sink(harbour.store())

    report = catch_up(harbour, sink, gone, storeless, good)

    assert report.complete
    assert held(sink.store, author.lane) == list(range(1, 31))
    assert [bool(peer.given_up) for peer in report.peers] == [True, True, False]
    assert report.peers[0].failures == SMALL.failures_max


def test_end_without_any_peer(harbour: Any) -> None:
    """Nobody answers: the report says so, nothing is raised."""
    gone = harbour.relay()
    harbour.servers[0].stop(grace_s=0)

    report = catch_up(harbour, harbour.sink(harbour.store()), gone)
    nobody = catch_up(harbour, harbour.sink(harbour.store()))

    assert not report.complete
    assert not nobody.complete


def test_wait_for_a_busy_peer(harbour: Any) -> None:
    """A peer that refuses as busy is asked again, not given up for good."""
    author = harbour.author()
    store = harbour.store(author.messages(range(1, 31)))
    client = harbour.client(harbour.serve(store, SyncServerConfig(streams_max=1)))
    sink = harbour.sink(harbour.store())
    others = [harbour.author(number) for number in range(2, 6)]
    store.put_many([each.message(1) for each in others], harbour.base_ms)

    report = catch_up(harbour, sink, client)

    assert held(sink.store, author.lane) == list(range(1, 31))
    assert report.complete


def test_resume_where_it_was_cut_off(harbour: Any) -> None:
    """A catch-up that was cancelled goes on from what is in the store."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 201)))
    stop = threading.Event()

    class Cutting(harbour.sink):
        def accept(self, peer: str, parent: bytes, messages: Sequence[WireMessage]) -> AcceptResult:
            result = super().accept(peer, parent, messages)
            if len(self.accepted) == 3:
                stop.set()
            return result

    store = harbour.store()
    first = catch_up(harbour, Cutting(store), client, cancelled=stop)
    sink = harbour.sink(store)
    second = catch_up(harbour, sink, client)

    assert (first.cancelled, first.complete) == (True, False)
    assert 48 <= first.stored < 200
    assert second.complete
    assert first.stored + second.stored == 200
    assert second.duplicate == 0


def test_cancel_a_call_that_hangs(harbour: Any) -> None:
    """Cancelling ends calls under way at once, whatever their deadline."""
    author = harbour.author()
    entered = threading.Event()
    release = threading.Event()

    class Hanging:
        def heads(self, *_: Any) -> Any:
            entered.set()
            release.wait(30)
            return [], b""

    client = harbour.client(harbour.serve(Hanging()), SyncClientConfig(call_s=60))
    reports: list[CatchUpReport] = []
    sink = harbour.sink(harbour.store(author.messages([1])))
    run = threading.Thread(
        target=lambda: reports.append(catch_up(harbour, sink, client, cancelled=entered))
    )
    run.start()

    run.join(timeout=10)
    ended = not run.is_alive()
    release.set()

    assert ended
    assert reports[0].cancelled


def test_raise_what_the_sink_raises(harbour: Any) -> None:
    """A full disk under the sink ends the run with its error and leaves no thread behind."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 101)))

    class Full(harbour.sink):
        def accept(self, peer: str, parent: bytes, messages: Sequence[WireMessage]) -> AcceptResult:
            del parent, messages
            raise StoreError("no space left", where=peer)

    with pytest.raises(StoreError, match="no space left"):
        catch_up(harbour, Full(harbour.store()), client)

    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("luxrelay-catchup")]


def test_report_progress(harbour: Any) -> None:
    """Progress is told at the end at least, and the clock is the caller's."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 101)))
    told: list[CatchUpProgress] = []
    ticks = iter(range(1_000_000))

    report = catch_up(
        harbour,
        harbour.sink(harbour.store()),
        client,
        on_progress=told.append,
        clock=lambda: float(next(ticks)),
    )

    assert len(told) >= 2
    assert (told[-1].stored, told[-1].namespaces_done, told[-1].outstanding) == (100, 1, 0)
    assert [step.stored for step in told] == sorted(step.stored for step in told)
    assert report.seconds > 1


def test_catch_up_with_what_is_published_meanwhile(harbour: Any) -> None:
    """P24: messages published during the run are fetched in a further round."""
    author = harbour.author()
    relay = harbour.store(author.messages(range(1, 31)))
    client = harbour.client(harbour.serve(relay))
    more = iter([author.messages(range(31, 41)), author.messages(range(41, 51))])

    class Living(harbour.sink):
        def accept(self, peer: str, parent: bytes, messages: Sequence[WireMessage]) -> AcceptResult:
            relay.put_many(next(more, []), harbour.base_ms)
            return super().accept(peer, parent, messages)

    sink = Living(harbour.store())
    report = catch_up(harbour, sink, client)

    assert held(sink.store, author.lane) == list(range(1, 51))
    assert report.rounds >= 2


def test_refuse_one_address_twice(harbour: Any) -> None:
    """Two clients of one address are one peer; naming it twice is the caller's mistake."""
    client = harbour.relay()

    with pytest.raises(SyncArgumentError):
        catch_up(harbour, harbour.sink(harbour.store()), client, client)


def test_many_lanes_take_few_calls(harbour: Any) -> None:
    """P47: 100 namespaces that lack a message each are asked for in a handful of calls."""
    authors = [harbour.author(number) for number in range(1, 101)]
    store = harbour.store([each.message(1) for each in authors])
    client = harbour.client(harbour.serve(store))
    sink = harbour.sink(harbour.store())

    report = catch_up(harbour, sink, client, config=CatchUpConfig())

    assert (report.complete, report.stored, report.namespaces_done) == (True, 100, 100)
    assert harbour.servers[0].stats().requests["SyncNamespace", "OK"] < 10
    assert len(sink.accepted) < 10


def test_a_relay_that_knows_no_such_call_is_asked_lane_by_lane(harbour: Any) -> None:
    """P47: a refused call of many namespaces is no fault of the relay; both shapes of it."""
    authors = [harbour.author(number) for number in range(1, 21)]
    for plain in (SyncServerConfig(lanes_max=1), None):
        store = harbour.store([each.message(1) for each in authors])
        client = harbour.client(
            harbour.serve(store, plain or SyncServerConfig()),
            SyncClientConfig(frame_messages=1 if plain is None else 1_024),
        )
        sink = harbour.sink(harbour.store())

        report = catch_up(harbour, sink, client, config=CatchUpConfig())

        assert (report.complete, report.stored) == (True, 20)
        assert report.peers[0].unusable == 0


def test_what_came_before_a_relay_fell_silent_is_kept(harbour: Any) -> None:
    """P46: a page is over by silence; the next one goes on behind what came of it."""
    author = harbour.author()
    store = harbour.store(author.messages(range(1, 201), blob=os.urandom(4_000)))
    came, reads = threading.Event(), [0]

    class Stalling:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def query(self, *asked: Any) -> Any:
            reads[0] += 1
            if reads[0] == 10:  # until the sink has what came before
                came.wait(60)
            return store.query(*asked)

    class Noting(harbour.sink):
        def accept(self, peer: str, parent: bytes, messages: Sequence[WireMessage]) -> AcceptResult:
            came.set()
            return super().accept(peer, parent, messages)

    client = harbour.client(harbour.serve(Stalling(), SyncServerConfig(read_messages=8)))
    sink = Noting(harbour.store())
    config = CatchUpConfig(transfer=TransferConfig(silence_s=1.0, window_first=8 * 1024 * 1024))

    report = catch_up(harbour, sink, client, config=config)

    assert held(sink.store, author.lane) == list(range(1, 201))
    assert (report.complete, report.stored, report.duplicate) == (True, 200, 0)
    assert 0 < sink.accepted[0][1] < 80
    assert (report.peers[0].failures, report.peers[0].cut) == (0, 1)


def test_blobs_that_a_slow_link_would_not_bring_in_time_are_left_out(harbour: Any) -> None:
    """P46: the header comes with the page, the blob by ranges; on a fast link both come."""
    author = harbour.author()
    blobs = [os.urandom(300_000), b"small"]
    messages = [author.message(seq, blob=blob) for seq, blob in enumerate(blobs, 1)]
    client = harbour.relay(messages)
    slow, fast = LinkWindow(), LinkWindow()
    slow.rate, fast.rate = 20_000.0, 20_000_000.0
    found = []
    for window in (slow, fast):
        sink = harbour.sink(harbour.store())
        report = catch_up(
            harbour, sink, client, config=CatchUpConfig(), windows={client.address: window}
        )
        assert (report.complete, report.stored) == (True, 2)
        found.append([sink.store.has_blob(sha3_commitment(blob), BASE_MS) for blob in blobs])

    assert found == [[False, True], [True, True]]


@pytest.mark.slow
def test_bound_what_is_under_way(harbour: Any) -> None:
    """Large blobs: no more than pages_max pages of page_bytes are fetched ahead of the sink."""
    author, other = harbour.author(1), harbour.author(2)
    blob = os.urandom(200_000)
    client = harbour.relay(
        [*author.messages(range(1, 41), blob=blob), *other.messages(range(1, 41), blob=blob)]
    )
    sink = harbour.sink(harbour.store())
    config = CatchUpConfig(pages_max=2, page_bytes=1_000_000)

    report = catch_up(harbour, sink, client, config=config)

    assert report.stored == 80
    assert max(count for _, count in sink.accepted) == 4
