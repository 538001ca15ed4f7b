"""The commands that speak to a gateway: subscribe, channel chat, channel send."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from luxrelay.cli.channel import PART_BYTES, _Files, _Part, bar
from luxrelay.cli.main import main

from .conftest import TOPIC, Stand, now_ms

pytestmark = pytest.mark.slow


@pytest.fixture
def speak(
    stand: Stand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> list[str]:
    """Arguments that every command takes, with a token in the environment and two keys."""
    monkeypatch.setenv("LUXRELAY_TOKEN", stand.token("read", "publish"))
    for name in ("alice", "bob"):
        assert main(["keys", "new", str(tmp_path / f"{name}.pem")]) == 0
    capsys.readouterr()
    return ["--gateway", stand.address, "--topic", TOPIC]


def test_subscribe_prints_and_goes_on_from_its_place(
    stand: Stand, speak: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second call with the same place prints only what came since."""
    signer = stand.store_line(3)
    place = str(tmp_path / "place.json")
    arguments = ["subscribe", *speak, "--place", place]

    assert main([*arguments, "--count", "3", "--json"]) == 0
    first = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    stand.publish([signer.sign(b"later \x1b[31m", now_ms())])
    assert main([*arguments, "--count", "1"]) == 0
    second = capsys.readouterr().out

    assert [each["header"]["seq"] for each in first] == [1, 2, 3]
    assert second.count("\n") == 1
    assert " 4  later ·[31m" in second
    (tmp_path / "place.json").write_text("[]")
    assert main(arguments) == 1
    assert "no positions" in capsys.readouterr().err


def test_subscribe_says_that_it_waits(
    stand: Stand, speak: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody there: said at once and once, and the wait goes on; the node comes, and so do they."""
    stand.store_line(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    del monkeypatch
    command = [sys.executable, "-m", "luxrelay", "subscribe", *speak, "--count", "1"]
    command[command.index(stand.address)] = f"127.0.0.1:{port}"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        first = run.stderr.readline()
        target = stand.address.rpartition(":")
        with _passage(port, (target[0], int(target[2]))):
            told, said = run.communicate(timeout=120)

    assert "cannot be reached: Connection refused" in first
    assert first.endswith("trying again\n")
    assert "cannot be reached" not in said
    assert "connected again" in said
    assert "message 1" in told


@contextmanager
def _passage(port: int, target: tuple[str, int]) -> Iterator[None]:
    """Lead one connection to the port on to a listener elsewhere."""

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def lead() -> None:
        stream, _ = listener.accept()
        with stream, socket.create_connection(target) as onward:
            back = threading.Thread(target=copy, args=(onward, stream))
            back.start()
            copy(stream, onward)
            back.join()

    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=lead, daemon=True)
        thread.start()
        yield
        thread.join(60)


def test_subscribe_names_what_is_wrong(
    speak: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A token that is none ends with one line."""
    os.environ["LUXRELAY_TOKEN"] = "lrt_00000000_" + "A" * 43

    assert main(["subscribe", *speak]) == 1
    assert "gateway.token" in capsys.readouterr().err


def test_a_file_and_a_line_arrive(
    stand: Stand, speak: list[str], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """What `channel send` and `channel chat` send is what another's chat keeps and prints."""
    content = os.urandom(2 * PART_BYTES + 777)
    (tmp_path / "photo.jpg").write_bytes(content)
    saved = tmp_path / "saved"
    command = [sys.executable, "-m", "luxrelay", "channel"]
    alice, bob = ([*speak, "--key", str(tmp_path / f"{name}.pem")] for name in ("alice", "bob"))

    with subprocess.Popen(
        [*command, "chat", "room", *bob, "--save", str(saved)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as chat:
        eventually(lambda: stand.service.stats().streams.subscriptions >= 1)
        code = main(["channel", "send", str(tmp_path / "photo.jpg"), "--channel", "room", *alice])
        line = subprocess.run(
            [*command, "chat", "room", *alice],
            input=b"hello there\n",
            capture_output=True,
            timeout=120,
            check=False,
        )
        said, _ = chat.communicate("", timeout=120)

    assert (code, line.returncode, chat.returncode) == (0, 0, 0)
    assert (saved / "photo.jpg").read_bytes() == content
    assert f"sent the file photo.jpg -> {saved}/photo.jpg" in said
    assert ": hello there\n" in said


def test_nobody_there_is_said(
    speak: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that nobody acknowledges ends with what to do, and a missing one with its name."""
    key = ["--key", str(tmp_path / "alice.pem"), "--channel", "room"]
    (tmp_path / "note.txt").write_bytes(b"note")

    assert main(["channel", "send", str(tmp_path / "note.txt"), *speak, *key, "--wait-s", "1"]) == 1
    assert "is somebody else in the channel?" in capsys.readouterr().err
    assert main(["channel", "send", str(tmp_path / "none"), *speak, *key]) == 1
    assert "none" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", ".bashrc", "a\x00b", ".."])
def test_a_file_is_never_written_elsewhere(tmp_path: Path, name: str) -> None:
    """A sender chooses a name, not a place, and replaces nothing that is there."""
    folder = tmp_path / "saved"
    files = _Files(folder)
    for _ in range(2):
        files.take("x", _Part(name.replace("\x00", "_"), "id/../..", 0, 1, b"data").encode())

    inside = [path for path in folder.iterdir() if path.is_file()]
    assert len(inside) == 2
    assert not any(path.name.startswith(".") for path in inside)
    assert sorted(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\n",
        b"[]\n",
        b'{"name":"x"}\n',
        b'{"part":5}\n',
        b'{"name":"x","id":"y","part":Infinity,"parts":1}\n',
    ],
)
def test_a_broken_part_is_passed_over(message: bytes) -> None:
    """What is no part of a file is no reason to stop."""
    assert _Files(None).take("x", b"\x00file\x00" + message) == ""


def test_the_bar_grows() -> None:
    """It shows how much is acknowledged."""
    assert bar(0, 4, 1000, 8) == "[░░░░░░░░] 0 of 1,000 bytes"
    assert bar(2, 4, 1000, 8) == "[████░░░░] 500 of 1,000 bytes"
    assert bar(4, 4, 1000, 8) == "[████████] 1,000 of 1,000 bytes"
