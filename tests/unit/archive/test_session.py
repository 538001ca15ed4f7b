"""A Spark session, as far as it can be told without Spark."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from luxrelay.archive import session as module
from luxrelay.archive.session import (
    ArchiveSession,
    SessionConfig,
    jar_settings,
    session_settings,
    spark_settings,
)
from luxrelay.errors import ArchiveArgumentError, ArchiveError


def test_settings_keep_spark_at_home(tmp_path: Path) -> None:
    """A local session listens on loopback, shows no interface, and writes below its folder."""
    settings = dict(spark_settings(SessionConfig(tasks=3), tmp_path))

    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.sql.execution.arrow.maxBytesPerBatch"] == str(module.ARROW_BYTES_MAX)
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.local.dir"].startswith(str(tmp_path))
    assert "log4j2.properties" in settings["spark.driver.extraJavaOptions"]
    assert (tmp_path / "log4j2.properties").exists()


def test_a_cluster_chooses_its_own_addresses(tmp_path: Path) -> None:
    """Loopback is for local masters only."""
    settings = dict(spark_settings(SessionConfig(master="spark://host:7077"), tmp_path))

    assert "spark.driver.host" not in settings


def test_quick_and_long_sessions(tmp_path: Path) -> None:
    """A long run lets the JVM compile."""
    quick = dict(spark_settings(SessionConfig(), tmp_path))
    long = dict(spark_settings(SessionConfig(quick=False), tmp_path))

    assert "TieredStopAtLevel=1" in quick["spark.driver.extraJavaOptions"]
    assert "TieredStopAtLevel" not in long["spark.driver.extraJavaOptions"]


def test_jars_from_files_or_by_spark() -> None:
    """Without jars Spark resolves them, leaving out what it has itself."""
    jars = [Path("/j/a.jar"), Path("/j/b.jar")]

    assert jar_settings(jars, local=True) == [("spark.driver.extraClassPath", "/j/a.jar:/j/b.jar")]
    assert jar_settings(jars, local=False) == [("spark.jars", "/j/a.jar,/j/b.jar")]
    fallback = dict(jar_settings([], local=True))
    assert fallback["spark.jars.packages"].startswith("io.delta:delta-spark_4.2_2.13:")
    assert "org.*:*" in fallback["spark.jars.excludes"]


@pytest.mark.parametrize("package", ["pyspark", "delta", "pyarrow"])
def test_missing_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package and the command that installs it."""
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ArchiveError, match=f"{package} is not installed") as caught:
        ArchiveSession()

    assert "pip install 'luxrelay[archive]'" in str(caught.value)
    assert caught.value.code == "archive.setup"


def test_missing_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java is looked for before anything is started."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(ArchiveError, match="JAVA_HOME names no Java"):
        ArchiveSession()


def test_foreign_spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SPARK_HOME of another Spark would be started instead of ours."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))

    with pytest.raises(ArchiveError, match="SPARK_HOME is no Spark"):
        ArchiveSession()


def test_refuse_config() -> None:
    """Values Spark would refuse less clearly."""
    with pytest.raises(ArchiveArgumentError, match="tasks"):
        SessionConfig(tasks=0)
    with pytest.raises(ArchiveArgumentError, match="tasks"):
        SessionConfig(tasks=1_025)
    with pytest.raises(ArchiveArgumentError, match="driver_memory_mb"):
        SessionConfig(driver_memory_mb=511)


def test_a_failed_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary folder goes when Spark does not start."""
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))

    def fail(_self: ArchiveSession, _work: Path) -> None:
        raise ArchiveError("no")

    monkeypatch.setattr(ArchiveSession, "_start", fail)
    with pytest.raises(ArchiveError):
        ArchiveSession()

    assert list(tmp_path.iterdir()) == []


def test_a_connect_server_is_no_jvm_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No Java is looked for; one that does not answer is named at once, nothing is left behind."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(module.tempfile, "tempdir", None)
    with socket.socket() as taken:  # bound and never listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        master = f"sc://127.0.0.1:{taken.getsockname()[1]}/;use_ssl=false"
        with pytest.raises(ArchiveError, match="Spark Connect server cannot be reached") as caught:
            ArchiveSession(SessionConfig(master=master))

    assert (caught.value.code, caught.value.where) == ("archive.setup", master)
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ
    assert list(tmp_path.iterdir()) == []


def test_what_a_session_has_for_itself() -> None:
    """The settings of a shared server that an archive relies on are those of a JVM of its own."""
    own = dict(session_settings(SessionConfig(tasks=5)))

    assert own["spark.sql.shuffle.partitions"] == "5"
    assert own["spark.sql.session.timeZone"] == "UTC"
    assert all(key.startswith(("spark.sql.", "spark.databricks.")) for key in own)


class ConnectServer(base_pb2_grpc.SparkConnectServiceServicer):
    """As much of a Spark Connect server as knows settings and sessions.

    Args:
        extensions: What it says of ``spark.sql.extensions``.
        refused: A setting that it does not let anybody change.

    """

    def __init__(self, extensions: str, refused: str = "") -> None:
        self.extensions, self.refused = extensions, refused
        self.address = ""
        self.seen: set[str] = set()
        self.released: set[str] = set()

    def Config(self, request: Any, context: Any) -> Any:  # noqa: N802  # the protocol's name
        """Tell of settings, and take them."""
        self.seen.add(request.session_id)
        operation = request.operation
        if any(pair.key == self.refused for pair in operation.set.pairs):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a static setting")
        pairs = [
            base_pb2.KeyValue(key=pair.key, value=self.extensions)
            for pair in operation.get_with_default.pairs
        ]
        return base_pb2.ConfigResponse(session_id=request.session_id, pairs=pairs)

    def ReleaseSession(self, request: Any, context: Any) -> Any:  # noqa: N802  # as above
        """End a session."""
        del context
        self.released.add(request.session_id)
        return base_pb2.ReleaseSessionResponse(session_id=request.session_id)


@pytest.fixture
def connect_server() -> Iterator[Callable[..., ConnectServer]]:
    """Start servers on the loopback that end with the test."""
    with ExitStack() as stack:

        def start(extensions: str, refused: str = "") -> ConnectServer:
            made = ConnectServer(extensions, refused)
            server = grpc.server(stack.enter_context(ThreadPoolExecutor(2)))
            base_pb2_grpc.add_SparkConnectServiceServicer_to_server(made, server)
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            stack.callback(lambda: server.stop(None).wait())
            made.address = f"sc://127.0.0.1:{port}/;use_ssl=false"
            return made

        yield start


@pytest.mark.parametrize(
    ("extensions", "refused", "words"),
    [
        ("", "", "runs without Delta"),
        (module._DELTA, "spark.sql.session.timeZone", "cannot be used"),
        (module._DELTA, "spark.sql.python.filterPushdown.enabled", "cannot be used"),
    ],
    ids=["no Delta", "a setting", "the source"],
)
def test_a_connect_server_that_does_not_fit_is_left(
    connect_server: Callable[..., ConnectServer], extensions: str, refused: str, words: str
) -> None:
    """Its session ends with the error, and the next address is asked itself."""
    first, second = connect_server(extensions, refused), connect_server("")

    with pytest.raises(ArchiveError, match=words) as caught:
        ArchiveSession(SessionConfig(master=first.address))
    with pytest.raises(ArchiveError, match="runs without Delta") as then:
        ArchiveSession(SessionConfig(master=second.address))

    assert (caught.value.where, then.value.where) == (first.address, second.address)
    assert (len(first.seen), len(second.seen)) == (1, 1)
    assert (first.released, second.released) == (first.seen, second.seen)
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ


def test_a_session_of_somebody_else_is_left_alone(
    connect_server: Callable[..., ConnectServer],
) -> None:
    """A process that has a Connect session keeps it: ours is another one."""
    theirs, ours = connect_server(module._DELTA), connect_server("")
    session = SparkSession.builder.remote(theirs.address).create()
    try:
        with pytest.raises(ArchiveError, match="runs without Delta") as caught:
            ArchiveSession(SessionConfig(master=ours.address))

        assert caught.value.where == ours.address
        assert (theirs.released, ours.released) == (set(), ours.seen)
        assert session.conf.get("spark.sql.extensions", "") == module._DELTA
        assert os.environ["SPARK_CONNECT_MODE_ENABLED"] == "1"
    finally:
        session.stop()
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
