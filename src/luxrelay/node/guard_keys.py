"""The keys of what guards the store: rates, fees, finality."""

from __future__ import annotations

from typing import Final

from luxrelay.node.checks import Check, Key, boolean, list_of, match, text, whole

_KEY_FIELDS: Final[Check] = list_of(
    match(r"(0x)?[0-9a-fA-F]{4,4000}", "a public key field in hex"), 64
)

GUARD_KEYS: Final = (
    Key(
        "limits",
        "peer_messages_per_s",
        1000,
        "messages/s",
        whole(0, 10_000_000),
        "Live messages that one gossip peer may bring; 0 for no limit (LP-6422, G20).",
    ),
    Key(
        "limits",
        "node_messages_per_s",
        100_000,
        "messages/s",
        whole(0, 10_000_000),
        "Live messages that this node takes from everybody together; 0 for no limit.",
    ),
    Key(
        "limits",
        "namespace_messages_per_s",
        100,
        "messages/s",
        whole(0, 10_000_000),
        "Live messages of one namespace with its lanes, where no policy_file says it; 0 for no "
        "limit.",
    ),
    Key(
        "limits",
        "sender_messages_per_s",
        10,
        "messages/s",
        whole(0, 10_000_000),
        "Live messages of one sender; a good reputation doubles it, a bad one halves it (S8); "
        "0 for no limit.",
    ),
    Key(
        "limits",
        "burst_s",
        3,
        "seconds",
        whole(1, 3600),
        "How many seconds' worth may come at once (S1).",
    ),
    Key(
        "fees",
        "prepaid_issuers",
        [],
        "hex",
        _KEY_FIELDS,
        "Public key fields whose prepaid quotas this node honours; what a message costs is then "
        "kept in the store (LP-6411 §2.9, S7).",
    ),
    Key(
        "fees",
        "free_tier",
        True,
        "",
        boolean,
        "Whether messages without a fee proof are taken.",
    ),
    Key(
        "finality",
        "file",
        "",
        "path",
        text(0, 4096),
        "File of signed finality statements, one in hex a line, read again when it changes; "
        "without one every message is pending (J9). A relative path starts at the file's folder.",
    ),
    Key(
        "finality",
        "signers",
        [],
        "hex",
        _KEY_FIELDS,
        "Public key fields whose finality statements count.",
    ),
)
"""In the order of the documentation."""
