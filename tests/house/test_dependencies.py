"""What is installed is what is pinned, and the checker would say so if it were not."""

from __future__ import annotations

from importlib.metadata import Distribution, PathDistribution
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _load() -> ModuleType:
    spec = spec_from_file_location("check_dependencies", ROOT / "tools" / "check_dependencies.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHECK = _load()


def test_every_pin_is_a_version() -> None:
    """The file names versions, no ranges, addresses or packages twice."""
    pinned, faults = CHECK.pins((ROOT / "constraints.txt").read_text())

    assert not faults
    assert len(pinned) > 100
    assert CHECK.pins("a==1\nA==2\nb>=1\nc @ https://x\n# d\n\n")[1] == [
        "constraints.txt:2: A is pinned twice",
        "constraints.txt:3: 'b>=1' is no name==version",
        "constraints.txt:4: 'c @ https://x' is no name==version",
    ]


@pytest.fixture
def package(tmp_path: Path) -> Distribution:
    """An installed package of one file."""
    info = tmp_path / "toy-1.0.dist-info"
    info.mkdir()
    (tmp_path / "toy.py").write_text("pass\n")
    (info / "METADATA").write_text("Name: toy\nVersion: 1.0\nLicense-Expression: MIT\n")
    digest = CHECK.base64.urlsafe_b64encode(CHECK.hashlib.sha256(b"pass\n").digest())
    (info / "RECORD").write_text(f"toy.py,sha256={digest.decode().rstrip('=')},5\n")
    return PathDistribution(info)


def test_faults_are_found(package: Distribution, tmp_path: Path) -> None:
    """Another version, another origin, another licence and another file each have a line."""
    info = tmp_path / "toy-1.0.dist-info"
    assert list(CHECK.faults_of(package, {"toy": "1.0"})) == []

    (tmp_path / "toy.py").write_text("evil\n")
    (info / "direct_url.json").write_text("{}")
    (info / "METADATA").write_text("Name: toy\nVersion: 1.0\nLicense: AGPL-3.0\n")

    assert list(CHECK.faults_of(PathDistribution(info), {"toy": "2.0"})) == [
        "toy 1.0: constraints.txt says 2.0",
        "toy 1.0: not from an index",
        "toy 1.0: licence AGPL-3.0",
        "toy 1.0: toy.py was changed",
    ]


def test_ci_runs_it() -> None:
    """`make lint` asks, `make test` lints, and CI runs `make test`."""
    lint = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    assert "tools/check_dependencies.py" in lint
    assert "\ntest: setup lint " in (ROOT / "Makefile").read_text()
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()
