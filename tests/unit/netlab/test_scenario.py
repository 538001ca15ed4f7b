"""The lab's scenarios: every file is sound, and what is wrong in one is named."""

from __future__ import annotations

import pytest

from luxrelay.errors import ScenarioError
from netlab import scenario
from netlab.measures import MEANINGS
from netlab.prediction import CannotSimulateError, translated
from netlab.run import occurrences
from netlab.scenario import CasePlan, LabScenario, StepPlan, load_scenario, parse_scenario


@pytest.mark.parametrize("name", scenario.names())
def test_a_scenario_says_what_it_shows_and_expects_what_is_measured(name: str) -> None:
    """Every file is read, has a sentence and a row, publishes, and judges by known measures."""
    plan = load_scenario(name)

    assert plan.sentence
    assert plan.row
    assert plan.loads
    assert plan.expected
    assert {each.measure for each in plan.expected} <= MEANINGS.keys()
    assert all(
        each.at_least > float("-inf") or each.at_most < float("inf") for each in plan.expected
    )


def test_the_short_ones_are_scenarios_below_five_minutes() -> None:
    """What continuous integration runs."""
    plans = [load_scenario(name) for name in scenario.SHORT]

    assert sum(plan.seconds for plan in plans) < 120


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[network]\nrelays = 1", "expected 2 to 12"),
        ("[network]\nrelay = 3", "unknown key 'relay'"),
        ("[network]\nlinks = {los = 1}", "unknown key 'los'"),
        ("[network]\nchords = [true]", "whole numbers"),
        ("[network]\nrelays = 2.5", "kind int"),
        ("[[load]]\nrate = 1", "until_s or messages"),
        ("[[load]]\nrate = 0\nuntil_s = 1", "does not fit"),
        ('[[step]]\ndo = "explode"', "unknown action 'explode'"),
        ('[[step]]\ndo = "freeze"\nset = {loss = 1}', "unknown key 'loss'"),
        ('[[step]]\ndo = "thaw"\nevery_s = 1', "belong together"),
        ('[[step]]\ndo = "thaw"\nrelays = [6]', "relays 0 to 5"),
        ('[measure]\nsince = "healed"', "no step has the mark 'healed'"),
        ("[[step]]\nat_s = 4000", "longer than 3600 s"),
        ("nonsense = 1", "unknown key 'nonsense'"),
        ("name = 3", "kind str"),
        ("[load]\nrate = 1", r"expected tables \[\[load\]\]"),
        ("not toml", "not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text: str, what: str) -> None:
    """Before anything is started."""
    with pytest.raises(ScenarioError, match=what):
        parse_scenario(text, source="odd")


def test_a_scenario_that_is_not_there_is_named() -> None:
    """With those that are."""
    with pytest.raises(ScenarioError, match="no such scenario"):
        load_scenario("nowhere")


def test_a_repeated_step_has_its_times() -> None:
    """From its first one to its end, both inclusive."""
    step = StepPlan(at_s=3, every_s=6, until_s=15, do="thaw")

    assert [at for at, _ in occurrences((step,))] == [3, 9, 15]


def test_the_simulator_is_asked_for_what_it_knows() -> None:
    """Loss, delay and a partition are the same there."""
    lossy = translated(load_scenario("loss-5"), CasePlan())
    parted = translated(load_scenario("partition"), CasePlan())

    assert lossy.network.nodes == 6
    assert lossy.links.loss == 0.05
    assert lossy.links.latency_ms == 50
    assert lossy.traffic.messages == 150
    (fault,) = parted.faults
    assert (fault.at_s, fault.for_s, fault.share) == (16, 60, 0.5)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("blobs-burst", "rates of single nodes"),
        ("catch-up", "relays that differ"),
        ("spoilt", "duplicate of links"),
        ("flap", "steps other than"),
        ("deaf", "steps other than"),
        ("black-hole", None),
        ("frozen", "steps other than"),
    ],
)
def test_what_the_simulator_does_not_know_is_said(name: str, why: str | None) -> None:
    """A scenario that it cannot run is not run as something else."""
    plan = load_scenario(name)
    if why is None:
        assert translated(plan, CasePlan()).faults
        return
    with pytest.raises(CannotSimulateError, match=why):
        translated(plan, CasePlan())


def test_a_scenario_of_nothing_has_no_length() -> None:
    """Times are counted from loads and steps."""
    assert LabScenario(name="nothing").seconds == 0
