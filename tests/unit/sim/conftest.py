"""Small worlds for the simulator's tests."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from luxrelay.sim.faults import SimFault
from luxrelay.sim.network import Network
from luxrelay.sim.recovery import RecoveryPlan
from luxrelay.sim.scenario import Expectation, MeasurePlan, NetworkPlan, Scenario
from luxrelay.sim.traffic import TrafficPlan

Small = Callable[..., Scenario]


def small_scenario(
    *faults: SimFault,
    nodes: int = 12,
    messages: int = 10,
    duration_s: float = 8.0,
    sync_s: float = 0.0,
    expect: tuple[Expectation, ...] = (),
    **changes: object,
) -> Scenario:
    """Return a scenario of a few nodes and seconds."""
    scenario = Scenario(
        name="small",
        network=NetworkPlan(nodes=nodes, dials=4, book=8, start_spread_s=0.2, redial_s=0.5),
        traffic=TrafficPlan(start_s=2.0, messages=messages, rate=5.0, publishers=2, blob_bytes=50),
        measure=MeasurePlan(
            duration_s=duration_s, join_s=1.0, settle_s=2.0, sample_s=0.2, check_s=1.0
        ),
        sync=RecoveryPlan(interval_s=sync_s),
        faults=faults,
        expect=expect,
    )
    return replace(scenario, **changes)  # type: ignore[arg-type]


@pytest.fixture
def small() -> Small:
    """Return the maker of small scenarios."""
    return small_scenario


@pytest.fixture
def pair() -> Network:
    """Return a network of two honest nodes that know each other, not started."""
    from luxrelay.sim.node import Role, SimNode

    scenario = small_scenario(nodes=2)
    network = Network(scenario, scenario.params())
    for index in range(2):
        network.nodes.append(
            SimNode(index, 1, address=f"11.{index}.0.1", role=Role.HONEST, dials=1)
        )
    first, second = network.nodes
    first.book, second.book = [second], [first]
    first.kept, second.kept = [second], [first]
    return network
