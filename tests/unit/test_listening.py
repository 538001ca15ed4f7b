"""Queues of a port by source address, and their pace."""

import random
import selectors
import socket
import sys
from collections import Counter
from contextlib import ExitStack

import pytest

from luxrelay.listening import AT_ONCE, QUEUES, AcceptPace, listen_sorted, queues


def test_a_pace_lets_some_come_at_once_and_then_so_many_a_second() -> None:
    """After a rest as many again."""
    pace, now = AcceptPace(10.0), 100.0
    for _ in range(AT_ONCE + 1):
        assert not pace.wait_s(now)
        pace.took(now)
    assert pace.wait_s(now) == pytest.approx(0.1)
    assert not pace.wait_s(now + 0.11)
    pace.pause(now, 5.0)
    assert pace.wait_s(now) == pytest.approx(5.0)


def test_a_slow_machine_takes_fewer_and_a_fast_one_no_more() -> None:
    """So that a flood costs the same share of a core (P34)."""
    slower, now = 1.0, 100.0
    pace = AcceptPace(10.0, slower=lambda: slower)
    for _ in range(2 * AT_ONCE):
        pace.took(now)
    for slower, step_s in ((2.0, 0.2), (1.0, 0.1), (0.5, 0.1)):  # noqa: B007  the lambda reads it
        before_s = pace.wait_s(now)
        pace.took(now)
        assert pace.wait_s(now) - before_s == pytest.approx(step_s)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one queue")
@pytest.mark.parametrize("sources", ["127.{}.0.1", "127.0.{}.1", "127.0.0.{}"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
@pytest.mark.parametrize("seed", [42, 87, 103])  # one round sorts a family badly by each
def test_the_connections_of_an_address_come_to_one_queue(
    host: str, sources: str, seed: int
) -> None:
    """Those of its neighbours mostly to others; all of them on one port."""
    with ExitStack() as stack:
        doors = [
            stack.enter_context(each) for each in listen_sorted(host, 0, 64, random.Random(seed))
        ]
        port = doors[0].getsockname()[1]
        assert len(doors) == queues()
        assert {door.getsockname()[1] for door in doors} == {port}
        selector = stack.enter_context(selectors.DefaultSelector())
        for door in doors:
            selector.register(door, selectors.EVENT_READ)
        homes = []
        for number in range(1, 33):
            source = (sources.format(number), 0)
            for _ in range(5):
                stack.enter_context(
                    socket.create_connection(("127.0.0.1", port), 30, source_address=source)
                )
            came: Counter[int] = Counter()
            while came.total() < 5:
                for key, _ in selector.select(30):
                    assert isinstance(key.fileobj, socket.socket)
                    key.fileobj.accept()[0].close()
                    came[doors.index(key.fileobj)] += 1
            assert len(came) == 1
            homes += came
    assert len(set(homes)) > queues() // 4


def test_a_port_in_use_is_an_error_although_queues_share_theirs() -> None:
    """A second listener joins nobody's port."""
    with ExitStack() as stack:
        doors = [stack.enter_context(each) for each in listen_sorted("127.0.0.1", 0, 8)]
        with pytest.raises(OSError, match="in use"):
            listen_sorted("127.0.0.1", doors[0].getsockname()[1], 8)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one queue")
@pytest.mark.parametrize(("limit", "count"), [(64, 1), (256, 4), (1024, 16), (65_536, QUEUES)])
def test_queues_leave_descriptors_for_connections(
    monkeypatch: pytest.MonkeyPatch, limit: int, count: int
) -> None:
    """Six ports of a node take a tenth of what the process may open, whatever that is."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (limit, limit))
    assert queues() == count


def test_a_system_without_such_programs_has_one_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left open of the attempt."""
    monkeypatch.setattr("luxrelay.listening._ATTACH", 9_999)
    (door,) = listen_sorted("127.0.0.1", 0, 8)
    with door, socket.create_connection(door.getsockname(), 30):
        door.setblocking(True)
        door.accept()[0].close()
