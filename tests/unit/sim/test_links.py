"""What lies between two nodes."""

import random
from statistics import median

import pytest

from luxrelay.sim.links import FRAME_OVERHEAD, LinkPlan, SimLink, Weather
from luxrelay.sim.network import Network

STILL = LinkPlan(latency_sigma=0, jitter_sigma=0, bandwidth_bytes_s=0)


def weather(plan: LinkPlan) -> Weather:
    """Return weather of one seed."""
    return Weather(plan, random.Random(5))


def link(network: Network, latency_s: float = 0.05) -> SimLink:
    """Return a link from the first node to the second."""
    first, second = network.nodes
    return SimLink(first, second, latency_s)


def test_latency_is_log_normal_around_its_median() -> None:
    """Half of the pairs are below the median, and the tail is that of the sigma."""
    drawn = [weather(LinkPlan()).base_latency_s() for _ in range(1)]
    draw = weather(LinkPlan(latency_ms=50, latency_sigma=0.5))
    drawn = sorted(draw.base_latency_s() for _ in range(4000))

    assert median(drawn) == pytest.approx(0.050, rel=0.05)
    # The 84th percentile is one sigma up: 50 ms times e to the 0.5.
    assert drawn[int(0.8413 * 4000)] == pytest.approx(0.0824, rel=0.06)


def test_frames_of_one_direction_keep_their_order(pair: Network) -> None:
    """Jitter delays what comes after, as on a stream."""
    rough = weather(LinkPlan(jitter_sigma=1.0, bandwidth_bytes_s=0))
    way = link(pair)
    arrivals = [rough.arrival(way, 100, now / 1000) for now in range(200)]

    assert arrivals == sorted(arrivals)  # type: ignore[type-var]
    assert rough.lost == 0


def test_reordered_frames_are_overtaken(pair: Network) -> None:
    """Frames that are held back arrive after some that were sent later."""
    rough = weather(LinkPlan(reorder=0.2, jitter_sigma=0, bandwidth_bytes_s=0))
    way = link(pair)
    arrivals = [rough.arrival(way, 100, now / 1000) for now in range(500)]

    assert arrivals != sorted(arrivals)  # type: ignore[type-var]
    assert 50 < rough.held_back < 150


def test_loss_is_counted(pair: Network) -> None:
    """A share of the frames does not arrive."""
    rough = weather(LinkPlan(loss=0.25, bandwidth_bytes_s=0))
    way = link(pair)
    arrivals = [rough.arrival(way, 100, 0.0) for _ in range(1000)]

    assert arrivals.count(None) == rough.lost
    assert 200 < rough.lost < 300


def test_frames_share_the_uplink_and_its_queue_is_bounded(pair: Network) -> None:
    """Each frame waits for those before it; beyond the queue it is lost."""
    plan = LinkPlan(jitter_sigma=0, bandwidth_bytes_s=1000, uplink_queue_s=2.0)
    narrow = weather(plan)
    way = link(pair)

    arrivals = [narrow.arrival(way, 500, 0.0) for _ in range(6)]

    assert arrivals[:4] == [pytest.approx(0.5 * n + 0.05) for n in (1, 2, 3, 4)]
    assert arrivals[4:] == [None, None]
    assert narrow.lost == 2


def test_corruption_changes_one_byte() -> None:
    """A corrupted frame has its length, and differs in one place."""
    rough = weather(LinkPlan(corrupt=1.0))
    data = bytes(200)

    changed = rough.through(data)

    assert len(changed) == len(data)
    assert sum(a != b for a, b in zip(changed, data, strict=True)) == 1
    assert rough.corrupted == 1


def test_a_still_link_changes_nothing(pair: Network) -> None:
    """Without jitter, loss and bounds a frame takes the latency, and arrives as it was."""
    still = weather(STILL)

    assert still.arrival(link(pair, 0.02), FRAME_OVERHEAD, 1.0) == pytest.approx(1.02)
    assert still.through(b"abc") == b"abc"
