"""Subscriptions that go on after a lost connection, and publishing over a kept one.

`subscribe` and `subscribe_async` yield messages, gaps and the moment when replay has become live.
When the connection is lost they open another, after a pause that doubles, and go on behind the
last position: nothing is lost or repeated. What came into a told gap meanwhile is read from the
node's pages and told as late (P48). They end when the caller stops iterating.

Source: docs/reference/http.md; user-01.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

import anyio

from luxrelay.client.calls import Query
from luxrelay.client.exchange import Exchanges
from luxrelay.client.http import AsyncRelayClient, RelayClient
from luxrelay.client.session import Began, Incoming, Place, Receipts, StreamSession, Subscribe
from luxrelay.client.transport import AsyncLine, Line
from luxrelay.client.values import Dropped, Event, Live, Message, Outgoing, Receipt, Reconnected
from luxrelay.errors import ClientRefusedError, ClientRemoteError, ClientUnreachableError
from luxrelay.pause import doubled, jittered

STREAM_PATH: Final = "/v1/stream"
KEY_BYTES: Final = 16
SILENCE_S: Final = 30.0
"""Seconds without a whole frame, a ping included, after which a stream counts as lost; a client's
``timeout_s`` when that is longer. Nodes ping every 20 s (``gateway.ping_ms``)."""
_SUBSCRIPTION: Final = "the answer to the subscription"
_FRAME: Final = "a whole frame of the stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How a subscription tries again."""

    first_s: float = 0.1
    """Pause after the first failure, seconds; then it doubles."""
    most_s: float = 10.0
    """Longest pause, seconds."""
    attempts_max: int = 0
    """Failures in a row after which it gives up; 0 for never."""
    first_contact_s: float = 0.0
    """Seconds in which a node has to take the subscription for the first time; 0 for as long as it
    takes. An outage after that is waited out."""

    def pause_s(self, attempt: int) -> float:
        """Return the pause before an attempt, with jitter of a half."""
        return jittered(doubled(self.first_s, attempt, self.most_s), _SPREAD)


_SPREAD: Final = random.Random()  # noqa: S311  it spreads load, it hides nothing
NO_RETRY: Final = Retry(attempts_max=1)
"""Give up at the first failure."""


Lost = Callable[[ClientUnreachableError | ClientRefusedError], None]
"""Is told why a subscription is tried again."""


def _may_retry(error: Exception) -> bool:
    """Return True when another try makes sense: away, busy or too fast, not forbidden."""
    if isinstance(error, ClientRefusedError):
        return error.status in {429, 503}
    return isinstance(error, ClientUnreachableError)


def _may_lack(event: Event, *, away: bool) -> bool:
    """Return True when messages may have come into told gaps that the node did not tell."""
    if isinstance(event, Dropped):
        return event.late > 0
    return away and isinstance(event, Live)


def _told_gaps(place: Place) -> list[Query]:
    """Return what to read to fill the gaps of a place."""
    return [
        Query(namespace_id=namespace_id, after_seq=first - 1, to_seq=last)
        for namespace_id, first, last in place.gaps.spans()
    ]


def _fill(
    client: RelayClient, wanted: Subscribe, place: Place, behind: Event, *, away: bool
) -> Iterator[Message]:
    """Yield what the node holds by now of the gaps that it told, where ``behind`` asks for it."""
    for query in _told_gaps(place) if _may_lack(behind, away=away) else ():
        for message in client.messages(query):
            if found := _late(place, wanted, message):
                yield found


async def _fill_async(
    client: AsyncRelayClient, wanted: Subscribe, place: Place, behind: Event, *, away: bool
) -> AsyncGenerator[Message, None]:
    """Yield the same."""
    for query in _told_gaps(place) if _may_lack(behind, away=away) else ():
        async for message in client.messages(query):
            if found := _late(place, wanted, message):
                yield found


def _late(place: Place, wanted: Subscribe, message: Message) -> Message | None:
    """Return a message that fills a told gap as it would have been told; None for another."""
    header = message.header
    if not place.gaps.fill(header.namespace_id, header.seq) or not wanted.wants(message):
        return None
    return replace(message, late=True, blob=None if wanted.blobs == "none" else message.blob)


class _FirstContact:
    """Whether a node has taken the subscription once, and how long it has had for that."""

    def __init__(self, retry: Retry) -> None:
        self.made = False
        self._until = time.monotonic() + (retry.first_contact_s or math.inf)

    def too_late(self) -> bool:
        return not self.made and time.monotonic() >= self._until


def subscribe(
    client: RelayClient,
    wanted: Subscribe,
    *,
    place: Place | None = None,
    retry: Retry | None = None,
    lost: Lost | None = None,
) -> Generator[Event, None, None]:
    """Yield what is stored behind the begin and what comes after it.

    Args:
        client: Whose node, token and checks are used; its other calls go on meanwhile.
        wanted: What to follow.
        place: Where to begin and where it stands; hand in the one of an earlier subscription to go
            on from there. It moves before an event is yielded.
        retry: How to try again.
        lost: Told of each failure that another try follows, the first one to connect included.

    Raises:
        ClientUnreachableError: ``attempts_max`` failures in a row.
        ClientRefusedError: the node refuses the subscription.
        ClientRemoteError: the node sends what cannot be used.

    """
    place = place or Place()
    retry = retry or Retry()
    failures = attempts = 0
    contact = _FirstContact(retry)
    while True:
        try:
            with _Open(client) as stream:
                stream.session.subscribe(wanted, place.positions)
                stream.waits_for(_SUBSCRIPTION)
                if attempts:
                    yield Reconnected(attempts)
                away = bool(place.gaps.ranges)
                for event in stream.events():
                    failures = attempts = 0
                    contact.made = True
                    if isinstance(event, Receipts) or not place.take(event):
                        continue
                    assert not isinstance(event, Began), "a place takes it"
                    yield event
                    yield from _fill(client, wanted, place, event, away=away)
        except (ClientUnreachableError, ClientRefusedError) as error:
            failures, attempts = failures + 1, attempts + 1
            if not _may_retry(error) or failures == retry.attempts_max or contact.too_late():
                raise
            if lost is not None:
                lost(error)
        time.sleep(retry.pause_s(failures))


async def subscribe_async(
    client: AsyncRelayClient,
    wanted: Subscribe,
    *,
    place: Place | None = None,
    retry: Retry | None = None,
    lost: Lost | None = None,
) -> AsyncGenerator[Event, None]:
    """Yield what `subscribe` yields, on asyncio or trio; same arguments, same errors.

    Whoever stops early closes it: ``async with aclosing(subscribe_async(…)) as events``.
    """
    place = place or Place()
    retry = retry or Retry()
    failures = attempts = 0
    contact = _FirstContact(retry)
    while True:
        try:
            stream = await _open_async(client)
            try:
                stream.session.subscribe(wanted, place.positions)
                stream.line.patience.begin(_SUBSCRIPTION)
                if attempts:
                    yield Reconnected(attempts)
                away = bool(place.gaps.ranges)
                while True:
                    for event in await stream.next_events():
                        failures = attempts = 0
                        contact.made = True
                        if isinstance(event, Receipts) or not place.take(event):
                            continue
                        assert not isinstance(event, Began), "a place takes it"
                        yield event
                        async for found in _fill_async(client, wanted, place, event, away=away):
                            yield found
            finally:
                await stream.line.aclose()
        except (ClientUnreachableError, ClientRefusedError) as error:
            failures, attempts = failures + 1, attempts + 1
            if not _may_retry(error) or failures == retry.attempts_max or contact.too_late():
                raise
            if lost is not None:
                lost(error)
        await anyio.sleep(retry.pause_s(failures))


class _Open:
    """A blocking stream."""

    def __init__(self, client: RelayClient) -> None:
        self._line: Line = client.connect()
        try:
            steps = Exchanges(client.endpoint).upgrade(STREAM_PATH, os.urandom(KEY_BYTES))
            self.session = StreamSession(
                self._line.run(steps), client.checks, client.endpoint.place
            )
        except BaseException:
            self._line.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(ClientUnreachableError):
            self.session.close()
            self._line.send(self.session.data())
        self._line.close()

    def events(self) -> Iterator[Incoming]:
        """Yield for ever; raises when the stream is over."""
        yield from self.session.pending()
        while True:
            self.flush()
            before = self.session.progress
            found = self.session.receive(self._line.receive())
            if self.session.progress != before:
                self._line.patience.begin(_FRAME, SILENCE_S)
            yield from found

    def waits_for(self, what: str) -> None:
        """Have an answer of its own time."""
        self._line.patience.begin(what)

    def flush(self) -> None:
        """Send what waits."""
        if data := self.session.data():
            self._line.send(data)


class _OpenAsync:
    """An asynchronous stream."""

    def __init__(self, line: AsyncLine, session: StreamSession) -> None:
        self.line = line
        self.session = session
        self._begun = False

    async def next_events(self) -> list[Incoming]:
        """Return the next events, perhaps none; raises when the stream is over."""
        if not self._begun:
            self._begun = True
            if found := self.session.pending():
                return found
        if data := self.session.data():
            await self.line.send(data)
        before = self.session.progress
        found = self.session.receive(await self.line.receive())
        if self.session.progress != before:
            self.line.patience.begin(_FRAME, SILENCE_S)
        return found


async def _open_async(client: AsyncRelayClient) -> _OpenAsync:
    line = await client.connect()
    try:
        steps = Exchanges(client.endpoint).upgrade(STREAM_PATH, os.urandom(KEY_BYTES))
        where = client.endpoint.place
        return _OpenAsync(line, StreamSession(await line.run(steps), client.checks, where))
    except BaseException:
        await line.aclose()
        raise


class PublishStream:
    """Publishes over one WebSocket: no new request for each message.

    Raises:
        ClientUnreachableError: the node cannot be reached.
        ClientRefusedError: it refuses.

    """

    def __init__(self, client: RelayClient) -> None:
        """Open the stream."""
        self._open = _Open(client)
        self._events = self._open.events()
        self._receipts: deque[Receipts] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def publish(self, messages: Sequence[Outgoing]) -> list[Receipt]:
        """Return a receipt for each message, once all have their verdict.

        Raises:
            ClientUnreachableError: no answer; publishing again is safe.
            ClientRefusedError: the messages as a whole were refused.
            ClientRemoteError: the answer cannot be used.

        """
        self.send(messages)
        return self.receive(len(messages))

    def send(self, messages: Sequence[Outgoing]) -> None:
        """Send messages without waiting; one `receive` for each call."""
        self._open.waits_for("the receipts")
        self._open.session.publish(messages)
        self._open.flush()

    def receive(self, count: int) -> list[Receipt]:
        """Return the receipts of the oldest `send` that has none yet, which had ``count``."""
        for event in self._events:
            if isinstance(event, Receipts):
                if len(event.receipts) != count:
                    raise ClientRemoteError("receipts that do not match", where="publish")
                return list(event.receipts)
        raise AssertionError  # events never end without an error
