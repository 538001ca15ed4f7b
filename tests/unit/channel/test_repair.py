"""SDS-R: who asks, who answers, when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luxrelay.channel.params import RepairConfig
from luxrelay.channel.repair import (
    Repair,
    hash64,
    in_response_group,
    request_delay_ms,
    response_delay_ms,
)
from luxrelay.channel.state import Journal, Row, StateTable
from luxrelay.channel.wire import HistoryEntry

VECTORS = json.loads((Path(__file__).parent / "data" / "sds.json").read_text())["repair"]
CONFIG = RepairConfig(t_min_ms=1_000, t_max_ms=5_000, buffer_max=3)


@pytest.mark.parametrize(
    "vector", VECTORS, ids=lambda v: f"{v['participant']}-{v['sender']}-{v['config']}"
)
def test_times_and_groups_as_published(vector: dict[str, Any]) -> None:
    """Hashes, delays and groups are those of the JavaScript implementation."""
    config = RepairConfig(
        t_min_ms=vector["config"]["tMin"],
        t_max_ms=vector["config"]["tMax"],
        response_groups=vector["config"]["numResponseGroups"],
    )
    own, sender, message = vector["participant"], vector["sender"], vector["message_id"]

    assert hash64(own) == int(vector["hash_participant"])
    assert hash64(own, message) == int(vector["hash_participant_message"])
    assert request_delay_ms(own, message, config) == vector["t_req_offset_ms"]
    assert response_delay_ms(own, sender, message, config) == vector["t_resp_offset_ms"]
    assert in_response_group(own, sender, message, config) == vector["in_response_group"]


def entry(name: str, sender: str = "bob") -> HistoryEntry:
    """Return a named message."""
    return HistoryEntry(name, None, sender)


def made(**changes: Any) -> Repair:
    """Return alice's buffers."""
    return Repair("alice", RepairConfig(**{**_values(), **changes}), Journal())


def _values() -> dict[str, Any]:
    return {"t_min_ms": 1_000, "t_max_ms": 5_000, "buffer_max": 3}


def test_ask_at_its_time_and_again_until_it_arrives() -> None:
    """A missing message is asked for after its delay, once more after another, and no more then."""
    repair = made()
    repair.missed(entry("m"), 10.0, 0)
    delay = request_delay_ms("alice", "m", CONFIG) / 1000

    assert repair.request_at() == 10.0 + delay
    assert repair.due_requests(10.0) == ()
    assert repair.due_requests(10.0 + delay) == (entry("m"),)
    assert repair.request_at() == 10.0 + 2 * delay

    repair.arrived("m")
    assert (repair.request_at(), repair.due_requests(99.0)) == (None, ())


def test_at_most_three_requests_in_a_message() -> None:
    """`requests_per_message` bounds what one message asks for; the earliest come first."""
    repair = made(buffer_max=10)
    for number in range(5):
        repair.missed(entry(f"m{number}"), 0.0, 0)
    order = sorted((request_delay_ms("alice", f"m{n}", CONFIG), f"m{n}") for n in range(5))

    first = repair.due_requests(5.0)

    assert [one.message_id for one in first] == [name for _, name in order[:3]]


def test_buffer_max_drops_the_furthest() -> None:
    """One more missing message than `buffer_max` makes the one that is asked last give way."""
    repair = made()
    names = [f"m{number}" for number in range(4)]
    for name in names:
        repair.missed(entry(name), 0.0, 0)
    last = max(names, key=lambda name: request_delay_ms("alice", name, CONFIG))

    repair_asked = {one.message_id for _ in range(2) for one in repair.due_requests(5.0)}

    assert repair_asked == set(names) - {last}
    assert repair.evicted == 1


def test_without_a_sender_nobody_can_answer() -> None:
    """An entry that names no sender is not asked for; nor anything when repair is off."""
    repair, off = made(), made(enabled=False)
    repair.missed(HistoryEntry("m"), 0.0, 0)
    off.missed(entry("m"), 0.0, 0)
    off.heard([entry("m")], lambda _: True, 0.0, 0)

    assert (repair.request_at(), off.request_at(), off.answer_at()) == (None, None, None)


def test_somebody_elses_request_puts_ours_off() -> None:
    """Hearing a request for what we miss too begins our waiting anew."""
    repair = made()
    repair.missed(entry("m"), 0.0, 0)
    delay = request_delay_ms("alice", "m", CONFIG) / 1000

    repair.heard([entry("m")], lambda _: False, 0.5, 500)

    assert repair.request_at() == 0.5 + delay


def test_answer_what_we_hold_in_our_turn() -> None:
    """A request for a message we hold is answered after our delay, its sender at once."""
    repair = made()
    repair.heard([entry("m"), entry("gone"), HistoryEntry("nobody")], {"m"}.__contains__, 7.0, 0)
    delay = response_delay_ms("alice", "bob", "m", CONFIG) / 1000

    assert repair.answer_at() == 7.0 + delay
    assert repair.due_answers(7.0 + delay) == ["m"]

    repair.heard([entry("own", "alice")], lambda _: True, 20.0, 0)
    assert repair.due_answers(20.0) == ["own"]


def test_somebody_elses_answer_ends_ours() -> None:
    """Seeing the message means that it has been answered."""
    repair = made()
    repair.heard([entry("m")], lambda _: True, 0.0, 0)
    repair.arrived("m")

    assert (repair.answer_at(), repair.due_answers(99.0)) == (None, [])


def test_requests_cannot_make_us_flood() -> None:
    """One id is answered at most once in half of t_min, however often it is asked for."""
    repair = made()
    answers = 0
    for tick in range(100):
        now = tick / 20
        repair.heard([entry("own", "alice")], lambda _: True, now, 0)
        answers += len(repair.due_answers(now))

    assert answers == 10


def test_answers_are_bounded() -> None:
    """One more planned answer than `buffer_max` makes the furthest give way."""
    repair = made()
    repair.heard([entry(f"m{n}") for n in range(9)], lambda _: True, 0.0, 0)

    assert len(repair.due_answers(5.0)) == 3
    assert repair.evicted == 6
    for n in range(9):
        repair.heard([entry(f"n{n}", "alice")], lambda _: True, 9.0, 0)
        repair.due_answers(9.0)
    assert len(repair._answered) == 3


def test_only_our_group_answers() -> None:
    """With two groups a message is answered by those of its sender's group alone."""
    config = RepairConfig(t_min_ms=1, t_max_ms=5, response_groups=2)
    for name in ("alice", "carol", "dave"):
        repair = Repair(name, config, Journal())
        repair.heard([entry("m")], lambda _: True, 0.0, 0)
        same = hash64(name, "m") % 2 == hash64("bob", "m") % 2
        assert (repair.answer_at() is not None) == same


def test_times_survive_a_restart() -> None:
    """What is to be asked and answered is so after a restart, at the same wall time."""
    journal = Journal()
    repair = Repair("alice", CONFIG, journal)
    repair.missed(entry("m"), 10.0, 1_000)
    repair.missed(entry("found"), 10.0, 1_000)
    repair.heard([entry("h")], lambda _: True, 10.0, 1_000)
    rows = journal.drain()
    assert {row.table for row in rows} == {StateTable.REPAIR_OUT, StateTable.REPAIR_IN}

    again = Repair("alice", CONFIG, journal)
    again.restore([*rows, Row(StateTable.META, b"x", b"y")], {"m": entry("m")}, 500.0, 1_400)

    assert again.request_at() == 500.0 + (request_delay_ms("alice", "m", CONFIG) - 400) / 1000
    answer = response_delay_ms("alice", "bob", "h", CONFIG)
    assert again.answer_at() == 500.0 + max(0, answer - 400) / 1000
    assert Row(StateTable.REPAIR_OUT, b"found", None) in journal.drain()
