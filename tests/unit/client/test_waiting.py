"""A node is waited for as long as it brings something, and no longer."""

import socket
import threading
from typing import Any

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import Ping, TextMessage

from luxrelay.bus import NamespaceId
from luxrelay.client import Checks, RelayClient, Retry, Subscribe, subscribe
from luxrelay.client.session import Began, StreamSession
from luxrelay.client.waiting import BYTES_PER_S, LOOKUPS_MAX, PAID_BYTES_MAX, Patience, addresses_of
from luxrelay.errors import ClientRefusedError, ClientUnreachableError


class Waits:
    """A patience whose clock moves by what a wait is said to take."""

    def __init__(self, timeout_s: float) -> None:
        self.now = 0.0
        self.patience = Patience(timeout_s, "node:1", clock=lambda: self.now)

    def wait(self, seconds: float, count: int = 0) -> float:
        """Wait, then have ``count`` bytes; returns how long it might have taken."""
        left = self.patience.waits()
        self.now += seconds
        self.patience.moved(count)
        return left

    def drip(self, count: int) -> None:
        """Wait a second at a time for so many bytes each."""
        for _ in range(20_000):
            self.wait(1.0, count)


def test_bytes_that_drip_do_not_pay_for_the_time_they_take() -> None:
    """A byte every second ends with the step's own time."""
    waits = Waits(10.0)
    waits.patience.begin("the answer")

    with pytest.raises(ClientUnreachableError) as caught:
        waits.drip(1)

    assert 10.0 <= waits.now <= 11.0
    assert "the answer was waited for 10 s" in str(caught.value)
    assert "--timeout-s" in str(caught.value)


def test_a_large_answer_over_a_slow_line_has_its_time() -> None:
    """One second for each 16 KiB, beside the step's own; there is an end to that as well."""
    waits = Waits(10.0)
    for _ in range(1_000):
        waits.wait(1.0, BYTES_PER_S)

    with pytest.raises(ClientUnreachableError):
        waits.drip(BYTES_PER_S)
    assert waits.now <= 11.0 + PAID_BYTES_MAX / BYTES_PER_S


def test_only_waiting_counts_and_each_step_begins_anew() -> None:
    """A caller may take its time between two frames."""
    waits = Waits(10.0)
    waits.wait(6.0)
    waits.now += 1_000.0
    assert waits.wait(3.0) == pytest.approx(4.0)
    waits.patience.begin("the next answer")
    assert waits.wait(9.0) == pytest.approx(10.0)
    waits.patience.begin("a frame", 30.0)
    assert waits.wait(0.0) == pytest.approx(30.0)


def test_a_literal_address_is_not_looked_up() -> None:
    """It needs no resolver, so there is nothing to wait for."""
    assert addresses_of("127.0.0.1", 1, 0.0)[0][-1] == ("127.0.0.1", 1)
    assert addresses_of("::1", 1, 0.0)[0][-1][:2] == ("::1", 1)


def test_a_resolver_that_hangs_is_left_and_there_is_an_end_to_that() -> None:
    """The caller has its error in time; beyond so many lookups no further one is begun."""
    answered = threading.Event()

    def look_up(*_: Any, **__: Any) -> list[Any]:
        answered.wait(60)
        return []

    for _ in range(LOOKUPS_MAX):
        with pytest.raises(TimeoutError):
            addresses_of("name", 1, 0.0, look_up)
    with pytest.raises(OSError, match="lookups of names hang"):
        addresses_of("name", 1, 0.0, look_up)
    answered.set()
    ended = threading.Event()
    for _ in range(1_000):
        try:
            addresses_of("name", 1, 60.0, look_up)
        except OSError:
            ended.wait(0.01)
        else:
            break
    else:
        pytest.fail("the places do not come back")


def test_pings_are_no_answer_to_a_subscription() -> None:
    """Once it was answered, they are signs of life."""
    node = Connection(ConnectionType.SERVER)
    session = StreamSession(b"", Checks(), "node:1")
    session.subscribe(Subscribe(namespaces=[NamespaceId(bytes(20))]), {})

    session.receive(node.send(Ping()))
    assert session.progress == 0
    (began,) = session.receive(node.send(TextMessage('{"type": "subscribed", "positions": {}}')))
    assert began == Began({})
    assert session.progress == 1
    session.receive(node.send(Ping()))
    assert session.progress == 2


def test_a_subscription_that_never_comes_about_is_given_up() -> None:
    """After its time for the first contact, however often it was tried."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"  # closed below: nobody is there
    tries = [0]

    def lost(error: ClientUnreachableError | ClientRefusedError) -> None:
        tries[0] += 1
        if tries[0] > 1_000:
            raise AssertionError("it goes on for ever") from error

    retry = Retry(first_s=0.001, most_s=0.001, first_contact_s=0.05)
    wanted = Subscribe(namespaces=[NamespaceId(bytes(20))])
    with RelayClient(address) as client, pytest.raises(ClientUnreachableError):
        list(subscribe(client, wanted, retry=retry, lost=lost))
