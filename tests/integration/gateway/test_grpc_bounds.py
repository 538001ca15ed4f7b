"""The gateway over gRPC keeps its doors open, whatever callers without a token do."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from luxrelay.bus import SigningKey
from luxrelay.client import LaneSigner
from luxrelay.errors import SyncRemoteError, SyncUnreachableError
from luxrelay.node.gateway.tokens import RELOAD_S
from luxrelay.sync import RelaySyncClient, RelaySyncServer, SyncServerConfig
from luxrelay.sync.rpc import relay_gateway_pb2 as pb
from luxrelay.sync.rpc import relay_node_pb2 as node_pb
from luxrelay.sync.rpc import relay_sync_pb2 as sync_pb
from luxrelay.sync.rpc.relay_gateway_pb2_grpc import RelayAdminStub, RelayGatewayStub
from luxrelay.sync.rpc.relay_node_pb2_grpc import RelayNodeStub
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncStub

from .conftest import PARENT, TTL_MS, Stand, now_ms
from .test_gateway_grpc import WAIT, refused, shown

pytestmark = pytest.mark.slow
Maker = Callable[..., Stand]
OPEN = {"grpc_listen": "127.0.0.1:0", "grpc_admin_listen": "127.0.0.1:0"}
HEADS = "/lux.relay.v1.RelaySync/GetNamespaceHead"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class Silent:
    """Calls that send their head and no message."""

    def __init__(self) -> None:
        """There is none."""
        self._end = threading.Event()
        self._lines: list[grpc.Channel] = []
        self.calls: list[Any] = []

    def begin(self, address: str, method: str, count: int, token: str = "") -> None:
        """Begin so many, on connections of their own."""
        about = [("authorization", f"Bearer {token}")] if token else []
        for number in range(count):
            if number % 50 == 0:
                own = [("grpc.use_local_subchannel_pool", 1)]
                self._lines.append(grpc.insecure_channel(address, options=own))
            ask = self._lines[-1].stream_stream(method)
            self.calls.append(ask(self._nothing(), metadata=about))

    def close(self) -> None:
        """End them."""
        self._end.set()
        for line in self._lines:
            line.close()

    def ended(self) -> int:
        """Return how many are over."""
        return sum(call.done() for call in self.calls)

    def _nothing(self) -> Iterator[bytes]:
        self._end.wait(60)
        yield from ()


@pytest.fixture
def silent() -> Iterator[Silent]:
    """A maker of calls without a message."""
    calls = Silent()
    yield calls
    calls.close()


@pytest.fixture
def port_with(stand: Stand) -> Iterator[Callable[..., str]]:
    """A maker of sync ports; returns the address."""
    servers: list[RelaySyncServer] = []

    def make(**changes: Any) -> str:
        config = SyncServerConfig(port=0, **changes)
        servers.append(RelaySyncServer(stand.store, config, clock_ms=now_ms))
        return f"127.0.0.1:{servers[-1].start()}"

    yield make
    for server in servers:
        server.stop(0.0)


@pytest.mark.parametrize("door", ["public", "admin"])
def test_calls_without_token_and_message_hold_no_thread(
    stand_with: Maker, silent: Silent, eventually: Callable[..., Any], door: str
) -> None:
    """Each is refused at once, before its message; who has a token is answered."""
    stand = stand_with(**OPEN, anonymous="nobody")
    address = stand.grpc if door == "public" else stand.grpc_admin
    service = "RelayGateway/ListPeers" if door == "public" else "RelayAdmin/ListBans"

    silent.begin(address, f"/lux.relay.v1.{service}", 100)
    eventually(lambda: silent.ended() == 100)
    with grpc.insecure_channel(address) as line:
        if door == "public":
            RelayGatewayStub(line).ListPeers(pb.ListPeersRequest(), **shown(stand.token("read")))
        else:
            RelayAdminStub(line).ListBans(pb.ListBansRequest(), **shown(stand.token("admin")))

    assert {call.code() for call in silent.calls} == {grpc.StatusCode.UNAUTHENTICATED}


def test_a_call_that_may_wait_does_not_wait_for_ever(
    stand_with: Maker, silent: Silent, eventually: Callable[..., Any]
) -> None:
    """Whoever may read and sends no message is cancelled after the time for a request."""
    stand = stand_with(**OPEN, request_ms=300)

    silent.begin(stand.grpc, HEADS, 3)
    eventually(lambda: silent.ended() == 3)

    assert {call.code() for call in silent.calls} == {grpc.StatusCode.CANCELLED}


def test_one_address_cannot_take_every_thread_of_a_sync_port(
    port_with: Callable[..., str], silent: Silent, eventually: Callable[..., Any]
) -> None:
    """Beyond the bound of an address its oldest silent calls make room."""
    address = port_with(
        workers=16,
        publishers_max=2,
        streams_max=4,
        subscribers_max=4,
        address_waiting_max=64,
        request_wait_s=3_600.0,
    )

    silent.begin(address, HEADS, 40)
    eventually(lambda: silent.ended() == 40 - 16 // 2)
    with RelaySyncClient(address) as client:
        head = client.get_head(PARENT)

    assert head.latest_seq == 0


def test_a_call_that_ends_without_its_request_is_told(stand_with: Maker) -> None:
    """A client that sends no message and says so gets a status of its own fault."""
    stand = stand_with(**OPEN)

    with grpc.insecure_channel(stand.grpc) as line:
        code = refused(lambda: list(line.stream_stream(HEADS)(iter([]), **WAIT)))

    assert code == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "method",
    [
        "lux.relay.v1.RelaySync/GetNamespaceHead",
        "lux.relay.v1.RelaySync/SyncNamespace",
        "lux.relay.v1.RelaySync/Reconcile",
        "lux.relay.v1.RelayNode/Publish",
        "grpc.health.v1.Health/Watch",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
def test_requests_that_cannot_be_read_leave_no_call_behind(
    stand: Stand, eventually: Callable[..., Any], method: str
) -> None:
    """Each ends once, and counts no longer among those that run."""
    config = SyncServerConfig(port=0, calls_max=4)
    server = RelaySyncServer(stand.store, config, clock_ms=now_ms, publisher=stand.doors)
    address = f"127.0.0.1:{server.start()}"

    def heard() -> bool:
        try:
            return client.get_head(PARENT) is not None
        except SyncUnreachableError:  # the last ones still end
            return False

    try:
        with grpc.insecure_channel(address) as line, RelaySyncClient(address) as client:
            ask = line.stream_stream(f"/{method}")
            codes = {refused(lambda: list(ask(iter([b"\xff" * 9]), **WAIT))) for _ in range(12)}
            eventually(heard)
    finally:
        server.stop(0.0)

    assert codes <= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert grpc.StatusCode.INVALID_ARGUMENT in codes


def looks(line: grpc.Channel, **more: Any) -> Any:
    """Begin a stream of reflection that asks once and then stays."""
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
    asked.put(reflection_pb2.ServerReflectionRequest(list_services=""))
    stub = reflection_pb2_grpc.ServerReflectionStub(line)
    return stub.ServerReflectionInfo(iter(asked.get, None), **more)


def test_reflection_needs_a_token_and_is_not_on_the_admin_door(stand_with: Maker) -> None:
    """Who may read may look around; nobody looks around where admin calls are."""
    stand = stand_with(**OPEN, anonymous="nobody")

    with (
        grpc.insecure_channel(stand.grpc) as line,
        grpc.insecure_channel(stand.grpc_admin) as private,
    ):
        told = next(looks(line, **shown(stand.token("read"))))
        codes = [
            refused(lambda: next(looks(line, **WAIT))),
            refused(lambda: next(looks(private, **shown(stand.token("admin"))))),
        ]

    names = {each.name for each in told.list_services_response.service}
    assert "lux.relay.v1.RelayGateway" in names
    assert codes == [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED]


def test_looking_around_is_bounded(
    port_with: Callable[..., str], eventually: Callable[..., Any]
) -> None:
    """An address has two such streams, health-watching ones too; a place comes back."""

    def again() -> bool:
        with suppress(grpc.RpcError):
            next(looks(line, **WAIT))
            return True
        return False

    with grpc.insecure_channel(port_with(look_s=3_600.0)) as line:
        watch = health_pb2_grpc.HealthStub(line).Watch(health_pb2.HealthCheckRequest())
        held = [looks(line), watch]
        for each in held:
            next(each)
        full = refused(lambda: next(looks(line, **WAIT)))
        watch.cancel()
        eventually(again)

    assert full == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_looking_around_is_short(port_with: Callable[..., str]) -> None:
    """Each such stream ends by itself."""
    with grpc.insecure_channel(port_with(look_s=0.3)) as line:
        watch = health_pb2_grpc.HealthStub(line).Watch(health_pb2.HealthCheckRequest(), **WAIT)
        ends = [refused(lambda stream=each: list(stream)) for each in (looks(line, **WAIT), watch)]

    assert ends == [grpc.StatusCode.CANCELLED] * 2


def test_silent_connections_go_soon(stand_with: Maker, eventually: Callable[..., Any]) -> None:
    """`connections_max` and `idle_ms` hold on both listeners."""
    stand = stand_with(**OPEN, connections_max=4, idle_ms=400)
    for address in (stand.grpc, stand.grpc_admin):
        host, _, port = address.rpartition(":")
        lines = [socket.create_connection((host, int(port)), timeout=20) for _ in range(12)]
        for line in lines:
            with suppress(OSError):
                line.sendall(PREFACE)
        for line in lines:  # each ends by itself, or this runs into its timeout
            with suppress(ConnectionError), line:
                while line.recv(65_536):
                    pass
    token = stand.token("read")

    with grpc.insecure_channel(stand.grpc) as line:
        eventually(
            lambda: (
                RelayGatewayStub(line).ListPeers(
                    pb.ListPeersRequest(), wait_for_ready=True, **shown(token)
                )
                is not None
            )
        )


def request_of(signer: LaneSigner, count: int) -> node_pb.PublishRequest:
    """Return a request of so many messages."""
    signed = [signer.sign(b"x", now_ms()) for _ in range(count)]
    return node_pb.PublishRequest(
        items=[
            node_pb.PublishItem(header=m.header, blob=m.blob, parent_id=m.parent) for m in signed
        ]
    )


def test_a_revoked_token_publishes_nothing_more(
    stand_with: Maker, eventually: Callable[..., Any]
) -> None:
    """An open stream is refused with its next request, and nothing of it is stored."""
    stand = stand_with(**OPEN)
    text = stand.token("publish")
    signer = LaneSigner(SigningKey.generate(), PARENT)
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()

    with grpc.insecure_channel(stand.grpc) as line:
        call = RelayNodeStub(line).Publish(iter(requests.get, None), **shown(text))
        requests.put(request_of(signer, 1))
        assert next(call).receipts[0].stored
        stand.tokens.revoke(text.split("_")[1])
        eventually(
            lambda: stand.fetch("/v1/status", Authorization=f"Bearer {text}").status == 401,
            RELOAD_S + 15.0,
        )
        before = stand.store.stats().messages
        requests.put(request_of(signer, 20))
        code = refused(lambda: next(call))

    assert code == grpc.StatusCode.UNAUTHENTICATED
    assert stand.store.stats().messages == before


def test_the_window_is_that_of_the_store(stand_with: Maker) -> None:
    """A head says where the window begins by the node's time to live."""
    stand = stand_with(**OPEN)
    signer = stand.store_line(1)
    before = now_ms()

    with grpc.insecure_channel(stand.grpc) as line:
        head = RelaySyncStub(line).GetNamespaceHead(
            sync_pb.NamespaceHeadRequest(namespace_id=signer.namespace_id), **WAIT
        )

    assert before - TTL_MS <= head.window_start_ms <= now_ms() - TTL_MS


def test_the_bounds_of_http_hold(stand_with: Maker) -> None:
    """Items of a request, messages of a page, heads at once, namespaces of a subscription."""
    stand = stand_with(
        **OPEN, publish_items_max=4, page_messages_max=5, subscription_namespaces_max=2, heads_max=2
    )
    stand.store_line(1)
    stand.store_line(1)
    signer = stand.store_line(9)
    many = [PARENT, *(bytes([number]) * 20 for number in range(2))]
    publish = shown(stand.token("publish"))

    with grpc.insecure_channel(stand.grpc) as line:
        node = RelayNodeStub(line)
        frames = list(
            RelaySyncStub(line).SyncNamespace(
                sync_pb.SyncRequest(namespace_id=signer.namespace_id, max_frame_messages=100),
                **WAIT,
            )
        )
        heads = list(RelaySyncStub(line).ListHeads(sync_pb.ListHeadsRequest(), **WAIT))
        next(node.Subscribe(node_pb.SubscribeRequest(namespaces=many[:2]), **WAIT))
        codes = [
            refused(
                lambda: next(node.Subscribe(node_pb.SubscribeRequest(namespaces=many), **WAIT))
            ),
            refused(lambda: list(node.Publish(iter([request_of(signer, 5)]), **publish))),
        ]

    assert sum(len(frame.batch) for frame in frames) == 5
    assert [bool(head.next_cursor) for head in heads] == [False, True, False]
    assert codes == [grpc.StatusCode.INVALID_ARGUMENT] * 2


def test_a_reader_that_takes_nothing_is_ended(
    stand_with: Maker, eventually: Callable[..., Any]
) -> None:
    """`stall_ms` holds over gRPC as it does over HTTP."""
    stand = stand_with(**OPEN, stall_ms=100)
    signer = LaneSigner(SigningKey.generate(), PARENT)
    stand.publish([signer.sign(bytes(48 * 1024), now_ms()) for _ in range(80)])
    small = [("grpc.http2.bdp_probe", 0)]
    ask = sync_pb.SyncRequest(namespace_id=signer.namespace_id, max_frame_messages=1)

    with grpc.insecure_channel(stand.grpc, options=small) as line:
        call = RelaySyncStub(line).SyncNamespace(ask)
        next(call)
        counters = stand.service._rpc._counters
        eventually(lambda: counters.snapshot().active == 0, 60)
        ended = refused(lambda: list(call))

    assert ended == grpc.StatusCode.CANCELLED


def test_subscriptions_count_for_a_token_or_an_address(stand_with: Maker) -> None:
    """Further connections give an anonymous program no further places; a token has its own."""
    stand = stand_with(**OPEN)
    own = [("grpc.use_local_subchannel_pool", 1)]
    lines = [grpc.insecure_channel(stand.grpc, options=own) for _ in range(3)]
    quiet = node_pb.SubscribeRequest(namespaces=[PARENT])
    try:
        held = []
        for number in range(8):
            held.append(RelayNodeStub(lines[number % 2]).Subscribe(quiet))
            next(held[-1])
        full = refused(lambda: next(RelayNodeStub(lines[2]).Subscribe(quiet, **WAIT)))
        token = shown(stand.token("read"))
        assert next(RelayNodeStub(lines[2]).Subscribe(quiet, **token)) is not None
    finally:
        for line in lines:
            line.close()

    assert full == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_expired_messages_are_for_those_who_rule(stand_with: Maker) -> None:
    """``held`` needs the scope ``admin`` beside the one to read."""
    stand = stand_with(**OPEN)
    signer = stand.store_line(2)

    with RelaySyncClient(stand.grpc) as anybody:
        assert len(anybody.sync_page(signer.namespace_id).messages) == 2
        with pytest.raises(SyncRemoteError, match="scope 'admin'"):
            anybody.sync_page(signer.namespace_id, held=True)
    with (
        RelaySyncClient(stand.grpc, token=stand.token("read")) as reader,
        pytest.raises(SyncRemoteError, match="scope 'admin'"),
    ):
        reader.sync_page(signer.namespace_id, held=True)
    with RelaySyncClient(stand.grpc, token=stand.token("read", "admin")) as ruler:
        assert len(ruler.sync_page(signer.namespace_id, held=True).messages) == 2


def test_long_names_are_refused_at_once(stand_with: Maker) -> None:
    """A peer id or token id of many characters costs the node nothing, over HTTP as well."""
    stand = stand_with(**OPEN)
    text = stand.token("admin")
    long = "2" * 60_000

    with grpc.insecure_channel(stand.grpc_admin) as line:
        admin = RelayAdminStub(line)
        ruler = shown(text)
        calls: list[Callable[[], Any]] = [
            lambda: admin.LiftBan(pb.PeerRequest(peer_id=long), **ruler),
            lambda: admin.Ban(pb.BanRequest(peer_id=long, seconds=1, reason="x"), **ruler),
            lambda: admin.RevokeToken(pb.TokenRequest(id=long[:65]), **ruler),
            lambda: admin.RevokeToken(pb.TokenRequest(id=long[:64]), **ruler),
        ]
        codes = [refused(call) for call in calls]

    absent, wrong = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
    assert codes == [absent, wrong, wrong, absent]
