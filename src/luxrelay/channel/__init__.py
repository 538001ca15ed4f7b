"""Reliable channels: what applications hold.

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
from luxrelay.channel.runtime.messaging import Envelope, Messaging, Receipt, Subscription
from luxrelay.channel.runtime.opening import create_reliable_channel
from luxrelay.channel.runtime.persistence import MemoryPersistence
from luxrelay.channel.runtime.sqlite import SqlitePersistence
from luxrelay.channel.state import Persistence, Row, RowStore, Scope, Table

__all__ = [
    "EVENT_NAMES",
    "ChannelConfig",
    "ChannelEvent",
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
    "Receipt",
    "ReliableChannel",
    "ReliableSendId",
    "RepairConfig",
    "Row",
    "RowStore",
    "Scope",
    "SdsConfig",
    "SealedBoxEncryption",
    "SegmentRevision",
    "SegmentationConfig",
    "SharedKeyEncryption",
    "SqlitePersistence",
    "Subscription",
    "Table",
    "create_reliable_channel",
]
