"""Score parameters and their relations."""

from __future__ import annotations

import pytest

from luxrelay.errors import GossipArgumentError
from luxrelay.gossip import ScoreParams, TopicKind, TopicScoreParams


def test_the_defaults_are_those_of_the_decisions() -> None:
    """Weights, decays, caps and thresholds are the table of score defaults (20-25, G16, G18)."""
    params = ScoreParams()
    topic = params.namespace

    assert (topic.time_in_mesh_weight, topic.time_in_mesh_cap) == (0.05, 300)
    assert (topic.first_deliveries_decay, topic.first_deliveries_cap) == (0.98, 100)
    assert (topic.invalid_weight, topic.invalid_decay) == (10, 0.99)
    assert topic.mesh_deliveries_weight == 0
    weights = [params.of(kind).weight for kind in TopicKind]
    assert weights == [0.5, 1.0, 1.0, 1.0, 0.3]
    assert (params.topic_credit_cap, params.validator_credit) == (200, 50)
    assert (params.colocation_threshold, params.colocation_weight) == (4, 10)
    assert (params.behaviour_weight, params.behaviour_threshold) == (10, 6)
    assert params.behaviour_decay_per_s == 0.95
    assert (params.broken_promise, params.graft_in_backoff, params.control_flood) == (1, 2, 2)
    assert (params.gossip_threshold, params.publish_threshold) == (0, 0)
    assert (params.graylist_threshold, params.accept_threshold) == (-1000, -2500)
    assert (params.reject_threshold, params.refuse_s) == (-5000, 600)


def test_mesh_deliveries_are_counted_by_choice_and_on_one_topic() -> None:
    """P3 and P3b are for headers/global, and only for who asks for it (G18)."""
    params = ScoreParams.watching_headers()

    watched = params.of(TopicKind.HEADERS_GLOBAL)
    assert (watched.mesh_deliveries_weight, watched.mesh_deliveries_threshold) == (0.5, 5)
    assert (watched.mesh_deliveries_window_s, watched.mesh_deliveries_activation_s) == (2, 60)
    assert params.of(TopicKind.NAMESPACE).mesh_deliveries_weight == 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"app_weight": -1.0}, "app_weight is -1"),
        ({"behaviour_weight": float("nan")}, "behaviour_weight is nan"),
        ({"behaviour_decay_per_s": 1.0}, "behaviour_decay_per_s is 1"),
        ({"retained_max": 0}, "retained_max is 0"),
        ({"reject_threshold": -100.0}, "thresholds"),
        ({"accept_threshold": -500.0}, "thresholds"),
        ({"gossip_threshold": 1.0}, "thresholds"),
        ({"publish_threshold": -2000.0}, "thresholds"),
        ({"opportunistic_graft_threshold": float("inf")}, "opportunistic"),
    ],
)
def test_refuse_scores_that_do_not_fit_together(changes: dict[str, float], text: str) -> None:
    """A penalty below zero or a threshold out of order is refused by name (G16, G17)."""
    with pytest.raises(GossipArgumentError, match=text):
        ScoreParams(**changes)  # type: ignore[arg-type]  # names come from the table above


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"invalid_weight": -10.0}, "invalid_weight is -10"),
        ({"time_in_mesh_quantum_s": 0.0}, "time_in_mesh_quantum_s is 0"),
        ({"first_deliveries_decay": 0.0}, "first_deliveries_decay is 0"),
    ],
)
def test_refuse_topic_scores_out_of_range(changes: dict[str, float], text: str) -> None:
    """The same for what counts on a topic."""
    with pytest.raises(GossipArgumentError, match=text):
        TopicScoreParams(**changes)
