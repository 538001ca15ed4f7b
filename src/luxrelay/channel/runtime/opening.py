"""`create_reliable_channel`: the one way to open a channel.

Source: reliable-channel-api (createReliableChannel, closeChannel, NodeConfig); decisions C7, C9,
C10.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import trio
from anyio.abc import TaskGroup, TaskStatus

from luxrelay.channel.budget import check_fits
from luxrelay.channel.encryption import DEFAULT_OVERHEAD_BYTES, Encryption, SharedKeyEncryption
from luxrelay.channel.params import (
    ChannelConfig,
    ChannelDefaults,
    RateLimitConfig,
    SdsConfig,
    SegmentationConfig,
)
from luxrelay.channel.runtime.channel import ReliableChannel
from luxrelay.channel.runtime.messaging import Messaging, MessagingNode
from luxrelay.channel.runtime.persistence import MemoryPersistence
from luxrelay.channel.runtime.sqlite import SqlitePersistence
from luxrelay.channel.session import ChannelSession
from luxrelay.channel.state import ChannelScope, Persistence, Row, RowStore
from luxrelay.channel.wire import ID_BYTES_MAX
from luxrelay.errors import ChannelArgumentError, ChannelError

if TYPE_CHECKING:
    from trio import Nursery

_LOG: Final = logging.getLogger("luxrelay.channel")


def wall_clock_ms() -> int:
    """Return Unix milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The arguments of a call of `create_reliable_channel`."""

    node: Messaging | MessagingNode
    scope: ChannelScope
    topic: str
    encryption: Encryption | None
    sds: SdsConfig | None
    segmentation: SegmentationConfig | None
    pace: RateLimitConfig | None
    bounds: ChannelConfig
    folder: Path | None
    events_taken: int
    clock_ms: Callable[[], int]
    rng: random.Random


@dataclass(frozen=True, slots=True)
class _Made:
    """A channel that no task has yet."""

    channel: ReliableChannel
    rows: RowStore
    since_ms: int | None
    """Since when it has missed what came."""

    async def start(self, tasks: TaskGroup | Nursery | None) -> None:
        """Have it run, in a group or alone."""
        try:
            if tasks is None:
                await _run_alone(self.channel, self.since_ms)
            else:
                run: Callable[..., Coroutine[Any, Any, Any]] = self.channel.run
                await tasks.start(run, self.since_ms)
        finally:
            if not self.channel.began:  # else the task that has it lets go
                self.rows.close()


class ChannelOpening(AbstractAsyncContextManager[ReliableChannel]):
    """A channel that is opened when this is awaited or entered; made once for each channel.

    ``channel = await create_reliable_channel(...)`` keeps it until ``await channel.close()``, in a
    task of its own, or in ``tasks`` when they were given. ``async with`` closes it at the end.
    """

    def __init__(self, asked: _Asked, tasks: TaskGroup | Nursery | None) -> None:
        self._asked = asked
        self._tasks = tasks
        self._within: AbstractAsyncContextManager[ReliableChannel] | None = None

    def __await__(self) -> Generator[Any, Any, ReliableChannel]:
        return self._open().__await__()

    async def __aenter__(self) -> ReliableChannel:
        self._within = self._context()
        return await self._within.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._within is not None
        return await self._within.__aexit__(kind, error, trace)

    async def _open(self) -> ReliableChannel:
        made = await _made(self._asked)
        await made.start(self._tasks)
        return made.channel

    @asynccontextmanager
    async def _context(self) -> AsyncIterator[ReliableChannel]:
        made = await _made(self._asked)
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            try:
                await made.start(self._tasks or tasks)
                yield made.channel
            except Exception as raised:  # noqa: BLE001 - passed on below, not wrapped in a group
                failure = raised
            finally:
                if made.channel.began:
                    with anyio.CancelScope(shield=True):
                        await made.channel.close()
        if failure is not None:
            raise failure


def create_reliable_channel(
    node: Messaging | MessagingNode,
    channel_id: str,
    content_topic: str,
    sender_id: str,
    encryption: Encryption | None = None,
    *,
    sds_config: SdsConfig | None = None,
    segmentation_config: SegmentationConfig | None = None,
    rate_limit_config: RateLimitConfig | None = None,
    config: ChannelConfig | None = None,
    folder: Path | str | None = None,
    tasks: TaskGroup | Nursery | None = None,
    events_taken: int = 0,
    clock_ms: Callable[[], int] = wall_clock_ms,
    rng: random.Random | None = None,
) -> ChannelOpening:
    """Open a channel, when what is returned is awaited or entered with ``async with``.

    What was not acknowledged when the channel was last open is sent again, events not taken are
    told again, and messages missed meanwhile are fetched as far as the layer below stores them.

    Awaited, the channel runs beside the caller until it is closed or the loop ends, whatever
    becomes of the caller; what breaks it is raised by its calls and its events. With ``tasks`` it
    ends with them as well. Entered with ``async with`` it is closed at the end.

    Args:
        node: A running node, or a layer below.
        channel_id: The channel; the same for all participants.
        content_topic: Where its messages travel; the same for all participants.
        sender_id: Who we are; unique in the channel, and the same each time.
        encryption: The hook; None for the node's, which sends in the clear unless it has a key.
        sds_config: Synchronisation, and where state is kept; None for the node's.
        segmentation_config: Segments; None for the node's.
        rate_limit_config: Pace; None for the node's.
        config: Profiles and bounds.
        folder: Where state is kept, for each content topic apart; None for the node's.
        tasks: A task group or nursery in which the channel runs.
        events_taken: Events up to this position have been dealt with, whatever the state says.
        clock_ms: Unix milliseconds; for tests.
        rng: Chance; for tests.

    Raises:
        ChannelArgumentError: a name is empty, there are two places for the state, what the
            configuration makes does not fit into a message of the layer below, or it makes proofs
            that the layer below does not carry (``carries_proofs``).
        ChannelError: the state is open elsewhere or cannot be read.
        MessagingError: the topic cannot be had.

    """
    asked = _Asked(
        node=node,
        scope=ChannelScope(channel_id, sender_id),
        topic=content_topic,
        encryption=encryption,
        sds=sds_config,
        segmentation=segmentation_config,
        pace=rate_limit_config,
        bounds=config or ChannelConfig(),
        folder=None if folder is None else Path(folder),
        events_taken=events_taken,
        clock_ms=clock_ms,
        rng=rng or random.SystemRandom(),
    )
    return ChannelOpening(asked, tasks)


async def _made(asked: _Asked) -> _Made:
    """Return a channel with its state."""
    messaging = asked.node.messaging() if isinstance(asked.node, MessagingNode) else asked.node
    defaults = await _defaults_of(messaging)
    sds = asked.sds or defaults.sds_config
    segmentation = asked.segmentation or defaults.segmentation_config
    pace = asked.pace or defaults.rate_limit_config
    encryption = asked.encryption
    if encryption is None and defaults.encryption_key is not None:
        context = asked.scope.channel_id.encode()
        encryption = SharedKeyEncryption(defaults.encryption_key, context)
    _check(messaging, asked.scope, asked.topic, encryption, sds, segmentation)
    if pace.proof_provider is not None and not getattr(messaging, "carries_proofs", True):
        # Its receivers would refuse every message, and it would find out by silence.
        raise ChannelArgumentError(
            "the layer below carries no rate limit proofs",
            where="RateLimitConfig.proof_provider",
            hint="leave it out, or use a layer that carries them",
        )
    persistence = _persistence_of(asked, sds, defaults)
    rows, kept = await _opened(persistence, asked.scope)
    try:
        now, now_ms = anyio.current_time(), asked.clock_ms()
        session = ChannelSession(
            channel_id=asked.scope.channel_id,
            sender_id=asked.scope.sender_id,
            segmentation=segmentation,
            sds=sds,
            rate_limit=pace,
            config=asked.bounds,
            encryption=encryption,
            payload_bytes_max=messaging.payload_bytes_max,
            rng=asked.rng,
            now=now,
            now_ms=now_ms,
        )
        _restore(session, kept, now, now_ms, asked.events_taken)
    except BaseException:
        rows.close()
        raise
    seen_ms = session.last_seen_ms
    since_ms = max(0, seen_ms - asked.bounds.fetch_overlap_ms) if seen_ms else None
    channel = ReliableChannel(
        session,
        messaging,
        asked.topic,
        asked.bounds,
        rows,
        blocking=persistence.blocking,
        clock_ms=asked.clock_ms,
    )
    return _Made(channel, rows, since_ms)


async def _defaults_of(messaging: Messaging) -> ChannelDefaults:
    """Return what a layer below says that channels have; the specification's without a word."""
    told = getattr(messaging, "channel_defaults", None)
    return ChannelDefaults() if told is None else await told()


def _persistence_of(asked: _Asked, sds: SdsConfig, defaults: ChannelDefaults) -> Persistence:
    """Return where the state is kept: what the caller says, else the node's folder, else memory."""
    if asked.folder is not None and sds.persistence is not None:
        raise ChannelArgumentError(
            "a folder and a persistence are two places for one state",
            where="create_reliable_channel",
            hint="give one of the two",
        )
    if sds.persistence is not None:
        return sds.persistence
    folder = asked.folder or defaults.folder
    return MemoryPersistence() if folder is None else SqlitePersistence(folder, topic=asked.topic)


class _Begun(TaskStatus[None]):
    """Tells whoever waits that a task has begun, or why it has not."""

    def __init__(self) -> None:
        self.told = anyio.Event()
        self.well = False
        self.error: Exception | None = None

    def started(self, value: None = None) -> None:
        """Note that it has."""
        del value
        self.well = True
        self.told.set()


async def _run_alone(channel: ReliableChannel, since_ms: int | None) -> None:
    """Have a channel run in a task of no group, and return once it does."""
    begun = _Begun()

    async def run() -> None:
        try:
            await channel.run(since_ms, task_status=begun)
        except Exception as error:  # noqa: BLE001 - there is no group that would hear of it
            if begun.well:
                _LOG.exception("a channel has ended")  # its calls and events raise it as well
            begun.error = error
        finally:
            begun.told.set()

    _in_background(run)
    try:
        await begun.told.wait()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await channel.close()
        raise
    if begun.error is not None:
        raise begun.error


_BACKGROUND: Final[set[asyncio.Task[None]]] = set()
"""Tasks of asyncio, which keeps no hold of them itself."""


def _in_background(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run something beside all tasks of this loop; the end of the loop cancels it."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        task = asyncio.get_running_loop().create_task(run())
        _BACKGROUND.add(task)
        task.add_done_callback(_BACKGROUND.discard)
    else:
        trio.lowlevel.spawn_system_task(run)


def _check(  # noqa: PLR0917 - the arguments of its only caller
    messaging: Messaging,
    scope: ChannelScope,
    content_topic: str,
    encryption: Encryption | None,
    sds: SdsConfig,
    segmentation: SegmentationConfig,
) -> None:
    """Raise what is wrong with the arguments of `create_reliable_channel`."""
    names = (scope.channel_id, scope.sender_id, content_topic)
    if not all(names) or any("\0" in name or len(name.encode()) > ID_BYTES_MAX for name in names):
        raise ChannelArgumentError(
            "a channel id, sender id or content topic is empty, too long, or has a zero character",
            where="create_reliable_channel",
            hint=f"use 1 to {ID_BYTES_MAX} bytes of text",
        )
    if segmentation.persistence not in (None, sds.persistence):
        raise ChannelArgumentError(
            "segments and messages must be kept in one place, as they change together",
            where="create_reliable_channel",
            hint="give SdsConfig and SegmentationConfig the same persistence, or only the former",
        )
    overhead = getattr(encryption, "overhead_bytes", DEFAULT_OVERHEAD_BYTES)
    check_fits(
        segmentation,
        sds,
        channel_id=scope.channel_id,
        sender_id=scope.sender_id,
        cipher_bytes=0 if encryption is None else overhead,
        payload_bytes_max=messaging.payload_bytes_max,
    )


def _restore(session: ChannelSession, kept: list[Row], now: float, now_ms: int, taken: int) -> None:
    """Have the session begin from its rows, whatever they are.

    Raises:
        ChannelError: ``channel.state``: they are not what this configuration has written.

    """
    try:
        session.restore(kept, now, now_ms, taken=taken)
    except ChannelError:
        raise
    except Exception as error:
        raise ChannelError(
            f"the state is damaged, or of another configuration ({type(error).__name__}: {error})",
            where="create_reliable_channel",
            hint="open it with the segment revision it was written with, or drop it",
            code="channel.state",
        ) from error


async def _opened(persistence: Persistence, scope: ChannelScope) -> tuple[RowStore, list[Row]]:
    """Return the rows of a scope, and what they are; in a thread when that blocks."""

    def rows_of() -> tuple[RowStore, list[Row]]:
        rows = persistence.open(scope)
        try:
            return rows, list(rows.load())
        except BaseException:
            rows.close()
            raise

    return await anyio.to_thread.run_sync(rows_of) if persistence.blocking else rows_of()
