"""Catches up from the configured relays, again and again: at the start, after an outage, for holes.

Runs in a worker thread; what arrives passes through the sync door like every other message. After
the sequences come the blobs that stored headers still lack.

Source: LP-6421 §2.2, §2.3; decisions J7, P24, P25, P26, P39.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from typing import Any, Final

from luxrelay.bus import Code, MsgHeader, NamespaceId, Verdict, VerdictKind
from luxrelay.bus.constants import LIVE_TOLERANCE_MS
from luxrelay.conduct import Cause
from luxrelay.errors import LuxRelayError, SyncProtocolError
from luxrelay.net.bans import steady_ms
from luxrelay.net.reconcile import PREFIX
from luxrelay.node.blobs import FETCHING, MissingBlobs
from luxrelay.node.ingress import Doors
from luxrelay.node.logs import log
from luxrelay.node.missing_blobs import WantedBlobs
from luxrelay.node.peer_reputation import PeerStanding
from luxrelay.node.stages.deliver import LatencyHistogram
from luxrelay.node.totals import BLOBS
from luxrelay.store import NamespaceHead, RelayStore, StoredMessage, TimeQuery
from luxrelay.sync import ClientTls, PeerHead, RelaySyncClient, WireMessage
from luxrelay.sync.fetch import Blame, FetchConfig
from luxrelay.sync.postponed import PostponedMessages, Spans
from luxrelay.sync.report import (
    AcceptResult,
    CatchUpProgress,
    CatchUpReport,
    Outcome,
    PeerReport,
)
from luxrelay.sync.rpc.blob_driver import OtherSources
from luxrelay.sync.rpc.catchup_driver import run_catchup
from luxrelay.sync.rpc.reconcile_driver import ReconcilePlan, ReconcileReport, reconcile_with
from luxrelay.sync.transfer import LinkWindow

_HEADS_READ: Final = 1_000
LOOK_BACK_MAX: Final = 1_000_000
"""Messages looked at after a start for blobs they lack."""
WINDOWS_MAX: Final = 256
"""Peers whose links are remembered for comparisons; the one compared with longest ago is not."""
PAUSE_MIN_S: Final = 0.1
"""Between two catch-ups, however long one takes."""
POSTPONED_MAX: Final = 65_536
"""Messages remembered that came before their time."""
RECONCILE_TRIES: Final = 3
"""Peers tried for one comparison: some are away, or do not know the stream."""
_ALREADY_HERE: Final = frozenset({Code.DUPLICATE, Code.CONTENTION})


class StoreSink:
    """Fits the store and the sync door to what a catch-up asks of its sink."""

    def __init__(self, store: RelayStore, doors: Doors, postponed: PostponedMessages) -> None:
        """Serve one store; what came before its time is noted in ``postponed``."""
        self._store = store
        self._doors = doors
        self._postponed = postponed
        self._noting = threading.Lock()  # catching up and comparing have threads of their own
        self.early = 0
        """Messages that came before their time."""
        self.gaps = store.gaps
        self.skip_to = store.skip_to
        self.pages = 0
        """Pages that were judged; who watches a round sees by it that it moves on."""

    def heads(self, parent: NamespaceId | None) -> Iterator[PeerHead]:
        """Yield our heads of a parent and its lanes."""
        cursor = b""
        while True:
            heads, cursor = self._store.heads(parent, cursor, _HEADS_READ)
            yield from map(_as_head, heads)
            if not cursor:
                return

    def postponed(self, now_ms: int) -> Mapping[str, Spans]:
        """Return what each peer is not asked for now."""
        with self._noting:
            return self._postponed.spans(now_ms)

    def accept(
        self, peer: str, parent: NamespaceId, messages: Sequence[WireMessage]
    ) -> AcceptResult:
        """Judge and store one page; return what became of each message."""
        verdicts = self._doors.history(parent, messages)  # who served them is not kept (P35)
        for message, verdict in zip(messages, verdicts, strict=True):
            if verdict.code is Code.TIMESTAMP_INVALID:
                due_ms = MsgHeader.decode(message.header).timestamp - LIVE_TOLERANCE_MS
                with self._noting:
                    self.early += 1
                    self._postponed.put_off(peer, message.namespace_id, message.seq, due_ms)
        namespaces = dict.fromkeys(message.namespace_id for message in messages)
        reached = {each: self._store.head(each).contiguous_seq for each in namespaces}
        self.pages += 1
        return AcceptResult(
            outcomes=tuple(map(_outcome, verdicts)),
            contiguous_seq=next(iter(reached.values()), 0),
            reached=reached,
        )


@dataclass(slots=True)
class CatchUpTotals:
    """What all catch-ups together brought; they only grow."""

    runs: int = 0
    """Catch-ups that ran to their end."""
    received: int = 0
    """Messages received."""
    stored: int = 0
    """Of those, new to the store."""
    rejected: int = 0
    """Of those, invalid."""
    failures: int = 0
    """Calls that failed: a relay was away, busy or too slow."""
    cut: int = 0
    """Pages that ended before their end; what had come of them was kept."""
    blobs: int = 0
    """Blobs that arrived for headers stored without them."""
    withheld: int = 0
    """Messages that a peer claimed to hold and did not deliver."""
    early: int = 0
    """Messages that came before their time, and are not asked for again until then."""
    reconciliations: int = 0
    """Comparisons of the whole window with a peer."""
    reconcile_rounds: int = 0
    """Questions asked in them."""
    reconcile_bytes: int = 0
    """Bytes of their questions and answers, fetches apart."""
    reconcile_stored: int = 0
    """Messages they found and brought, forks of a slot among them."""


class CatchUpLoop:
    """One round of catching up, for every namespace this node carries."""

    def __init__(
        self,
        store: RelayStore,
        doors: Doors,
        *,
        parents: Callable[[], Sequence[NamespaceId | None]],
        peers: Sequence[str],
        interval_ms: int,
        stopping: threading.Event,
        wanted: WantedBlobs,
        clock_ms: Callable[[], int],
        steady_ms: Callable[[], int] = steady_ms,
        tls: ClientTls | None = None,
        ttl_ms: int = 600_000,
        postponed_max: int = POSTPONED_MAX,
        rng: random.Random | None = None,
        others: OtherSources | None = None,
        fetching: FetchConfig = FETCHING,
        kept: Callable[[bytes, int], None] = lambda commitment, length: None,  # noqa: ARG005
        blamed: Callable[[PeerReport], None] = lambda report: None,  # noqa: ARG005
    ) -> None:
        """Serve ``parents`` from ``peers`` (``host:port``) until ``stopping`` is set.

        A catch-up that brings something begins ``interval_ms`` after the last one began, if that
        has ended; one that waits for a relay in vain is no reason to ask again sooner.
        Of the parents None stands for every namespace that a peer has.
        ``others`` are asked for blobs as well, within ``fetching``; ``kept`` is told which blobs
        came, ``blamed`` what peers did in reconciliations and with blobs. ``steady_ms`` is a clock
        that nobody sets, by which what they did is forgiven. Of messages that came before their
        time ``postponed_max`` are not asked for again until then.
        """
        self.blob_latency = LatencyHistogram()
        """How long blobs took that peers sent, milliseconds."""
        self._others = others
        self._fetching_config = fetching
        self._kept = kept
        self._blamed = blamed
        self._store = store
        self._doors = doors
        self._wanted = wanted
        self._clock_ms = clock_ms
        self._steady_ms = steady_ms
        self._tls = tls
        self._away: set[str] = set()
        self._postponed = PostponedMessages(postponed_max)
        """The sink's own; only its number is looked at here."""
        self._sink = StoreSink(store, doors, self._postponed)
        self._parents = parents
        self._peers = peers
        self._interval_ms = interval_ms
        self._began_ms = self._took_ms = 0
        self._windows = {peer: LinkWindow() for peer in peers}
        self._compared: OrderedDict[str, LinkWindow] = OrderedDict()
        self._stopping = stopping
        self._lock = threading.Lock()
        self._totals = CatchUpTotals()
        self._complete = False
        self._clients: list[RelaySyncClient] = []
        self._blobs: MissingBlobs | None = None
        self._plan = ReconcilePlan(ttl_ms=ttl_ms)
        self._rng = rng or random.Random()  # noqa: S311 - which peer is compared with is no secret
        self._standing = PeerStanding()
        self._lag: dict[NamespaceId | None, int] = {}
        self._progress: CatchUpProgress | None = None
        self._running = False
        self._looked: object = None
        """How far the running catch-up had come at the last comparison."""
        self._looked_back = False

    def once(self) -> None:
        """Bring every namespace level with the peers, as far as they can be reached."""
        self._open()
        with self._lock:
            self._began_ms, pages = self._steady_ms(), self._sink.pages
        complete = True
        postponed = self._sink.postponed(self._clock_ms())
        for parent in self._parents():
            if self._stopping.is_set():
                return
            try:
                with self._under_way():
                    report = run_catchup(
                        self._best_first(),
                        self._sink,
                        parent=parent,
                        windows=self._windows,
                        postponed=postponed,
                        cancelled=self._stopping,
                        on_progress=self._note_progress,
                    )
            except LuxRelayError as error:
                log(logging.ERROR, "catch-up failed", namespace=_named(parent), error=str(error))
                complete = False
                continue
            complete &= report.complete
            self._note(parent, report)
        with self._lock:
            brought = self._sink.pages > pages
            self._took_ms = self._steady_ms() - self._began_ms if brought else 0
        self.fetch_blobs()
        with self._lock:
            self._totals.runs += 1
            self._complete = complete

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """Say that a catch-up runs."""
        with self._lock:
            self._running = True
        try:
            yield
        finally:
            with self._lock:
                self._running = False

    def _brings(self) -> bool:
        """Return True when a catch-up runs that has moved on since the last question."""
        with self._lock:
            looked, self._looked = self._looked, (self._sink.pages, self._progress)
            return self._running and self._looked != looked

    def reconcile(self, others: Sequence[RelaySyncClient] = ()) -> None:
        """Compare the window with one peer, chosen by chance, and fetch what is lacking (J5).

        Not while a catch-up brings what is lacking: it would come twice over one link (P46).

        Args:
            others: Peers that are reached over streams, beside the configured ones.

        """
        if self._brings():
            log(logging.DEBUG, "not compared: a catch-up is under way")
            return
        self._open()
        candidates = [*self._clients, *others]
        self._rng.shuffle(candidates)
        for client in candidates[:RECONCILE_TRIES]:
            if self._stopping.is_set() or self._reconciled_with(client):
                return

    def _reconciled_with(self, client: RelaySyncClient) -> bool:
        """Compare with one peer; False when it cannot be had."""
        postponed = self._sink.postponed(self._clock_ms()).get(client.address)
        for parent in self._parents():
            if self._stopping.is_set():
                return True
            try:
                report = reconcile_with(
                    client,
                    self._store,
                    self._sink,
                    parent=parent,
                    now_ms=self._clock_ms(),
                    plan=self._plan,
                    window=self._window_of(client.address),
                    postponed=postponed,
                )
            except LuxRelayError as error:
                with self._lock:
                    self._totals.failures += 1
                log(logging.DEBUG, "cannot reconcile", peer=client.address, error=str(error))
                if isinstance(error, SyncProtocolError):
                    self._blame(PeerReport(peer=client.address, unusable=1))
                return False
            self._note_reconciled(parent, report)
        return True

    def _window_of(self, peer: str) -> LinkWindow:
        """Return what is known of the link to a peer that is compared with.

        A sync peer has another for it than for its pages: both come by turns, in two threads.
        """
        window = self._compared.pop(peer, None) or LinkWindow()
        self._compared[peer] = window
        if len(self._compared) > WINDOWS_MAX:
            self._compared.popitem(last=False)
        return window

    def blob_stats(self) -> dict[str, int]:
        """Return what fetching blobs counts, by name; zeros before the first catch-up."""
        if self._blobs is None:
            return dict.fromkeys(BLOBS, 0)
        return asdict(self._blobs.stats())

    def expects(self, parent: NamespaceId) -> bool:
        """Return True while a catch-up is under way, or due, that may bring what is missing.

        It is due when the last one did not end complete, or none has run: peers were away, or have
        more to give. Any thread.
        """
        with self._lock:
            lacks = self._lag.get(parent, self._lag.get(None, 0)) > 0
            return bool(self._peers) and (self._running or lacks or not self._complete)

    def level(self) -> bool:
        """Return True when catching up lacks nothing and takes less time than is between two.

        Any thread.
        """
        with self._lock:
            # What a long one will have brought is not known before its first page is whole.
            took_ms = self._steady_ms() - self._began_ms if self._running else self._took_ms
            lacks = any(self._lag.values())
            return self._complete and not lacks and took_ms < self._interval_ms

    def pause_s(self) -> float:
        """Return the seconds until the next catch-up, at once after one that took long.

        Source: decision P24.
        """
        return max(PAUSE_MIN_S, (self._interval_ms - self._took_ms) / 1000)

    def lag(self) -> dict[NamespaceId | None, int]:
        """Return how many messages each parent and its lanes lacked after the last catch-up.

        Under None, in an open node, what all of them lacked.
        """
        followed = set(self._parents())
        with self._lock:
            return {parent: lag for parent, lag in self._lag.items() if parent in followed}

    def _open(self) -> None:
        with self._lock:  # catching up and reconciling have threads of their own
            if self._blobs is None:
                self._clients = [RelaySyncClient(peer, tls=self._tls) for peer in self._peers]
                self._blobs = MissingBlobs(
                    self._clients,
                    self._store,
                    self._doors.history,
                    self._wanted,
                    clock_ms=self._clock_ms,
                    order=self._served_by,
                    blamed=self._note_blame,
                    others=self._others,
                    kept=self._kept,
                    latency=self.blob_latency,
                    config=self._fetching_config,
                )

    def _served_by(self, peers: Sequence[str]) -> list[str]:
        """Return the peers that serve us, those in the best standing first."""
        with self._lock:
            serving = [peer for peer in peers if peer not in self._away]
            return self._standing.order(serving, self._steady_ms())

    def blob(self, commitment: bytes) -> bytes | None:
        """Return a blob: ours, else a peer's when a stored header lacks it.

        May take seconds; for a worker thread. Nobody is asked for a commitment that no stored
        header names (P28).

        Raises:
            StoreError: the store cannot be read or written.

        """
        found = self._store.get_blob(commitment, self._clock_ms())
        lonely = not self._peers and self._others is None
        if found is not None or lonely or self._stopping.is_set():
            return found
        self._open()
        return None if self._blobs is None else self._blobs.one(commitment)

    def _best_first(self) -> list[RelaySyncClient]:
        clients = {client.address: client for client in self._clients}
        return [clients[peer] for peer in self._standing.order(list(clients), self._steady_ms())]

    def _look_back(self) -> None:
        """Ask again, after a restart, for the blobs that stored headers lack.

        Not where blobs have a bound of their own: those that made room would come back.
        """
        with self._lock:
            done, self._looked_back = self._looked_back, True
        if done or self._store.config.blob_bound() is not None:
            return
        cursor, more, looked = b"", True, 0
        while more and looked < LOOK_BACK_MAX and not self._stopping.is_set():
            now_ms = self._clock_ms()
            page = self._store.query_time(
                TimeQuery(from_time=max(0, now_ms - self._plan.ttl_ms), cursor=cursor), now_ms
            )
            for message in page.messages:
                for sidecar in _lacks(message):
                    parent = self._store.head(message.namespace_id).parent
                    self._wanted.add(message.header, parent, sidecar=sidecar)
            looked += len(page.messages)
            more, cursor = page.has_more, page.next_cursor

    def close(self) -> None:
        """Close the connections to the peers; the next round opens others."""
        with self._lock:
            clients, self._clients = self._clients, []
            blobs, self._blobs = self._blobs, None
        for client in clients:
            client.close()
        if blobs is not None:
            blobs.close()

    def moved(self) -> tuple[object, ...]:
        """Return a value that changes whenever a round has moved on; cheap, any thread."""
        blobs = self._blobs
        fetched = () if blobs is None else tuple(asdict(blobs.stats()).values())
        with self._lock:
            return self._sink.pages, self._progress, astuple(self._totals), fetched

    def totals(self) -> dict[str, int]:
        """Return the counters by name."""
        with self._lock:
            self._totals.early = self._sink.early
            return {name: getattr(self._totals, name) for name in CatchUpTotals.__slots__}

    def view(self) -> dict[str, Any]:
        """Return the state for the status page."""
        now_ms = self._steady_ms()
        with self._lock:
            complete, progress = self._complete, self._progress
            penalties = {
                peer: penalty
                for peer in self._peers
                if (penalty := round(self._standing.penalty(peer, now_ms)))
            }
        running = None if progress is None else asdict(progress)
        return {
            # Without a peer there is nobody to be level with: neither true nor false.
            "complete": complete if self._peers else None,
            "running": running,
            "penalties": penalties,
            "postponed": len(self._postponed),
            "fetching": self._fetching(),
            **self.totals(),
        }

    def _fetching(self) -> list[dict[str, Any]]:
        """Return the blobs that are on their way, the oldest first."""
        blobs = self._blobs
        return [
            {
                "commitment": each.commitment.hex(),
                "bytes": each.length,
                "came": each.position,
                "from": list(each.peers),
            }
            for each in (() if blobs is None else blobs.under_way())
        ]

    def fetch_blobs(self) -> None:
        """Ask the peers for blobs that stored headers still lack, each when it is due."""
        if self._stopping.is_set():
            return
        self._open()
        self._look_back()
        if self._blobs is None:
            return
        try:
            arrived = self._blobs.round(self._stopping)
        except LuxRelayError as error:
            log(logging.ERROR, "cannot look for blobs", error=str(error))
            return
        if arrived:
            with self._lock:
                self._totals.blobs += arrived
            log(logging.INFO, "fetched blobs", blobs=arrived)

    def _blame(self, report: PeerReport) -> None:
        with self._lock:
            self._standing.note(report, self._steady_ms(), self._cause(report.peer))
        self._blamed(report)

    def _cause(self, peer: str) -> Cause:
        """Return what an answer of a peer that does not hold is; a plain port proves nothing."""
        proven = self._tls is not None or peer.startswith(PREFIX)
        return Cause.ANSWER_FORGED if proven else Cause.ANSWER_DAMAGED

    def _note_blame(self, blame: Blame) -> None:
        self._blame(PeerReport(peer=blame.peer, rejected=1))
        lies = self._cause(blame.peer).misconduct
        what = "a peer lies about a blob" if lies else "a blob over a plain port does not hold"
        log(logging.WARNING, what, peer=blame.peer, why=blame.why)

    def _note(self, parent: NamespaceId | None, report: CatchUpReport) -> None:
        self._note_peers(report)
        left = report.holes_left
        with self._lock:
            self._progress = None
            self._lag[parent] = sum(span.size for _, span in left) + report.holes_unlisted
            self._totals.withheld += sum(peer.withheld for peer in report.peers)
            self._totals.cut += sum(peer.cut for peer in report.peers)
            self._totals.received += report.received
            self._totals.stored += report.stored
            self._totals.rejected += report.rejected
            self._totals.failures += sum(peer.failures for peer in report.peers)
        if report.stored or report.rejected or report.skipped:
            log(
                logging.INFO,
                "caught up",
                namespace=_named(parent),
                stored=report.stored,
                rejected=report.rejected,
                skipped=len(report.skipped),
                complete=report.complete,
                seconds=round(report.seconds, 3),
            )

    def _note_progress(self, progress: CatchUpProgress) -> None:
        with self._lock:
            self._progress = progress

    def _note_reconciled(self, parent: NamespaceId | None, report: ReconcileReport) -> None:
        with self._lock:
            self._totals.reconciliations += 1
            self._totals.reconcile_rounds += report.rounds
            self._totals.reconcile_bytes += report.bytes_sent + report.bytes_received
            self._totals.reconcile_stored += report.stored
            self._totals.rejected += report.rejected
        self._blame(
            PeerReport(peer=report.peer, rejected=report.rejected, withheld=report.withheld)
        )
        if report.stored or report.rejected or report.withheld:
            log(
                logging.INFO,
                "reconciled",
                namespace=_named(parent),
                peer=report.peer,
                stored=report.stored,
                rejected=report.rejected,
                withheld=report.withheld,
                bytes=report.bytes_sent + report.bytes_received,
            )

    def _note_peers(self, report: CatchUpReport) -> None:
        """Name who lied; say once that a peer does not serve us, and once that it does again."""
        for peer in report.peers:
            with self._lock:
                cause = self._cause(peer.peer)
                added = self._standing.note(peer, self._steady_ms(), cause)
            if added:
                log(
                    logging.WARNING,
                    "a sync peer lies"
                    if cause.misconduct or peer.withheld
                    else "answers over a plain port do not hold",
                    peer=peer.peer,
                    forged=peer.rejected,
                    withheld=peer.withheld,
                    unusable=peer.unusable,
                    penalty=round(self._standing.penalty(peer.peer, self._steady_ms())),
                )
            if peer.given_up and peer.peer not in self._away:
                self._away.add(peer.peer)
                log(
                    logging.WARNING,
                    "a sync peer does not serve us",
                    peer=peer.peer,
                    why=peer.given_up,
                    reason=peer.reason,
                )
            elif not peer.given_up and peer.peer in self._away and not report.cancelled:
                self._away.discard(peer.peer)
                log(logging.INFO, "a sync peer serves us again", peer=peer.peer)


def _named(parent: NamespaceId | None) -> str:
    return "every" if parent is None else parent.hex()


def _as_head(head: NamespaceHead) -> PeerHead:
    return PeerHead(
        namespace_id=head.namespace_id,
        parent_id=head.parent,
        earliest_seq=head.earliest_seq,
        contiguous_seq=head.contiguous_seq,
        latest_seq=head.latest_seq,
        finalized_seq=head.finalized_seq,
        latest_header_hash=head.latest_header_hash,
        latest_timestamp=head.latest_timestamp,
        messages=head.messages,
        size_bytes=head.size_bytes,
    )


def _outcome(verdict: Verdict) -> Outcome:
    if verdict.accepted:
        return Outcome.STORED
    if verdict.kind is VerdictKind.REJECT and verdict.code is not Code.TIMESTAMP_INVALID:
        return Outcome.REJECTED
    # A time that does not fit is nobody's fault (verdict table): our clock may be the slow one.
    return Outcome.DUPLICATE if verdict.code in _ALREADY_HERE else Outcome.UNKEPT


def _lacks(message: StoredMessage) -> Iterator[bool]:
    """Yield False when a stored message lacks its blob, True when it lacks its sidecar."""
    header = message.header
    if header.blob_len and message.blob is None:
        yield False
    if header.tfhe_sidecar is not None and not message.sidecar_len:
        yield True
