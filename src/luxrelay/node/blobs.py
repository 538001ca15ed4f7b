"""Fetches the blobs that stored headers lack, in rounds and for one caller.

A round begins what is due and ends; what it began goes on as long as bytes come, whatever other
blobs do, and is kept when it has come.

What comes is checked against the header, passes through the sync door and is stored there. Only
what a stored header names is asked for, so nobody can make this node ask for what does not exist.

Source: LP-6421 §5.2; 21-37, 21-38; decisions J7, P28, P46.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from luxrelay.bus import Code, NamespaceId, Verdict, check_blob, kzg_available
from luxrelay.bus import constants as c
from luxrelay.errors import LuxRelayError
from luxrelay.node.logs import log
from luxrelay.node.missing_blobs import PAUSE_MIN_MS, WantedBlob, WantedBlobs
from luxrelay.node.stages.deliver import LatencyHistogram
from luxrelay.store import RelayStore
from luxrelay.sync import RelaySyncClient, WireMessage
from luxrelay.sync.fetch import Blame, FetchConfig, UnderWay, WantedRange
from luxrelay.sync.rpc.blob_driver import BlobFetcher, FetchStats, OtherSources, sha3_matches

ROUND_MAX: Final = 256
"""Missing blobs that one round asks for."""
UNDER_WAY_MAX: Final = 256
"""Missing blobs that are fetched, or wait for room on a link, at once."""
FETCHING: Final = FetchConfig(absent_s=PAUSE_MIN_MS / 2000)
"""How the node fetches: what nobody has is remembered by the pauses of `WantedBlobs` (P28)."""
CALLERS_MAX: Final = 4
"""Callers of `MissingBlobs.one` that may wait for peers at once; others get None."""


@dataclass(slots=True)
class _Fetch:
    """A fetch that is under way, for whoever waits for its end."""

    over: threading.Event = field(default_factory=threading.Event)
    blob: bytes | None = None
    """What came, kept or not."""


class MissingBlobs:
    """The node's side of a `BlobFetcher`; any thread may call it.

    Args:
        clients: Relays to ask.
        store: Where blobs are looked for first.
        take: The sync door: judges and stores messages of one parent.
        wanted: What stored headers lack.
        clock_ms: Unix milliseconds.
        order: Puts addresses best first; what it leaves out is not asked.
        blamed: Told who sent something else.
        others: Who else is asked.
        latency: Told how long each fetched blob took, milliseconds.
        kept: Told the commitment and length of each blob that came and is stored.
        config: Bounds of the fetches.

    """

    def __init__(
        self,
        clients: Sequence[RelaySyncClient],
        store: RelayStore,
        take: Callable[[NamespaceId, Sequence[WireMessage]], Sequence[Verdict]],
        wanted: WantedBlobs,
        *,
        clock_ms: Callable[[], int],
        order: Callable[[Sequence[str]], Sequence[str]],
        blamed: Callable[[Blame], None],
        others: OtherSources | None = None,
        kept: Callable[[bytes, int], None] = lambda commitment, length: None,  # noqa: ARG005
        latency: LatencyHistogram | None = None,
        config: FetchConfig = FETCHING,
    ) -> None:
        self._store = store
        self._take = take
        self._wanted = wanted
        self._kept = kept
        self._latency = latency
        self._clock_ms = clock_ms
        self._callers = threading.Semaphore(CALLERS_MAX)
        self._changed = threading.Condition()
        self._ends: dict[bytes, _Fetch] = {}
        """Each fetch that is under way, by its commitment."""
        self._came = 0
        self._fetcher = BlobFetcher(
            clients,
            self._held,
            on_blame=blamed,
            order=order,
            matches=self._matches,
            others=others,
            config=config,
        )
        wanted.came.append(self._fetcher.have)

    def round(self, stopping: threading.Event) -> int:
        """Begin to fetch each missing blob that is due; waits for none of them.

        What is being fetched already goes on, and is asked of whoever was heard of since. Only what
        the round takes is looked up in the store, however long the list is.

        Returns:
            How many came since the last round.

        Raises:
            StoreError: the store cannot be read.

        """
        left = min(ROUND_MAX, len(self._wanted), self._room())
        for wanted in self._wanted.take(left, self._clock_ms()) if left > 0 else ():
            if stopping.is_set():
                break
            if self._settled(wanted):
                continue
            if self._wanted.coming(wanted.commitment):
                self._fetcher.heard(wanted.commitment)
            else:
                self._begin(wanted)
        with self._changed:
            came, self._came = self._came, 0
        return came

    def settle(self, stopping: threading.Event) -> int:
        """Begin to fetch what is due, and wait for the end of what is being fetched.

        Returns:
            How many came since the last round.

        Raises:
            StoreError: the store cannot be read.

        """
        came = self.round(stopping)
        while not stopping.is_set():
            with self._changed:
                while self._ends and not stopping.is_set():
                    self._changed.wait(0.5)
            more = self.round(stopping)
            came += more
            with self._changed:
                if not (more or self._ends):
                    break
        return came

    def one(self, commitment: bytes) -> bytes | None:
        """Return a blob that a stored header lacks, and keep it; None when it is not to be had.

        One that the store has no room for is returned all the same.

        Raises:
            StoreError: the store cannot be read or written.

        """
        wanted = self._wanted.due(commitment, self._clock_ms())
        if wanted is None and self._wanted.coming(commitment):
            wanted = self._wanted.find(commitment)  # who comes now waits for the same end
        if wanted is None or not self._callers.acquire(blocking=False):
            return None
        try:
            fetch = self._begin(wanted)
            if fetch is None:
                return None
            fetch.over.wait()
            return self._held(commitment) if fetch.blob is None else fetch.blob
        finally:
            self._callers.release()

    def under_way(self) -> list[UnderWay]:
        """Return the blobs that are being asked for, the oldest first."""
        return self._fetcher.under_way()

    def stats(self) -> FetchStats:
        """Return what the fetches came to."""
        return self._fetcher.stats()

    def close(self) -> None:
        """Ask no more; who waits gets None."""
        with suppress(ValueError):
            self._wanted.came.remove(self._fetcher.have)
        self._fetcher.close()

    def _room(self) -> int:
        """Return how many more may be fetched at once."""
        with self._changed:
            return UNDER_WAY_MAX - len(self._ends)

    def _begin(self, wanted: WantedBlob) -> _Fetch | None:
        """Fetch a blob beside others; return its fetch, None when it is not begun."""
        kzg = wanted.header.flags & c.FLAG_KZG_COMMITMENT and not wanted.sidecar
        if kzg and not kzg_available():
            return None  # we could not tell whether it is the right one
        commitment, length = wanted.commitment, wanted.header.blob_len
        with self._changed:
            known = self._ends.get(commitment)
            if known is None:
                fetch = self._ends[commitment] = _Fetch()
                self._wanted.begun(commitment)
        if known is not None:
            self._fetcher.joined()
            return known
        told = WantedRange.REFUSED
        try:
            told = self._fetcher.begin(
                commitment,
                self._wanted.largest if wanted.sidecar else length,
                partial(self._ended, wanted, fetch, time.monotonic()),
                exact=not wanted.sidecar,
            )
        finally:
            if told is not WantedRange.ASKED:
                self._over(commitment)
        return fetch if told is WantedRange.ASKED else None

    def _ended(self, wanted: WantedBlob, fetch: _Fetch, began: float, blob: bytes | None) -> None:
        """Keep what came, and let whoever waits for it go on."""
        try:
            if blob is not None:
                fetch.blob = blob
                if self._latency is not None:
                    self._latency.observe(round(1000 * (time.monotonic() - began)))
                self._keep([(wanted, blob)])
        except LuxRelayError as error:  # as when the disk is full: it is asked for again
            log(logging.ERROR, "cannot keep a fetched blob", error=str(error))
        finally:
            self._over(wanted.commitment)
            self._wanted.tell()  # another may begin, and what came is counted

    def _over(self, commitment: bytes) -> None:
        self._wanted.ended(commitment, self._clock_ms())
        with self._changed:
            fetch = self._ends.pop(commitment, None)
            self._changed.notify_all()
        if fetch is not None:
            fetch.over.set()

    def _keep(self, found: Sequence[tuple[WantedBlob, bytes]]) -> None:
        for parent in dict.fromkeys(wanted.parent for wanted, _ in found):
            some = [each for each in found if each[0].parent == parent]
            verdicts = self._take(parent, [_message(*each) for each in some])
            for (wanted, _), verdict in zip(some, verdicts, strict=True):
                if wanted.sidecar and verdict.code is Code.SIDECAR_INVALID:
                    # The bytes are what the header names, and no sidecar of it: there is no other.
                    self._wanted.arrived(wanted.commitment, sidecar=True)
                elif not (verdict.accepted or verdict.code is Code.DUPLICATE):
                    log(
                        logging.WARNING,
                        "a fetched blob is not kept",
                        commitment=wanted.commitment.hex(),
                        code=verdict.code.name.lower(),
                        reason=verdict.reason,
                    )
        stored = [(wanted, blob) for wanted, blob in found if self._settled(wanted)]
        for wanted, blob in stored:
            self._kept(wanted.commitment, len(blob))
        with self._changed:
            self._came += len(stored)

    def _settled(self, wanted: WantedBlob) -> bool:
        """Whether the blob is stored; then it is wanted no longer."""
        held = self._store.has_sidecar if wanted.sidecar else self._store.has_blob
        if not held(wanted.commitment, self._clock_ms()):
            return False
        self._wanted.arrived(wanted.commitment, sidecar=wanted.sidecar)
        return True

    def _held(self, commitment: bytes) -> bytes | None:
        return self._store.get_blob(commitment, self._clock_ms())

    def _matches(self, commitment: bytes, blob: bytes) -> bool:
        wanted = self._wanted.find(commitment)
        if wanted is None or wanted.sidecar:
            # Who answers with what the commitment says is not to blame for what a sender refers to.
            return sha3_matches(commitment, blob)
        return check_blob(wanted.header, blob).accepted


def _message(wanted: WantedBlob, found: bytes) -> WireMessage:
    header = wanted.header.encode()
    if wanted.sidecar:
        return WireMessage(header=header, blob=b"", sidecar=found)
    return WireMessage(header=header, blob=found)
