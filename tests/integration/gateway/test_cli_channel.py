"""channel chat and channel send as people run them: processes beside a relay that is one too."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from luxrelay.cli.main import main

pytestmark = pytest.mark.slow
TOPIC = "/chat/1/room"


class Talk:
    """A command that talks, and what it has said."""

    def __init__(self, words: list[str], environ: dict[str, str]) -> None:
        """Start it."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "luxrelay", "channel", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environ,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines))
            for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        with stream:
            lines += (line.rstrip("\n") for line in iter(stream.readline, ""))

    def say(self, *lines: str) -> None:
        """Type lines."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines))
        self.process.stdin.flush()

    def told(self, word: str) -> bool:
        """Return whether it has told a person something."""
        assert self.process.poll() is None, self.err
        return any(word in line for line in list(self.err))

    def heard(self) -> list[str]:
        """Return the texts of others, of plain lines or of JSON."""
        lines = list(self.out)
        if lines and lines[0].startswith("{"):
            events = [json.loads(line) for line in lines]
            return [each["message"] for each in events if each["event"].endswith("received")]
        return [line.partition(": ")[2] for line in lines]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the JSON events of a name."""
        return [each for each in map(json.loads, list(self.out)) if each["event"] == name]

    def end(self, number: int | None = None) -> int:
        """End its input, or send it a signal; return its code."""
        assert self.process.stdin is not None
        if number is not None:
            self.process.send_signal(number)
        self.process.stdin.close()
        code = self.process.wait(120)
        for reader in self._readers:
            reader.join(60)
        return code


class People:
    """Keys, tokens and commands of participants at one relay."""

    def __init__(self, relay: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Make keys and a token."""
        self.folder = folder
        scopes = ["--scope", "read", "--scope", "publish"]
        for name in ("alice", "bob", "eve"):
            assert main(["keys", "new", str(folder / f"{name}.pem")]) == 0
        assert main(["keys", "new-shared", str(folder / "room.key")]) == 0
        assert main(["node", "token", "new", "--config", str(relay.config), *scopes, "test"]) == 0
        (token,) = re.findall(r"lrt_\S+", capsys.readouterr().out)
        self.environ = {"LUXRELAY_TOKEN": token, "XDG_DATA_HOME": str(folder / "home")}
        self._gateway = relay.runtime.gateway
        self.running: list[Talk] = []

    def words(self, name: str, *options: str) -> list[str]:
        """Return the options of a participant."""
        key = str(self.folder / f"{name}.pem")
        return ["--gateway", self._gateway, "--topic", TOPIC, "--key", key, *options]

    def chat(self, name: str, *options: str) -> Talk:
        """Start a chat."""
        talk = Talk(["chat", "room", *self.words(name, *options)], self.environ)
        self.running.append(talk)
        return talk

    def send(self, name: str, file: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Send a file."""
        return subprocess.run(
            [
                *(sys.executable, "-m", "luxrelay", "channel", "send", str(file)),
                *("--channel", "room", *self.words(name, *options)),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env=os.environ | self.environ,
        )


@pytest.fixture
def signing() -> str:
    """How the network of the relay signs."""
    return "literal"


@pytest.fixture
def people(
    new_node: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], signing: str
) -> Iterator[People]:
    """Participants at a relay of their own; their commands end with the test."""
    relay = new_node("relay-1")
    relay.sections["node"]["signing"] = signing
    relay.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    relay.runtime = relay.start()
    found = People(relay, tmp_path, capsys)
    yield found
    for talk in found.running:
        if talk.process.poll() is None:
            talk.end(signal.SIGKILL)


def test_a_killed_chat_goes_on_with_what_it_had_to_send(
    people: People, eventually: Callable[..., Any]
) -> None:
    """Its state is kept without an option: killed, the next one sends the rest, each line once."""
    bob = people.chat("bob")
    eventually(lambda: bob.told("in room"))
    alice = people.chat("alice", "--json", "--acknowledgement-timeout-ms", "1000")
    eventually(lambda: alice.told("in room"))
    assert alice.told(f"state is kept in {people.folder}/home/luxrelay/channels")
    alice.say(*(f"line {n}" for n in range(300)))
    eventually(lambda: len(bob.heard()) >= 20)
    alice.end(signal.SIGKILL)
    sent = [each["message"] for each in alice.events("sending") if "message" in each]
    ended = len(alice.events("reliable:message:sent"))
    assert ended < len(sent) < 301

    again = people.chat("alice", "--json", "--acknowledgement-timeout-ms", "1000")
    eventually(lambda: again.told("unacknowledged messages of before are sent again"))
    again.say("last")
    eventually(lambda: "last" in bob.heard())
    assert again.end() == 0
    resumed = len(again.events("reliable:message:sent")) - 1

    lines = bob.heard()
    expected = [f"line {n}" for n in range(300)]
    assert lines[: len(sent)] == expected[: len(sent)] == sent
    assert lines[len(sent) :] in (["last"], [expected[len(sent)], "last"])
    assert resumed >= len(sent) - ended
    assert not any("not acknowledged" in line for line in again.err)
    assert bob.end() == 0


def test_a_key_keeps_others_out(people: People, eventually: Callable[..., Any]) -> None:
    """Who has the key reads, who has not hears nothing; in the clear is said, once."""
    key = ["--encryption-key", str(people.folder / "room.key")]
    bob, eve = people.chat("bob", *key), people.chat("eve")
    alice = people.chat("alice", *key)
    for each in (alice, bob, eve):
        eventually(lambda each=each: each.told("in room"))

    alice.say("for bob alone")
    eve.say("in the clear")
    eventually(lambda: "for bob alone" in bob.heard())

    assert alice.end() == 0
    assert sum("not encrypted" in line for line in eve.err) == 1
    assert not any("not encrypted" in line for line in alice.err + bob.err)
    assert eve.heard() == []
    assert bob.heard() == ["for bob alone"]


def test_numbers_of_a_channel_are_options(people: People, eventually: Callable[..., Any]) -> None:
    """Segments, pace and patience are as they are said, and each segment has its request id."""
    options = [
        *("--segment-size-bytes", "500", "--causal-history-size", "5"),
        *("--messages-per-epoch", "1", "--epoch-size-ms", "3000"),
        *("--acknowledgement-timeout-ms", "300", "--max-retransmissions", "100", "--json"),
    ]
    bob = people.chat("bob", "--no-state")
    eventually(lambda: bob.told("state is not kept"))
    alice = people.chat("alice", *options)
    eventually(lambda: alice.told("in room"))

    epoch = time.time_ns() // 3_000_000_000
    alice.say("x" * 1_000, "second", "third")
    eventually(lambda: len(alice.events("reliable:message:sent")) == 3)
    assert time.time_ns() // 3_000_000_000 >= epoch + 2
    first, second, third = alice.events("reliable:message:sent")
    began, *_ = alice.events("sending")

    assert [each["requestId"] for each in began["segments"]] == [
        each["requestId"] for each in first["segments"]
    ]
    assert len({each["requestId"] for each in first["segments"]}) >= 3
    assert all(each["acknowledged"] for each in first["segments"])
    assert len(second["segments"]) == len(third["segments"]) == 1
    assert bob.heard() == ["x" * 1_000, "second", "third"]
    assert alice.end() == 0

    lonely = people.chat("eve", "--no-state", "--acknowledgement-timeout-ms", "50",
                         "--max-retransmissions", "1")  # fmt: skip
    assert bob.end() == 0
    eventually(lambda: lonely.told("in room"))
    lonely.say("is anybody there?")
    eventually(lambda: lonely.told("no acknowledgement after 1 retransmissions"))
    assert lonely.end() == 0


def test_a_pace_holds_a_file_back_and_says_so(
    people: People, eventually: Callable[..., Any]
) -> None:
    """A file of two messages in an epoch of one is not through in time, and why is told."""
    bob = people.chat("bob")
    eventually(lambda: bob.told("in room"))
    file = people.folder / "photo.jpg"
    file.write_bytes(os.urandom(300_000))

    done = people.send("alice", file, "--messages-per-epoch", "1", "--epoch-size-ms", "86400000",
                       "--wait-s", "5")  # fmt: skip

    assert done.returncode == 1
    assert "a message of an epoch" in done.stderr
    assert bob.end() == 0


def test_a_file_goes_beside_a_chat_with_one_key(
    people: People, eventually: Callable[..., Any]
) -> None:
    """`channel send` takes neither the state nor the lines of a chat; JSON tells its parts."""
    saved = people.folder / "saved"
    bob = people.chat("bob", "--json", "--save", str(saved))
    alice = people.chat("alice")
    for each in (alice, bob):
        eventually(lambda each=each: each.told("in room"))
    file = people.folder / "photo.jpg"
    file.write_bytes(os.urandom(300_000))

    done = people.send("alice", file, "--json")
    bob.say("thank you")
    eventually(lambda: "thank you" in alice.heard())
    eventually(lambda: bob.events("reliable:message:sent"))

    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["bytes"] == 300_000
    assert [len(part["segments"]) >= 3 for part in shown["parts"]] == [True, True]
    eventually((saved / "photo.jpg").exists)
    assert (saved / "photo.jpg").read_bytes() == file.read_bytes()
    assert (alice.end(), bob.end()) == (0, 0)


def test_one_state_has_one_command(people: People, eventually: Callable[..., Any]) -> None:
    """A second chat with one key is refused, and told which options help."""
    first = people.chat("alice")
    eventually(lambda: first.told("in room"))

    second = people.chat("alice")
    assert second.end() == 1
    assert any("has room open; --state DIR" in line for line in second.err)
    third = people.chat("alice", "--state", str(people.folder / "elsewhere"))
    eventually(lambda: third.told(f"state is kept in {people.folder}/elsewhere"))
    assert (third.end(), first.end()) == (0, 0)


def test_a_file_that_is_no_shared_key_is_refused(
    people: People, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is sent, and what makes one is named."""
    words = people.words("alice", "--encryption-key", str(people.folder / "bob.pem"))

    assert main(["channel", "chat", "room", *words]) == 1
    said = capsys.readouterr().err
    assert "no shared key" in said
    assert "keys new-shared" in said


@pytest.mark.parametrize("signing", ["bound"])
def test_a_network_with_bound_signatures_is_named(
    people: People, eventually: Callable[..., Any]
) -> None:
    """A line goes over where the signatures are bound to the network's name (H3)."""
    bob, alice = (people.chat(name, "--bound", "test") for name in ("bob", "alice"))
    for each in (alice, bob):
        eventually(lambda each=each: each.told("in room"))

    alice.say("hello")
    eventually(lambda: "hello" in bob.heard())

    assert alice.end() == 0
