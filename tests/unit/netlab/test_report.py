"""The lab's report: what held, what did not, and where it was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netlab import command, report
from netlab.lab import LabNotPermittedError
from netlab.measures import MEANINGS
from netlab.report import Circumstances, to_json, to_markdown, write
from netlab.run import CaseResult
from netlab.scenario import CasePlan, Expected, LabScenario

WHERE = Circumstances(machine="2 cores", commit="abc", load=0.1)
PLAN = LabScenario(
    name="cut",
    sentence="A cut",
    expected=(
        Expected(measure="stored_share", at_least=1),
        Expected(measure="recovery_ratio", at_most=1.5),
    ),
)


def result(**values: object) -> CaseResult:
    """Return the result of a case."""
    base = {"scenario": PLAN, "case": CasePlan(), "measures": {}, "seconds": 9.0}
    return CaseResult(**{**base, **values})  # type: ignore[arg-type]


def test_what_did_not_hold_is_said_with_its_value_and_limit(tmp_path: Path) -> None:
    """In the table and in the JSON file alike; a measure that could not be had is no success."""
    bad = result(measures={"stored_share": 0.5, "delivered_share": 0.25})
    good = result(
        measures={
            "stored_share": 1.0,
            "recovery_ratio": 1.25,
            "wire_bytes": 2e6,
            "useful_bytes": 1e6,
        },
        simulated={"delivered_share": 0.99, "p50_ms": 60.0},
    )
    told = to_json([bad, good], WHERE)
    path = write(told, tmp_path / "new")

    assert not bad.held
    assert good.held
    assert not told["held"]
    lines = to_markdown(told).splitlines()
    assert "stored_share 0.5, at least 1; recovery_ratio not reached, at most 1.5" in lines[-2]
    assert "2.00 / 1.00" in lines[-1]
    assert "0.9900, p50 60 ms" in lines[-1]
    assert json.loads(path.read_text())["results"][0]["expected"][1]["held"] is False
    assert (tmp_path / "new" / "report.md").read_text() == to_markdown(told)


def test_the_page_has_the_table_of_the_figures_beside_it() -> None:
    """What stands in the documentation was measured (21-50)."""
    figures = json.loads(report.FIGURES.read_text())

    between = report.PAGE.read_text().partition(report.BEGIN)[2].partition(report.END)[0]
    assert between.strip() == to_markdown(figures).strip()


def test_the_page_names_every_measure() -> None:
    """With its meaning, as the report's names have it."""
    page = report.PAGE.read_text()

    assert all(f"| `{name}` | {text} |" in page for name, text in MEANINGS.items())


def test_a_run_beside_other_work_is_called_loaded() -> None:
    """Its figures are no quiet machine's."""
    busy = Circumstances(machine="2 cores", commit="abc", load=2.5)

    assert "loaded" in to_markdown(to_json([result()], busy)).splitlines()[0]
    assert "loaded" not in to_markdown(to_json([result()], WHERE)).splitlines()[0]


def test_a_broken_off_run_and_a_missing_prediction_say_why() -> None:
    """Neither is an empty cell."""
    broken = result(error="r2 ended: no room|left", not_simulated="rates of single nodes")
    row = to_markdown(to_json([broken], WHERE)).splitlines()[-1]

    assert "not run to its end: r2 ended: no room/left" in row
    assert "not simulated: rates of single nodes" in row


def test_a_machine_that_permits_no_lab_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is never skipped; who asks first is told the reason alone."""

    def refuse() -> None:
        raise LabNotPermittedError("network namespaces need root")

    monkeypatch.setattr(command, "require_permission", refuse)

    assert command.main([]) == command.NOT_PERMITTED
    assert "cannot run here: network namespaces need root" in capsys.readouterr().out
    assert command.main(["--able"]) == command.NOT_PERMITTED
    assert capsys.readouterr().out == "network namespaces need root\n"


def test_a_scenario_that_fails_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what was measured before it is in the report."""
    found = {"calm": {"stored_share": 1.0}, "loss-5": {"stored_share": 0.9}}
    monkeypatch.setattr(command, "require_permission", lambda: None)
    monkeypatch.setattr(command, "remove_leftovers", list)
    monkeypatch.setattr(
        command,
        "run_scenario",
        lambda plan, *_: [result(scenario=plan, measures=found[plan.name], error="")],
    )
    monkeypatch.setattr(command, "predict", lambda *_: {"delivered_share": 1.0})

    assert command.main(["--out", str(tmp_path), "calm", "loss-5"]) == 1
    assert "0 of 2 held" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "report.json").read_text())["results"]) == 2
    assert command.main(["--out", str(tmp_path), "nowhere"]) == 2
