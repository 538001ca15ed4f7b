"""Timer of sync messages, and acknowledgements that others wait for.

Whoever sends something learns that it arrived from the causal history of somebody else's message.
So what was delivered is *to be acknowledged* until a message names it: one of ours, or one of
another participant, because one witness is enough. When none of ours goes out within a random part
of ``acknowledge_after_ms``, a sync message does it.

Beside that, a sync message goes out when nothing was heard for long, so that whoever missed the
last messages finds out. Its interval doubles with each one up to a bound, begins anew with content,
and is put off by another participant whose sync message says all that ours would.

Source: SDS (sync messages).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from luxrelay.channel.history import LocalLog
from luxrelay.channel.params import SdsConfig
from luxrelay.channel.wire import MessageKind, SdsMessage

if TYPE_CHECKING:
    from random import Random


class SyncPlan:
    """The two timers of sync messages of one participant in one channel.

    Args:
        config: Times and bounds.
        log: What is named; read only.
        rng: Chance for back-off.
        now: Monotonic seconds.

    """

    def __init__(self, config: SdsConfig, log: LocalLog, rng: Random, now: float) -> None:
        self._config = config
        self._log = log
        self._rng = rng
        self._to_acknowledge: dict[str, None] = {}
        self._acknowledge_at: float | None = None
        self._idle_s = config.sync_interval_ms / 1000
        self._idle_at = now + self._pause()

    def acknowledge(self, name: str, now: float) -> None:
        """Name a delivered message of somebody else soon."""
        self._to_acknowledge[name] = None
        if len(self._to_acknowledge) > self._config.log_max:
            del self._to_acknowledge[next(iter(self._to_acknowledge))]
        if self._acknowledge_at is None:
            self._acknowledge_at = now + self._soon()

    def begin(self, now: float) -> None:
        """Say soon what we have, after a restart."""
        for name in self._log.newest(self._config.causal_history_max):
            self.acknowledge(name, now)

    def named(self, names: Iterable[str]) -> None:
        """Note that a message of ours names these, and has gone out."""
        for name in names:
            self._to_acknowledge.pop(name, None)
        if not self._to_acknowledge:
            self._acknowledge_at = None

    def heard(self, message: SdsMessage, now: float) -> None:
        """Note what a message of another participant says in our place."""
        named = {entry.message_id for entry in message.causal_history}
        for name in named & self._to_acknowledge.keys():
            entry = self._log.get(name)
            if entry is None or entry.sender_id != message.sender_id:
                del self._to_acknowledge[name]
        if message.kind is MessageKind.CONTENT:
            self._idle_s = self._config.sync_interval_ms / 1000
            self._idle_at = min(self._idle_at, now + self._pause())
        elif named.issuperset(self._log.tips):
            self._idle_at = now + self._pause()

    def due(self, now: float) -> bool:
        """Return whether a sync message is to go out; the timers begin anew."""
        acknowledge = self._acknowledge_at is not None and self._acknowledge_at <= now
        if acknowledge:
            self._acknowledge_at = None
        idle = self._idle_at <= now
        if idle:
            self._idle_s = min(2 * self._idle_s, self._config.sync_interval_max_ms / 1000)
            self._idle_at = now + self._pause()
        return (acknowledge and bool(self._to_acknowledge)) or (idle and len(self._log) > 0)

    def sent(self, names: Iterable[str], now: float) -> None:
        """Note that a sync message names these; what did not fit follows shortly."""
        self.named(names)
        if self._to_acknowledge:
            self._acknowledge_at = now + self._soon() / 4

    def wake_at(self) -> float:
        """Return when `due` may be true."""
        return (
            self._idle_at
            if self._acknowledge_at is None
            else min(self._idle_at, self._acknowledge_at)
        )

    def names(self, *, content: bool) -> list[str]:
        """Return what a message of ours is to name, at most ``causal_history_max``.

        The newest of the log, the tips or a random part of them, and what is to be acknowledged;
        with content also what is pending, because it leaves first.
        """
        config = self._config
        newest = self._log.newest(config.causal_history_size)
        if content and self._log.pending:
            newest = [*newest, *self._log.pending][-config.causal_history_size :]
        names = dict.fromkeys(newest)
        room = config.causal_history_max - len(names)
        if room <= 0:
            return list(names)
        tips = [tip for tip in self._log.tips if tip not in names]
        if len(tips) > (room + 1) // 2:
            tips = self._rng.sample(tips, (room + 1) // 2)
        names.update(dict.fromkeys(tips))
        for name in self._to_acknowledge:
            if len(names) >= config.causal_history_max:
                break
            if name in self._log:
                names[name] = None
        return list(names)

    def _soon(self) -> float:
        """Return seconds until an acknowledgement: half to all of its longest time."""
        return self._config.acknowledge_after_ms / 1000 * (0.5 + self._rng.random() / 2)

    def _pause(self) -> float:
        """Return seconds until an idle sync message: once to twice the interval."""
        return self._idle_s * (1 + self._rng.random())
