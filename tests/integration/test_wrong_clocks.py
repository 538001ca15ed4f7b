"""Real nodes whose clock is wrong, or that nobody is heard by, as each door tells it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import SigningKey, topic_namespace
from luxrelay.client import LaneSigner, RelayClient
from luxrelay.node.folder import Runtime
from luxrelay.node.gateway.tokens import TokenFile
from luxrelay.node.keyfile import create_key_file
from luxrelay.sync import PublishItem, RelaySyncClient

pytestmark = [pytest.mark.trial, pytest.mark.slow]
PARENT = topic_namespace("/chat/1/room")
SOURCE = Path(__file__).with_name("wall_clock.c")
AHEAD_S = 300
NEAR_MS = 3_000
"""How far a measured offset may be from the one that was set: hellos on a busy machine."""


class MovedClock:
    """The wall clock of those nodes that are started with it."""

    def __init__(self, folder: Path) -> None:
        """Build it; nodes do not have it yet."""
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler to build a clock that can be moved")
        library, self._file = folder / "wall_clock.so", folder / "clock"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        self.environ = {"LUXRELAY_TEST_CLOCK": str(self._file), "LD_PRELOAD": str(library)}
        self.move(0)

    def move(self, seconds: int) -> None:
        """Set how many seconds it is ahead."""
        draft = self._file.with_suffix(".new")
        draft.write_text(str(seconds))
        draft.replace(self._file)

    def start(self, node: Any, monkeypatch: pytest.MonkeyPatch) -> Runtime:
        """Start a node that has it."""
        with monkeypatch.context() as patched:
            for name, value in self.environ.items():
                patched.setenv(name, value)
            runtime: Runtime = node.start()
        return runtime


def health(runtime: Runtime) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of a node's /healthz."""
    try:
        with urllib.request.urlopen(f"http://{runtime.http}/healthz", timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def sample(runtime: Runtime, name: str) -> float:
    """Return one sample that a node shows; 0 when it shows none."""
    with urllib.request.urlopen(f"http://{runtime.http}/metrics", timeout=30) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line[:1] != "#"]
    found = {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines)}
    return found.get(name, 0.0)


def connected(new_node: Callable[[str], Any], *names: str) -> list[Any]:
    """Return nodes with a gateway, each to be connected with those started before."""
    nodes = [new_node(name) for name in names]
    for node in nodes:
        node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
        node.sections["gossip"] |= {"clock_interval_ms": 500}
        node.sections["sync"] |= {"reconcile_interval_ms": 3_600_000}
    return nodes


def now_ms() -> int:
    """Return the wall clock of this process."""
    return time.time_ns() // 1_000_000


def items(count: int, at_ms: int) -> list[PublishItem]:
    """Return signed messages of a new lane."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    signed = [signer.sign(f"message {n}".encode(), at_ms) for n in range(count)]
    return [PublishItem(header=s.header, blob=s.blob, parent_id=PARENT) for s in signed]


def command(*words: str, environ: dict[str, str] | None = None) -> str:
    """Return what the command says."""
    done = subprocess.run(
        [sys.executable, "-m", "luxrelay", *words],
        capture_output=True, text=True, check=False, timeout=180,
        env=dict(os.environ) | (environ or {}),
    )  # fmt: skip
    return done.stdout + done.stderr


def told_wrong(runtime: Runtime) -> bool:
    """Whether a node says that its clock is wrong, with the numbers, and is not ready."""
    status, body = health(runtime)
    clock = body["clock"]
    wrong = status == 503 and not body["ready"] and clock["state"] == "wrong"
    return wrong and abs(clock["offset_ms"] - 1_000 * AHEAD_S) < NEAR_MS and clock["peers"] == 2


def test_a_clock_that_is_five_minutes_ahead_is_told_at_every_door(
    new_node: Callable[[str], Any],
    eventually: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not ready with numbers, receipts with the reason, and well again when it is set (G36)."""
    moved = MovedClock(tmp_path)
    one, two, wrong = connected(new_node, "one", "two", "wrong")
    first = one.start()
    two.sections["gossip"]["peers"] = list(first.gossip)
    second = two.start()
    wrong.sections["gossip"]["peers"] = [*first.gossip, *second.gossip]
    node = moved.start(wrong, monkeypatch)
    eventually(lambda: health(node)[1]["clock"]["peers"] == 2)
    status, body = health(node)
    assert (status, body["clock"]["state"], body["warnings"]) == (200, "right", [])

    moved.move(AHEAD_S)
    eventually(lambda: told_wrong(node))
    words = "ahead of the median clock of 2 peers"
    assert words in " ".join(health(node)[1]["warnings"])
    eventually(lambda: words in (wrong.folder / "log").read_text())
    assert abs(sample(node, "luxrelay_clock_offset_ms") - 1_000 * AHEAD_S) < NEAR_MS
    assert sample(node, "luxrelay_clock_peers") == 2
    assert health(first)[0] == health(second)[0] == 200

    token, _ = TokenFile(wrong.folder / "data", 8).new("t", ["read", "publish"], 0)
    there_ms = now_ms() + 1_000 * AHEAD_S
    key = tmp_path / "key.pem"
    create_key_file(key, SigningKey.generate())
    signer = LaneSigner(SigningKey.generate(), PARENT)
    with RelayClient(node.gateway, token=token) as client:
        (by_http,) = client.publish([signer.sign(b"over http", there_ms)])
        (right,) = client.publish([signer.sign(b"of now", now_ms() + 1_000 * AHEAD_S - 290_000)])
    with RelaySyncClient(node.sync) as relay:
        (by_grpc,) = relay.publish(items(1, there_ms))
        (again,) = relay.get_receipts([by_grpc.digest])
    for receipt in (by_http, by_grpc, again):
        assert receipt.stored
        assert receipt.reason.startswith("stored here; this node's clock is ")
        assert words in receipt.reason
        assert "others refuse it as live" in receipt.reason
    assert not right.stored
    assert words in right.reason
    published = ["publish", "--relay", node.sync, "--topic", "/chat/1/room", "--key", str(key)]
    assert words in command(*published, "hello", environ=moved.environ)
    gateway = ["--gateway", node.gateway]
    assert "s ahead of the median of 2" in command("peers", *gateway)
    assert "s ahead of the median of 2" in command("doctor", *gateway)

    with RelaySyncClient(first.sync) as relay:
        assert all(receipt.stored for receipt in relay.publish(items(20, now_ms())))
    eventually(lambda: [r["reason"] for r in health(node)[1]["refused"]] == ["timestamp_invalid"])
    assert sample(node, 'luxrelay_refused_share{reason="timestamp_invalid"}') > 0.5
    eventually(lambda: "refused as timestamp_invalid" in (wrong.folder / "log").read_text())

    moved.move(0)
    eventually(lambda: health(node)[0] == 200)
    with RelaySyncClient(node.sync) as relay:  # it looks once a second
        eventually(lambda: [r.reason for r in relay.publish(items(1, now_ms()))] == [""])


class BlackHole(threading.Thread):
    """A TCP proxy whose bytes vanish from some moment on, while connections stay."""

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.closed = threading.Event()
        """Set: nothing comes through."""
        self._sockets: list[socket.socket] = []

    def run(self) -> None:
        """Take connections until it is ended."""
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if not self.closed.is_set():
                    target.sendall(data)

    def end(self) -> None:
        """Close all sockets."""
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def black_hole() -> Iterator[Callable[[str], BlackHole]]:
    """Makes proxies to a multiaddress, ended with the test."""
    made: list[BlackHole] = []

    def make(address: str) -> BlackHole:
        host, port = address.split("/")[2], int(address.split("/")[4])
        made.append(BlackHole((host, port)))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.end()


def test_a_relay_whose_network_is_a_black_hole_is_not_ready(
    new_node: Callable[[str], Any],
    eventually: Callable[..., Any],
    black_hole: Callable[[str], BlackHole],
) -> None:
    """No byte of any peer: told with the time, and well again when one comes (G37)."""
    other, node, alone = (new_node(name) for name in ("other", "node", "alone"))
    for each in (other, node, alone):
        each.sections["gossip"] |= {"exchange": False, "silence_max_ms": 3_000}
    there = other.start()
    hole = black_hole(there.gossip[0])
    target = there.gossip[0].split("/")
    target[4] = str(hole.port)
    node.sections["gossip"]["peers"] = ["/".join(target)]
    runtime, single = node.start(), alone.start()
    eventually(lambda: sample(runtime, "relay_peer_count") == 1)

    def quiet() -> float:
        found = health(runtime)[1]["quiet_s"]
        assert found is not None
        return float(found)

    eventually(lambda: health(runtime)[0] == 200)
    hole.closed.set()
    eventually(lambda: health(runtime)[0] == 503)
    assert quiet() >= 3
    assert "no byte of any peer came for" in " ".join(health(runtime)[1]["warnings"])
    assert health(single) == (200, health(single)[1])
    assert health(single)[1]["quiet_s"] is None
    hole.closed.clear()
    eventually(lambda: health(runtime)[0] == 200)
    assert quiet() <= 3
    eventually(lambda: "no byte of any peer came for" in (node.folder / "log").read_text())
