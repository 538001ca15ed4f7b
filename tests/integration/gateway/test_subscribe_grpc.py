"""Subscriptions over gRPC: the same promises as over a WebSocket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from luxrelay.bus import MsgHeader, NamespaceId, SigningKey, verify_header
from luxrelay.bus.seq_ranges import ToldGaps
from luxrelay.client import LaneSigner
from luxrelay.errors import SyncArgumentError, SyncRemoteError, SyncUnreachableError
from luxrelay.node import subscription_messages as subscribers
from luxrelay.node.gateway import subscription
from luxrelay.node.subscription_messages import FollowingConfig, StoreFollowing
from luxrelay.sync import RelaySyncClient, RelaySyncServer, SyncServerConfig
from luxrelay.sync.following import (
    Followed,
    FollowedDropped,
    FollowedGap,
    FollowedLive,
    FollowEvent,
    SubscribeWanted,
)
from luxrelay.sync.rpc.relay_node_pb2_grpc import RelayNodeStub
from luxrelay.sync.rpc.subscription_frames import from_wanted

from .conftest import PARENT, Stand, now_ms

pytestmark = pytest.mark.slow
ALL = SubscribeWanted(namespaces=[PARENT])


@contextmanager
def served(
    stand: Stand, following: FollowingConfig | None = None, **bounds: Any
) -> Iterator[RelaySyncClient]:
    """A client of a server on the stand's store."""
    server = RelaySyncServer(
        stand.store,
        SyncServerConfig(port=0, **bounds),
        clock_ms=now_ms,
        followed=StoreFollowing(
            stand.store, stand.feed, now_ms, following, in_order=stand.judge.in_order
        ),
    )
    port = server.start()
    try:
        with RelaySyncClient(f"127.0.0.1:{port}") as client:
            yield client
    finally:
        server.stop(0.0)


def until(events: Generator[FollowEvent, None, None], count: int) -> list[FollowEvent]:
    """Return the events up to the ``count``-th message."""
    found: list[FollowEvent] = []
    for event in events:
        found.append(event)
        if sum(isinstance(each, Followed) for each in found) == count:
            return found
    raise AssertionError(found)


def seqs(events: list[FollowEvent]) -> list[int]:
    """Return the sequences of the messages."""
    return [event.message.seq for event in events if isinstance(event, Followed)]


def test_replay_becomes_live_without_loss_or_repetition(stand: Stand) -> None:
    """While messages pour in, a subscriber from the beginning gets each once, lanes in order."""
    signers = [LaneSigner(SigningKey.generate(), PARENT) for _ in range(3)]
    for signer in signers:
        stand.publish([signer.sign(b"held", now_ms()) for _ in range(30)])

    def write() -> None:
        for _ in range(20):
            for signer in signers:
                stand.publish([signer.sign(b"live", now_ms()) for _ in range(5)])

    writer = threading.Thread(target=write)
    with served(stand) as client, closing(client.subscribe(ALL)) as events:
        found = [next(events)]
        writer.start()
        found += until(events, 3 * 130 - sum(isinstance(each, Followed) for each in found))
        writer.join()

    for signer in signers:
        lane = [
            each.message.seq
            for each in found
            if isinstance(each, Followed) and each.message.namespace_id == signer.namespace_id
        ]
        assert lane == list(range(1, 131))
    assert all(each.parent == PARENT for each in found if isinstance(each, Followed))
    assert sum(isinstance(each, FollowedLive) for each in found) == 1
    assert not any(isinstance(each, FollowedGap | FollowedDropped) for each in found)
    first = next(each for each in found if isinstance(each, Followed))
    assert verify_header(MsgHeader.decode(first.message.header))


def test_begin_at_a_sequence_at_the_latest_and_at_positions(stand: Stand) -> None:
    """``after``, the newest, and where an earlier stream stood."""
    signer = stand.store_line(20)
    lane = signer.namespace_id
    with served(stand) as client:
        wanted = SubscribeWanted(namespaces=[lane], after=15, lanes=False)
        with closing(client.subscribe(wanted)) as events:
            assert seqs(until(events, 5)) == [16, 17, 18, 19, 20]
        with closing(client.subscribe(SubscribeWanted(namespaces=[PARENT], after=None))) as events:
            live = next(events)
            assert isinstance(live, FollowedLive)
            assert live.positions[lane] == 20
            stand.publish([signer.sign(b"now", now_ms())])
            newcomer = stand.store_line(1)
            fresh = until(events, 2)
        again = SubscribeWanted(
            namespaces=[PARENT], positions={**live.positions, newcomer.namespace_id: 1}
        )
        with closing(client.subscribe(again)) as events:
            assert seqs(until(events, 1)) == [21]

    told = [(e.message.namespace_id, e.message.seq) for e in fresh if isinstance(e, Followed)]
    assert told == [(lane, 21), (newcomer.namespace_id, 1)]


def test_a_gap_is_waited_for_then_told_and_filled_late(stand: Stand) -> None:
    """What is missing is waited for; then the gap is told, and what fills it comes late."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    one, two, three = (signer.sign(b"x", now_ms()) for _ in range(3))
    with served(stand) as client:
        patient = client.subscribe(SubscribeWanted(namespaces=[PARENT], gap_wait_ms=60_000))
        hasty = client.subscribe(SubscribeWanted(namespaces=[PARENT], gap_wait_ms=0))
        with closing(patient), closing(hasty):
            assert isinstance(next(patient), FollowedLive)
            assert isinstance(next(hasty), FollowedLive)
            stand.publish([one, three])
            told = until(hasty, 2)
            stand.publish([two])
            late = next(hasty)
            assert seqs(until(patient, 3)) == [1, 2, 3]

    assert told[1] == FollowedGap(signer.namespace_id, 2, 2, expired=False)
    assert isinstance(late, Followed)
    assert (late.message.seq, late.late) == (2, True)


def until_new(
    events: Generator[FollowEvent, None, None], stand: Stand, signer: LaneSigner
) -> list[FollowEvent]:
    """Return the events up to a message that is published once the first one is here."""
    found = [next(events)]
    stand.publish([signer.sign(b"new", now_ms())])
    while seqs(found)[-1:] != [signer.next_seq - 1]:
        found.append(next(events))
    return found


def holed(stand: Stand, count: int, signer: LaneSigner | None = None) -> list[Any]:
    """Store the first and last of so many messages; return those between."""
    signer = signer or LaneSigner(SigningKey.generate(), PARENT)
    line = [signer.sign(b"x", now_ms()) for _ in range(count)]
    stand.publish([line[0], line[-1]])
    return line[1:-1]


def test_a_client_that_was_away_reads_the_told_gaps_again(stand: Stand) -> None:
    """P48: what came into a gap while nobody followed comes late, of the senders wanted alone."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    between, other = holed(stand, 32, signer), holed(stand, 4)
    sender = MsgHeader.decode(between[0].header).sender_address
    wanted = SubscribeWanted(namespaces=[PARENT], gap_wait_ms=0, senders=[sender], blobs="none")
    gaps = ToldGaps()
    with served(stand) as client:
        with closing(client.subscribe(wanted, gaps=gaps)) as events:
            begin = until(events, 2)
            while not isinstance(begin[-1], FollowedLive):
                begin.append(next(events))
        assert isinstance(begin[-1], FollowedLive)
        places = begin[-1].positions
        assert sorted(last - first for _, first, last in gaps.spans()) == [1, 29]
        stand.publish([*between[:20], *other])
        again = replace(wanted, positions=places)
        with closing(client.subscribe(again, gaps=gaps)) as events:
            back = until_new(events, stand, signer)
        assert (22, 31) in {(first, last) for _, first, last in gaps.spans()}
        stand.publish(between[20:])
        with closing(client.subscribe(again, gaps=gaps)) as events:
            rest = until_new(events, stand, signer)

    told = [each for each in (*back, *rest) if isinstance(each, Followed) and each.late]
    assert [each.message.seq for each in told] == list(range(2, 32))
    assert all(each.parent == PARENT and not each.message.blob for each in told)
    assert not any(last > 3 for _, _, last in gaps.spans())


def test_what_comes_into_a_gap_that_the_node_forgot_is_read_from_its_pages(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P48: a node with room for one told gap says how much it forgot, and the client reads it."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    line = [signer.sign(b"x", now_ms()) for _ in range(5)]
    monkeypatch.setattr(subscription, "GAPS_MAX", 1)
    with served(stand) as client:
        wanted = SubscribeWanted(namespaces=[PARENT], gap_wait_ms=0)
        with closing(client.subscribe(wanted)) as events:
            assert isinstance(next(events), FollowedLive)
            stand.publish(line[::2])
            until(events, 3)
            assert next(events) == FollowedDropped(lanes=0, late=1)
            stand.publish([line[1]])  # into the gap that it forgot
            late = next(events)

    assert isinstance(late, Followed)
    assert (late.message.seq, late.late, late.message.blob) == (2, True, b"x")


def test_what_has_expired_is_told_as_a_gap(stand: Stand) -> None:
    """A subscriber that was away for too long is told what it missed."""
    signer = stand.store_line(2)
    stand.store.skip_to(signer.namespace_id, PARENT, 9)
    signer.next_seq = 10
    stand.publish([signer.sign(b"x", now_ms())])
    with served(stand) as client, closing(client.subscribe(ALL)) as events:
        found = until(events, 3)

    assert FollowedGap(signer.namespace_id, 3, 9, expired=True) in found


def test_notes_beyond_the_bound_lose_nothing(stand: Stand) -> None:
    """A subscriber with room for one note reads every lane again instead."""
    signers = [LaneSigner(SigningKey.generate(), PARENT) for _ in range(20)]
    with (
        served(stand, FollowingConfig(notes_max=1)) as client,
        closing(client.subscribe(ALL)) as events,
    ):
        next(events)
        for signer in signers:
            stand.publish([signer.sign(b"x", now_ms())])
        first = until(events, 1)
        for signer in signers:
            stand.publish([signer.sign(b"y", now_ms()) for _ in range(3)])
        found = first + until(events, 20 * 4 - 1)

    assert sorted(seqs(found)) == sorted([1, 2, 3, 4] * 20)


def test_lanes_beyond_the_bound_are_counted(stand: Stand) -> None:
    """`lanes_max` lanes are followed; that there are more is said."""
    for _ in range(5):
        stand.store_line(1)
    with (
        served(stand, FollowingConfig(lanes_max=3)) as client,
        closing(client.subscribe(ALL)) as events,
    ):
        found: list[FollowEvent] = []
        while not any(isinstance(each, FollowedDropped) for each in found):
            found.append(next(events))

    assert len(seqs(found)) <= 3
    (dropped,) = (each for each in found if isinstance(each, FollowedDropped))
    assert dropped.lanes >= 1


def test_places_are_bounded_and_given_back(stand: Stand, eventually: Callable[..., Any]) -> None:
    """`subscribers_max` streams at once; one that is closed leaves its place and the feed."""
    with served(stand, subscribers_max=1) as client:
        first = client.subscribe(ALL)
        assert isinstance(next(first), FollowedLive)
        with pytest.raises(SyncUnreachableError, match="taken"):
            next(client.subscribe(ALL))
        first.close()

        def another() -> bool:
            try:
                with closing(client.subscribe(ALL)) as events:
                    return isinstance(next(events), FollowedLive)
            except SyncUnreachableError:
                return False

        eventually(another)
        eventually(lambda: not stand.feed._followers)


def test_a_wrong_request_is_refused_by_both_sides(stand: Stand) -> None:
    """The client checks before it sends; a relay without a feed says that it tells nobody."""
    short = NamespaceId(b"short")
    for wrong in (
        {"namespaces": []},
        {"namespaces": [short]},
        {"namespaces": [PARENT] * 65},
        {"namespaces": [PARENT], "after": -1},
        {"namespaces": [PARENT], "after": 2**64},
        {"namespaces": [PARENT], "positions": {short: 1}},
        {"namespaces": [PARENT], "gap_wait_ms": 600_001},
    ):
        with pytest.raises(SyncArgumentError):
            SubscribeWanted(**wrong)  # type: ignore[arg-type]
    server = RelaySyncServer(stand.store, SyncServerConfig(port=0), clock_ms=now_ms)
    port = server.start()
    try:
        with (
            RelaySyncClient(f"127.0.0.1:{port}") as client,
            pytest.raises(SyncRemoteError, match="subscribers"),
        ):
            next(client.subscribe(ALL))
    finally:
        server.stop(0.0)


def test_subscriptions_leave_their_peer_its_other_calls(stand: Stand) -> None:
    """More of them than a peer may read at once: they wait for news outside the queue."""
    signer = stand.store_line(3)
    with served(stand) as client, ExitStack() as stack:
        streams = [stack.enter_context(closing(client.subscribe(ALL))) for _ in range(6)]
        for each in streams:
            assert seqs(until(each, 3)) == [1, 2, 3]
        assert client.get_head(signer.namespace_id).latest_seq == 3
        stand.publish([signer.sign(b"4", now_ms())])
        for each in streams:
            assert seqs(until(each, 1)) == [4]


def test_subscriptions_of_one_peer_are_bounded(stand: Stand) -> None:
    """`peer_subscribers_max` leaves places to others; the next one is refused at once."""
    with served(stand, peer_subscribers_max=2) as client, ExitStack() as stack:
        for _ in range(2):
            next(stack.enter_context(closing(client.subscribe(ALL))))
        with pytest.raises(SyncUnreachableError, match="subscriptions at most"):
            next(client.subscribe(ALL))


def test_a_quiet_stream_beats(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscriber hears from the node although nothing happens; the client passes beats over."""
    monkeypatch.setattr(subscribers, "BEAT_S", 0.05)
    request = from_wanted(ALL)
    with served(stand) as client:
        frames = client._stream(lambda channel: RelayNodeStub(channel).Subscribe(request), None)
        with closing(frames):
            first, *beats = (next(frames) for _ in range(3))
            assert [len(frame.events) for frame in (first, *beats)] == [1, 0, 0]
        with closing(client.subscribe(ALL)) as events:
            assert isinstance(next(events), FollowedLive)
            stand.store_line(1)
            assert seqs(until(events, 1)) == [1]
