"""A reliable channel in a node's own process, by the door that an embedding program has.

The program is `examples/node_with_channel.py`: a whole relay and a channel in it, its lines on
standard input, its events on standard output.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from luxrelay.bus import SigningKey
from luxrelay.channel import (
    MessageReceived,
    MessageSent,
    SdsConfig,
    SharedKeyEncryption,
    create_reliable_channel,
)
from luxrelay.channel.runtime.remote import RemoteMessaging
from luxrelay.cli.main import main
from luxrelay.client import AsyncRelayClient
from luxrelay.node.folder import read_runtime
from luxrelay.node.keyfile import create_shared_key

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "node_with_channel.py"
TOPIC = "/chat/1/room"


class Embedded:
    """The program, running, and what it has said."""

    def __init__(self, node: NodeProcess) -> None:
        """Start it with a node's configuration."""
        node.write_config()
        self.log = node.folder / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(node.config), "room", TOPIC, "host"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))

    def write(self, *lines: str) -> None:
        """Give it lines to send."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines))
        self.process.stdin.flush()

    def count(self, word: str) -> int:
        """Return how many lines begin with a word."""
        assert self.process.poll() is None, self.log.read_text()
        return sum(line.startswith(word) for line in list(self.said))

    def end(self, number: int) -> int:
        """Send it a signal and return its code."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join(60)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        return code


@contextmanager
def embedded(node: NodeProcess) -> Iterator[Embedded]:
    """Run the program for a while; it is in the channel when the body begins."""
    program = Embedded(node)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.end(signal.SIGKILL)


@pytest.fixture
def relay(new_node: Callable[[str], NodeProcess]) -> NodeProcess:
    """A relay with a gateway, for the other participant."""
    node = new_node("relay-1")
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    node.runtime = node.start()  # type: ignore[attr-defined]
    return node


def own(new_node: Callable[[str], NodeProcess], relay: Any, **channel: object) -> NodeProcess:
    """Return the configuration of a node beside the relay, with a section of channels."""
    node = new_node("own")
    node.sections["gossip"]["peers"] = [relay.runtime.gossip[0]]
    node.sections["sync"]["peers"] = [relay.runtime.sync]
    node.sections["channel"] = channel
    return node


def token(relay: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """Return a token that may read and publish."""
    scopes = ["--scope", "read", "--scope", "publish"]
    assert main(["node", "token", "new", "--config", str(relay.config), *scopes, "test"]) == 0
    (found,) = re.findall(r"lrt_\S+", capsys.readouterr().out)
    return str(found)


EPOCH_MS = 3_000


def epoch() -> int:
    """Return the number of the epoch that is now."""
    return time.time_ns() // 1_000_000 // EPOCH_MS


async def within(seconds: float, look: Callable[[], bool]) -> None:
    """Wait until something is so."""
    with anyio.fail_after(seconds):
        while not look():  # noqa: ASYNC110  another process
            await anyio.sleep(0.05)


def test_a_killed_node_goes_on_with_what_it_had_to_send(
    relay: Any, new_node: Callable[[str], NodeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in the midst of sending, it sends the rest when it runs again: each line once.

    Its state is in its data folder without a word in the program or the configuration.
    """
    node = own(new_node, relay, acknowledgement_timeout_ms=1_000, max_retransmissions=100)
    secret = token(relay, capsys)
    heard: list[str] = []

    async def listen(task_status: Any) -> None:
        async with AsyncRelayClient(relay.runtime.gateway, token=secret) as client:
            layer = RemoteMessaging(client, SigningKey.generate())
            sds = SdsConfig(acknowledgement_timeout_ms=1_000)
            async with create_reliable_channel(layer, "room", TOPIC, "bob", sds_config=sds) as bob:
                task_status.started()
                async for event in bob.events():
                    if isinstance(event, MessageReceived):
                        heard.append(event.message.decode())  # noqa: PERF401  seen meanwhile

    async def act() -> None:
        async with anyio.create_task_group() as tasks:
            with embedded(node) as first:
                await within(120, lambda: first.count("in room, open requests: 0") == 1)
                first.write(*(f"alone {n}" for n in range(10)))
                await within(60, lambda: first.count("taken") == 10)
                await tasks.start(listen_started)
                first.write(*(f"heard {n}" for n in range(200)))
                await within(120, lambda: len(heard) >= 15)
                await anyio.to_thread.run_sync(first.end, signal.SIGKILL)
                taken = sum(line == "taken" for line in first.said)
                told = sum("message:sent" in line for line in first.said)
            with embedded(node) as second:
                await within(120, lambda: second.count("in room") == 1)
                left = int(re.findall(r"\d+", second.said[0])[0])
                assert left >= 1
                assert taken - told <= left <= taken + 1
                second.write("last")
                await within(180, lambda: "last" in heard)
                await within(120, lambda: second.count("reliable:message:sent") == left + 1)
            tasks.cancel_scope.cancel()
        assert len(set(heard)) == len(heard)
        expected = [f"alone {n}" for n in range(10)] + [f"heard {n}" for n in range(200)]
        assert heard[:taken] == expected[:taken]
        assert heard[taken:] in (["last"], [expected[taken], "last"])

    async def listen_started(*, task_status: Any) -> None:
        await listen(task_status)

    anyio.run(act, backend="trio")
    assert list((node.folder / "data" / "channels").glob("*/*.db"))


def test_the_section_channel_is_what_a_channel_has(
    relay: Any,
    new_node: Callable[[str], NodeProcess],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its segments, its key and its pace count where the program says nothing (C10).

    Who holds the key hears the lines, one an epoch, and is heard; state is not kept.
    """
    key = create_shared_key(tmp_path / "room.key")
    node = own(
        new_node,
        relay,
        segment_size_bytes=1_000,
        encryption_key_file=str(tmp_path / "room.key"),
        rate_limit_enabled=True,
        epoch_size_ms=EPOCH_MS,
        messages_per_epoch=1,
        persist=False,
    )
    secret = token(relay, capsys)
    heard: list[bytes] = []
    epochs: list[int] = []

    async def act() -> None:
        hook = SharedKeyEncryption(key, b"room")
        async with AsyncRelayClient(relay.runtime.gateway, token=secret) as client:
            layer, deaf = (RemoteMessaging(client, SigningKey.generate()) for _ in range(2))
            with embedded(node) as program:
                await within(120, lambda: program.count("in room") == 1)
                stranger = await create_reliable_channel(deaf, "room", TOPIC, "eve")
                bob = await create_reliable_channel(layer, "room", TOPIC, "bob", hook)
                epochs.append(epoch())
                program.write("x" * 2_500, "second", "third")
                async for event in bob.events():
                    if isinstance(event, MessageReceived):
                        heard.append(event.message)
                        epochs.append(epoch())
                        if len(heard) == 3:
                            break
                await within(60, lambda: program.count("reliable:message:sent") == 3)
                sent = [line for line in program.said if "message:sent" in line]
                # a segment of 1,000 bytes with its own fields carries fewer
                assert [line.split("=")[1] for line in sent] == ["4", "1", "1"]
                await bob.send(b"y" * 150_000)
                async for event in bob.events():
                    if isinstance(event, MessageSent):
                        break
                await within(60, lambda: program.count("bob: yyy") == 1)
                assert stranger.session.stats.malformed >= 4
                await stranger.close()
                await bob.close()

    anyio.run(act, backend="trio")
    assert [len(message) for message in heard] == [2_500, 6, 5]
    before, _, _, third = epochs
    assert third >= before + 2
    assert not (node.folder / "data" / "channels").exists()


def test_a_node_refuses_a_key_that_is_none(
    new_node: Callable[[str], NodeProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`node check` and `node run` say so alike, and nothing is started."""
    assert main(["keys", "new", str(tmp_path / "alice.pem")]) == 0
    node = new_node("own")
    node.sections["channel"] = {"encryption_key_file": str(tmp_path / "alice.pem")}
    node.write_config()
    capsys.readouterr()

    assert main(["node", "check", "--config", str(node.config)]) == 1
    assert "no shared key" in capsys.readouterr().err
    code, said = node.run_to_end()
    assert code == 1
    assert "no shared key" in said


def metrics(node: NodeProcess) -> dict[str, float]:
    """Return what the node's page says of channels in its process."""
    runtime = read_runtime(node.folder / "data")
    assert runtime is not None
    with urllib.request.urlopen(f"http://{runtime.http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r'luxrelay_channel_payloads_total\{what="(\w+)"\} (\S+)', text)
    return {what: float(value) for what, value in found}


def test_an_open_node_has_channels_on_any_topic(
    new_node: Callable[[str], NodeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    """It follows the topic that a channel is opened on; no configuration names it (J6)."""
    relay: Any = new_node("relay-1")
    relay.topics = []
    relay.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    relay.sections["gossip"]["carry"] = "open"
    relay.runtime = relay.start()
    node = own(new_node, relay)
    node.topics = []
    node.sections["gossip"]["carry"] = "open"
    secret = token(relay, capsys)

    async def act() -> None:
        async with AsyncRelayClient(relay.runtime.gateway, token=secret) as client:
            layer = RemoteMessaging(client, SigningKey.generate())
            bob = await create_reliable_channel(layer, "room", TOPIC, "bob")
            with embedded(node) as program:
                await within(120, lambda: program.count("in room") == 1)
                program.write("hello")
                await bob.send(b"good day")
                async for event in bob.events():
                    if isinstance(event, MessageReceived):
                        assert event.message == b"hello"
                        break
                await within(120, lambda: program.count("bob: good day") == 1)
                told = await anyio.to_thread.run_sync(metrics, node)
                assert told["received"] >= 2  # what comes back of its own as well
                assert told["sent"] >= 1
                assert told["dropped"] == 0
                await bob.close()

    anyio.run(act, backend="trio")
