"""A channel of two JavaScript participants (@waku/sds) and two of ours, in virtual time.

Both speak the bytes of the wire; the JavaScript side runs as a program that is told the time.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from luxrelay.channel.actions import Purpose
from luxrelay.channel.params import RepairConfig, SdsConfig
from luxrelay.channel.wire import SdsMessage

PEER = Path(__file__).resolve().parents[2] / ".make" / "interop-sds" / "peer.mjs"
MESSAGES = int(os.environ.get("LUXRELAY_INTEROP_SDS_MESSAGES", "25"))
"""Messages of each participant; 200 is the full size."""
CONFIG = SdsConfig(
    acknowledge_after_ms=1_000,
    sync_interval_ms=10_000,
    sync_interval_max_ms=40_000,
    repair=RepairConfig(t_min_ms=2_000, t_max_ms=8_000),
)
OPTIONS = {"causalHistorySize": 20, "repairConfig": {"tMin": 2_000, "tMax": 8_000}}

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        not PEER.exists() or shutil.which("node") is None, reason="`make interop` builds the peer"
    ),
]


def _load() -> ModuleType:
    if "participants_oracle" not in sys.modules:
        path = Path(__file__).parents[1] / "oracle" / "participants.py"
        spec = spec_from_file_location("participants_oracle", path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["participants_oracle"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["participants_oracle"])
    return sys.modules["participants_oracle"]


participants = _load()


class Peer:
    """The JavaScript program."""

    def __init__(self) -> None:
        """Start it."""
        self.process = subprocess.Popen(
            ["node", str(PEER)],  # noqa: S607 - wherever node is
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, now_ms: int, **fields: Any) -> dict[str, Any]:
        """Say a line and return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, "now": now_ms, **fields}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer
        return answer

    def end(self) -> None:
        """Let it end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


class Foreign:
    """A JavaScript participant, as the network sees one."""

    def __init__(self, net: Any, peer: Peer, name: str) -> None:
        """Open its channel."""
        self.net, self.peer, self.name = net, peer, name
        self.up = True
        self.machine = self
        self.sweep_at = net.now + 1.0
        self.sweeps = 0
        self.retrieves = False
        self.delivered: list[tuple[str, bytes]] = []
        self.acknowledged: list[str] = []
        self.asked: list[str] = []
        self.wires: list[bytes] = []
        self._ask("open", channel="chan", options=OPTIONS)

    def _ask(self, do: str, **fields: Any) -> dict[str, Any]:
        return self.peer.ask(do, self.net.now_ms, who=self.name, **fields)

    def say(self, content: bytes) -> None:
        """Send content."""
        self._put(self._ask("send", content=content.hex())["wire"])

    def take(self, data: bytes, _hint: bytes = b"") -> None:
        """Receive bytes."""
        if self.up:
            assert "refused" not in self._ask("receive", wire=data.hex())
            self._collect()

    def wake_at(self) -> float:
        """Return when it sweeps next."""
        return self.sweep_at

    def wake(self) -> None:
        """Sweep each second, sync every third, send again every fifth."""
        if self.up and self.sweep_at <= self.net.now:
            self.sweeps += 1
            self.sweep_at = self.net.now + 1.0
            answer = self._ask("sweep", resend=self.sweeps % 5 == 0, sync=self.sweeps % 3 == 0)
            for wire in answer["wires"]:
                self._put(wire)
            if self.retrieves and self.sweeps % 10 == 0:
                self._retrieve(answer["missing"])
            self._collect()

    def _retrieve(self, missing: list[str]) -> None:
        """Get from a store what is missing still: this implementation asks for repair only once."""
        for name in missing:
            stored = self.net["ours1"].machine.log.body(name)
            if stored is not None:
                self._ask("receive", wire=stored.hex())

    def log(self) -> list[str]:
        """Return the ids of its log."""
        ids: list[str] = self._ask("log")["ids"]
        return ids

    def _put(self, wire: str) -> None:
        self.wires.append(bytes.fromhex(wire))
        self.net.broadcast(self.wires[-1])

    def _collect(self) -> None:
        answer = self._ask("taken")
        self.acknowledged += answer["acknowledged"]
        self.asked += answer["asked"]
        for one in answer["delivered"]:
            self.delivered.append((one["sender"], bytes.fromhex(one["content"])))


@pytest.fixture
def peer() -> Iterator[Peer]:
    """The program, ended with the test."""
    made = Peer()
    yield made
    made.end()


def mixed(peer: Peer, **settings: Any) -> Any:
    """Return a network of two of ours and two of theirs."""
    net = participants.Net(["ours1", "ours2"], CONFIG, **settings)
    for name in ("js1", "js2"):
        net.participants[name] = Foreign(net, peer, name)
    return net


def complete(net: Any, each: int) -> bool:
    """Return whether everybody has everything of the others."""
    return all(
        len(set(one.delivered)) == each * (len(net.participants) - 1)
        for one in net.participants.values()
    )


@pytest.mark.parametrize("loss", [0.0, 0.1], ids=["calm", "lossy"])
def test_two_and_two_agree(peer: Peer, loss: float) -> None:
    """Everybody delivers everything, logs are equal, and every message is acknowledged."""
    net = mixed(peer, loss=loss, delay_s=(0.01, 0.3), seed=4)
    net["js1"].retrieves = net["js2"].retrieves = True
    rng = random.Random(4)
    for number in range(MESSAGES):
        for name in net.participants:
            net[name].say(f"{name} {number}".encode())
        net.run(rng.uniform(0.1, 0.6))

    net.run(900.0, lambda: complete(net, MESSAGES))
    assert complete(net, MESSAGES)
    net.run(60.0)

    for name in ("ours1", "ours2"):
        one = net[name]
        assert len(one.delivered) == 3 * MESSAGES
        assert one.machine.unacknowledged == 0
        assert len(set(one.acknowledged)) == MESSAGES
        assert (one.lost, one.exhausted) == ([], [])
        assert one.machine.stats.filters_ignored == 0
    for name in ("js1", "js2"):
        assert len(set(net[name].acknowledged)) == MESSAGES
    assert net["ours1"].machine.log.ids() == net["ours2"].machine.log.ids()
    assert net["js1"].log() == net["js2"].log() == net["ours1"].machine.log.ids()
    assert_causal(net)


def assert_causal(net: Any) -> None:
    """Assert that ours delivered each message after all that its sender named."""
    names: dict[bytes, list[str]] = {}
    ids: dict[str, bytes] = {}
    for one in net.participants.values():
        wires = one.wires if isinstance(one, Foreign) else [sent.data for _, sent in one.sent]
        for wire in wires:
            message = SdsMessage.decode(wire)
            if message.content:
                ids[message.message_id] = message.content
                names[message.content] = [each.message_id for each in message.causal_history]
    for name in ("ours1", "ours2"):
        seen = {content for content in ids.values() if content.startswith(name.encode())}
        for _, content in net[name].delivered:
            assert {ids[each] for each in names[content]} <= seen
            seen.add(content)


def test_their_request_is_answered_by_us(peer: Peer) -> None:
    """What only we still have, a JavaScript participant asks us for and gets, byte for byte."""
    net = mixed(peer)
    net["js1"].up = net["js2"].up = False
    net["ours1"].say(b"missed")
    net.run(2.0)
    net["ours1"].up = False
    net["js1"].up = True
    net["ours2"].say(b"next")

    net.run(60.0, lambda: len(net["js1"].delivered) == 2)

    assert [content for _, content in net["js1"].delivered] == [b"missed", b"next"]
    answers = [sent.data for _, sent in net["ours2"].sent if sent.purpose is Purpose.ANSWER]
    assert net["ours1"].sent[0][1].data in answers


def test_our_request_is_answered_by_them(peer: Peer) -> None:
    """What only a JavaScript participant still has, we ask for and get."""
    net = mixed(peer)
    net["ours2"].up = net["js2"].up = False
    net["ours1"].say(b"missed")
    net.run(2.0)
    net["ours1"].up = False
    net["ours2"].up = True
    net["js1"].say(b"next")

    net.run(60.0, lambda: len(net["ours2"].delivered) == 2)

    assert [content for _, content in net["ours2"].delivered] == [b"missed", b"next"]
    assert net["ours1"].sent[0][1].message_id in net["js1"].asked
    assert net["ours1"].sent[0][1].data in net["js1"].wires
