"""Worker threads that may be left behind: a thread that hangs in a call does not hold its owner.

The threads of `concurrent.futures` are waited for at the end of the process whatever they do, so
one that hangs in a library keeps a command or a node alive. These are daemons: `close` waits for a
while and says how many it left.

Source: LP-6421 §2.3; P24.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Final, TypeVar

CLOSE_S: Final = 5.0
"""Seconds that `Workers.close` waits for work under way, unless it is told otherwise."""
_Work = Callable[[], object]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Workers:
    """Runs work in up to ``count`` threads, in the order in which it came.

    Args:
        count: Threads at the most; each is started when there is work that no idle one takes.
        name: What the threads are called.

    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._threads = 0
        self._waiting = 0
        """Work that no thread has begun."""
        self._idle = 0
        self._closed = False

    def submit(self, work: _Work) -> bool:
        """Have the work done; False when the workers are closed. It must not raise."""
        with self._changed:
            if self._closed:
                return False
            self._waiting += 1
            self._work.put(work)
            start = self._idle < self._waiting and self._threads < self._count
            if start:
                self._threads += 1
        if start:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return True

    def map(self, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """Return what the work makes of each item, in order; raises what the first one raised.

        Waits as long as the work does: each has a deadline of its own.
        """
        ends: SimpleQueue[None] = SimpleQueue()
        found: list[_Result | None] = [None] * len(items)
        errors: list[BaseException] = []

        def one(number: int) -> None:
            try:
                found[number] = work(items[number])
            except BaseException as error:  # noqa: BLE001  raised again in the calling thread
                errors.append(error)
            finally:
                ends.put(None)

        begun = sum([self.submit(partial(one, number)) for number in range(len(items))])
        for _ in range(begun):
            ends.get()
        if errors:
            raise errors[0]
        return found  # type: ignore[return-value]  # every item was worked on

    def close(self, wait_s: float = CLOSE_S) -> int:
        """Begin nothing more; return how many threads are still at work after ``wait_s``."""
        until = time.monotonic() + wait_s
        with self._changed:
            self._closed = True
            while not self._work.empty():
                self._work.get()
            for _ in range(self._threads):
                self._work.put(None)
            while self._threads and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._threads

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._idle += 1
                work = self._work.get()
                with self._changed:
                    self._idle -= 1
                    if work is not None:
                        self._waiting -= 1
                if work is None:
                    return
                work()
        finally:
            with self._changed:
                self._threads -= 1
                self._changed.notify_all()
