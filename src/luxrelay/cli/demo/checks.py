"""What must be true at the end: read back from every relay over RelaySync, never assumed."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from luxrelay.bus import NamespaceId
from luxrelay.bus import constants as c
from luxrelay.sync import RelaySyncClient

_TIMESTAMP = slice(c.OFFSET_TIMESTAMP, c.OFFSET_TIMESTAMP + 8)


@dataclass(frozen=True, slots=True)
class Holdings:
    """Everything one relay holds under the given parents."""

    received_at: Mapping[bytes, int]
    """Digest of each header to its arrival, Unix milliseconds."""
    timestamps: Mapping[bytes, int]
    """Digest of each header to its timestamp, Unix milliseconds."""
    contiguous: bool
    """Every namespace that holds messages reaches its latest one without a hole."""
    namespaces: int
    """Namespaces that hold messages."""


def read_holdings(address: str, parents: Iterable[NamespaceId]) -> Holdings:
    """Return what the relay at ``address`` serves, page by page to every head.

    Raises:
        SyncUnreachableError, SyncRemoteError: the relay does not answer, or wrongly.

    """
    received: dict[bytes, int] = {}
    timestamps: dict[bytes, int] = {}
    contiguous, namespaces = True, 0
    with RelaySyncClient(address) as relay:
        for parent in parents:
            for head in list(relay.list_heads(parent)):
                if not head.messages:
                    continue
                namespaces += 1
                contiguous &= head.contiguous_seq == head.latest_seq == head.messages
                for page in relay.iter_pages(head.namespace_id):
                    for message in page.messages:
                        digest = hashlib.sha3_256(message.header).digest()
                        received[digest] = message.received_at
                        timestamps[digest] = int.from_bytes(message.header[_TIMESTAMP], "big")
    return Holdings(received, timestamps, contiguous, namespaces)


def latencies_ms(
    holdings: Sequence[Holdings], published: Iterable[bytes], without: frozenset[bytes]
) -> list[int]:
    """Return milliseconds from signature to commit, for each message and relay.

    Args:
        holdings: Of the relays that gossip brought the messages to.
        published: Digests.
        without: Digests to leave out.

    """
    return [
        max(0, relay.received_at[digest] - relay.timestamps[digest])
        for digest in published
        if digest not in without
        for relay in holdings
        if digest in relay.received_at
    ]


def caught_up_s(
    samples: Sequence[tuple[float, int | None]], published_at_s: Sequence[float], back_s: float
) -> float:
    """Return the seconds from a relay's return until it held what was published by then.

    Publishing may go on meanwhile: the relay has caught up at the first sample in which it holds as
    many messages as were acknowledged one sample earlier. When it never does, the last sample's
    time counts.

    Args:
        samples: (seconds, messages stored or None while it was away), in order.
        published_at_s: When each message was acknowledged, seconds, in order.
        back_s: When the relay was back, seconds.

    """
    known = last = back_s
    for at_s, stored in samples:
        if at_s < back_s or stored is None:
            continue
        last = at_s
        if stored >= bisect_right(published_at_s, known):
            break
        known = at_s
    return last - back_s


def percentile(values: Sequence[int], share: float) -> int:
    """Return the nearest-rank percentile; 0 of nothing."""
    if not values:
        return 0
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * share // 1))
    return ordered[int(rank) - 1]
