"""Fetches the blobs that stored headers lack, in rounds and for one caller.

What comes is checked against the header, passes through the sync door and is stored there. Only
what a stored header names is asked for, so nobody can make this node ask for what does not exist.

Source: LP-6421 §5.2; 21-37, 21-38; decisions J7, P28.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from luxrelay.bus import Code, NamespaceId, Verdict, check_blob, kzg_available
from luxrelay.bus import constants as c
from luxrelay.node.missing_blobs import PAUSE_MIN_MS, WantedBlob, WantedBlobs
from luxrelay.node.stages.deliver import LatencyHistogram
from luxrelay.store import RelayStore
from luxrelay.sync import RelaySyncClient, WireMessage
from luxrelay.sync.fetch import Blame, FetchConfig
from luxrelay.sync.rpc.blob_driver import BlobFetcher, FetchStats, OtherSources, sha3_matches
from luxrelay.sync.rpc.workers import Workers

ROUND_MAX: Final = 256
"""Missing blobs that one round asks for."""
ROUND_S: Final = 20.0
"""Seconds after which a round begins no further fetches."""
ABREAST_MAX: Final = 8
"""Blobs fetched at once in a round: 16 MiB of the largest ones."""
FETCHING: Final = FetchConfig(absent_s=PAUSE_MIN_MS / 2000)
"""How the node fetches: what nobody has is remembered by the pauses of `WantedBlobs` (P28)."""
CALLERS_MAX: Final = 4
"""Callers of `MissingBlobs.one` that may wait for peers at once; others get None."""


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
        kept: Told the commitment and length of each blob that came and was handed to ``take``.
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
        self._lock = threading.Lock()
        self._asking: Counter[bytes] = Counter()
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

    def round(self, stopping: threading.Event) -> int:
        """Ask for each missing blob that is due, within the bounds of a round.

        Only what the round takes is looked up in the store, however long the list is.

        Returns:
            How many came since the last round, by this one or for a caller of `one`.

        Raises:
            StoreError: the store cannot be read.

        """
        left = min(ROUND_MAX, len(self._wanted))
        until = time.monotonic() + ROUND_S
        pool = Workers(ABREAST_MAX, "luxrelay-missing")
        try:
            while left > 0 and time.monotonic() < until and not stopping.is_set():
                batch = self._wanted.take(min(left, ABREAST_MAX), self._clock_ms())
                if not batch:
                    break
                left -= ABREAST_MAX
                asked = [each for each in batch if not self._settled(each)]
                blobs = pool.map(self._fetch, asked)
                self._keep([(e, blob) for e, blob in zip(asked, blobs, strict=True) if blob])
        finally:
            pool.close(0)
        with self._lock:
            came, self._came = self._came, 0
        return came

    def one(self, commitment: bytes) -> bytes | None:
        """Return a blob that a stored header lacks, and keep it; None when it is not to be had.

        Raises:
            StoreError: the store cannot be read or written.

        """
        with self._lock:  # who comes while it is being fetched waits for the same end
            wanted = self._wanted.due(commitment, self._clock_ms())
            if wanted is None and commitment in self._asking:
                wanted = self._wanted.find(commitment)
            if wanted is None or not self._callers.acquire(blocking=False):
                return None
            self._asking[commitment] += 1
        try:
            blob = self._fetch(wanted)
        finally:
            self._callers.release()
            with self._lock:
                self._asking[commitment] -= 1
                self._asking += Counter()  # drops what is zero
        if blob:
            self._keep([(wanted, blob)])
        return blob

    def stats(self) -> FetchStats:
        """Return what the fetches came to."""
        return self._fetcher.stats()

    def close(self) -> None:
        """Ask no more; who waits gets None."""
        self._fetcher.close()

    def _fetch(self, wanted: WantedBlob) -> bytes | None:
        kzg = wanted.header.flags & c.FLAG_KZG_COMMITMENT and not wanted.sidecar
        if kzg and not kzg_available():
            return None  # we could not tell whether it is the right one
        began = time.monotonic()
        length = self._wanted.largest if wanted.sidecar else wanted.header.blob_len
        blob = self._fetcher.get(wanted.commitment, length, exact=not wanted.sidecar)
        if blob is not None and self._latency is not None:
            self._latency.observe(round(1000 * (time.monotonic() - began)))
        return blob

    def _keep(self, found: Sequence[tuple[WantedBlob, bytes]]) -> None:
        for parent in dict.fromkeys(wanted.parent for wanted, _ in found):
            some = [each for each in found if each[0].parent == parent]
            verdicts = self._take(parent, [_message(*each) for each in some])
            for (wanted, _), verdict in zip(some, verdicts, strict=True):
                if wanted.sidecar and verdict.code is Code.SIDECAR_INVALID:
                    # The bytes are what the header names, and no sidecar of it: there is no other.
                    self._wanted.arrived(wanted.commitment, sidecar=True)
        for wanted, blob in found:
            self._kept(wanted.commitment, len(blob))
        came = sum([self._settled(wanted) for wanted, _ in found])
        with self._lock:
            self._came += came

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
