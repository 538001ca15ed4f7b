"""Putting segments together again."""

from __future__ import annotations

import random
from typing import Any

import pytest

from luxrelay.channel.params import SegmentationConfig, SegmentRevision
from luxrelay.channel.segmentation import Complete, Reason, Reassembly, SetGivenUp
from luxrelay.channel.segments import Segment, split
from luxrelay.channel.state import Journal, Row, StateTable
from luxrelay.errors import SegmentError

MESSAGE = bytes((i * 37 + 11) & 255 for i in range(1000))


def config(**changes: Any) -> SegmentationConfig:
    """Return a configuration of revision C whose full segments carry 256 bytes."""
    return SegmentationConfig(**{"segment_size_bytes": 384, **changes})


PARITY = config(enable_reed_solomon=True, parity_rate=0.5)
PARITY_B = config(
    enable_reed_solomon=True,
    parity_rate=0.5,
    revision=SegmentRevision.B,
    segment_size_bytes=256,
)


class Held:
    """A machine and the rows that its journal has left behind."""

    def __init__(self, cut: SegmentationConfig) -> None:
        """Begin with nothing."""
        self.cut = cut
        self.journal = Journal()
        self.machine = Reassembly(cut, self.journal)
        self.rows: dict[tuple[StateTable, bytes], bytes] = {}

    def add(self, data: bytes, now: float = 0.0, sender: str = "a") -> list[Complete | SetGivenUp]:
        """Feed a segment and apply the journal."""
        out = self.machine.add(sender, data, now)
        self.commit()
        return out

    def commit(self) -> None:
        """Apply the journal."""
        for row in self.journal.drain():
            if row.value is None:
                self.rows.pop((row.table, row.key), None)
            else:
                self.rows[row.table, row.key] = row.value

    def restart(self, now: float = 0.0) -> None:
        """Begin anew from the rows, in the order that a store returns them."""
        self.machine = Reassembly(self.cut, self.journal)
        self.machine.restore(
            [Row(table, key, value) for (table, key), value in sorted(self.rows.items())], now
        )


@pytest.mark.parametrize("length", [0, 1, 256, 1000, 5000])
def test_any_order_gives_the_payload_once(length: int) -> None:
    """Shuffled and repeated segments make the payload whole once, and nothing is left."""
    held = Held(config())
    segments = split(MESSAGE[:1] * length, held.cut)
    fed = segments * 2
    random.Random(length).shuffle(fed)
    first = {data: fed.index(data) for data in segments}

    outcomes = [one for data in sorted(segments, key=first.__getitem__) for one in held.add(data)]

    assert outcomes == [Complete("a", MESSAGE[:1] * length)]
    assert (held.rows, held.machine.held) == ({}, 0)


def test_a_duplicate_changes_nothing() -> None:
    """The same segment twice is counted and does not prolong the life of its set."""
    held = Held(config())
    data = split(MESSAGE, held.cut)[0]
    held.add(data, 0.0)
    rows = dict(held.rows)

    assert held.add(data, 100.0) == []

    assert held.rows == rows
    assert held.machine.stats.duplicate == 1
    assert held.machine.wake_at() == held.cut.set_timeout_ms / 1000


@pytest.mark.parametrize("cut", [PARITY, PARITY_B], ids=["C", "B"])
@pytest.mark.parametrize("lost", [(0, 1), (0, 3), (2, 3), (3, 4), (3,)])
def test_as_many_lost_as_parity(cut: SegmentationConfig, lost: tuple[int, ...]) -> None:
    """Two of four data segments may be lost, the short last one too."""
    held = Held(cut)
    segments = split(MESSAGE, cut)

    outcomes = [
        one for index, data in enumerate(segments) if index not in lost for one in held.add(data)
    ]

    assert outcomes == [Complete("a", MESSAGE)]


def test_revision_b_keeps_zeros_at_the_end() -> None:
    """A recovered last segment that ends in zeros is cut by the hash, not by guessing."""
    payload = MESSAGE[:900] + bytes(5)
    held = Held(PARITY_B)

    outcomes = [one for data in (*split(payload, PARITY_B)[:3], split(payload, PARITY_B)[4])
                for one in held.add(data)]  # fmt: skip

    assert outcomes == [Complete("a", payload)]


def test_late_segments_do_not_begin_again() -> None:
    """What parity made superfluous is swallowed once; the same payload again is whole again."""
    held = Held(PARITY)
    segments = split(MESSAGE, PARITY)
    assert [one for data in segments[2:] for one in held.add(data)] == [Complete("a", MESSAGE)]
    held.restart()

    assert held.add(segments[0]) == held.add(segments[1]) == []
    assert held.rows == {}

    assert [one for data in segments[:4] for one in held.add(data)] == [Complete("a", MESSAGE)]


def test_a_segment_that_was_needed_is_not_swallowed_again() -> None:
    """A segment of a finished payload that comes a second time belongs to the next such payload."""
    held = Held(PARITY)
    segments = split(MESSAGE, PARITY)
    for data in segments[2:]:
        held.add(data)

    held.add(segments[2])

    assert held.machine.progress() == [("a", 1, 4)]


def test_more_lost_than_parity_waits_and_expires() -> None:
    """Three of six lost leave the set waiting; the time without a new segment ends it."""
    cut = config(enable_reed_solomon=True, parity_rate=0.5, set_timeout_ms=10_000)
    held = Held(cut)
    segments = split(MESSAGE, cut)
    for data in segments[:3]:
        assert held.add(data, 5.0) == []
    assert held.machine.progress() == [("a", 3, 4)]

    assert held.machine.wake(14.9) == []
    given = held.machine.wake(15.0)
    held.commit()

    assert [(one.sender_id, one.reason) for one in given] == [("a", Reason.EXPIRED)]
    assert (held.rows, held.machine.wake_at(), held.machine.held) == ({}, None, 0)


def test_restart_keeps_partial_messages() -> None:
    """After a restart the segments held before count."""
    held = Held(config())
    segments = split(MESSAGE, held.cut)
    for data in segments[:3]:
        held.add(data)

    held.restart(now=3.0)

    assert held.machine.held == 768
    assert held.add(segments[3]) == [Complete("a", MESSAGE)]
    assert held.rows == {}


def test_sets_max_evicts_the_one_that_waited_longest() -> None:
    """One message more than sets_max makes room by the set without news for the longest time."""
    held = Held(config(sets_max=2))
    payloads = [bytes([n]) * 600 for n in range(3)]
    for n in range(2):
        held.add(split(payloads[n], held.cut)[0])
    held.add(split(payloads[0], held.cut)[1])

    (given,) = held.add(split(payloads[2], held.cut)[0])

    assert isinstance(given, SetGivenUp)
    assert given.reason is Reason.EVICTED
    assert (
        given.payload_hash == Segment.decode(split(payloads[1], held.cut)[0], held.cut).payload_hash
    )
    assert held.add(split(payloads[0], held.cut)[2]) == [Complete("a", payloads[0])]


def test_buffered_bytes_max_evicts() -> None:
    """Bytes beyond buffered_bytes_max make the oldest give way, and the bound holds."""
    held = Held(config(buffered_bytes_max=1000))
    for n in range(3):
        held.add(split(bytes([n]) * 600, held.cut)[0])
    assert held.machine.held == 768

    (given,) = held.add(split(bytes([9]) * 600, held.cut)[0])

    assert isinstance(given, SetGivenUp)
    assert held.machine.held <= 1000
    assert held.machine.stats.given_up == 1


def test_completed_max_forgets_the_oldest_mark() -> None:
    """Marks beyond completed_max are dropped; a late segment then opens a set that expires."""
    cut = config(enable_reed_solomon=True, parity_rate=0.5, completed_max=1)
    held = Held(cut)
    first, second = split(MESSAGE, cut), split(MESSAGE[::-1], cut)
    for data in (*first[:4], *second[:4]):
        held.add(data)

    held.add(first[4])
    held.add(second[4])

    assert held.machine.progress() == [("a", 1, 4)]


def test_a_lying_hash_drops_the_set() -> None:
    """Segments that do not have their hash are dropped whole; a clean copy is delivered."""
    held = Held(config())
    segments = split(MESSAGE, held.cut)
    forged = segments[1][:-1] + bytes([segments[1][-1] ^ 1])

    outcomes = [one for data in (segments[0], forged, *segments[2:]) for one in held.add(data)]

    assert [one.reason for one in outcomes if isinstance(one, SetGivenUp)] == [Reason.HASH_MISMATCH]
    assert held.rows == {}
    assert [one for data in segments for one in held.add(data)] == [Complete("a", MESSAGE)]


def test_parity_of_odd_lengths_drops_the_set() -> None:
    """Parity that is no multiple of 64, or empty, gives the set up instead of raising."""
    held = Held(PARITY)
    segments = split(MESSAGE, PARITY)
    odd = Segment.decode(segments[4], PARITY)
    cut_off = Segment(
        payload_hash=odd.payload_hash, payload_length=odd.payload_length, index=0, data_count=4,
        parity_count=2, is_parity=True, payload=odd.payload[:-1],
    ).encode(SegmentRevision.C)  # fmt: skip

    outcomes = [one for data in (*segments[:3], cut_off) for one in held.add(data)]

    assert [one.reason for one in outcomes if isinstance(one, SetGivenUp)] == [Reason.HASH_MISMATCH]


def test_counts_that_contradict_are_ignored() -> None:
    """A segment that claims other counts for the same payload is counted and not kept."""
    held = Held(config())
    segments = split(MESSAGE, held.cut)
    held.add(segments[0])
    liar = Segment.decode(segments[1], held.cut)

    held.add(
        Segment(
            payload_hash=liar.payload_hash,
            payload_length=liar.payload_length,
            index=1,
            data_count=2,
            payload=b"x",
        ).encode(SegmentRevision.C)
    )

    assert held.machine.stats.mismatched == 1
    assert [one for data in segments[1:] for one in held.add(data)] == [Complete("a", MESSAGE)]


def test_a_length_that_lies_drops_the_set() -> None:
    """All data with another length than claimed is not delivered."""
    held = Held(config())
    one = Segment.decode(split(b"abc", held.cut)[0], held.cut)

    (given,) = held.add(
        Segment(
            payload_hash=one.payload_hash, payload_length=2, index=0, data_count=1, payload=b"abc"
        ).encode(SegmentRevision.C)
    )

    assert isinstance(given, SetGivenUp)


def test_senders_do_not_meet() -> None:
    """The same payload from two senders is two messages; neither can fill the other's places."""
    held = Held(config())
    segments = split(MESSAGE, held.cut)
    for data in segments[:3]:
        held.add(data, sender="a")

    assert held.add(segments[3], sender="b") == []
    assert held.add(segments[3], sender="a") == [Complete("a", MESSAGE)]


def test_malformed_bytes_raise_the_one_error() -> None:
    """What is no segment raises `SegmentError` and leaves nothing behind."""
    held = Held(config())

    with pytest.raises(SegmentError):
        held.add(b"\xff\xff")
    assert held.rows == {}
