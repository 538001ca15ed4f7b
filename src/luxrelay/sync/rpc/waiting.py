"""Bounds of gRPC calls without their request, and of streams that anybody may open.

Theory of operation
-------------------
*`PendingRequests`*: a client may send the head of a call and no message; the thread that reads it
would wait for ever. Each reading is entered here: one that has lasted ``wait_s`` is cancelled, and
so is the oldest of an address that has ``address_max`` of them when it begins another; when there
are ``waiting_max`` of all addresses, the oldest of the address that has most makes room. An honest
client's message comes with the head, so that the oldest is the one that is silent.
*`ReflectionLimit`*: reflection and the watching of health hold a thread while they last; there are
few of them, few an address, and none lasts.

Source: architecture, rule 4.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from luxrelay.sync.rpc.stream_limit import StreamGate

_LOOKS_A_WAIT: Final = 4
"""How often the reaper looks while a call may wait."""


class PendingRequests:
    """Cancels calls that wait too long for their request; any thread.

    Args:
        wait_s: Longest wait, seconds; up to a quarter more until it is noticed.
        address_max: Calls of one address that wait at once.
        waiting_max: Calls of all addresses that do.

    """

    def __init__(self, wait_s: float, address_max: int, waiting_max: int) -> None:
        self._wait_s = wait_s
        self._address_max = address_max
        self._waiting_max = waiting_max
        self._changed = threading.Condition()
        self._calls: dict[str, OrderedDict[int, tuple[float, Callable[[], object]]]] = {}
        self._next = 0
        self._closed = False
        self._idle = False
        self._reaper: threading.Thread | None = None

    @contextmanager
    def entered(self, address: str, cancel: Callable[[], object]) -> Iterator[None]:
        """Hold a place while a request is read; ``cancel`` ends the call."""
        with self._changed:
            oldest = self._room(address)
            self._next += 1
            ticket = self._next
            calls = self._calls.setdefault(address, OrderedDict())
            calls[ticket] = (time.monotonic() + self._wait_s, cancel)
            self._wake()
        if oldest is not None:
            oldest()
        try:
            yield
        finally:
            with self._changed:
                self._drop(address, ticket)

    def _room(self, address: str) -> Callable[[], object] | None:
        """What ends the call that makes room for one of the address; None when there is room."""
        crowd = address
        if len(self._calls.get(address, ())) < self._address_max:
            if sum(map(len, self._calls.values())) < self._waiting_max:
                return None
            crowd = max(self._calls, key=lambda each: (len(self._calls[each]), -self._first(each)))
        ticket = self._first(crowd)
        _, cancel = self._calls[crowd][ticket]
        self._drop(crowd, ticket)
        return cancel

    def _first(self, address: str) -> int:
        return next(iter(self._calls[address]))

    @property
    def active(self) -> int:
        """Calls that wait now."""
        with self._changed:
            return sum(map(len, self._calls.values()))

    def close(self) -> None:
        """End the reaper."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._reaper is not None:
            self._reaper.join()

    def _drop(self, address: str, ticket: int) -> None:
        calls = self._calls.get(address)
        if calls is not None:
            calls.pop(ticket, None)
            if not calls:
                del self._calls[address]

    def _wake(self) -> None:
        if self._reaper is None and not self._closed:
            self._reaper = threading.Thread(target=self._reap, name="luxrelay-waits", daemon=True)
            self._reaper.start()
        elif self._idle:
            self._idle = False
            self._changed.notify()

    def _reap(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                self._idle = not self._calls
                self._changed.wait(None if self._idle else self._wait_s / _LOOKS_A_WAIT)
                self._idle = False
                overdue = self._take_overdue(time.monotonic())
            for cancel in overdue:
                cancel()

    def _take_overdue(self, now: float) -> list[Callable[[], object]]:
        found = []
        for address, calls in list(self._calls.items()):
            for ticket, (end, cancel) in list(calls.items()):
                if end > now:
                    break  # those behind it came later
                found.append(cancel)
                self._drop(address, ticket)
        return found


class ReflectionLimit:
    """Admits ``looks_max`` streams, ``address_max`` of one address; cancels each after ``life_s``.

    Args:
        looks_max: Streams at once.
        address_max: Streams of one address at once.
        life_s: Longest life of one, seconds.

    """

    def __init__(self, looks_max: int, address_max: int, life_s: float) -> None:
        self._gate = StreamGate(looks_max, life_s, name="luxrelay-looks", kind="looks")
        self._life_s = life_s
        self._address_max = address_max
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    @contextmanager
    def entered(self, address: str, cancel: Callable[[], object]) -> Iterator[str]:
        """Hold a place; yields why there was none, or nothing. ``cancel`` ends the stream."""
        with self._lock:
            ticket, why = None, ""
            if self._held[address] >= self._address_max:
                why = (
                    f"this address looks around {self._address_max} times, the most at once; "
                    f"ask again in {self._life_s:.1f} s"
                )
            else:
                ticket, why = self._gate.enter(cancel)
            if ticket is not None:
                self._held[address] += 1
        try:
            yield why
        finally:
            with self._lock:
                if ticket is not None:
                    self._gate.leave(ticket)
                    self._held[address] -= 1
                if not self._held[address]:
                    del self._held[address]

    def close(self) -> None:
        """Admit nobody any more."""
        self._gate.close()
