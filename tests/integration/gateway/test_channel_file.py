"""A large file over a reliable channel, three relays, one of them killed on the way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxrelay.cli.main import main

pytestmark = pytest.mark.slow
TOPIC = "/chat/1/room"
FILE_BYTES = int(os.environ.get("LUXRELAY_FILE_BYTES", str(1024 * 1024)))
"""Size of the file; `make chaos` sends 5 MiB."""


def meshed(relays: list[Any]) -> None:
    """Start relays that know each other, each with a gateway."""
    for number, relay in enumerate(relays):
        relay.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
        before = [other.runtime for other in relays[:number]]
        relay.sections["gossip"]["peers"] = [other.gossip[0] for other in before]
        relay.sections["sync"]["peers"] = [other.sync for other in before]
        relay.runtime = relay.start()


def token(relay: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """Return a token of a running relay that may read and publish."""
    scopes = ["--scope", "read", "--scope", "publish"]
    assert main(["node", "token", "new", "--config", str(relay.config), *scopes, "test"]) == 0
    (found,) = re.findall(r"lrt_\S+", capsys.readouterr().out)
    return str(found)


def test_a_file_arrives_whole_although_a_relay_dies(
    new_node: Callable[[str], Any],
    eventually: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One of three is killed while the file travels, and comes back."""
    relays = [new_node(f"relay-{n}") for n in (1, 2, 3)]
    meshed(relays)
    content = os.urandom(FILE_BYTES)
    (tmp_path / "photo.jpg").write_bytes(content)
    for name in ("alice", "bob"):
        assert main(["keys", "new", str(tmp_path / f"{name}.pem")]) == 0
    capsys.readouterr()
    command = [sys.executable, "-m", "luxrelay", "channel"]

    def speak(relay: Any, name: str) -> tuple[list[str], dict[str, str]]:
        gateway = ["--gateway", f"http://{relay.runtime.gateway}", "--topic", TOPIC]
        key = ["--key", str(tmp_path / f"{name}.pem")]
        return [*gateway, *key], {**os.environ, "LUXRELAY_TOKEN": token(relay, capsys)}

    where = relays[1].runtime.gossip[0]
    bob, bobs = speak(relays[2], "bob")
    alice, alices = speak(relays[0], "alice")
    saved = tmp_path / "saved"
    with subprocess.Popen(
        [*command, "chat", "room", *bob, "--save", str(saved)],
        env=bobs,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ) as chat:
        with subprocess.Popen(
            [*command, "send", str(tmp_path / "photo.jpg"), "--channel", "room", *alice],
            env=alices,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as send:
            eventually(lambda: any(saved.glob("*")) or send.poll() is not None, 120)
            relays[1].kill()
            relays[1].sections["gossip"]["listen"] = [where.split("/p2p/")[0]]
            relays[1].sections["sync"]["listen"] = relays[1].runtime.sync
            relays[1].start()
            _, said = send.communicate(timeout=400)
        chat.communicate(b"", timeout=60)

    assert send.returncode == 0, said.decode()
    assert (saved / "photo.jpg").read_bytes() == content
