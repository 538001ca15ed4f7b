"""`Messaging`: the transport interface of a reliable channel, and its contract.

An adapter carries payloads on content topics, unreliably: it may lose, delay, reorder and repeat
them, and hand back what the channel itself has sent. The channel mends all of this. An adapter must
not change a payload knowingly and must not invent one.

The events of the layer below, as its specification names them, are the outcomes of two calls:
*propagated* is the return of `Messaging.send`, *sent* is the same return with ``stored`` set,
*error* is `MessagingError`, and *received* is what a `Subscription` yields.

Two attributes are optional: ``carries_proofs``, False for a layer that drops `Envelope.proof`, and
a coroutine method ``channel_defaults`` that returns `ChannelDefaults`.

Adapters: `luxrelay.testing.wire` in one process; others stand beside the parts they speak through.

Source: reliable-channel-api; decisions C8, C9.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

PAYLOAD_BYTES_MAX: Final = 256 * 1024
"""Payload that the layers over a node take: a segment of the default size with all that goes around
it. What is above 48 KiB travels as a blob, which the next relay fetches (J7)."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One payload that arrived on a content topic."""

    payload: bytes
    """The bytes that were sent; the channel checks them itself."""
    hint: bytes = b""
    """The name under which `Messaging.fetch` finds it again, 64 bytes at most; may be empty."""
    proof: bytes = b""
    """A rate limit proof that came with it; may be empty."""


@dataclass(frozen=True, slots=True)
class ChannelReceipt:
    """What the layer below says of a payload it took."""

    hint: bytes = b""
    """The name under which anybody's `Messaging.fetch` finds it, 64 bytes at most; may be empty."""
    stored: bool = False
    """A store has confirmed that it holds the payload."""


Subscription = AsyncIterator[Envelope]
"""Payloads of one topic, in the order of arrival, duplicates included.

It ends when the layer below closes. It holds a bounded number of payloads; what arrives while it is
full is dropped, and the channel has it repaired.
"""


@runtime_checkable
class Messaging(Protocol):
    """The layer below a channel. One object may serve many channels, also on the same topic.

    All methods are called from one event loop, asyncio or trio; they may be cancelled at any await
    and must then leave nothing behind.
    """

    @property
    def payload_bytes_max(self) -> int:
        """The longest payload that `send` takes, bytes; constant for the life of the object."""
        ...

    def subscribe(
        self, content_topic: str, *, since_ms: int | None = None
    ) -> AbstractAsyncContextManager[Subscription]:
        """Receive what is sent on a topic while the context is open; leaving it unsubscribes.

        Entering returns once the subscription stands: what is sent by anybody afterwards arrives,
        as far as the layer delivers at all. Two contexts on one topic both get everything, and the
        topic is given up when the last of them is left.

        Args:
            content_topic: The topic, non-empty text.
            since_ms: First yield what stores hold of the topic since this time, Unix milliseconds,
                oldest first, then what arrives; None yields only what arrives. Best effort: a layer
                without a store ignores it. The two parts may overlap.

        Raises:
            MessagingError: on entering: the layer is closed or the topic cannot be had.

        """
        ...

    async def send(
        self, content_topic: str, payload: bytes, *, ephemeral: bool = False, proof: bytes = b""
    ) -> ChannelReceipt:
        """Hand a payload to the network; returns when it has been propagated.

        Args:
            content_topic: The topic.
            payload: 1 to `payload_bytes_max` bytes.
            ephemeral: No store needs to keep it.
            proof: A rate limit proof, for a layer that carries one.

        Raises:
            MessagingError: with code ``channel.messaging``, the payload was not taken and the same
                call may succeed later; with code ``channel.refused``, it never will.

        """
        ...

    async def fetch(self, content_topic: str, hint: bytes) -> bytes | None:
        """Return the payload of that name from a store, or None when no store has it.

        Raises:
            MessagingError: no store could be asked.

        """
        ...


@runtime_checkable
class MessagingNode(Protocol):
    """A running node that lends channels its layer below, such as `luxrelay.node.node.Node`."""

    def messaging(self) -> Messaging:
        """Return the layer; the same object each time while the node runs.

        Raises:
            LuxRelayError: the node does not run.

        """
        ...
