"""The keys with which a file changes the router's numbers and tells where networks are."""

from __future__ import annotations

from typing import Final

from luxrelay.node.checks import Key, list_of, match, text, whole

TUNING_KEYS: Final = (
    Key(
        "gossip",
        "mesh",
        [],
        "",
        list_of(match(r"[a-z_]{1,40}=[0-9a-z.+-]{1,24}", "a change such as 'd=8'"), 64),
        "Numbers of the router that differ from their defaults (LP-6420 §4.1): names of "
        "`GossipParams`, such as 'd=8' and 'd_hi=16'. The whole set is checked at the start (G13).",
    ),
    Key(
        "gossip",
        "scores",
        [],
        "",
        list_of(
            match(
                r"[a-z_0-9]{1,40}(\.[a-z_0-9]{1,40})?=[0-9a-z.+-]{1,24}",
                "a change such as 'namespace.weight=0.7'",
            ),
            64,
        ),
        "Numbers of the scores that differ from their defaults (LP-6420 §5, G18): names of "
        "`ScoreParams`, or a topic's of `TopicScoreParams`, such as "
        "'headers_global.mesh_deliveries_weight=0.5'.",
    ),
    Key(
        "gossip",
        "places",
        "",
        "path",
        text(0),
        "File of networks with autonomous system and region, one a line such as "
        "192.0.2.0/24,64500,EU; without it neither counts (LP-6420 §6.1).",
    ),
    Key(
        "gossip",
        "system_peers_max",
        8,
        "peers",
        whole(1, 1000),
        "Peers of one autonomous system, with `places` (LP-6420 §6.1, G21).",
    ),
    Key(
        "gossip",
        "regions_min",
        0,
        "regions",
        whole(0, 100),
        "Regions that peers should be of, with `places`; the last places are kept for those that "
        "are missing (LP-6420 §6.1, G21).",
    ),
)
"""Further keys of the section ``gossip``."""
