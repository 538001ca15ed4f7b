"""`Gate`: a store is closed when the last call inside has ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from luxrelay.errors import StoreError


class Gate:
    """Lets calls through until it is shut; shutting waits for those inside."""

    __slots__ = ("_inside", "_open", "_passage", "_paused", "_state")

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._passage = Passage(self)
        self._inside = 0
        self._open = True
        self._paused = False

    def passage(self) -> Passage:
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


class Passage:
    """A call's way in and out; one object for all, because every read of a store makes one."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        self._gate.enter()

    def __exit__(self, *_: object) -> None:
        self._gate.leave()
