"""The longer runs: each part is a target, none stops the others, and what failed is said."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def nightly(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program."""
    path = ROOT / "tools" / "nightly.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


def test_each_part_is_a_target_and_a_row_for_contributors(nightly: ModuleType) -> None:
    """What make is told is a target of the Makefile with a line of help."""
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    rows = (ROOT / "CONTRIBUTING.md").read_text()

    for name, words in nightly.PARTS.items():
        assert words[0] in targets
        assert f"| {name} | `make {' '.join(words)}` |" in rows


@pytest.fixture
def maker(tmp_path: Path) -> str:
    """A program in make's place: the part that is called mutants fails, the others do not."""
    program = tmp_path / "maker"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nprint('said by', sys.argv[2])\n"
        "sys.exit(3 if 'mutants' in sys.argv else 0)\n"
    )
    program.chmod(0o700)
    return str(program)


def test_a_part_that_fails_stops_no_other_and_is_told(
    nightly: ModuleType, maker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code says so, and the summary has its last lines."""
    folder = tmp_path / "logs"
    words = ["--make", maker, "--folder", str(folder), "trials", "mutants", "fuzz"]

    assert nightly.main(words) == 1

    told = (folder / "summary.txt").read_text()
    assert told in capsys.readouterr().out
    assert "2 of 3 parts held" in told
    assert re.search(r"^FAILED mutants .*\(3\)$", told, re.MULTILINE)
    assert "  said by mutants" in told
    assert "said by fuzz" in (folder / "fuzz.log").read_text()
    assert nightly.main(["--make", maker, "--folder", str(folder), "trials"]) == 0


def test_a_night_goes_on_where_it_was_ended(
    nightly: ModuleType, maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What held at the same commit with the same values is not run again, what failed is."""
    folder = tmp_path / "logs"
    words = ["--make", maker, "--folder", str(folder), "--go-on", "trials", "mutants", "fuzz"]
    monkeypatch.setattr(nightly, "commit", lambda: "commit 1234567")

    def ran() -> set[str]:
        for each in folder.glob("*.log"):
            each.write_text("of the time before")
        nightly.main(words)
        return {each.stem for each in folder.glob("*.log") if "said by" in each.read_text()}

    assert nightly.main(words) == 1
    assert ran() == {"mutants"}
    assert "2 of 3 parts held" in (folder / "summary.txt").read_text()
    monkeypatch.setenv("FUZZ_S", "1")
    assert ran() == {"mutants", "fuzz"}
    words.append("strangers")
    assert ran() == {"mutants", "strangers"}
    assert ran() == {"mutants"}
    monkeypatch.setenv("STRANGERS_S", "12")
    assert ran() == {"mutants", "strangers"}
    commits = iter(f"commit {number}" for number in range(100))
    monkeypatch.setattr(nightly, "commit", lambda: next(commits))
    assert ran() == {"trials", "mutants", "fuzz", "strangers"}
    monkeypatch.setattr(nightly, "commit", lambda: "commit 1234567")
    assert ran() == {"mutants"}  # nothing that ran over two commits was noted
    monkeypatch.setattr(nightly, "commit", lambda: "commit 1234567-dirty")
    assert ran() == {"trials", "mutants", "fuzz", "strangers"}
    monkeypatch.setattr(nightly, "commit", lambda: "commit 89abcde")
    assert ran() == {"trials", "mutants", "fuzz", "strangers"}
    (folder / nightly.HELD).write_text("{")
    assert ran() == {"trials", "mutants", "fuzz", "strangers"}


def test_a_part_that_hangs_is_ended_with_all_it_started(
    nightly: ModuleType, tmp_path: Path
) -> None:
    """It has its time, and then the next part has its own."""
    hang = "import threading; threading.Event().wait()"

    ended = nightly.run_part("hangs", [sys.executable, "-c", hang], tmp_path, 0.2)
    other = nightly.run_part("ends", [sys.executable, "-c", ""], tmp_path)

    assert ended.code is None
    assert not ended.held
    assert "too long" in ended.line()
    assert other.held


def test_a_part_that_cannot_be_run_has_failed(nightly: ModuleType, tmp_path: Path) -> None:
    """Nothing is in its way but its own line."""
    assert not nightly.run_part("lost", [str(tmp_path / "nowhere")], tmp_path).held


def test_an_unknown_part_is_refused(nightly: ModuleType) -> None:
    """Before anything is run."""
    assert nightly.main(["nonsense"]) == 2


def test_what_the_caller_gives_comes_before_the_length_of_a_night(
    nightly: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``make nightly FUZZ_S=60`` hands its value on; a word without one stays as it is."""
    monkeypatch.delenv("FUZZ_S", raising=False)
    assert nightly.given(["fuzz", "FUZZ_S=600"]) == ["fuzz", "FUZZ_S=600"]

    monkeypatch.setenv("FUZZ_S", "60")
    assert nightly.given(["fuzz", "FUZZ_S=600"]) == ["fuzz", "FUZZ_S=60"]
