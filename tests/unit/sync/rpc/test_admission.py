"""How many streams at once, and for how long."""

from __future__ import annotations

import threading

import pytest

from luxrelay.sync.rpc.admission import StreamGate


def test_admit_up_to_the_bound() -> None:
    """streams_max places; one that is given back can be taken again."""
    gate = StreamGate(2, 60.0, name="gate")

    first = gate.enter(lambda: None)
    second = gate.enter(lambda: None)
    refused = gate.enter(lambda: None)
    assert first is not None
    gate.leave(first)
    third = gate.enter(lambda: None)
    active = gate.active
    gate.close()

    assert second is not None
    assert refused is None
    assert third is not None
    assert active == 2


def test_cancel_what_outlives_its_time() -> None:
    """stream_s: a stream is cancelled once; its place stays taken until its thread is back."""
    gate = StreamGate(1, 0.01, name="gate")
    cancelled = threading.Event()

    ticket = gate.enter(cancelled.set)
    ended = cancelled.wait(10)
    still = gate.enter(lambda: None)
    assert ticket is not None
    gate.leave(ticket)
    again = gate.enter(lambda: None)
    gate.close()

    assert ended
    assert still is None
    assert again is not None


def test_admit_nobody_after_the_close() -> None:
    """A closed gate refuses, and its watcher has ended."""
    gate = StreamGate(1, 60.0, name="gate that closes")
    gate.enter(lambda: None)
    gate.close()

    assert gate.enter(lambda: None) is None
    assert "gate that closes" not in [thread.name for thread in threading.enumerate()]


def test_close_without_a_stream() -> None:
    """A gate nobody passed has no watcher to end."""
    StreamGate(1, 60.0, name="gate").close()


@pytest.mark.slow
def test_renewed_stream_lives_on() -> None:
    """publisher_s counts from the last request: a stream that is used is not cancelled."""
    gate = StreamGate(2, 0.5, name="gate")
    idle, used = threading.Event(), threading.Event()
    gate.enter(idle.set)
    ticket = gate.enter(used.set)
    assert ticket is not None

    while not idle.wait(0.01):
        gate.renew(ticket)
    outlived = not used.is_set()
    ended = used.wait(10)
    gate.renew(ticket)
    gate.close()

    assert outlived
    assert ended
