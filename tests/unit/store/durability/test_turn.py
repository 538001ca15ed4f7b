"""Whoever waits goes next."""

import threading

import pytest

from luxrelay.store.durability.sync import FairLock


def test_the_waiter_goes_before_the_one_that_releases() -> None:
    """A thread that releases and asks again at once comes after the thread that waited."""
    turn, order = FairLock(), []

    def wait() -> None:
        with turn:
            order.append("waiter")

    waiter = threading.Thread(target=wait)
    with turn:
        waiter.start()
        assert order == []
        while not turn.is_wanted():
            threading.Event().wait(0.001)
    with turn:
        order.append("first")
    waiter.join()

    assert order == ["waiter", "first"]
    assert not turn.is_wanted()


def test_an_error_inside_frees_it() -> None:
    """A fault does not keep the lock."""
    turn = FairLock()
    with pytest.raises(ValueError, match="inside"), turn:
        raise ValueError("inside")

    with turn:
        pass
