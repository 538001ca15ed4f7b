"""The examples of the page on clients run as they stand, and the page shows them as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from luxrelay.bus import SigningKey
from luxrelay.client import LaneSigner

from .conftest import PARENT, TOPIC, Stand, now_ms

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "http"


def run(stand: Stand, command: list[str], *arguments: str, timeout_s: float = 120) -> str:
    """Run an example and return what it printed."""
    done = subprocess.run(
        [*command, TOPIC, *arguments],
        env={
            **os.environ,
            "GATEWAY": stand.address,
            "TOKEN": stand.token("read", "publish"),
            "NODE_NO_WARNINGS": "1",
        },
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tool(name: str) -> str:
    """Return the path of a tool, or skip and say that it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_python(stand: Stand) -> None:
    """The Python example publishes and follows."""
    stand.store_line(1)

    said = run(stand, [sys.executable, str(EXAMPLES / "publish_and_follow.py")]).splitlines()

    assert said[0] == "stored"
    assert sorted(said[1:]) == ["1 hello from Python", "1 message 1"] or said[1:] == [
        "1 hello from Python"
    ]


def test_javascript(stand: Stand) -> None:
    """The JavaScript example signs by itself, publishes and follows."""
    node = tool("node")
    flag = ["--experimental-websocket"] if _major(node) < 22 else []

    said = run(stand, [node, *flag, str(EXAMPLES / "publish_and_follow.mjs")])

    assert said == "stored\n1 hello from JavaScript\n"


def _major(node: str) -> int:
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    return int(version.lstrip("v").partition(".")[0])


def test_go(stand: Stand, tmp_path: Path) -> None:
    """The Go example signs by itself, publishes and reads back."""
    go = tool("go")
    program = tmp_path / "example"
    subprocess.run(
        [go, "build", "-o", str(program), str(EXAMPLES / "publish_and_read.go")],
        env={**os.environ, "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"},
        check=True,
        timeout=300,
    )

    assert run(stand, [str(program)]) == "stored true\n1 hello from Go\n"


def test_curl(stand: Stand, tmp_path: Path) -> None:
    """The shell example publishes bytes and reads."""
    tool("curl")
    signer = LaneSigner(SigningKey.generate(), PARENT)
    (tmp_path / "message.bin").write_bytes(signer.sign(b"hello", now_ms()).encode())

    said = run(stand, ["sh", str(EXAMPLES / "publish_and_read.sh")], str(tmp_path / "message.bin"))

    topic, receipts, messages, heads = said.splitlines()
    assert PARENT.hex() in topic
    assert '"stored":true' in receipts
    assert "aGVsbG8=" in messages
    assert signer.namespace_id.hex() in heads


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_the_page_shows_them_as_they_are(path: Path) -> None:
    """What is printed in the page is the file that is run."""
    assert path.read_text() in (ROOT / "docs" / "how-to" / "write-a-client.md").read_text()
    assert path.name in Path(__file__).read_text()
