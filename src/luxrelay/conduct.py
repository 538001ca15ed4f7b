"""The causes for which a peer, a stream or an answer is given up, and which of them are misconduct.

The rule: what a network could have done by itself is nobody's fault. A stream that ended early, a
frame that was cut, a deadline that passed and a byte that nothing authenticates cost the connection
or the request, and nothing else. Only what came whole, over an authenticated connection, and is
wrong counts against its sender: a ban, a score, a penalty, a word in the log.

Source: decision G38.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Cause(Enum):
    """Why a peer, a stream or an answer was given up; the value is what people read."""

    ENDED = "the connection ended"
    CLOSED = "it was closed from this side"
    NO_PONG = "it answered no ping"
    NOTHING_TAKEN = "it took no bytes for too long"
    QUEUE_FULL = "too much waited for it"
    HELLO_LATE = "its hello did not come whole in time"
    NO_HELLO = "it does not say hello"
    NO_GOSSIP = "it takes no gossip"
    FRAME_CUT = "the stream ended inside a frame"
    PROMISE_STALLED = "it sent nothing since it was asked for what it announced"
    ANSWER_DAMAGED = "an answer over a plain connection does not hold"

    NOT_YAMUX = "it sent frames that are no Yamux"
    HELLO_UNREADABLE = "its hello cannot be read"
    FOREIGN = "it is of another network or version"
    SCORE = "its score in gossip is too low"
    PROMISE_BROKEN = "it announced, was asked, sent other things and not that"
    ANSWER_FORGED = "an answer over an authenticated connection does not hold"
    BANNED = "it is banned"

    @property
    def misconduct(self) -> bool:
        """Whether no network could have caused it."""
        return self not in _NETWORK


_NETWORK: Final = frozenset(
    {
        Cause.ENDED,
        Cause.CLOSED,
        Cause.NO_PONG,
        Cause.NOTHING_TAKEN,
        Cause.QUEUE_FULL,
        Cause.HELLO_LATE,
        Cause.NO_GOSSIP,
        Cause.FRAME_CUT,
        Cause.PROMISE_STALLED,
        Cause.ANSWER_DAMAGED,
    }
)
