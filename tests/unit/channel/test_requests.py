"""How a call of `send` ends."""

from __future__ import annotations

import itertools

import pytest

from luxrelay.channel.events import ReliableSendId, RequestId
from luxrelay.channel.requests import RequestChange, RequestOutcome, Requests, SegmentRequest
from luxrelay.channel.state import Journal, Row, StateTable

REQUEST = ReliableSendId("a" * 32)
OTHER = ReliableSendId("b" * 32)


def made(*ids: str) -> Requests:
    """Return requests with one of these segments."""
    requests = Requests(Journal())
    requests.add(REQUEST, ids)
    return requests


def test_dispatched_then_acknowledged() -> None:
    """All segments dispatched is told once, all acknowledged once, then the request is gone."""
    requests = made("x", "y")

    assert requests.dispatched("x") is None
    assert requests.dispatched("y") == RequestChange(REQUEST, RequestOutcome.DISPATCHED)
    assert requests.dispatched("y") is None
    assert requests.acknowledged("x") == []
    assert requests.acknowledged("y") == [RequestChange(REQUEST, RequestOutcome.ACKNOWLEDGED)]
    assert (len(requests), requests.acknowledged("y"), requests.failed("y", "late")) == (
        0,
        [],
        None,
    )


@pytest.mark.parametrize("order", [*itertools.permutations(["d:x", "d:y", "a:x", "a:y"])])
def test_every_order_tells_each_once(order: tuple[str, ...]) -> None:
    """Whatever order receipts and acknowledgements come in, dispatched is told before the end."""
    requests = made("x", "y")
    told = []
    for step in order:
        kind, name = step.split(":")
        if kind == "d":
            change = requests.dispatched(name)
            told += [change] if change else []
        else:
            told += requests.acknowledged(name)

    assert [one.outcome for one in told] == [RequestOutcome.DISPATCHED, RequestOutcome.ACKNOWLEDGED]
    assert len(requests) == 0


def test_one_failure_ends_the_request() -> None:
    """A segment given up ends the request, names the others, and nothing follows."""
    requests = made("x", "y", "z")
    requests.dispatched("x")

    change = requests.failed("x", "nobody")

    assert change == RequestChange(REQUEST, RequestOutcome.UNACKNOWLEDGED, "nobody", ("y", "z"))
    assert requests.failed("y", "again") is None
    assert requests.dispatched("y") is None
    assert requests.acknowledged("z") == []
    assert REQUEST not in requests


def test_failure_before_dispatch_says_so() -> None:
    """A segment that never went out ends the request as undispatched."""
    change = made("x").failed("x", "refused")

    assert change is not None
    assert change.outcome is RequestOutcome.UNDISPATCHED


def test_requests_survive_a_restart() -> None:
    """What is open is so after a restart, with what was dispatched and acknowledged."""
    journal = Journal()
    requests = Requests(journal)
    requests.add(REQUEST, ["x", "y"])
    requests.add(OTHER, ["z"])
    requests.dispatched("x")
    requests.dispatched("y")
    requests.acknowledged("x")
    rows = journal.drain()
    kept = [row for row in rows if row.value is not None]
    assert {row.key for row in kept} == {b"y", b"z"}

    again = Requests(journal)
    for row in (*kept, Row(StateTable.META, b"y", b"other")):
        again.restore(row)

    assert (again.progress(REQUEST), again.index("y"), again.index("z")) == (1, 1, 0)
    assert again.dispatched("y") is None
    assert again.acknowledged("y") == [RequestChange(REQUEST, RequestOutcome.ACKNOWLEDGED)]
    assert (len(again), again.progress(REQUEST)) == (1, 0)


def test_segments_are_known_in_order_and_for_a_while() -> None:
    """Each tells what became of it, also after the end, until newer ends push it out."""
    requests = Requests(Journal(), segments_remembered_max=3)
    requests.add(REQUEST, ["x", "y"])
    requests.dispatched("y")
    requests.acknowledged("x")
    shown = [
        SegmentRequest(RequestId("x"), dispatched=True, acknowledged=True),
        SegmentRequest(RequestId("y"), dispatched=True, acknowledged=False),
    ]

    assert list(requests.segments_of(REQUEST)) == shown
    requests.failed("y", "late")
    assert list(requests.segments_of(REQUEST)) == shown
    assert requests.open_ids == ()
    requests.add(OTHER, ["z", "w"])
    assert requests.open_ids == (OTHER,)
    requests.acknowledged("w")
    requests.acknowledged("z")
    assert requests.segments_of(REQUEST) == ()
    assert [each.request_id for each in requests.segments_of(OTHER)] == ["z", "w"]


def test_segments_of_an_earlier_run_are_those_that_are_left() -> None:
    """In the order of the request, whatever the order of the rows."""
    journal = Journal()
    requests = Requests(journal)
    requests.add(REQUEST, ["c", "b", "a"])
    requests.acknowledged("b")
    rows = sorted(journal.drain(), key=lambda row: row.key)
    restored = Requests(Journal())
    for row in rows:
        restored.restore(row)

    assert [each.request_id for each in restored.segments_of(REQUEST)] == ["c", "a"]
