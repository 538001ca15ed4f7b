"""Whether a connection still has somebody at its other end: a ping, and a sign of life in time."""

from __future__ import annotations

import struct
from typing import Final

import trio
from libp2p.abc import IMuxedConn
from libp2p.io.exceptions import IOException
from libp2p.stream_muxer.yamux.yamux import FLAG_SYN, TYPE_PING, YAMUX_HEADER_FORMAT

from luxrelay.net.yamux import GuardedYamux

_HEADER: Final = struct.Struct(YAMUX_HEADER_FORMAT)
_POLL_S: Final = 0.02
_VALUE: Final = 0x4C585250
"""What the ping carries; the answer is not told from any other frame."""


async def answers(muxed: IMuxedConn, seconds: float) -> bool:
    """Whether the peer sends any frame within so long of being pinged.

    The multiplexer counts how often the peer has missed a ping, and starts at zero with each frame.
    """
    if not isinstance(muxed, GuardedYamux) or muxed.is_closed:
        return False
    muxed._misses = max(1, muxed._misses)  # noqa: SLF001 - the one number that tells silence
    with trio.move_on_after(seconds):
        try:
            await muxed.write_frame(_HEADER.pack(0, TYPE_PING, FLAG_SYN, 0, _VALUE))
        except IOException:
            return False
        while muxed._misses:  # noqa: SLF001 - set by the reader of the connection
            if muxed.is_closed:
                return False
            await trio.sleep(_POLL_S)
        return True
    return False
