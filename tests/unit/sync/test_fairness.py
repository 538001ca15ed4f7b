"""Fair shares in virtual time: rates, weights, ageing, places and stalled readers."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from luxrelay.errors import SyncArgumentError
from luxrelay.sync.fairness import (
    RECENT_MS,
    Budget,
    FairnessConfig,
    FairQueue,
    Grant,
    Stalled,
    is_recent,
)

MIB = 1024 * 1024
FREE = FairnessConfig(
    turns_max=1,
    out_bytes_per_s=0,
    in_bytes_per_s=0,
    peer_bytes_per_s=0,
    peer_requests_per_s=0,
)
"""No rates, one turn at a time: shares alone decide."""


class World:
    """A queue, its time, and readers that take what they are given at once."""

    def __init__(self, config: FairnessConfig = FREE) -> None:
        self.now = 0.0
        self.queue = FairQueue(config, 0.0)
        self.numbers = itertools.count(1)
        self.peer_of: dict[int, str] = {}

    def open(self, peer: str, *, weight: float = 1.0, limited: bool = True) -> int:
        """Open a call and let it wait for its turn; return it."""
        call = next(self.numbers)
        refused, _ = self.queue.open(call, peer, weight=weight, limited=limited, now=self.now)
        assert not refused
        self.peer_of[call] = peer
        self.queue.ask(call, self.now)
        return call

    def granted(self) -> list[int]:
        """Return the calls whose turn it is now."""
        return [each.call for each in self.queue.drain() if isinstance(each, Grant)]

    def serve(self, seconds: float, size: int, *, speed: float = 64.0 * MIB) -> Counter[str]:
        """Serve turns of ``size`` bytes at ``speed``; return the bytes each peer got."""
        got: Counter[str] = Counter()
        end = self.now + seconds
        while self.now < end:
            calls = self.granted()
            if not calls:
                wake_at = self.queue.wake_at()
                if wake_at is None or wake_at > end:
                    break
                self.now = max(self.now, wake_at)
                self.queue.wake(self.now)
                continue
            for call in calls:
                self.now += size / speed
                self.queue.done(call, size, self.now)
                got[self.peer_of[call]] += size
                self.queue.ask(call, self.now)
        return got


# Rates


def test_out_rate_holds_for_all_together() -> None:
    """21-40: all peers together get the burst and then the rate."""
    world = World(replace(FREE, out_bytes_per_s=8.0 * MIB, burst_s=2.0))
    for peer in "abcd":
        world.open(peer)

    got = world.serve(10.0, MIB // 4)

    assert sum(got.values()) == pytest.approx((2 + 10) * 8 * MIB, rel=0.02)


def test_peer_rate_holds_for_each() -> None:
    """21-40: one peer gets its own rate although the relay could do more."""
    world = World(replace(FREE, peer_bytes_per_s=float(MIB), burst_s=2.0))
    for peer in "ab":
        world.open(peer)

    got = world.serve(10.0, MIB // 8)

    for peer in "ab":
        assert got[peer] == pytest.approx((2 + 10) * MIB, rel=0.03)


def test_no_peer_rate_for_a_program_of_this_machine() -> None:
    """A peer that is not limited is held by the rate of all together alone."""
    world = World(replace(FREE, peer_bytes_per_s=1.0, peer_requests_per_s=0.001))
    for _ in range(3):
        world.open("local", limited=False)

    assert world.serve(1.0, MIB)["local"] > 32 * MIB


def test_request_rate_delays_and_then_refuses() -> None:
    """21-40: calls above the rate wait for their time, and above the burst they are refused."""
    world = World(replace(FREE, turns_max=100, peer_requests_per_s=10.0, burst_s=1.0))
    times = []
    for _ in range(15):
        call = world.open("a")
        while call not in world.granted():
            wake_at = world.queue.wake_at()
            assert wake_at is not None
            world.now = wake_at
            world.queue.wake(world.now)
        times.append(world.now)
        world.queue.done(call, 1, world.now)
        world.queue.close(call, world.now)

    assert times[:10] == [0.0] * 10
    assert times[10:] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    patient = FairQueue(replace(FREE, peer_requests_per_s=10.0, burst_s=1.0), 0.0)
    answers = [patient.open(n, "a", weight=1, limited=True, now=0.0)[0] for n in range(25)]
    assert [bool(each) for each in answers] == [False] * 20 + [True] * 5
    assert "10 calls a second" in answers[-1]


def test_incoming_bytes_are_paid_afterwards() -> None:
    """21-40: published bytes beyond the burst make their sender wait as long as they take."""
    queue = FairQueue(replace(FREE, in_bytes_per_s=100.0, burst_s=1.0), 0.0)

    assert queue.received("a", 100, limited=True, now=0.0) == 0.0
    assert queue.received("b", 50, limited=True, now=0.0) == pytest.approx(0.5)
    assert queue.received("a", 0, limited=True, now=0.5) == 0.0
    own = FairQueue(replace(FREE, peer_bytes_per_s=100.0, burst_s=1.0), 0.0)
    assert own.received("a", 150, limited=True, now=0.0) == pytest.approx(0.5)
    assert own.received("b", 100, limited=True, now=0.0) == 0.0


def test_a_clock_that_stands_still_gives_nothing() -> None:
    """A budget refills with time alone, and never above its burst."""
    budget = Budget.full(10.0, 2.0, 5.0)

    budget.take(30, 5.0)
    assert budget.wait(4.0) == budget.wait(5.0) == 1.0
    assert budget.wait(6.0) == 0.0
    budget.take(0, 1_000.0)
    assert budget.level == 20.0


# Shares


def test_shares_are_equal_whatever_a_peer_opens() -> None:
    """21-42: peers with one call and with four get the same bytes."""
    world = World()
    for peer in ["greedy"] * 4 + ["modest"]:
        world.open(peer)

    got = world.serve(4.0, MIB // 4)

    assert got["greedy"] == pytest.approx(got["modest"], rel=0.05)


def test_small_turns_are_not_punished() -> None:
    """Shares are bytes, so a peer with small answers has more turns and as many bytes."""
    world = World()
    sizes = {world.open(f"small {n}"): MIB // 16 for n in range(3)}
    sizes |= {world.open(f"large {n}"): MIB for n in range(3)}
    got: Counter[str] = Counter()
    for _ in range(2_000):
        (call,) = world.granted()
        world.now += sizes[call] / (512 * MIB)
        world.queue.done(call, sizes[call], world.now)
        got[world.peer_of[call]] += sizes[call]
        world.queue.ask(call, world.now)

    assert min(got.values()) == pytest.approx(max(got.values()), rel=0.1)


@pytest.mark.parametrize(
    ("order", "validator", "recent", "subscribed"),
    [
        (0, False, False, False),
        (1, False, False, True),
        (2, False, True, False),
        (3, False, True, True),
        (4, True, False, False),
        (5, True, False, True),
        (6, True, True, False),
        (7, True, True, True),
    ],
)
def test_weights_keep_the_order_of_the_points(
    order: int, validator: bool, recent: bool, subscribed: bool
) -> None:
    """21-41: validator before recent before subscribed, as the points of LP-6421 §6.2 have it."""
    table = sorted(
        itertools.product((False, True), repeat=3),
        key=lambda row: 1000 * row[0] + 100 * row[1] + 50 * row[2],
    )
    weights = [FREE.weight(validator=v, recent=r, subscribed=s) for v, r, s in table]

    assert table[order] == (validator, recent, subscribed)
    assert weights == sorted(weights)
    assert len(set(weights)) == 8


@pytest.mark.parametrize(
    ("timestamp", "recent"),
    [
        (0, False),
        (10**12, True),
        (10**12 - RECENT_MS + 1, True),
        (10**12 - RECENT_MS, False),
        (10**12 + 1, False),
        (10**9, False),
    ],
)
def test_recent_needs_a_time_that_is_set(timestamp: int, recent: bool) -> None:
    """21-41: an unset time, one in seconds and one in the future are not recent (P32)."""
    assert is_recent(timestamp, 10**12) is recent


def test_a_validator_gets_four_shares() -> None:
    """21-41, P33: under load a validator gets its weight and nobody is starved."""
    world = World()
    world.open("validator", weight=4.0)
    for peer in "abcd":
        world.open(peer)

    got = world.serve(8.0, MIB // 4, speed=256.0 * MIB)

    assert got["validator"] == pytest.approx(sum(got.values()) / 2, rel=0.05)


def test_who_comes_back_has_saved_up_little() -> None:
    """A peer that was away for long gets credit_bytes before the others, and then its share."""
    world = World(replace(FREE, credit_bytes=2.0 * MIB))
    late = world.open("late")
    for peer in "abc":
        world.open(peer)
    world.serve(0.1, MIB // 4)
    world.queue.close(late, world.now)
    world.serve(10.0, MIB // 4)
    world.open("late")

    got = world.serve(1.0, MIB // 4)

    assert got["late"] == pytest.approx(16 * MIB + 2 * MIB, rel=0.15)


def test_low_priority_still_progresses() -> None:
    """21-42: against any number of validators a waiting call has its turn within a bounded time."""
    world = World()
    for number in range(30):
        world.open(f"validator {number}", weight=10.0)
    world.serve(1.0, MIB)
    world.open("poor", weight=1.0)

    assert world.serve(2.0, MIB)["poor"] > 0


# Bounds


def test_calls_above_the_places_of_a_peer_wait() -> None:
    """P34: peer_streams_max calls of a peer take part, the next one when one of them is over."""
    world = World(replace(FREE, turns_max=100, peer_streams_max=2))
    first, second, third = (world.open("a") for _ in range(3))

    assert world.granted() == [first, second]
    world.queue.close(first, world.now)
    assert world.granted() == [third]


def test_refuse_calls_above_the_bound_of_a_peer() -> None:
    """P34: peer_calls_max calls of a peer are taken in, others of it refused, other peers not."""
    queue = FairQueue(replace(FREE, peer_calls_max=2), 0.0)
    opened = [queue.open(n, "a", weight=1, limited=True, now=0.0)[0] for n in range(3)]

    assert [bool(each) for each in opened] == [False, False, True]
    assert not queue.open(9, "b", weight=1, limited=True, now=0.0)[0]


def test_nobody_reads_while_too_much_is_held() -> None:
    """What is read and not taken is bounded; reading goes on when it has been taken."""
    world = World(replace(FREE, turns_max=10, held_bytes_max=100))
    slow, other = world.open("a"), world.open("b")
    assert world.granted() == [slow, other]
    world.queue.done(slow, 100, 0.0)
    world.queue.close(other, 0.0)
    late = world.open("c")

    assert world.granted() == []
    assert (world.queue.held_bytes, world.queue.waiting) == (100, 1)
    world.queue.ask(slow, 1.0)
    assert late in world.granted()


def test_a_stalled_reader_is_ended_and_holds_nothing() -> None:
    """A reader that takes nothing for stall_s is ended, and others read on at once."""
    world = World(replace(FREE, held_bytes_max=100, stall_s=10.0))
    slow = world.open("a")
    assert world.granted() == [slow]
    world.queue.done(slow, 100, 0.0)
    late = world.open("b")
    assert world.queue.wake_at() == 10.0

    world.queue.wake(9.9)
    assert world.queue.drain() == []
    world.queue.wake(10.0)

    assert world.queue.drain() == [Stalled(slow), Grant(late)]
    world.queue.close(slow, 10.0)
    world.queue.close(slow, 10.0)
    assert world.queue.held_bytes == 0


def test_a_reader_that_takes_something_is_not_stalled() -> None:
    """The time of a reader begins anew with each turn."""
    world = World(replace(FREE, stall_s=10.0))
    call = world.open("a")
    for second in (0.0, 9.0, 18.0):
        world.now = second
        world.queue.wake(second)
        assert world.granted() == [call]
        world.queue.done(call, 1, second)
        world.queue.ask(call, second)


def test_idle_peers_are_forgotten() -> None:
    """Peers beyond peers_max are forgotten, the longest idle first, never one with a call."""
    queue = FairQueue(replace(FREE, peers_max=3), 0.0)
    queue.open(1, "busy", weight=1, limited=True, now=0.0)
    for number in range(2, 20):
        queue.open(number, f"peer {number}", weight=1, limited=True, now=0.0)
        queue.close(number, 0.0)

    assert queue.peers == 3
    assert not queue.open(99, "busy", weight=1, limited=True, now=0.0)[0]


def test_a_call_closed_while_it_reads_gives_its_turn_back() -> None:
    """A client that leaves in its turn keeps nobody waiting."""
    world = World()
    first, second = world.open("a"), world.open("b")
    assert world.granted() == [first]

    world.queue.close(first, 0.0)

    assert world.granted() == [second]


@pytest.mark.parametrize(
    "changes",
    [
        {"turns_max": 0},
        {"credit_bytes": -1.0},
        {"stall_s": 0.0},
        {"burst_s": -1.0},
        {"peer_bytes_per_s": -1.0},
        {"subscribed_weight": 1.0},
        {"recent_weight": 1.1},
        {"validator_weight": 2.5},
        {"peer_streams_max": 0},
        {"peer_calls_max": 0},
        {"peers_max": 0},
        {"held_bytes_max": 0},
    ],
)
def test_refuse_a_configuration_that_cannot_work(changes: dict[str, float]) -> None:
    """Bounds are positive, and weights keep the order of LP-6421 §6.2."""
    with pytest.raises(SyncArgumentError):
        FairnessConfig(**changes)
