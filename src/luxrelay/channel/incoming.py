"""Received messages that wait for their dependencies.

A message waits for ids. Of these some are *missing*: nobody has sent them to us yet, and they are
fetched and asked for. Others wait themselves. A missing id that does not come within
``lost_timeout_ms`` is *lost*: from then on nobody waits for it.

Bounds: ``incoming_max`` messages, ``incoming_bytes_max`` bytes. A full buffer takes no message,
except one that others wait for: then the message with the highest clock gives way. ``incoming_max``
missing ids; those beyond are not looked for, and come up again with the next message that names
them. ``recent_max`` lost ids are remembered, and ids of ephemeral messages.

Source: SDS (incoming buffer, sweep); decision C6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from luxrelay.channel.params import SdsConfig
from luxrelay.channel.schedule import Schedule
from luxrelay.channel.state import Journal, Row, StateTable
from luxrelay.channel.wire import HistoryEntry, SdsMessage

_LOST: Final = b"lost:"


@dataclass(slots=True)
class WaitingMessage:
    """One message that waits."""

    message: SdsMessage
    """The message."""
    data: bytes
    """Its bytes."""
    hint: bytes
    """The name under which a store has it."""
    unmet: set[str]
    """What it waits for."""
    lost: list[str]
    """What it no longer waits for, because it is lost."""


@dataclass(slots=True)
class Missing:
    """One message that somebody named and nobody has sent us."""

    entry: HistoryEntry
    """As it was named."""
    since: float
    """When, monotonic seconds."""


class Incoming:
    """The incoming buffer of one participant in one channel.

    Args:
        config: Times and bounds.
        journal: Where changes are written down.

    """

    def __init__(self, config: SdsConfig, journal: Journal) -> None:
        self._config = config
        self._journal = journal
        self._waiting: dict[str, WaitingMessage] = {}
        self._dependents: dict[str, set[str]] = {}
        self._missing: dict[str, Missing] = {}
        self._fetches = Schedule()
        self._fetching: set[str] = set()
        self._size = 0
        self._recent: dict[str, None] = {}
        self.lost: dict[str, None] = {}
        """Ids nobody waits for any more."""
        self._overlooked = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._waiting

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return self._size

    @property
    def missing(self) -> dict[str, Missing]:
        """What is missing, oldest first."""
        return self._missing

    def sought(self) -> list[HistoryEntry]:
        """Return what is missing and would be taken: first what others wait for."""
        wanted: list[HistoryEntry] = []
        named: list[HistoryEntry] = []
        for name, missing in self._missing.items():
            (wanted if name in self._dependents else named).append(missing.entry)
        full = (
            len(self._waiting) >= self._config.incoming_max
            or self._size >= self._config.incoming_bytes_max
        )
        return wanted if full else wanted + named

    def wanted(self, message_id: str) -> bool:
        """Return whether a message waits for this id."""
        return message_id in self._dependents

    def seen_lately(self, message_id: str) -> bool:
        """Return whether an ephemeral message is a repetition; from now on it is."""
        if message_id in self._recent:
            return True
        self._recent[message_id] = None
        if len(self._recent) > self._config.recent_max:
            del self._recent[next(iter(self._recent))]
        return False

    def add(self, waiting: WaitingMessage) -> list[WaitingMessage]:
        """Have a message; return those that give way, among which may be this one.

        The caller looks for what gave way if others wait for it.
        """
        message_id = waiting.message.message_id
        if self._over(waiting) and not (self.wanted(message_id) and self._waiting):
            return [waiting]
        gone: list[WaitingMessage] = []
        self._put(waiting)
        self._journal.put(
            StateTable.INCOMING,
            message_id.encode(),
            bytes((len(waiting.hint),)) + waiting.hint + waiting.data,
        )
        while self._over() and len(self._waiting) > 1:
            furthest = max(
                self._waiting.values(),
                key=lambda one: (one.message.lamport_timestamp or 0, one.message.message_id),
            )
            self._take(furthest.message.message_id)
            for name in furthest.unmet:
                self._dependents[name].discard(furthest.message.message_id)
                if not self._dependents[name]:
                    del self._dependents[name]
            gone.append(furthest)
            if furthest is waiting:
                break
        return gone

    def _over(self, more: WaitingMessage | None = None) -> bool:
        """Return whether a bound is exceeded, or would be with one more."""
        count, size = len(self._waiting), self._size
        if more is not None:
            count, size = count + 1, size + len(more.data)
        return count > self._config.incoming_max or size > self._config.incoming_bytes_max

    def miss(self, entry: HistoryEntry, now: float, fetch_at: float) -> bool:
        """Look for a message that was named; returns whether that is new."""
        if entry.message_id in self._missing or entry.message_id in self._waiting:
            return False
        if len(self._missing) >= self._config.incoming_max and not self._displace(entry):
            self._overlooked = True
            return False
        self._missing[entry.message_id] = Missing(entry, now)
        if entry.retrieval_hint:
            self._fetches.put(entry.message_id, fetch_at)
        return True

    def _displace(self, entry: HistoryEntry) -> bool:
        """Stop looking for one that nobody waits for, if somebody waits for the entry."""
        if not self.wanted(entry.message_id):
            return False
        named = (one for one in reversed(self._missing) if one not in self._dependents)
        message_id = next(named, None)
        if message_id is None:
            return False
        self.found(message_id)
        return True

    def look_again(self, now: float) -> None:
        """Look for what waiting messages depend on and there was no room to look for."""
        if not self._overlooked or 2 * len(self._missing) > self._config.incoming_max:
            return
        self._overlooked = False
        for waiting in in_order(self._waiting.values()):
            for entry in waiting.message.causal_history:
                if entry.message_id in waiting.unmet:
                    self.miss(entry, now, now)

    def found(self, message_id: str) -> None:
        """Stop looking for a message: it is here."""
        self._missing.pop(message_id, None)
        self._fetches.remove(message_id)

    def met(self, message_id: str) -> list[WaitingMessage]:
        """Note that an id needs no waiting for; return and forget the messages that are free."""
        self.found(message_id)
        free = []
        for name in self._dependents.pop(message_id, ()):
            waiting = self._waiting[name]
            waiting.unmet.discard(message_id)
            if not waiting.unmet:
                self._take(name)
                free.append(waiting)
        return free

    def lose(self, now: float) -> list[tuple[HistoryEntry, list[WaitingMessage]]]:
        """Return what is lost, with the messages that this frees; they report it."""
        timeout = self._config.lost_timeout_ms / 1000
        out = []
        while self._missing:
            message_id, missing = next(iter(self._missing.items()))
            if missing.since + timeout > now:
                break
            for name in self._dependents.get(message_id, ()):
                self._waiting[name].lost.append(message_id)
            out.append((missing.entry, self.met(message_id)))
            self.lost[message_id] = None
            self._journal.put(StateTable.META, _LOST + message_id.encode(), b"\x01")
            if len(self.lost) > self._config.recent_max:
                self.not_lost(next(iter(self.lost)))
        return out

    def not_lost(self, message_id: str) -> None:
        """Wait for an id again when it is named: it came after all, or makes room."""
        if message_id in self.lost:
            del self.lost[message_id]
            self._journal.remove(StateTable.META, _LOST + message_id.encode())

    def due_fetches(self, now: float) -> list[HistoryEntry]:
        """Return what to fetch from a store now; each counts as under way until `fetched`."""
        free = self._config.retrievals_max - len(self._fetching)
        out = []
        for message_id in self._fetches.due(now, max(free, 0)):
            self._fetching.add(message_id)
            out.append(self._missing[message_id].entry)
        return out

    def fetched(self, message_id: str, now: float) -> None:
        """Note that a fetch has ended; one in vain is repeated later."""
        self._fetching.discard(message_id)
        if message_id in self._missing:
            self._fetches.put(message_id, now + self._config.retrieval_interval_ms / 1000)

    def wake_at(self) -> float | None:
        """Return when `lose` or `due_fetches` has something to do."""
        times = []
        if self._missing:
            oldest = next(iter(self._missing.values()))
            times.append(oldest.since + self._config.lost_timeout_ms / 1000)
        if len(self._fetching) < self._config.retrievals_max:
            fetch = self._fetches.next()
            if fetch is not None:
                times.append(fetch)
        return min(times, default=None)

    def restore_lost(self, rows: Iterable[Row]) -> None:
        """Have the lost ids that were kept; other rows are not looked at."""
        for row in rows:
            if row.table is StateTable.META and row.key.startswith(_LOST):
                self.lost[row.key[len(_LOST) :].decode()] = None

    def restore(
        self, rows: Iterable[Row], unmet: Callable[[SdsMessage], list[HistoryEntry]], now: float
    ) -> list[str]:
        """Have the messages that were kept, look for what they miss, and return their ids.

        Args:
            rows: Rows of INCOMING; others are not looked at.
            unmet: Says what a message depends on and we have not delivered.
            now: Monotonic seconds.

        """
        entries: list[HistoryEntry] = []
        for row in rows:
            if row.table is StateTable.INCOMING and row.value is not None:
                end = 1 + row.value[0]
                message = SdsMessage.decode(row.value[end:])
                needed = unmet(message)
                entries += needed
                names = {entry.message_id for entry in needed}
                self._put(WaitingMessage(message, row.value[end:], row.value[1:end], names, []))
        for entry in entries:
            self.miss(entry, now, now)
        return list(self._waiting)

    def _put(self, waiting: WaitingMessage) -> None:
        message_id = waiting.message.message_id
        self._waiting[message_id] = waiting
        self._size += len(waiting.data)
        for name in waiting.unmet:
            self._dependents.setdefault(name, set()).add(message_id)

    def _take(self, message_id: str) -> None:
        waiting = self._waiting.pop(message_id)
        self._size -= len(waiting.data)
        self._journal.remove(StateTable.INCOMING, message_id.encode())


def in_order(messages: Iterable[WaitingMessage]) -> list[WaitingMessage]:
    """Return messages in the order of the log."""
    return sorted(
        messages, key=lambda one: (one.message.lamport_timestamp or 0, one.message.message_id)
    )
