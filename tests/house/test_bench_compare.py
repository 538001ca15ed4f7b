"""Two trees are compared by the best of their runs, each result by its own direction."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program."""
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("compare", BENCH / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "compare", module)
    spec.loader.exec_module(module)
    return module


def tree(folder: Path, value: float, pause_ms: float) -> Path:
    """Make a tree whose one benchmark has these results."""
    (folder / "bench").mkdir(parents=True)
    rows = "".join(
        f"print(json.dumps({{'name': {name!r}, 'value': {number}, 'unit': {unit!r}}}))\n"
        for name, number, unit in (("puts", value, "puts/s"), ("p99", pause_ms, "ms"))
    )
    (folder / "bench" / "store.py").write_text(f"import json\n{rows}")
    return folder


def test_a_result_below_the_floor_is_named(
    compare: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """More a second is better, fewer milliseconds are; what is only there is passed over."""
    other = tree(tmp_path / "other", 100.0, 10.0)
    monkeypatch.setattr(compare, "HERE", tree(tmp_path / "here", 90.0, 5.0))
    monkeypatch.setattr(compare, "PARTS", {"store": ("store", "nothing")})

    monkeypatch.setattr(sys, "argv", ["compare", str(other), "store", "--times", "1"])
    assert compare.main() == 1
    said = capsys.readouterr()
    assert "| store: puts | puts/s | 100 | 90 | 0.90 |" in said.out
    assert "| store: p99 | ms | 10 | 5 | 2.00 |" in said.out
    assert said.err == "below the floor: store: puts 0.90\n"

    monkeypatch.setattr(sys, "argv", ["compare", str(other), "--times", "1", "--floor", "0.9"])
    assert compare.main() == 0
    assert compare.best([{"a": (1.0, "x/s")}, {"a": (2.0, "x/s")}]) == {"a": (2.0, "x/s")}
    assert compare.best([{"a": (1.0, "ms")}, {"a": (2.0, "ms")}]) == {"a": (1.0, "ms")}
