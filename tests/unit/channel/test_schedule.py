"""Names that come due."""

from __future__ import annotations

import random

from luxrelay.channel.schedule import Schedule


def test_due_in_order_of_time() -> None:
    """Names come due earliest first, once, and not before their time."""
    schedule = Schedule()
    for name, at in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        schedule.put(name, at)

    assert schedule.due(0.9) == []
    assert schedule.due(2.0) == ["a", "b"]
    assert schedule.due(9.0, limit=0) == []
    assert (schedule.next(), schedule.due(9.0), schedule.next()) == (3.0, ["c"], None)


def test_the_last_time_counts() -> None:
    """A name put again comes due at the later call's time alone; a removed one never."""
    schedule = Schedule()
    schedule.put("a", 1.0)
    schedule.put("a", 5.0)
    schedule.put("b", 2.0)
    schedule.remove("b")
    schedule.remove("never")

    assert ("a" in schedule, len(schedule), schedule.when("b")) == (True, 1, None)
    assert schedule.due(4.0) == []
    assert schedule.due(5.0) == ["a"]


def test_limit_leaves_the_rest() -> None:
    """With a limit the earliest come, and the rest later."""
    schedule = Schedule()
    for number in range(5):
        schedule.put(str(number), float(number))

    assert schedule.due(9.0, limit=2) == ["0", "1"]
    assert schedule.furthest() == "4"
    assert schedule.due(9.0) == ["2", "3", "4"]
    assert schedule.furthest() is None


def test_agrees_with_a_plain_dictionary_and_stays_small() -> None:
    """Ten thousand random changes agree with a dictionary, and leave no heap of old times."""
    rng = random.Random(5)
    schedule, plain = Schedule(), {}
    for step in range(10_000):
        name = str(rng.randrange(30))
        if rng.random() < 0.8:
            plain[name] = step + rng.random() * 50
            schedule.put(name, plain[name])
        else:
            plain.pop(name, None)
            schedule.remove(name)
        due = sorted((at, each) for each, at in plain.items() if at <= step)
        assert schedule.due(step) == [each for _, each in due]
        for _, each in due:
            del plain[each]
        assert schedule.next() == min(plain.values(), default=None)
    assert len(schedule._heap) <= 64 + 4 * 30
