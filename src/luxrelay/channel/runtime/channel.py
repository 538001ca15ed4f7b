"""`ReliableChannel`: the session on a loop.

One task owns the session. It takes all inputs that wait, up to a batch, feeds them, makes the
changes durable in one commit, and only then lets the actions take effect: payloads to the task that
dispatches them in order, fetches to tasks of their own, events to the application.

Source: reliable-channel-api; decisions C1 to C9.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus

from luxrelay.channel.actions import Fetch
from luxrelay.channel.announcing import Announce
from luxrelay.channel.events import ReliableSendId
from luxrelay.channel.outbox import Dispatch
from luxrelay.channel.params import (
    ChannelConfig,
)
from luxrelay.channel.requests import SegmentRequest
from luxrelay.channel.runtime.emitter import MessageEvents
from luxrelay.channel.runtime.messaging import Envelope, Messaging, Subscription
from luxrelay.channel.session import ChannelSession
from luxrelay.channel.state import RowStore
from luxrelay.errors import ChannelError, LuxRelayError, MessagingError

Result = TypeVar("Result")
Input = Callable[[float, int], None]
"""Something to do with the session: told the monotonic seconds and the Unix milliseconds."""


@dataclass(slots=True, eq=False)
class _Send:
    """A call of `send` or `send_ephemeral` on its way through the owner's task."""

    message: bytes
    ephemeral: bool = False
    done: anyio.Event = field(default_factory=anyio.Event)
    request_id: ReliableSendId | None = None
    error: LuxRelayError | None = None


class ReliableChannel:
    """An open channel; made by `create_reliable_channel`."""

    def __init__(
        self,
        session: ChannelSession,
        messaging: Messaging,
        content_topic: str,
        config: ChannelConfig,
        rows: RowStore,
        *,
        blocking: bool,
        clock_ms: Callable[[], int],
    ) -> None:
        self._session = session
        self._messaging = messaging
        self._topic = content_topic
        self._config = config
        self._rows = rows
        self._blocking = blocking
        self._clock_ms = clock_ms
        self._inputs: deque[Input] = deque()
        self._sends: deque[_Send] = deque()
        self._told: list[_Send] = []
        self._dispatches: deque[Dispatch] = deque()
        self._signal = anyio.Event()
        self._dispatch_signal = anyio.Event()
        self._drained = anyio.Event()
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._taken_to = 0
        self.began = False
        """A task has the channel, and lets go of its state at the end."""
        self._error: LuxRelayError | None = None
        self.message_events = MessageEvents(self._taken)
        """The events: iterate over it, or register callbacks with its ``on``."""

    # For the application

    async def send(self, message: bytes) -> ReliableSendId:
        """Send bytes of any size and return the name of the request, once it is durable.

        Waits while too much is unacknowledged (`SdsConfig.outgoing_bytes_max`). When it is
        cancelled while it waits for that, nothing is sent; later the message may be on its way.

        Args:
            message: The payload; may be empty.

        Raises:
            ChannelArgumentError: it makes more segments than `SegmentationConfig` allows.
            ChannelError: the channel is closed or its state cannot be kept.

        """
        call = await self._through(_Send(message))
        assert call.request_id is not None
        return call.request_id

    async def send_ephemeral(self, message: bytes) -> None:
        """Send bytes once: not ordered, not acknowledged, not repaired, dropped when pace is short.

        Args:
            message: 1 byte up to what fits into one message of the layer below.

        Raises:
            ChannelArgumentError: it is empty or too long.
            ChannelError: the channel is closed.

        """
        await self._through(_Send(message, ephemeral=True))

    def requests_of(self, request_id: ReliableSendId) -> tuple[SegmentRequest, ...]:
        """Return the segments of a call of `send` in order, each with its own request id.

        Of a call that has ended they are known for a while
        (`ChannelConfig.segments_remembered_max`), of one that an earlier run made only those that
        were not acknowledged then; of any other there are none.
        """
        return self._session.requests.segments_of(request_id)

    @property
    def open_requests(self) -> tuple[ReliableSendId, ...]:
        """The calls of `send` without a final event, those of an earlier run included."""
        return self._session.requests.open_ids

    def events(self) -> MessageEvents:
        """Return the events, to be iterated over with ``async for``; the same as the attribute."""
        return self.message_events

    async def close(self) -> None:
        """Unsubscribe, let go of the state, and end every wait. Idempotent; safe to cancel.

        What is unacknowledged stays in the state, and is sent again when the channel is opened
        again. After a cancelled close the channel is closed all the same, a little later.
        """
        self._scope.cancel()
        await self._ended.wait()

    @property
    def closed(self) -> bool:
        """Nothing can be sent any more."""
        return self._scope.cancel_called or self._ended.is_set() or self._error is not None

    @property
    def session(self) -> ChannelSession:
        """The machine with its counters; to be read only."""
        return self._session

    # The owner's task

    async def run(
        self, since_ms: int | None, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Own the session until the channel is closed."""
        self.began = True
        try:
            with self._scope:
                async with self._messaging.subscribe(self._topic, since_ms=since_ms) as arriving:
                    task_status.started()
                    await self._run_tasks(arriving)
        except Exception as error:
            what = f"the channel has ended: {error!r}"[:300]
            ours = error if isinstance(error, LuxRelayError) else None
            self._error = self._error or ours or ChannelError(what, where=self._topic)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._call(self._let_go)
            self._end()

    async def _run_tasks(self, arriving: Subscription) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive, arriving)
            for _ in range(self._config.dispatches_max):
                tasks.start_soon(self._dispatch)
            tasks.start_soon(self.message_events.call_back)
            tasks.start_soon(self._work, tasks)

    async def _work(self, tasks: TaskGroup) -> None:
        """Step whenever there is something to do."""
        try:
            while True:
                await self._step(tasks)
                if not self._inputs and not self._startable():
                    await self._wait()
        except ChannelError as error:
            self._break(error)

    async def _step(self, tasks: TaskGroup) -> None:
        """Feed what waits, commit, then let it take effect."""
        now, now_ms = anyio.current_time(), self._clock_ms()
        session = self._session
        for _ in range(min(len(self._inputs), self._config.batch_max)):
            self._inputs.popleft()(now, now_ms)
        if len(self._inputs) < self._config.inbox_max:
            self._drained.set()
            self._drained = anyio.Event()
        self._start_sends(now, now_ms)
        if session.wake_at() <= now:
            session.wake(now, now_ms)
        rows = session.changes()
        if rows:
            await self._call(lambda: self._rows.commit(rows))
        for call in self._told:
            call.done.set()
        self._told.clear()
        for action in session.drain():
            if isinstance(action, Dispatch):
                self._dispatches.append(action)
            elif isinstance(action, Announce):
                self.message_events.put(action.event)
            else:
                tasks.start_soon(self._fetch, action)
        if self._dispatches:
            self._dispatch_signal.set()
            self._dispatch_signal = anyio.Event()

    def _startable(self) -> bool:
        """Return whether a waiting call of `send` may go on."""
        if not self._sends:
            return False
        call = self._sends[0]
        return call.ephemeral or self._session.room_for(len(call.message))

    def _start_sends(self, now: float, now_ms: int) -> None:
        """Feed calls of `send`, in order, as far as there is room."""
        for _ in range(self._config.batch_max):
            if not self._startable():
                return
            call = self._sends.popleft()
            try:
                if call.ephemeral:
                    self._session.send_ephemeral(call.message, now, now_ms)
                else:
                    call.request_id = self._session.send(call.message, now, now_ms)
            except LuxRelayError as error:
                call.error = error
            self._told.append(call)

    async def _wait(self) -> None:
        """Sleep until there is an input or something comes due."""
        now = anyio.current_time()
        at = self._session.wake_at()
        with anyio.move_on_after(max(0.0, at - now)):
            await self._signal.wait()
        self._signal = anyio.Event()

    # The tasks beside it

    async def _receive(self, arriving: Subscription) -> None:
        """Take what arrives; when the layer below fails or ends, the channel breaks."""
        try:
            async for envelope in arriving:
                while len(self._inputs) >= self._config.inbox_max:
                    await self._drained.wait()
                self._post(partial(self._received, envelope))
            self._break(MessagingError("the layer below has closed", where=self._topic))
        except LuxRelayError as error:
            self._break(error)

    def _received(self, envelope: Envelope, now: float, now_ms: int) -> None:
        self._session.receive(envelope.payload, envelope.hint, envelope.proof, now, now_ms)

    async def _dispatch(self) -> None:
        """Hand payloads to the layer below, one after another; `dispatches_max` tasks do."""
        while True:
            while not self._dispatches:
                await self._dispatch_signal.wait()
            dispatch = self._dispatches.popleft()
            self._post(await self._dispatched(dispatch))

    async def _dispatched(self, dispatch: Dispatch) -> Input:
        """Hand one payload over and return what the session is to be told."""
        session, ticket = self._session, dispatch.ticket
        try:
            receipt = await self._messaging.send(
                self._topic, dispatch.payload, ephemeral=dispatch.ephemeral, proof=dispatch.proof
            )
        except MessagingError as error:
            text, refused = str(error), error.code == "channel.refused"
        except Exception as error:  # noqa: BLE001 - an adapter may raise anything
            text, refused = f"{type(error).__name__}: {error}", False
        else:
            hint = receipt.hint
            return lambda now, now_ms: session.dispatched(ticket, hint, now, now_ms)
        return lambda now, now_ms: session.dispatch_failed(
            ticket, text, now, now_ms, refused=refused
        )

    async def _fetch(self, fetch: Fetch) -> None:
        """Get a missing message from a store, or not."""
        entry = fetch.entry
        hint = entry.retrieval_hint or b""
        payload: bytes | None = None
        with suppress(Exception):  # a store that cannot be asked is one that does not have it
            payload = await self._messaging.fetch(self._topic, hint)

        def act(now: float, now_ms: int) -> None:
            if payload is not None:
                self._session.receive(payload, hint, b"", now, now_ms, fetched=True)
            self._session.fetched(entry.message_id, now)

        self._post(act)

    # What serves them

    def _post(self, act: Input) -> None:
        self._inputs.append(act)
        self._wake()

    def _wake(self) -> None:
        self._signal.set()

    def _taken(self, position: int) -> None:
        self._taken_to = max(self._taken_to, position)
        self._post(lambda _now, _now_ms: self._session.taken(self._taken_to))

    async def _through(self, call: _Send) -> _Send:
        """Have a call done by the owner's task, and return when it is durable.

        Raises:
            LuxRelayError: what the session said, or that the channel is closed.

        """
        self._check_open()
        self._sends.append(call)
        self._wake()
        try:
            await call.done.wait()
        finally:
            with suppress(ValueError):
                self._sends.remove(call)
        if call.error is not None:
            raise call.error
        return call

    def _let_go(self) -> None:
        """Keep what the application has taken last, and close the state."""
        if self._error is None:
            self._session.taken(self._taken_to)
            with suppress(ChannelError):
                self._rows.commit(self._session.changes())
        self._rows.close()

    async def _call(self, act: Callable[[], Result]) -> Result:
        """Call something of the persistence, in a thread when it blocks; not cut short."""
        if self._blocking:
            return await anyio.to_thread.run_sync(act)
        return act()

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self.closed:
            raise ChannelError("the channel is closed", where=self._topic)

    def _break(self, error: LuxRelayError) -> None:
        """Close with an error that every later call raises."""
        self._error = self._error or error
        self._scope.cancel()

    def _end(self) -> None:
        """End every wait."""
        self.message_events.close(self._error)
        error = self._error or ChannelError("the channel is closed", where=self._topic)
        for call in (*self._told, *self._sends):
            call.error = call.error or error
            call.done.set()
        self._sends.clear()
        self._ended.set()
