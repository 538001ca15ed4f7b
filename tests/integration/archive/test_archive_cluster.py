"""The same pipeline on a real standalone cluster, and through a Spark Connect server.

Master, workers and server are processes on the loopback with ports that the system chooses, and
the driver is a process of its own, as `luxrelay archive ingest --master …` is. On the cluster an
executor is killed after the first batch; Spark starts another one.
"""

from __future__ import annotations

import json
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
from luxrelay.bus import SignatureScheme, SigningKey
from luxrelay.bus.finality import FinalityRow, FinalityState, FinalityStatement
from luxrelay.sync import RelaySyncServer, SyncServerConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "archive.md"
WAIT_S = 900
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
            rows_per_batch=1_200,
            progress=lambda batch: print("batch", batch.batch, flush=True),
        )
        print("done", done.messages, done.rejected, sum(done.rows_by_relay.values()), flush=True)
"""

LIFE = """
import json
import sys
from pathlib import Path

from luxrelay.archive import ArchiveSession, audit, compact, report, retain
from luxrelay.archive.overview import overview
from luxrelay.archive.refetching import refetch
from luxrelay.archive.session import SessionConfig
from luxrelay.archive.statements import Statements, apply_finality
from luxrelay.archive.upkeep import erase

master, out, relays, path, signer, name, later = sys.argv[1:]
out, relays, said = Path(out), relays.split(","), {}
with ArchiveSession(SessionConfig(master=master, tasks=2)) as session:
    found = audit(session, out=out, relays=relays)
    said["audit"] = [found.rows, found.duplicates, found.missing, found.contested]
    again = refetch(session, out=out, relays=relays)
    said["refetch"] = [again.asked, again.messages, again.missing]
    statements = Statements(path=Path(path), network="main", signers=(bytes.fromhex(signer),))
    final = apply_finality(session, out=out, statements=statements)
    said["finality"] = [final.applied, final.refused, final.messages]
    messages = session.spark.read.format("delta").load(str(out / "messages"))
    said["finalized"] = messages.where("finality = 3").count()
    packed = compact(session, out=out, files_min=2)
    said["compact"] = packed.compacted > 0 and packed.files_after < packed.files_before
    said["erase"] = erase(session, out=out, namespace_id=bytes.fromhex(name)).messages
    said["retain"] = retain(session, out=out, now_ms=int(later)).messages
    found = audit(session, out=out)
    said["left"] = found.rows
page = report(overview(out, found), out=out.with_name("archive.html"))
said["report"] = page.read_text(encoding="utf-8").startswith("<!doctype html>")
print(json.dumps(said))
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

    def typed(self, usual: str, master: str, path: Path) -> Any:
        """Type the line of the documentation for a master of this kind; return what it says."""
        text = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
        (line,) = re.findall(rf"^ {{4}}luxrelay (.*--master {usual} .*)$", text, re.MULTILINE)
        line = line.replace(usual, master).replace("executor.memory=2g", "executor.memory=512m")
        line = line.replace("/shared/archive", str(path / "archive"))
        relays = " ".join(f"--relay {address}" for address in self.addresses)
        line = line.replace("--relay 127.0.0.1:9641", f"{relays} --heads latest --json")
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "luxrelay", *line.split()],
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stderr[-3_000:]}"
        return json.loads(done.stdout)

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

    again = relays.typed("spark://127.0.0.1:7077", master, tmp_path)

    assert (again["batches"], again["messages"]) == (0, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server that knows Delta."""
    jars = ",".join(map(str, find_jars(jar_folders())))
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
    }
    started = Daemon(
        tmp_path_factory.mktemp("server") / "server.log",
        r"Spark Connect server started at: \S*:(\d+)",
        "org.apache.spark.deploy.SparkSubmit",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master", "local[2]", "--jars", jars,
        *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
        "spark-internal", memory="1g",
    )  # fmt: skip
    try:
        started.wait()
        yield f"sc://127.0.0.1:{started.found}"
    finally:
        started.close()


def test_a_spark_connect_server_archives_the_same(
    server: str, relays: Relays, tmp_path: Path
) -> None:
    """The driver is a client that has no Java; batches and counts come back to it (21-52).

    The rest of the archive's life goes through the server as well.
    """
    batches: list[str] = []

    said = relays.archived_by(
        server,
        tmp_path,
        lambda line: batches.append(line) if line.startswith("batch") else None,
        JAVA_HOME=str(tmp_path),  # a folder without Java
    )

    assert len(batches) > 1
    assert said == relays.words()
    assert relays.differences(tmp_path) == []
    again = relays.typed("sc://127.0.0.1:15002", server, tmp_path)
    assert (again["batches"], again["messages"]) == (0, 0)
    assert not (tmp_path / "archive" / ".reports").exists()
    _live_on(server, relays, tmp_path)


def _live_on(server: str, relays: Relays, tmp_path: Path) -> None:
    """Audit, compaction, refetching, finality, deletion and report do there what they do here."""
    expected = relays.corpus.expected
    (name, seq), *_ = sorted(expected.holes)
    row, header = relays.corpus._valid(name, seq, relays.corpus._keys[0])
    relays.corpus.stores[1].add(row)
    relays.corpus.stores[1].close()
    signer = SigningKey.from_seed(SignatureScheme.ED25519, b"\x63" * 32)
    final = FinalityRow(name, seq, header.header_hash, FinalityState.FINALIZED)
    statement = FinalityStatement(
        network="main", number=1, issued_ms=relays.corpus.NOW_MS, rows=(final,)
    ).signed_by(signer)
    (tmp_path / "statements").write_text(statement.encode().hex() + "\n")
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}

    done = subprocess.run(
        [
            sys.executable, "-W", "ignore", "-c", LIFE, server, str(tmp_path / "archive"),
            ",".join(relays.addresses), str(tmp_path / "statements"), signer.public_field.hex(),
            bytes(name).hex(), str(relays.corpus.NOW_MS + 40 * 86_400_000),
        ],
        env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3_000:]
    own = sum(key[0] == name for key in expected.messages) + 1
    assert json.loads(done.stdout) == {
        "audit": [len(expected.messages), 0, len(expected.holes), len(expected.contested()) // 2],
        "refetch": [len(expected.holes), 1, len(expected.holes) - 1],
        "finality": [1, 0, 1],
        "finalized": 1,
        "compact": True,
        "erase": own,
        "retain": len(expected.messages) + 1 - own,
        "left": 0,
        "report": True,
    }
