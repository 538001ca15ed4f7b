"""The queue of one peer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from luxrelay.bus import MessageId
from luxrelay.gossip import GossipParams, GossipStats, PeerId
from luxrelay.gossip.peers import PeerOutbox
from luxrelay.gossip.rpc import Rpc, decode_rpc, encode_ihave, encode_message

PARAMS = GossipParams(message_max=10_000, queue_bytes_max=12_000, rpc_max=4_096)
IDS = [MessageId(bytes([n]) * 32) for n in range(100)]


def made(stats: GossipStats) -> PeerOutbox:
    """Return an outbox on its own."""
    return PeerOutbox(PARAMS, stats, peer=PeerId(b"p"), waiting={})


def taken(outbox: PeerOutbox) -> list[Rpc]:
    """Return the decoded frames."""
    frames = [*outbox.take_urgent(), *outbox.take_frames()]
    return [decode_rpc(frame, GossipParams()) for frame in frames]


def test_everything_ready_is_two_frames() -> None:
    """What waits at drain time is coalesced: what goes first, then the rest (20-58; G39)."""
    outbox = made(GossipStats())
    outbox.subscription("/a", subscribe=True)
    outbox.graft("/a")
    outbox.message(encode_message("/a", b"x"))
    outbox.iwant(IDS[:1])
    outbox.ihave(1, encode_ihave("/a", IDS[1:2], PARAMS.rpc_max))

    urgent, rest = taken(outbox)

    assert (urgent.subscriptions, urgent.graft, urgent.iwant) == ([(True, "/a")], ["/a"], IDS[:1])
    assert (urgent.messages, urgent.ihave) == ([], [])
    assert (rest.messages, len(rest.ihave)) == ([("/a", b"x")], 1)
    assert taken(outbox) == []
    assert outbox.size_bytes == 0


def test_the_last_word_on_a_topic_holds() -> None:
    """State by topic is replaced, so it never grows beyond the topics."""
    outbox = made(GossipStats())
    for _ in range(100):
        outbox.subscription("/a", subscribe=True)
        outbox.subscription("/a", subscribe=False)
        outbox.graft("/a")
        outbox.prune("/a", 9.2)
        outbox.prune("/b", 1)
        outbox.graft("/b")

    (rpc,) = taken(outbox)

    assert rpc.subscriptions == [(False, "/a")]
    assert rpc.prune == [("/a", 10)]
    assert rpc.graft == ["/b"]


def test_a_full_queue_drops_announcements_before_messages() -> None:
    """queue_bytes_max holds: gossip goes first, then new messages, and both are counted."""
    stats = GossipStats()
    outbox = made(stats)
    outbox.ihave(100, encode_ihave("/a", IDS, PARAMS.rpc_max))
    fragment = encode_message("/a", bytes(2_900))

    sent = [outbox.message(fragment) for _ in range(5)]

    assert sent == [True, True, True, True, False]
    assert (stats.dropped_gossip, stats.dropped_messages) == (100, 1)
    assert outbox.size_bytes <= PARAMS.queue_bytes_max
    assert all(not rpc.ihave for rpc in taken(outbox))


def test_a_full_queue_takes_no_gossip() -> None:
    """Announcements and requests wait for room, messages do not make way for them."""
    stats = GossipStats()
    outbox = made(stats)
    outbox.message(encode_message("/a", bytes(9_000)))

    outbox.ihave(100, encode_ihave("/a", IDS, PARAMS.rpc_max))

    assert stats.dropped_gossip == 100
    assert outbox.ids_room() * 68 <= PARAMS.queue_bytes_max - outbox.size_bytes
    room = outbox.ids_room()
    outbox.iwant(IDS[:room])
    assert outbox.size_bytes <= PARAMS.queue_bytes_max


def test_frames_keep_the_order_of_messages() -> None:
    """Frames of at most rpc_max bytes, messages in the order they came."""
    outbox = made(GossipStats())
    for n in range(10):
        outbox.message(encode_message("/a", bytes([n]) * 1_000))

    frames = outbox.take_frames()

    assert max(map(len, frames)) <= PARAMS.rpc_max
    order = [d[0] for f in frames for _, d in decode_rpc(f, GossipParams()).messages]
    assert order == list(range(10))


@pytest.mark.parametrize("size", [1, 2 * PARAMS.rpc_max])
def test_a_message_alone_is_a_frame_already(size: int) -> None:
    """Nothing is packed or copied, and afterwards nothing waits; long or short."""
    outbox = made(GossipStats())
    fragment = encode_message("/a", bytes(size))
    for _ in range(2):
        outbox.message(fragment)

        (frame,) = outbox.take_frames()

        assert frame is fragment
        assert outbox.size_bytes == 0
        assert outbox.take_frames() == []


@pytest.mark.parametrize(
    "put",
    [
        lambda outbox: outbox.idontwant(IDS[0]),
        lambda outbox: outbox.iwant(IDS[:1]),
        lambda outbox: outbox.ihave(1, encode_ihave("/a", IDS[:1], PARAMS.rpc_max)),
        lambda outbox: outbox.graft("/a"),
        lambda outbox: outbox.prune("/a", 1.0),
        lambda outbox: outbox.subscription("/a", subscribe=True),
    ],
    ids=["idontwant", "iwant", "ihave", "graft", "prune", "subscription"],
)
def test_a_message_beside_something_else_takes_it_along(
    put: Callable[[PeerOutbox], object],
) -> None:
    """The way for a message alone leaves nothing behind."""
    outbox = made(GossipStats())
    outbox.message(encode_message("/a", b"x"))
    put(outbox)

    rpcs = taken(outbox)

    assert [message for rpc in rpcs for message in rpc.messages] == [("/a", b"x")]
    assert any(rpc.has_control() or rpc.subscriptions for rpc in rpcs)
    assert taken(outbox) == []
    assert outbox.size_bytes == 0


def test_one_announcement_goes_to_many_peers() -> None:
    """What was encoded once is not changed by the peer that it goes to, nor by a full queue."""
    bodies = encode_ihave("/a", IDS, PARAMS.rpc_max)
    before = list(bodies)
    full, other = made(GossipStats()), made(GossipStats())
    for outbox in (full, other):
        outbox.ihave(100, bodies)
    for _ in range(3):
        full.message(encode_message("/a", bytes(2_900)))

    assert not any(rpc.ihave for rpc in taken(full))
    announced = [bytes(one) for rpc in taken(other) for _, ids in rpc.ihave for one in ids]
    assert announced == IDS
    assert bodies == before


@pytest.mark.parametrize(
    "put",
    [
        lambda outbox: outbox.subscription("/a", subscribe=True),
        lambda outbox: outbox.graft("/a"),
        lambda outbox: outbox.prune("/a", 1.0),
        lambda outbox: outbox.message(encode_message("/a", b"x")),
        lambda outbox: outbox.idontwant(IDS[0]),
        lambda outbox: outbox.iwant(IDS[:1]),
        lambda outbox: outbox.ihave(1, encode_ihave("/a", IDS[:1], PARAMS.rpc_max)),
    ],
    ids=["subscription", "graft", "prune", "message", "idontwant", "iwant", "ihave"],
)
def test_whatever_is_put_in_says_that_it_waits(put: Callable[[PeerOutbox], object]) -> None:
    """The peer is noted among those that have something waiting, by every way in."""
    waiting: dict[PeerId, None] = {}
    outbox = PeerOutbox(PARAMS, GossipStats(), peer=PeerId(b"p"), waiting=waiting)

    put(outbox)

    assert list(waiting) == [b"p"]
    assert taken(outbox)
