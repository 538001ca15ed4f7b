"""How long a hole is waited for: contiguous heads, and what may be read beyond them.

A message that is late leaves a hole; a message that never comes would leave one for ever, and
nothing behind it would be archived. So a hole is given up once a message beyond it has been at a
relay for ``holePatienceMs``: whatever was to come before that message had this long to arrive.
Nothing need be remembered for that, the relay's own ``received_at`` tells it. What is given up
shows as a gap, and `refetch` brings it when it comes after all.

Source: decisions H16, H18, P25, J8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from luxrelay.archive.offsets import holed
from luxrelay.archive.options import SourceOptions
from luxrelay.archive.relays import connect
from luxrelay.errors import SyncRemoteError, SyncUnreachableError
from luxrelay.sync.heads import Head
from luxrelay.sync.rpc.client import RelaySyncClient

HOLED_MAX: Final = 200
"""Namespaces that are asked about in one survey; the rest waits for the next."""
STEPS_MAX: Final = 20
"""Messages looked at in one namespace: what they find is old enough, if not always the newest."""


def past_holes(
    options: SourceOptions, heads: Sequence[Sequence[Head]], down: Sequence[str], *, now_ms: int
) -> dict[str, int]:
    """Return up to which sequence each namespace with holes may be read.

    Args:
        options: Relays, and how long a hole is waited for.
        heads: The heads of each relay that answered, in the order of the options.
        down: The relays that did not.
        now_ms: The time, Unix milliseconds.

    """
    found = dict(list(holed(heads).items())[:HOLED_MAX])
    if not found:
        return {}
    edge = now_ms - options.hole_patience_ms
    answering = [relay for relay in options.relays if relay not in down]
    passed: dict[str, int] = {}
    for relay, held in zip(answering, heads, strict=True):
        # Whoever has the newest message is asked; one that fails leaves the hole for later.
        wanted = [
            head
            for head in held
            if (name := head.namespace_id.hex()) in found and head.latest_seq == found[name][1]
        ]
        if not wanted:
            continue
        with connect(relay, options) as client:
            try:
                for head in wanted:
                    name = head.namespace_id.hex()
                    reached = _reached(client, head, found[name], edge)
                    passed[name] = max(passed.get(name, 0), reached)
            except (SyncUnreachableError, SyncRemoteError):
                continue
    return {name: reached for name, reached in passed.items() if reached > found[name][0]}


def _reached(client: RelaySyncClient, head: Head, bounds: tuple[int, int], edge: int) -> int:
    """Return the highest sequence found whose message has been at the relay since ``edge``."""
    low, high = bounds
    middle = high
    for _ in range(STEPS_MAX):
        if low >= high:
            break
        page = client.sync_page(head.namespace_id, middle - 1, high, 1)
        if not page.messages:
            high = middle - 1
        elif page.messages[0].received_at <= edge:
            low = max(low, page.messages[0].seq)
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low
