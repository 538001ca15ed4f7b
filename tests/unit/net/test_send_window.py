"""The window of one connection over a simulated path: rate, round trip, a queue that drops."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from luxrelay.net.send_window import (
    CEILING,
    FLOOR,
    FRESH_S,
    LOOK_MAX_S,
    NEAR_BYTES,
    PAUSE_S,
    SendWindow,
    SocketLook,
)


@dataclass
class Path:
    """A path that carries bytes in order; acknowledgements come back at once after its delay."""

    rate: float
    rtt_s: float
    now: float = 100.0
    sent: int = 0
    most: int = 0
    """Most bytes that stood in the queue."""
    remembered_s: float | None = None
    """What the system says of the shortest round trip; the path's own when None."""
    window: SendWindow = field(default_factory=SendWindow)
    burst_s: float = 0.0
    """Acknowledgements are heard of at multiples of this."""
    lag_s: float = 0.0
    """Every look comes so late."""
    _busy: float = 0.0
    _due: list[tuple[float, int]] = field(default_factory=list)
    _usual_s: float = 0.0

    def look(self) -> SocketLook:
        """Return what the system would say now; segments are acknowledged as they come."""
        heard = self.now - self.rtt_s
        if self.burst_s:
            heard -= self.now % self.burst_s
        self._due = [each for each in self._due if each[0] > heard]
        waiting = sum(min(size, round((gone - heard) * self.rate)) for gone, size in self._due)
        shortest_s = self.rtt_s if self.remembered_s is None else self.remembered_s
        return SocketLook(waiting, max(self._usual_s, self.rtt_s), shortest_s)

    def send(self, size: int) -> float:
        """Send so much through the window; return the seconds that it took."""
        began, left = self.now, size
        while left:
            look = self.look()
            room = self.window.room(self.sent, look, self.now)
            if not room:
                self.now += self.window.pause_s(look) + self.lag_s
                continue
            piece = min(room, left)
            self._busy = max(self.now, self._busy) + piece / self.rate
            queued_s = self._busy - self.now
            self._usual_s = queued_s + self.rtt_s
            self.most = max(self.most, round(queued_s * self.rate))
            self._due.append((self._busy, piece))
            self.sent, left = self.sent + piece, left - piece
        return self.now - began


@pytest.mark.parametrize("rtt_s", [0.02, 0.04, 0.1, 0.3])
@pytest.mark.parametrize("mbit", [0.2, 1, 10, 100])
def test_a_path_is_used_and_its_queue_stays_short(mbit: float, rtt_s: float) -> None:
    """P51: 4 MB take as long as they need; twice what the path holds is on its way."""
    path = Path(mbit * 125_000, rtt_s)
    took_s = path.send(4_000_000)

    ideal_s = 4_000_000 / path.rate
    assert took_s <= 1.15 * ideal_s + 14 * rtt_s  # doublings from the floor
    assert path.most <= 2 * (path.rate * rtt_s + FLOOR) + path.rate * LOOK_MAX_S


@pytest.mark.parametrize("rtt_s", [0.05, 0.1])
@pytest.mark.parametrize("mbit", [20, 100])
@pytest.mark.parametrize("lag_s", [0.0, 0.015])
def test_acknowledgements_in_bursts_and_late_looks_cost_little(
    mbit: float, rtt_s: float, lag_s: float
) -> None:
    """P51: segments leave at once and are heard of together; whoever looks is late at times."""
    path = Path(mbit * 125_000, rtt_s, burst_s=rtt_s / 2, lag_s=lag_s)
    ideal_s = 12_000_000 / path.rate

    assert path.send(12_000_000) <= 1.6 * ideal_s + 20 * rtt_s


@pytest.mark.parametrize("burst_s", [0.0, 0.15])
def test_a_far_path_doubles_until_something_queues(burst_s: float) -> None:
    """P51: a blob over 300 ms takes the doublings from the floor, and half as much again."""
    path = Path(125e6, 0.3, burst_s=burst_s)

    assert path.send(2_000_000) <= 10 * path.rtt_s


def test_a_link_that_became_slow_gets_no_more_than_it_carries() -> None:
    """P51: after a pause what was measured before it counts no more."""
    path = Path(12.5e6, 0.04)
    path.send(8_000_000)
    assert path.window.size > 200_000
    path.now += 10
    path.rate, path.most = 125_000, 0

    path.send(400_000)

    assert path.most <= 3 * FLOOR


def test_a_round_trip_that_the_system_remembers_of_a_shorter_path_is_left_aside() -> None:
    """P51: TCP remembers the shortest for minutes; a path that became longer keeps its rate."""
    path = Path(1.25e6, 0.15, remembered_s=0.005)
    took_s = path.send(4_000_000)

    assert took_s <= 1.3 * 4_000_000 / path.rate + 10 * path.rtt_s


def test_a_path_that_became_longer_meanwhile_is_found_out() -> None:
    """P51: a shortest round trip is believed for ten seconds."""
    path = Path(1.25e6, 0.02, remembered_s=0.001)
    path.send(2_000_000)
    path.rtt_s = 0.2
    path.send(round(path.rate * FRESH_S))  # at a part of the rate, until it is measured anew

    assert path.send(4_000_000) <= 1.5 * 4_000_000 / path.rate


def test_near_paths_and_closed_connections_are_not_held_back() -> None:
    """P51: looking costs more than it brings there; a write to a closed one fails by itself."""
    window = SendWindow()
    assert window.room(10**9, SocketLook(10**8, 0.001, 0.001), 1.0) == NEAR_BYTES
    assert window.room(10**9, SocketLook(10**8, 0.1, 0.1, closed=True), 1.0) == NEAR_BYTES
    assert window.size == FLOOR


def test_little_to_send_measures_nothing() -> None:
    """P51: a connection that sends a message now and then keeps its window; a pause ends it."""
    path = Path(12.5e6, 0.05)
    path.send(4_000_000)
    size = path.window.size
    assert FLOOR < size <= CEILING
    for _ in range(20):
        path.now += 0.3
        path.send(1_000)
    assert path.window.size == size
    path.now += PAUSE_S + 0.1
    path.send(1_000)
    assert path.window.size == FLOOR


def test_looks_are_an_eighth_of_a_round_trip_apart() -> None:
    """P51: and within bounds, so that neither a short nor a long path costs much."""
    pause_s = SendWindow.pause_s
    assert pause_s(SocketLook(0, 0.08, 0.08)) == pytest.approx(0.01)
    assert pause_s(SocketLook(0, 0.004, 0.004)) == pytest.approx(0.002)
    assert pause_s(SocketLook(0, 9.0, 9.0)) == pytest.approx(0.05)
