"""A round of background work ends, whatever it waits for, and its failure ends nothing else."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trio

from luxrelay.net.guarded import Faults
from luxrelay.node import rounds as module
from luxrelay.node.rounds import Rounds


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What lets threads go that hang on purpose."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and cuts take a moment."""
    monkeypatch.setattr(module, "LOOK_S", 0.005)
    monkeypatch.setattr(module, "CUT_S", 0.02)


def test_a_round_that_ends_is_told() -> None:
    """Its end is the time from which its age counts."""
    now = [100.0]
    rounds = Rounds(Faults(), clock=lambda: now[0], stall_s=1)
    now[0] = 130.0

    assert trio.run(rounds.run, "catch-up", lambda: None)

    now[0] = 137.0
    assert rounds.ages_s()["catch-up"] == 7.0
    assert rounds.ages_s()["reconcile"] == 37.0
    assert rounds.view()["catch-up"]["rounds"] == 1
    assert rounds.pause_s("catch-up", 0.3) == 0.3


def test_what_a_round_raises_ends_it_alone() -> None:
    """It is counted, and the pause before the next one grows."""
    rounds = Rounds(Faults(), stall_s=1)

    def fails() -> None:
        raise KeyError("not expected")

    for _ in range(3):
        assert not trio.run(rounds.run, "blobs", fails)

    assert rounds.faults.counts() == {"blobs": 3}
    assert rounds.view()["blobs"]["failed"] == 3
    assert rounds.view()["blobs"]["ended_s"] is None
    assert rounds.pause_s("blobs", 0.5) == 4.0
    assert trio.run(rounds.run, "blobs", lambda: None)
    assert rounds.pause_s("blobs", 0.5) == 0.5


def test_a_round_that_stands_still_is_cut(release: threading.Event) -> None:
    """Cutting closes what it waits for, and it ends."""
    rounds = Rounds(Faults(), stall_s=0.5)

    async def run() -> bool:
        with trio.fail_after(20):
            return await rounds.run("reconcile", release.wait, cut=release.set)

    assert not trio.run(run)

    shown = rounds.view()["reconcile"]
    assert (shown["cut"], shown["left_behind"]) == (1, 0)
    assert rounds.hanging() == []


def test_a_thread_that_hangs_is_left_behind(
    release: threading.Event, eventually: Callable[..., object]
) -> None:
    """The next round begins without it; when it comes back after all it counts no longer."""
    rounds = Rounds(Faults(), stall_s=0.02)
    back = threading.Event()

    def hangs() -> None:
        release.wait()
        back.set()

    assert not trio.run(rounds.run, "catch-up", hangs)
    assert rounds.hanging() == ["catch-up (1)"]
    assert trio.run(rounds.run, "catch-up", lambda: None)

    release.set()
    assert back.wait(30)
    eventually(lambda: not rounds.hanging())
    assert rounds.view()["catch-up"]["left_behind"] == 0


def test_threads_left_behind_are_bounded(release: threading.Event) -> None:
    """Beyond left_max the kind rests, and says why."""
    rounds = Rounds(Faults(), stall_s=0.01, left_max=2)
    begun: list[int] = []

    def hangs() -> None:
        begun.append(1)
        release.wait()

    for _ in range(4):
        assert not trio.run(rounds.run, "blobs", hangs)

    assert len(begun) == 2
    assert rounds.hanging() == ["blobs (2)"]
    assert rounds.faults.counts() == {"blobs": 2}


def test_a_round_that_moves_on_may_be_long() -> None:
    """Progress counts, not the time."""
    rounds = Rounds(Faults(), stall_s=0.05)
    looks = [0]

    def progress() -> int:
        looks[0] += 1
        return looks[0]

    def works() -> None:
        pause = threading.Event()
        while looks[0] < 40:
            pause.wait(0.001)

    assert trio.run(partial(rounds.run, "catch-up", works, progress=progress))
