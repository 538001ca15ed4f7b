"""What keeps a node from starting says which key, which file, and what to do: `check` as `run`."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.trial]
TOPIC = "/chat/1/room"


def command(*words: str, environ: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run the command; return its exit code, its output and its errors."""
    done = subprocess.run(
        [sys.executable, "-m", "luxrelay", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **(environ or {})},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("gossip", "listen"),
        ("sync", "listen"),
        ("http", "listen"),
        ("gateway", "listen"),
        ("gateway", "admin_listen"),
        ("gateway", "grpc_listen"),
        ("gateway", "grpc_admin_listen"),
    ],
)
def test_a_port_that_is_taken_is_named_with_its_key(
    new_node: Callable[[str], Any], section: str, key: str
) -> None:
    """An address alone sends its operator to look for it in seven places."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = new_node("relay-1")
        node.sections["node"]["restart_modules"] = False
        names = ("listen", "admin_listen", "grpc_listen", "grpc_admin_listen")
        node.sections["gateway"] = dict.fromkeys(names, "127.0.0.1:0")
        address = f"127.0.0.1:{port}"
        multi = f"/ip4/127.0.0.1/tcp/{port}"
        node.sections[section][key] = [multi] if section == "gossip" else address
        node.write_config()
        code, said = node.run_to_end()
    assert code == 1
    assert f"[{section}] {key}" in said.splitlines()[-1]
    assert str(port) in said.splitlines()[-1]


@pytest.mark.parametrize("content", [None, b"", b"garbage\n"])
def test_a_lost_or_broken_identity_says_how_the_rest_is_kept(
    new_node: Callable[[str], Any], content: bytes | None
) -> None:
    """What the line says works: a new key, the same store and tokens."""
    node = new_node("relay-1")
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    node.start()
    words = ("--scope", "read", "ann")
    made = command("node", "token", "new", "--config", str(node.config), *words)
    assert made[0] == 0, made
    assert node.stop() == 0
    identity: Path = node.folder / "data" / "identity.pem"
    identity.unlink()
    if content is not None:
        identity.write_bytes(content)
        identity.chmod(0o600)
    code, said = node.run_to_end()
    assert code == 1
    assert "put back a copy" in said
    assert "luxrelay keys new" in said
    identity.unlink(missing_ok=True)
    assert command("keys", "new", str(identity))[0] == 0
    node.start()
    assert node.stop() == 0
    assert "ann" in command("node", "token", "list", "--config", str(node.config))[1]


@pytest.mark.parametrize("action", ["check", "run"])
def test_a_pipe_or_a_device_is_no_configuration(tmp_path: Path, action: str) -> None:
    """One clear error at once in both; `check` said that keys were missing."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (str(pipe), "/dev/null", "/dev/zero"):
        code, _, said = command("node", action, "--config", path)
        assert code == 1
        assert said.count("\n") == 1
        assert "no regular file" in said
        assert "data_dir" not in said


@pytest.mark.parametrize("section", ["sync", "gateway"])
def test_check_refuses_tls_files_that_run_refuses(
    new_node: Callable[[str], Any], section: str
) -> None:
    """Both name the file; a certificate that is none, and one that is not there."""
    node = new_node("relay-1")
    node.sections["node"]["restart_modules"] = False
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    node.sections[section] |= {"tls_certificate": "cert.pem", "tls_key": "key.pem"}
    node.write_config()
    for content in (None, "no certificate\n"):
        if content is not None:
            (node.folder / "cert.pem").write_text(content)
            (node.folder / "key.pem").write_text(content)
        code, _, said = command("node", "check", "--config", str(node.config))
        assert code == 1
        assert f"[{section}]" in said
        assert "cert.pem" in said
        code, said = node.run_to_end()
        assert code == 1
        assert "cert.pem" in said


def test_variables_with_mistyped_names_are_told(new_node: Callable[[str], Any]) -> None:
    """One that is nearly a key's is refused with what was meant; one that names nothing is told."""
    node = new_node("relay-1")
    node.write_config()
    words = ("node", "check", "--config", str(node.config))
    for name, meant in (
        ("LUXRELAY_STROE_TTL_MS", "LUXRELAY_STORE_TTL_MS"),
        ("LUXRELAY_STORE_TTL_SM", "LUXRELAY_STORE_TTL_MS"),
        ("LUXRELAY_GATEWAY_LISTNE", "LUXRELAY_GATEWAY_LISTEN"),
    ):
        code, _, said = command(*words, environ={name: "60000"})
        assert code == 1
        assert f"no key is called {name}" in said
        assert f"did you mean {meant}?" in said
    code, out, said = command(*words, "--json", environ={"LUXRELAY_NOPE": "1"})
    assert (code, said) == (0, "")
    assert "LUXRELAY_NOPE" in json.loads(out)["doubts"][0]
    quiet = {"LUXRELAY_TOKEN": "x", "LUXRELAY_KILLS": "1", "LUXRELAY_BENCH_ROWS": "1"}
    quiet |= {"LUXRELAY_SERVICE_HOST": "10.0.0.1", "LUXRELAY_SYNC_PORT_9641_TCP": "tcp://10.0.0.1"}
    assert command(*words, environ=quiet)[::2] == (0, "")
