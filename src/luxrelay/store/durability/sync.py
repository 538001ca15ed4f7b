"""Durability: which writes have reached the disk; the locks of writers and of callers.

Theory of operation
-------------------
*Decides* when the log is synced, and when a caller may be told that its write is safe.
*Does not know* what was written; the writer counts its batches here.
*fsync*: whoever waits syncs, for everybody who has written by then; the others find it done.
*group*: one thread syncs when something was written, then rests for the interval. Writers go on
meanwhile, and a receipt tells when its write was covered. Whoever waits for one does not wait for
the interval: it syncs as with *fsync*, for everybody, so that *group* is never the slower one.
*os*: nobody syncs; the operating system has the bytes, and that is all that was promised.
*A failed sync* ends writing: what the log then holds is unknown, and a later success would
acknowledge it. Whoever waits is told, now and later. Reading goes on; opening the store again
recovers what is there.
*Bounds*: in group mode one sync an interval for those who do not wait; whoever waits does so for at
most two syncs, the one that runs and its own.
*What else to change when you change this*: `writer`, docs on durability, tests/chaos.

`CallGate`: a store is closed when the last call inside has ended.

`FairLock`: a lock whose waiter goes next.

Python's lock lets whoever asks first after a release have it, which is the thread that has just
released it: a deletion cycle would keep it over all its chunks while a put waits. Here a waiter
holds the place in front of the lock, so the one that releases must queue behind it.

Source: ADR 0006 §3, §7; architecture, rules 5 and 6; retention document, "Why GC writes via direct
Arc"; ADR 0006 §1; decision P3.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from luxrelay.errors import StoreError
from luxrelay.store.config import Durability
from luxrelay.store.messages import PutOutcome
from luxrelay.store.rocks import Database


class FairLock:
    """A context manager; the one that waits longest in front goes in next."""

    __slots__ = ("_busy", "_next")

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._busy = threading.Lock()

    def is_wanted(self) -> bool:
        """Return True when somebody waits."""
        return self._next.locked()

    def __enter__(self) -> None:
        with self._next:
            self._busy.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._busy.release()


class CallGate:
    """Lets calls through until it is shut; shutting waits for those inside."""

    __slots__ = ("_inside", "_open", "_passage", "_paused", "_state")

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._passage = StoreSession(self)
        self._inside = 0
        self._open = True
        self._paused = False

    def passage(self) -> StoreSession:
        """Be inside for as long as the context lasts.

        Raises (when the context is entered):
            StoreError: ``store.closed``.

        """
        return self._passage

    def enter(self) -> None:
        """Be inside until `leave`; `passage` does both."""
        with self._state:
            self._await_pass()
            self._inside += 1

    def leave(self) -> None:
        """Be outside again."""
        with self._state:
            self._inside -= 1
            if not self._inside and (self._paused or not self._open):
                self._state.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be inside with nobody else for as long as the context lasts; others wait.

        Raises:
            StoreError: ``store.closed``.

        """
        with self._state:
            self._await_pass()
            self._paused = True
            while self._inside:
                self._state.wait()
        try:
            yield
        finally:
            with self._state:
                self._paused = False
                self._state.notify_all()

    def _await_pass(self) -> None:
        while self._paused:
            self._state.wait()
        if not self._open:
            raise StoreError("the store is closed", code="store.closed")

    def shut(self) -> bool:
        """Return True when this call shut the gate; nobody is inside then."""
        with self._state:
            while self._paused:
                self._state.wait()
            if not self._open:
                return False
            self._open = False
            while self._inside:
                self._state.wait()
        return True


class StoreSession:
    """A call's way in and out; one object for all, because every read of a store makes one."""

    __slots__ = ("_gate",)

    def __init__(self, gate: CallGate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        self._gate.enter()

    def __exit__(self, *_: object) -> None:
        self._gate.leave()


class Durable:
    """Counts writes and syncs; every method from any thread."""

    def __init__(self, database: Database, durability: Durability, interval_s: float) -> None:
        """Sync ``database`` as ``durability`` says, at most once an interval in group mode."""
        self._database = database
        self._durability = durability
        self._interval_s = interval_s
        self._state = threading.Condition()
        self._sync_lock = threading.Lock()
        self._work = threading.Event()
        self._rested = threading.Event()
        self._stop = False
        self._written = 0
        self._synced = 0
        self._failed = False
        self.syncs = 0
        """Times the log was synced."""
        self._thread: threading.Thread | None = None
        if durability is Durability.GROUP:
            self._thread = threading.Thread(target=self._run, name="store-sync", daemon=True)
            self._thread.start()

    def wrote(self) -> None:
        """One batch more is in the operating system's hands."""
        self._written += 1  # under the writer's lock
        if self._thread is not None:
            self._work.set()

    def ticket(self) -> int:
        """Return a number for everything written so far."""
        return self._written

    def covers(self, ticket: int) -> bool:
        """Return True when what the ticket stands for is as durable as promised."""
        return self._durability is Durability.OS or self._synced >= ticket

    def wait(self, ticket: int, timeout_s: float | None = None) -> bool:
        """Everything up to the ticket is as durable as promised; False when time ran out.

        Raises:
            StoreError: ``store.io``: a sync failed, and nothing after it may be acknowledged.

        """
        if self.covers(ticket):
            return True
        if self._thread is None or timeout_s is None:
            self._sync_up_to(ticket)
            return True
        self._rested.set()
        with self._state:
            self._state.wait_for(lambda: self._failed or self.covers(ticket), timeout_s)
            if self.covers(ticket):
                return True
            self.check()
        return False

    def check(self) -> None:
        """Return while syncs succeed.

        Raises:
            StoreError: ``store.io``: one has failed.

        """
        if self._failed:
            raise StoreError(
                "the store takes no writes since a sync failed",
                hint="check the disk, then open the store again",
            )

    def sync(self) -> None:
        """Everything written so far is on the disk, whatever was promised.

        Raises:
            StoreError: ``store.io``; as after every failed sync, nothing is written any more.

        """
        with self._sync_lock:
            self.check()
            self._sync()
            self.syncs += 1

    def abandon(self) -> None:
        """The thread has ended; what was not synced is not, and whoever waits for it is told."""
        with self._state:
            self._failed = True
            self._state.notify_all()
        self._end_thread()

    def close(self) -> None:
        """The thread has ended and everything written is on the disk, whatever was promised.

        Raises:
            StoreError: ``store.io``.

        """
        self._end_thread()
        with self._sync_lock:
            self._sync()

    def _end_thread(self) -> None:
        self._stop = True
        self._work.set()
        self._rested.set()
        if self._thread is not None:
            self._thread.join()

    def _sync_up_to(self, ticket: int) -> None:
        with self._sync_lock:
            if self._synced < ticket:
                self.check()
                self._sync()
                self.syncs += 1

    def _sync(self) -> None:
        covered = self._written
        try:
            self._database.sync()
        except StoreError:
            self._failed = True
            with self._state:
                self._state.notify_all()
            raise
        with self._state:
            self._synced = covered
            self._state.notify_all()

    def _run(self) -> None:
        while True:
            self._work.wait()
            self._work.clear()
            self._rested.clear()
            if self._stop:
                return
            try:
                self._sync_up_to(self._written)
            except StoreError:
                return  # whoever waits or writes is told by `check`
            self._rested.wait(self._interval_s)


class PutReceipt:
    """What became of messages that were put, and whether that is durable yet."""

    __slots__ = ("_durable", "_ticket", "outcomes")

    def __init__(self, outcomes: Sequence[PutOutcome], durable: Durable, ticket: int) -> None:
        """Stand for ``outcomes`` written up to ``ticket``."""
        self.outcomes = list(outcomes)
        """One outcome a message, in order; decided, and final."""
        self._durable = durable
        self._ticket = ticket

    @property
    def durable(self) -> bool:
        """True once every message is as durable as the store's configuration promises."""
        return self._durable.covers(self._ticket)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True when it is durable, False when ``timeout_s`` seconds were not enough.

        Raises:
            StoreError: ``store.io``: a sync failed; nothing of this may be acknowledged.

        """
        return self._durable.wait(self._ticket, timeout_s)
