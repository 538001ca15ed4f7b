"""The demonstration, as a user runs it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from luxrelay.cli.demo.relays import STOP_S
from luxrelay.cli.main import main
from luxrelay.node.folder import read_runtime

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def test_demo_from_signer_to_archive(tmp_path: Path) -> None:
    """Real relays, an outage, a rogue and Spark: everything held, and the report says so."""
    out = tmp_path / "out"
    done = subprocess.run(
        [
            sys.executable, "-m", "luxrelay", "demo", "--messages", "600", "--relays", "3",
            "--corrupt", "18", "--out", str(out), "--json",
        ],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((out / "report.json").read_text())
    assert report["ok"]
    assert [relay["stored"] for relay in report["relays"]] == [600, 600, 600]
    away = report["relays"][2]
    assert away["missed_while_offline"] == away["recovered"] > 0
    assert (report["corrupt"]["sent"], report["corrupt"]["stored"]) == (18, 0)
    assert report["corrupt"]["rejected"] >= 18
    assert (report["archive"]["rows"], report["archive"]["gaps"]) == (600, 0)
    assert report["archive"]["duplicates"] == 0
    assert report["archive"]["copies"] == 1800
    assert set(report["latency_ms"]) == {"p50", "p95", "p99"}
    assert set(report["seconds"]) == {"publish", "catch_up", "archive", "total"}

    page = (out / "report.html").read_text()
    assert page.count("<svg") >= 3
    assert "relay-3 is down" in page
    assert not re.search(r'(src|href)="https?:', page)


def is_running(pid: int) -> bool:
    """Return whether a process is there and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"  # nobody may have waited for it yet


@pytest.fixture
def running_demo(
    tmp_path: Path, eventually: Callable[..., Any]
) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A demonstration that publishes, and the processes of its two relays."""
    out = tmp_path / "out"
    demo = subprocess.Popen(
        [
            sys.executable, "-m", "luxrelay", "demo", "--messages", "4000", "--relays", "2",
            "--corrupt", "0", "--rate", "100", "--out", str(out),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    relays: list[int] = []
    try:
        for name in ("relay-1", "relay-2"):
            folder = out / "relays" / name / "data"
            relays.append(eventually(lambda folder=folder: read_runtime(folder)).pid)
        yield demo, relays
    finally:
        demo.kill()
        demo.wait()
        for pid in filter(is_running, relays):
            os.kill(pid, signal.SIGKILL)


def test_demo_that_is_terminated_leaves_no_relay(
    running_demo: tuple[subprocess.Popen[bytes], list[int]],
) -> None:
    """SIGTERM stops the relays, as Ctrl-C does."""
    demo, relays = running_demo

    demo.terminate()

    assert demo.wait(30) in {130, -signal.SIGINT}
    assert not any(map(is_running, relays))


def test_impatient_interrupts_leave_no_relay(
    running_demo: tuple[subprocess.Popen[bytes], list[int]], eventually: Callable[..., Any]
) -> None:
    """A second Ctrl-C ends a relay that does not stop, and the others have ended before."""
    demo, relays = running_demo
    os.kill(relays[0], signal.SIGSTOP)  # it takes no SIGTERM now

    demo.send_signal(signal.SIGINT)
    eventually(lambda: not is_running(relays[1]), STOP_S / 2)
    demo.send_signal(signal.SIGINT)

    assert demo.wait(STOP_S / 2) in {130, -signal.SIGINT}
    assert not any(map(is_running, relays))


def test_demo_refuses_a_foreign_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with other things in it is refused in one line and stays as it was."""
    (tmp_path / "thesis.tex").write_text("precious")

    assert main(["demo", "--out", str(tmp_path)]) == 1

    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("content", "word"), [("nonsense\n", "chat.jsonl:1"), ("", "holds 0 messages")]
)
def test_demo_refuses_broken_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, word: str
) -> None:
    """A broken or empty input file is one line that names it, before anything is started."""
    path = tmp_path / "chat.jsonl"
    path.write_text(content)

    assert main(["demo", "--input", str(path), "--out", str(tmp_path / "out")]) == 1

    assert word in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
