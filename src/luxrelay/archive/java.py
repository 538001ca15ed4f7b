"""Which Java there is, and whether Spark can run on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from luxrelay.errors import ArchiveError

JAVA_MIN: Final = 17
"""Spark 4 needs Java 17 or newer."""
_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
_VERSION_S: Final = 30
"""Longest that `java -version` may take, seconds."""
_HINT: Final = f"install Java {JAVA_MIN} or newer and put it on PATH, or set JAVA_HOME"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use."""

    path: Path
    """The `java` program."""
    major: int
    """Its version: 17, 21, …"""


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the Java that Spark will run on: of JAVA_HOME when it is set, else of PATH.

    Raises:
        ArchiveError: there is none, it does not answer, or it is too old.

    """
    given = os.environ if environ is None else environ
    home = given.get("JAVA_HOME", "")
    if home:
        path = Path(home) / "bin" / "java"
        if not path.is_file():
            raise ArchiveError("JAVA_HOME names no Java", where=str(path), hint=_HINT)
    else:
        found = shutil.which("java", path=given.get("PATH"))
        if found is None:
            raise ArchiveError("Java is missing", where="PATH", hint=_HINT)
        path = Path(found)
    major = _major_version(path)
    if major < JAVA_MIN:
        raise ArchiveError(
            f"Java {major} is too old, Spark needs {JAVA_MIN}", where=str(path), hint=_HINT
        )
    return Java(path, major)


def _major_version(path: Path) -> int:
    try:
        done = subprocess.run(  # noqa: S603  # the program is the Java the user chose
            [str(path), "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ArchiveError(f"Java does not start: {error}", where=str(path), hint=_HINT) from None
    found = _VERSION.search(done.stderr + done.stdout)
    if found is None:
        raise ArchiveError("Java does not tell its version", where=str(path), hint=_HINT)
    return int(found[1])
