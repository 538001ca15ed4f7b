"""One connection to a gateway: blocking, or on anyio; each drives the same generators.

Source: architecture, rule 2.
"""

from __future__ import annotations

import math
import socket
import ssl
from contextlib import suppress
from typing import Final, TypeVar

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from luxrelay.client.exchange import Endpoint, Steps
from luxrelay.errors import ClientUnreachableError

Result = TypeVar("Result")
_RECEIVE_BYTES: Final = 64 * 1024


class Line:
    """A blocking connection."""

    def __init__(self, stream: socket.socket, where: str) -> None:
        """Use an open socket."""
        self._stream = stream
        self._where = where

    @classmethod
    def open(cls, endpoint: Endpoint, timeout_s: float, tls: ssl.SSLContext | None) -> Line:
        """Return an open connection.

        Raises:
            ClientUnreachableError: there is nobody, or TLS does not come about.

        """
        where = endpoint.authority
        try:
            stream = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
        except OSError as error:
            raise _unreachable(error, where) from error
        try:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.tls:
                context = tls or ssl.create_default_context()
                stream = context.wrap_socket(stream, server_hostname=endpoint.host)
        except OSError as error:
            stream.close()
            raise _unreachable(error, where) from error
        return cls(stream, where)

    def run(self, steps: Steps[Result]) -> Result:
        """Return what the steps return.

        Raises:
            ClientUnreachableError: the connection failed or was silent for too long.

        """
        try:
            step = next(steps)
            while True:
                if step is None:
                    step = steps.send(self.receive())
                else:
                    self.send(step)
                    step = steps.send(b"")
        except StopIteration as end:
            result: Result = end.value
            return result

    def send(self, data: bytes) -> None:
        """Send everything."""
        try:
            self._stream.sendall(data)
        except OSError as error:
            raise _unreachable(error, self._where) from error

    def receive(self) -> bytes:
        """Return what comes next; empty at the end."""
        try:
            return self._stream.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise _unreachable(error, self._where) from error

    def close(self) -> None:
        """The connection is closed; whoever waits for it in another thread is woken."""
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._stream.close()


class AsyncLine:
    """A connection on asyncio or trio."""

    def __init__(self, stream: ByteStream, where: str, timeout_s: float) -> None:
        """Use an open stream."""
        self._stream = stream
        self._where = where
        self._timeout_s = timeout_s or math.inf

    @classmethod
    async def open(
        cls, endpoint: Endpoint, timeout_s: float, tls: ssl.SSLContext | None
    ) -> AsyncLine:
        """Return an open connection.

        Raises:
            ClientUnreachableError: there is nobody, or TLS does not come about.

        """
        where = endpoint.authority
        try:
            with anyio.fail_after(timeout_s):
                stream: ByteStream = await anyio.connect_tcp(endpoint.host, endpoint.port)
                if endpoint.tls:
                    context = tls or ssl.create_default_context()
                    stream = await TLSStream.wrap(
                        stream,
                        hostname=endpoint.host,
                        ssl_context=context,
                        standard_compatible=False,
                    )
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise _unreachable(error, where) from error
        return cls(stream, where, timeout_s)

    async def run(self, steps: Steps[Result]) -> Result:
        """Return what the steps return; errors are those of `Line.run`."""
        try:
            step = next(steps)
            while True:
                if step is None:
                    step = steps.send(await self.receive())
                else:
                    await self.send(step)
                    step = steps.send(b"")
        except StopIteration as end:
            result: Result = end.value
            return result

    async def send(self, data: bytes) -> None:
        """Send everything."""
        try:
            with anyio.fail_after(self._timeout_s):
                await self._stream.send(data)
        except _FAULTS as error:
            raise _unreachable(error, self._where) from error

    async def receive(self) -> bytes:
        """Return what comes next; empty at the end."""
        try:
            with anyio.fail_after(self._timeout_s):
                return await self._stream.receive(_RECEIVE_BYTES)
        except anyio.EndOfStream:
            return b""
        except _FAULTS as error:
            raise _unreachable(error, self._where) from error

    async def aclose(self) -> None:
        """The connection is closed."""
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(self._stream)


_FAULTS: Final = (
    OSError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
)


def _unreachable(error: BaseException, where: str) -> ClientUnreachableError:
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        words = "no answer in time"
    return ClientUnreachableError(f"the gateway cannot be reached: {words}"[:200], where=where)
