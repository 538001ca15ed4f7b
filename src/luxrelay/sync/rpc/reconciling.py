"""`ReconcileDesk`: the responder's side of a reconciliation, from a store.

Source: decisions J4, J5, J11; retention document, "Sync Soft-Filter".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import grpc

from luxrelay.bus import constants as c
from luxrelay.bus.header import NamespaceId
from luxrelay.errors import ReconcileError, SyncArgumentError
from luxrelay.store import BucketQuery
from luxrelay.sync.cost import Price, price_of_bytes
from luxrelay.sync.idset import SortedIds
from luxrelay.sync.negentropy import RANGE_BYTES_MIN, ReconcileConfig, Responder
from luxrelay.sync.reconcile import TreeConfig, TreeResponder
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.backing import SyncStore
from luxrelay.sync.rpc.calls import ServedCall

_HEADS_READ: Final = 1_000
_BREATH_S: Final = 0.0001
"""How long a long message lets others go first, seconds."""
_AGAIN_S: Final = 1.0
"""When to ask again for a place among the reconciliations, seconds."""


def _breathe() -> None:
    """Let other threads have the interpreter: one that asks for it waits a switch interval."""
    time.sleep(_BREATH_S)


class StoreTree:
    """The tree of a store, its ids filtered by the store's own cut-off."""

    def __init__(self, store: SyncStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms

    def nodes(self) -> Sequence[bytes]:
        """Return the 256 level-1 hashes."""
        return self._store.tree_nodes()

    def buckets(self, node: int) -> bytes:
        """Return the 256 buckets of a node."""
        return self._store.tree_buckets(node)

    def ids(self, bucket: int, limit: int) -> Sequence[bytes]:
        """Return the lowest ids of a bucket that are past no cut-off."""
        ids, _ = self._store.bucket_ids(BucketQuery(bucket=bucket, limit=limit), self._now_ms())
        return ids


def ids_of(
    store: SyncStore, parent: NamespaceId | None, from_ms: int, to_ms: int, limit: int
) -> SortedIds:
    """Return what a store holds of a parent and its lanes, or of everything, in a span of time."""
    stamps, ids = store.stamps(namespaces_of(store, parent), from_ms, to_ms, limit)
    return SortedIds(stamps, ids)


def namespaces_of(store: SyncStore, parent: NamespaceId | None) -> frozenset[NamespaceId] | None:
    """Return a parent and its lanes, as far as the store knows them; None for everything."""
    if parent is None:
        return None
    found: set[NamespaceId] = {parent}
    cursor = b""
    while True:
        heads, cursor = store.heads(parent, cursor, _HEADS_READ)
        found.update(head.namespace_id for head in heads)
        if not cursor or not heads:
            return frozenset(found)


class ReconcileDesk:
    """Answers ``sessions_max`` reconciliations at once; each holds its set in memory."""

    def __init__(
        self,
        sessions_max: int,
        ranges: ReconcileConfig,
        tree: TreeConfig,
        clock_ms: Callable[[], int],
    ) -> None:
        self._sessions_max = sessions_max
        self._places = threading.BoundedSemaphore(sessions_max)
        self._ranges = ranges
        self._tree = tree
        self._clock_ms = clock_ms

    def serve(
        self, requests: Iterator[pb.ReconcileRequest], store: SyncStore, call: ServedCall
    ) -> Iterator[pb.ReconcileReply]:
        """Yield one reply a request."""
        if not self._places.acquire(blocking=False):
            call.refuse(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"all {self._sessions_max} places for reconciliations are taken; "
                f"ask again in {_AGAIN_S:.1f} s",
            )
        try:
            first = next(requests, None)
            if first is None:
                return
            with call.turn(Price.SET):
                answer = self._open(first, store)
            request: pb.ReconcileRequest | None = first
            for _ in range(self._ranges.rounds_max + self._tree.rounds_max):
                if request is None:
                    return
                yield self._reply(request.payload, answer, call)
                with call.turn():
                    pass  # the reply has been taken; the next question may come when it will
                request = next(requests, None)
            raise SyncArgumentError("too many messages in one call", where="Reconcile")
        finally:
            self._places.release()

    def _reply(
        self, payload: bytes, answer: Callable[[bytes], bytes], call: ServedCall
    ) -> pb.ReconcileReply:
        ranges = min(len(payload) // RANGE_BYTES_MIN, self._ranges.ranges_max)
        with call.turn(Price.TURN + ranges * Price.RANGE + price_of_bytes(len(payload))) as turn:
            try:
                reply = answer(payload)
            except ReconcileError as error:
                raise SyncArgumentError(error.what, where="ReconcileRequest.payload") from error
            turn.read(len(reply))
            return pb.ReconcileReply(payload=reply)

    def _open(self, first: pb.ReconcileRequest, store: SyncStore) -> Callable[[bytes], bytes]:
        """Return what answers the messages of a method."""
        if len(first.parent_id) not in {0, c.NAMESPACE_BYTES}:
            raise SyncArgumentError(
                "an id of 20 bytes, or none", where="ReconcileRequest.parent_id"
            )
        parent = NamespaceId(first.parent_id) if first.parent_id else None
        if first.method == pb.RECONCILE_METHOD_RANGES:
            for name in ("from_timestamp", "to_timestamp"):
                if 0 < getattr(first, name) < c.SECONDS_LOOKALIKE_MAX:
                    raise SyncArgumentError(
                        f"{name} looks like seconds", where="ReconcileRequest", hint="send ms"
                    )
            limit = self._ranges.set_max
            held = ids_of(store, parent, first.from_timestamp, first.to_timestamp, limit)
            return Responder(held, self._ranges, breathe=_breathe).receive
        if first.method == pb.RECONCILE_METHOD_TREE and parent is None:
            return TreeResponder(StoreTree(store, self._clock_ms), self._tree).receive
        raise SyncArgumentError(
            "no method of ours, or a tree of one parent",
            where="ReconcileRequest.method",
            hint="send RANGES, or TREE without a parent",
        )
