"""`BlobFetcher`: blobs from the own store, else from relays over gRPC or another way.

Drives `luxrelay.sync.fetch.BlobFetch` with threads: a few workers ask relays, the threads that want
a blob wait for its end, and one of them at a time keeps the machine's timers.

Source: LP-6421 §5.2; P28; 21-37, 21-38.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from luxrelay.bus import sha3_commitment
from luxrelay.errors import LuxRelayError
from luxrelay.sync.fetch import (
    AskBlob,
    Blame,
    BlobFetch,
    Delivered,
    FetchConfig,
    GivenUp,
    WantedRange,
)
from luxrelay.sync.rpc.client import RelaySyncClient
from luxrelay.sync.rpc.workers import Workers


@dataclass(frozen=True, slots=True)
class FetchStats:
    """What a fetcher has done; all but ``in_flight`` only grow."""

    in_flight: int
    """Requests to relays whose answer has not come yet."""
    local: int
    """Blobs that the own store had by then."""
    shared: int
    """Callers who joined a fetch that was under way."""
    absent: int
    """Callers who were told at once that nobody had it a moment ago."""
    refused: int
    """Callers turned away: too many blobs are wanted, or there is nobody to ask."""
    asked: int
    """Requests sent to relays."""
    delivered: int
    """Blobs that came and matched."""
    given_up: int
    """Blobs that nobody had."""
    blamed: int
    """Answers that were something else."""


_COUNTED = {
    WantedRange.SHARED: "shared",
    WantedRange.ABSENT: "absent",
    WantedRange.REFUSED: "refused",
}


def sha3_matches(commitment: bytes, blob: bytes) -> bool:
    """Return True when the blob has this SHA3-256 commitment (LP-6411 §2.5)."""
    return sha3_commitment(blob) == commitment


class OtherSources(Protocol):
    """Peers that are asked for blobs by another way than gRPC; any thread may call it."""

    def peers(self, commitment: bytes) -> tuple[Sequence[str], Sequence[str]]:
        """Return who is said to have a blob, and who else could be asked, best first.

        A name is none of a relay's address; it comes back in `ask`.
        """

    def ask(self, ask: AskBlob, deadline_s: float) -> bytes | None:
        """Return what a peer sends, empty for what breaks the protocol; None when it has nothing.

        Raises:
            LuxRelayError: it cannot be asked.

        """


class BlobFetcher:
    """Gets blobs; any thread may ask, and those who want the same one share one fetch.

    Args:
        clients: Relays to ask, best first.
        local: Returns the blob of a commitment from the own store, or None.
        on_blame: Told who sent something else, and what was wrong; must not call the fetcher.
        order: Puts the relays' addresses best first; what it leaves out is not asked.
        matches: Whether bytes are the blob of a commitment.
        others: Who else is asked: before the relays who is said to have the blob, after them the
            rest.
        config: Bounds.

    """

    def __init__(
        self,
        clients: Sequence[RelaySyncClient],
        local: Callable[[bytes], bytes | None],
        *,
        on_blame: Callable[[Blame], None] = lambda _: None,
        order: Callable[[Sequence[str]], Sequence[str]] = lambda addresses: addresses,
        matches: Callable[[bytes, bytes], bool] = sha3_matches,
        others: OtherSources | None = None,
        config: FetchConfig | None = None,
    ) -> None:
        self._others = others
        self._config = config or FetchConfig()
        self._clients = {client.address: client for client in clients}
        self._local = local
        self._on_blame = on_blame
        self._order = order
        self._fetch = BlobFetch(matches, self._config)
        self._changed = threading.Condition()
        self._ended: dict[bytes, bytes | None] = {}
        self._waiting: dict[bytes, int] = {}
        self._closed = False
        self._counts = dict.fromkeys(FetchStats.__slots__, 0)
        self._pool = Workers(min(16, self._config.requests_max), "luxrelay-blobs")

    def get(self, commitment: bytes, length: int, *, exact: bool = True) -> bytes | None:
        """Return the blob: ours, or a relay's that matches; None when nobody has it.

        None also when the fetcher is closed, before or meanwhile. Without ``exact`` the length is
        the most that it may have.

        Raises:
            SyncArgumentError: the commitment has not 32 bytes, or the length is out of range.

        """
        found = self._local(commitment)
        if found is not None:
            with self._changed:
                self._counts["local"] += 1
            return found
        peers = self._peers(commitment)
        with self._changed:
            if self._closed:
                return None
            if commitment in self._ended:  # an end that others have still to read is ours, too
                self._counts["shared"] += 1
                return self._ended[commitment]
            now = time.monotonic()
            wanted = self._fetch.want(commitment, length, peers, now, exact=exact)
            if wanted is not WantedRange.ASKED:
                self._counts[_COUNTED[wanted]] += 1
            self._act()
            if wanted not in {WantedRange.ASKED, WantedRange.SHARED}:
                return None
            self._waiting[commitment] = self._waiting.get(commitment, 0) + 1
            while commitment not in self._ended and not self._closed:
                wake_at = self._fetch.wake_at()
                now = time.monotonic()
                if wake_at is not None and wake_at <= now:
                    self._fetch.wake(now)
                    self._act()
                    continue
                self._changed.wait(None if wake_at is None else wake_at - now)
            blob = self._ended.get(commitment)
            self._waiting[commitment] -= 1
            if not self._waiting[commitment]:
                del self._waiting[commitment]
                self._ended.pop(commitment, None)
            return blob

    def stats(self) -> FetchStats:
        """Return the counters as they stand."""
        with self._changed:
            return FetchStats(**self._counts)

    def close(self) -> None:
        """End the workers and send away who waits; the clients stay open."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._pool.close()

    def _peers(self, commitment: bytes) -> list[str]:
        relays = list(self._clients)
        if self._others is None:
            return list(self._order(relays))
        named, rest = self._others.peers(commitment)
        return list(self._order([*named, *relays, *rest]))

    def _act(self) -> None:
        for action in [] if self._closed else self._fetch.drain():
            match action:
                case AskBlob():
                    self._counts["asked"] += 1
                    self._counts["in_flight"] += 1
                    self._pool.submit(partial(self._ask, action))
                case Delivered(commitment, blob):
                    self._counts["delivered"] += 1
                    self._ended[commitment] = blob
                case GivenUp(commitment):
                    self._counts["given_up"] += 1
                    self._ended[commitment] = None
                case Blame():
                    self._counts["blamed"] += 1
                    self._on_blame(action)
                case _:
                    pass  # a request whose answer nobody awaits ends at its deadline
        self._changed.notify_all()

    def _ask(self, ask: AskBlob) -> None:
        try:
            blob = self._ask_one(ask)
        except LuxRelayError:
            blob = None
        with self._changed:
            self._counts["in_flight"] -= 1
            if blob is None:
                self._fetch.missing(ask.request, time.monotonic())
            else:
                self._fetch.received(ask.request, blob, time.monotonic())
            self._act()

    def _ask_one(self, ask: AskBlob) -> bytes | None:
        client = self._clients.get(ask.peer)
        if client is not None:
            return client.get_blob(ask.commitment, deadline_s=self._config.timeout_s)
        assert self._others is not None
        return self._others.ask(ask, self._config.timeout_s)
