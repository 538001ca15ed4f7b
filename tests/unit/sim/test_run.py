"""Whole runs of a few nodes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from luxrelay.errors import ScenarioError
from luxrelay.sim import Scenario, simulate
from luxrelay.sim.faults import Churn, Eclipse, Sybil
from luxrelay.sim.node import Role
from luxrelay.sim.run import SimRun

Small = Callable[..., Scenario]

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from conftest import small_scenario
from luxrelay.sim import simulate
from luxrelay.sim.faults import Churn
print(simulate(small_scenario(Churn(from_s=1, until_s=4), sync_s=1.0, nodes=8)).digest)
"""


def test_a_calm_network_delivers_everything(small: Small) -> None:
    """Every message reaches every node once, and the mesh is whole (20-21, 20-50)."""
    report = simulate(small(duration_s=9.0))

    assert report.passed
    assert report.measures["delivered_share"] == 1
    assert report.measures["owed"] == 10 * 11
    assert report.measures["mesh_components"] == 1
    assert report.measures["messages"] == 10


def test_the_same_seed_is_the_same_run(small: Small) -> None:
    """Digests are equal for one seed and differ for another."""
    assert simulate(small()).digest == simulate(small()).digest
    assert simulate(small(seed=2)).digest != simulate(small()).digest


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_process(small: Small) -> None:
    """A process that hashes text and bytes in its own way comes to the same digest."""
    fault = Churn(from_s=1, until_s=4)
    digest = simulate(small(fault, sync_s=1.0, nodes=8)).digest
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == digest
    assert len(digest) == 64


def test_attackers_change_nobody_elses_part(small: Small) -> None:
    """Publishers are the same with and without attackers, so that two runs compare."""
    calm, attacked = (
        SimRun(small()),
        SimRun(small(Sybil(share=0.25), Eclipse(attackers=3, targets=2))),
    )

    assert [n.index for n in calm.publishers] == [n.index for n in attacked.publishers]
    roles = [node.role for node in attacked.network.nodes]
    assert (roles.count(Role.HOSTILE), roles.count(Role.VICTIM), len(roles)) == (6, 2, 15)


def test_too_many_parts_for_the_nodes(small: Small) -> None:
    """More victims than nodes are refused with a word on what to do."""
    with pytest.raises(ScenarioError, match="have more nodes"):
        SimRun(small(Eclipse(targets=11)))


def test_calm_and_faults_are_compared(small: Small) -> None:
    """With `calm` the report has the ratio of the two runs."""
    scenario = small(Sybil(share=0.25))
    changed = Scenario(
        **{
            name: getattr(scenario, name)
            for name in ("name", "network", "traffic", "faults", "sync")
        },
        measure=type(scenario.measure)(duration_s=8, settle_s=2, join_s=1, calm=True),
    )
    measures = simulate(changed).measures

    assert measures["p99_ms"] is not None
    assert measures["calm_p99_ms"] is not None
    assert measures["p99_ratio"] == measures["p99_ms"] / measures["calm_p99_ms"]


def test_a_node_that_is_not_there_cannot_be_recorded(small: Small) -> None:
    """The index is checked before anything runs."""
    with pytest.raises(ScenarioError, match="no node 12"):
        simulate(small(), recorders={12: print})


def test_progress_is_told(small: Small) -> None:
    """Each virtual second is reported once, up to the end."""
    told: list[tuple[float, float]] = []
    simulate(small(duration_s=2.5), progress=lambda done, end: told.append((done, end)))

    assert told == [(1.0, 2.5), (2.0, 2.5), (2.5, 2.5)]
