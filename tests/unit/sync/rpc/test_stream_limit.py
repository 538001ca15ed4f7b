"""How many streams at once, and for how long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from luxrelay.sync.rpc.stream_limit import StreamGate, StreamOwner


def test_admit_up_to_the_bound() -> None:
    """streams_max places; one that is given back can be taken again."""
    gate = StreamGate(2, 60.0, name="gate")

    first, _ = gate.enter(lambda: None)
    second, _ = gate.enter(lambda: None)
    refused, why = gate.enter(lambda: None)
    assert first is not None
    gate.leave(first)
    third, _ = gate.enter(lambda: None)
    active = gate.active
    gate.close()

    assert second is not None
    assert refused is None
    assert (
        why
        == "all 2 streams of this relay are taken, 2 of them by your network; ask again in 1.0 s"
    )
    assert third is not None
    assert active == 2


def test_cancel_what_outlives_its_time() -> None:
    """stream_s: a stream is cancelled once; its place stays taken until its thread is back."""
    gate = StreamGate(1, 0.01, name="gate")
    cancelled = threading.Event()

    ticket, _ = gate.enter(cancelled.set)
    ended = cancelled.wait(10)
    still, _ = gate.enter(lambda: None)
    assert ticket is not None
    gate.leave(ticket)
    again, _ = gate.enter(lambda: None)
    gate.close()

    assert ended
    assert still is None
    assert again is not None


def test_admit_nobody_after_the_close() -> None:
    """A closed gate refuses, and its watcher has ended."""
    gate = StreamGate(1, 60.0, name="gate that closes")
    gate.enter(lambda: None)
    gate.close()

    assert gate.enter(lambda: None) == (None, "this relay is stopping")
    assert "gate that closes" not in [thread.name for thread in threading.enumerate()]


class Crowd:
    """Streams at one gate, by the name of each."""

    def __init__(self, gate: StreamGate) -> None:
        self.gate = gate
        self.ended: list[str] = []
        self.tickets: dict[str, int] = {}

    def come(self, name: str, network: str, *, known: bool = False, share: str = "") -> str:
        """Have a stream begin; return why it may not."""
        holder = StreamOwner(share=share or name, network=network, known=known)
        ticket, why = self.gate.enter(lambda: self.ended.append(name), holder)
        if ticket is not None:
            self.tickets[name] = ticket
        return why


@pytest.fixture
def crowd_of() -> Iterator[Callable[..., Crowd]]:
    """A maker of gates, each with its streams."""
    gates: list[StreamGate] = []

    def make(places: int, **changes: float) -> Crowd:
        gates.append(StreamGate(places, 600.0, name="crowd", **changes))  # type: ignore[arg-type]
        return Crowd(gates[-1])

    yield make
    for gate in gates:
        gate.close()


def test_the_network_that_has_most_gives_its_oldest(crowd_of: Callable[..., Crowd]) -> None:
    """Two more than the newcomer's; then all have their share and the next is refused."""
    crowd = crowd_of(8)
    for number in range(8):
        crowd.come(f"a{number}", "10.1/16")
    for number in range(4):
        assert not crowd.come(f"b{number}", "10.2/16")
        crowd.gate.leave(crowd.tickets[f"a{number}"])

    why = crowd.come("b4", "10.2/16")
    assert crowd.ended == ["a0", "a1", "a2", "a3"]
    assert crowd.gate.crowded == 4
    assert why.startswith("all 8 streams of this relay are taken, 4 of them by your network;")


def test_a_silent_stream_gives_way_to_whoever_comes(crowd_of: Callable[..., Crowd]) -> None:
    """The oldest of those that say nothing; one that speaks stays, of the same network too."""
    crowd = crowd_of(3, silent_s=1e-9)
    for name in ("first", "second", "third"):
        crowd.come(name, "10.1/16")
    assert not crowd.come("newcomer", "10.1/16")
    assert crowd.ended == ["first"]

    spoken = crowd_of(3, silent_s=600.0)
    for name in ("first", "second", "third"):
        spoken.come(name, "10.1/16")
    assert spoken.come("newcomer", "10.1/16")
    assert not spoken.ended


def test_who_is_known_never_gives_way_to_a_stranger(crowd_of: Callable[..., Crowd]) -> None:
    """Silent or not; and takes a stranger's place of however small a network."""
    crowd = crowd_of(2, silent_s=1e-9)
    crowd.come("token", "token:1", known=True)
    crowd.come("other", "token:2", known=True)
    assert crowd.come("stranger", "10.1/16")

    mixed = crowd_of(2)
    mixed.come("token", "token:1", known=True)
    mixed.come("stranger", "10.1/16")
    assert not mixed.come("other", "token:2", known=True)
    assert mixed.ended == ["stranger"]


def test_an_address_above_its_number_takes_nobody_s_place(crowd_of: Callable[..., Crowd]) -> None:
    """It is refused before anybody gives way."""
    crowd = crowd_of(3, share_max=2, silent_s=1e-9)
    crowd.come("first", "10.1/16", share="10.1.0.1")
    crowd.come("second", "10.1/16", share="10.1.0.1")
    crowd.come("other", "10.2/16")

    assert crowd.come("third", "10.1/16", share="10.1.0.1") == (
        "a peer has 2 streams at most; ask again in 1.0 s"
    )
    assert not crowd.ended


def test_threads_on_their_way_back_are_bounded(crowd_of: Callable[..., Crowd]) -> None:
    """A quarter of the places; until one is back, a newcomer is refused."""
    crowd = crowd_of(4, silent_s=1e-9)
    for name in ("a", "b", "c", "d"):
        crowd.come(name, "10.1/16")
    assert not crowd.come("e", "10.1/16")
    assert crowd.come("f", "10.1/16")
    crowd.gate.leave(crowd.tickets["a"])
    assert not crowd.come("f", "10.1/16")


def test_close_without_a_stream() -> None:
    """A gate nobody passed has no watcher to end."""
    StreamGate(1, 60.0, name="gate").close()


@pytest.mark.slow
def test_renewed_stream_lives_on() -> None:
    """publisher_s counts from the last request: a stream that is used is not cancelled."""
    gate = StreamGate(2, 0.5, name="gate")
    idle, used = threading.Event(), threading.Event()
    gate.enter(idle.set)
    ticket, _ = gate.enter(used.set)
    assert ticket is not None

    while not idle.wait(0.01):
        gate.renew(ticket)
    outlived = not used.is_set()
    ended = used.wait(10)
    gate.renew(ticket)
    gate.close()

    assert outlived
    assert ended
