"""`Gate`: a store is closed when the last call inside has ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from luxrelay.errors import StoreError


class Gate:
    """Lets calls through until it is shut; shutting waits for those inside."""

    __slots__ = ("_inside", "_open", "_paused", "_state")

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._inside = 0
        self._open = True
        self._paused = False

    @contextmanager
    def passage(self) -> Iterator[None]:
        """Be inside for as long as the context lasts.

        Raises:
            StoreError: ``store.closed``.

        """
        with self._state:
            self._await_pass()
            self._inside += 1
        try:
            yield
        finally:
            with self._state:
                self._inside -= 1
                if not self._inside:
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
