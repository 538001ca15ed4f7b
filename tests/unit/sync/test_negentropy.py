"""Range-based reconciliation: both sides find the difference, and bounds and lies end well."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luxrelay.errors import ReconcileError, SyncArgumentError
from luxrelay.sync.idset import SortedIds
from luxrelay.sync.negentropy import (
    BREATH_RANGES,
    VERSION,
    Initiator,
    ReconcileConfig,
    Responder,
    varint,
)

Item = tuple[int, bytes]
PATIENT = ReconcileConfig(rounds_max=5_000)


def items(count: int, *, seed: int, spread: int = 10**6) -> list[Item]:
    """Return random items."""
    rng = random.Random(seed)
    return [(1_000 + rng.randrange(spread), rng.randbytes(32)) for _ in range(count)]


def reconcile(
    ours: list[Item], theirs: list[Item], config: ReconcileConfig = PATIENT
) -> tuple[Initiator, list[tuple[int, int]]]:
    """Run to the end; return the initiator and the sizes of each round's messages."""
    initiator = Initiator(SortedIds.of(ours), config)
    responder = Responder(SortedIds.of(theirs), config)
    sizes = []
    message: bytes | None = initiator.start()
    while message is not None:
        answer = responder.receive(message)
        sizes.append((len(message), len(answer)))
        message = initiator.receive(answer)
    return initiator, sizes


@settings(max_examples=60)
@given(
    st.integers(0, 400),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from([1, 40, 10**6]),
    st.sampled_from([4_096, 2 * 1024 * 1024]),
)
def test_both_differences_are_found(
    common: int, ours: int, theirs: int, spread: int, frame_bytes: int
) -> None:
    """J5: whatever the sets, the times and the frames, have and need are the differences."""
    base = items(common, seed=1, spread=spread)
    mine, other = items(ours, seed=2, spread=spread), items(theirs, seed=3, spread=spread)
    config = ReconcileConfig(frame_bytes=frame_bytes, rounds_max=5_000)

    found, _ = reconcile(base + mine, base + other, config)

    assert set(found.have) == {each for _, each in mine}
    assert set(found.need) == {each for _, each in other}
    assert not found.cut


def test_equal_sets_take_one_round() -> None:
    """Equal sets are known to be so after one small answer."""
    base = items(5_000, seed=1)

    found, sizes = reconcile(base, base)

    assert (len(sizes), found.need, found.have) == (1, {}, {})
    assert sizes[0][0] < 400
    assert sizes[0][1] < 10


def test_a_fork_of_a_slot_is_found() -> None:
    """21-31: two contents at one time differ in their ids, and each side learns of the other's."""
    base = items(2_000, seed=1)
    stamp, _ = base[700]

    found, _ = reconcile([*base, (stamp, b"\x01" * 32)], [*base, (stamp, b"\x02" * 32)])

    assert list(found.have) == [b"\x01" * 32]
    assert list(found.need) == [b"\x02" * 32]


def test_golden_bytes() -> None:
    """The first message of a small set, byte for byte: version, bound, mode, count, ids."""
    held = SortedIds.of([(5, b"\xaa" * 32), (300, b"\xbb" * 32)])

    message = Initiator(held).start()

    assert message == bytes([VERSION, 0, 0, 2, 2]) + b"\xaa" * 32 + b"\xbb" * 32


def test_golden_bounds() -> None:
    """Bounds are steps of time plus one; between equal times, as much of the id as it takes."""
    base = [(1_000, bytes([at]) * 32) for at in range(32)]

    message = Initiator(SortedIds.of(base)).start()

    # Two ids each: the first bound is (1000, 02), the second (the same time, 04).
    assert message[:5] == bytes([VERSION]) + varint(1_001) + bytes([1, 2])
    assert message[5] == 1
    assert message[22:26] == bytes([1, 1, 4, 1])


@pytest.mark.parametrize(
    ("number", "data"),
    [(0, "00"), (127, "7f"), (128, "8100"), (300, "822c"), (2**64 - 1, "81ffffffffffffffff7f")],
)
def test_golden_numbers(number: int, data: str) -> None:
    """Numbers are groups of seven bits, the highest first."""
    assert varint(number).hex() == data


# Frames and bounds


def test_no_answer_is_longer_than_a_frame() -> None:
    """frame_bytes holds for both sides, however much there is to say."""
    config = ReconcileConfig(frame_bytes=8_192, rounds_max=5_000)

    found, sizes = reconcile(items(5_000, seed=1), items(5_000, seed=2), config)

    assert len(found.need) == len(found.have) == 5_000
    assert max(answer for _, answer in sizes) <= 8_192
    assert max(asked for asked, _ in sizes[1:]) <= 8_192


def test_ranges_beyond_the_bound_are_put_off() -> None:
    """A message of many ranges is answered in part, and everything is found all the same."""
    config = ReconcileConfig(ranges_max=20, rounds_max=500)
    base = items(1_000, seed=1)

    found, _ = reconcile(base[100:], base[:900], config)

    assert set(found.need) == {each for _, each in base[:100]}
    assert set(found.have) == {each for _, each in base[900:]}


def test_rounds_and_finds_are_bounded() -> None:
    """rounds_max and found_max end an exchange, which says that it was cut."""
    ours, theirs = items(3_000, seed=1), items(3_000, seed=2)

    few, sizes = reconcile(ours, theirs, ReconcileConfig(rounds_max=1))
    some, _ = reconcile(ours, theirs, ReconcileConfig(found_max=10))

    assert few.cut
    assert len(sizes) == 1
    assert some.cut
    assert (len(some.need), len(some.have)) == (10, 10)


def test_refuse_a_message_above_the_bound() -> None:
    """message_bytes_max is checked before anything is read."""
    responder = Responder(SortedIds.of([]), ReconcileConfig(message_bytes_max=10))

    with pytest.raises(ReconcileError, match="10 at most"):
        responder.receive(bytes([VERSION]) * 11)


@pytest.mark.parametrize("name", ["set_max", "ranges_max", "rounds_max", "found_max"])
def test_refuse_bounds_that_cannot_work(name: str) -> None:
    """Every bound is positive, and a frame holds something."""
    with pytest.raises(SyncArgumentError, match=name):
        ReconcileConfig(**{name: 0})
    with pytest.raises(SyncArgumentError, match="frame_bytes"):
        ReconcileConfig(frame_bytes=4_095)


# Versions and lies


def test_another_version_is_told_ours() -> None:
    """A responder answers a later version with its own; an initiator gives up."""
    assert Responder(SortedIds.of([])).receive(b"\x62\x00") == bytes([VERSION])
    with pytest.raises(ReconcileError, match="version"):
        Initiator(SortedIds.of([])).receive(b"\x60")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "middle"),
        (b"\x20", "no version"),
        (b"\x61\x00", "middle"),
        (b"\x61\x00\x00", "middle"),
        (b"\x61\x00\x00\x07", "mode 7"),
        (b"\x61\x00\x00\x01short", "middle"),
        (b"\x61\x00\x21" + bytes(40), "33 bytes"),
        (b"\x61\x00\x00\x02\x90\x80\x80\x00", "a list of"),
        (b"\x61" + b"\xff" * 11, "64 bits"),
    ],
)
def test_refuse_what_is_no_message(message: bytes, why: str) -> None:
    """Bytes that break the protocol are an error that says where."""
    with pytest.raises(ReconcileError, match=why):
        Responder(SortedIds.of([])).receive(message)


@settings(max_examples=150)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_an_answer_or_our_error(data: bytes, initiating: bool) -> None:
    """Whatever arrives, there is an answer or a ReconcileError."""
    held = SortedIds.of(items(100, seed=1))
    side = Initiator(held) if initiating else Responder(held)

    try:
        side.receive(bytes([VERSION]) + data)
    except ReconcileError:
        return


def test_a_responder_that_lies_ends() -> None:
    """A peer that differs everywhere, and always anew, is left after rounds_max."""
    rng = random.Random(7)
    initiator = Initiator(SortedIds.of(items(2_000, seed=1)), ReconcileConfig(rounds_max=8))
    message: bytes | None = initiator.start()
    asked = 0
    while message is not None:
        asked += 1
        message = initiator.receive(bytes([VERSION, 0, 0, 1]) + rng.randbytes(16))

    assert asked == 8
    assert initiator.cut


def test_a_long_message_lets_others_go_first() -> None:
    """Once in so many ranges, whatever they say; a short one is answered without a pause."""
    breaths: list[int] = []
    responder = Responder(
        SortedIds.of([(1, bytes(32))]), breathe=lambda: breaths.append(len(breaths))
    )

    responder.receive(bytes([VERSION]) + b"\x02\x00\x00" * (BREATH_RANGES - 1))
    assert not breaths
    responder.receive(bytes([VERSION]) + b"\x02\x00\x00" * (3 * BREATH_RANGES + 1))
    assert len(breaths) == 3
