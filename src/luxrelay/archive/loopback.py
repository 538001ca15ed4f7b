"""A small HTTP server on the loopback, in a thread of its own: the archive's metrics and questions.

Source: LP-6440, LP-6491.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from luxrelay.errors import ArchiveError

Answer = tuple[int, str, bytes]
"""HTTP status, content type, and the whole body."""


class LoopbackServer:
    """Answers GET on 127.0.0.1 until it is closed; a context manager.

    Args:
        answer: Called with what was asked for, path and parameters, by any thread.
        port: TCP port; 0 lets the system choose.
        busy: What is said beyond ``calls_max``.
        calls_max: Answers that are made and sent at once.
        timeout_s: Longest that a client may say nothing, seconds.

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

        class Handler(BaseHTTPRequestHandler):
            timeout = timeout_s

            def do_GET(self) -> None:  # http.server's name
                if not free.acquire(blocking=False):
                    self._say(*busy)
                    return
                try:
                    self._say(*answer(self.path))
                finally:
                    free.release()

            def _say(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise ArchiveError(
                f"the port cannot be had: {error.strerror}",
                where=f"127.0.0.1:{port}",
                hint="name another one, or 0",
                code="archive.argument",
            ) from None
        self.port: int = self._server.server_address[1]
        """Where it listens."""
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
