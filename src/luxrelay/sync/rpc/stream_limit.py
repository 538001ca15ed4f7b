"""`StreamGate`: places of concurrent streams, their owners, and their life.

Theory of operation
-------------------
A gRPC stream holds a thread of the server while its reader is slow or its writer silent. The gate
has ``streams_max`` places and ends streams that outlive theirs. When all are taken, a newcomer
gets one in this order:

1. of a stream whose client has sent nothing for ``silent_s`` (judged for Publish only): the one
   that has been silent longest, of the network that has most such ones;
2. of the network that has most streams, if it has two more than the newcomer's has, or the
   newcomer has proven a token or certificate: the one that began first;
3. none: it is told how many there are, how many are its network's, and when to ask again.

Who has proven a token or certificate never gives way to one who has not. One address has
``share_max`` streams at the most, so that it cannot take places from others only to be refused.
A stream that gives way is cancelled; its place is the newcomer's at once, its thread comes back
when the cancellation reaches it, and no more than a quarter of the places are on their way so.

Source: architecture, rule 4; decision P34.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

_FOR_EVER: Final = float("inf")
_AGAIN_S: Final = 1.0
"""When to ask again where nobody's time is nearly over, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOwner:
    """Whose stream it is."""

    share: str = ""
    """What `StreamGate` counts its streams under: token, key or address."""
    network: str = ""
    """What it is weighed against others by: token, key, or the /16 (IPv6: /48) of its address."""
    known: bool = False
    """It has proven a token or a certificate."""


ANYBODY: Final = StreamOwner()


@dataclass(slots=True, kw_only=True)
class _Stream:
    holder: StreamOwner
    cancel: Callable[[], object]
    end: float
    """When its time is over."""
    heard: float
    """When its client was last heard."""


class StreamGate:
    """Admits ``streams_max`` streams; cancels each after ``life_s`` seconds; see the theory above.

    One thread watches, started with the first stream and ended by `close`.

    Args:
        streams_max: Streams at once.
        life_s: Longest life of one, seconds; `renew` begins it anew.
        name: Of the thread.
        kind: What the streams are called in refusals, in the plural.
        share_max: Streams of one `StreamOwner.share` at once; 0 for no bound.
        silent_s: After so many seconds without `renew` a stream gives way to a newcomer; 0 if
            silence says nothing about a stream.

    """

    def __init__(
        self,
        streams_max: int,
        life_s: float,
        *,
        name: str,
        kind: str = "streams",
        share_max: int = 0,
        silent_s: float = 0.0,
    ) -> None:
        self._max = streams_max
        self._life_s = life_s
        self._name = name
        self._kind = kind
        self._share_max = share_max
        self._silent_s = silent_s
        self._changed = threading.Condition()
        self._active: dict[int, _Stream] = {}
        self._leaving: set[int] = set()
        self._next = 0
        self._closed = False
        self._watcher: threading.Thread | None = None
        self._crowded = 0

    def enter(
        self, cancel: Callable[[], object], holder: StreamOwner = ANYBODY
    ) -> tuple[int | None, str]:
        """Return a ticket for a stream that ``cancel`` ends, or None and why it is refused."""
        with self._changed:
            now = time.monotonic()
            why = self._refusal(holder)
            if why:
                return None, why
            given: _Stream | None = None
            if len(self._active) >= self._max:
                ticket = self._gives_way(holder, now)
                if ticket is None:
                    return None, self._full(holder, now)
                given = self._active.pop(ticket)
                self._leaving.add(ticket)
                self._crowded += 1
            self._next += 1
            self._active[self._next] = _Stream(
                holder=holder, cancel=cancel, end=now + self._life_s, heard=now
            )
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name=self._name, daemon=True)
                self._watcher.start()
            self._changed.notify()
            ticket = self._next
        if given is not None:
            given.cancel()
        return ticket, ""

    def renew(self, ticket: int) -> None:
        """Begin the life of a stream anew; one that has outlived it, or gave way, is not saved."""
        with self._changed:
            stream = self._active.get(ticket)
            if stream is not None and stream.end != _FOR_EVER:
                stream.heard = time.monotonic()
                stream.end = stream.heard + self._life_s

    def leave(self, ticket: int) -> None:
        """Give the place back."""
        with self._changed:
            self._active.pop(ticket, None)
            self._leaving.discard(ticket)
            self._changed.notify()

    @property
    def active(self) -> int:
        """Streams that run now."""
        with self._changed:
            return len(self._active)

    @property
    def crowded(self) -> int:
        """Streams that gave their place to a newcomer so far."""
        with self._changed:
            return self._crowded

    def close(self) -> None:
        """Admit nobody any more and end the watcher."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._watcher is not None:
            self._watcher.join()

    def _refusal(self, holder: StreamOwner) -> str:
        if self._closed:
            return "this relay is stopping"
        if not self._max:
            return f"this relay takes no {self._kind}"
        if self._share_max:
            mine = sum(each.holder.share == holder.share for each in self._active.values())
            if mine >= self._share_max:
                return (
                    f"a peer has {self._share_max} {self._kind} at most; "
                    f"ask again in {_AGAIN_S:.1f} s"
                )
        return ""

    def _gives_way(self, newcomer: StreamOwner, now: float) -> int | None:
        """Return the ticket of the stream whose place the newcomer gets."""
        if len(self._leaving) >= max(1, self._max // 4):
            return None  # each has a thread until its cancellation has reached it
        lesser = {
            ticket: each
            for ticket, each in self._active.items()
            if each.end != _FOR_EVER and (newcomer.known or not each.holder.known)
        }
        if self._silent_s:
            silent = {t: each for t, each in lesser.items() if now - each.heard >= self._silent_s}
            if silent:
                crowd, _ = _largest(silent.values())
                mine = {t: each for t, each in silent.items() if each.holder.network == crowd}
                return min(mine, key=lambda each: mine[each].heard)
        weighed = {t: each for t, each in lesser.items() if not each.holder.known}
        if not weighed:
            return None
        crowd, size = _largest(weighed.values())
        if newcomer.known or size >= self._of(newcomer) + 2:
            return min(t for t, each in weighed.items() if each.holder.network == crowd)
        return None

    def _of(self, holder: StreamOwner) -> int:
        """Return how many streams a holder's network has."""
        return sum(each.holder.network == holder.network for each in self._active.values())

    def _full(self, holder: StreamOwner, now: float) -> str:
        mine = self._of(holder)
        soonest = min((each.end - now for each in self._active.values()), default=_AGAIN_S)
        again_s = min(max(soonest, 0.1), self._silent_s or _AGAIN_S)
        return (
            f"all {self._max} {self._kind} of this relay are taken, {mine} of them by your "
            f"network; ask again in {again_s:.1f} s"
        )

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                overdue = [each for each in self._active.values() if each.end <= now]
                for each in overdue:  # its place stays taken until its thread is back
                    each.end = _FOR_EVER
                if not overdue:
                    soonest = min((each.end for each in self._active.values()), default=_FOR_EVER)
                    self._changed.wait(None if soonest == _FOR_EVER else soonest - now)
            for each in overdue:
                each.cancel()


def _largest(streams: Iterable[_Stream]) -> tuple[str, int]:
    """Return the network that has most of some streams, and how many."""
    return Counter(each.holder.network for each in streams).most_common(1)[0]
