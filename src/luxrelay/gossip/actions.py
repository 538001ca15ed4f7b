"""Actions of the router for its driver, in the order of `GossipRouter.drain`.

Slotted and not frozen: they are made for every message and read once (an eighth of the cost).

Source: LP-6420 §1.2, §4.2; decisions G2, G16, G21.
"""

from __future__ import annotations

from dataclasses import dataclass

from luxrelay.bus import MessageId
from luxrelay.gossip.envelope import PeerId, RelayMessage


@dataclass(slots=True, kw_only=True)
class Send:
    """Send one RPC to a peer."""

    peer: PeerId
    """To whom."""
    data: bytes
    """The serialized RPC without a length prefix; at most ``GossipParams.rpc_max`` bytes unless
    it holds a single longer message."""
    urgent: bool = False
    """Whether it holds no message, and goes before the messages that wait for the peer: what we
    decline must come before what is declined is sent (G39)."""


@dataclass(slots=True, kw_only=True)
class Validate:
    """Judge a message and tell the router with `GossipRouter.validated`."""

    token: int
    """Names this validation."""
    peer: PeerId
    """Who brought it first."""
    topic: str
    """Canonical topic; ``message.topic`` may be its alias (G5)."""
    message: RelayMessage
    """The envelope."""
    data: bytes
    """Its bytes as they arrived."""


@dataclass(slots=True, kw_only=True)
class Deliver:
    """Give an accepted message to the application: once per message id (G2)."""

    topic: str
    """Canonical topic it came on first."""
    data: bytes
    """Bytes of the envelope."""
    message_id: MessageId
    """Its id (LP-6420 §4.3)."""


@dataclass(slots=True, kw_only=True)
class Disconnect:
    """Close the connection; the router has forgotten the peer already."""

    peer: PeerId
    """Whom."""
    reason: str
    """For the log: what was wrong."""
    refuse_s: float = 0.0
    """Seconds for which the peer is not to be let in again; 0 when it may come back at once."""


@dataclass(slots=True, kw_only=True)
class Dial:
    """Connect to a peer that another one suggested; asked for with `GossipParams.peer_exchange`."""

    peer: PeerId
    """Whom the record is to be of."""
    record: bytes
    """Its signed peer record, unverified: the driver checks signature, peer id and addresses."""
    by: PeerId
    """Who suggested it."""


@dataclass(slots=True, kw_only=True)
class Discover:
    """Connect to peers that we are not connected with, chosen by chance; part of a rotation."""

    count: int
    """How many."""


@dataclass(slots=True, kw_only=True)
class Echo:
    """A peer has shown that it holds messages of ours: it sent or announced them to us."""

    peer: PeerId
    """Who."""
    message_ids: tuple[MessageId, ...]
    """Which ones, each once; a peer may show the same again later."""


Action = Send | Validate | Deliver | Disconnect | Dial | Discover | Echo
