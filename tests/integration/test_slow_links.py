"""Real nodes over a link that carries less than is offered: spared, told, whole in the end."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from luxrelay.bus import SigningKey, topic_namespace
from luxrelay.client import LaneSigner
from luxrelay.node.folder import Runtime
from luxrelay.sync import PublishItem, RelaySyncClient

pytestmark = pytest.mark.slow
PARENT = topic_namespace("/chat/1/room")
RATE = 40_000
"""Bytes a second that the link carries in one direction, by its own clock."""
PIECE, BUFFER = 4_096, 16_384
COUNT, SIZE = 150, 12_000


class Throttle:
    """Carries what comes to its address to another one, at so many bytes a second."""

    def __init__(self, address: str) -> None:
        """Listen in front of a multiaddress."""
        parts = address.split("/")
        self._port = int(parts[4])
        self._door = socket.socket()
        self._door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        self._door.bind(("127.0.0.1", 0))
        self._door.listen()
        self._ends: list[socket.socket] = [self._door]
        parts[4] = str(self._door.getsockname()[1])
        self.address = "/".join(parts)
        self._start(self._take)

    def close(self) -> None:
        """The link is gone."""
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                far = socket.socket()
                far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
                self._ends += [near, far]
                far.connect(("127.0.0.1", self._port))
                self._start(self._carry, near, far)
                self._start(self._carry, far, near)

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE):
                target.sendall(data)
                time.sleep(len(data) / RATE)
            target.shutdown(socket.SHUT_WR)

    @staticmethod
    def _start(work: Callable[..., None], *values: object) -> None:
        threading.Thread(target=work, args=values, daemon=True).start()


@pytest.fixture
def throttled() -> Iterator[Callable[[str], str]]:
    """Puts a slow link in front of an address."""
    made: list[Throttle] = []

    def put(address: str) -> str:
        made.append(Throttle(address))
        return made[-1].address

    yield put
    for link in made:
        link.close()


def sample(runtime: Runtime, name: str) -> float:
    """Return one sample that a node shows; 0 when it shows none."""
    with urllib.request.urlopen(f"http://{runtime.http}/metrics", timeout=30) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line[:1] != "#"]
    found = {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines)}
    return found.get(name, 0.0)


def rows(runtime: Runtime) -> list[dict[str, Any]]:
    """Return what `luxrelay peers --json` says."""
    words = ["peers", "--gateway", f"http://{runtime.gateway}", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "luxrelay", *words],
        capture_output=True, text=True, check=True, timeout=180,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def logged(node: Any, what: str) -> list[str]:
    """Return the lines of a node's log that say something."""
    return [line for line in (node.folder / "log").read_text().splitlines() if what in line]


def held(runtime: Runtime) -> int:
    """Return how many messages of the one lane a node holds from its first on."""
    with RelaySyncClient(runtime.sync) as client:
        return max((head.contiguous_seq for head in client.list_heads(PARENT)), default=0)


def test_a_peer_behind_a_slow_link_is_spared_and_becomes_whole(
    new_node: Callable[[str], Any],
    throttled: Callable[[str], str],
    eventually: Callable[..., Any],
) -> None:
    """It is told ids in place of messages, shown as slow, never cut, and lacks nothing (G39)."""
    fast, slow = new_node("fast"), new_node("slow")
    fast.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    fast.sections["gossip"] |= {"slow_after_ms": 300, "slow_hold_ms": 1_000}
    one = fast.start()
    slow.sections["gossip"] |= {"peers": [throttled(one.gossip[0])]}
    slow.sections["sync"] |= {"peers": [one.sync], "interval_ms": 5_000}
    two = slow.start()
    eventually(lambda: any(row["score"] and row["score"]["topics"] for row in rows(one)), 60)
    signer = LaneSigner(SigningKey.generate(), PARENT)
    seen_slow = False

    with RelaySyncClient(one.sync) as client:
        for _ in range(COUNT // 10):
            signed = [signer.sign(bytes(SIZE), time.time_ns() // 1_000_000) for _ in range(10)]
            items = [PublishItem(header=s.header, blob=s.blob, parent_id=PARENT) for s in signed]
            client.publish(items)
            seen_slow |= sample(one, "luxrelay_gossip_slow_peers") == 1

    eventually(lambda: held(two) == COUNT, 180)
    assert seen_slow or sample(one, "luxrelay_gossip_slowed_total") >= 1
    assert logged(fast, "peer is slow")
    assert sample(one, "luxrelay_gossip_slow_spared_total") > 0
    assert sample(one, "luxrelay_net_stalled_peers_total") == 0
    assert sample(one, "luxrelay_net_overflowed_peers_total") == 0
    assert not logged(fast, "peer lost")
    eventually(lambda: sample(one, "luxrelay_gossip_slow_peers") == 0, 120)
    eventually(lambda: logged(fast, "peer is no longer slow"), 30)
    (row,) = rows(one)
    assert (row["peerId"], row["slow"]) == (two.peer_id, False)
    assert row["score"]["behaviour"] == 0
    assert sample(one, 'luxrelay_net_yamux_streams_opened_total{by="peer"}') > 0


def test_loss_and_return_of_a_peer_are_lines_of_the_log(
    new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """One line each: why and how long it was here, and how long it was away."""
    stays, goes = new_node("stays"), new_node("goes")
    stays.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    one = stays.start()
    goes.sections["gossip"] |= {"peers": [one.gossip[0]]}
    goes.start()
    eventually(lambda: any(row["score"] and row["score"]["topics"] for row in rows(one)), 60)

    goes.stop()
    (lost,) = eventually(lambda: logged(stays, "peer lost"), 60)
    assert "the connection ended" in lost
    assert "connected_s" in lost
    two = goes.start()
    (back,) = eventually(lambda: logged(stays, "peer is back"), 60)

    assert "away_s" in back
    assert two.peer_id in lost
    assert two.peer_id in back
