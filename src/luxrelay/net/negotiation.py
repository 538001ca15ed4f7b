"""Which protocol a connection or stream speaks, agreed on in bounded lines.

The library reads a line of multistream-select by the length the peer announces, up to 2^64 bytes,
on the raw port before anybody has proved anything. Here a line has at most `LINE_MAX` bytes. And
where `new_host()` offers SECIO and plaintext beside Noise, and Mplex beside Yamux, there is exactly
one choice of each.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from libp2p.abc import IMultiselectCommunicator, IMuxedConn, IRawConnection, ISecureConn
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import (
    MultiselectClientError,
    MultiselectCommunicatorError,
    MultiselectError,
)
from libp2p.protocol_muxer.multiselect import Multiselect
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.transport.exceptions import MuxerUpgradeFailure, SecurityUpgradeFailure
from libp2p.transport.upgrader import TransportUpgrader

LINE_MAX: Final = 1024
"""Bytes of one multistream-select line, the newline included."""


LINES_MAX: Final = 64
"""Lines of one side in one negotiation, where no `NetConfig` says it."""


_NOT_SPOKEN: Final = "na"


class UnspokenError(MultiselectClientError):
    """The peer said that it speaks none of the protocols; silence and cut lines say nothing."""


class Duplex(Protocol):
    """What a line is read from and written to: a raw connection, a secure one, or a stream."""

    async def read(self, n: int | None = None) -> bytes:
        """Up to ``n`` bytes, empty at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """All of ``data`` is on its way."""
        ...


class LineCommunicator(IMultiselectCommunicator):
    """Reads and writes multistream-select lines and never more than a line, nor without end."""

    def __init__(self, duplex: Duplex, lines_max: int = LINES_MAX) -> None:
        self._duplex = duplex
        self._lines_max = self._lines_left = lines_max
        self.declined = False
        """Whether the last line said that the peer does not speak what it was asked for."""

    async def write(self, msg_str: str) -> None:
        """The line is on its way.

        Raises:
            MultiselectCommunicatorError: It is not.

        """
        line = msg_str.encode() + b"\n"
        length = len(line)
        prefix = bytes([length]) if length < 0x80 else bytes([length & 0x7F | 0x80, length >> 7])
        try:
            await self._duplex.write(prefix + line)
        except BaseLibp2pError as error:
            raise MultiselectCommunicatorError("the line cannot be sent") from error

    async def read(self) -> str:
        """The peer's next line without its newline.

        Raises:
            MultiselectCommunicatorError: The peer sent no line, too long a one, or too many.

        """
        self._lines_left -= 1
        if self._lines_left < 0:
            raise MultiselectCommunicatorError(f"more than {self._lines_max} lines")
        length = (await self._exactly(1))[0]
        if length & 0x80:
            high = (await self._exactly(1))[0]
            length = length & 0x7F | high << 7
        if not 0 < length <= LINE_MAX:
            raise MultiselectCommunicatorError(f"a line of {length} bytes")
        line = await self._exactly(length)
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise MultiselectCommunicatorError("the line is no text") from error
        if not text.endswith("\n"):
            raise MultiselectCommunicatorError("the line has no end")
        self.declined = text[:-1] == _NOT_SPOKEN
        return text[:-1]

    async def _exactly(self, count: int) -> bytes:
        data = b""
        try:
            while len(data) < count:
                chunk = await self._duplex.read(count - len(data))
                if not chunk:
                    raise MultiselectCommunicatorError("the peer left in the middle of a line")
                data += chunk
        except BaseLibp2pError as error:
            raise MultiselectCommunicatorError("the line cannot be read") from error
        return data


async def select_protocol(
    duplex: Duplex, protocols: Sequence[str], timeout_s: float, lines_max: int = LINES_MAX
) -> str:
    """The first of ``protocols`` that the peer agreed to speak.

    Raises:
        UnspokenError: It said that it speaks none of them.
        MultiselectClientError: It did not say so in time, or what it said makes no sense.

    """
    client = MultiselectClient()
    names = [TProtocol(protocol) for protocol in protocols]
    lines = LineCommunicator(duplex, lines_max)
    try:
        return str(await client.select_one_of(names, lines, math.ceil(timeout_s)))
    except MultiselectClientError as error:
        if lines.declined:
            raise UnspokenError(str(error)) from error
        raise


class MuxerFactory(Protocol):
    """Makes the multiplexer of a secured connection."""

    def __call__(self, secured: ISecureConn, peer_id: ID) -> IMuxedConn:
        """A multiplexer that has not started yet."""
        ...


async def _at_once(_: IRawConnection) -> None:
    """Nobody is made to wait."""


class NoiseYamuxUpgrader(TransportUpgrader):
    """Turns a raw connection into a Noise session, and that into streams; nothing else is offered.

    Source: G33.
    """

    def __init__(
        self,
        noise: NoiseTransport,
        muxer: MuxerFactory,
        timeout_s: float,
        lines_max: int = LINES_MAX,
    ) -> None:
        super().__init__({}, {})
        self._noise = noise
        self._muxer = muxer
        self._timeout_s = timeout_s
        self._lines_max = lines_max
        self.before_noise: Callable[[IRawConnection], Awaitable[None]] = _at_once
        """Waits until the arithmetic of an inbound handshake may be done."""

    async def _agree(self, duplex: Duplex, protocol: str, *, initiator: bool) -> None:
        if initiator:
            await select_protocol(duplex, [protocol], self._timeout_s, self._lines_max)
            return
        server = Multiselect({TProtocol(protocol): None})
        lines = LineCommunicator(duplex, self._lines_max)
        await server.negotiate(lines, math.ceil(self._timeout_s))

    async def upgrade_security(
        self, raw_conn: IRawConnection, is_initiator: bool, peer_id: ID | None = None
    ) -> ISecureConn:
        """The connection is secured and its other end is ``peer_id`` when we dialled.

        Raises:
            SecurityUpgradeFailure: The peer speaks no Noise, or is somebody else.

        """
        try:
            await self._agree(raw_conn, NOISE, initiator=is_initiator)
            if not is_initiator:
                await self.before_noise(raw_conn)
                return await self._noise.secure_inbound(raw_conn)
            if peer_id is None:
                raise SecurityUpgradeFailure("a dial needs the peer id it expects")
            secured = await self._noise.secure_outbound(raw_conn, peer_id)
        except (MultiselectError, MultiselectClientError) as error:
            raise SecurityUpgradeFailure("the peer does not speak Noise") from error
        if secured.get_remote_peer() != peer_id:
            await secured.close()
            raise SecurityUpgradeFailure(f"Peer ID mismatch: expected {peer_id}")
        return secured

    async def upgrade_connection(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        """The connection carries streams.

        Raises:
            MuxerUpgradeFailure: The peer does not speak Yamux.

        """
        try:
            await self._agree(conn, YAMUX, initiator=conn.is_initiator)
        except (MultiselectError, MultiselectClientError) as error:
            raise MuxerUpgradeFailure("the peer does not speak Yamux") from error
        return self._muxer(conn, peer_id)
