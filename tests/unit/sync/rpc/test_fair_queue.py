"""The fair queue for threads."""

from __future__ import annotations

import threading

import pytest

from luxrelay.errors import SyncUnreachableError
from luxrelay.sync.fairness import FairnessConfig
from luxrelay.sync.rpc.fair_queue import QueuePassage, Turnstile

FREE = FairnessConfig(
    turns_max=1,
    out_bytes_per_s=0,
    in_bytes_per_s=0,
    peer_bytes_per_s=0,
    peer_requests_per_s=0,
    stall_s=0.05,
)


def enter(turnstile: Turnstile, peer: str, cancel: threading.Event | None = None) -> QueuePassage:
    """Return the passage of a new call."""
    passage, why = turnstile.enter(peer, (cancel or threading.Event()).set)
    assert passage is not None, why
    return passage


def test_one_reads_at_a_time() -> None:
    """With one turn, the second thread reads when the first is done."""
    turnstile = Turnstile(FREE, name="test")
    first, second = enter(turnstile, "a"), enter(turnstile, "b")
    read = threading.Event()

    def later() -> None:
        with second.turn():
            read.set()

    with first.turn() as turn:
        turn.read(10)
        thread = threading.Thread(target=later)
        thread.start()
        assert not read.wait(0.01)
    assert read.wait(5)
    thread.join()
    first.close()
    second.close()
    assert turnstile.held_bytes == 0
    turnstile.shut()


def test_a_stalled_reader_is_cancelled() -> None:
    """A call that takes nothing is ended by the watcher, and counted."""
    turnstile = Turnstile(FREE, name="test")
    cancelled = threading.Event()
    passage = enter(turnstile, "a", cancelled)

    with passage.turn() as turn:
        turn.read(10)

    assert cancelled.wait(5)
    assert turnstile.stalled == 1
    passage.close()
    turnstile.shut()


def test_let_a_waiting_thread_go_when_its_call_ends() -> None:
    """A thread that waits for its turn learns that its client has left."""
    turnstile = Turnstile(FREE, name="test")
    first, second = enter(turnstile, "a"), enter(turnstile, "b")
    failed = threading.Event()

    def wait() -> None:
        with pytest.raises(SyncUnreachableError), second.turn():
            raise AssertionError
        failed.set()

    with first.turn():
        thread = threading.Thread(target=wait)
        thread.start()
        second.end()
        assert failed.wait(5)
    thread.join()
    with pytest.raises(SyncUnreachableError), second.turn():
        raise AssertionError
    second.close()
    first.close()
    turnstile.shut()


def test_admit_nobody_after_the_end() -> None:
    """A stopped turnstile lets its threads go and refuses new calls."""
    turnstile = Turnstile(FREE, name="test")
    passage = enter(turnstile, "a")

    turnstile.shut()

    with pytest.raises(SyncUnreachableError), passage.turn():
        raise AssertionError
    assert turnstile.enter("b", threading.Event().set) == (None, "the relay is stopping")


def test_a_fault_in_a_turn_gives_it_back() -> None:
    """A turn that ends in an exception is over like any other."""
    turnstile = Turnstile(FREE, name="test")
    first, second = enter(turnstile, "a"), enter(turnstile, "b")

    with pytest.raises(ZeroDivisionError), first.turn():
        raise ZeroDivisionError
    with second.turn() as turn:
        turn.read(0)
    turnstile.shut()
