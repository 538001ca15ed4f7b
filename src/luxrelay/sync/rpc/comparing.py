"""`compare_with`: differences between a store and one relay, lane by lane; fetches nothing.

Interval lists say which sequences one side holds and the other lacks. Contents are compared over
the window that both should hold, which also finds two contents of one slot.

Source: decisions P25, P26, J5, J11; ADR 0006 §8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from luxrelay.bus.header import NamespaceId
from luxrelay.sync.heads import SeqRange
from luxrelay.sync.held import HeldLane, held_spans, lacking
from luxrelay.sync.negentropy import Initiator
from luxrelay.sync.rpc.backing import StoreHead, SyncStore
from luxrelay.sync.rpc.client import RelaySyncClient
from luxrelay.sync.rpc.reconcile_driver import ReconcilePlan
from luxrelay.sync.rpc.reconciling import ids_of
from luxrelay.sync.rpc.scope import CallScope

_HEADS_READ = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneDifference:
    """One namespace in which two sides do not hold the same sequences."""

    namespace_id: NamespaceId
    """The namespace."""
    ours: int
    """Sequences we hold."""
    theirs: int
    """Sequences the relay says it holds."""
    lacking_here: tuple[SeqRange, ...]
    """Sequences that only the relay holds, ascending; what we expect no more is left out."""
    lacking_there: tuple[SeqRange, ...]
    """Sequences that only we hold, ascending."""

    @property
    def here(self) -> int:
        """How many sequences only the relay holds."""
        return sum(span.size for span in self.lacking_here)

    @property
    def there(self) -> int:
        """How many sequences only we hold."""
        return sum(span.size for span in self.lacking_there)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs between a store and one relay."""

    peer: str
    """Whom with."""
    lanes: tuple[LaneDifference, ...]
    """Namespaces that differ, in the order of their ids."""
    alike: int
    """Namespaces of which both hold the same sequences."""
    contents_here: int
    """Contents of the window that only the relay has, second contents of a slot among them."""
    contents_there: int
    """Contents of the window that only we have."""
    cut: bool
    """There is more than the bounds let see."""

    @property
    def equal(self) -> bool:
        """True when nothing differs."""
        return not (self.lanes or self.contents_here or self.contents_there or self.cut)


def compare_with(
    client: RelaySyncClient,
    store: SyncStore,
    *,
    parent: NamespaceId | None,
    now_ms: int,
    plan: ReconcilePlan | None = None,
    scope: CallScope | None = None,
) -> Comparison:
    """Return what differs in a parent namespace and its lanes.

    Args:
        client: The relay.
        store: What we hold.
        parent: The namespace; None for every one.
        now_ms: Wall clock, Unix milliseconds.
        plan: Bounds, and the window of contents.
        scope: Lets another thread cancel the calls.

    Raises:
        SyncUnreachableError: no answer in time.
        SyncRemoteError: an answer that cannot be used.

    """
    plan = plan or ReconcilePlan()
    theirs = {lane.namespace_id: lane for lane in client.list_held(parent, scope=scope)}
    heads = {head.namespace_id: head for head in _heads(store, parent)}
    found: list[LaneDifference] = []
    alike, cut = 0, any(lane.cut for lane in theirs.values())
    for namespace in sorted(theirs.keys() | heads.keys()):
        difference, ours_cut = _compared(
            store, namespace, heads.get(namespace), theirs.get(namespace), plan.intervals_max
        )
        cut |= ours_cut
        if difference.lacking_here or difference.lacking_there:
            found.append(difference)
        else:
            alike += 1
    from_ms = max(0, now_ms - plan.ttl_ms + plan.skew_ms)
    to_ms = max(1, now_ms - plan.settle_ms)
    initiator = Initiator(ids_of(store, parent, from_ms, to_ms, plan.ranges.set_max), plan.ranges)
    client.reconcile(initiator, parent=parent, from_ms=from_ms, to_ms=to_ms, scope=scope)
    return Comparison(
        peer=client.address,
        lanes=tuple(found),
        alike=alike,
        contents_here=len(initiator.need),
        contents_there=len(initiator.have),
        cut=cut or initiator.cut,
    )


def _heads(store: SyncStore, parent: NamespaceId | None) -> Sequence[StoreHead]:
    found: list[StoreHead] = []
    cursor = b""
    while True:
        heads, cursor = store.heads(parent, cursor, _HEADS_READ)
        found += heads
        if not cursor or not heads:
            return found


def _compared(
    store: SyncStore,
    namespace: NamespaceId,
    head: StoreHead | None,
    lane: HeldLane | None,
    limit: int,
) -> tuple[LaneDifference, bool]:
    """Return what differs in one namespace, and whether our own list of it is cut."""
    theirs = lane.spans if lane is not None else ()
    latest, earliest = (head.latest_seq, head.earliest_seq) if head is not None else (0, 0)
    gaps = store.gaps(namespace, limit) if latest else ()
    ours, cut = held_spans(earliest, latest, gaps, limit)
    # What lies below our earliest was here or is expected no more: nobody lacks it.
    settled, _ = held_spans(1 if latest else 0, latest, gaps, limit)
    difference = LaneDifference(
        namespace_id=namespace,
        ours=sum(span.size for span in ours),
        theirs=sum(span.size for span in theirs),
        lacking_here=tuple(lacking(theirs, settled)),
        lacking_there=tuple(lacking(ours, theirs)),
    )
    return difference, cut
