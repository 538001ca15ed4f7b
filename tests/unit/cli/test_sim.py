"""The sim command."""

import json
from pathlib import Path

import pytest

from luxrelay.cli.main import main
from luxrelay.sim import shipped

TINY = """
name = "tiny"
sentence = "Four nodes"
[network]
nodes = 4
dials = 2
start_spread_s = 0.1
[traffic]
start_s = 1
messages = 2
publishers = 1
[measure]
duration_s = 4
join_s = 0.5
settle_s = 1
[[expect]]
measure = "p99_ms"
at_most = {limit}
"""


def tiny(tmp_path: Path, limit: float = 500) -> str:
    """Return the path of a scenario of four nodes."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.format(limit=limit))
    return str(path)


def test_list_names_every_shipped_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its sentence."""
    assert main(["sim", "list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in shipped())


def test_list_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json each scenario is an object."""
    assert main(["sim", "list", "--json"]) == 0
    assert {each["scenario"] for each in json.loads(capsys.readouterr().out)} == set(shipped())


def test_run_says_what_came_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Measures, expectations, the seed; exit code 0."""
    assert main(["sim", "run", tiny(tmp_path), "--seed", "5", "--nodes", "6"]) == 0
    out = capsys.readouterr().out
    assert "tiny: Four nodes" in out
    assert "holds   p99_ms at most 500" in out
    assert "6 nodes, 4 virtual seconds" in out
    assert "seed 5, digest " in out


def test_a_failed_expectation_is_exit_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And it is named."""
    assert main(["sim", "run", tiny(tmp_path, limit=0.5)]) == 1
    assert "FAILED  p99_ms at most 0.5" in capsys.readouterr().out


def test_json_is_nothing_but_the_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Standard output is one document, and nothing else is written."""
    assert main(["sim", "run", tiny(tmp_path), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["measures"]["delivered_share"] == 1
    assert captured.err == ""


@pytest.mark.slow
def test_out_and_baseline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Report and plots land in the folder; the next run compares with them."""
    pytest.importorskip("matplotlib")
    path, out = tiny(tmp_path), tmp_path / "out"
    assert main(["sim", "run", path, "--out", str(out)]) == 0
    assert sorted(each.name for each in out.iterdir()) == [
        "tiny-latency.png",
        "tiny-mesh.png",
        "tiny.json",
    ]
    assert main(["sim", "run", path, "--baseline", str(out / "tiny.json")]) == 0
    assert "as the baseline" in capsys.readouterr().out

    assert main(["sim", "run", path, "--nodes", "5", "--baseline", str(out / "tiny.json")]) == 0
    assert "before" in capsys.readouterr().out


def test_record_and_replay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A recorded node does the same again; a changed recording does not, exit code 1."""
    recording = tmp_path / "node.jsonl"
    assert main(["sim", "run", tiny(tmp_path), "--record", f"2:{recording}"]) == 0
    assert main(["sim", "replay", str(recording)]) == 0
    assert "the same: " in capsys.readouterr().out
    recording.write_text(recording.read_text() + '{"actions":"0000000000000000"}\n')

    assert main(["sim", "replay", str(recording)]) == 1
    assert "differs at line" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "nothing"], "no such scenario"),
        (["run", "propagation", "--record", "x"], "expected NODE:FILE"),
        (["run", "propagation", "--nodes", "8", "--record", "0:/nowhere/x"], "cannot write"),
        (["run", "propagation", "--baseline", "nothing.json"], "cannot read the report"),
        (["replay", "nothing.jsonl"], "cannot read the recording"),
    ],
)
def test_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    """Exit code 1 and one line on standard error."""
    assert main(["sim", *arguments]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_baseline_that_is_no_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It is refused before the run."""
    path = tmp_path / "other.json"
    path.write_text("[]")
    assert main(["sim", "run", "propagation", "--baseline", str(path)]) == 1
    assert "not a report" in capsys.readouterr().err
    path.write_text("{")
    assert main(["sim", "run", "propagation", "--baseline", str(path)]) == 1
    assert "not a JSON report" in capsys.readouterr().err
