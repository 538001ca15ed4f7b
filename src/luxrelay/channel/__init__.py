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
    RequestId,
)
from luxrelay.channel.pacing import ProofProvider, Quota, QuotaProvider
from luxrelay.channel.params import (
    ChannelConfig,
    ChannelDefaults,
    Counting,
    EncryptionPosition,
    EventProfile,
    RateLimitConfig,
    RepairConfig,
    SdsConfig,
    SegmentationConfig,
    SegmentRevision,
)
from luxrelay.channel.requests import SegmentRequest
from luxrelay.channel.runtime.channel import ReliableChannel
from luxrelay.channel.runtime.emitter import MessageEvents
from luxrelay.channel.runtime.messaging import (
    ChannelReceipt,
    Envelope,
    Messaging,
    MessagingNode,
    Subscription,
)
from luxrelay.channel.runtime.opening import ChannelOpening, create_reliable_channel
from luxrelay.channel.runtime.persistence import MemoryPersistence
from luxrelay.channel.runtime.sqlite import SqlitePersistence
from luxrelay.channel.state import ChannelScope, Persistence, Row, RowStore, StateTable

__all__ = [
    "EVENT_NAMES",
    "ChannelConfig",
    "ChannelDefaults",
    "ChannelEvent",
    "ChannelOpening",
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
    "MessagingNode",
    "Persistence",
    "ProofProvider",
    "Quota",
    "QuotaProvider",
    "RateLimitConfig",
    "ReliableChannel",
    "ReliableSendId",
    "RepairConfig",
    "RequestId",
    "Row",
    "RowStore",
    "SdsConfig",
    "SealedBoxEncryption",
    "SegmentRequest",
    "SegmentRevision",
    "SegmentationConfig",
    "SharedKeyEncryption",
    "SqlitePersistence",
    "StateTable",
    "Subscription",
    "create_reliable_channel",
]
