"""Connections to a port that speaks gRPC: who is let in, how fast, and who pays for calls."""

from __future__ import annotations

import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from luxrelay.listening import AcceptPace
from luxrelay.sync import SyncServerConfig
from luxrelay.sync.arrivals import ArrivalsConfig
from luxrelay.sync.cost import CostConfig, Price
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.entrance import Entrance, name_of, place_of
from luxrelay.sync.rpc.metering import SharedMeter
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncStub
from luxrelay.sync.rpc.service import RelaySyncServer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


@pytest.fixture
def port_of(harbour: Any) -> Iterator[Callable[..., tuple[RelaySyncServer, int]]]:
    """A maker of sync ports."""
    with ExitStack() as stack:

        def make(**changes: Any) -> tuple[RelaySyncServer, int]:
            meter = changes.pop("meter", None)
            server = RelaySyncServer(
                harbour.store(),
                SyncServerConfig(port=0, **changes),
                clock_ms=lambda: harbour.base_ms,
                meter=meter,
            )
            stack.callback(server.stop, 0.0)
            return server, server.start()

        yield make


def ask(port: int, source: str = "127.0.0.1") -> None:
    """Make one call on a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"{source}:{port}", options=options) as channel:
        RelaySyncStub(channel).GetNamespaceHead(
            pb.NamespaceHeadRequest(namespace_id=bytes(20)), timeout=30, wait_for_ready=True
        )


@pytest.mark.trial
def test_connections_that_say_nothing_never_reach_grpc(
    port_of: Callable[..., tuple[RelaySyncServer, int]], eventually: Callable[..., Any]
) -> None:
    """They cost an accept each, are charged nothing, and leave the port as it was."""
    meter = SharedMeter(CostConfig())
    server, port = port_of(meter=meter)
    for _ in range(200):
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
    ask(port)

    assert meter.stats().strangers_us < 20_000, "one connection and one call"
    eventually(lambda: server.stats().connections <= 1)


@pytest.mark.trial
def test_one_address_that_keeps_connecting_does_not_shut_the_port(
    port_of: Callable[..., tuple[RelaySyncServer, int]],
) -> None:
    """Silent ones give way to whoever comes, and the one that makes calls stays."""
    server, port = port_of(connections_max=8)
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        ask(port)
        assert server.stats().connections_crowded >= 42


@pytest.mark.trial
def test_an_address_above_its_rate_is_let_in_at_its_pace(
    port_of: Callable[..., tuple[RelaySyncServer, int]],
) -> None:
    """Two at once and fifty a second: twelve take a fifth of a second, and all are answered."""
    _, port = port_of(address_connections_per_s=50, address_connections_burst=2)
    began = time.monotonic()
    for _ in range(12):
        ask(port)
    assert time.monotonic() - began >= 0.19


@pytest.mark.trial
def test_an_address_far_above_its_rate_is_refused(
    port_of: Callable[..., tuple[RelaySyncServer, int]], eventually: Callable[..., Any]
) -> None:
    """Those that would wait more than ten seconds are closed, and counted."""
    server, port = port_of(address_connections_per_s=1, address_connections_burst=1)
    with ExitStack() as stack:
        for _ in range(30):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            line.sendall(PREFACE)
        eventually(lambda: server.stats().connections_refused >= 10)


@pytest.mark.trial
@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"\0\0\0\xfa\0\0\0\0\1", id="unknown"),
        pytest.param(b"\0\0\5\2\0\0\0\0\1" + bytes(5), id="priority"),
        pytest.param(b"\0\0\4\x08\0\0\0\0\0\0\0\0\1", id="window"),
    ],
)
def test_frames_that_nobody_asked_for_are_read_at_the_pace_of_their_sender_s_budget(
    port_of: Callable[..., tuple[RelaySyncServer, int]], frame: bytes
) -> None:
    """A stranger that owes is not read from, so that TCP stops it; gRPC never sees the rest."""
    meter = SharedMeter(CostConfig(stranger_us_per_s=1_000, stranger_burst_us=20_000))
    _, port = port_of(meter=meter)
    flood = frame * 10_000
    sent, most = 0, 32 * 1024 * 1024
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        line.sendall(PREFACE)
        line.setblocking(False)
        with suppress(ConnectionError):  # gRPC may have had enough first
            while sent < most and select.select([], [line], [], 2.0)[1]:
                sent += line.send(flood[sent % len(frame) :])
    assert sent < most
    assert meter.stats().strangers_us > 20_000


@pytest.mark.trial
def test_a_stream_of_tiny_pieces_is_charged_read_by_read(
    port_of: Callable[..., tuple[RelaySyncServer, int]], eventually: Callable[..., Any]
) -> None:
    """Each read costs, however little comes: begun and cancelled calls arrive a frame at a time."""
    config = CostConfig(stranger_us_per_s=1_000_000, stranger_burst_us=10_000_000)
    meter = SharedMeter(config)
    _, port = port_of(meter=meter)
    frames = 200
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.sendall(PREFACE)
        before = meter.stats().strangers_us
        line.recv(4_096)
        for _ in range(frames):  # settings that are acknowledged were read, and no others with them
            line.sendall(PREFACE[-9:])
            assert line.recv(4_096)
    eventually(lambda: meter.stats().strangers_us - before >= (frames - 2) * Price.PIECE, 30)


@pytest.mark.trial
def test_calls_that_are_cancelled_or_refused_are_charged(
    port_of: Callable[..., tuple[RelaySyncServer, int]], eventually: Callable[..., Any]
) -> None:
    """A caller that owes pays for being told so, and for what it has given up."""
    config = CostConfig(stranger_us_per_s=1_000, stranger_burst_us=5_000, wait_max_s=0.01)
    meter = SharedMeter(config)
    _, port = port_of(meter=meter)
    own = [("grpc.use_local_subchannel_pool", 1)]
    request = pb.NamespaceHeadRequest(namespace_id=bytes(20))
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=own) as channel:
        call = RelaySyncStub(channel).GetNamespaceHead
        while not meter.stats().refused:
            with suppress(grpc.RpcError):
                call(request, timeout=30)
        first = meter.stats()
        while (now := meter.stats()).refused < first.refused + 4:
            with suppress(grpc.RpcError):
                call(request, timeout=30)
        assert now.strangers_us - first.strangers_us > 4 * 0.9 * Price.REFUSED
        for _ in range(50):
            call.future(request).cancel()
        eventually(lambda: meter.stats().strangers_us > now.strangers_us)


def test_a_connection_is_charged_to_the_address_that_it_comes_from(
    port_of: Callable[..., tuple[RelaySyncServer, int]],
) -> None:
    """The entrance stands between, and the meter still sees the client."""
    config = CostConfig(stranger_us_per_s=1, stranger_burst_us=1, wait_max_s=0.01)
    meter = SharedMeter(config)
    _, port = port_of(meter=meter)
    with pytest.raises(grpc.RpcError) as caught:
        ask(port)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "the address 127.0.0.1 costs more" in str(caught.value.details())


def test_the_folder_of_the_inner_socket_is_private_and_goes_with_the_port(
    port_of: Callable[..., tuple[RelaySyncServer, int]],
) -> None:
    """Nobody else of this machine reaches gRPC beside the entrance."""
    server, port = port_of()
    ask(port)
    entrance = server._entrance
    assert entrance is not None
    folder = Path(entrance.inner.removeprefix("unix:")).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.getuid()
    server.stop(0.0)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:8.8.8.8", "8.8.8.8"),
        ("2001:db8::1", "2001:db8::1"),
        ("fe80::1%lo", "fe80::1"),
    ],
)
def test_a_name_holds_address_and_port(host: str, shown: str) -> None:
    """And comes back from what gRPC shows."""
    assert place_of(name_of(host, 65_535)) == (shown, "65535")


@pytest.mark.parametrize("name", ["", "grpc", "7f0000010", "zz000001ffff"])
def test_another_name_is_nobody(name: str) -> None:
    """An empty address pays with all whose address is not known."""
    assert place_of(name) == ("", "")


def test_a_port_that_closes_while_its_queues_are_looked_at_closes_all_of_them() -> None:
    """Whenever another thread says so: what was passed before is closed as well."""
    entrance = Entrance(ArrivalsConfig(), accepts_per_s=1_000.0)
    port = entrance.listen("127.0.0.1", 0)
    sockets, told = list(entrance._listeners), threading.Event()

    class Ends(AcceptPace):
        """Has the port close in the middle."""

        def wait_s(self, now: float) -> float:
            entrance.shut()
            told.set()
            return super().wait_s(now)

    entrance._listeners[sockets[len(sockets) // 2]] = Ends(1_000.0)
    entrance.start()
    assert told.wait(30)
    entrance.close()
    assert port
    assert [each.fileno() for each in sockets] == [-1] * len(sockets)
