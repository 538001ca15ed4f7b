"""A gRPC subscription as values: its request and its events.

Source: user-01, user-02; P23, J6; docs/reference/relay-sync.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from luxrelay.bus import ContentId, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import SyncArgumentError
from luxrelay.sync.messages import WireMessage

SENDERS_MAX = 1024
"""Senders that one subscription names."""
RATE_MAX = 1_000_000
"""Highest rate that is named, messages a second."""
BLOBS = ("held", "later", "none")
"""Payloads that are here when a message is told, also those that come later, or none."""
NAMESPACES_MAX = 64
"""Namespaces in one subscription."""
POSITIONS_MAX = 4096
"""Positions that one subscription begins with."""
GAP_WAIT_MS_MAX = 600_000
"""Longest that a missing message is waited for, milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeWanted:
    """What to follow.

    Raises:
        SyncArgumentError: a value is out of range.

    """

    namespaces: Sequence[NamespaceId]
    """Namespaces, 20 bytes each."""
    after: int | None = 0
    """Begin behind this sequence in every lane; None for what comes from now on."""
    lanes: bool = True
    """With the lanes of the namespaces (J6)."""
    positions: Mapping[NamespaceId, int] = field(default_factory=dict)
    """Begin behind these instead: where an earlier stream stood."""
    gap_wait_ms: int | None = None
    """How long to wait for a missing message, milliseconds; the node's choice when None."""
    ordered: bool = False
    """As a validator reads: exactly the next sequence, not earlier in time, within the policy, one
    message a sequence, and no hole passed (LP-6411 §2.2, §2.3, §3.2; H16, H18)."""
    senders: Sequence[bytes] = ()
    """Addresses of 20 bytes or key fields; only their messages are told. Empty for all."""
    max_rate: int = 0
    """Messages a second; what is more is told later. 0 for all."""
    blobs: str = "held"
    """One of `BLOBS`; with ``later`` a message is told again when its blob comes."""

    def __post_init__(self) -> None:
        """Refuse what no node takes."""
        if not 0 < len(self.namespaces) <= NAMESPACES_MAX:
            raise _wrong("namespaces", f"give 1 to {NAMESPACES_MAX}")
        if len(self.positions) > POSITIONS_MAX:
            raise _wrong("positions", f"give {POSITIONS_MAX} at most")
        if any(len(each) != c.NAMESPACE_BYTES for each in (*self.namespaces, *self.positions)):
            raise _wrong("namespaces", f"an id has {c.NAMESPACE_BYTES} bytes")
        for seq in (self.after or 0, *self.positions.values()):
            if not 0 <= seq <= c.MAX_U64:
                raise _wrong("after", "a sequence has 64 bits")
        if len(self.senders) > SENDERS_MAX:
            raise _wrong("senders", f"give {SENDERS_MAX} at most")
        if not 0 <= self.max_rate <= RATE_MAX:
            raise _wrong("max_rate", f"0 to {RATE_MAX}")
        if self.blobs not in BLOBS:
            raise _wrong("blobs", f"one of {', '.join(BLOBS)}")
        if self.gap_wait_ms is not None and not 0 <= self.gap_wait_ms <= GAP_WAIT_MS_MAX:
            raise _wrong("gap_wait_ms", f"0 to {GAP_WAIT_MS_MAX}")


@dataclass(frozen=True, slots=True)
class Followed:
    """A message; nothing of it has been verified."""

    message: WireMessage
    parent: NamespaceId
    """The namespace that the header's is a lane of, or the header's own."""
    late: bool = False
    """It comes out of order: into a gap that was told, or as another candidate of a slot."""
    regressed: bool = False
    """Its timestamp is before that of the message before it (LP-6411 §2.3, H13)."""
    completes: bool = False
    """It was told before without its blob."""


@dataclass(frozen=True, slots=True)
class FollowedGap:
    """Sequences that will not come in order."""

    namespace_id: NamespaceId
    first: int
    last: int
    """Inclusive."""
    expired: bool
    """The node holds them no longer; otherwise it has not got them."""
    coming: bool = False
    """A catch-up of the node may bring them, out of order; what it does not is told again."""


@dataclass(frozen=True, slots=True)
class FollowedLive:
    """Everything that the node held is told; what follows is new."""

    positions: Mapping[NamespaceId, int] = field(default_factory=dict)
    not_carried: frozenset[NamespaceId] = frozenset()
    """Of what is followed, the namespaces that the node takes nothing of, as far as it knows."""


@dataclass(frozen=True, slots=True)
class FollowedDropped:
    """What the node did not tell because a bound was reached."""

    lanes: int
    late: int
    blobs: int = 0
    """Messages told without their blobs that will not be told again with them."""


@dataclass(frozen=True, slots=True)
class FollowedBeyond:
    """The position is above everything that the node holds: what comes up to it is not told."""

    namespace_id: NamespaceId
    held: int
    """The node's latest sequence; 0 for nothing."""
    position: int


@dataclass(frozen=True, slots=True)
class FollowedRefused:
    """A message that an ordered view does not take; another one may have its sequence still."""

    namespace_id: NamespaceId
    seq: int
    content_id: ContentId
    """32 bytes (J11)."""
    code: int
    """Of the verdict."""
    reason: str


@dataclass(frozen=True, slots=True)
class FollowedWaiting:
    """Sequences that an ordered view waits for; it goes no further without them."""

    namespace_id: NamespaceId
    first: int
    last: int
    """Inclusive."""


FollowEvent = (
    Followed
    | FollowedGap
    | FollowedLive
    | FollowedDropped
    | FollowedBeyond
    | FollowedRefused
    | FollowedWaiting
)


def _wrong(where: str, hint: str) -> SyncArgumentError:
    return SyncArgumentError("a subscription that no node takes", where=where, hint=hint)
