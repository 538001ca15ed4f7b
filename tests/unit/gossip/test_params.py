"""Parameters and their relations."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from luxrelay.errors import GossipArgumentError
from luxrelay.gossip import GossipParams


def test_the_defaults_are_those_of_the_specification() -> None:
    """LP-6420 §4.1's ten numbers are the defaults (20-13)."""
    params = GossipParams()

    assert (params.d, params.d_lo, params.d_hi) == (6, 4, 12)
    assert (params.d_score, params.d_out, params.d_lazy) == (4, 2, 6)
    assert (params.heartbeat_interval_s, params.fanout_ttl_s) == (0.7, 60.0)
    assert (params.history_length, params.history_gossip) == (5, 3)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"d": 3}, "d_lo ≤ d ≤ d_hi"),
        ({"d": 13}, "d_lo ≤ d ≤ d_hi"),
        ({"d_lo": 7}, "d_lo ≤ d ≤ d_hi"),
        ({"d_hi": 5}, "d_lo ≤ d ≤ d_hi"),
        ({"d_out": 4, "d": 8}, "d_out is not below d_lo"),
        ({"d_out": 3, "d": 5}, "d_out is above half of d"),
        ({"d_score": 7}, "d_score is above d"),
        ({"d_lazy": -1}, "d_lazy is -1"),
        ({"history_gossip": 6}, "history_gossip is above"),
        ({"heartbeat_interval_s": 0.0}, "heartbeat_interval_s is 0"),
        ({"heartbeat_interval_s": float("nan")}, "heartbeat_interval_s is nan"),
        ({"fanout_ttl_s": float("inf")}, "fanout_ttl_s is inf"),
        ({"peers_max": 0}, "peers_max is 0"),
        ({"px_peers_max": 0}, "px_peers_max is 0"),
        ({"prune_backoff_s": 4000.0}, "prune_backoff_s is above"),
        ({"unsubscribe_backoff_s": 4000.0}, "unsubscribe_backoff_s is above"),
        ({"rpc_max": 1000}, "rpc_max is below"),
        ({"rpc_max": 2 * 1024 * 1024}, "rpc_max is above"),
        ({"message_max": 70_000}, "message_max is above"),
        ({"frame_max": 66_000}, "does not fit frame_max"),
        ({"queue_bytes_max": 66_000}, "does not fit queue_bytes_max"),
        ({"pending_bytes_max": 1_000}, "above pending_bytes_max"),
        ({"cache_bytes_max": 66_000}, "does not fit cache_bytes_max"),
    ],
)
def test_refuse_numbers_that_do_not_fit_together(changes: dict[str, float], text: str) -> None:
    """A set that breaks a relation is refused when it is built, by name (20-13, G13)."""
    with pytest.raises(GossipArgumentError, match=text):
        GossipParams(**changes)  # type: ignore[arg-type]  # names come from the table above


def test_every_fault_is_named_at_once() -> None:
    """Who corrects a configuration sees all of it."""
    with pytest.raises(GossipArgumentError, match=r"peers_max is 0.*d_score is above d"):
        GossipParams(peers_max=0, d_score=7)


def test_the_small_preset_fits_together() -> None:
    """The preset is a valid set with small degrees."""
    small = GossipParams.small()

    assert (small.d_lo, small.d, small.d_hi) == (2, 3, 6)
    assert replace(small, d=2, d_score=1).d == 2


def test_a_layer_may_be_off() -> None:
    """Zero turns off what can be done without."""
    params = GossipParams(d_score=0, d_out=0, d_lazy=0, opportunistic_graft_peers=0)

    assert {field.name for field in fields(params)} >= {"d_score", "d_out", "d_lazy"}


def test_hints_are_known_for_half_a_minute_at_most() -> None:
    """A refreshed hint is let through within 30 s, whatever came before (G3; 20-24)."""
    assert GossipParams().hint_ttl_s <= 30.0 < GossipParams().seen_ttl_s
