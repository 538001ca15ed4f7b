"""Peers of gRPC that vanish without a word: neither side waits for ever, no place is kept."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hanging_ports import Taking

from luxrelay.errors import SyncUnreachableError
from luxrelay.node.subscription_messages import StoreFollowing
from luxrelay.sync import RelaySyncClient, RelaySyncServer, SyncClientConfig, SyncServerConfig
from luxrelay.sync.following import SubscribeWanted

from .conftest import PARENT, Stand, now_ms

pytestmark = pytest.mark.slow
PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0])
"""How a PING frame of HTTP/2 begins that is no answer to one."""
QUIET = SubscribeWanted(namespaces=[PARENT], after=None)


class Wire:
    """Carries bytes between a client and a port until it is cut; then it keeps both ends open."""

    def __init__(self, port: int) -> None:
        """Listen."""
        self._port = port
        self._cut = threading.Event()
        self.asked = 0
        """Pings of clients that were carried."""
        self._relays: list[socket.socket] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self._taking = Taking(self._door, self._admit)

    def cut(self) -> None:
        """Carry nothing any more, and say nothing of it."""
        self._cut.set()

    def close(self) -> None:
        """The ends are closed."""
        self._taking.close()

    def _admit(self, client: socket.socket) -> None:
        relay = self._taking.keep(socket.create_connection(("127.0.0.1", self._port)))
        self._relays.append(relay)
        back = threading.Thread(target=self._carry, args=(relay, client), daemon=True)
        back.start()
        self._carry(client, relay)
        back.join()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        tail = b""  # a ping may come in two parts
        with suppress(OSError):  # closed
            while data := source.recv(65_536):
                if self._cut.is_set():
                    return
                if target in self._relays:
                    self.asked += (tail + data).count(PING)
                    tail = (tail + data)[1 - len(PING) :]
                target.sendall(data)


@pytest.fixture
def over_wire(stand: Stand) -> Iterator[Callable[..., tuple[Wire, RelaySyncServer]]]:
    """A maker of servers behind a wire; the keepalive of the server by keyword."""
    made: list[Any] = []

    def make(**changes: Any) -> tuple[Wire, RelaySyncServer]:
        server = RelaySyncServer(
            stand.store,
            SyncServerConfig(port=0, **changes),
            clock_ms=now_ms,
            followed=StoreFollowing(stand.store, stand.feed, now_ms),
        )
        made.append(lambda: server.stop(0.0))
        wire = Wire(server.start())
        made.append(wire.close)
        return wire, server

    yield make
    for close in reversed(made):
        close()


def test_a_client_notices_a_relay_that_vanished(
    over_wire: Callable[..., tuple[Wire, RelaySyncServer]], eventually: Callable[..., Any]
) -> None:
    """A subscription whose relay is silent behind a dead wire ends as unreachable."""
    wire, _ = over_wire(keepalive_ms=100)  # it takes as many questions as it asks itself
    config = SyncClientConfig(keepalive_ms=100, keepalive_timeout_ms=2_000)
    ended: list[BaseException] = []

    with RelaySyncClient(wire.address, config=config) as client:
        events = client.subscribe(QUIET)
        next(events)  # it is live

        def wait() -> None:
            try:
                next(events)
            except SyncUnreachableError as error:
                ended.append(error)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        eventually(lambda: wire.asked > 3)  # it asks on although it has nothing to send
        wire.cut()

        eventually(lambda: ended, 25.0)  # by default it would take 30
        waiting.join(45)


def test_a_relay_notices_a_client_that_vanished(
    over_wire: Callable[..., tuple[Wire, RelaySyncServer]], eventually: Callable[..., Any]
) -> None:
    """The place of a subscriber behind a dead wire is given back."""
    wire, server = over_wire(keepalive_ms=100, keepalive_timeout_ms=2_000)

    with RelaySyncClient(wire.address) as client:
        events = client.subscribe(QUIET)
        next(events)
        assert server.stats().active == 1
        wire.cut()

        eventually(lambda: server.stats().active == 0, 25.0)
