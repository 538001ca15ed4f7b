"""What the lab's applications count as told, and how loads begin and end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from luxrelay.bus import MsgHeader, NamespaceId
from luxrelay.client import Gap, Message
from netlab.load import RunningLoads, Subscriber
from netlab.measures import RunRecord
from netlab.scenario import LoadPlan

LANE = NamespaceId(bytes(20))


@pytest.fixture
def record() -> RunRecord:
    """A run of two relays in which nothing was told yet."""
    return RunRecord(relays=2)


def told(seq: int, blob: bytes | None, *, completes: bool = False) -> Message:
    """Return what a subscription says of a message."""
    header = MsgHeader(
        namespace_id=LANE,
        seq=seq,
        timestamp=1,
        blob_commitment=bytes(32),
        blob_len=5,
        policy_hash=bytes(32),
    )
    return Message(
        header=header, blob=blob, parent=LANE, received_at=1, expires_at=2, completes=completes
    )


def taken(record: RunRecord, *events: object) -> None:
    """Hand events to the subscriber of relay 1."""
    relay: Any = SimpleNamespace(place=SimpleNamespace(index=1))
    subscriber = Subscriber(relay, record)
    for event in events:
        subscriber._take(event)


def test_a_message_is_told_when_its_payload_comes(record: RunRecord) -> None:
    """A header alone counts for nothing, and its completion is no second time."""
    taken(record, told(1, None))
    assert record.told[1] == {}

    taken(record, told(1, b"hello", completes=True), told(2, b"hello"))

    assert set(record.told[1]) == {(bytes(LANE), 1), (bytes(LANE), 2)}
    assert record.told_twice == [0, 0]


def test_a_message_told_again_is_counted(record: RunRecord) -> None:
    """At its relay, and its first time stays."""
    taken(record, told(1, b"hello"))
    first = dict(record.told[1])
    taken(record, told(1, b"hello"))

    assert record.told_twice == [0, 1]
    assert record.told[1] == first


def test_told_gaps_are_counted_by_their_messages(record: RunRecord) -> None:
    """Both ends are of the gap."""
    taken(record, Gap(LANE, 3, 7, "missing"))

    assert record.gap_messages == [0, 5]


def test_loads_begin_and_end_at_their_times() -> None:
    """One by the clock, one when it has published everything."""
    said: list[str] = []

    class Timed:
        def __init__(self, name: str) -> None:
            self.name, self.done = name, False

        def start(self) -> None:
            said.append(f"{self.name} begins")

        def end(self) -> None:
            said.append(f"{self.name} ends")
            self.done = True

        def wait(self) -> None:
            said.append(f"{self.name} waited for")

    made: dict[str, Timed] = {}

    def publishers(plan: LoadPlan) -> list[Any]:
        made[plan.name] = Timed(plan.name)
        return [made[plan.name]]

    plans = (LoadPlan(name="a", from_s=5, until_s=9), LoadPlan(name="b", messages=3))
    loads = RunningLoads(plans, publishers)

    assert loads.turn(0)
    assert said == ["b begins"]
    made["b"].done = True
    assert loads.turn(4), "one is still to begin"
    assert loads.turn(5)
    assert not loads.turn(9)
    assert said == ["b begins", "a begins", "a ends"]
    loads.end()
    assert said[-1].endswith("waited for")
