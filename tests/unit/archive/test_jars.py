"""Where the Delta jars lie and how they get there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from luxrelay.archive.jars import (
    DELTA_VERSION,
    JAR_NAMES,
    fill_folder,
    find_jars,
    jar_folders,
    main,
)
from luxrelay.errors import ArchiveError

ROOT = Path(__file__).resolve().parents[3]


def _put_jars(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in JAR_NAMES:
        (folder / name).write_bytes(b"PK")


def _maven(folder: Path, script: str) -> str:
    program = folder / "mvn"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def _copying(source: Path) -> str:
    return (
        'for word in "$@"; do case "$word" in -DoutputDirectory=*)'
        f' cp {source}/*.jar "${{word#-DoutputDirectory=}}";; esac; done'
    )


def test_search_order() -> None:
    """LUXRELAY_JARS first, then this environment's share."""
    shared = Path(sys.prefix) / "share" / "luxrelay" / "jars"

    assert jar_folders({"LUXRELAY_JARS": "/elsewhere"}) == [Path("/elsewhere"), shared]
    assert jar_folders({}) == [shared]


def test_a_folder_counts_when_it_has_every_jar(tmp_path: Path) -> None:
    """A half-filled folder is passed over."""
    _put_jars(tmp_path / "half")
    (tmp_path / "half" / JAR_NAMES[0]).write_bytes(b"")
    _put_jars(tmp_path / "whole")

    found = find_jars([tmp_path / "none", tmp_path / "half", tmp_path / "whole"])

    assert [jar.name for jar in found] == list(JAR_NAMES)
    assert found[0].parent == tmp_path / "whole"
    assert find_jars([tmp_path / "half"]) == []


def test_a_full_folder_is_left_alone(tmp_path: Path) -> None:
    """The second run asks nobody."""
    _put_jars(tmp_path)

    assert len(fill_folder(tmp_path, maven="/no/such/mvn", ivy=False)) == len(JAR_NAMES)


def test_maven_fills_the_folder(tmp_path: Path) -> None:
    """Jars are moved in whole; nothing else stays behind."""
    _put_jars(tmp_path / "source")
    maven = _maven(tmp_path, _copying(tmp_path / "source"))

    jars = fill_folder(tmp_path / "jars", maven=maven, ivy=False)

    assert find_jars([tmp_path / "jars"]) == jars
    assert sorted(path.name for path in (tmp_path / "jars").iterdir()) == sorted(JAR_NAMES)


def test_failures_are_told(tmp_path: Path) -> None:
    """Each way that was tried says why it failed."""
    maven = _maven(tmp_path, "echo 'cannot reach the repository'; exit 1")

    with pytest.raises(ArchiveError, match="cannot reach the repository") as caught:
        fill_folder(tmp_path / "jars", maven=maven, ivy=False)
    assert "or put the jars into" in str(caught.value)
    with pytest.raises(ArchiveError, match="no way to fetch them"):
        fill_folder(tmp_path / "jars", ivy=False)
    with pytest.raises(ArchiveError, match="No such file"):
        fill_folder(tmp_path / "jars", maven="/no/such/mvn", ivy=False)


def test_ivy_needs_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java the second way is closed too, in clear words."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(ArchiveError, match="Ivy: JAVA_HOME names no Java"):
        fill_folder(tmp_path / "jars")


def test_command_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line on success; the reason on standard error and status 1 else."""
    _put_jars(tmp_path / "full")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert main(["--folder", str(tmp_path / "full")]) == 0
    assert capsys.readouterr().out == (f"5 jars of Delta {DELTA_VERSION} in {tmp_path / 'full'}\n")
    assert main(["--folder", str(tmp_path / "empty"), "--without-maven"]) == 1
    assert "cannot be fetched" in capsys.readouterr().err


def test_version_is_the_pinned_one() -> None:
    """Python package and jars are of one release."""
    pins = re.findall(r'"delta-spark==([0-9.]+)"', (ROOT / "pyproject.toml").read_text())

    assert pins == [DELTA_VERSION]
