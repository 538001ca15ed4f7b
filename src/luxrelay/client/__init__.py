"""A small client of a node's HTTP and WebSocket API, blocking and asynchronous."""

from luxrelay.client.calls import Query
from luxrelay.client.http import AsyncRelayClient, RelayClient
from luxrelay.client.lane import LaneSigner
from luxrelay.client.session import LATEST, Place, Subscribe
from luxrelay.client.stream import (
    NO_RETRY,
    PublishStream,
    Retry,
    subscribe,
    subscribe_async,
)
from luxrelay.client.values import (
    Beyond,
    Checks,
    CountedQuota,
    Dropped,
    Event,
    FollowedNamespace,
    Gap,
    Head,
    Live,
    Message,
    Outgoing,
    Page,
    Receipt,
    Reconnected,
    Refused,
    Waiting,
)

__all__ = [
    "LATEST",
    "NO_RETRY",
    "AsyncRelayClient",
    "Beyond",
    "Checks",
    "CountedQuota",
    "Dropped",
    "Event",
    "FollowedNamespace",
    "Gap",
    "Head",
    "LaneSigner",
    "Live",
    "Message",
    "Outgoing",
    "Page",
    "Place",
    "PublishStream",
    "Query",
    "Receipt",
    "Reconnected",
    "Refused",
    "RelayClient",
    "Retry",
    "Subscribe",
    "Waiting",
    "subscribe",
    "subscribe_async",
]
