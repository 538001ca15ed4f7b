"""Calls that wait for their request, and streams that anybody may open."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from luxrelay.sync.rpc.callers import network_of
from luxrelay.sync.rpc.waiting import PendingRequests, ReflectionLimit


def test_a_wait_that_lasts_too_long_is_cancelled() -> None:
    """The reaper cancels each once, also after it has had nothing to do."""
    waiting = PendingRequests(0.05, 10, 10)
    for _ in range(2):
        cancelled = threading.Event()
        with waiting.entered("192.0.2.1", cancelled.set):
            assert cancelled.wait(20)
        assert waiting.active == 0
    waiting.close()


def test_the_oldest_of_an_address_makes_room() -> None:
    """A further call of the same address cancels the oldest, one of another address none."""
    waiting = PendingRequests(3_600.0, 2, 10)
    ended: list[str] = []
    with ExitStack() as stack:
        for address, name in (("a", "1"), ("b", "2"), ("a", "3"), ("b", "4"), ("a", "5")):
            stack.enter_context(waiting.entered(address, lambda name=name: ended.append(name)))
        assert ended == ["1"]
        assert waiting.active == 4
    assert waiting.active == 0
    waiting.close()


def test_many_addresses_share_what_all_may_hold() -> None:
    """A full house lets a newcomer in: the oldest call of the address that has most makes room."""
    waiting = PendingRequests(3_600.0, 3, 4)
    ended: list[str] = []
    with ExitStack() as stack:
        for address, name in (("a", "1"), ("b", "2"), ("b", "3"), ("b", "4"), ("c", "5")):
            stack.enter_context(waiting.entered(address, lambda name=name: ended.append(name)))
        assert ended == ["2"]
        for address, name in (("d", "6"), ("e", "7")):
            stack.enter_context(waiting.entered(address, lambda name=name: ended.append(name)))
        assert ended == ["2", "3", "1"]
        assert waiting.active == 4
    assert waiting.active == 0
    waiting.close()


def test_looks_are_bounded_together_and_for_an_address() -> None:
    """A place that was given back is given again."""
    looks = ReflectionLimit(3, 2, 3_600.0)
    with ExitStack() as stack:
        found = [
            stack.enter_context(looks.entered(address, lambda: None))
            for address in ("a", "a", "a", "b", "c")
        ]
        assert found == [
            "",
            "",
            "this address looks around 2 times, the most at once; ask again in 3600.0 s",
            "",
            "all 3 looks of this relay are taken, 3 of them by your network; ask again in 1.0 s",
        ]
    with looks.entered("a", lambda: None) as why:
        assert not why
    looks.close()


def test_a_look_ends_by_itself() -> None:
    """It is cancelled when its life is over."""
    looks = ReflectionLimit(1, 1, 0.05)
    ended = threading.Event()
    with looks.entered("a", ended.set) as why:
        assert not why
        assert ended.wait(20)
    looks.close()


def test_an_ipv6_network_is_one_caller() -> None:
    """Addresses of one /64 share a bound; an IPv4 address is itself, mapped or not."""
    assert network_of("2001:db8::1") == network_of("2001:db8::2:3") == "2001:db8::"
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8::1")
    assert network_of("::ffff:192.0.2.7") == network_of("192.0.2.7") == "192.0.2.7"
    assert network_of("") == "unknown"
