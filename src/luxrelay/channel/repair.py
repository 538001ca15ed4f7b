"""SDS-R: repair requests and responses, and their timers.

Everybody who misses a message waits a time of its own before asking, and everybody who has it
waits a time of its own before answering, so that as a rule one asks and one answers. The times
follow from ids by a hash; whoever hears another ask or answer puts its own turn off.

    T_req  = now + H(own, message) mod (t_max - t_min) + t_min
    T_resp = now + ((H(own) xor H(sender)) * H(message)) mod t_max       the sender itself: now
    group  : H(own, message) mod groups == H(sender, message) mod groups

H is the first eight bytes of SHA-256 over the concatenated text, big-endian, as in the JavaScript
implementation.

*Deviations from the specification*: a request is repeated after another T_req until the message has
come, because a request or its answer may itself be lost; the specification asks once. Hearing
somebody else ask puts our request off and does not cancel it, for the same reason. One id is
answered at most once in half of ``t_min``, so that requests cannot be used to make us flood.

Source: SDS-R.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from luxrelay.channel.params import RepairConfig
from luxrelay.channel.schedule import Schedule
from luxrelay.channel.state import Journal, Row, StateTable
from luxrelay.channel.wire import HistoryEntry


def hash64(*texts: str) -> int:
    """Return the 64-bit hash of concatenated texts."""
    return int.from_bytes(hashlib.sha256("".join(texts).encode()).digest()[:8], "big")


def request_delay_ms(own: str, message_id: str, config: RepairConfig) -> int:
    """Return how long a participant waits before it asks for a message."""
    return hash64(own, message_id) % (config.t_max_ms - config.t_min_ms) + config.t_min_ms


def response_delay_ms(own: str, sender: str, message_id: str, config: RepairConfig) -> int:
    """Return how long a participant waits before it answers for a message of ``sender``."""
    return ((hash64(own) ^ hash64(sender)) * hash64(message_id)) % config.t_max_ms


def in_response_group(own: str, sender: str, message_id: str, config: RepairConfig) -> bool:
    """Return whether a participant is one of those who answer for a message of ``sender``."""
    groups = config.response_groups
    return hash64(own, message_id) % groups == hash64(sender, message_id) % groups


class Repair:
    """What we miss and ask for, and what others asked for and we shall answer.

    Args:
        sender_id: Who we are.
        config: Times and bounds.
        journal: Where changes are written down.

    """

    def __init__(self, sender_id: str, config: RepairConfig, journal: Journal) -> None:
        self._own = sender_id
        self._config = config
        self._journal = journal
        self._missing: dict[str, HistoryEntry] = {}
        self._requests = Schedule()
        self._answers = Schedule()
        self._answered: dict[str, float] = {}
        self.evicted = 0
        """Missing messages and requests that gave way to others."""
        self.short = False
        """Something is missing that is not asked for: it gave way, or came and was turned away."""

    @property
    def roomy(self) -> bool:
        """At least half of ``buffer_max`` is free."""
        return 2 * len(self._missing) <= self._config.buffer_max

    # Inputs

    def missed(self, entry: HistoryEntry, now: float, now_ms: int) -> None:
        """Ask for a message when its time has come, unless it arrives."""
        if not self._config.enabled or not entry.sender_id or entry.message_id in self._missing:
            return
        delay = request_delay_ms(self._own, entry.message_id, self._config)
        self._missing[entry.message_id] = entry
        self._requests.put(entry.message_id, now + delay / 1000)
        self._journal.put(
            StateTable.REPAIR_OUT, entry.message_id.encode(), _pack(now_ms + delay, entry.sender_id)
        )
        if len(self._missing) > self._config.buffer_max:
            self.evicted += 1
            furthest = self._requests.furthest()
            assert furthest is not None
            self._forget_missing(furthest)
            self.short = True

    def ask_anew(self, entries: Iterable[HistoryEntry], now: float, now_ms: int) -> None:
        """Ask for everything that is missing, as far as there is room; clears `short` if all is."""
        self.short = False
        for entry in entries:
            if len(self._missing) >= self._config.buffer_max:
                self.short = True
                return
            self.missed(entry, now, now_ms)

    def arrived(self, message_id: str) -> None:
        """Neither ask nor answer any more: the message has just been seen."""
        self._forget_missing(message_id)
        if message_id in self._answers:
            self._answers.remove(message_id)
            self._journal.remove(StateTable.REPAIR_IN, message_id.encode())

    def given_up(self, message_id: str) -> None:
        """Do not ask any more."""
        self._forget_missing(message_id)

    def heard(
        self,
        entries: Iterable[HistoryEntry],
        holds: Callable[[str], bool],
        now: float,
        now_ms: int,
    ) -> None:
        """Take the requests of somebody else: put ours off, and plan answers for what we hold."""
        if not self._config.enabled:
            return
        for entry in entries:
            message_id, sender = entry.message_id, entry.sender_id
            if message_id in self._missing:
                delay = request_delay_ms(self._own, message_id, self._config)
                self._requests.put(message_id, now + delay / 1000)
            if not sender or message_id in self._answers or not holds(message_id):
                continue
            if not in_response_group(self._own, sender, message_id, self._config):
                continue
            if now < self._answered.get(message_id, now):
                continue
            delay = response_delay_ms(self._own, sender, message_id, self._config)
            self._answers.put(message_id, now + delay / 1000)
            self._journal.put(
                StateTable.REPAIR_IN, message_id.encode(), _pack(now_ms + delay, sender)
            )
            if len(self._answers) > self._config.buffer_max:
                self.evicted += 1
                furthest = self._answers.furthest()
                assert furthest is not None
                self._answers.remove(furthest)
                self._journal.remove(StateTable.REPAIR_IN, furthest.encode())

    def due_requests(self, now: float) -> tuple[HistoryEntry, ...]:
        """Return what to ask for in the next message, earliest first; each is asked for again."""
        entries = []
        for message_id in self._requests.due(now, self._config.requests_per_message):
            entries.append(self._missing[message_id])
            delay = request_delay_ms(self._own, message_id, self._config)
            self._requests.put(message_id, now + delay / 1000)
        return tuple(entries)

    def due_answers(self, now: float) -> list[str]:
        """Return the ids of messages to send again now."""
        ids = self._answers.due(now)
        for message_id in ids:
            self._journal.remove(StateTable.REPAIR_IN, message_id.encode())
            self._answered.pop(message_id, None)
            self._answered[message_id] = now + self._config.t_min_ms / 2000
        while len(self._answered) > self._config.buffer_max:
            del self._answered[next(iter(self._answered))]
        return ids

    def request_at(self) -> float | None:
        """Return when `due_requests` has something."""
        return self._requests.next()

    def answer_at(self) -> float | None:
        """Return when `due_answers` has something."""
        return self._answers.next()

    def restore(
        self,
        rows: Iterable[Row],
        missing: dict[str, HistoryEntry],
        now: float,
        now_ms: int,
    ) -> None:
        """Begin from what was kept.

        Args:
            rows: Rows of the tables REPAIR_OUT and REPAIR_IN; others are not looked at.
            missing: What is missing still, by id; rows of other ids are forgotten.
            now: Monotonic seconds.
            now_ms: Unix milliseconds.

        """
        for row in rows:
            if row.table not in {StateTable.REPAIR_OUT, StateTable.REPAIR_IN} or row.value is None:
                continue
            message_id = row.key.decode()
            at = now + max(0, int.from_bytes(row.value[:8], "big") - now_ms) / 1000
            if row.table is StateTable.REPAIR_IN:
                self._answers.put(message_id, at)
            elif message_id in missing:
                self._missing[message_id] = missing[message_id]
                self._requests.put(message_id, at)
            else:
                self._journal.remove(StateTable.REPAIR_OUT, row.key)
        for entry in missing.values():
            self.missed(entry, now, now_ms)

    def _forget_missing(self, message_id: str) -> None:
        if self._missing.pop(message_id, None) is not None:
            self._requests.remove(message_id)
            self._journal.remove(StateTable.REPAIR_OUT, message_id.encode())


def _pack(at_ms: int, sender: str) -> bytes:
    """Return a row: when, Unix milliseconds, and whose message it is."""
    return at_ms.to_bytes(8, "big") + sender.encode()
