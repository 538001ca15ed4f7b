"""One participant: from bytes to events, several of them in virtual time."""

from __future__ import annotations

import hashlib
import random
from types import ModuleType
from typing import Any

import pytest

from luxrelay.channel.encryption import SealedBoxEncryption, SharedKeyEncryption
from luxrelay.channel.events import (
    MessageDelivered,
    MessageDeliveryError,
    MessageDispatched,
    MessageLost,
    MessageReceived,
    MessageSendError,
    MessageSent,
)
from luxrelay.channel.params import (
    ChannelConfig,
    Counting,
    EncryptionPosition,
    EventProfile,
    RateLimitConfig,
    SegmentationConfig,
    SegmentRevision,
)
from luxrelay.channel.state import Row, StateTable
from luxrelay.channel.wire import HistoryEntry, SdsMessage
from luxrelay.errors import ChannelArgumentError, ChannelError, CipherError

CURRENT = ChannelConfig(event_profile=EventProfile.CURRENT)
INNER = ChannelConfig(encryption_position=EncryptionPosition.INNER)
SMALL = SegmentationConfig(segment_size_bytes=384)


@pytest.mark.parametrize("revision", list(SegmentRevision))
@pytest.mark.parametrize("reed_solomon", [False, True])
@pytest.mark.parametrize("length", [0, 1, 256, 257, 1_000])
def test_payload_of_any_size(
    channels: ModuleType, revision: SegmentRevision, reed_solomon: bool, length: int
) -> None:
    """A payload arrives whole, once, at everybody else, and its sender is told so."""
    cut = SegmentationConfig(
        segment_size_bytes=384, revision=revision, enable_reed_solomon=reed_solomon
    )
    net = channels.SessionNet("abc", segmentation=cut)
    payload = random.Random(length).randbytes(length)
    request = net["a"].send(payload)

    net.run(3.0)

    assert net["b"].received() == net["c"].received() == [("a", payload)]
    kinds = [type(event) for event in net["a"].events]
    assert kinds == [MessageDispatched, MessageSent]
    assert [event.request_id for event in net["a"].events] == [request] * 2
    assert net["a"].rows.keys() >= {(StateTable.META, b"clock")}
    assert not [
        key for key in net["a"].rows if key[0] in {StateTable.REQUESTS, StateTable.OUTGOING}
    ]


def test_current_profile(channels: ModuleType) -> None:
    """In the current profile `sent` says dispatched, and `delivered` ends the request."""
    net = channels.SessionNet("ab", config=CURRENT)
    net["a"].send(b"x")
    net.run(3.0)

    assert [type(event) for event in net["a"].events] == [MessageSent, MessageDelivered]


@pytest.mark.parametrize(
    ("config", "kind"),
    [(ChannelConfig(), MessageSendError), (CURRENT, MessageDeliveryError)],
    ids=["seed", "current"],
)
def test_all_lost_ends_after_exactly_max_retransmissions(
    channels: ModuleType, config: ChannelConfig, kind: type
) -> None:
    """With 100 % loss the request ends one timeout after the fifth retransmission, not earlier."""
    net = channels.SessionNet("ab", loss=1.0, config=config)
    request = net["a"].send(b"x")

    net.run(29.999)
    assert not net["a"].told(kind)
    assert len(net["a"].dispatched) >= 6

    net.run(0.002)
    (error,) = net["a"].told(kind)
    assert (error.request_id, error.error) == (
        request,
        "no acknowledgement after 5 retransmissions",
    )
    net.run(500.0)
    assert len(net["a"].told(MessageSendError, MessageDeliveryError, MessageDelivered)) == 1
    assert net["a"].session.sds.stats.retransmissions == 5


@pytest.mark.parametrize("config", [ChannelConfig(), CURRENT], ids=["seed", "current"])
def test_refused_segment_ends_the_request_at_once(
    channels: ModuleType, config: ChannelConfig
) -> None:
    """A layer that will never take a segment ends the request; its others are not sent again."""
    net = channels.SessionNet("ab", segmentation=SMALL, config=config)
    count = 0

    def refuse(_: Any) -> tuple[str, bool] | None:
        nonlocal count
        count += 1
        return ("too wild", True) if count == 2 else None

    net["a"].refuse = refuse
    net["a"].send(bytes(1_000))
    net["a"].send(b"after")
    net.run(100.0)

    (error,) = net["a"].told(MessageSendError)
    assert error.error == "too wild"
    assert net["a"].session.sds.unacknowledged == 0
    assert len(net["a"].told(MessageSent if config is not CURRENT else MessageDelivered)) == 1


def test_layer_that_is_down_is_tried_again(channels: ModuleType) -> None:
    """A transmission that was not taken counts, is repeated, and succeeds when it is back."""
    net = channels.SessionNet("ab")
    net["a"].refuse = lambda _: ("down", False)
    net["a"].send(b"x")
    net.run(12.0)
    assert net["a"].events == []

    net["a"].refuse = lambda _: None
    net.run(10.0)

    assert [type(event) for event in net["a"].events] == [MessageDispatched, MessageSent]
    assert net["b"].received() == [("a", b"x")]


def test_layer_that_stays_down_ends_the_request(channels: ModuleType) -> None:
    """A segment that was never taken is a send error in both profiles."""
    net = channels.SessionNet("ab", config=CURRENT)
    net["a"].refuse = lambda _: ("down", False)
    net["a"].send(b"x")
    net.run(31.0)

    assert [type(event) for event in net["a"].events] == [MessageSendError]


def test_events_have_rising_positions_over_restarts(channels: ModuleType) -> None:
    """Positions go on after a restart, and what was taken is not told again."""
    net = channels.SessionNet("ab")
    for number in range(3):
        net["a"].send(bytes([number]))
        net.run(2.0)
    net["b"].restart()
    net["a"].send(b"last")
    net.run(2.0)

    assert [event.position for event in net["b"].events] == [1, 2, 3, 4]
    assert not [key for key in net["b"].rows if key[0] is StateTable.EVENTS]


def test_events_not_taken_are_told_again(channels: ModuleType) -> None:
    """A crash before the application took an event has it told again, with its position."""
    net = channels.SessionNet("ab")
    net["b"].takes = False
    net["a"].send(b"one")
    net["a"].send(b"two")
    net.run(2.0)
    assert len(net["b"].events) == 2

    net["b"].taken = 1
    net["b"].takes = True
    net["b"].restart()

    assert [(event.position, event.message) for event in net["b"].events] == [
        (1, b"one"), (2, b"two"), (2, b"two"),
    ]  # fmt: skip


def test_events_max_pauses_receiving(channels: ModuleType) -> None:
    """An application that takes nothing is sent nothing more; once it does, nothing is lost."""
    net = channels.SessionNet("ab", config=ChannelConfig(events_max=3))
    net["b"].takes = False
    for number in range(6):
        net["a"].send(bytes([number]))
    net.run(10.0)
    assert len(net["b"].received()) == 3
    assert net["b"].session.stats.paused > 0

    net["b"].takes = True
    net["b"].do(lambda: net["b"].session.taken(3))
    net.run(20.0)

    assert [message for _, message in net["b"].received()] == [bytes([n]) for n in range(6)]
    assert len(net["a"].told(MessageSent)) == 6


def test_event_bytes_max_pauses_receiving(channels: ModuleType) -> None:
    """Bytes of events not taken are bounded as well."""
    net = channels.SessionNet("ab", config=ChannelConfig(event_bytes_max=1_000))
    net["b"].takes = False
    for number in range(6):
        net["a"].send(bytes([number]) * 400)
    net.run(10.0)

    assert len(net["b"].received()) == 3


def test_outgoing_bounds_are_said(channels: ModuleType) -> None:
    """Beyond `outgoing_max` or `outgoing_bytes_max` there is no room, and `send` says so."""
    for bounds in ({"outgoing_max": 3}, {"outgoing_bytes_max": 5_000}):
        net = channels.SessionNet("ab", loss=1.0, sds=channels.quick(**bounds))
        sent = 0
        while net["a"].session.room_for(10):
            net["a"].send(bytes(10))
            sent += 1
            assert sent < 10
        with pytest.raises(ChannelError) as caught:
            net["a"].send(bytes(10))
        assert caught.value.code == "channel.full"
        assert sent in {2, 3}
        net.run(40.0)
        assert net["a"].session.room_for(10)


@pytest.mark.parametrize("config", [ChannelConfig(), INNER], ids=["outer", "inner"])
def test_encrypted_channel(channels: ModuleType, config: ChannelConfig) -> None:
    """With a key everything works, and nothing of the content is to be seen on the way."""
    net = channels.SessionNet(
        "abc", encryption=SharedKeyEncryption(bytes(32)), config=config, segmentation=SMALL
    )
    net["a"].send(b"secret" * 100)
    net.run(3.0)

    assert net["b"].received() == net["c"].received() == [("a", b"secret" * 100)]
    assert len(net["a"].told(MessageSent)) == 1
    assert not any(b"secret" in one.payload for _, one in net["a"].dispatched)
    seen = any(b"chan" in one.payload for _, one in net["a"].dispatched)
    assert seen == (config is INNER)


@pytest.mark.parametrize("config", [ChannelConfig(), INNER], ids=["outer", "inner"])
def test_what_does_not_decrypt_is_counted_only(channels: ModuleType, config: ChannelConfig) -> None:
    """Without the right key nothing is delivered and nothing acknowledged."""
    net = channels.SessionNet("a", encryption=SharedKeyEncryption(bytes(32)), config=config)
    net.members["b"] = channels.Member(
        net, "b", encryption=SharedKeyEncryption(bytes(31) + b"\1"), config=config
    )
    net["a"].send(b"secret")
    net["a"].do(lambda: net["a"].session.send_ephemeral(b"psst", net.now, net.now_ms))
    net.run(40.0)

    assert net["b"].events == []
    assert net["b"].session.stats.undecryptable >= 2
    assert len(net["a"].told(MessageSendError)) == 1


def test_sealed_boxes_between_two(channels: ModuleType) -> None:
    """Two participants with key pairs talk; echoes, which they cannot open, are known as theirs."""
    alice = SealedBoxEncryption(bytes(31) + b"\1", bytes(32))
    bob = SealedBoxEncryption(bytes(31) + b"\2", alice.public_key)
    net = channels.SessionNet(
        "a", encryption=SealedBoxEncryption(bytes(31) + b"\1", bob.public_key)
    )
    net.members["b"] = channels.Member(net, "b", encryption=bob)
    net["a"].send(b"hello")
    net["b"].send(b"hi")
    net.run(3.0)

    assert (net["a"].received(), net["b"].received()) == ([("b", b"hi")], [("a", b"hello")])
    assert net["a"].session.stats.undecryptable == 0
    assert net["a"].session.stats.echoes >= 1


class Broken:
    """A hook that fails."""

    def encrypt(self, content: bytes) -> bytes:
        """Fail."""
        raise RuntimeError(f"no key for {len(content)} bytes")

    def decrypt(self, payload: bytes) -> bytes:
        """Fail with something of its own."""
        raise KeyError(len(payload))


def test_failing_hook_fails_the_message_visibly(channels: ModuleType) -> None:
    """A hook that raises ends the request with its text, and what arrives is counted."""
    net = channels.SessionNet("a", encryption=Broken())
    net["a"].send(b"x")
    (error,) = net["a"].told(MessageSendError)
    assert "no key" in error.error

    net["a"].take(b"anything")
    assert net["a"].session.stats.undecryptable == 1
    inner = channels.SessionNet("a", encryption=Broken(), config=INNER)
    with pytest.raises(ChannelError) as caught:
        inner["a"].send(b"x")
    assert caught.value.code == "channel.cipher"


def test_ephemeral_message(channels: ModuleType) -> None:
    """It arrives once, marked, and is not acknowledged; empty and too long ones are refused."""
    net = channels.SessionNet("ab", repeat=1.0)
    member = net["a"]
    member.do(lambda: member.session.send_ephemeral(b"typing", net.now, net.now_ms))
    net.run(30.0)

    (event,) = net["b"].events
    assert (event.message, event.sender_id, event.ephemeral) == (b"typing", "a", True)
    assert member.events == []
    for payload in (b"", bytes(channels.PAYLOAD_BYTES_MAX)):
        with pytest.raises(ChannelArgumentError):
            member.session.send_ephemeral(payload, net.now, net.now_ms)


def test_refused_payload_leaves_nothing(channels: ModuleType) -> None:
    """A payload of too many segments is refused before anything is written."""
    net = channels.SessionNet("a", segmentation=SegmentationConfig(
        segment_size_bytes=384, segments_max=2))  # fmt: skip
    before = dict(net["a"].rows)

    with pytest.raises(ChannelArgumentError):
        net["a"].send(bytes(1_000))
    assert (net["a"].rows, net["a"].session.changes()) == (before, [])


def test_malformed_payloads_only_count(channels: ModuleType) -> None:
    """Bytes that are no message, and contents that are no segment, change no state."""
    net = channels.SessionNet("a")
    rows = dict(net["a"].rows)
    for payload in (b"", b"\xff" * 50, b"\x50", bytes(300)):
        net["a"].take(payload)
    assert net["a"].session.stats.malformed == 4
    assert net["a"].rows == rows

    net["a"].take(SdsMessage(sender_id="m", message_id="m", channel_id="chan",
                             lamport_timestamp=1, content=b"junk").encode())  # fmt: skip
    assert net["a"].session.stats.bad_segments == 1
    assert net["a"].events == []


def test_late_joiner_is_told_what_is_lost(channels: ModuleType) -> None:
    """Whoever joins when the past can no longer be had gets what follows, and is told so."""
    net = channels.SessionNet("a", sds=channels.quick(lost_timeout_ms=20_000))
    net["a"].send(b"past")
    net.run(40.0)
    net["a"].session.sds.log.bodies.clear()
    net.members["b"] = channels.Member(net, "b", sds=channels.quick(lost_timeout_ms=20_000))
    net["a"].send(b"present")
    net.run(30.0)

    (lost,) = net["b"].told(MessageLost)
    assert (lost.sender_id, lost.reason) == ("a", "it did not come in time")
    assert net["b"].received() == [("a", b"present")]


def test_partial_message_that_expires_is_reported(channels: ModuleType) -> None:
    """A payload of which segments are lost for good is reported by its hash."""
    cut = SegmentationConfig(segment_size_bytes=384, set_timeout_ms=30_000)
    net = channels.SessionNet("ab", segmentation=cut, sds=channels.quick(lost_timeout_ms=10_000))
    count = 0

    def refuse(_: Any) -> tuple[str, bool] | None:
        nonlocal count
        count += 1
        return ("gone", True) if count == 2 else None

    net["a"].refuse = refuse
    net["a"].send(bytes(1_000))
    net["a"].session.sds.log.bodies.clear()
    net.run(100.0)

    reasons = [one.reason for one in net["b"].told(MessageLost)]
    assert "no new segment for too long" in reasons
    assert net["b"].received() == []


def test_answering_for_others_keeps_acknowledging(channels: ModuleType) -> None:
    """Bytes that we once sent for somebody are not taken for ours when their sender sends again."""
    net = channels.SessionNet("ab")
    net["a"].send(b"x")
    payload = net["a"].dispatched[0][1].payload
    net.run(3.0)
    asks = SdsMessage(
        sender_id="c", message_id="sync-c", channel_id="chan", lamport_timestamp=1,
        repair_request=(HistoryEntry(SdsMessage.decode(payload).message_id, None, "a"),),
    )  # fmt: skip
    net["b"].take(asks.encode())
    net.run(200.0)
    assert payload in [one.payload for _, one in net["b"].dispatched]
    echoes = net["b"].session.stats.echoes

    net["b"].take(payload)

    assert net["b"].session.stats.echoes == echoes
    assert net["b"].session.sds.stats.duplicate >= 1


# Pacing


def pace(**changes: Any) -> RateLimitConfig:
    """Return a limit of 100 an epoch of ten seconds, with changes."""
    values: dict[str, Any] = {"enabled": True, "epoch_size_ms": 10_000, "messages_per_epoch": 100}
    return RateLimitConfig(**{**values, **changes})


def epochs(net: Any, name: str, size_ms: int = 10_000) -> dict[int, int]:
    """Return how many content messages left in each epoch, first transmissions only."""
    counted: dict[int, int] = {}
    seen = set()
    for at, one in net[name].dispatched:
        message = SdsMessage.decode(one.payload)
        if message.content and message.message_id not in seen:
            seen.add(message.message_id)
            epoch = int(at * 1000) // size_ms
            counted[epoch] = counted.get(epoch, 0) + 1
    return counted


@pytest.mark.slow
def test_a_thousand_messages_leave_in_exactly_ten_epochs(channels: ModuleType) -> None:
    """At 100 an epoch 1,000 messages leave in ten, in order, and every one is acknowledged."""
    net = channels.SessionNet("ab", rate_limit=pace(), sds=channels.quick(bloom_capacity=0))
    for number in range(1_000):
        net["a"].send(number.to_bytes(2, "big"))
    net.run(120.0)

    assert list(epochs(net, "a").values()) == [100] * 10
    assert [message for _, message in net["b"].received()] == [
        number.to_bytes(2, "big") for number in range(1_000)
    ]
    assert len(net["a"].told(MessageSent)) == 1_000


def test_restart_does_not_reset_the_count(channels: ModuleType) -> None:
    """A restart in every epoch changes nothing about ten epochs for three hundred messages."""
    limit = pace(messages_per_epoch=30)
    net = channels.SessionNet("ab", rate_limit=limit, sds=channels.quick(bloom_capacity=0))
    for number in range(300):
        net["a"].send(number.to_bytes(2, "big"))
    for _ in range(11):
        net.run(5.0)
        net["a"].restart()
        net.run(5.0)

    counted = epochs(net, "a")
    assert max(counted.values()) == 30
    assert len(counted) == 10
    assert len(net["b"].received()) == 300


def test_segments_after_the_first_are_exempt(channels: ModuleType) -> None:
    """Counting first segments, a message of four leaves whole; counting every one it waits."""
    for counting, expected in ((Counting.FIRST_SEGMENT, [8]), (Counting.EVERY_SEGMENT, [3, 3, 2])):
        limit = pace(counting=counting, messages_per_epoch=3)
        sds = channels.quick(acknowledgement_timeout_ms=100_000, sync_interval_ms=90_000,
                             sync_interval_max_ms=90_000)  # fmt: skip
        net = channels.SessionNet("a", rate_limit=limit, segmentation=SMALL, sds=sds)
        net["a"].send(bytes(1_000))
        net["a"].send(bytes(1_001))
        net.run(35.0)
        assert list(epochs(net, "a").values()) == expected


def test_acknowledgements_pass_by_what_waits(channels: ModuleType) -> None:
    """While our own messages wait for the next epoch, others still learn that we have theirs."""
    net = channels.SessionNet("ab", rate_limit=pace(messages_per_epoch=1))
    for number in range(3):
        net["b"].send(bytes([number]))
    net["a"].send(b"x")
    net.run(4.0)

    assert len(net["b"].session.outbox) == 2
    assert len(net["b"].told(MessageSent)) == 1
    assert len(net["a"].told(MessageSent)) == 1


def test_every_segment_counts_syncs_too(channels: ModuleType) -> None:
    """Counting every segment, nothing beyond the limit leaves in an epoch, whatever it is."""
    net = channels.SessionNet(
        "abc", loss=0.3, rate_limit=pace(counting=Counting.EVERY_SEGMENT, messages_per_epoch=4)
    )
    for number in range(12):
        net["a"].send(bytes([number]))
    net.run(400.0, lambda: len(net["b"].received()) == 12)

    assert len(net["b"].received()) == 12
    for name in "abc":
        used: dict[int, int] = {}
        for at, _ in net[name].dispatched:
            used[int(at) // 10] = used.get(int(at) // 10, 0) + 1
        assert max(used.values()) <= 4
    assert sum(net[name].session.outbox.stats.syncs_skipped for name in "abc") > 0


def test_ephemeral_messages_are_dropped_when_scarce(channels: ModuleType) -> None:
    """Above the share of the limit ephemeral messages are dropped and counted, others wait."""
    net = channels.SessionNet("ab", rate_limit=pace(messages_per_epoch=10, ephemeral_share=0.5))
    member = net["a"]
    for _ in range(8):
        member.do(lambda: member.session.send_ephemeral(b"e", net.now, net.now_ms))
    for number in range(7):
        net["a"].send(bytes([number]))
    net.run(3.0)

    assert member.session.outbox.stats.ephemeral_dropped == 3
    assert len(member.session.outbox) == 2
    assert len(net["b"].told(MessageReceived)) == 10


def test_segments_of_a_failed_request_do_not_leave_later(channels: ModuleType) -> None:
    """What waits for its epoch when its request fails stays where it is."""
    limit = pace(counting=Counting.EVERY_SEGMENT, messages_per_epoch=1)
    net = channels.SessionNet("a", rate_limit=limit, segmentation=SMALL)
    net["a"].refuse = lambda _: ("no", True)
    net["a"].send(bytes(1_000))
    net["a"].refuse = lambda _: None
    net.run(60.0)

    assert len(net["a"].told(MessageSendError)) == 1
    assert epochs(net, "a") == {}


def test_what_waits_is_not_sent_to_who_asks(channels: ModuleType) -> None:
    """A message that waits for its epoch cannot be had earlier by asking for it."""
    net = channels.SessionNet("a", rate_limit=pace(messages_per_epoch=1))
    net["a"].send(b"first")
    net["a"].send(b"second")
    (waiting,) = net["a"].session.sds.log.pending
    net["a"].take(SdsMessage(
        sender_id="c", message_id="sync-c", channel_id="chan", lamport_timestamp=1,
        repair_request=(HistoryEntry(waiting, None, "a"),),
    ).encode())  # fmt: skip
    net.run(4.0)

    left = {SdsMessage.decode(one.payload).message_id for _, one in net["a"].dispatched}
    assert waiting not in left


def test_wall_clock_that_goes_back_waits(channels: ModuleType) -> None:
    """A wall clock set back lets nothing leave above the limit of the later epoch."""
    net = channels.SessionNet("ab", rate_limit=pace(messages_per_epoch=2))
    for number in range(4):
        net["a"].send(bytes([number]))
    net.skew_ms = -15_000
    net.run(20.0)
    assert len(net["b"].received()) == 2

    net.run(20.0)
    assert len(net["b"].received()) == 4


class Proofs:
    """Proofs that are hashes of what they prove."""

    def __init__(self) -> None:
        """Nothing was used."""
        self.used: list[tuple[int, int]] = []

    def prove(self, payload: bytes, epoch: int, nonce: int) -> bytes:
        """Return a hash, and remember the nonce."""
        self.used.append((epoch, nonce))
        return hashlib.sha256(payload).digest()

    def verify(self, payload: bytes, proof: bytes, now_ms: int) -> bool:
        """Return whether it fits."""
        return now_ms > 0 and hashlib.sha256(payload).digest() == proof


def test_every_message_carries_a_proof(channels: ModuleType) -> None:
    """With a provider each payload has a proof, each nonce is used once, and others are refused."""
    mine, theirs = Proofs(), Proofs()
    net = channels.SessionNet(
        "a", rate_limit=pace(counting=Counting.EVERY_SEGMENT, proof_provider=mine)
    )
    net.members["b"] = channels.Member(
        net, "b", rate_limit=pace(counting=Counting.EVERY_SEGMENT, proof_provider=theirs)
    )
    net["a"].send(b"x")
    net.run(3.0)
    payload = net["a"].dispatched[0][1].payload
    net["b"].take(payload, proof=b"")
    net["b"].take(payload, proof=b"forged")

    assert net["b"].received() == [("a", b"x")]
    assert net["b"].session.stats.unproven == 2
    assert len(net["a"].told(MessageSent)) == 1
    assert len(mine.used) == len(set(mine.used)) >= 1


# Restarting


def test_unknown_layout_is_refused(channels: ModuleType) -> None:
    """State of another version is refused, not guessed at."""
    net = channels.SessionNet("a")
    rows = [Row(StateTable.META, b"version", b"\x00\x02")]

    with pytest.raises(ChannelError) as caught:
        net["a"]._made().restore(rows, net.now, net.now_ms)
    assert caught.value.code == "channel.state"


def test_last_activity_is_kept(channels: ModuleType) -> None:
    """The time of the last activity survives, so that missed messages can be fetched from there."""
    net = channels.SessionNet("ab")
    assert net["a"].session.last_seen_ms == 0
    net["a"].send(b"x")
    net.run(60.0)
    seen = net["b"].session.last_seen_ms

    net["b"].restart()

    assert net["b"].session.last_seen_ms == seen > channels.EPOCH_MS


@pytest.mark.parametrize("seed", range(6))
def test_crashes_between_any_two_lines(channels: ModuleType, seed: int) -> None:
    """Crashes before, in and after commits lose nothing and deliver nothing twice."""
    rng = random.Random(seed)
    net = channels.SessionNet("abc", loss=0.2, repeat=0.1, delay_s=(0.01, 0.5), seed=seed,
                              segmentation=SMALL)  # fmt: skip
    accepted: dict[str, list[bytes]] = {name: [] for name in "abc"}
    for number in range(12):
        for name in "abc":
            payload = f"{name}{number} ".encode() * rng.choice([1, 40, 200])
            if rng.random() < 0.5:
                net[name].crash_after = rng.randrange(6)
            if net[name].send(payload) is not None:
                accepted[name].append(payload)
            if rng.random() < 0.3:
                net[rng.choice("abc")].crash_after = rng.randrange(12)
        net.run(rng.uniform(0, 1.0))
    net.run(600.0, lambda: all(
        len({message for _, message in net[to].received() if _ == by}) >= len(accepted[by])
        for to in "abc" for by in "abc" if to != by
    ))  # fmt: skip
    net.run(40.0)

    for to in "abc":
        seen = {}
        for event in net[to].told(MessageReceived):
            assert seen.setdefault(event.position, event) == event
        received = [(one.sender_id, one.message) for one in seen.values()]
        assert len(received) == len(set(received))
        for by in "abc":
            if by != to:
                assert {message for of, message in received if of == by} >= set(accepted[by])
        assert net[to].told(MessageSendError, MessageLost) == []


def test_cipher_error_is_remote() -> None:
    """What does not decrypt is somebody else's doing."""
    assert CipherError("x").code == "channel.cipher"
