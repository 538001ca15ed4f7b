"""An address without a token costs a node what its configuration allows, at every door."""

from __future__ import annotations

import base64
import contextlib
import gc
import http.client
import json
import os
import queue
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from luxrelay.bus import (
    MsgHeader,
    SignatureScheme,
    SigningKey,
    lane,
    sha3_commitment,
    topic_namespace,
)
from luxrelay.bus.policy import default_policy
from luxrelay.sync.rpc import relay_node_pb2 as node_pb
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.relay_node_pb2_grpc import RelayNodeStub
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncStub
from luxrelay.text import parse_json

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

RANGES = 65_535
TINY = {
    "skip": b"\x02\x00\x00",
    "fp": b"\x02\x00\x01" + b"\x07" * 16,
    "list0": b"\x02\x00\x02\x00",
    "prefix": b"\x02\x20" + b"\x80" * 32 + b"\x00",
}
"""A range that says next to nothing, by its kind."""
BURST_S = 0.2
"""CPU time that the node of these tests gives an address at once, seconds."""
RATE = 0.02
"""And of one second afterwards."""


@pytest.fixture
def metered(new_node: Callable[[str], NodeProcess]) -> NodeProcess:
    """A node whose budget for strangers is used up soon."""
    node = new_node("metered")
    node.sections["sync"] |= {"stranger_ms_per_s": 20, "stranger_burst_ms": 200}
    node.sections["gateway"] = {
        "listen": "127.0.0.1:0",
        "admin_listen": "",
        "requests_per_s": 10**6,
    }
    return node


def cpu_s(node: NodeProcess) -> float:
    """Return the CPU time of the node's process, seconds."""
    assert node.process is not None
    text = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")


def charged_s(place: str) -> float:
    """Return what strangers were charged so far, seconds."""
    return metric(place, "luxrelay_cost_strangers_seconds")


def metric(place: str, name: str) -> float:
    """Return one number of the node's metrics."""
    line = http.client.HTTPConnection(place, timeout=30)
    line.request("GET", "/metrics")
    text = line.getresponse().read().decode()
    line.close()
    return float(next(each for each in text.splitlines() if each.startswith(name + " ")).split()[1])


def reconcile(address: str, payload: bytes, until: float) -> tuple[int, str]:
    """Send a message again and again; return how often it was answered, and the refusal."""
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    waiting.put(pb.ReconcileRequest(method=pb.RECONCILE_METHOD_RANGES, payload=payload))
    answered = 0
    with grpc.insecure_channel(address) as channel:
        try:
            for _ in RelaySyncStub(channel).Reconcile(iter(waiting.get, None), timeout=60):
                answered += 1
                if time.monotonic() > until:
                    return answered, ""
                waiting.put(pb.ReconcileRequest(payload=payload))
        except grpc.RpcError as error:
            return answered, f"{error.code().name} {error.details()}"
        finally:
            waiting.put(None)
    return answered, ""


@pytest.mark.trial
@pytest.mark.parametrize("kind", TINY)
def test_messages_of_tiny_ranges_cost_their_sender_its_budget(
    metered: NodeProcess, kind: str
) -> None:
    """191 KiB that cost 360 ms each: the address waits, or is refused with the reason and when."""
    place = metered.start()
    payload = b"\x61" + TINY[kind] * RANGES
    began, before = time.monotonic(), cpu_s(metered)
    whys: set[str] = set()
    while not (
        metric(place.http, "luxrelay_cost_refused_total")
        or metric(place.http, "luxrelay_cost_waited_total") >= 3
    ):
        whys.add(reconcile(place.sync, payload, time.monotonic() + 2)[1])
        assert time.monotonic() < began + 120, whys
    for why in whys:
        if "ask again" in why:
            assert "the address 127.0.0.1 costs more than 20 ms of CPU time a second" in why
    took = time.monotonic() - began
    # One message beyond the burst may have been answered; before, three of them cost a second.
    assert cpu_s(metered) - before < BURST_S + RATE * took + 1.5


@pytest.mark.trial
def test_calls_of_every_kind_are_paid_from_one_budget(metered: NodeProcess) -> None:
    """What pages cost over HTTP is missing at the sync port: one address, one meter."""
    place = metered.start()
    host = str(place.gateway)
    line = http.client.HTTPConnection(host, timeout=30)
    refused = None
    for _ in range(5_000):
        line.request("GET", "/v1/status")
        answer = line.getresponse()
        text = answer.read()
        if answer.status == 429:
            refused = answer, text
            break
    line.close()
    assert refused is not None
    assert refused[0].headers["Retry-After"]
    assert b"ask again in" in refused[1]

    with grpc.insecure_channel(place.sync) as channel:
        stub = RelaySyncStub(channel)
        codes = set()
        for _ in range(200):
            try:
                stub.GetNamespaceHead(pb.NamespaceHeadRequest(namespace_id=bytes(20)), timeout=30)
            except grpc.RpcError as error:
                codes.add(error.code())
                break
            if metric(place.http, "luxrelay_cost_waited_total"):
                break
    waited = metric(place.http, "luxrelay_cost_waited_total")
    assert waited or codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}


@pytest.mark.trial
def test_dense_json_costs_its_sender_its_budget(
    metered: NodeProcess, eventually: Callable[..., Any]
) -> None:
    """A message of lists costs a thousand times its frames; its sender waits for the next."""
    place = metered.start()
    host, _, port = str(place.gateway).rpartition(":")
    text = b'{"type":[' + b"[]," * 130_000 + b"[]]}"
    message = b"\x81\xff" + len(text).to_bytes(8) + bytes(4) + text
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(
            f"GET /v1/stream?namespace={bytes(20).hex()} HTTP/1.1\r\nHost: {host}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        received = b""
        gc.disable()  # rounds over all that this process has loaded are not the node's cost
        began = time.thread_time()
        parse_json(text)
        parsing_s = time.thread_time() - began
        gc.enable()
        before = charged_s(place.http)
        sock.sendall(message)
        while b"gateway.request" not in received:
            received += sock.recv(4096)
    # Its frames cost a few milliseconds; the account may be settled after the answer.
    eventually(lambda: charged_s(place.http) - before > parsing_s / 4)


@pytest.mark.trial
def test_a_page_costs_what_its_work_does(metered: NodeProcess) -> None:
    """Messages that are read and put together are charged beside the call, to the same address."""
    place = metered.start()
    line = http.client.HTTPConnection(str(place.gateway), timeout=30)
    path = f"/v1/namespaces?limit=1000&parent={bytes(20).hex()}"
    for _ in range(10):
        line.request("GET", path)
        assert line.getresponse().read()
    line.close()
    # Ten calls cost 1.2 ms each before anything is done for them.
    assert charged_s(place.http) > 10 * 0.0012 + 10 * 0.00001


@pytest.mark.trial
def test_a_flood_of_pongs_is_read_at_the_pace_of_its_budget(metered: NodeProcess) -> None:
    """Empty frames are charged before they are parsed; the sender's own socket fills up."""
    place = metered.start()
    host, _, port = str(place.gateway).rpartition(":")
    key = base64.b64encode(os.urandom(16)).decode()
    with socket.create_connection((host, int(port)), timeout=1) as sock:
        sock.sendall(
            f"GET /v1/stream HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        assert b" 101 " in sock.recv(4096)
        before, began, sent = cpu_s(metered), time.monotonic(), 0
        flood = b"\x8a\x80\0\0\0\0" * 10_922
        stuck = False
        while not stuck and time.monotonic() < began + 60:
            try:
                sent += sock.send(flood)
            except TimeoutError:
                stuck = True
        took = time.monotonic() - began
    assert stuck, "the node read on"
    assert charged_s(place.http) >= BURST_S
    assert cpu_s(metered) - before < BURST_S + RATE * took + 1.0


@pytest.mark.trial
def test_reflection_finds_a_method(metered: NodeProcess) -> None:
    """A tool that describes a call gets the file of its service."""
    place = metered.start()

    def ask(name: str) -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)

    with grpc.insecure_channel(place.sync) as channel:
        stub = ServerReflectionStub(channel)
        for name, there in (
            ("lux.relay.v1.RelaySync", True),
            ("lux.relay.v1.RelaySync.Reconcile", True),
            ("lux.relay.v1.RelayNode.Publish", True),
            ("lux.relay.v1.RelaySync.Nothing", False),
            ("Nothing", False),
        ):
            answer = next(iter(stub.ServerReflectionInfo(ask(name), timeout=30)))
            assert bool(answer.file_descriptor_response.file_descriptor_proto) is there, name


@pytest.mark.trial
def test_looking_around_is_charged_question_by_question(metered: NodeProcess) -> None:
    """One stream of reflection asks no faster than its address may cost."""
    place = metered.start()
    ended = time.monotonic() + 120

    def ask() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        while time.monotonic() < ended:
            yield reflection_pb2.ServerReflectionRequest(list_services="")

    with grpc.insecure_channel(place.sync) as channel:
        answers = ServerReflectionStub(channel).ServerReflectionInfo(ask(), timeout=120)
        answered = 0
        with contextlib.suppress(grpc.RpcError):
            for _ in answers:
                answered += 1
                if metric(place.http, "luxrelay_cost_waited_total"):
                    break
        answers.cancel()
    # 0.2 s at once and 0.02 a second, 1.2 ms a question.
    assert metric(place.http, "luxrelay_cost_waited_total") >= 1
    assert answered < 1_000


@pytest.mark.trial
def test_the_log_is_json_line_by_line_whatever_comes_to_the_grpc_port(
    metered: NodeProcess,
) -> None:
    """Bytes that are no HTTP/2, half a preface and a broken frame leave no line of gRPC's own."""
    place = metered.start()
    host, _, port = place.sync.rpartition(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for data in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n", preface + b"\xff" * 64):
        with socket.create_connection((host, int(port)), timeout=5) as sock:
            sock.sendall(data)
            with contextlib.suppress(OSError):
                sock.recv(4_096)
    with grpc.insecure_channel(place.sync) as channel:
        RelaySyncStub(channel).GetNamespaceHead(
            pb.NamespaceHeadRequest(namespace_id=bytes(20)), timeout=30
        )
    assert metered.stop() == 0
    lines = (metered.folder / "log").read_text().splitlines()
    assert lines
    for line in lines:
        assert isinstance(json.loads(line), dict), line


@pytest.fixture
def taking(new_node: Callable[[str], NodeProcess]) -> NodeProcess:
    """A node that takes messages from strangers, with the budget of the defaults."""
    node = new_node("taking")
    node.sections["sync"] |= {"allow_publish": True}
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    return node


def signed(node: NodeProcess, key: SigningKey, seqs: range, *, good: bool = True) -> Any:
    """Return a request with messages of a lane."""
    parent = topic_namespace(node.topics[0])
    items = []
    for seq in seqs:
        header = key.sign_header(
            MsgHeader(
                namespace_id=lane(parent, key.public_field),
                seq=seq,
                timestamp=time.time_ns() // 1_000_000,
                blob_commitment=sha3_commitment(b"x"),
                blob_len=1,
                policy_hash=default_policy(parent).policy_hash,
            )
        ).encode()
        header = header if good else header[:-1] + bytes([header[-1] ^ 1])
        items.append(node_pb.PublishItem(header=header, blob=b"x", parent_id=parent))
    return node_pb.PublishRequest(items=items)


@pytest.mark.trial
@pytest.mark.parametrize("door", ["WebSocket", "gRPC"])
def test_reads_behind_a_gap_are_paid_by_who_waits_for_it(
    taking: NodeProcess, eventually: Callable[..., Any], door: str
) -> None:
    """Each message makes the node read the page behind the gap again for every subscriber."""
    place = taking.start()
    key = SigningKey.from_seed(SignatureScheme.ED25519, b"\7" * 32)
    gapped = lane(topic_namespace(taking.topics[0]), key.public_field)
    with contextlib.ExitStack() as stack:
        channel = stack.enter_context(grpc.insecure_channel(place.sync))
        stub = RelayNodeStub(channel)
        list(stub.Publish(iter([signed(taking, key, range(3, 131))]), timeout=60))
        list(stub.Publish(iter([signed(taking, key, range(1, 2))]), timeout=60))
        for _ in range(6):
            if door == "WebSocket":
                sock = stack.enter_context(stream_socket(str(place.gateway)))
                sock.sendall(subscribe_frame(gapped, gap_wait_ms=600_000))
            else:
                call = stub.Subscribe(
                    node_pb.SubscribeRequest(
                        namespaces=[gapped], without_lanes=True, gap_wait_ms=600_000
                    )
                )
                stack.callback(call.cancel)
                next(call)
        settled = [charged_s(place.http)]
        for seq in range(131, 151):
            (answer,) = stub.Publish(iter([signed(taking, key, range(seq, seq + 1))]), timeout=60)
            assert answer.receipts[0].stored
            settled.append(charged_s(place.http))
        # Twenty messages alone cost twenty calls; the reads of six who wait cost more than that.
        calls_s = 20 * 0.0013 * metric(place.http, "luxrelay_cost_pace")
        eventually(lambda: charged_s(place.http) - settled[0] > 2 * calls_s)


@pytest.mark.trial
def test_bad_signatures_cost_their_sender_and_good_ones_nothing(taking: NodeProcess) -> None:
    """Who publishes what does not hold waits, or is refused with the reason and when again."""
    place = taking.start()
    key = SigningKey.from_seed(SignatureScheme.ED25519, b"\7" * 32)
    with grpc.insecure_channel(place.sync) as channel:
        stub = RelayNodeStub(channel)
        before = charged_s(place.http)
        pace = metric(place.http, "luxrelay_cost_pace")
        for start in range(1, 401, 100):
            (answer,) = stub.Publish(
                iter([signed(taking, key, range(start, start + 100))]), timeout=60
            )
            assert all(each.stored for each in answer.receipts)
        most_s = (4 * 0.0012 + 0.01) * pace
        assert charged_s(place.http) - before < most_s, "400 signatures are 60 ms times the pace"

        bad = signed(taking, key, range(401, 601), good=False)
        text = ""
        for _ in range(60):  # 30 ms of signatures each; requests and bytes alone are a tenth of it
            try:
                list(stub.Publish(iter([bad]), timeout=60))
            except grpc.RpcError as error:
                text = f"{error.code().name} {error.details()}"
                break
            if metric(place.http, "luxrelay_cost_waited_total"):
                break
        assert metric(place.http, "luxrelay_cost_waited_total") or "ask again in" in text


@pytest.mark.trial
def test_connections_to_the_gateway_are_paid_and_held_while_their_address_owes(
    metered: NodeProcess,
) -> None:
    """Who connects and leaves costs its budget; another address is answered at once meanwhile."""
    place = metered.start()
    host, _, port = str(place.gateway).rpartition(":")

    def connect(source: str) -> socket.socket:
        return socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0))

    def count(what: str) -> float:
        name = f'luxrelay_gateway_connections_{what}_total{{listener="public"}}'
        return metric(place.http, name)

    before = charged_s(place.http)
    with contextlib.ExitStack() as stack:
        while not (count("held") and count("refused")):
            for _ in range(100):
                stack.enter_context(connect("127.66.0.1"))
        with connect("127.88.0.1") as other:
            other.sendall(b"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert other.recv(4096).startswith(b"HTTP/1.1 200")
        with connect("127.66.0.1") as owing:
            owing.sendall(b"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            text = b""
            with contextlib.suppress(ConnectionError):  # it was closed: sixteen are held
                text = owing.recv(4096)
    assert charged_s(place.http) - before > BURST_S / 2
    assert not text or text.startswith(b"HTTP/1.1 429")


@pytest.mark.trial
def test_requests_without_a_message_cost_their_sender(metered: NodeProcess) -> None:
    """An open Publish stream is no way around the meter; the refusal says when again."""
    metered.sections["sync"]["allow_publish"] = True
    place = metered.start()
    before = charged_s(place.http)
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    waiting.put(node_pb.PublishRequest())
    text, asked = "", 0
    with grpc.insecure_channel(place.sync) as channel:
        try:
            for _ in RelayNodeStub(channel).Publish(iter(waiting.get, None), timeout=120):
                asked += 1
                if metric(place.http, "luxrelay_cost_waited_total"):
                    break
                waiting.put(node_pb.PublishRequest())
        except grpc.RpcError as error:
            text = f"{error.code().name} {error.details()}"
        finally:
            waiting.put(None)
    assert charged_s(place.http) - before > 0.0003 * asked
    assert metric(place.http, "luxrelay_cost_waited_total") or "ask again in" in text


@pytest.mark.trial
def test_pages_over_http_are_charged_for_what_they_read(taking: NodeProcess) -> None:
    """A page of a thousand messages costs its caller more than its request."""
    place = taking.start()
    key = SigningKey.from_seed(SignatureScheme.ED25519, b"\7" * 32)
    read = lane(topic_namespace(taking.topics[0]), key.public_field)
    with grpc.insecure_channel(place.sync) as channel:
        for start in range(1, 1_001, 200):
            list(
                RelayNodeStub(channel).Publish(
                    iter([signed(taking, key, range(start, start + 200))]), timeout=60
                )
            )
    before = charged_s(place.http)
    line = http.client.HTTPConnection(str(place.gateway), timeout=60)
    line.request("GET", f"/v1/namespaces/0x{read.hex()}/messages?limit=1000")
    answer = line.getresponse()
    body = answer.read()
    line.close()
    assert answer.status == 200, body[:200]
    assert charged_s(place.http) - before > 2 * 0.0012


def stream_socket(gateway: str) -> socket.socket:
    """Return an open WebSocket."""
    host, _, port = gateway.rpartition(":")
    key = base64.b64encode(os.urandom(16)).decode()
    sock = socket.create_connection((host, int(port)), timeout=30)
    sock.sendall(
        f"GET /v1/stream HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    assert b" 101 " in sock.recv(4_096)
    return sock


def subscribe_frame(namespace: bytes, *, gap_wait_ms: int) -> bytes:
    """Return a client's frame that subscribes."""
    wanted = {"type": "subscribe", "namespaces": ["0x" + namespace.hex()], "after": 0}
    text = json.dumps({**wanted, "lanes": False, "gapWaitMs": gap_wait_ms}).encode()
    return b"\x81\xfe" + len(text).to_bytes(2) + bytes(4) + text


def test_the_program_that_measures_costs_runs() -> None:
    """A moment of three kinds: each has its line; nothing is judged by time here."""
    kinds = ["pongs", "bad signatures", "sockets, gRPC"]
    only = [word for kind in kinds for word in ("--only", kind)]
    program = Path(__file__).parents[2] / "bench" / "cost_of_strangers.py"
    done = subprocess.run(
        [sys.executable, str(program), "--seconds", "1", *only],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == kinds


def test_the_program_that_measures_costs_knows_its_kinds() -> None:
    """A kind that it does not have is an error before a node is started."""
    program = Path(__file__).parents[2] / "bench" / "cost_of_strangers.py"
    command = [sys.executable, str(program)]
    listed = subprocess.run(
        [*command, "--list"], capture_output=True, text=True, timeout=120, check=True
    )
    assert {"reconcile skip", "gap waits", "gossip frames"} <= set(listed.stdout.splitlines())
    wrong = subprocess.run(
        [*command, "--only", "nothing"], capture_output=True, text=True, timeout=120, check=False
    )
    assert wrong.returncode == 2
    assert "no kind 'nothing'" in wrong.stderr
