"""`BlobFetcher`: blobs from the own store, else from relays over gRPC or another way.

Drives `luxrelay.sync.fetch.BlobFetch` with threads: one for each request under way, and one that
keeps the machine's timers. Bytes are told to the machine as they come; a request that it drops is
ended at once. Whoever wants a blob waits for its end, or is called at it.

Source: LP-6421 §5.2; P28, P46, P49; 21-37, 21-38.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, Protocol

from luxrelay.bus import sha3_commitment
from luxrelay.errors import LuxRelayError, SyncProtocolError, SyncUnreachableError
from luxrelay.sync.fetch import (
    AskBlob,
    Blame,
    BlobFetch,
    Delivered,
    DropRequest,
    FetchConfig,
    GivenUp,
    UnderWay,
    WantedRange,
)
from luxrelay.sync.messages import BlobAnswer
from luxrelay.sync.rpc.client import RelaySyncClient
from luxrelay.sync.rpc.scope import CallScope
from luxrelay.sync.rpc.workers import Workers

_LOG: Final = logging.getLogger("luxrelay.sync")


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
    bytes: int
    """Bytes of blobs that came."""
    useful_bytes: int
    """Of those, bytes of blobs that were delivered."""
    resumed: int
    """Requests that went on where another had ended."""
    hedged: int
    """Requests beside another for the same blob."""
    silent: int
    """Requests that ended because nothing came for `FetchConfig.silence_s`."""
    put_off: int
    """Requests that a peer put off, because it sent the blob to another (P52)."""


_COMING = (WantedRange.ASKED, WantedRange.SHARED)
_COUNTED = {
    WantedRange.SHARED: "shared",
    WantedRange.ABSENT: "absent",
    WantedRange.REFUSED: "refused",
}


def sha3_matches(commitment: bytes, blob: bytes) -> bool:
    """Return True when the blob has this SHA3-256 commitment (LP-6411 §2.5)."""
    return sha3_commitment(blob) == commitment


SHOWN_MAX: Final = 32
"""Blobs under way that `BlobFetcher.under_way` names."""
Ended = Callable[[bytes | None], None]
"""Told the blob, or None when nobody had it or it is no longer wanted; any thread."""


def _cancel(scope: CallScope, _: bytes | None) -> None:
    scope.cancel()


class OtherSources(Protocol):
    """Peers that are asked for blobs by another way than gRPC; any thread may call it."""

    def peers(self, commitment: bytes) -> tuple[Sequence[str], Sequence[str]]:
        """Return who is said to have a blob, and who else could be asked, best first.

        A name is none of a relay's address; it comes back in `ask`.
        """

    def hosts(self) -> Mapping[str, str]:
        """Return who could be asked, by the IP address of the machine."""

    def ask(self, ask: AskBlob, silence_s: float, scope: CallScope) -> BlobAnswer | None:
        """Return what a peer sends; None when it does not have the blob.

        Args:
            ask: For what.
            silence_s: The answer is over when no byte came for so long.
            scope: Lets another thread end it.

        Raises:
            SyncUnreachableError: it cannot be asked; with `retry_after_ms` it is busy, and is to
                be asked later.
            SyncProtocolError: what it says breaks the protocol.
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
            rest, and then relays on the machines of these.
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
        self._wanted: dict[bytes, list[Ended]] = {}
        self._ends: list[tuple[Ended, bytes | None]] = []
        self._scopes: dict[int, CallScope] = {}
        self._closed = False
        self._keeper: threading.Thread | None = None
        self._counts = dict.fromkeys(
            ("in_flight", "local", "shared", "absent", "refused", "asked", "delivered",
             "given_up", "blamed"), 0
        )  # fmt: skip
        self._pool = Workers(self._config.requests_max, "luxrelay-blobs")

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
        ended = threading.Event()
        blobs: list[bytes | None] = []

        def end(blob: bytes | None) -> None:
            blobs.append(blob)
            ended.set()

        if self.begin(commitment, length, end, exact=exact) in _COMING:
            ended.wait()
        return blobs[0] if blobs else None

    def begin(
        self, commitment: bytes, length: int, ended: Ended, *, exact: bool = True
    ) -> WantedRange:
        """Begin to fetch a blob and return at once; ``ended`` is called when it has ended.

        It is not called when the blob is absent or refused.

        Raises:
            SyncArgumentError: the commitment has not 32 bytes, or the length is out of range.

        """
        peers, same = self._peers(commitment)
        with self._changed:
            if self._closed:
                return WantedRange.REFUSED
            now = time.monotonic()
            wanted = self._fetch.want(commitment, length, peers, now, exact=exact, same=same)
            if wanted in _COMING:
                self._wanted.setdefault(commitment, []).append(ended)
            if wanted is not WantedRange.ASKED:
                self._counts[_COUNTED[wanted]] += 1
            if self._keeper is None:
                self._keeper = threading.Thread(
                    target=self._keep_time, name="luxrelay-blob-times", daemon=True
                )
                self._keeper.start()
            self._act()
        self._tell()
        return wanted

    def joined(self) -> None:
        """Count a caller who waits for a fetch that somebody else began."""
        with self._changed:
            self._counts["shared"] += 1

    def heard(self, commitment: bytes) -> None:
        """Ask those who are said to have a blob that is being fetched, also those who had not."""
        if self._others is None:
            return
        named, _ = self._others.peers(commitment)
        with self._changed:
            self._fetch.heard(commitment, self._order(named), time.monotonic())
            self._act()
        self._tell()

    def have(self, commitment: bytes) -> None:
        """Fetch a blob no longer that came another way; who waits for it gets None."""
        with self._changed:
            self._fetch.have(commitment, time.monotonic())
            self._act()
        self._tell()

    def stats(self) -> FetchStats:
        """Return the counters as they stand."""
        with self._changed:
            return FetchStats(**self._counts, **asdict(self._fetch.totals))

    def under_way(self) -> list[UnderWay]:
        """Return the blobs that are being asked for, the oldest first, `SHOWN_MAX` at most."""
        with self._changed:
            return self._fetch.under_way(SHOWN_MAX)

    def close(self) -> None:
        """End the requests and send away who waits; the clients stay open."""
        with self._changed:
            self._closed = True
            waiting = [end for ends in self._wanted.values() for end in ends]
            self._wanted.clear()
            scopes = list(self._scopes.values())
            self._ends += [(end, None) for end in waiting]
            self._changed.notify_all()
        self._tell()
        for scope in scopes:
            scope.cancel()
        self._pool.close()

    def _peers(self, commitment: bytes) -> tuple[list[str], dict[str, str]]:
        """Return whom to ask, best first, and which of them are another one by name."""
        relays = list(self._clients)
        if self._others is None:
            return list(self._order(relays)), {}
        named, rest = self._others.peers(commitment)
        # A relay whose machine is a peer's is most likely that peer, which says itself when it has
        # come to hold a blob.
        hosts = self._others.hosts()
        machines = {each: each.rpartition(":")[0].strip("[]") for each in relays}
        same = {each: hosts[host] for each, host in machines.items() if host in hosts}
        relays = [each for each in relays if each not in same]
        room = max(0, self._config.peers_max - len(named) - len(self._clients))
        return list(self._order([*named, *relays, *rest[:room], *same])), same

    def _keep_time(self) -> None:
        """Wake the machine when it wishes, until the fetcher is closed."""
        while not self._closed:
            with self._changed:
                wake_at, now = self._fetch.wake_at(), time.monotonic()
                if wake_at is None or wake_at > now:
                    self._changed.wait(None if wake_at is None else wake_at - now)
                    continue
                self._fetch.wake(now)
                self._act()
            self._tell()

    def _act(self) -> None:
        for action in [] if self._closed else self._fetch.drain():
            match action:
                case AskBlob():
                    self._counts["asked"] += 1
                    self._counts["in_flight"] += 1
                    scope = self._scopes[action.request] = CallScope()
                    self._pool.submit(partial(self._ask, action, scope))
                case DropRequest(request):
                    dropped = self._scopes.get(request)
                    if dropped is not None:
                        self._ends.append((partial(_cancel, dropped), None))
                case Delivered(commitment, blob):
                    self._counts["delivered"] += 1
                    self._end(commitment, blob)
                case GivenUp(commitment):
                    self._counts["given_up"] += 1
                    self._end(commitment, None)
                case Blame():
                    self._counts["blamed"] += 1
                    self._on_blame(action)
        self._changed.notify_all()

    def _end(self, commitment: bytes, blob: bytes | None) -> None:
        self._ends += [(end, blob) for end in self._wanted.pop(commitment, ())]

    def _tell(self) -> None:
        """Call whoever waits for what has ended; without the lock, for they may come back.

        One that fails takes nothing from the others: they would wait for ever.
        """
        with self._changed:
            ends, self._ends = self._ends, []
        for end, blob in ends:
            try:
                end(blob)
            except Exception:  # noqa: BLE001  whatever it is, the others are told
                _LOG.exception("what follows the end of a blob's fetch failed")

    def _ask(self, ask: AskBlob, scope: CallScope) -> None:
        request = ask.request
        failed: Callable[[float], None] = partial(self._fetch.failed, request)
        try:
            answer = self._answer_of(ask, scope)
            if answer is not None and answer.later_s:
                failed = partial(self._fetch.later, request, answer.later_s)
            elif answer is not None:
                self._take(request, answer)
        except SyncUnreachableError as error:
            if error.retry_after_ms:
                failed = partial(self._fetch.busy, request)
        except SyncProtocolError as error:
            failed = partial(self._fetch.wrong, request, error.what)
        except LuxRelayError:
            pass
        with self._changed:
            self._counts["in_flight"] -= 1
            self._scopes.pop(request, None)
            failed(time.monotonic())  # of a request that came whole the machine knows no longer
            self._act()
        self._tell()

    def _take(self, request: int, answer: BlobAnswer) -> None:
        """Tell the machine of the bytes as they come."""
        try:
            with self._changed:
                self._fetch.began(request, answer.total, time.monotonic())
                self._act()
            self._tell()
            for part in answer.parts:
                with self._changed:
                    self._fetch.came(request, part, time.monotonic())
                    self._act()
                self._tell()
        finally:
            answer.parts.close()

    def _answer_of(self, ask: AskBlob, scope: CallScope) -> BlobAnswer | None:
        silence_s = self._config.silence_s
        client = self._clients.get(ask.peer)
        if client is None:
            assert self._others is not None
            return self._others.ask(ask, silence_s, scope)
        return client.get_blob_parts(
            ask.commitment, ask.offset, ask.count, silence_s=silence_s, scope=scope, may_wait=True
        )
