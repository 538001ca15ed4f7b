"""`reconcile_with`: brings a store level with one relay, by the cheapest means that suffices.

First the interval lists, one answer of a few bytes a namespace: sequences are dense, so they settle
nearly everything. Then ranges over (timestamp, content id), which also find forks of a slot; for
everything at once the tree's root is compared before, 33 bytes when the stores are equal. What is
lacking is fetched and handed to the sink, which verifies it like every other message.

Only what both sides should hold is compared: neither what may have expired on one side nor what may
still be on its way, with room for clocks apart.

Source: decisions J4, J5, J11, P26; ADR 0006 §8.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from typing import Final, Protocol

from luxrelay.bus.header import ContentId, MsgHeader, NamespaceId
from luxrelay.errors import HeaderError, SyncArgumentError, SyncProtocolError
from luxrelay.sync.heads import SeqRange
from luxrelay.sync.held import held_spans, lacking
from luxrelay.sync.messages import LaneRange, PageFlow, WireMessage
from luxrelay.sync.negentropy import Initiator, ReconcileConfig
from luxrelay.sync.postponed import Spans
from luxrelay.sync.reconcile import TreeConfig, TreeInitiator
from luxrelay.sync.report import AcceptResult, Outcome
from luxrelay.sync.rpc.backing import SyncStore
from luxrelay.sync.rpc.client import RelaySyncClient
from luxrelay.sync.rpc.config import LANES_MAX
from luxrelay.sync.rpc.reconciling import StoreTree, ids_of
from luxrelay.sync.rpc.scope import CallScope
from luxrelay.sync.transfer import LinkWindow, TransferConfig

_HEADS_READ: Final = 1_000
_PAGE_MESSAGES: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilePlan:
    """What one reconciliation may do; times in milliseconds."""

    ttl_ms: int = 600_000
    """Time to live of the store: what is older may be gone on one side."""
    skew_ms: int = 30_000
    """Clocks may be this far apart (H14)."""
    settle_ms: int = 2_000
    """What is younger may still be on its way."""
    fetch_max: int = 10_000
    """Messages fetched in one reconciliation; the next one goes on."""
    spans_max: int = 4_096
    """Intervals of missing sequences asked for in one reconciliation: a relay that claims more than
    it sends costs no more questions; the next one goes on."""
    fetch_ids: int = 256
    """Messages asked for by content id in one call."""
    intervals_max: int = 1_000
    """Intervals of one namespace that are looked at."""
    ranges: ReconcileConfig = field(default_factory=ReconcileConfig)
    """Bounds of the range method."""
    tree: TreeConfig = field(default_factory=TreeConfig)
    """Bounds of the tree method."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int) and value < (0 if each.name.endswith("_ms") else 1):
                raise SyncArgumentError(f"{each.name} is too small", where="ReconcilePlan")


@dataclass(slots=True, kw_only=True)
class ReconcileReport:
    """What one reconciliation with one relay found and brought."""

    peer: str
    """Whom with."""
    methods: list[str] = field(default_factory=list)
    """What was compared: ``intervals``, ``tree``, ``ranges``."""
    rounds: int = 0
    """Questions asked."""
    bytes_sent: int = 0
    """Bytes of the questions, fetches apart."""
    bytes_received: int = 0
    """Bytes of the answers, fetches apart."""
    lacking: int = 0
    """Sequences that the relay says it holds and we lack."""
    need: int = 0
    """Contents that the relay has and we lack, forks among them."""
    have: int = 0
    """Contents that we have and the relay lacks; it finds them when it asks us."""
    fetched: int = 0
    """Messages that came."""
    stored: int = 0
    """Of those, new and valid."""
    rejected: int = 0
    """Of those, invalid."""
    withheld: int = 0
    """Contents that the relay claimed and did not send."""
    cut: bool = False
    """A bound ended it; the next one goes on."""

    @property
    def equal(self) -> bool:
        """True when nothing differed."""
        return not (self.lacking or self.need or self.have or self.cut)


class ReconcileSink(Protocol):
    """Judges and stores what comes (`luxrelay.sync.CatchUpSink` fits)."""

    def accept(
        self, peer: str, parent: NamespaceId, messages: Sequence[WireMessage]
    ) -> AcceptResult:
        """Validate the messages of one namespace and store the valid ones."""
        ...


def reconcile_with(
    client: RelaySyncClient,
    store: SyncStore,
    sink: ReconcileSink,
    *,
    parent: NamespaceId | None,
    now_ms: int,
    plan: ReconcilePlan | None = None,
    window: LinkWindow | None = None,
    clock: Callable[[], float] = time.monotonic,
    postponed: Spans | None = None,
    scope: CallScope | None = None,
) -> ReconcileReport:
    """Compare with one relay and fetch what we lack.

    Args:
        client: The relay.
        store: What we hold.
        sink: Where what is fetched goes.
        parent: A namespace and its lanes; None for everything.
        now_ms: Wall clock, Unix milliseconds.
        plan: Bounds.
        window: What is known of the link to the relay; it is kept up to date.
        clock: Monotonic seconds.
        postponed: Sequences that the relay is not asked for (G36).
        scope: Lets another thread cancel the calls.

    Raises:
        SyncUnreachableError: no answer in time.
        SyncRemoteError: an answer that cannot be used.
        LuxRelayError: whatever the sink raises.

    """
    run = _Run(client, store, sink, parent=parent, plan=plan or ReconcilePlan(), scope=scope)
    run.measure(window or LinkWindow(), clock)
    run.postponed = postponed or {}
    run.by_intervals()
    run.by_contents(now_ms)
    return run.report


class _Run:
    """One reconciliation."""

    def __init__(
        self,
        client: RelaySyncClient,
        store: SyncStore,
        sink: ReconcileSink,
        *,
        parent: NamespaceId | None,
        plan: ReconcilePlan,
        scope: CallScope | None,
    ) -> None:
        self._client = client
        self._store = store
        self._sink = sink
        self._parent = parent
        self._plan = plan
        self._scope = scope
        self._rejected: set[ContentId] = set()
        self._silence_s = TransferConfig().silence_s
        self._window = LinkWindow()
        self._clock = time.monotonic
        self.postponed: Spans = {}
        self.report = ReconcileReport(peer=client.address)

    def measure(self, window: LinkWindow, clock: Callable[[], float]) -> None:
        """Ask for as much as the link carries, by what is known of it."""
        self._window, self._clock = window, clock

    def by_intervals(self) -> None:
        """Fetch the sequences that the relay holds and we lack."""
        report = self.report
        report.methods.append("intervals")
        report.rounds += 1
        wanted: dict[NamespaceId, tuple[NamespaceId, list[SeqRange]]] = {}
        for lane in self._client.list_held(self._parent, scope=self._scope):
            report.bytes_received += lane.wire_bytes
            spans = lacking(lane.spans, self._ours(lane.namespace_id))
            spans = lacking(spans, self.postponed.get(lane.namespace_id, ()))
            if spans:
                wanted[lane.namespace_id] = (lane.parent_id, spans)
                report.lacking += sum(span.size for span in spans)
        numbered = [
            (number, parent, LaneRange(namespace_id=name, from_seq=s.first - 1, to_seq=s.last))
            for name, (parent, spans) in wanted.items()
            for number, s in enumerate(spans)
        ]
        numbered.sort(key=lambda each: each[0])  # a call names each namespace once
        asked = deque((parent, lane) for _, parent, lane in numbered)
        report.cut = report.cut or len(asked) > self._plan.spans_max
        left = self._plan.spans_max
        while asked and left > 0:
            room = self._plan.fetch_max - report.fetched
            if room <= 0:
                report.cut = True
                return
            left -= self._fetch_spans(asked, min(left, LANES_MAX), min(room, _PAGE_MESSAGES))

    def _fetch_spans(
        self, asked: deque[tuple[NamespaceId, LaneRange]], lanes_max: int, rows_max: int
    ) -> int:
        """Fetch the first spans, each namespace once, in one call; return how many it ended.

        What the call did not come to, and the rest of what it cut, is put back in front.
        """
        chosen: dict[NamespaceId, tuple[NamespaceId, LaneRange]] = {}
        while asked and len(chosen) < lanes_max:
            parent, lane = asked[0]
            if lane.namespace_id in chosen:
                break
            chosen[lane.namespace_id] = (parent, lane)
            asked.popleft()
        with self._asking() as flow:
            pages = self._client.sync_lanes(
                [lane for _, lane in chosen.values()],
                rows_max,
                max_bytes=flow.page_bytes,
                flow=flow,
                scope=self._scope,
            )
        if not pages:
            raise SyncProtocolError("a page without a lane", where=self._client.address)
        by_parent: dict[NamespaceId, list[WireMessage]] = defaultdict(list)
        again: list[tuple[NamespaceId, LaneRange]] = []
        for (parent, lane), page in zip(chosen.values(), pages, strict=False):
            by_parent[parent] += page.messages
            if page.status.has_more:
                again.append((parent, replace(lane, from_seq=page.status.last_seq)))
        for parent, messages in by_parent.items():
            self._hand_over(parent, messages)
        ended = len(pages) - len(again)
        asked.extendleft(reversed([*again, *list(chosen.values())[len(pages) :]]))
        return ended

    @contextmanager
    def _asking(self) -> Iterator[PageFlow]:
        """Yield how the next answer is to come, and measure how it does."""
        window, clock = self._window, self._clock
        expected = left = window.page_bytes

        def took(size_bytes: int) -> None:
            nonlocal left
            part = min(size_bytes, left)
            left -= part
            window.came(size_bytes, clock(), part)

        window.asked(expected, clock())
        late = True
        try:
            yield PageFlow(
                silence_s=self._silence_s,
                page_bytes=expected,
                frame_bytes=window.frame_bytes,
                blob_bytes=window.blob_bytes,
                took=took,
            )
            late = False
        finally:
            window.ended(left, clock(), late=late)

    def _ours(self, namespace: NamespaceId) -> tuple[SeqRange, ...]:
        """Return what we hold, and what is below everything we expect still."""
        head, limit = self._store.head(namespace), self._plan.intervals_max
        gaps = self._store.gaps(namespace, limit)
        spans, _ = held_spans(1 if head.latest_seq else 0, head.latest_seq, gaps, limit)
        return spans

    def by_contents(self, now_ms: int) -> None:
        """Compare content ids, and fetch those we lack."""
        plan = self._plan
        from_ms = max(0, now_ms - plan.ttl_ms + plan.skew_ms)
        to_ms = max(1, now_ms - plan.settle_ms)
        if self._parent is None and self._same_tree(now_ms):
            return
        held = ids_of(self._store, self._parent, from_ms, to_ms, plan.ranges.set_max)
        initiator = Initiator(held, plan.ranges)
        self._exchange(initiator, "ranges", from_ms, to_ms)
        # What was invalid a moment ago is not asked for again, nor held against the relay twice.
        self._fetch_contents([each for each in initiator.need if each not in self._rejected])

    def _same_tree(self, now_ms: int) -> bool:
        """Compare the roots alone."""
        initiator = TreeInitiator(StoreTree(self._store, lambda: now_ms), TreeConfig(rounds_max=1))
        self._exchange(initiator, "tree", 0, 0)
        equal = not initiator.cut
        if not equal:
            self.report.cut = False  # the ranges say where
        return equal

    def _exchange(
        self, initiator: Initiator | TreeInitiator, method: str, from_ms: int, to_ms: int
    ) -> None:
        report = self.report
        report.methods.append(method)
        sent, received = self._client.reconcile(
            initiator, parent=self._parent, from_ms=from_ms, to_ms=to_ms, scope=self._scope
        )
        report.rounds += initiator.rounds
        report.bytes_sent += sent
        report.bytes_received += received
        report.need += len(initiator.need)
        report.have += len(initiator.have)
        report.cut = report.cut or initiator.cut

    def _fetch_contents(self, wanted: Sequence[bytes]) -> None:
        room = max(0, self._plan.fetch_max - self.report.fetched)
        self.report.cut = self.report.cut or len(wanted) > room
        parents: dict[NamespaceId, NamespaceId] = {}
        for start in range(0, min(room, len(wanted)), self._plan.fetch_ids):
            asked = wanted[start : min(room, start + self._plan.fetch_ids)]
            with self._asking() as flow:
                for found, missing in self._client.iter_contents(
                    asked, flow=flow, scope=self._scope
                ):
                    self.report.withheld += len(missing)
                    self._take_contents(found, parents)

    def _take_contents(
        self, found: Sequence[WireMessage], parents: dict[NamespaceId, NamespaceId]
    ) -> None:
        by_lane: dict[NamespaceId, list[WireMessage]] = defaultdict(list)
        for message in found:
            by_lane[message.namespace_id].append(message)
        for namespace, messages in by_lane.items():
            if namespace not in parents:
                parents[namespace] = self._parent_of(namespace)
            messages.sort(key=lambda message: message.seq)
            self._hand_over(parents[namespace], messages)

    def _parent_of(self, namespace: NamespaceId) -> NamespaceId:
        """Return the parent as we know it, else as the relay says; the sink checks it."""
        head = self._store.head(namespace)
        if head.latest_seq:
            return head.parent
        return self._parent or self._client.get_head(namespace).parent_id

    def _hand_over(self, parent: NamespaceId, messages: Sequence[WireMessage]) -> None:
        if not messages:
            return
        if self._parent is not None and parent != self._parent:
            raise SyncProtocolError(
                "the relay's answer cannot be used: a namespace of another parent",
                where=self._client.address,
            )
        result = self._sink.accept(self._client.address, parent, messages)
        self.report.fetched += len(messages)
        self.report.stored += result.count(Outcome.STORED)
        for message, outcome in zip(messages, result.outcomes, strict=True):
            if outcome is Outcome.REJECTED:
                self.report.rejected += 1
                with suppress(HeaderError):  # what is no header has no content id
                    self._rejected.add(MsgHeader.decode(message.header).content_id)
