"""One connection to a gateway: blocking, or on anyio; each drives the same generators.

Source: architecture, rule 2.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from luxrelay.client.exchange import Endpoint, Steps
from luxrelay.client.waiting import Patience, addresses_of
from luxrelay.errors import ClientUnreachableError

Result = TypeVar("Result")
_RECEIVE_BYTES: Final = 64 * 1024


class Line:
    """A blocking connection."""

    def __init__(self, stream: socket.socket, where: str, patience: Patience) -> None:
        """Use an open socket."""
        self._stream = stream
        self._where = where
        self.patience = patience
        """How long the node is waited for."""

    @classmethod
    def open(cls, endpoint: Endpoint, timeout_s: float, tls: ssl.SSLContext | None) -> Line:
        """Return an open connection.

        Raises:
            ClientUnreachableError: there is nobody, or TLS does not come about.

        """
        where = endpoint.place
        patience = Patience(timeout_s, where)
        stream: socket.socket | None = None
        try:
            stream = _dialled(endpoint, patience)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.tls:
                patience.begin("the handshake of TLS")
                context = tls or ssl.create_default_context()
                stream.settimeout(patience.waits())
                stream = context.wrap_socket(stream, server_hostname=endpoint.host)
        except BaseException as error:
            if stream is not None:
                stream.close()
            if isinstance(error, TimeoutError):
                raise patience.late() from error
            if isinstance(error, OSError | ValueError):
                raise _unreachable(error, where) from error
            raise
        return cls(stream, where, patience)

    def run(self, steps: Steps[Result]) -> Result:
        """Return what the steps return.

        Raises:
            ClientUnreachableError: the connection failed or was silent for too long.

        """
        self.patience.begin("the answer")
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
        self._stream.settimeout(self.patience.waits(len(data)))
        try:
            self._stream.sendall(data)
        except TimeoutError as error:
            raise self.patience.late() from error
        except OSError as error:
            raise _unreachable(error, self._where) from error
        self.patience.moved(len(data))

    def receive(self) -> bytes:
        """Return what comes next; empty at the end."""
        self._stream.settimeout(self.patience.waits())
        try:
            data = self._stream.recv(_RECEIVE_BYTES)
        except TimeoutError as error:
            raise self.patience.late() from error
        except OSError as error:
            raise _unreachable(error, self._where) from error
        self.patience.moved(len(data))
        return data

    def close(self) -> None:
        """The connection is closed; whoever waits for it in another thread is woken."""
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._stream.close()


def _dialled(endpoint: Endpoint, patience: Patience) -> socket.socket:
    """Return a connection with the first address of a name that takes one; all share a time."""
    fault: OSError = OSError("the name stands for no address")
    found = addresses_of(endpoint.host, endpoint.port, patience.waits())
    patience.moved(0)
    for family, kind, protocol, _, address in found:
        stream = socket.socket(family, kind, protocol)
        try:
            stream.settimeout(patience.waits())
            stream.connect(address)
        except BaseException as error:
            stream.close()
            if not isinstance(error, OSError):
                raise
            fault = error
        else:
            return stream
        finally:
            patience.moved(0)
    raise fault


class AsyncLine:
    """A connection on asyncio or trio."""

    def __init__(self, stream: ByteStream, where: str, patience: Patience) -> None:
        """Use an open stream."""
        self._stream = stream
        self._where = where
        self.patience = patience
        """How long the node is waited for."""

    @classmethod
    async def open(
        cls, endpoint: Endpoint, timeout_s: float, tls: ssl.SSLContext | None
    ) -> AsyncLine:
        """Return an open connection.

        Raises:
            ClientUnreachableError: there is nobody, or TLS does not come about.

        """
        where = endpoint.place
        patience = Patience(timeout_s, where)
        stream: ByteStream | None = None
        try:
            stream = await _dialled_async(endpoint, patience)
            if endpoint.tls:
                patience.begin("the handshake of TLS")
                context = tls or ssl.create_default_context()
                with anyio.fail_after(patience.waits()):
                    stream = await TLSStream.wrap(
                        stream,
                        hostname=endpoint.host,
                        ssl_context=context,
                        standard_compatible=False,
                    )
        except BaseException as error:
            if stream is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.aclose_forcefully(stream)
            if isinstance(error, TimeoutError):
                raise patience.late() from error
            if isinstance(error, (*_FAULTS, ValueError)):
                raise _unreachable(error, where) from error
            raise
        return cls(stream, where, patience)

    async def run(self, steps: Steps[Result]) -> Result:
        """Return what the steps return; errors are those of `Line.run`."""
        self.patience.begin("the answer")
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
            with anyio.fail_after(self.patience.waits(len(data))):
                await self._stream.send(data)
        except TimeoutError as error:
            raise self.patience.late() from error
        except _FAULTS as error:
            raise _unreachable(error, self._where) from error
        self.patience.moved(len(data))

    async def receive(self) -> bytes:
        """Return what comes next; empty at the end."""
        try:
            with anyio.fail_after(self.patience.waits()):
                data = await self._stream.receive(_RECEIVE_BYTES)
        except anyio.EndOfStream:
            return b""
        except TimeoutError as error:
            raise self.patience.late() from error
        except _FAULTS as error:
            raise _unreachable(error, self._where) from error
        self.patience.moved(len(data))
        return data

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
    return ClientUnreachableError(f"the gateway cannot be reached: {words}"[:200], where=where)


async def _dialled_async(endpoint: Endpoint, patience: Patience) -> ByteStream:
    left_s = patience.waits()
    found = await in_background(addresses_of, endpoint.host, endpoint.port, left_s)
    patience.moved(0)
    fault: OSError = OSError("the name stands for no address")
    for *_, address in found:
        try:
            with anyio.fail_after(patience.waits()):
                scope = f"%{address[3]}" if len(address) > 3 and address[3] else ""
                return await anyio.connect_tcp(address[0] + scope, address[1])
        except OSError as error:
            fault = error
        finally:
            patience.moved(0)
    raise fault


async def in_background(call: Callable[..., Result], *values: Any) -> Result:
    """Return what a blocking call returns; a thread of its own does it, a daemon.

    Whoever is cancelled leaves the call to itself, and it does not hold the end of the program, as
    a worker thread of anyio would.
    """
    found: list[tuple[Result | None, BaseException | None]] = []
    ended = anyio.Event()
    token = anyio.lowlevel.current_token()

    def work() -> None:
        try:
            found.append((call(*values), None))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            found.append((None, error))
        with suppress(RuntimeError):  # the loop is over: nobody waits
            anyio.from_thread.run_sync(ended.set, token=token)

    threading.Thread(target=work, name="luxrelay-call", daemon=True).start()
    await ended.wait()
    result, fault = found[0]
    if fault is not None:
        raise fault
    return result  # type: ignore[return-value]  # it is there where no error is
