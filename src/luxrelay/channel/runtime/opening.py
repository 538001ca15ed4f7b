"""`create_reliable_channel`: the one way to open a channel.

Source: reliable-channel-api (createReliableChannel, closeChannel); decisions C7, C9.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread

from luxrelay.channel.budget import check_fits
from luxrelay.channel.encryption import DEFAULT_OVERHEAD_BYTES, Encryption
from luxrelay.channel.params import (
    ChannelConfig,
    RateLimitConfig,
    SdsConfig,
    SegmentationConfig,
)
from luxrelay.channel.runtime.channel import ReliableChannel
from luxrelay.channel.runtime.messaging import Messaging
from luxrelay.channel.runtime.persistence import MemoryPersistence
from luxrelay.channel.session import ChannelSession
from luxrelay.channel.state import ChannelScope, Persistence, Row, RowStore
from luxrelay.channel.wire import ID_BYTES_MAX
from luxrelay.errors import ChannelArgumentError, ChannelError


def wall_clock_ms() -> int:
    """Return Unix milliseconds."""
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def create_reliable_channel(
    messaging: Messaging,
    channel_id: str,
    content_topic: str,
    sender_id: str,
    encryption: Encryption | None = None,
    *,
    sds_config: SdsConfig | None = None,
    segmentation_config: SegmentationConfig | None = None,
    rate_limit_config: RateLimitConfig | None = None,
    config: ChannelConfig | None = None,
    events_taken: int = 0,
    clock_ms: Callable[[], int] = wall_clock_ms,
    rng: random.Random | None = None,
) -> AsyncIterator[ReliableChannel]:
    """Open a channel for as long as the context lasts; leaving it closes the channel.

    What was not acknowledged when the channel was last open is sent again, events not taken are
    told again, and messages missed meanwhile are fetched as far as the layer below stores them.

    Args:
        messaging: The layer below.
        channel_id: The channel; the same for all participants.
        content_topic: Where its messages travel; the same for all participants.
        sender_id: Who we are; unique in the channel, and the same each time.
        encryption: The hook; None sends in the clear.
        sds_config: Synchronisation, and where state is kept.
        segmentation_config: Segments.
        rate_limit_config: Pace.
        config: Profiles and bounds.
        events_taken: Events up to this position have been dealt with, whatever the state says.
        clock_ms: Unix milliseconds; for tests.
        rng: Chance; for tests.

    Raises:
        ChannelArgumentError: a name is empty, the persistences differ, what the configuration makes
            does not fit into a message of the layer below, or it makes proofs that the layer below
            does not carry (``carries_proofs``).
        ChannelError: the state is open elsewhere or cannot be read.
        MessagingError: the topic cannot be had.

    """
    sds = sds_config or SdsConfig()
    segmentation = segmentation_config or SegmentationConfig()
    pace = rate_limit_config or RateLimitConfig()
    bounds = config or ChannelConfig()
    scope = ChannelScope(channel_id, sender_id)
    _check(messaging, scope, content_topic, encryption, sds, segmentation)
    if pace.proof_provider is not None and not getattr(messaging, "carries_proofs", True):
        # Its receivers would refuse every message, and it would find out by silence.
        raise ChannelArgumentError(
            "the layer below carries no rate limit proofs",
            where="RateLimitConfig.proof_provider",
            hint="leave it out, or use a layer that carries them",
        )
    persistence = sds.persistence or MemoryPersistence()
    rows, kept = await _open(persistence, scope)
    try:
        now, now_ms = anyio.current_time(), clock_ms()
        session = ChannelSession(
            channel_id=channel_id,
            sender_id=sender_id,
            segmentation=segmentation,
            sds=sds,
            rate_limit=pace,
            config=bounds,
            encryption=encryption,
            payload_bytes_max=messaging.payload_bytes_max,
            rng=rng or random.SystemRandom(),
            now=now,
            now_ms=now_ms,
        )
        _restore(session, kept, now, now_ms, events_taken)
    except BaseException:
        rows.close()
        raise
    seen_ms = session.last_seen_ms
    since_ms = max(0, seen_ms - bounds.fetch_overlap_ms) if seen_ms else None
    channel = ReliableChannel(
        session,
        messaging,
        content_topic,
        bounds,
        rows,
        blocking=persistence.blocking,
        clock_ms=clock_ms,
    )
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            await tasks.start(channel.run, since_ms)
            yield channel
        except Exception as raised:  # noqa: BLE001 - passed on below, not wrapped in a group
            failure = raised
        finally:
            with anyio.CancelScope(shield=True):
                await channel.close()
    if failure is not None:
        raise failure


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


async def _open(persistence: Persistence, scope: ChannelScope) -> tuple[RowStore, list[Row]]:
    """Return the rows of a scope, and what they are; in a thread when that blocks."""

    def opened() -> tuple[RowStore, list[Row]]:
        rows = persistence.open(scope)
        try:
            return rows, list(rows.load())
        except BaseException:
            rows.close()
            raise

    return await anyio.to_thread.run_sync(opened) if persistence.blocking else opened()
