"""Who gets a blob now and who is put off, on an uplink of a known rate."""

from __future__ import annotations

import pytest

from luxrelay.sync.rpc import uplink as bounds
from luxrelay.sync.rpc.uplink import (
    GIVEN_MAX,
    HANDED_MAX,
    LATER_MAX_S,
    LATER_MIN_S,
    NARROW_S,
    PUT_OFF_MAX,
    PUT_OFF_S,
    TOLD_AT_ONCE,
    BlobUplink,
)

BLOB = b"b" * 32
OTHER = b"o" * 32
SIZE = 100_000


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return them."""
        return self.now


def narrow(clock: Clock, rate: int = 50_000) -> BlobUplink:
    """Return an uplink whose rate was measured, and that stands in a queue."""
    uplink = BlobUplink(clock)
    assert uplink.begin(b"first" * 6 + b"xx", "somebody", 8 * rate) == 0
    for _ in range(8):
        clock.now += 1
        uplink.sent(rate, narrow=True)
    uplink.ended(b"first" * 6 + b"xx", 0, most=True)
    return uplink


def test_a_blob_goes_to_one_while_the_uplink_is_full() -> None:
    """P52: another blob is given at once, the same one only when what is under way has gone."""
    clock = Clock()
    uplink = narrow(clock)
    assert uplink.begin(BLOB, "a", SIZE) == 0
    assert uplink.begin(OTHER, "b", SIZE) == 0

    wait_s = uplink.begin(BLOB, "b", SIZE)

    assert wait_s == pytest.approx(2 * SIZE / 50_000)
    uplink.sent(SIZE, narrow=True)
    clock.now += 1
    assert uplink.begin(BLOB, "b", SIZE) == LATER_MIN_S
    assert uplink.put_off == 1
    uplink.sent(SIZE - 5_000, narrow=True)
    assert uplink.begin(BLOB, "b", SIZE) == 0


def test_nobody_is_put_off_on_a_wide_uplink() -> None:
    """P52: what never stood in a queue, or not of late, goes to whoever asks; so does what must."""
    clock = Clock()
    wide = BlobUplink(clock)
    assert [wide.begin(BLOB, name, SIZE) for name in "abcd"] == [0] * 4
    uplink = narrow(clock)
    uplink.begin(BLOB, "a", SIZE)
    assert uplink.begin(BLOB, "b", SIZE, must=True) == 0
    clock.now += NARROW_S
    assert uplink.begin(BLOB, "c", SIZE) == 0


def test_one_who_takes_little_holds_nobody_up_for_ever() -> None:
    """P52: somebody takes a blob and reads nothing; others wait `PUT_OFF_S` and no longer."""
    clock = Clock()
    uplink = narrow(clock)
    uplink.begin(BLOB, "slow", 40 * SIZE)
    waited = 0.0
    while wait_s := uplink.begin(BLOB, "honest", SIZE):
        assert wait_s <= LATER_MAX_S
        assert waited <= PUT_OFF_S
        clock.now += wait_s
        waited += wait_s
        uplink.sent(1, narrow=True)
    assert waited == pytest.approx(PUT_OFF_S)


def test_who_waits_is_told_that_there_is_room_each_in_turn() -> None:
    """P52: a few at once, of each one blob, the longest waiting first; not while it is full."""
    clock = Clock()
    uplink = narrow(clock)
    uplink.begin(BLOB, "a", SIZE)
    uplink.begin(OTHER, "a", SIZE)
    for name in "bcdefg":
        uplink.begin(BLOB, name, SIZE)
        uplink.begin(OTHER, name, SIZE)
    assert uplink.next_askers() == []
    uplink.sent(2 * SIZE, narrow=True)
    uplink.ended(BLOB, 0, most=True)
    uplink.ended(OTHER, 0, most=True)

    assert uplink.next_askers() == [(BLOB, name) for name in "bcde"[:TOLD_AT_ONCE]]
    assert uplink.next_askers() == [(OTHER, "b"), (OTHER, "c"), (OTHER, "d"), (OTHER, "e")]
    assert [name for _, name in uplink.next_askers()][:2] == ["f", "g"]
    clock.now += 2 * PUT_OFF_S
    assert uplink.next_askers() == []


def test_what_the_system_took_at_once_counts_as_long_as_it_needs() -> None:
    """P52: gRPC says nothing of when bytes left; they are counted by the rate of the others."""
    clock = Clock()
    uplink = narrow(clock)
    uplink.begin(BLOB, "10.0.0.1", SIZE, measured=False)
    uplink.handed(BLOB, SIZE, most=True)
    assert uplink.begin(BLOB, "b", SIZE) == pytest.approx(2.0)
    clock.now += 2.1
    assert uplink.begin(BLOB, "b", SIZE) == 0
    for _ in range(3 * HANDED_MAX):
        assert uplink.begin(BLOB, "10.0.0.1", SIZE, must=True, measured=False) == 0
        uplink.handed(BLOB, SIZE, most=True)
    assert len(uplink._handed) == HANDED_MAX
    clock.now += LATER_MAX_S
    uplink.sent(SIZE, narrow=True)
    assert uplink.begin(BLOB, "c", SIZE) == 0
    assert not uplink._handed
    unmeasured = BlobUplink(clock)
    unmeasured.begin(BLOB, "10.0.0.1", SIZE, measured=False)
    unmeasured.handed(BLOB, SIZE, most=True)
    assert unmeasured.begin(BLOB, "b", SIZE) == 0


def test_who_asks_for_a_byte_has_not_the_blob() -> None:
    """P52: what nobody was given whole goes to the next one that asks."""
    clock = Clock()
    uplink = narrow(clock)
    uplink.begin(OTHER, "a", SIZE)
    uplink.begin(BLOB, "stranger", 1)
    uplink.sent(1, narrow=True)
    uplink.ended(BLOB, 0, most=False)
    assert uplink.begin(BLOB, "honest", SIZE) == 0
    uplink.ended(BLOB, SIZE, most=True)  # it left before the end
    assert uplink.begin(BLOB, "next", SIZE) == 0


def test_who_waited_his_time_is_served_though_the_uplink_is_full() -> None:
    """P52: also when there was room in between and he was only told."""
    clock = Clock()
    uplink = narrow(clock)
    uplink.begin(BLOB, "a", 100 * SIZE)
    assert uplink.begin(BLOB, "b", SIZE) > 0
    clock.now += PUT_OFF_S + 1
    uplink.sent(100 * SIZE, narrow=True)
    uplink.ended(BLOB, 0, most=True)
    assert uplink.next_askers() == [(BLOB, "b")]
    uplink.begin(OTHER, "a", 100 * SIZE)
    uplink.sent(1, narrow=True)
    assert uplink.begin(BLOB, "c", SIZE) > 0
    assert uplink.begin(BLOB, "b", SIZE) == 0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """P52: the oldest that was given, and the oldest that was put off, is forgotten."""
    assert (GIVEN_MAX, PUT_OFF_MAX) == (1_024, 4_096)
    monkeypatch.setattr(bounds, "GIVEN_MAX", 2)
    monkeypatch.setattr(bounds, "PUT_OFF_MAX", 2)
    clock = Clock()
    uplink = narrow(clock)
    blobs = [bytes([number]) * 32 for number in range(3)]
    uplink.begin(OTHER, "a", SIZE)
    for each in blobs:
        uplink.begin(each, "a", 1)
        uplink.ended(each, 0, most=True)
    assert uplink.begin(blobs[0], "b", 1) == 0  # it is not known any more that it was given
    uplink.ended(blobs[0], 1, most=True)
    for name in "cdef":
        assert uplink.begin(blobs[2], name, SIZE) > 0
    uplink.ended(OTHER, SIZE, most=True)
    assert uplink.next_askers() == [(blobs[2], "e"), (blobs[2], "f")]
