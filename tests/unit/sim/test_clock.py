"""Virtual time and its queue."""

import random

import pytest

from luxrelay.errors import SimulationError
from luxrelay.sim.network import EventQueue


def test_events_come_in_order_of_time_and_then_of_scheduling() -> None:
    """A tick gives all its events at once, in the order in which they were added."""
    queue = EventQueue(tick_s=0.01)
    queue.add(0.5, ("late",))
    queue.add(0.101, ("a",))
    queue.add(0.102, ("b",))

    assert queue.next_tick(9) == [("a",), ("b",)]
    assert queue.now == pytest.approx(0.11)
    assert queue.next_tick(9) == [("late",)]
    assert queue.next_tick(9) == []
    assert queue.now == 9


def test_an_event_is_never_early_and_at_most_a_tick_late() -> None:
    """Whatever its time, an event happens within the tick after it."""
    rng = random.Random(3)
    for _ in range(500):
        queue = EventQueue(tick_s=0.001)
        at_s = rng.random() * 100
        queue.add(at_s, ("x",))
        queue.next_tick(1000)
        assert at_s <= queue.now <= at_s + 0.0010001


def test_the_past_is_the_next_tick() -> None:
    """What is due already happens after the current tick, not within it."""
    queue = EventQueue(tick_s=1.0)
    queue.add(4.5, ("now",))
    assert queue.next_tick(9) == [("now",)]

    queue.add(1.0, ("overdue",))

    assert queue.next_tick(9) == [("overdue",)]
    assert queue.now == 6.0


def test_time_stops_where_it_is_told_to() -> None:
    """Nothing that is later than the given time happens."""
    queue = EventQueue(tick_s=0.1)
    queue.add(2.0, ("later",))

    assert queue.next_tick(1.0) == []
    assert queue.now == 1.0
    assert queue.next_tick(3.0) == [("later",)]


def test_waiting_events_are_bounded() -> None:
    """One event more than events_max is refused with a clear error."""
    queue = EventQueue(events_max=3)
    for number in range(3):
        queue.add(1.0, (number,))

    with pytest.raises(SimulationError, match="more than 3 events wait"):
        queue.add(1.0, (4,))
