"""The keys of topics that are no namespace's: which a node follows, whose claims it believes."""

from __future__ import annotations

from typing import Final

from luxrelay.node.checks import Key, boolean, list_of, match, one_of, whole

_PEER_ID: Final = match(r"[1-9A-HJ-NP-Za-km-z]{16,128}", "a peer id such as 12D3KooW…")
OPERATORS_MAX: Final = 32
"""Most operators; the key of each may be tried on a hint."""
PROPOSERS_MAX: Final = 1024
"""Most proposers."""

TOPIC_KEYS: Final = (
    Key(
        "gossip",
        "global_topics",
        ["role"],
        "",
        list_of(
            one_of(
                "role", "headers/global", "blocks/proposed", "blocks/finalized", "blobs/available"
            ),
            5,
        ),
        "Which of the four global topics this node follows beside its namespaces: those of its "
        "role, or those named; none when empty (LP-6420 §1.1, §2.2).",
    ),
    Key(
        "gossip",
        "block_proposers",
        [],
        "peer id",
        list_of(_PEER_ID, PROPOSERS_MAX),
        "Whose block announcements are taken and passed on; everybody's when empty (G12).",
    ),
    Key(
        "gossip",
        "hint_operators",
        [],
        "peer id",
        list_of(_PEER_ID, OPERATORS_MAX),
        "DA operators whose blob hints may name others than themselves (G10).",
    ),
    Key(
        "gossip",
        "blob_streams",
        True,
        "",
        boolean,
        "Whether blobs are served to peers and fetched from them over libp2p streams (G11, P28).",
    ),
    Key(
        "gossip",
        "blob_bytes_per_s",
        4 * 1024 * 1024,
        "bytes per second",
        whole(1024 * 1024, 2**40),
        "Bytes of blobs served to one peer over libp2p streams.",
    ),
    Key(
        "gossip",
        "blob_requests_per_s",
        20,
        "requests per second",
        whole(1, 100_000),
        "Questions for blobs of one peer over libp2p streams.",
    ),
)
"""Further keys of the section ``gossip``."""
