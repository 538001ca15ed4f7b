"""A small HTTP server on the loopback, in a thread of its own: the archive's metrics and questions.

Source: LP-6440, LP-6491.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from luxrelay.errors import ArchiveError
from luxrelay.gate import BrowserGate
from luxrelay.pages import Answer, PageRules, PageServer

_LOG: Final = logging.getLogger("luxrelay.archive")
_EVERY_S: Final = 60.0
"""Seconds between two lines of log about one kind of failure."""
_HINTS: Final = {
    "Host": "ask 127.0.0.1 or localhost",
    "Origin": "open the page itself; no other site may ask here",
}


class LoopbackServer:
    """Answers GET on 127.0.0.1 until it is closed; a context manager.

    Args:
        answer: Called with what was asked for, path and parameters, by any thread.
        port: TCP port; 0 lets the system choose.
        busy: What is said beyond ``calls_max``.
        calls_max: Answers that are made and sent at once.
        timeout_s: Seconds for a whole request, and for each 64 KiB of the answer.

    Raises:
        ArchiveError: ``archive.argument``: the port cannot be had.

    """

    def __init__(
        self,
        answer: Callable[[str], Answer],
        port: int,
        *,
        busy: Answer,
        calls_max: int,
        timeout_s: int,
    ) -> None:
        free = threading.BoundedSemaphore(calls_max)

        def bounded(target: str) -> Answer:
            if not free.acquire(blocking=False):
                return busy
            try:
                return answer(target)
            finally:
                free.release()

        try:
            self._server = PageServer(
                ("127.0.0.1", port),
                bounded,
                PageRules(
                    gate=BrowserGate(),
                    hints=_HINTS,
                    clients_max=4 * (calls_max + 1),
                    timeout_s=timeout_s,
                    fault=_Teller(),
                ),
                name="loopback",
            )
        except (OSError, OverflowError) as error:
            raise ArchiveError(
                f"the port cannot be had: {getattr(error, 'strerror', None) or error}",
                where=f"127.0.0.1:{port}",
                hint="name another one, or 0",
                code="archive.argument",
            ) from None
        self.port: int = self._server.port
        """Where it listens."""

    def close(self) -> None:
        """Stop serving."""
        self._server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Teller:
    """Logs a failure, unless one of its kind was logged a moment ago."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def __call__(self, kind: str, error: BaseException) -> None:
        now = time.monotonic()
        if now - self._told.get(kind, float("-inf")) >= _EVERY_S:
            self._told[kind] = now
            _LOG.warning("a request failed: %s: %r", kind, error)
