"""Signals at every moment of a node's life: while it loads, while it serves, while it stops."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from luxrelay.node.folder import read_runtime

pytestmark = [pytest.mark.slow, pytest.mark.trial]


def heeds(process: subprocess.Popen[bytes], number: int) -> bool:
    """Return whether a process has a handler of its own for a signal."""
    assert process.poll() is None
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    raise AssertionError("the system tells nothing of a process's signals")


@contextmanager
def loading(
    node: Any, number: int, eventually: Callable[..., Any]
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a node that has just begun: it heeds signals and loads its libraries."""
    node.write_config()
    with (node.folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "luxrelay", "node", "run", "--config", str(node.config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    node.process = process
    # Python has a handler for SIGINT from its start; for SIGHUP only we have one.
    eventually(lambda: heeds(process, signal.SIGHUP))
    process.send_signal(number)
    yield process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_during_the_start_ends_it_with_0_and_a_line(
    new_node: Callable[[str], Any], eventually: Callable[..., Any], number: signal.Signals
) -> None:
    """Nothing is open yet: it ends at once, and says so."""
    node = new_node("relay-1")
    with loading(node, number, eventually) as process:
        assert process.wait(60) == 0
    said = (node.folder / "log").read_text()
    assert f"{number.name} during the start: nothing was open yet; stopped" in said
    assert "Traceback" not in said


def test_sighup_during_the_start_is_answered_by_a_reload(
    new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """It does not end the node; the file is read again once it is ready."""
    node = new_node("relay-1")
    with loading(node, signal.SIGHUP, eventually) as process:

        def reloaded() -> bool:
            assert process.poll() is None, (node.folder / "log").read_text()
            return '"event": "reloaded"' in (node.folder / "log").read_text()

        eventually(reloaded)
    assert "SIGHUP during the start" in (node.folder / "log").read_text()
    assert read_runtime(node.folder / "data") is not None
    assert node.stop() == 0


def test_a_second_signal_ends_a_stopping_node_at_once_with_3(
    new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """It says so; one that is quick enough to be stopped already has ended with 0."""
    node = new_node("relay-1")
    node.start()
    process = node.process
    process.send_signal(signal.SIGTERM)
    eventually(lambda: '"event": "stopping"' in (node.folder / "log").read_text())
    process.send_signal(signal.SIGTERM)
    code = process.wait(60)
    said = (node.folder / "log").read_text()
    if code == 0:
        assert '"event": "stopped"' in said
    else:
        assert code == 3
        assert "a second signal; ended at once" in said
    again = node.start()  # nothing that was acknowledged is lost, and no lock is left
    assert again.pid == node.process.pid
    node.process.send_signal(signal.SIGTERM)
    node.process.send_signal(signal.SIGHUP)  # what would be read again is used no more
    assert node.process.wait(60) == 0
