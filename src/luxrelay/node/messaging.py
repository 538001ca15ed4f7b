"""`NodeMessaging`: the layer below channels that live in the node's own process.

As `luxrelay.channel.runtime.remote` through a gateway, each payload is a message in the node's own
lane of the topic's namespace; what arrives is told by the node's feed and read from its store, a
payload that is fetched later when it has come. The objects live on the node's trio loop; the store
and the doors are called in worker threads.

Source: docs/explanation/channel.md; J6, J7, C10.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from luxrelay.bus import (
    ContentId,
    NamespaceId,
    SigningKey,
    VerdictKind,
    sha3_commitment,
    topic_namespace,
)
from luxrelay.channel import ChannelDefaults, ChannelReceipt, Envelope, Subscription
from luxrelay.channel.runtime.messaging import PAYLOAD_BYTES_MAX
from luxrelay.client import LaneSigner
from luxrelay.errors import LuxRelayError, MessagingError
from luxrelay.node.ingress import wall_ms
from luxrelay.node.stages.deliver import Feed, Note
from luxrelay.store import NamespaceQuery, RelayStore, StoredMessage
from luxrelay.sync import PublishItem, PublishReceipt

if TYPE_CHECKING:
    from luxrelay.node.assembly import Parts
    from luxrelay.node.config import NodeConfig

WAITING_MAX: Final = 4096
"""Notes of stored messages that wait for a subscriber; more are dropped and counted."""
READ_MAX: Final = 64
"""Messages read for a subscriber at once."""
LANES_MAX: Final = 1000
"""Lanes whose history is read."""
ATTEMPTS_MAX: Final = 4
"""Times that a payload is signed when its slot was taken meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagingParts:
    """What it stands on."""

    store: RelayStore
    feed: Feed
    publish: Callable[[Sequence[PublishItem]], Sequence[PublishReceipt]]
    """May block; called in a worker thread."""
    key: SigningKey
    """Whose lanes it writes."""
    carries: Callable[[NamespaceId], bool]
    """Whether the node follows a namespace that is asked for, from now on if need be; may block,
    called in a worker thread."""
    policy_hash: Callable[[NamespaceId], bytes | None]
    """The policy in force in a namespace; None when the node does not carry it."""
    blob: Callable[[bytes], bytes | None]
    """A blob by its commitment, ours or a peer's; may block, called in a worker thread."""
    clock_ms: Callable[[], int]
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    """Longest payload that is taken: as long as the longest blob the node keeps, or less."""
    bound_network: str = ""
    """Name of a network with bound signatures; empty for literal ones (H3)."""
    defaults: ChannelDefaults = field(default_factory=ChannelDefaults)
    """What channels over it have when their openers say nothing else."""


class NodeMessaging:
    """Speaks through this node; fits `luxrelay.channel.Messaging`."""

    def __init__(self, parts: MessagingParts) -> None:
        """Keep the parts."""
        self._parts = parts
        self._signers: dict[NamespaceId, LaneSigner] = {}
        self._turn = trio.Lock()
        self._subscribers: dict[_Notes, None] = {}
        self.closed = False
        """The node has stopped."""
        self.sent = 0
        """Payloads that the node has taken."""
        self.received = 0
        """Payloads that subscribers were told."""
        self.dropped = 0
        """Notes that a subscriber had no room for."""

    carries_proofs = False
    """Headers have no place for a rate limit proof beside the fee."""

    @property
    def payload_bytes_max(self) -> int:
        """The longest payload that `send` takes, bytes."""
        return self._parts.payload_bytes_max

    async def channel_defaults(self) -> ChannelDefaults:
        """Return what the node's configuration says of channels."""
        await trio.lowlevel.checkpoint()
        return self._parts.defaults

    def close(self) -> None:
        """End every subscription: the node stops, and its channels with it."""
        self.closed = True
        for notes in self._subscribers:
            notes.wake()

    @asynccontextmanager
    async def subscribe(
        self, content_topic: str, *, since_ms: int | None = None
    ) -> AsyncIterator[Subscription]:
        """Receive what is stored of a topic while the context is open.

        Raises:
            MessagingError: ``channel.refused``: the node does not carry its namespace.

        """
        parent = topic_namespace(content_topic)
        if not await trio.to_thread.run_sync(self._parts.carries, parent):
            raise _not_carried(content_topic)
        notes = _Notes(self)
        self._subscribers[notes] = None
        self._parts.feed.follow([parent], notes)
        try:
            await trio.lowlevel.checkpoint()
            payloads = self._payloads(parent, since_ms, notes)
            async with aclosing(payloads):
                yield payloads
        finally:
            self._parts.feed.leave([parent], notes)
            del self._subscribers[notes]

    def _policy_of(self, content_topic: str) -> bytes:
        policy_hash = self._parts.policy_hash(topic_namespace(content_topic))
        if policy_hash is None:
            raise _not_carried(content_topic)
        return policy_hash

    async def _payloads(
        self, parent: NamespaceId, since_ms: int | None, notes: _Notes
    ) -> AsyncGenerator[Envelope, None]:
        if since_ms is not None:
            held = await trio.to_thread.run_sync(partial(self._history, parent, since_ms))
            for message in held:
                if message.blob:
                    yield self._told(message)
        while wanted := await notes.next():
            read = partial(self._parts.store.get_contents, wanted, self._parts.clock_ms())
            try:
                found, _ = await trio.to_thread.run_sync(read)
            except LuxRelayError:
                return  # the store has closed, and with it the layer
            for message in found:
                if message.blob:
                    yield self._told(message)

    def _told(self, message: StoredMessage) -> Envelope:
        assert message.blob is not None
        self.received += 1
        return Envelope(payload=message.blob, hint=message.header.blob_commitment)

    def _history(self, parent: NamespaceId, since_ms: int) -> list[StoredMessage]:
        """Return the newest page of each lane since then, oldest first; a worker thread."""
        store, now_ms = self._parts.store, self._parts.clock_ms()
        heads, _ = store.heads(parent, b"", LANES_MAX)
        held: list[StoredMessage] = []
        for head in heads:
            cursor = b""
            while True:
                page = store.query(
                    NamespaceQuery(
                        namespace_id=head.namespace_id, from_time=max(0, since_ms), cursor=cursor
                    ),
                    now_ms,
                )
                held += page.messages
                cursor = page.next_cursor
                if not cursor or len(held) >= WAITING_MAX:
                    break
        return sorted(held, key=lambda message: message.timestamp)[-WAITING_MAX:]

    async def send(
        self, content_topic: str, payload: bytes, *, ephemeral: bool = False, proof: bytes = b""
    ) -> ChannelReceipt:
        """Publish a payload; returns when it is on disk and was sent on.

        The store keeps every message for its time to live, so ``ephemeral`` changes nothing, and
        ``proof`` is not carried.

        Raises:
            MessagingError: ``channel.messaging`` when trying again may help, ``channel.refused``
                when it cannot.

        """
        del ephemeral, proof
        if not 0 < len(payload) <= self.payload_bytes_max:
            raise MessagingError(
                f"a payload of {len(payload)} bytes",
                where=f"1 to {self.payload_bytes_max} bytes",
                code="channel.refused",
            )
        policy_hash = self._policy_of(content_topic)
        async with self._turn:
            signer = self._signer(topic_namespace(content_topic), policy_hash)
            try:
                receipt = await trio.to_thread.run_sync(partial(self._send, signer, payload))
            except LuxRelayError as error:
                if isinstance(error, MessagingError):
                    raise
                raise MessagingError(error.what, where=error.where) from error
            self.sent += 1
            return receipt

    def _signer(self, parent: NamespaceId, policy_hash: bytes) -> LaneSigner:
        signer = self._signers.get(parent)
        if signer is None or signer.policy_hash != policy_hash:
            parts = self._parts
            signer = self._signers[parent] = LaneSigner(
                parts.key, parent, policy_hash=policy_hash, bound_network=parts.bound_network
            )
        return signer

    def _send(self, signer: LaneSigner, payload: bytes) -> ChannelReceipt:
        """Publish; a worker thread, one at a time."""
        parts, parent = self._parts, signer.parent
        head = parts.store.head(signer.namespace_id)
        signer.follow(head.latest_seq, head.latest_timestamp)
        for _ in range(ATTEMPTS_MAX):
            message = signer.sign(payload, parts.clock_ms())
            item = PublishItem(header=message.header, blob=payload, parent_id=parent)
            (receipt,) = parts.publish([item])
            if receipt.stored:
                return ChannelReceipt(hint=sha3_commitment(payload), stored=True)
            if not receipt.expected_seq:
                final = receipt.verdict == VerdictKind.REJECT
                raise MessagingError(
                    f"this node did not take the payload: {receipt.reason}",
                    where=f"code {int(receipt.code)}",
                    code="channel.refused" if final else "channel.messaging",
                )
            signer.next_seq = max(signer.next_seq, receipt.expected_seq)
        raise MessagingError("the slot was taken again and again; is the key used elsewhere?")

    async def fetch(self, content_topic: str, hint: bytes) -> bytes | None:
        """Return the payload with this commitment, or None when the store has none.

        Raises:
            MessagingError: the store cannot be read.

        """
        del content_topic
        try:
            return await trio.to_thread.run_sync(self._parts.blob, hint)
        except LuxRelayError as error:
            raise MessagingError(error.what, where=error.where) from error


class LentMessaging:
    """The layers that a running node lends to channels in its process: one for each key.

    Args:
        config: The node's.
        parts: Its parts.
        identity: Its own key, for who gives none.
        encryption_key: That of ``channel.encryption_key_file``; None without one.

    """

    def __init__(
        self, config: NodeConfig, parts: Parts, identity: SigningKey, encryption_key: bytes | None
    ) -> None:
        self._config = config
        self._parts = parts
        self._identity = identity
        self._defaults = config.channel.defaults(config.data_dir, encryption_key)
        self._layers: dict[bytes, NodeMessaging] = {}

    def of(self, key: SigningKey | None) -> NodeMessaging:
        """Return the layer that writes the lanes of a key: two would sign one sequence twice."""
        key = key or self._identity
        found = self._layers.get(key.public_field)
        if found is None:
            found = self._layers[key.public_field] = NodeMessaging(self._made(key))
        return found

    def _made(self, key: SigningKey) -> MessagingParts:
        config, parts = self._config, self._parts
        return MessagingParts(
            store=parts.store,
            feed=parts.feed,
            publish=parts.doors.publish,
            key=key,
            carries=parts.carried.asked,
            policy_hash=self._policy_of,
            blob=parts.catch_up.blob,
            clock_ms=wall_ms,
            payload_bytes_max=min(PAYLOAD_BYTES_MAX, config.store_limits.largest_blob),
            bound_network=config.network if config.signing == "bound" else "",
            defaults=self._defaults,
        )

    def _policy_of(self, parent: NamespaceId) -> bytes | None:
        policies = self._parts.policies
        records = policies.in_force(parent, None, wall_ms())
        if records:
            return records[0].policy_hash
        return min(policies.get(parent, frozenset()), default=None)

    def totals(self) -> dict[str, int]:
        """Return what went over all layers, for the metrics; any thread."""
        layers = list(self._layers.values())
        return {
            "sent": sum(layer.sent for layer in layers),
            "received": sum(layer.received for layer in layers),
            "dropped": sum(layer.dropped for layer in layers),
        }

    def close(self) -> None:
        """End what was lent: the node stops."""
        for layer in self._layers.values():
            layer.close()


class _Notes:
    """What was stored and not yet read for one subscriber; on the loop."""

    def __init__(self, messaging: NodeMessaging) -> None:
        self._messaging = messaging
        self._waiting: list[ContentId] = []
        self._changed = trio.Event()

    def note(self, note: Note) -> None:
        """Learn of a stored message."""
        if len(self._waiting) >= WAITING_MAX:
            self._messaging.dropped += 1  # the channel above has it repaired
            return
        self._waiting.append(note.content_id)
        self._changed.set()

    def look_everywhere(self) -> None:
        """Learn that notes were dropped."""
        self._messaging.dropped += 1

    def wake(self) -> None:
        """Have whoever waits look again."""
        self._changed.set()

    async def next(self) -> list[ContentId]:
        """Return the oldest notes, once there are any; none when the node has stopped."""
        while not self._waiting and not self._messaging.closed:
            self._changed = trio.Event()
            await self._changed.wait()
        found, self._waiting = self._waiting[:READ_MAX], self._waiting[READ_MAX:]
        return found


def _not_carried(content_topic: str) -> MessagingError:
    return MessagingError(
        "this node does not carry the topic",
        where=content_topic[:80],
        hint="give it a [[namespace]] with this content_topic, or have it follow the namespace",
        code="channel.refused",
    )
