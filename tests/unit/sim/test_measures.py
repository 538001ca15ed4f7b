"""What a run is measured by."""

from collections.abc import Callable

import pytest

from luxrelay.sim import Scenario
from luxrelay.sim.measures import MEANINGS, SimPublished, measure, quantiles
from luxrelay.sim.node import Life
from luxrelay.sim.run import SimRun

Small = Callable[..., Scenario]


@pytest.fixture
def run(small: Small) -> SimRun:
    """Return a run without traffic of its own, at second 10, in which one message was published."""
    run = SimRun(small(nodes=5, messages=0, duration_s=10.0))
    run.execute()
    for node in run.network.nodes:
        node.life = Life(node.index, 0.0)
    run.published = [SimPublished(0, 0, 4.0, parted=False, sent_to=3)]
    return run


def deliver(run: SimRun, *at_s: float) -> None:
    """Let the message arrive at nodes 1, 2, … at these times."""
    for index, when in enumerate(at_s, 1):
        run.network.nodes[index].life.got[0] = when


def test_latency_counts_from_publication(run: SimRun) -> None:
    """Percentiles are values that were measured; the publisher does not count."""
    deliver(run, 4.1, 4.2, 4.3, 4.9)
    found = measure(run)

    assert found["owed"] == 4
    assert found["delivered_share"] == 1
    assert found["p50_ms"] == pytest.approx(300)
    assert found["p99_ms"] == found["max_ms"] == pytest.approx(900)
    assert found["within_500ms_share"] == 0.75
    assert quantiles(run, 3) == pytest.approx((100, 200, 300, 900))


def test_what_never_arrives_is_later_than_everything(run: SimRun) -> None:
    """A missing delivery lowers the share and takes the percentile with it."""
    deliver(run, 4.1, 4.2, 4.3)
    found = measure(run)

    assert found["delivered_share"] == 0.75
    assert found["p50_ms"] is not None
    assert found["p99_ms"] is None
    assert found["message_p90_ms_max"] is None


@pytest.mark.parametrize(
    ("born_at", "died_at", "owed"),
    [(0.0, float("inf"), 4), (3.0, 6.0, 4), (3.1, 9.0, 3), (0.0, 5.9, 3)],
)
def test_who_is_not_there_long_enough_is_owed_nothing(
    run: SimRun, born_at: float, died_at: float, owed: int
) -> None:
    """A node has to run join_s before and settle_s after the publication."""
    run.network.nodes[2].life = Life(2, born_at, died_at)

    assert measure(run)["owed"] == owed


def test_messages_of_a_partition_are_left_to_sync(run: SimRun) -> None:
    """What is published while the network is parted is not owed to anybody by gossip."""
    run.published = [SimPublished(0, 0, 4.0, parted=True, sent_to=3)]

    assert measure(run)["owed"] == 0
    assert measure(run)["delivered_share"] is None


def test_a_message_too_late_to_settle_does_not_count(run: SimRun) -> None:
    """The end of a run is no failure to deliver."""
    run.published = [SimPublished(0, 0, 8.1, parted=False, sent_to=3)]

    assert measure(run)["owed"] == 0


def test_every_measure_is_explained(run: SimRun) -> None:
    """The reference page knows each name that a report may hold."""
    run.mark("crash")
    run.mark("contact")
    run.victims = [run.network.nodes[1]]
    deliver(run, 4.1)

    assert set(measure(run)) <= set(MEANINGS)


def test_healed_is_from_when_on_everything_arrives(run: SimRun) -> None:
    """A gap starts the count anew; the moment is that of the first message of a complete run."""
    run.network.contact_at = 1.0
    run.marks = []
    run.mark("contact")
    run.marks[0].at_s = 1.0
    run.published = [
        SimPublished(number, 0, 1.0 + number, parted=False, sent_to=3) for number in range(5)
    ]
    for node in run.network.nodes[1:]:
        node.life.got = {0: 1.1, 1: 2.1, 2: 3.1, 3: 4.1, 4: 5.1}
    assert measure(run)["contact_healed_heartbeats"] == 0

    del run.network.nodes[3].life.got[1]

    assert measure(run)["contact_healed_heartbeats"] == pytest.approx(2.0 / 0.7)
