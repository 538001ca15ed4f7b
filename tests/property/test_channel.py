"""Whole channels under loss, repetition, delay and crashes, against a simple model.

The model is a list of what was accepted from each member, with what the member had seen by then.
"""

from __future__ import annotations

import os
import random
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from luxrelay.channel import (
    MessageLost,
    MessageReceived,
    MessageSendError,
    MessageSent,
    SegmentationConfig,
    SharedKeyEncryption,
)
from luxrelay.channel.wire import SdsMessage
from luxrelay.errors import ChannelWireError

MESSAGES = int(os.environ.get("LUXRELAY_CHANNEL_MESSAGES", "8"))
"""Messages of each of five participants in the long run; 500 is the full size."""
CHUNKS = int(os.environ.get("LUXRELAY_CHANNEL_CHUNKS", "100000"))
"""Malformed payloads."""


def _load() -> ModuleType:
    if "channels_oracle" not in sys.modules:
        path = Path(__file__).parents[1] / "oracle" / "channels.py"
        spec = spec_from_file_location("channels_oracle", path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["channels_oracle"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["channels_oracle"])
    return sys.modules["channels_oracle"]


channels = _load()
Said = tuple[str, bytes]


def heard(member: Any) -> list[Said]:
    """Return what a member was told to have received, repetitions after a crash aside."""
    events = {event.position: event for event in member.told(MessageReceived)}
    return [(event.sender_id, event.message) for _, event in sorted(events.items())]


def ends(member: Any) -> dict[str, list[type]]:
    """Return how each request of a member ended, repetitions after a crash aside."""
    events = {event.position: event for event in member.told(MessageSent, MessageSendError)}
    found: dict[str, list[type]] = {}
    for event in events.values():
        found.setdefault(event.request_id, []).append(type(event))
    return found


class ChannelMachine(RuleBasedStateMachine):
    """Three members who send, crash and are cut off."""

    @initialize(seed=st.integers(0, 10_000), sealed=st.booleans(), parity=st.booleans())
    def begin(self, seed: int, sealed: bool, parity: bool) -> None:
        """Open the channel."""
        cut = SegmentationConfig(segment_size_bytes=384, enable_reed_solomon=parity)
        self.net = channels.SessionNet(
            "abc",
            seed=seed,
            delay_s=(0.01, 0.4),
            segmentation=cut,
            encryption=SharedKeyEncryption(bytes(32)) if sealed else None,
            sds=channels.quick(max_retransmissions=200, lost_timeout_ms=100_000_000),
        )
        self.sealed = sealed
        self.accepted: dict[Said, set[Said]] = {}
        self.count = 0

    members = st.sampled_from("abc")

    @rule(name=members, size=st.sampled_from([0, 1, 300, 2_000]))
    def send(self, name: str, size: int) -> None:
        """A member sends something of its own."""
        member = self.net[name]
        self.count += 1
        payload = f"{name}{self.count} ".encode() + bytes(size)
        past = set(heard(member)) | {said for said in self.accepted if said[0] == name}
        if member.send(payload) is not None:
            self.accepted[name, payload] = past

    @rule(name=members, points=st.integers(0, 8))
    def crash_soon(self, name: str, points: int) -> None:
        """A member will crash between two of its next lines."""
        self.net[name].crash_after = points

    @rule(seconds=st.floats(0.01, 3.0))
    def pass_time(self, seconds: float) -> None:
        """Time passes."""
        self.net.run(seconds)

    @rule(share=st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    def change_loss(self, share: float) -> None:
        """The weather changes."""
        self.net.loss = share

    @rule(share=st.sampled_from([0.0, 0.5]))
    def change_repetition(self, share: float) -> None:
        """The network repeats itself, or not."""
        self.net.repeat = share

    @rule()
    def flip_bits(self) -> None:
        """What is on the way is damaged; only sealed channels notice every bit."""
        if self.sealed:
            self.net.flying = [
                (at, count, to, data[:-1] + bytes([data[-1] ^ 1]), hint, proof)
                for at, count, to, data, hint, proof in self.net.flying
            ]

    @invariant()
    def nothing_twice_and_nothing_invented(self) -> None:
        """Each received message was sent, and is received once, after its past."""
        if not hasattr(self, "net"):
            return
        for name, member in self.net.members.items():
            seen: set[Said] = set()
            for said in heard(member):
                assert said not in seen
                assert said[0] != name
                past = self.accepted.get(said)
                # A crash may hide from the sender that its message was accepted.
                if past is not None:
                    assert {one for one in past if one[0] != name} <= seen
                seen.add(said)
            for outcome in ends(member).values():
                assert outcome in ([MessageSent], [MessageSendError])

    def teardown(self) -> None:
        """When the weather is good again, everybody gets everything and every request ends well."""
        if not hasattr(self, "net"):
            return
        net = self.net
        net.loss = net.repeat = 0.0
        for member in net.members.values():
            member.crash_after = None

        def complete() -> bool:
            return all(
                set(heard(member)) >= {said for said in self.accepted if said[0] != name}
                and not member.session.requests
                for name, member in net.members.items()
            )

        assert net.run(3_000.0, complete)
        self.nothing_twice_and_nothing_invented()
        for member in net.members.values():
            assert member.told(MessageLost, MessageSendError) == []


TestChannel = ChannelMachine.TestCase
TestChannel.settings = settings(
    max_examples=max(10, settings().max_examples // 4), stateful_step_count=25, deadline=None
)
TestChannel = pytest.mark.slow(TestChannel)


@pytest.mark.slow
def test_five_participants_through_bad_weather() -> None:
    """30 % loss, reorder, repetition; 1 B to 1 MiB: everybody gets each once, in causal order."""
    rng = random.Random(7)
    net = channels.SessionNet(
        "abcde", loss=0.3, repeat=0.1, delay_s=(0.01, 1.0), seed=7,
        sds=channels.quick(bloom_capacity=10_000, lost_timeout_ms=100_000_000),
    )  # fmt: skip
    past: dict[Said, int] = {}
    counts: dict[str, int] = dict.fromkeys("abcde", 0)
    for number in range(MESSAGES):
        for name in "abcde":
            size = int(2 ** rng.uniform(0, 20))
            head = f"{name}{number} ".encode()
            payload = head + bytes(max(0, size - len(head)))
            past[name, head.strip()] = len(net[name].events)
            while not net[name].session.room_for(len(payload)):
                net.run(1.0)
            net[name].send(payload)
            counts[name] += 1
        net.run(rng.uniform(0.2, 1.5))
        for member in net.members.values():
            forget_bytes(member)

    def complete() -> bool:
        for member in net.members.values():
            forget_bytes(member)
        return not any(member.session.requests for member in net.members.values()) and all(
            len(member.told(MessageReceived)) >= 4 * MESSAGES for member in net.members.values()
        )

    assert net.run(4_000.0, complete)
    for name, member in net.members.items():
        messages = heard(member)
        assert len(set(messages)) == 4 * MESSAGES
        place = {said: index for index, said in enumerate(messages)}
        for (sender, head), events in past.items():
            if sender == name:
                continue
            before = {
                (event.sender_id, event.message)
                for event in net[sender].events[:events]
                if isinstance(event, MessageReceived) and event.sender_id != name
            }
            assert all(place[one] < place[sender, head] for one in before)
        assert [end for end in ends(member).values() if end != [MessageSent]] == []
        assert len(ends(member)) == MESSAGES
        assert member.told(MessageLost) == []


def forget_bytes(member: Any) -> None:
    """Keep of received messages their names alone: the full run would fill the memory."""
    for index in range(getattr(member, "forgotten", 0), len(member.events)):
        event = member.events[index]
        if isinstance(event, MessageReceived):
            head = event.message.split(b" ", 1)[0]
            member.events[index] = MessageReceived(event.position, head, event.sender_id)
    member.forgotten = len(member.events)


def malformed(rng: random.Random, samples: list[bytes]) -> bytes:
    """Return bytes that are no message."""
    while True:
        data = bytearray(rng.choice(samples))
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.randrange(1, 6)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            SdsMessage.decode(bytes(data))
        except ChannelWireError:
            return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("sealed", [False, True], ids=["clear", "sealed"])
def test_malformed_chunks_do_nothing_but_count(sealed: bool) -> None:
    """100,000 broken payloads in the middle of a talk change no row and cause no action."""
    hook = SharedKeyEncryption(bytes(32)) if sealed else None
    net = channels.SessionNet("ab", encryption=hook)
    net["a"].send(bytes(1_000))
    net.run(3.0)
    member, rng = net["b"], random.Random(11)
    samples = [one.payload[:400] for _, one in (*net["a"].dispatched, *member.dispatched)]
    rows, clock = dict(member.rows), member.session.sds.clock
    before = member.session.stats.received
    made = [malformed(rng, samples) for _ in range(min(CHUNKS, 2_000))]
    for number in range(CHUNKS):
        member.session.receive(made[number % len(made)], b"", b"", net.now, net.now_ms)

    stats = member.session.stats
    assert stats.received - before == CHUNKS
    assert (stats.undecryptable if sealed else stats.malformed) == CHUNKS
    assert member.session.changes() == []
    assert member.session.drain() == []
    assert (member.rows, member.session.sds.clock) == (rows, clock)
    net["a"].send(b"still there")
    net.run(3.0)
    assert net["b"].received()[-1] == ("a", b"still there")
