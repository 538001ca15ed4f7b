"""`RemoteMessaging`: the layer below a channel through a running node's gateway.

Each payload is one message in the sender's own lane of the content topic's namespace (J6), so any
number of participants write without an agreement. Receiving is a subscription that resumes by
itself after a lost connection; a payload's name for `fetch` is its blob's commitment.

Source: docs/explanation/channel.md; J6, J7; user-01, user-05, user-07.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Final

import anyio

from luxrelay.bus import NamespaceId, SigningKey, sha3_commitment, topic_namespace
from luxrelay.bus.prepaid import PrepaidPayer
from luxrelay.channel.runtime.lanes import SendingLane, failed
from luxrelay.channel.runtime.messaging import (
    PAYLOAD_BYTES_MAX,
    ChannelReceipt,
    Envelope,
    Subscription,
)
from luxrelay.client import (
    LATEST,
    AsyncRelayClient,
    Event,
    LaneSigner,
    Live,
    Message,
    Query,
    Retry,
    Subscribe,
    subscribe_async,
)
from luxrelay.errors import (
    ClientRefusedError,
    ClientRemoteError,
    ClientUnreachableError,
    MessagingError,
)

LANES_MAX: Final = 1000
"""Lanes whose history is read."""
FETCHES_MAX: Final = 32
"""Payloads of old messages that a subscription asks for singly; the channel repairs the rest."""
LIVE_MARGIN_S: Final = 5.0
"""Seconds beyond ``Retry.first_contact_s`` in which a node has to have told what it holds."""
TOPICS_MAX: Final = 1024
"""Topics that one object may send on."""


def wall_clock_ms() -> int:
    """Return Unix milliseconds."""
    return time.time_ns() // 1_000_000


class RemoteMessaging:
    """Speaks through one node; fits `luxrelay.channel.Messaging`.

    Args:
        client: The node; its token needs the scopes read and publish. What it checks says as well
            how to sign: bound to a network, or not (H3).
        key: The sender's key. One object a key: two would sign the same sequence.
        payload_bytes_max: Longest payload; what the nodes inline travels fastest.
        policy_hash: Of the policy of every topic; the open one when empty.
        retry: How a subscription tries again.
        clock_ms: Unix milliseconds; for tests.
        fee: Pays every payload from prepaid quotas; what none pays is refused (S7).

    """

    def __init__(
        self,
        client: AsyncRelayClient,
        key: SigningKey,
        *,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        policy_hash: bytes = b"",
        retry: Retry | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        fee: PrepaidPayer | None = None,
    ) -> None:
        """Keep the parts; nothing is sent before the first call."""
        self._client = client
        self._key = key
        self._payload_bytes_max = payload_bytes_max
        self._policy_hash = policy_hash
        self._retry = retry
        self._clock_ms = clock_ms
        self._fee = fee
        self._lanes: dict[str, SendingLane] = {}

    carries_proofs = False
    """Headers have no place for a rate limit proof beside the fee."""

    @property
    def payload_bytes_max(self) -> int:
        """The longest payload that `send` takes, bytes."""
        return self._payload_bytes_max

    @asynccontextmanager
    async def subscribe(
        self, content_topic: str, *, since_ms: int | None = None
    ) -> AsyncIterator[Subscription]:
        """Receive what is sent on a topic while the context is open.

        Raises:
            MessagingError: the node cannot be reached or does not let us read.

        """
        # A header may come long before its payload, when that is too large to travel with it.
        wanted = Subscribe(namespaces=[topic_namespace(content_topic)], after=LATEST, blobs="later")
        events = subscribe_async(self._client, wanted, retry=self._retry)
        async with aclosing(events):
            try:
                with anyio.fail_after(self._live_s()):
                    early = await _until_live(events)
            except TimeoutError as error:
                raise MessagingError(
                    f"the node did not finish telling what it holds within {self._live_s():g} s",
                    where=self._client.endpoint.authority,
                    hint="first_contact_s of Retry, --connect-s of a command",
                ) from error
            except (ClientRefusedError, ClientRemoteError, ClientUnreachableError) as error:
                raise failed(error) from error
            # The subscription stands before history is read, so nothing falls between the two.
            payloads = self._payloads(wanted.namespaces[0], since_ms, early, events)
            async with aclosing(payloads):
                yield payloads

    def _live_s(self) -> float:
        wait_s = self._retry.first_contact_s if self._retry is not None else 0.0
        return wait_s + LIVE_MARGIN_S if wait_s else math.inf

    async def _payloads(
        self,
        parent: NamespaceId,
        since_ms: int | None,
        early: list[Message],
        events: AsyncGenerator[Event, None],
    ) -> AsyncGenerator[Envelope, None]:
        if since_ms is not None:
            fetches = FETCHES_MAX
            async with aclosing(self._history(parent, since_ms)) as held:
                async for message in held:
                    payload = message.blob
                    if not payload and message.header.blob_len and fetches:
                        fetches -= 1  # each may take as long as the node looks for it
                        payload = await self._fetched(message)
                    if payload:
                        yield Envelope(payload=payload, hint=message.header.blob_commitment)
        for message in early:
            if message.blob:
                yield _envelope(message)
        try:
            async for event in events:
                if isinstance(event, Message) and event.blob:
                    yield _envelope(event)
        except (ClientRefusedError, ClientRemoteError, ClientUnreachableError):
            return  # the layer below has closed

    async def _fetched(self, message: Message) -> bytes | None:
        """Return the payload of an old message that came without it, if the node gets it now."""
        try:
            return await self.fetch("", message.header.blob_commitment)
        except MessagingError:
            return None  # the channel has it repaired

    async def _history(self, parent: NamespaceId, since_ms: int) -> AsyncGenerator[Message, None]:
        """Yield what the node holds of a topic, oldest first over all lanes; best effort."""
        async with AsyncExitStack() as stack:
            try:
                heads = await stack.enter_async_context(aclosing(self._client.heads(parent)))
                fresh = [head async for head in heads if head.latest_timestamp >= since_ms]
                first_of: list[tuple[int, int, Message]] = []
                lanes: list[AsyncGenerator[Message, None]] = []
                for number, head in enumerate(fresh[:LANES_MAX]):
                    query = Query(namespace_id=head.namespace_id, from_ms=max(0, since_ms))
                    lane = await stack.enter_async_context(aclosing(self._client.messages(query)))
                    lanes.append(lane)
                    await _push(first_of, number, lane)
                while first_of:
                    _, number, message = heapq.heappop(first_of)
                    yield message
                    await _push(first_of, number, lanes[number])
            except (ClientRefusedError, ClientRemoteError, ClientUnreachableError):
                return

    async def send(
        self, content_topic: str, payload: bytes, *, ephemeral: bool = False, proof: bytes = b""
    ) -> ChannelReceipt:
        """Publish a payload; returns when the node has it on disk and has sent it on.

        Relays keep every message for their time to live, so ``ephemeral`` changes nothing here, and
        ``proof`` is not carried.

        Raises:
            MessagingError: ``channel.messaging`` when trying again may help, ``channel.refused``
                when it cannot.

        """
        del ephemeral, proof
        if not 0 < len(payload) <= self._payload_bytes_max:
            raise MessagingError(
                f"a payload of {len(payload)} bytes",
                where=f"1 to {self._payload_bytes_max} bytes",
                code="channel.refused",
            )
        return await self._lane(content_topic).send(payload)

    def _lane(self, content_topic: str) -> SendingLane:
        lane = self._lanes.get(content_topic)
        if lane is None:
            if len(self._lanes) >= TOPICS_MAX:
                raise MessagingError(
                    f"more than {TOPICS_MAX} topics",
                    where=content_topic[:80],
                    code="channel.refused",
                )
            parent = topic_namespace(content_topic)
            signer = LaneSigner(
                self._key,
                parent,
                policy_hash=self._policy_hash,
                bound_network=self._client.checks.bound_network,
                fee=self._fee,
            )
            lane = self._lanes.setdefault(
                content_topic, SendingLane(self._client, signer, self._clock_ms, self._fee)
            )
        return lane

    async def fetch(self, content_topic: str, hint: bytes) -> bytes | None:
        """Return the payload with this commitment from the node, or None when it has none.

        Raises:
            MessagingError: the node cannot be asked.

        """
        del content_topic
        try:
            payload = await self._client.blob(hint)
        except ClientRefusedError as error:
            if error.status == 404:
                return None
            raise failed(error) from error
        except (ClientRemoteError, ClientUnreachableError) as error:
            raise failed(error) from error
        return payload if sha3_commitment(payload) == hint else None


async def _push(
    waiting: list[tuple[int, int, Message]], number: int, lane: AsyncGenerator[Message, None]
) -> None:
    """Add the next message of a lane, if there is one."""
    message = await anext(lane, None)
    if message is not None:
        heapq.heappush(waiting, (message.header.timestamp, number, message))


async def _until_live(events: AsyncGenerator[Event, None]) -> list[Message]:
    """Return what came before everything held was told; new lanes may have begun meanwhile."""
    early: list[Message] = []
    async for event in events:
        if isinstance(event, Message):
            early.append(event)
        elif isinstance(event, Live):
            break
    return early


def _envelope(message: Message) -> Envelope:
    assert message.blob is not None
    return Envelope(payload=message.blob, hint=message.header.blob_commitment)
