"""`BlobFetch`: the next provider of a blob, and the end of the search.

Theory of operation
===================

*Decides*: which peer is asked for which blob, when a second and a third are asked beside it, when a
blob is given up and for how long nobody is asked again.

*Does not know*: stores, streams, clocks. Whoever drives it looks into its own store first, and
answers a peer's question from there alone: a question is never passed on, so an unknown commitment
costs each node of a network one question at most (P28).

*Machines and their states*: a **wanted** blob has peers still to ask and requests under way. It
ends
with `Delivered`, or `GivenUp` when every peer has said no, failed, or sent something else. All who
want it meanwhile share its end (coalescing). A commitment given up is *absent* for a while.

*Inputs and what they may cause*: ``want`` asks the first peer. ``received`` delivers what matches
length and commitment, and blames who sent something else. ``missing``, ``failed`` and ``wake`` ask
the next peer. Any of them may cause the end.

*Timers*: a request is over after ``timeout_s``; another peer is asked beside it after ``hedge_s``.

*Bounds*: `FetchConfig`; each field names one.

*Deviations from the specification*: LP-6421 §5.2 asks one peer after the other without limits. Here
up to three at a time, the further ones only when the first are slow, so that a large blob does not
come three times.

*What else to change when you change this*: ``rpc/blob_driver.py`` and the stream driver of the
network room.

Source: LP-6421 §5.2; decision P28; 21-37, 21-38.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum

from luxrelay.bus import constants as c
from luxrelay.errors import SyncArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    """How much is asked of how many; every number is positive."""

    parallel_max: int = 3
    """Peers asked for one blob at once (P28)."""
    requests_max: int = 32
    """Requests under way at once, all blobs together; with 2 MiB each the memory they may take."""
    timeout_s: float = 2.0
    """A request without an answer is over after this long, seconds (P28)."""
    hedge_s: float = 0.25
    """Another peer is asked when an answer takes this long, seconds."""
    absent_s: float = 30.0
    """A blob that nobody had is not asked for again for this long, seconds (P28)."""
    wanted_max: int = 4_096
    """Blobs wanted at once; further ones are refused."""
    absent_max: int = 4_096
    """Absent blobs remembered; the oldest is forgotten."""
    peers_max: int = 16
    """Peers asked for one blob altogether."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise SyncArgumentError(f"{each.name} must be positive", where="FetchConfig")


class WantedRange(IntEnum):
    """What came of wanting a blob."""

    ASKED = 0
    """It is being asked for; its end will be told."""
    SHARED = 1
    """It was being asked for already; its end will be told once."""
    ABSENT = 2
    """Nobody had it a moment ago; nothing will be told."""
    REFUSED = 3
    """Too many are wanted, or there is nobody to ask; nothing will be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskBlob:
    """Ask ``peer`` for a blob, and take ``length`` bytes at most."""

    request: int
    """Names the request in the answer."""
    peer: str
    """Whom."""
    commitment: bytes
    """Which one."""
    length: int
    """Bytes it must have."""
    exact: bool = True
    """Whether it must have all of them; else it may have fewer, as a sidecar."""


@dataclass(frozen=True, slots=True)
class DropRequest:
    """Nobody waits for this answer any more; end it."""

    request: int
    """Which one."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The blob is here and matches its commitment."""

    commitment: bytes
    """Which one."""
    blob: bytes
    """Its bytes."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Nobody who was asked has the blob."""

    commitment: bytes
    """Which one."""


@dataclass(frozen=True, slots=True)
class Blame:
    """A peer sent something that is not the blob."""

    peer: str
    """Who."""
    commitment: bytes
    """What it was asked for."""
    why: str
    """What was wrong."""


FetchAction = AskBlob | DropRequest | Delivered | GivenUp | Blame


@dataclass(slots=True)
class _Blob:
    length: int
    peers: list[str]
    """Still to be asked, the next one last."""
    exact: bool
    requests: set[int] = field(default_factory=set)
    hedge_at: float = 0.0


@dataclass(slots=True)
class _Request:
    commitment: bytes
    peer: str
    until: float


class BlobFetch:
    """Fetches blobs from peers; see the theory above.

    The driver's contract: feed inputs; after each, `drain` and do the actions in order; sleep until
    `wake_at`; `wake(now)`; never call the machine from inside one of its own actions.

    Args:
        matches: Whether bytes are the blob of a commitment; pure.
        config: Bounds.

    """

    def __init__(
        self, matches: Callable[[bytes, bytes], bool], config: FetchConfig | None = None
    ) -> None:
        self._matches = matches
        self._config = config or FetchConfig()
        self._blobs: dict[bytes, _Blob] = {}
        self._requests: dict[int, _Request] = {}
        self._absent: OrderedDict[bytes, float] = OrderedDict()
        self._next = 1
        self._actions: list[FetchAction] = []

    # Inputs

    def want(
        self,
        commitment: bytes,
        length: int,
        peers: Sequence[str],
        now: float,
        *,
        exact: bool = True,
    ) -> WantedRange:
        """Begin to fetch a blob.

        Args:
            commitment: 32 bytes.
            length: Bytes it must have, as its header says; 1 to 2 MiB.
            peers: Whom to ask, best first; each once.
            now: Monotonic seconds.
            exact: Whether it must have that length; else it has no more.

        """
        if len(commitment) != c.HASH_BYTES or not 0 < length <= c.MAX_BLOB_BYTES:
            raise SyncArgumentError(
                f"a blob of {length} bytes with a commitment of {len(commitment)}", where="want"
            )
        if commitment in self._blobs:
            return WantedRange.SHARED
        if self._absent.get(commitment, now) > now:
            return WantedRange.ABSENT
        asked = list(dict.fromkeys(peers))[: self._config.peers_max]
        if not asked or len(self._blobs) >= self._config.wanted_max:
            return WantedRange.REFUSED
        self._absent.pop(commitment, None)
        self._blobs[commitment] = _Blob(length, asked[::-1], exact, hedge_at=now)
        self._ask(now)
        return WantedRange.ASKED

    def received(self, request: int, blob: bytes, now: float) -> None:
        """Take the bytes that a peer sent."""
        done = self._requests.pop(request, None)
        if done is None:
            return
        wanted = self._blobs[done.commitment]
        wanted.requests.discard(request)
        why = ""
        if len(blob) != wanted.length and (wanted.exact or not 0 < len(blob) < wanted.length):
            why = f"{len(blob)} bytes instead of {wanted.length}"
        elif not self._matches(done.commitment, blob):
            why = "other bytes than the commitment says"
        if why:
            self._actions.append(Blame(done.peer, done.commitment, why))
            wanted.hedge_at = now
            self._ask(now)
            return
        self._end(done.commitment)
        self._actions.append(Delivered(done.commitment, blob))
        self._ask(now)

    def missing(self, request: int, now: float) -> None:
        """Take a peer's word that it does not have the blob; or that it failed."""
        done = self._requests.pop(request, None)
        if done is not None:
            wanted = self._blobs[done.commitment]
            wanted.requests.discard(request)
            wanted.hedge_at = now
            self._ask(now)

    failed = missing
    """A request that brought nothing: the next peer may do better."""

    def wake(self, now: float) -> None:
        """Do what was put off until now."""
        late = [number for number, each in self._requests.items() if each.until <= now]
        for number in late:
            done = self._requests.pop(number)
            self._actions.append(DropRequest(number))
            self._blobs[done.commitment].requests.discard(number)
            self._blobs[done.commitment].hedge_at = now
        self._ask(now)

    # Outputs

    def drain(self) -> list[FetchAction]:
        """Return the actions since the last call, in order."""
        actions, self._actions = self._actions, []
        return actions

    def wake_at(self) -> float | None:
        """Return when `wake` has something to do, monotonic seconds; None for never."""
        times = [each.until for each in self._requests.values()]
        if len(self._requests) < self._config.requests_max:
            times += [
                each.hedge_at
                for each in self._blobs.values()
                if each.peers and len(each.requests) < self._config.parallel_max
            ]
        return min(times, default=None)

    @property
    def wanted(self) -> int:
        """Blobs being fetched."""
        return len(self._blobs)

    @property
    def absent(self) -> int:
        """Blobs remembered as absent."""
        return len(self._absent)

    def _ask(self, now: float) -> None:
        """Ask where a place is free; give up what has nobody left to ask."""
        for commitment in list(self._blobs):
            blob = self._blobs[commitment]
            while blob.peers and blob.hedge_at <= now:
                full = len(blob.requests) >= self._config.parallel_max
                if full or len(self._requests) >= self._config.requests_max:
                    break
                request = _Request(commitment, blob.peers.pop(), now + self._config.timeout_s)
                self._requests[self._next] = request
                blob.requests.add(self._next)
                blob.hedge_at = now + self._config.hedge_s
                self._actions.append(
                    AskBlob(
                        request=self._next,
                        peer=request.peer,
                        commitment=commitment,
                        length=blob.length,
                        exact=blob.exact,
                    )
                )
                self._next += 1
            if not (blob.peers or blob.requests):
                self._end(commitment)
                self._absent[commitment] = now + self._config.absent_s
                if len(self._absent) > self._config.absent_max:
                    self._absent.popitem(last=False)
                self._actions.append(GivenUp(commitment))

    def _end(self, commitment: bytes) -> None:
        for number in sorted(self._blobs.pop(commitment).requests):
            del self._requests[number]
            self._actions.append(DropRequest(number))
