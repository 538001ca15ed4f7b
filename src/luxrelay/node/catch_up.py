"""Catches up from the configured relays, again and again: at the start, after an outage, for holes.

Runs in a worker thread; what arrives passes through the sync door like every other message. After
the sequences come the blobs that stored headers still lack.

Source: LP-6421 §2.2, §2.3; J7, P24, P25, P26, P39.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from luxrelay.bus import Code, NamespaceId, Verdict, VerdictKind, message_id
from luxrelay.errors import LuxRelayError
from luxrelay.node.logs import log
from luxrelay.node.stages.doors import Doors
from luxrelay.node.wanted import WantedBlob, WantedBlobs
from luxrelay.store import NamespaceHead, RelayStore
from luxrelay.sync import ClientTls, Head, RelaySyncClient, WireMessage
from luxrelay.sync.report import AcceptResult, CatchUpReport, Outcome
from luxrelay.sync.rpc.catchup_driver import run_catchup

_HEADS_READ: Final = 1_000
BLOBS_ROUND_MAX: Final = 256
"""Missing blobs that one round asks each peer for."""
BLOBS_CALL_MAX: Final = 8
"""Missing blobs in one call: 16 MiB of the largest ones."""
_ALREADY_HERE: Final = frozenset({Code.DUPLICATE, Code.CONTENTION})


class StoreSink:
    """Fits the store and the sync door to what a catch-up asks of its sink."""

    def __init__(self, store: RelayStore, doors: Doors) -> None:
        """Serve one store."""
        self._store = store
        self._doors = doors
        self.gaps = store.gaps
        self.skip_to = store.skip_to

    def heads(self, parent: NamespaceId | None) -> Iterator[Head]:
        """Yield our heads of a parent and its lanes."""
        cursor = b""
        while True:
            heads, cursor = self._store.heads(parent, cursor, _HEADS_READ)
            yield from map(_as_head, heads)
            if not cursor:
                return

    def accept(
        self, peer: str, parent: NamespaceId, messages: Sequence[WireMessage]
    ) -> AcceptResult:
        """Judge and store one page; return what became of each message."""
        del peer  # who served a message is not kept with it (P35)
        verdicts = self._doors.history(parent, messages)
        reached = self._store.head(messages[0].namespace_id).contiguous_seq if messages else 0
        return AcceptResult(outcomes=tuple(map(_outcome, verdicts)), contiguous_seq=reached)


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
    blobs: int = 0
    """Blobs that arrived for headers stored without them."""


class CatchUpLoop:
    """One round of catching up, for every namespace this node carries."""

    def __init__(
        self,
        store: RelayStore,
        doors: Doors,
        *,
        parents: Sequence[NamespaceId],
        peers: Sequence[str],
        stopping: threading.Event,
        wanted: WantedBlobs,
        clock_ms: Callable[[], int],
        tls: ClientTls | None = None,
    ) -> None:
        """Serve ``parents`` from ``peers`` (``host:port``) until ``stopping`` is set."""
        self._store = store
        self._doors = doors
        self._wanted = wanted
        self._clock_ms = clock_ms
        self._tls = tls
        self._away: set[str] = set()
        self._sink = StoreSink(store, doors)
        self._parents = parents
        self._peers = peers
        self._stopping = stopping
        self._lock = threading.Lock()
        self._totals = CatchUpTotals()
        self._complete = False
        self._clients: list[RelaySyncClient] = []

    def once(self) -> None:
        """Bring every namespace level with the peers, as far as they can be reached."""
        if not self._clients:
            self._clients = [RelaySyncClient(peer, tls=self._tls) for peer in self._peers]
        complete = True
        for parent in self._parents:
            if self._stopping.is_set():
                return
            try:
                report = run_catchup(
                    self._clients, self._sink, parent=parent, cancelled=self._stopping
                )
            except LuxRelayError as error:
                log(logging.ERROR, "catch-up failed", namespace=parent.hex(), error=str(error))
                complete = False
                continue
            complete &= report.complete
            self._note(parent, report)
        try:
            self._fetch_blobs()
        except LuxRelayError as error:
            log(logging.ERROR, "cannot look for blobs", error=str(error))
        with self._lock:
            self._totals.runs += 1
            self._complete = complete

    def close(self) -> None:
        """Close the connections to the peers."""
        for client in self._clients:
            client.close()

    def totals(self) -> dict[str, int]:
        """Return the counters by name."""
        with self._lock:
            return {name: getattr(self._totals, name) for name in CatchUpTotals.__slots__}

    def view(self) -> dict[str, Any]:
        """Return the state for the status page."""
        with self._lock:
            complete = self._complete
        return {"complete": complete, **self.totals()}

    def _fetch_blobs(self) -> None:
        """Ask the peers in turn for blobs that stored headers still lack."""
        self._settle_blobs()
        for client in self._clients:
            if client.address in self._away:
                continue
            wanted = self._wanted.take(BLOBS_ROUND_MAX)
            try:
                for start in range(0, len(wanted), BLOBS_CALL_MAX):
                    if self._stopping.is_set():
                        return
                    self._ask_blobs(client, wanted[start : start + BLOBS_CALL_MAX])
            except LuxRelayError as error:
                with self._lock:
                    self._totals.failures += 1
                log(logging.DEBUG, "no blobs", peer=client.address, error=str(error))
            arrived = self._settle_blobs()
            if arrived:
                with self._lock:
                    self._totals.blobs += arrived
                log(logging.INFO, "fetched blobs", peer=client.address, blobs=arrived)

    def _ask_blobs(self, client: RelaySyncClient, wanted: Sequence[WantedBlob]) -> None:
        parents = {each.message_id: each.parent for each in wanted}
        found, _ = client.get_messages(list(parents))
        for parent in set(parents.values()):
            served = [
                message
                for message in found
                if message.blob and parents[message_id(message.namespace_id, message.seq)] == parent
            ]
            if served:
                self._doors.history(parent, served)

    def _settle_blobs(self) -> int:
        def held(commitment: bytes) -> bool:
            return self._store.get_blob(commitment) is not None

        return self._wanted.settle(held, self._clock_ms())

    def _note(self, parent: NamespaceId, report: CatchUpReport) -> None:
        self._note_peers(report)
        with self._lock:
            self._totals.received += report.received
            self._totals.stored += report.stored
            self._totals.rejected += report.rejected
            self._totals.failures += sum(peer.failures for peer in report.peers)
        if report.stored or report.rejected or report.skipped:
            log(
                logging.INFO,
                "caught up",
                namespace=parent.hex(),
                stored=report.stored,
                rejected=report.rejected,
                skipped=len(report.skipped),
                complete=report.complete,
                seconds=round(report.seconds, 3),
            )

    def _note_peers(self, report: CatchUpReport) -> None:
        """Say once that a peer does not serve us, and once that it does again."""
        for peer in report.peers:
            if peer.given_up and peer.peer not in self._away:
                self._away.add(peer.peer)
                log(
                    logging.WARNING,
                    "a sync peer does not serve us",
                    peer=peer.peer,
                    why=peer.given_up,
                )
            elif not peer.given_up and peer.peer in self._away and not report.cancelled:
                self._away.discard(peer.peer)
                log(logging.INFO, "a sync peer serves us again", peer=peer.peer)


def _as_head(head: NamespaceHead) -> Head:
    return Head(
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
    if verdict.kind is VerdictKind.REJECT:
        return Outcome.REJECTED
    return Outcome.DUPLICATE if verdict.code in _ALREADY_HERE else Outcome.UNKEPT
