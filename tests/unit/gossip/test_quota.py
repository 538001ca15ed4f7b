"""Bytes of topics."""

from __future__ import annotations

from luxrelay.gossip.flow import TopicQuota


def test_a_topic_has_three_seconds_at_once() -> None:
    """The bucket is full at first, fills with time, and never holds more (20-47, S1)."""
    quota = TopicQuota(100.0)

    quota.take("a", 300, 0.0)
    assert quota.exceeded("a", 0.0)
    assert not quota.exceeded("b", 0.0)
    assert not quota.exceeded("a", 0.1)
    quota.take("a", 1_000, 500.0)
    assert quota.exceeded("a", 506.9)
    assert not quota.exceeded("a", 507.1)


def test_a_clock_that_runs_back_adds_nothing() -> None:
    """Time that goes backwards neither fills nor empties."""
    quota = TopicQuota(100.0)
    quota.take("a", 300, 10.0)

    assert quota.exceeded("a", 0.0)


def test_no_rate_is_no_limit() -> None:
    """0 turns it off and remembers nothing; a topic that was left is forgotten."""
    free, strict = TopicQuota(0.0), TopicQuota(1.0)
    free.take("a", 10**9, 0.0)
    strict.take("a", 10, 0.0)

    assert not free.exceeded("a", 0.0)
    assert len(free) == 0
    strict.forget("a")
    strict.forget("a")
    assert not strict.exceeded("a", 0.0)
