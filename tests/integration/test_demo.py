"""The demonstration, as a user runs it."""

import html
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from luxrelay.cli.demo.archiving import PACKAGES
from luxrelay.cli.demo.relays import STOP_S, RelayProcess
from luxrelay.cli.main import main
from luxrelay.node.folder import read_runtime

pytestmark = pytest.mark.slow


@pytest.mark.spark
def test_demo_from_signer_to_archive(tmp_path: Path) -> None:
    """Real relays, an outage, a rogue and Spark: everything held, and the report says so."""
    out = tmp_path / "out"
    done = subprocess.run(
        [
            sys.executable, "-m", "luxrelay", "demo", "--messages", "600", "--relays", "3",
            "--corrupt", "60", "--out", str(out), "--json",
        ],
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((out / "report.json").read_text())
    assert report["ok"]
    assert [relay["stored"] for relay in report["relays"]] == [600, 600, 600]
    away = report["relays"][2]
    assert away["missed_while_offline"] == away["recovered"] > 0
    assert_accounted(report, 60)
    assert (report["archive"]["rows"], report["archive"]["gaps"]) == (600, 0)
    assert report["archive"]["duplicates"] == 0
    assert report["archive"]["copies"] == 1800
    assert set(report["latency_ms"]) == {"p50", "p95", "p99"}
    assert set(report["seconds"]) == {"publish", "catch_up", "archive", "total"}

    assert report["seconds"]["catch_up"] > 0
    page = (out / "report.html").read_text()
    assert page.count("<svg") >= 3
    assert "relay-3 is down" in page
    assert not re.search(r'(src|href)="https?:', page)


def assert_accounted(report: dict[str, Any], sent: int) -> None:
    """Of each broken message it is said what became of it, and each kind met its own rule."""
    corrupt = report["corrupt"]
    assert (corrupt["sent"], corrupt["stored"], corrupt["unaccounted"]) == (sent, 0, 0)
    assert corrupt["rejected"] + corrupt["unheard"] == sent
    assert len(corrupt["fates"]) == min(sent, 6)
    for kind, fate in corrupt["fates"].items():
        assert fate["refused"] >= 1, kind
        assert fate["refused"] + fate["unheard"] == corrupt["kinds"][kind]
        assert fate["otherwise"] == {}


def demo_of_the_core(*options: str) -> list[str]:
    """Return a command line in which nothing of the extra `archive` can be imported."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(',')));"
        "from luxrelay.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    return [sys.executable, "-c", code, ",".join(PACKAGES), "demo", *options]


@pytest.mark.trial
@pytest.mark.parametrize("corrupt", [0, 1, 6, 60, 500])
def test_each_broken_message_is_accounted_for(tmp_path: Path, corrupt: int) -> None:
    """Refused with the code of its kind, or unheard below the threshold; never neither."""
    done = subprocess.run(
        demo_of_the_core(
            "--messages", "30", "--relays", "1", "--corrupt", str(corrupt),
            "--out", str(tmp_path / "out"), "--json",
        ),
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert_accounted(report, corrupt)
    assert (report["corrupt"]["unheard"] > 0) == (corrupt >= 60)


@pytest.mark.trial
def test_demo_without_the_extra_ends_before_the_archive(tmp_path: Path) -> None:
    """The rest runs and holds, the exit code is 0, and every report says how to get the archive."""
    out = tmp_path / "out"
    done = subprocess.run(
        demo_of_the_core("--messages", "200", "--relays", "2", "--out", str(out)),
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    report = json.loads((out / "report.json").read_text())
    assert report["ok"]
    assert report["archive"] is None
    assert "archive" not in report["seconds"]
    how = "pip install 'luxrelay[archive]'"
    page = html.unescape((out / "report.html").read_text())
    assert all(how in told for told in (done.stdout, done.stderr, report["archive_hint"], page))
    assert not (out / "archive").exists()


@pytest.mark.trial
@pytest.mark.parametrize(
    ("bytes_max", "word"), [(1024, "relay-1 ended"), (65_536, "File too large")]
)
def test_demo_on_a_disk_that_takes_no_more_says_so(
    tmp_path: Path, bytes_max: int, word: str
) -> None:
    """One line names the relay and the reason, and no relay is left; no traceback."""
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_max}, {bytes_max}));"
        "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    )
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", code, *demo_of_the_core("--messages", "2000", "--out", str(out))],
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )

    assert done.returncode == 1
    assert word in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not any(_relays_of(out))


def _relays_of(out: Path) -> Iterator[int]:
    """Yield the processes whose command names a configuration in a folder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if os.fsencode(out / "relays") in (entry / "cmdline").read_bytes():
                    yield int(entry.name)


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
        demo_of_the_core(
            "--messages", "4000", "--relays", "2", "--corrupt", "0", "--rate", "100",
            "--out", str(out),
        ),
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_demo_that_is_terminated_leaves_no_relay(
    running_demo: tuple[subprocess.Popen[bytes], list[int]], number: int
) -> None:
    """SIGTERM and a closed terminal stop the relays, as Ctrl-C does."""
    demo, relays = running_demo

    demo.send_signal(number)

    assert demo.wait(30) in {130, -signal.SIGINT}
    assert not any(map(is_running, relays))


@pytest.mark.trial
@pytest.mark.parametrize("stopped", [False, True])
def test_demo_that_is_killed_leaves_no_relay(
    running_demo: tuple[subprocess.Popen[bytes], list[int]],
    eventually: Callable[..., Any],
    stopped: bool,
) -> None:
    """`kill -9` ends its relays too, also one that is stopped and can do nothing itself."""
    demo, relays = running_demo
    if stopped:
        os.kill(relays[0], signal.SIGSTOP)

    demo.kill()

    assert demo.wait(30) == -signal.SIGKILL
    eventually(lambda: not any(map(is_running, relays)), 30)


@pytest.mark.trial
def test_a_relay_that_dies_ends_the_demo_at_once_with_its_log(
    tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """The first one dies while the second still loads; both were waited for, for two minutes."""
    out = tmp_path / "out"
    relays = ("--relays", "2", "--corrupt", "0", "--out", str(out))
    demo = subprocess.Popen(
        demo_of_the_core("--messages", "30", *relays),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        first = out / "relays" / "relay-1"
        os.kill(eventually(lambda: read_runtime(first / "data")).pid, signal.SIGKILL)
        _, said = demo.communicate(timeout=100)  # before there was a line it took 120 s and more
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 1
    assert said.startswith("starting")
    assert "relay-1 ended with -9" in said.splitlines()[-1]
    assert f"see {first / 'relay.log'}" in said.splitlines()[-1]
    assert not any(_relays_of(out))


@pytest.mark.trial
@pytest.mark.parametrize(("lines", "held"), [(0, "0 messages"), (1, "1 message")])
def test_a_file_with_too_few_lines_says_how_many_are_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: int, held: str
) -> None:
    """It said to ask for fewer, which could not be done."""
    file = tmp_path / "chat.jsonl"
    line = json.dumps({"channel": "a", "sender": "b", "sent_ms": 1, "text": "x"})
    file.write_text(f"{line}\n" * lines)
    assert main(["demo", "--input", str(file), "--out", str(tmp_path / "out")]) == 1
    assert f"the file has {held}, at least 3 are needed" in capsys.readouterr().err


@pytest.mark.trial
def test_a_relay_of_the_demo_ends_with_its_input(
    tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """Where no system tells a child of its parent's death, the pipe between them does."""
    relay = RelayProcess("relay-1", tmp_path / "relay-1", ["/demo/1/a"])
    relay.start([])
    try:
        relay.wait_ready()
        pid = relay.runtime.pid
        assert is_running(pid)

        assert relay._process is not None
        assert relay._process.stdin is not None
        relay._process.stdin.close()

        assert relay._process.wait(60) in {0, -signal.SIGTERM}
        eventually(lambda: not is_running(pid))
    finally:
        relay.kill()


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
    assert captured.err.count("\n") == 2  # it said before that it starts
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("nonsense\n", "chat.jsonl:1"),
        ("", "has 0 messages"),
        ('{"channel":"a\\u0000","sender":"b","sent_ms":1,"text":"c"}\n', "NUL"),
        ('{"channel":"a","sender":"\\ud800","sent_ms":1,"text":"c"}\n', "lone surrogate"),
    ],
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


@pytest.mark.trial
@pytest.mark.parametrize("name", ["a file", "a file/below", "\udcff"])
def test_demo_refuses_a_folder_it_cannot_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """One line says why, before anything is started."""
    (tmp_path / "a file").write_text("precious")

    assert main(["demo", "--out", str(tmp_path / name)]) == 1

    assert capsys.readouterr().err.count("\n") == 2  # the first: it starts
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]
