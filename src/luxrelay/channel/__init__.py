"""Reliable channels: what applications hold.

They send bytes of any size and learn honestly whether another participant has them.
"""

from luxrelay.channel.params import (
    ChannelConfig,
    Counting,
    EncryptionPosition,
    EventProfile,
    RateLimitConfig,
    RepairConfig,
    SdsConfig,
    SegmentationConfig,
    SegmentRevision,
)
from luxrelay.channel.runtime.messaging import Envelope, Messaging, Receipt, Subscription

__all__ = [
    "ChannelConfig",
    "Counting",
    "EncryptionPosition",
    "Envelope",
    "EventProfile",
    "Messaging",
    "RateLimitConfig",
    "Receipt",
    "RepairConfig",
    "SdsConfig",
    "SegmentRevision",
    "SegmentationConfig",
    "Subscription",
]
