"""The benchmarks: every part has its programs, and a report says what machine it was made on."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


def load(path: Path) -> ModuleType:
    """Return a program as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def measure() -> ModuleType:
    """The program that runs the benchmarks."""
    return load(BENCH / "measure.py")


def test_every_part_has_its_programs(measure: ModuleType) -> None:
    """A part that is named is a file, and no program is left out."""
    named = {program for programs in measure.PARTS.values() for program in programs}
    assert all((BENCH / f"{program}.py").exists() for program in named)
    programs = {path.stem for path in BENCH.glob("*.py") if "json.dumps(row)" in path.read_text()}
    assert programs <= named, sorted(programs - named)


def test_a_report_names_machine_and_commit(
    measure: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Figures are published with the hardware they were made on (21-50)."""
    row = {
        "part": "bus",
        "name": "decode",
        "value": 5.0,
        "unit": "headers/s",
        "against": "a limit",
        "ratio": 0.5,
        "aim": 0.4,
    }
    monkeypatch.setattr(measure, "FOLDER", tmp_path)
    monkeypatch.setattr(measure, "PARTS", {"bus": ("bus",)})
    monkeypatch.setattr("sys.argv", ["measure.py", "bus"])
    (tmp_path / "bus.py").write_text(f"print({json.dumps(json.dumps(row))})")
    measure.main()
    report = json.loads((tmp_path / "results.json").read_text())
    assert "cores, Python" in report["machine"]
    assert report["commit"]
    assert report["results"] == [row]
    assert "0.50 of" in capsys.readouterr().out


def test_a_program_that_fails_costs_its_own_rows_alone(
    measure: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The rows before a failure and those of the other parts are kept, and the end says so."""
    row = {
        "part": "x", "name": "a", "value": None, "unit": "s", "against": "", "ratio": None,
    }  # fmt: skip
    text = f"print({json.dumps(json.dumps(row))})"
    (tmp_path / "broken.py").write_text(f"{text}\nraise SystemExit(3)")
    (tmp_path / "endless.py").write_text(
        f"{text}\nimport sys, time\nsys.stdout.flush()\ntime.sleep(600)"
    )
    (tmp_path / "sound.py").write_text(text)
    monkeypatch.setattr(measure, "FOLDER", tmp_path)
    monkeypatch.setattr(measure, "TIMEOUT_S", 2)
    monkeypatch.setattr(measure, "PARTS", {"x": ("broken", "endless", "sound")})
    monkeypatch.setattr("sys.argv", ["measure.py"])

    with pytest.raises(SystemExit, match="broken ended with 3; benchmark endless was not done"):
        measure.main()

    assert len(json.loads((tmp_path / "results.json").read_text())["results"]) >= 2
    assert " – " in capsys.readouterr().out


def test_the_growth_of_the_store_is_drawn_as_measured() -> None:
    """Drawing and table are those of the figures beside them (21-50)."""
    tool = load(BENCH.parent / "tools" / "plot_growth.py")
    report = json.loads(tool.FIGURES.read_text())
    sizes = {int(count): figures for count, figures in report["sizes"].items()}

    assert tool.DRAWING.read_text() == tool.drawing(sizes, report["units"])
    table = tool.table(sizes, report["units"], report["machine"], report["load"])
    assert table in tool.PAGE.read_text()


@pytest.mark.parametrize(("ratio", "holds"), [(0.3, True), (0.2, False)])
def test_a_ratio_far_below_its_aim_is_a_failure_when_floors_count(
    ratio: float,
    holds: bool,
    measure: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside an aim of 0.4 a ratio of 0.3 is another machine's, and 0.2 is none of that."""
    row = {"part": "bus", "name": "decode", "value": 5.0, "unit": "headers/s", "against": "a limit"}
    row |= {"ratio": ratio, "aim": 0.4}
    monkeypatch.setattr(measure, "FOLDER", tmp_path)
    monkeypatch.setattr(measure, "PARTS", {"bus": ("bus",)})
    monkeypatch.setattr("sys.argv", ["measure.py", "--floors", "bus"])
    (tmp_path / "bus.py").write_text(f"print({json.dumps(json.dumps(row))})")
    if holds:
        measure.main()
        return
    with pytest.raises(SystemExit, match=r"bus decode: 0\.20, aim 0\.40"):
        measure.main()
