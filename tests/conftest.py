"""What all tests share: hypothesis profiles, workload and vectors beside the checkout."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from reached import RECORDER  # it stands in tests/doors

from luxrelay.node.folder import Runtime, read_runtime

settings.register_profile("quick", max_examples=60, deadline=None)
settings.register_profile(
    "ci",
    max_examples=150,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", max_examples=5000, deadline=None)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "quick")
)

SHARED = Path(__file__).resolve().parents[2] / "shared"
"""Data beside the checkout, where there is any; a clone works without."""


def pytest_configure(config: pytest.Config) -> None:
    """The marker of pytest-xdist is known without it as well (``-p no:xdist``)."""
    config.addinivalue_line("markers", "xdist_group(name): tests that one worker takes together")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts what runs in its background so, and the commands under test inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker takes all that wants Spark, so that one session serves it; else a file whole."""
    for item in items:
        spark = item.get_closest_marker("spark") is not None
        group = "spark" if spark else str(item.path.relative_to(item.config.rootpath))
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session", autouse=True)
def _no_state_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands under test keep the state of channels in a folder of the test run."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data-home"))


ROOT = Path(__file__).resolve().parents[1]
REACHED = Path(os.environ.get("REACHED_BY", ROOT / "docs" / "reference" / "reached_by.json"))
"""The doors that tests go through, as committed; `tools/doors.py` writes it from the records."""
COMMITTED: dict[str, list[str]] = (
    {
        f"{file}::{test}": doors
        for file, tests in json.loads(REACHED.read_text())["tests"].items()
        for test, doors in tests.items()
    }
    if REACHED.exists()
    else {}
)
FAILED = pytest.StashKey[bool]()
BEGAN = pytest.StashKey[float]()
LOST = pytest.StashKey[list[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that has not passed says nothing about doors."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or not report.passed
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """What counts at doors is read before the first fixture of a test."""
    RECORDER.begin()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """And once more behind the last one.

    With ``DOORS=strict`` a test that goes by fewer doors than committed fails. It does not by
    itself: on a slow machine more happens beside a test than on a fast one, and what counts in the
    test's process may be gone before it is read.
    """
    ended = yield
    doors = RECORDER.end()
    if not item.stash.get(FAILED, False):
        _note_doors(item, doors)
    return ended


def pytest_sessionstart(session: pytest.Session) -> None:
    """Records from here on are of this run."""
    session.config.stash[BEGAN] = time.time()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A row of the specifications has the doors that it had, as far as all their tests ran."""
    if hasattr(session.config, "workerinput") or os.environ.get("RECORD_DOORS"):
        return
    sys.path.insert(0, str(ROOT / "tools"))
    import doors

    lost = doors.lost_by_rows(
        doors.PAGE.read_text(), doors.read_data(), session.config.stash[BEGAN]
    )
    if lost:
        session.config.stash[LOST] = lost
        if os.environ.get("DOORS") == "strict":
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which doors were lost, and what to do when that is wanted."""
    for row in config.stash.get(LOST, []):
        terminalreporter.write_line(f"no test of a row goes by its door any more: {row}", red=True)
    if config.stash.get(LOST, []):
        terminalreporter.write_line("RECORD_DOORS=1 pytest of its files, then tools/doors.py")


def _note_doors(item: pytest.Item, doors: list[str]) -> None:
    function = getattr(item, "originalname", item.name)  # xdist writes its group behind the id
    name = f"{item.path.relative_to(ROOT).as_posix()}::{function}"
    known = COMMITTED.get(name, [])
    if RECORDER.unsure or not (doors or known):
        return
    folder = ROOT / "build" / "doors"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{os.getpid()}.jsonl").open("a") as records:
        records.write(json.dumps({"test": name, "doors": doors, "at": time.time()}) + "\n")
    lost = set(known) - set(doors)
    strict = os.environ.get("DOORS") == "strict"
    if lost and strict and not os.environ.get("RECORD_DOORS"):
        pytest.fail(
            f"the test went by {', '.join(sorted(lost))} once, and does not any more; if that is "
            "wanted: RECORD_DOORS=1 pytest of its file, then tools/doors.py",
            pytrace=False,
        )


@pytest.fixture
def wycheproof() -> Callable[[str], list[dict[str, Any]]]:
    """A reader of Wycheproof suites by file name, where they lie beside the checkout."""

    def groups(name: str) -> list[dict[str, Any]]:
        path = SHARED / "vectors" / "wycheproof" / f"{name}.json.gz"
        if not path.exists():
            pytest.skip("the Wycheproof suite does not lie beside this checkout")
        found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["testGroups"]
        return found

    return groups


UNLIMITED = {f"{layer}_messages_per_s": 0 for layer in ("peer", "node", "namespace", "sender")}
"""Limits of a node whose test is not about limits: it sends faster than people do."""


class NodeProcess:
    """A relay as users run it: the command, a configuration file, a data folder."""

    def __init__(self, folder: Path) -> None:
        """Describe a node in ``folder`` whose ports the system chooses."""
        self.folder = folder
        self.config = folder / "relay.toml"
        self.sections: dict[str, dict[str, object]] = {
            "node": {"name": folder.name, "network": "test", "data_dir": "data"},
            "gossip": {"listen": ["/ip4/127.0.0.1/tcp/0"], "heartbeat_ms": 200},
            "store": {"ttl_ms": 3_600_000},
            "sync": {"listen": "127.0.0.1:0", "interval_ms": 300, "allow_publish": True},
            "http": {"listen": "127.0.0.1:0"},
            "limits": dict(UNLIMITED),
        }
        self.topics = ["/chat/1/room"]
        self.policy = ""
        """What `policy sign` printed; the topics have it when it is not empty."""
        self.source: Path | None = None
        """Folder of another package to run than the installed one, such as an older commit's."""
        self.process: subprocess.Popen[bytes] | None = None

    def _environ(self) -> dict[str, str]:
        if self.source is None:
            return dict(os.environ)
        behind = os.environ.get("PYTHONPATH")
        path = f"{self.source}{os.pathsep}{behind}" if behind else str(self.source)
        return os.environ | {"PYTHONPATH": path}

    def write_config(self) -> None:
        """Write the configuration as it stands in ``sections`` and ``topics``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = []
        sections = dict(self.sections)
        if self.source is None:  # tests look at the pages all the time, from one address
            sections["http"] = {"stranger_ms_per_s": 2_000} | sections["http"]
        for section, values in sections.items():
            lines.append(f"[{section}]")
            lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
        for topic in self.topics:
            lines += ["[[namespace]]", f"content_topic = {json.dumps(topic)}"]
            if self.policy:
                (self.folder / "signed.policy").write_text(self.policy + "\n")
                lines.append('policy_file = "signed.policy"')
        self.config.write_text("\n".join(lines) + "\n")

    def start(self) -> Runtime:
        """Start the node and return where it listens once it is ready."""
        self.write_config()
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "luxrelay", "node", "run", "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ(),
            )
        process = self.process

        def ready() -> Runtime | None:
            assert process.poll() is None, (self.folder / "log").read_text()
            runtime = read_runtime(self.folder / "data")
            return runtime if runtime is not None and runtime.pid == process.pid else None

        found = eventually(ready, 120.0)  # a loaded machine compiles for long
        if self.source is None:
            RECORDER.started(process.pid, found.http)
        return found

    def run_to_end(self) -> tuple[int, str]:
        """Start a node that should fail; return its exit code and what it said."""
        done = subprocess.run(
            [sys.executable, "-m", "luxrelay", "node", "run", "--config", str(self.config)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self._environ(),
        )
        return done.returncode, done.stderr

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        assert self.process is not None
        process, self.process = self.process, None
        RECORDER.ends(process.pid)
        process.send_signal(number)
        return process.wait(30)

    def kill(self) -> None:
        """End it without asking, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            RECORDER.ends(self.process.pid)
            self.process.kill()
            self.process.wait()


Found = TypeVar("Found")


def eventually(look: Callable[[], Found | None], seconds: float = 180.0) -> Found:
    """Return the first true value of ``look``; fail when none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., object]:
    """The bounded poll for what another process does."""
    return eventually


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[Callable[[str], NodeProcess]]:
    """A maker of node processes, all ended with the test."""
    nodes: list[NodeProcess] = []

    def make(name: str) -> NodeProcess:
        node = NodeProcess(tmp_path / name)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.kill()
