"""Bytes and rounds of finding what two relays do not share, against sending every id.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim. Nothing here depends on
how busy the machine is.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import numpy as np

from luxrelay.sync.held import to_steps
from luxrelay.sync.idset import SortedIds
from luxrelay.sync.lanes import spans_of
from luxrelay.sync.negentropy import Initiator, Responder
from luxrelay.sync.reconcile import TreeInitiator, TreeResponder

IDS = int(os.environ.get("LUXRELAY_BENCH_IDS", "1000000"))
DIFFERENCES = IDS // 1_000
PUBLIC_RANDOM, PUBLIC_NEWEST = 1_350_000, 34_000
"""Bytes that Negentropy's own implementation needs for 1,000 differences in a million ids."""


def say(  # noqa: PLR0917 - the columns of a row
    name: str, value: float, unit: str, against: str, ratio: float | None, aim: float
) -> None:
    """Print one result."""
    row = {"part": "sync", "name": name, "value": value, "unit": unit}
    print(json.dumps({**row, "against": against, "ratio": ratio, "aim": aim}), flush=True)


class Tree:
    """A set of ids as the tree method wants it."""

    def __init__(self, ids: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        from luxrelay.store.merkle import MerkleTree

        self._sorted = sorted(row.tobytes() for row in ids)
        self._tree = MerkleTree(self._sorted)

    def nodes(self) -> list[bytes]:
        """Return the hashes."""
        return self._tree.nodes()

    def buckets(self, node: int) -> bytes:
        """Return a node's buckets."""
        return self._tree.buckets(node)

    def ids(self, bucket: int, limit: int) -> list[bytes]:
        """Return a bucket's ids."""
        from bisect import bisect_left

        low = bisect_left(self._sorted, bucket.to_bytes(2, "big"))
        stop = (bucket + 1).to_bytes(3, "big")[1:] if bucket < 65_535 else b"\xff" * 33
        high = bisect_left(self._sorted, stop) if bucket < 65_535 else len(self._sorted)
        return self._sorted[low : min(high, low + limit)]


def exchange(initiator: Any, responder: Any) -> tuple[int, int]:
    """Return bytes and rounds of a reconciliation."""
    total, rounds = 0, 0
    message = initiator.start()
    while message is not None:
        rounds += 1
        answer = responder.receive(message)
        total += len(message) + len(answer)
        message = initiator.receive(answer)
    return total, rounds


def intervals(held: list[list[int]]) -> int:
    """Return the bytes of interval lists: namespace, parent and steps, as protobuf has them."""
    from luxrelay.sync.rpc import relay_sync_pb2 as pb

    return sum(
        pb.HeldNamespace(
            namespace_id=bytes(20), parent_id=bytes(20), steps=to_steps(spans_of(seqs))
        ).ByteSize()
        for seqs in held
    )


def reconcile() -> None:
    """Print bytes and rounds of the three methods for three kinds of difference."""
    rng = np.random.default_rng(7)
    stamps = (
        time.time_ns() // 1_000_000 - 600_000 + np.sort(rng.integers(0, 600_000, IDS))
    ).astype(np.uint64)
    ids = rng.integers(0, 256, (IDS, 32), dtype=np.uint8)
    all_bytes = 32 * IDS
    lanes = 40
    everybody = np.ones(IDS, np.bool_)
    chosen = everybody.copy()
    chosen[rng.choice(IDS, DIFFERENCES, replace=False)] = False
    newest = everybody.copy()
    newest[-DIFFERENCES:] = False
    forked = ids.copy()
    forked[IDS // 2] ^= 1
    cases = {
        "random": (ids, chosen, ids, everybody, PUBLIC_RANDOM),
        "newest": (ids, newest, ids, everybody, PUBLIC_NEWEST),
        "a fork in a slot": (forked, everybody, ids, everybody, None),
    }
    for name, (mine, held, theirs, other, public) in cases.items():
        ours = SortedIds(stamps[held], mine[held])
        them = SortedIds(stamps[other], theirs[other])
        initiator = Initiator(ours)
        size, rounds = exchange(initiator, Responder(them))
        found = len(initiator.need)
        assert found == (1 if public is None else DIFFERENCES), found
        what = f"{found:,} of {IDS:,} ids differ ({name})"
        known = f"public Negentropy: {public:,} B" if public and IDS == 1_000_000 else ""
        aim = {PUBLIC_RANDOM: 1_350_000, PUBLIC_NEWEST: 40_000}.get(public or 0, 40_000)
        against = "; ".join(filter(None, (known, f"all ids: {all_bytes:,} B")))
        say(
            f"ranges, {rounds} rounds: {what}",
            size,
            "B",
            against,
            all_bytes / size,
            all_bytes / aim,
        )
        against = f"all ids: {all_bytes:,} B"
        tree = TreeInitiator(Tree(mine[held]))
        size, rounds = exchange(tree, TreeResponder(Tree(theirs[other])))
        assert set(tree.need) == set(initiator.need)
        title = f"Merkle tree, {rounds} rounds: {what}"
        say(title, size, "B", against, all_bytes / size, 10)
        if public is not None:
            seqs = np.arange(IDS) // lanes + 1
            listed = [seqs[held & (np.arange(IDS) % lanes == at)].tolist() for at in range(lanes)]
            size = intervals(listed)
            title = f"interval lists, 1 round: {what}"
            say(title, size, "B", against, all_bytes / size, all_bytes / 10_000)


if __name__ == "__main__":
    reconcile()
