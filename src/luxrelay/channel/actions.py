"""Actions of scalable data sync for its driver.

Source: SDS; decisions C2, C6.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from luxrelay.channel.wire import HistoryEntry


class Purpose(Enum):
    """Why a message goes to the network."""

    FIRST = 0
    """A content message for the first time."""
    AGAIN = 1
    """A content message that nobody has acknowledged."""
    SYNC = 2
    """What we have, and what we miss."""
    EPHEMERAL = 3
    """A message that nobody keeps."""
    ANSWER = 4
    """A message that somebody asked for."""


@dataclass(slots=True)
class Broadcast:
    """Send bytes; for `FIRST` and `AGAIN` then call `Sds.dispatched`."""

    message_id: str
    """Which message."""
    data: bytes
    """Its bytes."""
    purpose: Purpose
    """Why."""
    attempt: int = 0
    """0 for the first transmission, then the number of the retransmission."""


@dataclass(slots=True)
class DeliverMessage:
    """Hand content to the layer above: everything it depends on went before, or is lost."""

    message_id: str
    """Which message."""
    sender_id: str
    """Whose."""
    content: bytes
    """The segment; of an ephemeral message the payload."""
    ephemeral: bool = False
    """It was an ephemeral message."""


@dataclass(slots=True)
class Acknowledged:
    """Another participant has delivered a message of ours."""

    message_id: str
    """Which message."""


@dataclass(slots=True)
class Exhausted:
    """Nobody has acknowledged a message of ours after all retransmissions."""

    message_id: str
    """Which message."""


@dataclass(slots=True)
class Lost:
    """A message that others depend on did not come in time; they are delivered without it."""

    message_id: str
    """Which message."""
    sender_id: str
    """Whose, or empty when nobody said."""


@dataclass(slots=True)
class Fetch:
    """Get a message from a store and feed it to `Sds.receive`; call `Sds.fetched` in any case."""

    entry: HistoryEntry
    """Which message; its hint is set."""


Action = Broadcast | DeliverMessage | Acknowledged | Exhausted | Lost | Fetch
