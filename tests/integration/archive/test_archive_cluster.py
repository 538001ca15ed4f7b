"""The same pipeline on a real standalone cluster, and through a Spark Connect server.

Master, workers and server are processes on the loopback with ports that the system chooses, and
the driver is a process of its own, as `luxrelay archive ingest --master …` is. On the cluster an
executor is killed after the first batch; Spark starts another one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pyspark
import pytest

from luxrelay.archive.jars import find_jars, jar_folders
from luxrelay.sync import RelaySyncServer, SyncServerConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]
WAIT_S = 400
"""Longest that a driver may take."""
CHILD = """
import sys
from pathlib import Path

from luxrelay.archive import ArchiveSession, ingest
from luxrelay.archive.session import SessionConfig

master, out, relays = sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(",")
options = [  # compiling a plan is not worth it for a few rows
    ("spark.sql.codegen.wholeStage", "false"),
    ("spark.sql.codegen.factoryMode", "NO_CODEGEN"),
    ("spark.sql.adaptive.enabled", "false"),
]
if not master.startswith("sc:"):
    options += [("spark.executor.memory", "512m"), ("spark.executor.cores", "1")]
with ArchiveSession(SessionConfig(master=master, tasks=2, options=tuple(options))) as session:
    for _ in range(2):
        done = ingest(
            session,
            relays=relays,
            out=out,
            heads="latest",
            rows_per_batch=600,
            progress=lambda batch: print("batch", batch.batch, flush=True),
        )
        print("done", done.messages, done.rejected, sum(done.rows_by_relay.values()), flush=True)
"""


def _load_oracle() -> ModuleType:
    path = Path(__file__).parents[2] / "oracle" / "archive.py"
    spec = spec_from_file_location("archive_oracle", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["archive_oracle"] = module
    spec.loader.exec_module(module)
    return module


class Daemon:
    """A part of Spark as a process."""

    def __init__(self, log: Path, says: str, *command: str, memory: str) -> None:
        environment = os.environ | {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": memory,
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_WORKER_DIR": str(log.with_suffix("")),
            "PYSPARK_PYTHON": sys.executable,
        }
        home = Path(pyspark.__file__).parent
        self.process = subprocess.Popen(
            [home / "bin" / "spark-class", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.found = ""
        self._told = threading.Event()
        # Reads on for ever: a pipe that nobody reads would stop the process.
        self._log = log
        self._reader = threading.Thread(target=self._read, args=(log, says))
        self._reader.start()

    def wait(self) -> None:
        """Return when it has said that it serves."""
        self._told.wait(WAIT_S)
        assert self.found, self._log.read_text()[-2_000:]

    def _read(self, log: Path, says: str) -> None:
        assert self.process.stdout is not None
        with log.open("w", buffering=1) as file:
            for line in self.process.stdout:
                file.write(line)
                found = re.search(says, line)
                if found is not None and not self.found:
                    self.found = found[1]
                    self._told.set()
        self._told.set()

    def close(self) -> None:
        """End it and what it has started."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            child.kill()
        self.process.kill()
        self.process.wait(60)
        self._reader.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Start parts of Spark that end with the test."""
    with ExitStack() as stack:

        def start(name: str, says: str, *command: str, memory: str = "256m") -> Daemon:
            started = Daemon(tmp_path / f"{name}.log", says, *command, memory=memory)
            stack.callback(started.close)
            started.wait()
            return started

        yield start


class Relays:
    """Three relays with a corpus in which everything goes wrong."""

    def __init__(self, stack: ExitStack) -> None:
        self.oracle = _load_oracle()
        self.corpus = self.oracle.Corpus(
            800, [b"over the cluster"], namespaces=8, holes=6, contended=8
        )
        self.addresses = []
        for store in self.corpus.stores:
            server = RelaySyncServer(
                store, SyncServerConfig(port=0), clock_ms=lambda: self.corpus.NOW_MS
            )
            self.addresses.append(f"127.0.0.1:{server.start()}")
            stack.callback(server.stop, 0)

    def archived_by(
        self, master: str, path: Path, told: Callable[[str], None], **environment: str
    ) -> list[str]:
        """Archive all of it, twice, in a process of its own; return the two last words."""
        log = path / "driver.log"
        with ExitStack() as stack:
            driver = subprocess.Popen(
                [
                    sys.executable, "-W", "ignore", "-c", CHILD,
                    master, str(path / "archive"), ",".join(self.addresses),
                ],
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(log.open("w")),
                text=True,
            )  # fmt: skip
            assert driver.stdout is not None
            stack.callback(driver.stdout.close)
            stack.callback(driver.wait, 60)
            stack.callback(driver.kill)
            said = []
            for line in driver.stdout:
                said.append(line.strip())
                told(said[-1])
            assert driver.wait(timeout=WAIT_S) == 0, log.read_text(errors="replace")[-3_000:]
        return [line for line in said if line.startswith("done")]

    def words(self) -> list[str]:
        """Return what a driver has to say in the end: all of it, and nothing new."""
        expected = self.corpus.expected
        rejected = expected.rejects.total()
        return [f"done {len(expected.messages)} {rejected} {expected.rows}", "done 0 0 0"]

    def differences(self, path: Path) -> list[str]:
        """Return where the tables differ from what they must hold."""
        found: list[str] = self.oracle.differences(
            path / "archive", self.corpus.expected, self.addresses
        )
        return found


@pytest.fixture
def relays() -> Iterator[Relays]:
    """Serve the corpus."""
    with ExitStack() as stack:
        yield Relays(stack)


def _executors(worker: Daemon) -> list[Any]:
    found = []
    for child in psutil.Process(worker.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_a_cluster_archives_what_one_process_would(
    daemon: Callable[..., Daemon], relays: Relays, tmp_path: Path
) -> None:
    """A master and two workers of one core; one executor is killed in the middle (21-52)."""
    host = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    master = daemon(
        "master", r"Starting Spark master at (spark://\S+)",
        "org.apache.spark.deploy.master.Master", *host,
    ).found  # fmt: skip
    workers = [
        daemon(
            f"worker-{number}", r"(Successfully registered)",
            "org.apache.spark.deploy.worker.Worker", *host, "--cores", "1", "--memory", "600m",
            master,
        )
        for number in range(2)
    ]  # fmt: skip
    killed = []

    def told(line: str) -> None:
        if line == "batch 0":
            for executor in _executors(workers[0]):
                executor.kill()
                killed.append(executor.pid)

    said = relays.archived_by(master, tmp_path, told)

    assert len(killed) == 1
    assert said == relays.words()
    assert relays.differences(tmp_path) == []


def test_a_spark_connect_server_archives_the_same(
    daemon: Callable[..., Daemon], relays: Relays, tmp_path: Path
) -> None:
    """The driver is a client that has no Java; batches and counts come back to it (21-52)."""
    jars = ",".join(map(str, find_jars(jar_folders())))
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
    }
    port = daemon(
        "server", r"Spark Connect server started at: \S*:(\d+)",
        "org.apache.spark.deploy.SparkSubmit",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master", "local[2]", "--jars", jars,
        *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
        "spark-internal", memory="1g",
    ).found  # fmt: skip
    batches: list[str] = []

    said = relays.archived_by(
        f"sc://127.0.0.1:{port}",
        tmp_path,
        lambda line: batches.append(line) if line.startswith("batch") else None,
        JAVA_HOME=str(tmp_path),  # a folder without Java
    )

    assert len(batches) > 1
    assert said == relays.words()
    assert relays.differences(tmp_path) == []
    assert not (tmp_path / "archive" / ".reports").exists()
