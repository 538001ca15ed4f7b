"""Subscriptions of an application to namespaces: filters, rates, blobs.

Source: LP-6420 §8; decisions G2, G27, J6; 20-38 to 20-41.
"""

# Theory of operation
#
# Decides: which delivered messages become notices for the application. What is filtered here has
#   been accepted, stored and forwarded already: a filter never stops relaying (G27).
# Does not know: peers, meshes, verdicts. It joins and leaves topics through the router.
# Machines and their states: a namespace is subscribed to or not. A blob that a delivered header
#   commits to is awaited until a hint names it, and a hint is kept until a header commits to its
#   blob; each until it is one of too many.
# Inputs and what they may cause: `subscribe` and `unsubscribe` join and leave topics; `delivered`
#   returns notices in order, the header before the hint of its blob.
# Timers: none.
# Bounds: subscriptions_max, blobs_awaited_max, hints_kept_max, lanes_known_max; the oldest goes.
# Deviations from the specification: callbacks are values that are returned (rule 2 of
#   docs/explanation/architecture.md). A
#   topic that the router followed before is not left (others need it). A hint names no namespace
#   (LP-6420 §3.2), so WantBlobs reports those whose blob a header of the namespace commits to. A
#   message that came on headers/global belongs to its namespace, or to the parent of its lane (J6).
# What else to change when you change this: docs/explanation/gossip.md.

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields, replace
from typing import Protocol

from luxrelay.bus import MessageId, MsgHeader, NamespaceId, lane
from luxrelay.errors import EnvelopeError, GossipArgumentError, HeaderError
from luxrelay.gossip.actions import Deliver
from luxrelay.gossip.announcements import (
    BlobAvailabilityHint,
    HeaderAnnouncement,
    decode_header_with_blob,
)
from luxrelay.gossip.envelope import (
    PAYLOAD_MAX,
    MessageType,
    RelayMessage,
    TopicKind,
    global_topic,
    parse_topic,
    topic_for_namespace,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOptions:
    """What an application wants of a namespace (LP-6420 §8.1)."""

    want_blobs: bool = False
    """Report hints of blobs that came without their header's message."""
    sender_filter: frozenset[bytes] = frozenset()
    """Senders that are reported: 20-byte addresses or senderPubKey fields; empty for all."""
    max_rate: int = 0
    """Headers reported in a second, as many at once; 0 for all."""

    def __post_init__(self) -> None:
        """Refuse a rate below zero."""
        if self.max_rate < 0:
            raise GossipArgumentError(
                f"max_rate is {self.max_rate}", where="SubscriptionOptions", hint="0 is no limit"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionParams:
    """Bounds of `Subscriptions`."""

    subscriptions_max: int = 2_048
    """Namespaces subscribed to."""
    blobs_awaited_max: int = 8_192
    """Commitments of delivered headers whose hints are reported."""
    hints_kept_max: int = 8_192
    """Hints kept for headers that come later."""
    lanes_known_max: int = 8_192
    """Namespaces on headers/global whose parent was looked for."""

    def __post_init__(self) -> None:
        """Refuse bounds that hold nothing."""
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise GossipArgumentError(f"{field.name} begins at 1", where="SubscriptionParams")


@dataclass(slots=True, kw_only=True)
class HeaderNotice:
    """OnHeader: a message of a namespace that the application follows."""

    namespace_id: NamespaceId
    """The namespace subscribed to; the header's own, or the parent of its lane."""
    header: MsgHeader
    """The header."""
    blob: bytes | None
    """The blob when it came along."""
    message_id: MessageId
    """LP-6420 §4.3."""


@dataclass(slots=True, kw_only=True)
class BlobNotice:
    """OnBlob: who has the blob of a header that was reported."""

    namespace_id: NamespaceId
    """The namespace subscribed to."""
    hint: BlobAvailabilityHint
    """Commitment, length, providers, expiry."""


Notice = HeaderNotice | BlobNotice


@dataclass(slots=True, kw_only=True)
class SubscriptionStats:
    """What became of delivered messages."""

    headers: int = 0
    """Headers reported."""
    blobs: int = 0
    """Hints reported."""
    filtered: int = 0
    """Headers of senders that the application does not want."""
    throttled: int = 0
    """Headers beyond a rate."""
    foreign: int = 0
    """Messages of namespaces or types that nobody follows here."""
    unreadable: int = 0
    """Messages whose payload is not what its type says; the verdict was wrong."""
    active: int = 0
    """Namespaces subscribed to now."""


class TopicMembership(Protocol):
    """What is asked of the router."""

    def follows(self, topic: str) -> bool:
        """Return True when the topic is followed."""

    def subscribe(self, topic: str, now: float) -> None:
        """Follow it."""

    def unsubscribe(self, topic: str, now: float) -> None:
        """Follow it no longer."""


class _Subscription:
    """One namespace."""

    __slots__ = ("joined", "options", "tokens", "updated")

    def __init__(self, options: SubscriptionOptions, now: float) -> None:
        self.options = options
        self.joined: list[str] = []
        """Topics followed for its sake alone."""
        self.tokens = float(options.max_rate)
        self.updated = now

    def wants(self, header: MsgHeader) -> bool:
        """Return True when the header's sender is not filtered out."""
        wanted = self.options.sender_filter
        if not wanted or header.sender_pub_key in wanted:
            return True
        return bool(header.sender_pub_key) and header.sender_address in wanted

    def passes(self, now: float) -> bool:
        """Return True, and take a token, when the rate allows one more."""
        rate = self.options.max_rate
        if not rate:
            return True
        elapsed = max(0.0, now - self.updated)
        self.updated = max(now, self.updated)
        self.tokens = min(float(rate), self.tokens + rate * elapsed)
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class Subscriptions:
    """The namespaces an application follows; the driver hands it each `Deliver`.

    Args:
        network: Name of the network, for topics.
        router: Joins and leaves topics.
        params: Bounds.

    """

    def __init__(
        self, network: str, router: TopicMembership, params: SubscriptionParams | None = None
    ) -> None:
        self._network = network
        self._router = router
        self._params = params or SubscriptionParams()
        self._active: dict[NamespaceId, _Subscription] = {}
        self._awaited: OrderedDict[bytes, dict[NamespaceId, None]] = OrderedDict()
        self._hints: OrderedDict[bytes, BlobAvailabilityHint] = OrderedDict()
        self._parents: OrderedDict[NamespaceId, NamespaceId | None] = OrderedDict()
        self._stats = SubscriptionStats()

    def subscribe(
        self, namespace_id: NamespaceId, now: float, options: SubscriptionOptions | None = None
    ) -> None:
        """Follow a namespace, or change the options of one that is followed (20-41).

        Raises:
            GossipArgumentError: too many subscriptions or topics, or an id of wrong length;
                nothing has changed then.

        """
        chosen = options or SubscriptionOptions()
        topic = topic_for_namespace(self._network, namespace_id)
        current = self._active.get(namespace_id)
        if current is None and len(self._active) >= self._params.subscriptions_max:
            raise GossipArgumentError(
                f"{len(self._active)} namespaces are subscribed to already", where="subscribe"
            )
        fresh = _Subscription(chosen, now)
        fresh.joined = list(current.joined) if current is not None else []
        wanted = [topic]
        if chosen.want_blobs:
            wanted.append(global_topic(self._network, TopicKind.BLOBS_AVAILABLE))
        added: list[str] = []
        try:
            for name in wanted:
                if not self._router.follows(name):
                    self._router.subscribe(name, now)
                    added.append(name)
        except GossipArgumentError:
            for name in added:
                self._router.unsubscribe(name, now)
            raise
        fresh.joined += added
        self._active[namespace_id] = fresh
        self._parents.clear()
        self._release([name for name in fresh.joined if name not in wanted], now)
        fresh.joined = [name for name in fresh.joined if name in wanted]

    def unsubscribe(self, namespace_id: NamespaceId, now: float) -> None:
        """Follow a namespace no longer; does nothing when it is not followed (20-41)."""
        gone = self._active.pop(namespace_id, None)
        if gone is None:
            return
        self._parents.clear()
        self._release(gone.joined, now)

    def delivered(self, deliver: Deliver, now: float) -> list[Notice]:
        """Return what the application is told of an accepted message (20-38 to 20-40)."""
        try:
            message = RelayMessage.decode(deliver.data)
            if message.type is MessageType.BLOB_HINT:
                return self._hint(BlobAvailabilityHint.decode(message.payload))
            if message.type is MessageType.BLOCK:
                self._stats.foreign += 1
                return []
            blob: bytes | None = None
            if message.type is MessageType.HEADER_WITH_BLOB:
                announcement, blob = decode_header_with_blob(message.payload, PAYLOAD_MAX)
            else:
                announcement = HeaderAnnouncement.decode(message.payload)
            header = MsgHeader.decode(announcement.header_bytes)
        except (EnvelopeError, HeaderError):
            self._stats.unreadable += 1
            return []
        return self._header(deliver, header, blob, now)

    def stats(self) -> SubscriptionStats:
        """Return a copy of the counters."""
        return replace(self._stats, active=len(self._active))

    def _header(
        self, deliver: Deliver, header: MsgHeader, blob: bytes | None, now: float
    ) -> list[Notice]:
        namespace_id = self._namespace(deliver.topic, header)
        found = self._active.get(namespace_id) if namespace_id is not None else None
        if namespace_id is None or found is None:
            self._stats.foreign += 1
            return []
        if not found.wants(header):
            self._stats.filtered += 1
            return []
        if not found.passes(now):
            self._stats.throttled += 1
            return []
        self._stats.headers += 1
        notices: list[Notice] = [
            HeaderNotice(
                namespace_id=namespace_id,
                header=header,
                blob=blob,
                message_id=deliver.message_id,
            )
        ]
        if found.options.want_blobs and blob is None and header.blob_len:
            notices += self._await(namespace_id, header.blob_commitment)
        return notices

    def _namespace(self, topic: str, header: MsgHeader) -> NamespaceId | None:
        """Return the subscribed namespace that a header belongs to."""
        parent = parse_topic(topic).namespace_id
        if parent is not None:
            return parent
        own = header.namespace_id
        if own in self._active:
            return own
        if own not in self._parents:
            # One lane has one writer, so its parent is found once (J6).
            self._parents[own] = next(
                (p for p in self._active if lane(p, header.sender_pub_key) == own), None
            )
            if len(self._parents) > self._params.lanes_known_max:
                self._parents.popitem(last=False)
        return self._parents[own]

    def _await(self, namespace_id: NamespaceId, commitment: bytes) -> list[BlobNotice]:
        """Note that hints of a blob are wanted; return the one that came before."""
        self._awaited.setdefault(commitment, {})[namespace_id] = None
        if len(self._awaited) > self._params.blobs_awaited_max:
            self._awaited.popitem(last=False)
        hint = self._hints.get(commitment)
        if hint is None:
            return []
        self._stats.blobs += 1
        return [BlobNotice(namespace_id=namespace_id, hint=hint)]

    def _hint(self, hint: BlobAvailabilityHint) -> list[Notice]:
        self._hints[hint.commitment] = hint
        self._hints.move_to_end(hint.commitment)
        if len(self._hints) > self._params.hints_kept_max:
            self._hints.popitem(last=False)
        notices: list[Notice] = [
            BlobNotice(namespace_id=namespace_id, hint=hint)
            for namespace_id in self._awaited.get(hint.commitment, ())
            if namespace_id in self._active and self._active[namespace_id].options.want_blobs
        ]
        self._stats.blobs += len(notices)
        return notices

    def _release(self, topics: list[str], now: float) -> None:
        """Leave topics, or hand them to a subscription that needs them."""
        for name in topics:
            heir = self._heir(name)
            if heir is not None:
                heir.joined.append(name)
            else:
                self._router.unsubscribe(name, now)

    def _heir(self, topic: str) -> _Subscription | None:
        """Return another subscription that needs a topic; only that of the hints is shared."""
        if topic != global_topic(self._network, TopicKind.BLOBS_AVAILABLE):
            return None
        return next((s for s in self._active.values() if s.options.want_blobs), None)
