"""Parameters of a channel: each number with unit, default and purpose.

Source: reliable-channel-api (type definitions); decisions C1 to C9.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from luxrelay.errors import ChannelArgumentError

if TYPE_CHECKING:
    from luxrelay.channel.pacing import ProofProvider, QuotaProvider
    from luxrelay.channel.state import Persistence


def _check(config: object, low: dict[str, float]) -> None:
    """Raise unless every number of ``config`` is at least 1, or what ``low`` says."""
    for each in fields(config):  # type: ignore[arg-type]
        value = getattr(config, each.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        least = low.get(each.name, 1)
        if value < least:
            raise ChannelArgumentError(
                f"{each.name} is {value}, at least {least} is needed",
                where=type(config).__name__,
            )


class SegmentRevision(Enum):
    """Which text of the segmentation specification the wire follows; never guessed (C4)."""

    B = "B"
    """The one that is as old as the channel's API: no length field."""
    C = "C"
    """The newest: carries the length, bounds the serialised segment."""


class Counting(Enum):
    """What uses up a message of the epoch (C3)."""

    FIRST_SEGMENT = "first_segment"
    """The first segment of each message, first transmission only, as the API's text has it."""
    EVERY_SEGMENT = "every_segment"
    """Everything that goes to the network, as relays that check RLN proofs count."""


class EncryptionPosition(Enum):
    """Where the encryption hook works (C1)."""

    OUTER = "outer"
    """On what SDS made of a segment: identities and acknowledgements are hidden too."""
    INNER = "inner"
    """On the segment: who lacks the key can still repair."""


class EventProfile(Enum):
    """What the final events are called (C2)."""

    SEED = "seed"
    """`sent` when every segment is acknowledged, else `send-error`."""
    CURRENT = "current"
    """`sent` when every segment is dispatched, then `delivered`, `delivery-error`, or
    `send-error`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentationConfig:
    """How payloads are cut and put together again."""

    enable_reed_solomon: bool = False
    """Add parity segments, so that some may be lost."""
    segment_size_bytes: int = 102_400
    """Longest segment as serialised (revision C) or its payload (revision B), bytes."""
    persistence: Persistence | None = None
    """Where partial messages are kept; None for the place of `SdsConfig`."""
    revision: SegmentRevision = SegmentRevision.C
    """The wire format; all participants must use the same."""
    parity_rate: float = 0.125
    """Parity segments for each data segment when they are enabled, 0 to 1."""
    segments_max: int = 256
    """Data and parity segments of one message together; a message above it is refused."""
    sets_max: int = 100
    """Messages partly received at once; the one that waited longest makes room."""
    buffered_bytes_max: int = 32 * 1024 * 1024
    """Bytes partly received at once; the one that waited longest makes room."""
    set_timeout_ms: int = 1_800_000
    """Time without a new segment after which a partial message is given up; three epochs, because
    a paced sender may pause for one between two segments."""
    completed_max: int = 10_000
    """Finished messages remembered, so that late segments do not begin them again."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        _check(self, {"parity_rate": 0.0, "segment_size_bytes": 192})
        if self.parity_rate > 1 or self.segments_max > 256:
            raise ChannelArgumentError(
                "parity_rate is above 1 or segments_max above 256", where="SegmentationConfig"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairConfig:
    """SDS-R: who asks for a missing message, who answers, and when."""

    enabled: bool = True
    """Ask and answer at all."""
    t_min_ms: int = 30_000
    """Earliest request after a message is missed."""
    t_max_ms: int = 120_000
    """Latest request, and latest answer."""
    response_groups: int = 1
    """Groups of which one answers; participants div 128, at least 1."""
    requests_per_message: int = 3
    """Requests attached to one message."""
    buffer_max: int = 1_000
    """Missing messages asked for, and requests to be answered, each; the furthest gives way."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        _check(self, {"t_min_ms": 0})
        if self.t_max_ms <= self.t_min_ms:
            raise ChannelArgumentError("t_max_ms is not above t_min_ms", where="RepairConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class SdsConfig:
    """Scalable data sync: acknowledgement, order, memory."""

    persistence: Persistence | None = None
    """Where state survives; None keeps it in memory, and a restart begins anew."""
    acknowledgement_timeout_ms: int = 5_000
    """Time to wait for an acknowledgement before sending again."""
    max_retransmissions: int = 5
    """Times a message is sent again before its delivery counts as failed; may be 0."""
    causal_history_size: int = 2
    """Newest messages of the log that every message names."""
    causal_history_max: int = 64
    """Entries of a causal history in all: the newest, those nobody has named yet, and those whose
    senders wait for an acknowledgement. Equal to `causal_history_size` for the bare protocol."""
    possible_acks_threshold: int = 2
    """Participants whose Bloom filters must show a message before it counts as acknowledged."""
    bloom_capacity: int = 10_000
    """Messages a Bloom filter is made for; all participants must use the same. 0 sends none."""
    bloom_error_rate: float = 0.001
    """Share of false positives at that capacity."""
    acknowledge_after_ms: int = 1_000
    """Longest time until a received message is acknowledged by a sync message, when no message
    of our own goes first; a random half of it is waited. Keep it well below the timeout."""
    sync_interval_ms: int = 30_000
    """Shortest time between sync messages that acknowledge nothing new."""
    sync_interval_max_ms: int = 300_000
    """Longest time between sync messages while nothing happens."""
    lost_timeout_ms: int = 600_000
    """Time a message waits for a missing one; then it is delivered and the loss is reported."""
    retrieval_interval_ms: int = 10_000
    """Time between two tries to fetch a missing message from a store."""
    retrievals_max: int = 16
    """Fetches from a store under way at once."""
    clock_ahead_max_ms: int = 600_000
    """How far ahead of our own a received clock may move ours."""
    outgoing_max: int = 10_000
    """Messages without an acknowledgement; `send` waits beyond."""
    outgoing_bytes_max: int = 64 * 1024 * 1024
    """Bytes without an acknowledgement; `send` waits beyond."""
    incoming_max: int = 1_000
    """Messages that wait for missing ones; beyond it new ones are not taken, and come again."""
    incoming_bytes_max: int = 64 * 1024 * 1024
    """Bytes that wait for missing ones."""
    log_max: int = 10_000
    """Messages remembered as delivered, newest first; one that is older is not delivered again."""
    repairable_bytes_max: int = 64 * 1024 * 1024
    """Bytes of delivered messages kept to answer repair requests, newest first."""
    recent_max: int = 4_096
    """Ids of ephemeral and sync messages remembered against repetition."""
    repair: RepairConfig = RepairConfig()
    """Repair among participants."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        _check(
            self,
            {"max_retransmissions": 0, "bloom_capacity": 0, "bloom_error_rate": 1e-9},
        )
        if self.causal_history_max < self.causal_history_size:
            raise ChannelArgumentError(
                "causal_history_max is below causal_history_size", where="SdsConfig"
            )
        if self.bloom_error_rate >= 1 or self.sync_interval_max_ms < self.sync_interval_ms:
            raise ChannelArgumentError(
                "bloom_error_rate is not below 1, or sync_interval_max_ms below sync_interval_ms",
                where="SdsConfig",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitConfig:
    """Messages an epoch; epochs are fixed windows of the wall clock, the same everywhere."""

    enabled: bool = False
    """Hold back what is above the limit; should be on where relays check RLN proofs."""
    epoch_size_ms: int = 600_000
    """Length of an epoch."""
    messages_per_epoch: int = 100
    """Messages that leave in one epoch; the rest waits in order."""
    counting: Counting = Counting.FIRST_SEGMENT
    """What counts."""
    ephemeral_share: float = 0.9
    """Share of the limit above which ephemeral messages are dropped, 0 to 1."""
    quota_provider: QuotaProvider | None = None
    """Says the limit of an epoch instead; None for the numbers above."""
    proof_provider: ProofProvider | None = None
    """Makes and checks a proof for each message; None for none."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        _check(self, {"ephemeral_share": 0.0, "messages_per_epoch": 0})
        if self.proof_provider is not None and (
            not self.enabled or self.counting is not Counting.EVERY_SEGMENT
        ):
            raise ChannelArgumentError(
                "proofs need the limit enabled and every segment counted",
                where="RateLimitConfig",
                hint="a proof is for one message of the network",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """What the other configurations leave: profiles and the bounds of one open channel."""

    event_profile: EventProfile = EventProfile.SEED
    """Which events end a request."""
    encryption_position: EncryptionPosition = EncryptionPosition.OUTER
    """Where the encryption hook works."""
    events_max: int = 10_000
    """Events not yet taken by the application; beyond it nothing more is received until it
    takes some."""
    event_bytes_max: int = 64 * 1024 * 1024
    """Bytes of received messages not yet taken; beyond it nothing more is received."""
    inbox_max: int = 1_024
    """Payloads taken from the layer below and not yet processed."""
    batch_max: int = 64
    """Inputs processed in one step, with one commit."""
    dispatches_max: int = 16
    """Payloads that the layer below is handed at once, in their order; an adapter may send those
    that wait together."""
    segments_remembered_max: int = 4_096
    """Segments of ended requests that `ReliableChannel.requests_of` still knows, newest first."""
    fetch_overlap_ms: int = 60_000
    """How far before the last activity missed messages are fetched from, at the start."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        _check(self, {"fetch_overlap_ms": 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelDefaults:
    """What a layer below says a channel has when its opener says nothing else."""

    sds_config: SdsConfig = SdsConfig()
    """Synchronisation."""
    segmentation_config: SegmentationConfig = SegmentationConfig()
    """Segments."""
    rate_limit_config: RateLimitConfig = RateLimitConfig()
    """Pace."""
    folder: Path | None = None
    """Where state is kept, in a folder of its own for each content topic; None for nowhere."""
    encryption_key: bytes | None = None
    """32 bytes that all participants share (`SharedKeyEncryption`); None sends in the clear."""
