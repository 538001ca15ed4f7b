"""Events to an application: as an async iterator, or to callbacks; one of the two.

An event is *taken* when the iterator is asked for the next one, or when all callbacks for it have
returned; only then is it forgotten. What is not taken is told again after a restart.

Source: reliable-channel-api (messageEvents); decision C2.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import anyio

from luxrelay.channel.events import EVENT_NAMES, ChannelEvent
from luxrelay.errors import ChannelArgumentError, LuxRelayError

Callback = Callable[[ChannelEvent], Awaitable[None] | None]
"""Called with each event, in order; may be a coroutine function."""

_LOG: Final = logging.getLogger("luxrelay.channel")


class MessageEvents:
    """The events of one channel.

    Args:
        taken: Told the position up to which events have been taken.

    """

    def __init__(self, taken: Callable[[int], None]) -> None:
        self._taken = taken
        self._events: deque[ChannelEvent] = deque()
        self._changed = anyio.Event()
        self._closed = False
        self._error: LuxRelayError | None = None
        self._last: ChannelEvent | None = None
        self._waiting = False
        self._callbacks: dict[str, list[Callback]] = {}
        self.callback_errors = 0
        """Exceptions that callbacks raised; each was logged."""

    # For the application

    def on(self, name: str, callback: Callback) -> Callable[[], None]:
        """Call ``callback`` with each event of a name from now on, and return what ends that.

        Args:
            name: One of `EVENT_NAMES`.
            callback: A function or coroutine function. What it raises is logged and counted.

        Raises:
            ChannelArgumentError: there is no such event, or an iterator takes the events.

        """
        if name not in EVENT_NAMES:
            raise ChannelArgumentError(
                f"no event {name}", where="on", hint=f"one of {', '.join(EVENT_NAMES)}"
            )
        if self._waiting:
            raise ChannelArgumentError(
                "an iterator takes the events", where="on", hint="use callbacks or an iterator"
            )
        self._callbacks.setdefault(name, []).append(callback)
        self._wake()

        def off() -> None:
            if callback in self._callbacks.get(name, []):
                self._callbacks[name].remove(callback)

        return off

    def __aiter__(self) -> AsyncIterator[ChannelEvent]:
        """Return an iterator over all events; it ends when the channel closes.

        One that was left goes on in the next: asking that for an event takes the last one.
        """
        return _Iterator(self)

    def take(self, event: ChannelEvent) -> None:
        """Say that an event, and all before it, need not be told again after a restart.

        An iterator says so by asking for the next one; this is for the last one before a break.
        """
        self._taken(event.position)

    # For the channel

    def put(self, event: ChannelEvent) -> None:
        """Have an event to be taken."""
        self._events.append(event)
        self._wake()

    def close(self, error: LuxRelayError | None = None) -> None:
        """End every wait, with an error or without."""
        self._closed = True
        self._error = self._error or error
        self._wake()

    async def call_back(self) -> None:
        """Give events to callbacks, as long as the channel is open."""
        while not self._closed:
            if not self._events or not self._callbacks:
                await self._wait()
                continue
            event = self._events.popleft()
            for callback in list(self._callbacks.get(event.name, ())):
                await self._call(callback, event)
            self._taken(event.position)

    async def _call(self, callback: Callback, event: ChannelEvent) -> None:
        try:
            result = callback(event)
            if inspect.isawaitable(result):
                await result
        except Exception:  # noqa: BLE001 - the application may raise anything
            self.callback_errors += 1
            _LOG.exception("a callback for %s failed", event.name)

    async def next(self) -> ChannelEvent:
        """Return the next event once there is one; the last one is taken.

        Raises:
            ChannelArgumentError: somebody else waits for events, or callbacks get them.
            StopAsyncIteration: the channel is closed.
            LuxRelayError: it broke.

        """
        if self._waiting or self._callbacks:
            raise ChannelArgumentError(
                "somebody else takes the events", where="events", hint="iterate in one place"
            )
        if self._last is not None:
            self._taken(self._last.position)
            self._last = None
        self._waiting = True
        try:
            while not self._events and not self._closed:
                await self._wait()
        finally:
            self._waiting = False
        if self._closed:
            if self._error is not None:
                raise self._error
            raise StopAsyncIteration
        self._last = self._events.popleft()
        return self._last

    async def _wait(self) -> None:
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class _Iterator:
    """One pass over the events."""

    def __init__(self, events: MessageEvents) -> None:
        self._events = events

    def __aiter__(self) -> AsyncIterator[ChannelEvent]:
        return self

    async def __anext__(self) -> ChannelEvent:
        return await self._events.next()
