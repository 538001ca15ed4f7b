"""Protocol lines: short, in bounded memory, or an error of the library's own kind."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from libp2p.custom_types import TProtocol
from libp2p.protocol_muxer.exceptions import (
    MultiselectClientError,
    MultiselectCommunicatorError,
    MultiselectError,
)
from libp2p.protocol_muxer.multiselect import Multiselect

from luxrelay.net.negotiation import LINE_MAX, LINES_MAX, LineCommunicator, select_protocol


class Pipe:
    """One end of a memory stream, in the library's manner of reading and writing."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream

    async def read(self, n: int | None = None) -> bytes:
        """Up to ``n`` bytes."""
        return bytes(await self.stream.receive_some(n))

    async def write(self, data: bytes) -> None:
        """All of it."""
        await self.stream.send_all(data)


def pipes() -> tuple[Pipe, Pipe]:
    """Two ends."""
    near, far = trio.testing.memory_stream_pair()
    return Pipe(near), Pipe(far)


async def line_from(data: bytes) -> str:
    """The line in front of the bytes."""
    near, far = pipes()
    await far.write(data)
    await far.stream.aclose()
    return await LineCommunicator(near).read()


@pytest.mark.parametrize("text", ["/noise", "", "ls", "x" * (LINE_MAX - 1)])
async def test_line_round_trip(text: str) -> None:
    """A line up to the maximum arrives as it was sent."""
    near, far = pipes()

    await LineCommunicator(far).write(text)

    assert await LineCommunicator(near).read() == text


@pytest.mark.trial
async def test_a_negotiation_without_end_is_ended() -> None:
    """After so many proposals, each of which was answered, no further line is read."""
    near, far = pipes()
    server, reader, writer = Multiselect(), LineCommunicator(near), LineCommunicator(far)
    await writer.write("/multistream/1.0.0")
    for _ in range(LINES_MAX):
        await writer.write("/foo")
    began = trio.current_time()

    with pytest.raises(MultiselectError):
        await server.negotiate(reader, 5)
    assert trio.current_time() - began < 1.0


async def test_take_nothing_after_line() -> None:
    """Bytes after the line are left for the protocol that was agreed on."""
    near, far = pipes()
    await LineCommunicator(far).write("/noise")
    await far.write(b"first bytes of the handshake")

    await LineCommunicator(near).read()

    assert await near.read(100) == b"first bytes of the handshake"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x81\x08" + b"x" * 1025,
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x03ab",
        b"\x03abc",
        b"\x03\xff\xfe\n",
    ],
)
async def test_refuse_bad_line(data: bytes) -> None:
    """No line, an empty, overlong or torn one, one without end or that is no text is refused."""
    with pytest.raises(MultiselectCommunicatorError):
        await line_from(data)


@given(st.binary(max_size=64))
def test_nothing_but_communicator_errors(data: bytes) -> None:
    """Any bytes are a line or the communicator's own error."""

    async def main() -> None:
        try:
            await line_from(data)
        except MultiselectCommunicatorError:
            return

    trio.run(main)


async def test_agree_on_protocol() -> None:
    """The library's server and our client agree, each over bounded lines."""
    near, far = pipes()
    server = Multiselect({TProtocol("/a/1"): None})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.negotiate, LineCommunicator(far), 5)
        await select_protocol(near, ["/a/1"], 5.0)


async def test_refuse_protocol_nobody_speaks() -> None:
    """A protocol the other side does not have is an error, within the time allowed."""
    near, far = pipes()
    server = Multiselect({TProtocol("/a/1"): None})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.negotiate, LineCommunicator(far), 50)
        with pytest.raises(MultiselectClientError):
            await select_protocol(near, ["/b/1"], 5.0)
        nursery.cancel_scope.cancel()


async def test_give_up_on_silence() -> None:
    """A peer that says nothing is given up after the time allowed."""
    near, _far = pipes()
    began = trio.current_time()

    with pytest.raises(MultiselectClientError):
        await select_protocol(near, ["/a/1"], 5.0)

    assert trio.current_time() - began == pytest.approx(5.0)
