"""The same pipeline on a real standalone cluster: a master and two workers as processes.

The driver is a process of its own, as `luxrelay archive ingest --master spark://…` is. After its
first batch an executor is killed; Spark starts another one, and nothing is lost or doubled.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import psutil
import pyspark
import pytest

from luxrelay.sync import RelaySyncServer, SyncServerConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow]
CHILD = """
import sys
from pathlib import Path

from luxrelay.archive import ArchiveSession, ingest
from luxrelay.archive.session import SessionConfig

master, out, relays = sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(",")
options = (("spark.executor.memory", "512m"), ("spark.executor.cores", "1"))
with ArchiveSession(SessionConfig(master=master, tasks=2, options=options)) as session:
    done = ingest(
        session,
        relays=relays,
        out=out,
        heads="latest",
        rows_per_batch=900,
        progress=lambda batch: print("batch", batch.batch, flush=True),
    )
print("done", done.messages, flush=True)
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


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _daemon(stack: ExitStack, folder: Path, name: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a part of the cluster and return when it says that it serves."""
    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_WORKER_DIR": str(folder / name),
    }
    process = subprocess.Popen(
        [home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    stack.callback(process.stdout.close)
    stack.callback(process.wait, 60)
    stack.callback(process.kill)
    serves = "I have been elected leader" if "Master" in name else "Successfully registered"
    said = []
    for line in process.stdout:
        said.append(line)
        if serves in line:
            return process
    raise AssertionError("".join(said[-20:]))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """A master and two workers of one core on the loopback."""
    master = f"spark://127.0.0.1:{_free_port()}"
    host = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:
        port = master.rpartition(":")[2]
        _daemon(stack, tmp_path, "master.Master", *host, "--port", port)
        workers = [
            _daemon(
                stack, tmp_path, "worker.Worker", *host, "--cores", "1", "--memory", "600m", master
            )
            for _ in range(2)
        ]
        yield master, workers


def _executors(worker: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(worker.pid).children(recursive=True)
    return [each for each in children if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline())]


def test_a_cluster_archives_what_one_process_would(
    cluster: tuple[str, list[subprocess.Popen[str]]], tmp_path: Path
) -> None:
    """Also when an executor is killed in the middle (21-52)."""
    master, workers = cluster
    oracle = _load_oracle()
    corpus = oracle.Corpus(1_200, [b"over the cluster"], namespaces=10, holes=6, contended=8)
    out = tmp_path / "archive"
    with ExitStack() as stack:
        relays = []
        for store in corpus.stores:
            server = RelaySyncServer(
                store, SyncServerConfig(port=0), clock_ms=lambda: corpus.NOW_MS
            )
            relays.append(f"127.0.0.1:{server.start()}")
            stack.callback(server.stop, 0)
        log = stack.enter_context((tmp_path / "driver.log").open("w"))
        driver = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CHILD, master, str(out), ",".join(relays)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert driver.stdout is not None
        stack.callback(driver.stdout.close)
        stack.callback(driver.kill)
        killed, said = 0, []
        for line in driver.stdout:
            said.append(line)
            if line.startswith("batch 0"):
                for executor in _executors(workers[0]):
                    executor.kill()
                    killed += 1
        assert driver.wait(timeout=300) == 0, (tmp_path / "driver.log").read_text()[-2_000:]

    assert killed == 1
    assert said[-1] == f"done {len(corpus.expected.messages)}\n"
    assert oracle.differences(out, corpus.expected, relays) == []
