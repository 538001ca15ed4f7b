"""What comes out of a run."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from luxrelay.errors import ScenarioError, SimulationError
from luxrelay.sim import Scenario, SimReport, simulate
from luxrelay.sim.checks import Violation
from luxrelay.sim.report import write_report
from luxrelay.sim.scenario import Expectation

Small = Callable[..., Scenario]


@pytest.fixture(scope="module")
def report() -> SimReport:
    """Return a report with one expectation that holds and one that does not."""
    from luxrelay.sim.scenario import MeasurePlan, NetworkPlan
    from luxrelay.sim.traffic import TrafficPlan

    return simulate(
        Scenario(
            name="tiny",
            network=NetworkPlan(nodes=4, dials=2, start_spread_s=0.1),
            traffic=TrafficPlan(start_s=1, messages=2, publishers=1),
            measure=MeasurePlan(duration_s=4, join_s=0.5, settle_s=1),
            expect=(
                Expectation(measure="delivered_share", at_least=1),
                Expectation(measure="p99_ms", at_most=0.1),
                Expectation(measure="no_such_measure", at_most=1),
            ),
        )
    )


def test_an_expectation_that_fails_fails_the_run(report: SimReport) -> None:
    """Also one whose measure does not exist: a mistyped name must not pass for success."""
    assert not report.passed
    assert [each.measure for each in report.failed] == ["p99_ms", "no_such_measure"]
    assert replace(report, failed=()).passed


def test_a_violation_fails_the_run(report: SimReport) -> None:
    """Whatever the measures say."""
    bad = replace(report, failed=(), violations=(Violation(1.0, 2, "x"),), violation_count=1)

    assert not bad.passed
    assert bad.to_json()["violations"] == [{"at_s": 1.0, "node": 2, "what": "x"}]


def test_the_digest_leaves_out_what_it_cost(report: SimReport) -> None:
    """Time here does not change it, anything in the network does."""
    assert replace(report, wall_s=9.0, cpu_s=8.0).digest == report.digest
    assert replace(report, events=report.events + 1).digest != report.digest


def test_the_report_is_json(report: SimReport, tmp_path: Path) -> None:
    """What is written can be read, has no infinity in it, and compares with itself."""
    path = write_report(report, tmp_path / "deep" / "er")
    loaded = json.loads(path.read_text(), parse_constant=pytest.fail)

    assert path.name == "tiny.json"
    assert loaded["measures"] == report.measures
    assert loaded["expect"][1] == {
        "measure": "p99_ms",
        "at_least": None,
        "at_most": 0.1,
        "holds": False,
    }
    assert report.differences(loaded) == []


def test_differences_name_before_and_now(report: SimReport) -> None:
    """A measure that changed is listed with both values; one that is new is not."""
    before = {"measures": {"messages": 5, "owed": None}}

    assert report.differences(before) == [("messages", 5.0, 2.0)]
    with pytest.raises(ScenarioError, match="no report"):
        report.differences({})


def test_a_folder_that_cannot_be_made(report: SimReport, tmp_path: Path) -> None:
    """The error says which path."""
    (tmp_path / "file").write_text("")

    with pytest.raises(SimulationError, match=r"file/x.tiny\.json"):
        write_report(report, tmp_path / "file" / "x")
