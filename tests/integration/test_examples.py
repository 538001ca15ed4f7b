"""The examples run as they stand."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    """Run an example and return what it printed."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_drive_the_router() -> None:
    """A message published at one router is delivered at the other, and only there."""
    said = run("drive_the_router.py")
    assert said.startswith("bob received a message on /lux/devnet/relay/namespace/")
    assert said.count("\n") == 1


def test_custom_policy() -> None:
    """The policy has one encoding, and its hash is shown."""
    assert "policy hash" in run("custom_policy.py")


def test_publish_and_read(new_node: Callable[[str], Any]) -> None:
    """An application publishes to a real relay and reads its lane back."""
    runtime = new_node("relay-1").start()

    said = run("publish_and_read.py", runtime.sync, "/chat/1/room").splitlines()

    assert said == ["stored"] * 3 + ["1 hello", "2 is anybody here?", "3 good night"]


def test_every_example_is_run() -> None:
    """No example stands here that no test runs."""
    text = Path(__file__).read_text()
    assert all(path.name in text for path in EXAMPLES.glob("*.py"))


def test_chat() -> None:
    """Two hear every line of each other over a bad network, and know that theirs arrived."""
    said = run("chat.py")
    assert said.count(" hears ") == 4
    assert said.count(" has arrived") == 4


def test_encrypted_state() -> None:
    """A message goes over, and the disk does not tell it."""
    assert run("encrypted_state.py") == "alice: a very secret line\nthe disk keeps the secret\n"


def test_simulate() -> None:
    """More mesh peers cost more copies, and each line says how fast it is."""
    lines = run("simulate.py").splitlines()

    assert [line.split(":")[0] for line in lines] == ["d_lo = 2", "d_lo = 4", "d_lo = 6"]
    duplicates = [float(line.split(", ")[1].split()[0]) for line in lines]
    assert duplicates == sorted(set(duplicates))


def test_node_with_channel(new_node: Callable[[str], Any]) -> None:
    """A relay with a channel in it begins and ends; test_node_channel.py has it talk."""
    node = new_node("relay-1")
    node.write_config()
    (topic,) = node.topics

    said = run("node_with_channel.py", str(node.config), "room", topic, "alice")

    assert said == "in room, open requests: 0\n"
