"""peers: connections of a node, their clocks, and each term of a peer's gossip score.

Source: LP-6420 §5.1; 20-25; decision G36.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from luxrelay.cli.arguments import SubParsers, add_command
from luxrelay.cli.gateway import add_gateway, chosen_token, clock_text
from luxrelay.cli.output import print_json, printable, table
from luxrelay.client import RelayClient
from luxrelay.errors import InputError

_TERMS: Final = ("score", "credit", "topic_penalty", "application", "colocation", "behaviour")
"""Of `luxrelay.gossip.ScoreTerms`; the score is what the others come to, penalties taken off."""
_COUNTED: Final = ("accepted", "rejected", "malformed", "promisesBroken", "givenUp")


def register(commands: SubParsers) -> None:
    """Add the command."""
    peers = add_command(
        commands,
        "peers",
        "list a node's peers with their scores in gossip, term by term",
        "luxrelay peers --gateway 127.0.0.1:9643",
        _peers,
    )
    add_gateway(peers)
    peers.add_argument(
        "peer", nargs="?", metavar="PEER", help="peer id; shows the terms of each topic as well"
    )
    peers.add_argument("--json", action="store_true", help="print JSON")


def _peers(arguments: argparse.Namespace) -> int:
    with RelayClient(
        arguments.gateway,
        token=chosen_token(arguments),
        timeout_s=arguments.timeout_s,
        token_in_clear=arguments.token_in_clear,
    ) as client:
        shown_peers = client.described("/v1/peers")
    rows: list[dict[str, Any]] = shown_peers["peers"]
    if arguments.peer is not None:
        rows = [row for row in rows if row["peerId"] == arguments.peer]
        if not rows:
            raise InputError(
                "the node is not connected with this peer",
                where=arguments.peer[:100],
                hint="`luxrelay peers` without PEER lists those that it is connected with",
            )
    if arguments.json:
        print_json(rows)
        return 0
    clock = shown_peers.get("clock")
    if clock is not None:  # an older node has none
        print(f"clock: {clock_text(clock)}\n")
    shown = [
        (
            _text(row["peerId"]),
            _clock(row),
            *_terms(row),
            *(row.get(n, 0) for n in _COUNTED),
            "slow" if row.get("slow") else "",
        )
        for row in rows
    ]
    names = ("peer", "clock s", *(name.replace("_", " ") for name in _TERMS))
    counted = ("accepted", "rejected", "malformed", "promises broken", "given up", "link")
    print(table((*names, *counted), shown))
    if arguments.peer is not None:
        _print_topics(rows[0]["score"] or {})
    return 0


def _clock(row: Mapping[str, Any]) -> object:
    """Return how far the node's clock is ahead of a peer's, seconds; empty when it told none."""
    offset = row.get("clockOffsetMs")
    return "" if offset is None else offset / 1000


def _terms(row: Mapping[str, Any]) -> list[object]:
    score = row["score"] or {}
    return [float(score[name]) if name in score else "" for name in _TERMS]


def _print_topics(score: Mapping[str, Any]) -> None:
    """Print the terms of each topic; the empty one stands for frames that named none."""
    topics = score.get("topics", {})
    names = sorted({name for terms in topics.values() for name in terms})
    rows = [
        (_text(topic) or "(unreadable)", *(float(terms.get(name, 0)) for name in names))
        for topic, terms in sorted(topics.items())
    ]
    if rows:
        print()
        print(table(("topic", *(name.replace("_", " ") for name in names)), rows))


def _text(value: object) -> str:
    return printable(str(value))
