"""Which Java there is."""

from pathlib import Path

import pytest

from luxrelay.archive.java import find_java
from luxrelay.errors import ArchiveError


def _fake_java(home: Path, text: str, *, status: int = 0) -> dict[str, str]:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {status}\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(home), "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "25.0.1-ea"', 25),
    ],
)
def test_java_tells_its_version(tmp_path: Path, text: str, major: int) -> None:
    """JAVA_HOME comes before PATH."""
    found = find_java(_fake_java(tmp_path, text))

    assert (found.major, found.path) == (major, tmp_path / "bin" / "java")


def test_java_of_the_path(tmp_path: Path) -> None:
    """Without JAVA_HOME the path is searched."""
    _fake_java(tmp_path, 'openjdk version "17.0.1"')

    assert find_java({"PATH": str(tmp_path / "bin")}).major == 17


@pytest.mark.parametrize(
    ("text", "words"),
    [('java version "1.8.0_402"', "Java 8 is too old"), ("what?", "does not tell its version")],
)
def test_refuse_java(tmp_path: Path, text: str, words: str) -> None:
    """The error says what is wrong, where, and what to do."""
    with pytest.raises(ArchiveError, match=words) as caught:
        find_java(_fake_java(tmp_path, text))

    assert caught.value.code == "archive.setup"
    assert "install Java 17" in str(caught.value)


def test_missing_java(tmp_path: Path) -> None:
    """No Java at all, a JAVA_HOME without one, a program that does not start."""
    with pytest.raises(ArchiveError, match="Java is missing"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(ArchiveError, match="JAVA_HOME names no Java"):
        find_java({"JAVA_HOME": str(tmp_path)})
    environ = _fake_java(tmp_path, "")
    (tmp_path / "bin" / "java").chmod(0o644)
    with pytest.raises(ArchiveError, match="does not start"):
        find_java(environ)
