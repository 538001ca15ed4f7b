"""Scenarios: files, names, and what is wrong with them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from luxrelay.errors import ScenarioError
from luxrelay.sim.faults import Crash, Flood
from luxrelay.sim.scenario import (
    FILE_BYTES_MAX,
    NODES_MAX,
    Expectation,
    Scenario,
    load_scenario,
    parse_scenario,
    shipped,
)

TEXT = """
name = "mine"
seed = 9

[network]
nodes = 30

[gossip]
d = 8

[score]
graylist_threshold = -900

[diversity]
subnet_max = 2

[[fault]]
kind = "crash"
share = 0.1

[[expect]]
measure = "p99_ms"
at_most = 400
"""


def test_reads_a_file(tmp_path: Path) -> None:
    """Every section arrives where it belongs."""
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)

    scenario = load_scenario(str(path))

    assert (scenario.name, scenario.seed, scenario.network.nodes) == ("mine", 9, 30)
    assert scenario.params().d == 8
    assert scenario.scores().graylist_threshold == -900
    assert scenario.diversities().subnet_max == 2
    assert scenario.faults == (Crash(share=0.1),)
    assert scenario.expect == (Expectation(measure="p99_ms", at_most=400),)


def test_every_shipped_scenario_is_well_formed() -> None:
    """Each has a name of its own, a sentence and something to expect, for a thousand nodes."""
    assert len(shipped()) >= 11
    for name in shipped():
        scenario = load_scenario(name)
        assert scenario.name == name
        assert scenario.sentence
        assert scenario.expect
        assert scenario.network.nodes == 1000


def test_the_how_to_shows_a_scenario_that_works() -> None:
    """The example of the documentation is well-formed."""
    page = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "simulate.md"
    (text,) = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)

    scenario = parse_scenario(text, source="simulate.md")

    assert (scenario.name, scenario.network.nodes, len(scenario.faults)) == (
        "slow-and-lossy",
        500,
        1,
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[nets]", "unknown key 'nets'; f.toml"),
        ("[network]\nnodes = 1", "f.toml: network.nodes"),
        (f"[network]\nnodes = {NODES_MAX + 1}", "network.nodes"),
        ("name = 3", "expected text; f.toml: name"),
        ("seed = 1.5", "whole number; f.toml: seed"),
        ("fault = 3", r"tables \[\[fault\]\]"),
        ('[[fault]]\nkind = "water"', "unknown kind of fault; f.toml: fault 1.kind; one of crash"),
        ('[[fault]]\nkind = "crash"\nshare = 2', r"fault 1\.share"),
        ("fault = [1]", "expected a table; f.toml: fault 1"),
        ("[gossip]\nd = 99", "d_lo ≤ d ≤ d_hi"),
        ("[gossip]\nq = 1", "unknown key 'q'; f.toml: gossip"),
        ("[score]\nq = 1", "unknown key 'q'; f.toml: score"),
        ('[gossip]\nd = "6"', "expected a number"),
        ("gossip = 3", "expected a table; f.toml: gossip"),
        ("x = [", "not TOML"),
    ],
)
def test_says_what_is_wrong_and_where(text: str, says: str) -> None:
    """A mistake in a file is one line that names the key."""
    with pytest.raises(ScenarioError, match=says):
        parse_scenario(text, source="f.toml")


def test_a_missing_file_names_the_shipped_ones(tmp_path: Path) -> None:
    """Whoever mistypes a name is shown the right ones."""
    with pytest.raises(ScenarioError, match="propagation"):
        load_scenario("propagations")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ScenarioError, match="larger than"):
        load_scenario(str(large))
    large.write_bytes(b"\xff")
    with pytest.raises(ScenarioError, match="not UTF-8"):
        load_scenario(str(large))


def test_somebody_has_to_be_honest() -> None:
    """Attackers that are everybody are refused."""
    with pytest.raises(ScenarioError, match="no honest node"):
        Scenario(faults=(Flood(share=0.6), Flood(share=0.5)))


@pytest.mark.parametrize(
    ("expectation", "value", "holds"),
    [
        (Expectation(measure="m", at_most=5), 5.0, True),
        (Expectation(measure="m", at_most=5), 5.1, False),
        (Expectation(measure="m", at_least=1), 0.9, False),
        (Expectation(measure="m", at_least=1), None, False),
    ],
)
def test_an_expectation_holds_or_not(
    expectation: Expectation, value: float | None, holds: bool
) -> None:
    """What could not be measured does not count as right."""
    assert expectation.holds(value) is holds


def test_a_smaller_network_has_fewer_publishers() -> None:
    """A resized scenario keeps room for nodes that only listen."""
    scenario = load_scenario("propagation").resized(10)

    assert (scenario.network.nodes, scenario.traffic.publishers) == (10, 2)


@pytest.mark.parametrize("name", ["flood", "censorship"])
def test_the_calm_half_of_an_attack_is_propagation(name: str) -> None:
    """So that its figures may be taken from there, as the page on simulations does."""
    calm, attack = load_scenario("propagation"), load_scenario(name)
    assert attack.measure.calm
    assert attack.faults

    half = replace(attack, faults=(), expect=(), measure=replace(attack.measure, calm=False))

    assert half == replace(calm, name=name, sentence=attack.sentence, expect=())
