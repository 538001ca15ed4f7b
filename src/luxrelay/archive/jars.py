"""The Delta jars that Spark needs: where they lie, and how they get there.

`python -m luxrelay.archive.jars` fills the folder once, by Maven when it is installed, else by
the Ivy that Spark carries; a second run finds everything in place and returns at once.

Only jars of the group ``io.delta`` are taken: Spark brings everything else they need, and its own
resolver fails on the whole when one foreign jar of a half-filled local repository is missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from luxrelay.archive.java import find_java
from luxrelay.errors import ArchiveError

DELTA_VERSION: Final = "4.4.0"
"""The release of delta-spark that pyproject.toml pins."""
ARTIFACT: Final = "delta-spark_4.2_2.13"
"""Built for Spark 4.2 and Scala 2.13."""
COORDINATE: Final = f"io.delta:{ARTIFACT}:{DELTA_VERSION}"
EXCLUDES: Final = "org.*:*,com.*:*,io.unitycatalog:*"
"""What Ivy leaves out: all that is not of the group io.delta, as globs."""
JAR_NAMES: Final = tuple(
    f"{artifact}-{DELTA_VERSION}.jar"
    for artifact in (
        "delta-kernel-api",
        "delta-kernel-defaults",
        "delta-kernel-unitycatalog",
        ARTIFACT,
        "delta-storage",
    )
)
FOLDER_VARIABLE: Final = "LUXRELAY_JARS"
FETCH_S: Final = 600
"""Longest that Maven may take, seconds."""
_LOG_TAIL: Final = 400
_POM: Final = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>luxrelay</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>io.delta</groupId>
    <artifactId>{ARTIFACT}</artifactId>
    <version>{DELTA_VERSION}</version>
  </dependency></dependencies>
</project>
"""


def jar_folders(environ: Mapping[str, str] | None = None) -> list[Path]:
    """Return where jars are looked for, in order: LUXRELAY_JARS, then this environment's share."""
    given = os.environ if environ is None else environ
    named = given.get(FOLDER_VARIABLE, "")
    shared = Path(sys.prefix) / "share" / "luxrelay" / "jars"
    return [Path(named), shared] if named else [shared]


def find_jars(folders: Sequence[Path]) -> list[Path]:
    """Return the jars of the first folder that has all of them; an empty list without one."""
    for folder in folders:
        jars = [folder / name for name in JAR_NAMES]
        if all(jar.is_file() and jar.stat().st_size for jar in jars):
            return jars
    return []


def fill_folder(folder: Path, *, maven: str | None = None, ivy: bool = True) -> list[Path]:
    """Return the jars in ``folder``, fetched first when one is missing.

    Args:
        folder: Made when it does not exist; other files in it stay.
        maven: The `mvn` program, or None to do without.
        ivy: Use Spark's own resolver when Maven is absent or fails.

    Raises:
        ArchiveError: neither way brought the jars.

    """
    present = find_jars([folder])
    if present:
        return present
    folder.mkdir(parents=True, exist_ok=True)
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix=".jars-", dir=folder) as name:
        work = Path(name)
        for fetch, wanted in ((_by_maven, bool(maven)), (_by_ivy, ivy)):
            if not wanted:
                continue
            failure = fetch(work, maven or "")
            jars = [work / jar for jar in JAR_NAMES]
            if all(jar.is_file() for jar in jars):
                # One rename a jar: a reader sees a whole jar or none.
                return [jar.replace(folder / jar.name) for jar in jars]
            failures.append(failure)
    raise ArchiveError(
        "the Delta jars cannot be fetched: " + "; ".join(failures or ["no way to fetch them"]),
        where=COORDINATE,
        hint=f"connect to a Maven repository, or put the jars into {folder}",
    )


def _by_maven(work: Path, maven: str) -> str:
    pom = work / "pom.xml"
    pom.write_text(_POM, encoding="utf-8")
    goal = "dependency:copy-dependencies"
    options = ["-DincludeScope=runtime", "-DincludeGroupIds=io.delta", f"-DoutputDirectory={work}"]
    try:
        done = subprocess.run(  # noqa: S603  # mvn from PATH; nothing of the command is foreign
            [maven, "-q", "-B", "-f", str(pom), goal, *options],
            capture_output=True,
            text=True,
            timeout=FETCH_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Maven: {error}"
    return f"Maven: {(done.stdout + done.stderr).strip()[-_LOG_TAIL:]}"


def _by_ivy(work: Path, _maven: str) -> str:
    """Let spark-submit resolve the packages while it starts, and end it before a session."""
    try:
        find_java()
        from pyspark.conf import SparkConf  # noqa: PLC0415  # not needed when jars are there
        from pyspark.errors import PySparkException  # noqa: PLC0415  # as above
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415  # as above
    except ImportError:
        return "Ivy: pyspark is not installed (pip install 'luxrelay[archive]')"
    except ArchiveError as error:
        return f"Ivy: {error}"
    log = work / "ivy.log"
    conf = SparkConf(loadDefaults=False)
    conf.set("spark.jars.ivy", str(work / "ivy")).set("spark.jars.packages", COORDINATE)
    conf.set("spark.jars.excludes", EXCLUDES)
    with log.open("wb") as sink:
        try:
            gateway = launch_gateway(  # type: ignore[no-untyped-call]  # PySpark's
                conf, {"stdout": sink, "stderr": sink}
            )
        except PySparkException:
            return f"Ivy: {log.read_text(errors='replace').strip()[-_LOG_TAIL:]}"
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=FETCH_S)
    for jar in (work / "ivy" / "jars").glob("io.delta_*.jar"):
        shutil.move(jar, work / jar.name.removeprefix("io.delta_"))
    return "Ivy: a jar is missing from what it resolved"


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the jar folder and say where it is; 0 on success, 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m luxrelay.archive.jars",
        description="Fetch the Delta jars for luxrelay.archive once.",
    )
    parser.add_argument("--folder", type=Path, default=jar_folders()[0], help="where they go")
    parser.add_argument("--without-maven", action="store_true", help="use Spark's resolver")
    given = parser.parse_args(arguments)
    maven = None if given.without_maven else shutil.which("mvn")
    try:
        jars = fill_folder(given.folder, maven=maven)
    except ArchiveError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{len(jars)} jars of Delta {DELTA_VERSION} in {given.folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
