"""The pace of a machine beside the one on which prices were measured."""

from __future__ import annotations

import errno
import socket

import pytest

from luxrelay.sync.rpc.metering import EVERY_S, PACE_MAX, PACE_MIN, PIECE_US, SAMPLES, MachinePace


class Cpu:
    """A clock of CPU time that gains so much for each piece of work."""

    def __init__(self, piece_us: float) -> None:
        self.piece_us = piece_us
        self.looks = 0
        self._now = 0.0

    def __call__(self) -> float:
        """Return the time; every second look is the end of a piece."""
        self.looks += 1
        if self.looks % 2 == 0:
            self._now += self.piece_us / 1e6
        return self._now


@pytest.mark.parametrize(
    ("piece_us", "pace"),
    [(PIECE_US, 1.0), (3 * PIECE_US, 3.0), (0.0, PACE_MIN), (1e9, PACE_MAX)],
)
def test_it_is_the_time_of_a_piece_of_work_within_bounds(piece_us: float, pace: float) -> None:
    """In CPU time, beside the machine of the prices (P34)."""
    assert MachinePace(lambda: 0.0, Cpu(piece_us))() == pytest.approx(pace)


def test_it_follows_a_machine_that_becomes_slower_and_looks_seldom() -> None:
    """One further sample in `EVERY_S`; the median, so that one odd sample changes nothing."""
    now, cpu = 0.0, Cpu(PIECE_US)
    pace = MachinePace(lambda: now, cpu)
    for _ in range(1_000):
        assert pace() == pytest.approx(1.0)
    assert cpu.looks == 2 * SAMPLES

    cpu.piece_us = 2 * PIECE_US
    now += EVERY_S
    assert pace() == pytest.approx(1.0)
    assert cpu.looks == 2 * SAMPLES + 2
    for _ in range(SAMPLES):
        now += EVERY_S
        pace()
    assert pace() == pytest.approx(2.0)


def test_without_a_descriptor_the_pace_stays_and_nobody_fails() -> None:
    """A flood may hold all of them, and whoever accepts connections asks for the pace."""
    now, cpu, full = 0.0, Cpu(2 * PIECE_US), False

    def pair() -> tuple[socket.socket, socket.socket]:
        if full:
            raise OSError(errno.EMFILE, "Too many open files")
        return socket.socketpair()

    pace = MachinePace(lambda: now, cpu, pair)
    assert pace() == pytest.approx(2.0)
    full, looks = True, cpu.looks
    for now in (EVERY_S, 2 * EVERY_S):  # noqa: B007  the lambda reads it
        assert pace() == pytest.approx(2.0)
    assert cpu.looks == looks
    full, now = False, 3 * EVERY_S
    pace()
    assert cpu.looks == looks + 2


def test_this_machine_has_one() -> None:
    """With the clocks that a node has."""
    assert PACE_MIN <= MachinePace()() <= PACE_MAX
