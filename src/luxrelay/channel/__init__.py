"""Reliable channels: the public names for applications.

They send bytes of any size and learn honestly whether another participant has them.
"""

from luxrelay.channel.encryption import Encryption, SealedBoxEncryption, SharedKeyEncryption
from luxrelay.channel.events import (
    EVENT_NAMES,
    ChannelEvent,
    MessageDelivered,
    MessageDeliveryError,
    MessageDispatched,
    MessageLost,
    MessageReceived,
    MessageSendError,
    MessageSent,
    ReliableSendId,
)
from luxrelay.channel.pacing import ProofProvider, Quota, QuotaProvider
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
from luxrelay.channel.runtime.channel import ReliableChannel
from luxrelay.channel.runtime.emitter import MessageEvents
from luxrelay.channel.runtime.messaging import ChannelReceipt, Envelope, Messaging, Subscription
from luxrelay.channel.runtime.opening import create_reliable_channel
from luxrelay.channel.runtime.persistence import MemoryPersistence
from luxrelay.channel.runtime.sqlite import SqlitePersistence
from luxrelay.channel.state import ChannelScope, Persistence, Row, RowStore, StateTable

__all__ = [
    "EVENT_NAMES",
    "ChannelConfig",
    "ChannelEvent",
    "ChannelReceipt",
    "ChannelScope",
    "Counting",
    "Encryption",
    "EncryptionPosition",
    "Envelope",
    "EventProfile",
    "MemoryPersistence",
    "MessageDelivered",
    "MessageDeliveryError",
    "MessageDispatched",
    "MessageEvents",
    "MessageLost",
    "MessageReceived",
    "MessageSendError",
    "MessageSent",
    "Messaging",
    "Persistence",
    "ProofProvider",
    "Quota",
    "QuotaProvider",
    "RateLimitConfig",
    "ReliableChannel",
    "ReliableSendId",
    "RepairConfig",
    "Row",
    "RowStore",
    "SdsConfig",
    "SealedBoxEncryption",
    "SegmentRevision",
    "SegmentationConfig",
    "SharedKeyEncryption",
    "SqlitePersistence",
    "StateTable",
    "Subscription",
    "create_reliable_channel",
]
