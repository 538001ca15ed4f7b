"""A Spark session, as far as it can be told without Spark."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

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
