"""The Delta jars by Spark's own resolver, from a local repository as a user may have it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from luxrelay.archive.jars import ARTIFACT, DELTA_VERSION, JAR_NAMES, find_jars, jar_folders

pytestmark = [pytest.mark.spark, pytest.mark.slow]
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
<dependencies>{dependencies}</dependencies></project>"""
DEPENDENCY = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId>"
    "<version>{2}</version></dependency>"
)
SESSION = """
import sys
from luxrelay.archive import ArchiveSession
from luxrelay.archive.session import SessionConfig
config = SessionConfig(master="local[1]", tasks=1, jar_folders=())
with ArchiveSession(config) as session:
    session.spark.sql(f"CREATE TABLE delta.`{sys.argv[1]}` (a INT) USING DELTA")
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A home whose Maven repository has the jars, and a foreign pom without its jar."""
    jars = find_jars(jar_folders())
    if not jars:
        pytest.skip("the Delta jars are not here; `python -m luxrelay.archive.jars` fetches them")
    home = tmp_path / "home"
    foreign = ("org.xerial.snappy", "snappy-java", "9.9.9")
    others = [name.removesuffix(f"-{DELTA_VERSION}.jar") for name in JAR_NAMES]
    wanted = [("io.delta", name, DELTA_VERSION) for name in others if name != ARTIFACT]
    _publish(home, *foreign)
    for jar, artifact in zip(jars, others, strict=True):
        dependencies = [*wanted, foreign] if artifact == ARTIFACT else [foreign]
        folder = _publish(home, "io.delta", artifact, DELTA_VERSION, dependencies)
        shutil.copy(jar, folder)
    return {**os.environ, "JAVA_TOOL_OPTIONS": f"-Duser.home={home}"}


def _publish(
    home: Path,
    group: str,
    artifact: str,
    version: str,
    dependencies: list[tuple[str, str, str]] | None = None,
) -> Path:
    folder = home.joinpath(".m2", "repository", *group.split("."), artifact, version)
    folder.mkdir(parents=True)
    listed = "".join(DEPENDENCY.format(*entry) for entry in dependencies or [])
    text = POM.format(group=group, artifact=artifact, version=version, dependencies=listed)
    (folder / f"{artifact}-{version}.pom").write_text(text)
    return folder


def test_without_maven_the_folder_is_filled(environ: dict[str, str], tmp_path: Path) -> None:
    """Spark's resolver brings the five jars and stumbles over no foreign one."""
    folder = tmp_path / "jars"
    command = [sys.executable, "-m", "luxrelay.archive.jars", "--folder", str(folder)]

    done = subprocess.run(
        [*command, "--without-maven"], env=environ, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == sorted(JAR_NAMES)


def test_without_a_folder_the_session_resolves_them(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """A session without a jar folder starts and makes a Delta table."""
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(tmp_path / "table")],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "table" / "_delta_log").is_dir()
