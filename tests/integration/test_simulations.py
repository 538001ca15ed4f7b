"""Each scenario that ships, at a small size.

`LUXRELAY_SIM_NODES` sets the number of nodes; `make sim` runs all of them at full size.
"""

import os
from dataclasses import replace

import pytest

from luxrelay.sim import Scenario, load_scenario, shipped, simulate
from luxrelay.sim.faults import Eclipse, Flood

pytestmark = pytest.mark.slow
NODES = int(os.environ.get("LUXRELAY_SIM_NODES", "20"))


def small(scenario: Scenario) -> Scenario:
    """Return the scenario with fewer nodes, messages and attackers, in proportion."""
    if scenario.network.nodes <= NODES:
        return scenario
    messages = max(10, scenario.traffic.messages // 4)
    rate = scenario.traffic.rate * messages / scenario.traffic.messages
    faults = tuple(
        replace(fault, attackers=10, targets=1)
        if isinstance(fault, Eclipse)
        else replace(fault, rate=3.0)
        if isinstance(fault, Flood)
        else fault
        for fault in scenario.faults
    )
    smaller = scenario.resized(NODES)
    traffic = replace(smaller.traffic, messages=messages, rate=rate)
    return replace(smaller, traffic=traffic, faults=faults)


@pytest.mark.parametrize("name", shipped())
def test_what_is_expected_comes_out(name: str) -> None:
    """Every expectation holds and nothing is violated (20-50 to 20-54)."""
    report = simulate(small(load_scenario(name)))

    assert not report.violations
    assert not report.failed, report.measures
