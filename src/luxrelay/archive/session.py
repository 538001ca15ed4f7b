"""A Spark session with the right jars, or an error that names the missing part.

`ArchiveSession` starts a JVM of its own, with its output in a log file, and ends it again; or it
is a client of a Spark Connect server (``sc://host:port``), and needs no Java; or this process is a
job that spark-submit has started, which then decides master, memory and jars; or it stands on a
session that somebody else owns (`ArchiveSession.attach`).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from luxrelay.archive.jars import COORDINATE, EXCLUDES, find_jars, jar_folders
from luxrelay.archive.java import find_java
from luxrelay.errors import ArchiveArgumentError, ArchiveError

if TYPE_CHECKING:
    from pyspark.conf import SparkConf
    from pyspark.sql import SparkSession

_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss} %p %c{1} %m%n%throwable{short.message}
"""
_QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ARROW_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of one batch that Spark hands to Python."""
CONNECT: Final = "sc://"
"""How the address of a Spark Connect server begins."""
_DELTA: Final = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_CONNECT_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
"""What PySpark sets while this process is a client."""
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""What spark-submit tells a job: where its JVM listens."""
_CONNECT_PORT: Final = 15_002
"""Where such a server listens when its address names no port."""
_REACH_S: Final = 10
_END_S: Final = 30
"""Longest wait for the JVM to end, seconds."""
_LOG_TAIL: Final = 600
_INSTALL: Final = "pip install 'luxrelay[archive]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """How Spark runs."""

    master: str = "local[2]"
    """Spark master; ``local[n]`` runs n tasks in one JVM here, ``sc://host:port`` names a Spark
    Connect server."""
    tasks: int = 2
    """Shuffle partitions, and parallel tasks of a read; 1 to 1,024."""
    driver_memory_mb: int = 1_024
    """Heap of the JVM, MiB; 512 or more."""
    quick: bool = True
    """Compile less: starts faster and takes half the CPU in runs of a minute, slower in long."""
    jar_folders: tuple[Path, ...] | None = None
    """Where the Delta jars are looked for; LUXRELAY_JARS and this environment when not given."""
    log_file: Path | None = None
    """Where Spark's output goes; a temporary file that ends with the session when not given."""
    options: tuple[tuple[str, str], ...] = ()
    """Further Spark settings; they win over ours."""

    @property
    def remote(self) -> bool:
        """True when the master is a Spark Connect server."""
        return self.master.startswith(CONNECT)

    def __post_init__(self) -> None:
        """Refuse what Spark would refuse less clearly."""
        if not 1 <= self.tasks <= 1_024:
            raise ArchiveArgumentError("tasks must be 1 to 1,024", where="SessionConfig.tasks")
        if self.driver_memory_mb < 512:
            raise ArchiveArgumentError(
                "driver_memory_mb must be 512 or more", where="SessionConfig.driver_memory_mb"
            )


class ArchiveSession:
    """A running Spark that knows Delta and the source ``luxrelay``; a context manager.

    Args:
        config: How Spark runs.

    Raises:
        ArchiveError: ``archive.setup``: PySpark, Java or the jars are missing, or Spark does not
            start; the text says which and what to do.

    """

    def __init__(self, config: SessionConfig | None = None) -> None:
        self.config = config or SessionConfig()
        _require_pyspark()
        self._submitted = _SUBMITTED in os.environ and not self.config.remote
        if not self.config.remote and not self._submitted:
            find_java()
        self._work: Path | None = Path(tempfile.mkdtemp(prefix="luxrelay-spark-"))
        self._python = os.environ.get("PYSPARK_PYTHON")
        self._connect_mode = os.environ.get(_CONNECT_MODE)
        self._gateway: Any = None
        try:
            if self.config.remote:
                self.spark: SparkSession = _connect(self.config)
            elif self._submitted:
                self.spark = self._submit()
            else:
                self.spark = self._start(self._work)
                register_source(self.spark)
        except BaseException:
            self.close()
            raise

    @classmethod
    def attach(cls, spark: SparkSession, *, tasks: int = 2) -> ArchiveSession:
        """Return a session on top of ``spark``, which stays its owner's to stop.

        Args:
            spark: A session with Delta's extension and catalog.
            tasks: Parallel tasks of a read.

        """
        session = cls.__new__(cls)
        session.config = SessionConfig(tasks=tasks)
        session.spark = spark
        session._work = None  # noqa: SLF001  # our own instance
        session._gateway = None  # noqa: SLF001  # as above
        session._submitted = False  # noqa: SLF001  # as above
        register_source(spark)
        return session

    def close(self) -> None:
        """End Spark and its JVM and remove its temporary files; may be called twice."""
        if self._work is None:
            return
        work, self._work = self._work, None
        if self.config.remote:
            spark = getattr(self, "spark", None)
            if spark is not None:
                spark.stop()
            _restore(_CONNECT_MODE, self._connect_mode)  # else PySpark starts no JVM here again
            shutil.rmtree(work, ignore_errors=True)
            return
        from pyspark import SparkContext  # noqa: PLC0415  # heavy, and present by now

        context = SparkContext._active_spark_context  # noqa: SLF001  # no public way to ask
        if context is not None and (self._gateway is not None or self._submitted):
            context.stop()  # a JVM that spark-submit began ends with spark-submit
        _end_gateway(self._gateway)
        _restore("PYSPARK_PYTHON", self._python)
        shutil.rmtree(work, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _submit(self) -> SparkSession:
        """Return the session of a job of spark-submit, when it has what an archive needs."""
        from pyspark.sql import SparkSession  # noqa: PLC0415  # heavy; its absence was reported

        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = SparkSession.builder.appName("luxrelay").getOrCreate()
        try:
            _prepare(spark, self.config, "spark-submit")
        except BaseException:
            spark.stop()
            raise
        return spark

    def _start(self, work: Path) -> SparkSession:
        from pyspark import SparkContext  # noqa: PLC0415  # heavy; its absence was reported
        from pyspark.errors import PySparkException  # noqa: PLC0415  # as above
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415  # as above
        from pyspark.sql import SparkSession  # noqa: PLC0415  # as above

        if SparkContext._active_spark_context is not None:  # noqa: SLF001  # no public way to ask
            raise _another()
        # Executors and the planner are Python processes: they must be this Python.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        conf = self._conf(work)
        log = self.config.log_file or work / "spark.log"
        with log.open("ab") as sink:
            try:
                self._gateway = launch_gateway(  # type: ignore[no-untyped-call]  # PySpark's
                    conf, {"stdout": sink, "stderr": sink}
                )
                SparkContext(conf=conf, gateway=self._gateway)
            except PySparkException as error:
                tail = log.read_text(errors="replace").strip()[-_LOG_TAIL:]
                raise ArchiveError(
                    f"Spark does not start: {tail or error}", where=str(log)
                ) from error
        return SparkSession.builder.getOrCreate()

    def _conf(self, work: Path) -> SparkConf:
        from pyspark.conf import SparkConf  # noqa: PLC0415  # heavy; its absence was reported

        conf = SparkConf()
        conf.setMaster(self.config.master).setAppName("luxrelay")
        for key, value in spark_settings(self.config, work):
            conf.set(key, value)
        folders = self.config.jar_folders
        jars = find_jars(jar_folders() if folders is None else folders)
        for key, value in jar_settings(jars, local=self.config.master.startswith("local")):
            conf.set(key, value)
        for key, value in self.config.options:
            conf.set(key, value)
        return conf


def _connect(config: SessionConfig) -> SparkSession:
    """Return a session of our own on a Spark Connect server that has what an archive needs.

    It ends with any error: left open it would stay PySpark's default, at an address given up.
    """
    from pyspark import SparkContext  # noqa: PLC0415  # heavy; its absence was reported
    from pyspark.errors import PySparkException  # noqa: PLC0415  # heavy; its absence was reported
    from pyspark.sql import SparkSession  # noqa: PLC0415  # as above

    if SparkContext._active_spark_context is not None:  # noqa: SLF001  # no public way to ask
        raise _another()
    _reach(config.master)  # PySpark would try again for minutes
    try:
        spark = SparkSession.builder.remote(config.master).create()
        try:
            _prepare(spark, config, "the Spark Connect server")
        except BaseException:
            spark.stop()
            raise
    except ImportError as error:  # PySpark's own, of a package that only its client needs
        raise ArchiveError(
            f"Spark Connect needs more packages: {error}",
            where=sys.prefix,
            hint="pip install 'luxrelay[archive,connect]'",
        ) from None
    except PySparkException as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ArchiveError(
            f"the Spark Connect server cannot be used: {lines[0][:_LOG_TAIL]}",
            where=config.master,
            hint="start it, or name its address",
        ) from None
    return spark


def _prepare(spark: SparkSession, config: SessionConfig, whose: str) -> None:
    """Give a session that others started its settings and the source, when it knows Delta."""
    if _DELTA not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise ArchiveError(
            f"{whose} runs without Delta",
            where=config.master if config.remote else "spark.sql.extensions",
            hint=f"start it with spark.sql.extensions={_DELTA}, its catalog and its jars",
        )
    for key, value in (*session_settings(config), *config.options):
        spark.conf.set(key, value)
    register_source(spark)


def _another() -> ArchiveError:
    return ArchiveError(
        "another Spark session runs in this process",
        hint="stop it, or use ArchiveSession.attach(spark)",
    )


def _reach(master: str) -> None:
    """Raise when nobody listens at the address of a server."""
    try:
        address = urlsplit(master)
        place = (address.hostname or "", address.port or _CONNECT_PORT)
        socket.create_connection(place, timeout=_REACH_S).close()
    except (OSError, ValueError) as error:
        raise ArchiveError(
            f"the Spark Connect server cannot be reached: {error}",
            where=master,
            hint="start it, or name its address as sc://host:port",
        ) from None


def _restore(name: str, value: str | None) -> None:
    """Give a variable of the environment the value it had; None for none."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def session_settings(config: SessionConfig) -> list[tuple[str, str]]:
    """Return the settings that a session has for itself, on a server that others use too."""
    return [
        ("spark.sql.session.timeZone", "UTC"),
        ("spark.sql.shuffle.partitions", str(config.tasks)),
        # The default of 50 tasks to read a table's log costs more than the log of a small table.
        ("spark.databricks.delta.snapshotPartitions", "2"),
        # What Python is handed at once is bounded by rows and by bytes: payloads reach 2 MiB.
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "8192"),
        ("spark.sql.execution.arrow.maxBytesPerBatch", str(ARROW_BYTES_MAX)),
    ]


def register_source(spark: SparkSession) -> None:
    """Make the formats ``luxrelay`` and ``luxrelay-segments`` known; again is harmless.

    Batch reads take filters over, for which Spark's push-down into Python sources is switched on.
    """
    from luxrelay.archive.segments import SegmentSource  # noqa: PLC0415  # imports pyspark
    from luxrelay.archive.source import LuxRelaySource  # noqa: PLC0415  # as above

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(LuxRelaySource)
    spark.dataSource.register(SegmentSource)


def spark_settings(config: SessionConfig, work: Path) -> list[tuple[str, str]]:
    """Return the settings of a session whose temporary files lie in ``work``."""
    log4j = work / "log4j2.properties"
    log4j.write_text(_LOG4J, encoding="utf-8")
    jvm = f'-Dlog4j2.configurationFile="{log4j.as_uri()}"'
    settings = {
        "spark.driver.memory": f"{config.driver_memory_mb}m",
        "spark.driver.extraJavaOptions": f"{jvm} {_QUICK_JVM}" if config.quick else jvm,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(work / "local"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.extensions": _DELTA,
        "spark.sql.catalog.spark_catalog": _CATALOG,
        **dict(session_settings(config)),
    }
    if config.master.startswith(("local", "spark://127.0.0.1:", "spark://localhost:")):
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.driver.host"] = "127.0.0.1"
    return list(settings.items())


def jar_settings(jars: Sequence[Path], *, local: bool) -> list[tuple[str, str]]:
    """Return how Spark gets at the Delta jars: from files, else by its own resolver."""
    if not jars:
        return [("spark.jars.packages", COORDINATE), ("spark.jars.excludes", EXCLUDES)]
    if local:
        return [("spark.driver.extraClassPath", os.pathsep.join(map(str, jars)))]
    return [("spark.jars", ",".join(map(str, jars)))]


def _require_pyspark() -> None:
    try:
        import delta  # noqa: F401, PLC0415  # asked whether they are there
        import pyarrow as pa  # noqa: F401, PLC0415
        import pyspark  # noqa: PLC0415
    except ImportError as error:
        raise ArchiveError(
            f"Python package {error.name} is not installed", where=sys.prefix, hint=_INSTALL
        ) from None
    home = os.environ.get("SPARK_HOME", "")
    if home and not list(Path(home, "jars").glob(f"spark-core_*-{pyspark.__version__}.jar")):
        raise ArchiveError(
            f"SPARK_HOME is no Spark {pyspark.__version__}",
            where=home,
            hint="unset SPARK_HOME; pyspark brings its own Spark",
        )


def _end_gateway(gateway: Any) -> None:
    """End a JVM that we started; without this it lives as long as this process."""
    if gateway is None:
        return
    from pyspark import SparkContext  # noqa: PLC0415  # heavy, and present by now

    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends when its standard input does
    try:
        gateway.proc.wait(timeout=_END_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
    # PySpark keeps the gateway in the class for the next context, which would find it dead.
    SparkContext._gateway = None  # noqa: SLF001  # no public way to forget it
    SparkContext._jvm = None  # noqa: SLF001  # as above
