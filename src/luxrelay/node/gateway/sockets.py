"""One WebSocket after its handshake: whole messages in, batches of messages out, all bounded.

wsproto speaks the frames. No extension is offered, so nothing is inflated. A message is collected
up to ``body_bytes_max`` (``asking_bytes_max`` where its sender may not publish), within
``request_ms``, and counted among all that are held; a peer that takes nothing for ``stall_ms``, or
answers no ping for two ``ping_ms``, is let go.

Source: RFC 6455; ADR 0004.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio
from wsproto.connection import Connection, ConnectionType
from wsproto.events import (
    BytesMessage,
    CloseConnection,
    Event,
    Message,
    Ping,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError

from luxrelay.errors import GatewayError
from luxrelay.node.gateway.bounds import Bodies
from luxrelay.node.gateway.calls import HttpCaller, Scope, Stream
from luxrelay.node.gateway.config import GatewayConfig
from luxrelay.node.gateway.http_auth import Rates
from luxrelay.node.gateway.tokens import RELOAD_S
from luxrelay.sync.cost import Price

RECEIVE_BYTES: Final = 64 * 1024
"""Bytes sent at once."""
PARSED_BYTES: Final = 8 * 1024
"""Bytes received and parsed at once: the loop does nothing else meanwhile."""
FRAME_BYTES_MIN: Final = 6
"""Bytes of the smallest frame from a client: two and a mask."""
FRAGMENTS_MAX: Final = 4096
"""Pieces in which one message may come."""
FRAGMENT_BYTES: Final = 1024
"""A message may have one piece more for so many bytes of it."""
GOODBYE_S: Final = 1.0
"""Seconds for a last close frame."""

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
INTERNAL: Final = 1011
"""Something that nobody expected; the node's log has it."""
TOO_LARGE: Final = 1009
CROWDED: Final = 1013
"""A socket without token gave its place to a newcomer, or all messages together are too much."""
REFUSED: Final = 4400
"""The subscription cannot be; the problem was sent before."""
REVOKED: Final = 4401
"""The token that opened it is revoked or has expired."""
SLOW: Final = 4408
"""The subscriber took nothing for too long."""


class SocketOverError(Exception):
    """The WebSocket is closed; ``code`` says how."""

    def __init__(self, code: int) -> None:
        """Keep the close code."""
        super().__init__(code)
        self.code = code


class WebSocket:
    """A server's side of one WebSocket; one task receives, any task sends."""

    def __init__(
        self,
        stream: Stream,
        received: bytes,
        config: GatewayConfig,
        caller: HttpCaller,
        *,
        rates: Rates | None = None,
        bodies: Bodies | None = None,
    ) -> None:
        """Take over a caller's stream after the 101; ``received`` came behind the request.

        What comes is charged to the caller's cost in ``rates`` before it is parsed, and counted in
        ``bodies`` until the next message is asked for, or `release` is called.
        """
        self._rates = rates
        self._bodies = bodies or Bodies(config.bodies_bytes_max)
        self._held = 0
        """Bytes counted there."""
        publishes = Scope.PUBLISH in caller.scopes
        self._bytes_max = (
            config.body_bytes_max
            if publishes
            else min(config.body_bytes_max, config.asking_bytes_max)
        )
        self._stream = stream
        self._caller = caller
        self._config = config
        self._frames = Connection(ConnectionType.SERVER, trailing_data=received)
        self._charged = self._parsed = 0
        """Frames that the last bytes may hold, and that were found in them."""
        self._sending = trio.Lock()
        self._answered = trio.current_time()
        self.sent_bytes = 0
        """Bytes sent."""

    def release(self) -> None:
        """Count the last message no longer."""
        self._bodies.let_go(self._held, known=bool(self._caller.name))
        self._held = 0

    async def receive(self) -> str | bytes:
        """Return the next whole message; it may take ``request_ms`` from its first byte.

        Raises:
            SocketOverError: the peer closed, broke the protocol, or sent too much or too slowly.

        """
        self.release()
        with trio.CancelScope() as scope:
            return await self._whole(scope)
        await self.close(SLOW, f"a message of over {self._config.request_ms} ms")
        raise SocketOverError(SLOW)

    async def _whole(self, scope: trio.CancelScope) -> str | bytes:
        parts: list[str | bytes] = []
        size = fragments = 0
        while True:
            event = await self._event()
            if not isinstance(event, Message):
                continue
            if not fragments:
                scope.deadline = trio.current_time() + self._config.request_ms / 1000
            # A frame without content costs its sender two bytes and us a list entry.
            fragments += 1
            if fragments > FRAGMENTS_MAX + size // FRAGMENT_BYTES:
                await self.close(TOO_LARGE, f"a message of over {FRAGMENTS_MAX} fragments")
                raise SocketOverError(TOO_LARGE)
            size += len(event.data)
            if size > self._bytes_max:
                await self.close(TOO_LARGE, f"a message above {self._bytes_max} bytes")
                raise SocketOverError(TOO_LARGE)
            await self._hold(len(event.data))
            parts.append(event.data)
            if event.message_finished:
                if isinstance(event, TextMessage):
                    return "".join(map(str, parts))
                return b"".join(part for part in parts if isinstance(part, bytes | bytearray))

    async def _hold(self, size: int) -> None:
        try:
            self._bodies.hold(size, known=bool(self._caller.name))
        except GatewayError as error:
            await self.close(CROWDED, f"{error.code}: {error.what}; send it later")
            raise SocketOverError(CROWDED) from error
        self._held += size

    async def _event(self) -> Event:
        # One at a time: what stands before a close frame in the same segment is answered.
        while (event := next(self._frames.events(), None)) is None:
            if self._rates is not None:
                self._rates.settle(self._caller, (self._parsed - self._charged) * Price.FRAME)
            self._parsed = self._charged = 0
            await self._read()
        self._parsed += 1
        self._answered = trio.current_time()
        if isinstance(event, Ping):
            if self._rates is not None:
                self._rates.settle(self._caller, Price.PONG)
            await self._reply(event)
        elif isinstance(event, CloseConnection):
            # Another task that finds the socket closed must not cancel the answer.
            with trio.move_on_after(GOODBYE_S) as scope:
                scope.shield = True
                await self._reply(event)
            raise SocketOverError(int(event.code))
        return event

    async def _read(self) -> None:
        """Read and parse a little; who costs too much is read from no further until it may."""
        data = await self._stream.receive_some(PARSED_BYTES)
        if not data:
            raise SocketOverError(1006)
        self._charged = 1 + len(data) // FRAME_BYTES_MIN
        if self._rates is not None:
            await self._rates.patience(self._caller, self._charged * Price.FRAME)
        self._frames.receive_data(data)

    async def _reply(self, event: Ping | CloseConnection) -> None:
        """Answer a control frame; one that came before a close in the same segment may not be."""
        try:
            data = self._frames.send(event.response())
        except LocalProtocolError:
            return
        await self._send(data)

    async def send(self, messages: Iterable[str | bytes]) -> None:
        """Send messages, in one write.

        Raises:
            SocketOverError: the peer takes nothing, or the socket is closed.

        """
        try:
            data = b"".join(
                self._frames.send(
                    TextMessage(data=each) if isinstance(each, str) else BytesMessage(data=each)
                )
                for each in messages
            )
        except LocalProtocolError as error:
            raise SocketOverError(NORMAL) from error
        await self._send(data)

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            async with self._sending:
                for start in range(0, len(view), RECEIVE_BYTES):
                    with trio.fail_after(self._config.stall_ms / 1000):
                        await self._stream.send_all(view[start : start + RECEIVE_BYTES])
        except trio.TooSlowError as error:
            raise SocketOverError(SLOW) from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise SocketOverError(1006) from error
        self.sent_bytes += len(data)

    async def keep_alive(self) -> None:
        """Ping for ever, and look whether the caller's token still holds.

        Raises:
            SocketOverError: nothing came for two ``ping_ms``, or the token holds no longer.

        """
        pause_s = self._config.ping_ms / 1000
        ping_at = trio.current_time() + pause_s
        while True:
            await trio.sleep(min(RELOAD_S, pause_s))
            if not self._caller.holds():
                await self.close(REVOKED, "gateway.token: the token is revoked or has expired")
                raise SocketOverError(REVOKED)
            now = trio.current_time()
            if now < ping_at:
                continue
            ping_at = now + pause_s
            if now - self._answered > 2 * pause_s:
                raise SocketOverError(SLOW)
            try:
                data = self._frames.send(Ping())
            except LocalProtocolError as error:
                raise SocketOverError(NORMAL) from error
            await self._send(data)

    async def close(self, code: int, reason: str) -> None:
        """Send a close frame if that is still possible, also while being cancelled."""
        with trio.move_on_after(GOODBYE_S) as scope:
            scope.shield = True
            try:
                frame = self._frames.send(CloseConnection(code=code, reason=reason[:100]))
                await self._send(frame)
            except (SocketOverError, LocalProtocolError):
                return
