"""Whatever a peer, a relay or a client leaves unanswered ends in time, and so does the node."""

import contextlib
import json
import os
import secrets
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hanging_ports import PEERS, PREFACE, SETTINGS, Listener, Taking, opened
from reached import Node

from luxrelay.bus import SigningKey, topic_namespace
from luxrelay.client import LaneSigner, Live, RelayClient, Subscribe, subscribe
from luxrelay.gossip import topic_for_namespace
from luxrelay.net.raw_peer import raw_pubsub_peer
from luxrelay.net.reconcile import RECONCILE
from luxrelay.net.streams import encode_frame
from luxrelay.sync import PublishItem, RelaySyncClient
from luxrelay.sync.following import SubscribeWanted

TOPIC = "/chat/1/room"
PARENT = topic_namespace(TOPIC)
GRACE_S = 10.0
"""SIGTERM ends a node within this time, whatever hangs."""


def metrics(http: str) -> dict[str, float]:
    """Return every sample that a node shows."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")
    }


def end(node: Any) -> int:
    """Send SIGTERM and return the exit code; fail when it takes longer than the grace."""
    process, node.process = node.process, None
    process.terminate()
    try:
        return int(process.wait(GRACE_S))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def listener() -> Iterator[Callable[[str], Listener]]:
    """A maker of ports, all closed with the test."""
    made: list[Listener] = []

    def make(kind: str) -> Listener:
        made.append(PEERS[kind]())
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.trial
@pytest.mark.parametrize("kind", PEERS)
def test_a_relay_that_does_not_answer_holds_neither_rounds_nor_the_end(
    kind: str,
    new_node: Callable[[str], Any],
    listener: Callable[[str], Listener],
    eventually: Callable[..., Any],
) -> None:
    """Rounds end beside it, another relay is caught up with, and SIGTERM is obeyed in time."""
    other = new_node("other")
    served = other.start()
    publish(served.sync, 3)
    node = new_node("node")
    node.sections["sync"] |= {"peers": [listener(kind).address, served.sync]}
    runtime = node.start()

    def caught_up() -> bool:
        shown = json.loads(get(runtime.http, "/status"))
        return int(shown["store"]["messages"]) == 3

    eventually(caught_up)

    assert end(node) == 0


@pytest.mark.trial
def test_an_answer_of_nothing_to_a_comparison_is_blamed_and_asked_again(
    new_node: Callable[[str], Any],
) -> None:
    """A gossip peer that answers END alone ends its own round, not all of them (J4)."""
    node = new_node("node")
    node.sections["sync"] |= {"reconcile_interval_ms": 100}
    runtime = node.start()
    enough = trio.Event()
    asked = [0]

    async def attack() -> None:
        topics = [topic_for_namespace("test", PARENT)]
        async with raw_pubsub_peer(
            runtime.gossip[0], secrets.token_bytes(32), topics=topics
        ) as peer:

            async def serve(stream: Any) -> None:
                while await stream.receive_some(65_536):
                    asked[0] += 1
                    if asked[0] == 6:
                        enough.set()
                    await stream.send_all(encode_frame(b"\x01"))  # END, and no part

            peer.host.handle(RECONCILE, serve)
            with trio.fail_after(120):
                await enough.wait()

    trio.run(attack)

    shown = json.loads(get(runtime.http, "/status"))["rounds"]["reconcile"]
    assert shown["rounds"] >= 2
    assert shown["left_behind"] == 0
    assert end(node) == 0


@pytest.mark.trial
def test_a_full_queue_does_not_hold_the_end(new_node: Callable[[str], Any]) -> None:
    """A gossip peer that takes nothing, with messages waiting for it, is no reason to stay."""
    node = new_node("node")
    runtime = node.start()

    async def attack() -> None:
        topics = [topic_for_namespace("test", PARENT)]
        async with raw_pubsub_peer(runtime.gossip[0], secrets.token_bytes(32), topics=topics):
            await trio.to_thread.run_sync(publish, runtime.sync, 60, 40_000)
            assert await trio.to_thread.run_sync(end, node) == 0

    trio.run(attack)


@pytest.mark.trial
def test_clients_that_take_nothing_do_not_hold_the_end(new_node: Callable[[str], Any]) -> None:
    """Connections to every port that say nothing, or half a request, are no reason to stay."""
    node = new_node("node")
    node.sections["gateway"] = dict.fromkeys(
        ("listen", "admin_listen", "grpc_listen"), "127.0.0.1:0"
    )
    runtime = node.start()
    ports = [runtime.sync, runtime.http, runtime.gateway, runtime.admin, runtime.grpc]
    gossip = runtime.gossip[0].split("/")
    ports.append(f"{gossip[2]}:{gossip[4]}")
    begins = (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", PREFACE + SETTINGS)
    held = []
    for port in ports:
        for begin in begins:
            held.append(socket.create_connection((port.split(":")[0], int(port.split(":")[1])), 10))
            held[-1].sendall(begin)

    assert end(node) == 0
    for each in held:
        each.close()


def get(http: str, path: str) -> bytes:
    """Return one of the operator's pages."""
    with urllib.request.urlopen(f"http://{http}{path}", timeout=30) as answer:
        return bytes(answer.read())


def publish(sync: str, count: int, size: int = 20) -> None:
    """Publish messages of one new lane."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    now_ms = time.time_ns() // 1_000_000
    signed = [signer.sign(secrets.token_bytes(size), now_ms) for _ in range(count)]
    items = [PublishItem(header=s.header, blob=s.blob, parent_id=PARENT) for s in signed]
    with RelaySyncClient(sync) as client:
        assert all(receipt.stored for receipt in client.publish(items))


@pytest.mark.trial
def test_a_reload_that_hangs_or_breaks_holds_neither_the_node_nor_the_end(
    new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """No file, then a pipe that nobody writes to, then SIGTERM: an end in order, below 10 s."""
    node = new_node("relay-1")
    node.start()
    node.config.unlink()
    node.process.send_signal(signal.SIGHUP)  # no file at all
    log = node.folder / "log"
    eventually(lambda: "nothing changes" in log.read_text() or "reload" in log.read_text())
    os.mkfifo(node.config)
    node.process.send_signal(signal.SIGHUP)
    eventually(lambda: "no regular file" in log.read_text())  # refused, not waited for
    began = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - began < 10


@pytest.mark.trial
@pytest.mark.parametrize("side", ["asked", "asking"])
def test_a_comparison_that_stays_half_open_does_not_hold_the_end(
    side: str, new_node: Callable[[str], Any]
) -> None:
    """A peer takes the stream and says nothing, or begins a frame of its own and leaves it."""
    node = new_node("node")
    node.sections["sync"] |= {"reconcile_interval_ms": 100}
    runtime = node.start()

    async def attack() -> None:
        topics = [topic_for_namespace("test", PARENT)]
        async with raw_pubsub_peer(
            runtime.gossip[0], secrets.token_bytes(32), topics=topics
        ) as peer:
            held = trio.Event()

            async def serve(stream: Any) -> None:
                del stream
                held.set()
                await trio.sleep_forever()

            peer.host.handle(RECONCILE, serve)
            with trio.fail_after(120):
                if side == "asked":
                    await held.wait()
                else:
                    stream = await peer.host.open_stream(peer.relay, RECONCILE)
                    await stream.send_all(encode_frame(b"\x01" * 64)[:20])
                assert await trio.to_thread.run_sync(end, node) == 0

    trio.run(attack)


@pytest.mark.trial
def test_a_subscriber_that_does_not_read_does_not_hold_the_end(
    new_node: Callable[[str], Any],
) -> None:
    """A WebSocket and a gRPC stream that take nothing, with more for them than buffers hold."""
    node = new_node("node")
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    runtime = node.start()
    with RelaySyncClient(runtime.sync) as relay, RelayClient(runtime.gateway) as client:
        told = relay.subscribe(SubscribeWanted(namespaces=[PARENT]))
        events = subscribe(client, Subscribe(namespaces=[PARENT]))
        next(told)
        assert isinstance(next(events), Live)
        publish(runtime.sync, 120, 60_000)
        assert end(node) == 0
        told.close()
        events.close()


@pytest.mark.trial
def test_an_archive_that_hangs_does_not_hold_the_end(
    new_node: Callable[[str], Any],
    listener: Callable[[str], Listener],
    eventually: Callable[..., Any],
) -> None:
    """A caller waits for what the node no longer has, and the archive says nothing."""
    archive = listener("silence")
    node = new_node("node")
    node.sections["gateway"] = {
        "listen": "127.0.0.1:0", "admin_listen": "", "archive": archive.address,
    }  # fmt: skip
    runtime = node.start()
    caller = threading.Thread(target=blob_of, args=(runtime.gateway,), daemon=True)
    caller.start()
    eventually(lambda: archive.taken)

    assert end(node) == 0


def blob_of(gateway: str) -> None:
    """Ask for a blob that nobody has."""
    with contextlib.suppress(OSError, ValueError):
        urllib.request.urlopen(f"http://{gateway}/v1/blobs/{'ab' * 32}", timeout=60).close()


NAMES_HANG = """
import socket, threading
look_up = socket.getaddrinfo

def hangs(host, port=None, family=0, type=0, proto=0, flags=0):
    if ".test" in str(host) and not flags & socket.AI_NUMERICHOST:
        open({place!r}, "w").close()
        threading.Event().wait()
    return look_up(host, port, family, type, proto, flags)

socket.getaddrinfo = hangs
"""
"""Runs in the node before anything else: a resolver that says nothing of some names."""


@pytest.mark.trial
def test_a_name_that_is_never_answered_does_not_hold_the_end(
    new_node: Callable[[str], Any], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """Peers of gossip and of sync by names whose lookup hangs; others are dialled meanwhile."""
    fault = tmp_path / "fault"
    fault.mkdir()
    asked = fault / "asked"
    (fault / "sitecustomize.py").write_text(NAMES_HANG.format(place=str(asked)))
    other = new_node("other")
    there = other.start()
    publish(there.sync, 3)
    node = new_node("node")
    node.source = fault
    peer = there.gossip[0].rpartition("/")[2]
    node.sections["gossip"] |= {
        "peers": [f"/dns4/hangs.test/tcp/9640/p2p/{peer[:-1]}{'A' if peer[-1] != 'A' else 'B'}"]
    }
    node.sections["sync"] |= {"peers": ["hangs.test:9641", there.sync]}
    runtime = node.start()
    eventually(asked.exists)

    def caught_up() -> bool:
        shown = json.loads(get(runtime.http, "/status"))
        return int(shown["store"]["messages"]) == 3

    eventually(caught_up)
    assert end(node) == 0


def test_a_port_of_these_tests_leaves_nothing_open() -> None:
    """What comes while a port closes is closed with it; a socket left open fails a later test."""
    for _ in range(20):
        port = socket.create_server(("127.0.0.1", 0))
        taking = Taking(port, lambda client: client.sendall(client.recv(1)))
        end = socket.create_connection(port.getsockname())
        taking.close()
        end.settimeout(10)
        with contextlib.suppress(ConnectionError):  # it was in the backlog still
            assert end.recv(1) == b""
        end.close()
        assert taking.left_open() == 0


@pytest.mark.parametrize("kind", ["another protocol", "garbage", "half an answer"])
def test_a_port_that_is_another_programs_by_now_counts_no_door(kind: str) -> None:
    """A node ended by itself and its port was given away: no later test fails for it."""
    words = {
        "another protocol": b"!x no HTTP at all\n",
        "garbage": b"\x00\xff\x13\x37" * 64,
        "half an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
    }
    with opened(lambda: Listener(lambda data: words[kind] if data else b"")) as port:
        assert Node(port.address).read() is None
