"""What an address without a token costs a node at its most, beside what it costs its sender.

Starts a node of its own, attacks one door after another from one address for ``--seconds``, and
prints a line of Markdown a kind: CPU time of the node as a share of one core (from /proc, so that
it holds on a loaded machine), of the sender's process, their ratio, and the latency of an honest
probe (``/healthz`` on the port of the pages) at rest and meanwhile.

usage: python bench/cost_of_strangers.py [--seconds 60] [--kind KIND]...
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc

from luxrelay.node.folder import Runtime, read_runtime
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncStub

RANGES: Final = 65_535
TINY: Final = {
    "skip": b"\x02\x00\x00",
    "fp": b"\x02\x00\x01" + b"\x07" * 16,
    "list0": b"\x02\x00\x02\x00",
    "prefix": b"\x02\x20" + b"\x80" * 32 + b"\x00",
}
IDLE_PROBES: Final = 50
PROBE_S: Final = 0.05
SENDERS: Final = 4


def reconcile(place: Runtime, until: float, piece: bytes) -> None:
    """Send messages of tiny ranges, one after another."""
    payload = b"\x61" + piece * RANGES
    while time.monotonic() < until:
        waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        waiting.put(pb.ReconcileRequest(method=pb.RECONCILE_METHOD_RANGES, payload=payload))
        with suppress(grpc.RpcError), grpc.insecure_channel(place.sync) as channel:
            left = until - time.monotonic()
            for _ in RelaySyncStub(channel).Reconcile(iter(waiting.get, None), timeout=left):
                waiting.put(pb.ReconcileRequest(payload=payload))
        waiting.put(None)


def calls(place: Runtime, until: float, method: str, request: Any) -> None:
    """Make one call of the sync port again and again."""
    with grpc.insecure_channel(place.sync) as channel:
        call = getattr(RelaySyncStub(channel), method)
        while time.monotonic() < until:
            with suppress(grpc.RpcError):
                found = call(request, timeout=max(0.1, until - time.monotonic()))
                if hasattr(found, "__next__"):
                    for _ in found:
                        pass


def resets(place: Runtime, until: float) -> None:
    """Begin calls and cancel them at once: an HTTP/2 reset each."""
    with grpc.insecure_channel(place.sync) as channel:
        call = RelaySyncStub(channel).GetNamespaceHead
        request = pb.NamespaceHeadRequest(namespace_id=bytes(20))
        while time.monotonic() < until:
            call.future(request).cancel()


def pages(place: Runtime, until: float, path: str) -> None:
    """Ask the gateway for one path again and again."""
    while time.monotonic() < until:
        line = http.client.HTTPConnection(place.gateway, timeout=10)
        with suppress(OSError, http.client.HTTPException):
            while time.monotonic() < until:
                line.request("GET", path)
                line.getresponse().read()
        line.close()


def frames(place: Runtime, until: float, frame: bytes) -> None:
    """Send a flood of WebSocket frames."""
    while time.monotonic() < until:
        with suppress(OSError), _websocket(place) as sock:
            while time.monotonic() < until:
                with suppress(TimeoutError):
                    sock.send(frame * (65_536 // len(frame)))
                with suppress(TimeoutError, BlockingIOError):
                    sock.recv(65_536, socket.MSG_DONTWAIT)


def sockets(until: float, address: str) -> None:
    """Connect and leave, again and again."""
    host, _, port = address.rpartition(":")
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
            pass


def _websocket(place: Runtime) -> socket.socket:
    host, _, port = place.gateway.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=0.5)
    key = base64.b64encode(os.urandom(16)).decode()
    sock.sendall(
        f"GET /v1/stream HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    sock.recv(4_096)
    return sock


def kinds(place: Runtime) -> dict[str, Callable[[float], None]]:
    """Return what one thread of a sender does, by the name of the attack."""
    ids = [os.urandom(32) for _ in range(1_000)]
    zero = bytes(20)
    return {
        **{
            f"reconcile {name}": lambda until, piece=piece: reconcile(place, until, piece)
            for name, piece in TINY.items()
        },
        "GetMessages": lambda until: calls(
            place, until, "GetMessages", pb.GetMessagesRequest(ids=ids)
        ),
        "ListHeads": lambda until: calls(place, until, "ListHeads", pb.ListHeadsRequest()),
        "ListHeld": lambda until: calls(place, until, "ListHeld", pb.ListHeldRequest()),
        "GetDigests": lambda until: calls(
            place, until, "GetDigests", pb.DigestsRequest(namespace_id=zero, blocks=64)
        ),
        "HTTP/2 resets": lambda until: resets(place, until),
        "HTTP pages": lambda until: pages(place, until, "/v1/status"),
        "pings": lambda until: frames(place, until, b"\x89\x80\0\0\0\0"),
        "pongs": lambda until: frames(place, until, b"\x8a\x80\0\0\0\0"),
        "sockets, HTTP": lambda until: sockets(until, place.gateway),
        "sockets, gRPC": lambda until: sockets(until, place.sync),
    }


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, seconds."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / float(os.sysconf("SC_CLK_TCK"))


def probe(place: Runtime) -> float:
    """Return how long the node takes to say that it is well, milliseconds."""
    began = time.monotonic()
    line = http.client.HTTPConnection(place.http, timeout=60)
    with suppress(OSError, http.client.HTTPException):
        line.request("GET", "/healthz")
        line.getresponse().read()
    line.close()
    return (time.monotonic() - began) * 1_000


def attack(place: Runtime, kind: str, seconds: float) -> None:
    """Do what strangers do, in a process of its own; prints its CPU time, seconds."""
    until = time.monotonic() + seconds
    work = kinds(place)[kind]
    threads = [threading.Thread(target=work, args=(until,)) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(place: Runtime, kind: str, seconds: float) -> str:
    """Return a line of the table."""
    idle = sorted(probe(place) for _ in range(IDLE_PROBES))
    sender = multiprocessing.get_context("spawn").Process(
        target=attack, args=(place, kind, seconds)
    )
    sender.start()
    assert sender.pid is not None
    began, before, theirs, under = time.monotonic(), cpu_s(place.pid), 0.0, []
    while sender.is_alive():
        under.append(probe(place))
        with suppress(OSError):
            theirs = cpu_s(sender.pid)
        time.sleep(PROBE_S)
    took, ours = time.monotonic() - began, cpu_s(place.pid) - before
    under.sort()
    p50, p99 = under[len(under) // 2], under[int(len(under) * 0.99)]
    ratio = ours / max(theirs, 0.01)
    shown = f"{idle[len(idle) // 2]:.0f} / {idle[-1]:.0f} | {p50:.0f} / {p99:.0f}"
    shares = f"{100 * ours / took:.1f} % | {100 * theirs / took:.1f} %"
    return f"| {kind} | {shares} | {ratio:.2f} | {shown} |"


def main() -> None:
    """Start a node, measure, end it."""
    parser = argparse.ArgumentParser(description="What strangers cost a node.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kind", action="append", default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "relay.toml"
        config.write_text(
            '[node]\nname = "cost"\nnetwork = "bench"\ndata_dir = "data"\n'
            '[gossip]\nlisten = ["/ip4/127.0.0.1/tcp/0"]\n'
            '[sync]\nlisten = "127.0.0.1:0"\n[http]\nlisten = "127.0.0.1:0"\n'
            '[gateway]\nlisten = "127.0.0.1:0"\nadmin_listen = ""\n'
            f"[[namespace]]\ncontent_topic = {json.dumps('/bench/1/cost')}\n"
        )
        with (Path(folder) / "log").open("wb") as log:
            node = subprocess.Popen(
                [sys.executable, "-m", "luxrelay", "node", "run", "--config", str(config)],
                stdout=log,
                stderr=log,
            )
        try:
            until = time.monotonic() + 120
            while (place := read_runtime(Path(folder) / "data")) is None or place.pid != node.pid:
                if time.monotonic() > until or node.poll() is not None:
                    sys.exit((Path(folder) / "log").read_text())
                time.sleep(0.1)
            print(
                "| kind | node | sender | ratio | probe at rest, p50 / max ms | under, p50 / p99 |"
            )
            print("|---|---|---|---|---|---|")
            for kind in options.kind or kinds(place):
                print(measure(place, kind, options.seconds), flush=True)
        finally:
            node.terminate()
            node.wait(30)


if __name__ == "__main__":
    main()
