"""The local log: delivered and sent messages in the order of their clocks.

Beside the log stand the *tips*: messages that no message of the log names yet. A message names the
newest of the log, the tips and what its sender has to acknowledge, so that whoever has it can find
out about everything its sender had. The specification names the newest alone; then messages sent at
the same time by more participants than that number are named by nobody, and who misses one never
learns of it.

A message of ours is *pending* from `hold` until `publish`: it is named by our next messages, which
leave after it, but not by sync messages, and it is not sent to those who ask; the others must not
hear of what may have to wait for an epoch.

Bounds: ``log_max`` entries, ``repairable_bytes_max`` bytes of messages; the oldest go first, but
never the bytes of a message that still waits for its acknowledgement.

Source: SDS (local history); decisions C6, C7.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from luxrelay.channel.params import SdsConfig
from luxrelay.channel.state import Journal, Row, StateTable
from luxrelay.channel.wire import HistoryEntry, SdsMessage

Place = tuple[int, str]
"""Clock and id: the order of the log."""


@dataclass(slots=True)
class LogEntry:
    """One message of the log."""

    message_id: str
    """Its id."""
    lamport: int
    """Its clock."""
    sender_id: str
    """Who sent it."""
    names: tuple[str, ...]
    """The ids it names."""
    hint: bytes = b""
    """The name under which a store has it; empty when unknown."""
    pending: bool = False
    """It is ours and has not gone out yet."""
    _wire: tuple[bytes, bytes] = (b"?", b"")
    """The hint it was encoded with, and the bytes."""

    def entry(self) -> HistoryEntry:
        """Return the entry that names this message."""
        return HistoryEntry(self.message_id, self.hint or None, self.sender_id)

    def wire(self) -> bytes:
        """Return the bytes of that entry."""
        if self._wire[0] != self.hint:
            self._wire = (self.hint, self.entry().encode())
        return self._wire[1]


class LocalLog:
    """Delivered and sent messages of one participant in one channel.

    Args:
        config: Bounds.
        journal: Where changes are written down.
        keep: Says whether the bytes of a message must stay.

    """

    def __init__(self, config: SdsConfig, journal: Journal, keep: Callable[[str], bool]) -> None:
        self._config = config
        self._journal = journal
        self._keep = keep
        self._entries: dict[str, LogEntry] = {}
        self._order: list[Place] = []
        self._tips: dict[str, None] = {}
        self._pending: dict[str, None] = {}
        self._bodies: dict[str, bytes] = {}
        self._body_bytes = 0
        self.floor: Place = (-1, "")
        """Place of the last entry that was forgotten; what lies at or below it is too old."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._entries

    def get(self, message_id: str) -> LogEntry | None:
        """Return an entry."""
        return self._entries.get(message_id)

    @property
    def tips(self) -> dict[str, None]:
        """Ids that no message of the log names, pending ones aside, oldest first."""
        return self._tips

    @property
    def pending(self) -> dict[str, None]:
        """Ids of ours that have not gone out, in order."""
        return self._pending

    @property
    def bodies(self) -> dict[str, bytes]:
        """Messages as they were sent, by id, while their bytes are kept."""
        return self._bodies

    def ids(self) -> list[str]:
        """Return all ids in order, without those that are pending."""
        return [message_id for _, message_id in self._order]

    def newest(self, count: int) -> list[str]:
        """Return the last ids in order, without those that are pending."""
        return [message_id for _, message_id in self._order[-count:]]

    def body(self, message_id: str) -> bytes | None:
        """Return a message as it was sent, while its bytes are kept."""
        return self._bodies.get(message_id)

    def can_answer(self, message_id: str) -> bool:
        """Return whether a message may be sent to those who ask for it."""
        return message_id in self._bodies and message_id not in self._pending

    def ordered(self, ids: Iterable[str]) -> list[LogEntry]:
        """Return entries of ids in the order of the log."""
        entries = [self._entries[message_id] for message_id in ids]
        return sorted(entries, key=lambda entry: (entry.lamport, entry.message_id))

    def deliver(self, message: SdsMessage, clock: int, hint: bytes, body: bytes) -> None:
        """Have a message of somebody else, at the place of as much of its clock as is believed.

        A clock far ahead would otherwise hold the end of the log for ever.
        """
        names = tuple(entry.message_id for entry in message.causal_history)
        entry = LogEntry(message.message_id, clock, message.sender_id, names, hint)
        self._insert(entry)
        entry.names = ()  # what is kept has them; in memory nobody asks for them again
        self._keep_body(entry.message_id, body)

    def hold(self, entry: LogEntry, body: bytes) -> None:
        """Have a message of ours that has not gone out."""
        entry.pending = True
        self._entries[entry.message_id] = entry
        self._pending[entry.message_id] = None
        self._journal.put(StateTable.LOG, entry.message_id.encode(), _pack(entry))
        self._keep_body(entry.message_id, body)

    def publish(self, message_id: str, hint: bytes) -> None:
        """Note that a message of ours has gone out, and under which name a store has it."""
        entry = self._entries.get(message_id)
        if entry is None:
            return
        if entry.pending:
            entry.pending = False
            entry.hint = hint
            del self._pending[message_id]
            self._insert(entry)
        elif hint and entry.hint != hint:
            entry.hint = hint
            self._journal.put(StateTable.LOG, message_id.encode(), _pack(entry))

    def _insert(self, entry: LogEntry) -> None:
        """Give a message its place; the oldest make room."""
        self._entries[entry.message_id] = entry
        place = (entry.lamport, entry.message_id)
        if not self._order or place > self._order[-1]:
            self._order.append(place)
        else:
            insort(self._order, place)
        for named in entry.names:
            self._tips.pop(named, None)
        self._tips[entry.message_id] = None
        self._journal.put(StateTable.LOG, entry.message_id.encode(), _pack(entry))
        if len(self._order) > self._config.log_max:
            self._forget_oldest()

    def _keep_body(self, message_id: str, body: bytes) -> None:
        """Keep the bytes of a message that still has its place."""
        if message_id in self._entries:
            self._bodies[message_id] = body
            self._body_bytes += len(body)
            self._journal.put(StateTable.BODIES, message_id.encode(), body)
            self._shrink()

    def restore(self, rows: Iterable[Row]) -> None:
        """Begin from what was kept; rows of tables other than LOG and BODIES are not looked at."""
        named: set[str] = set()
        for row in rows:
            assert row.value is not None
            if row.table is StateTable.LOG:
                entry = _unpack(row.key.decode(), row.value)
                self._entries[entry.message_id] = entry
                if not entry.pending:
                    named.update(entry.names)
            elif row.table is StateTable.BODIES:
                self._bodies[row.key.decode()] = row.value
        places = sorted((entry.lamport, name) for name, entry in self._entries.items())
        self._order = [place for place in places if not self._entries[place[1]].pending]
        self._pending = {name: None for _, name in places if self._entries[name].pending}
        self._tips = {name: None for _, name in self._order if name not in named}
        self._bodies = {name: self._bodies[name] for _, name in places if name in self._bodies}
        self._body_bytes = sum(map(len, self._bodies.values()))

    def _forget_oldest(self) -> None:
        place = self._order.pop(0)
        self.floor = max(self.floor, place)
        message_id = place[1]
        del self._entries[message_id]
        self._tips.pop(message_id, None)
        self._journal.remove(StateTable.LOG, message_id.encode())
        self._journal.put(
            StateTable.META, b"floor", place[0].to_bytes(8, "big") + message_id.encode()
        )
        self._drop_body(message_id)

    def _shrink(self) -> None:
        """Drop the oldest bytes above the bound that nobody waits for."""
        if self._body_bytes <= self._config.repairable_bytes_max:
            return
        for message_id in list(self._bodies):
            if self._body_bytes <= self._config.repairable_bytes_max:
                return
            if not self._keep(message_id):
                self._drop_body(message_id)

    def _drop_body(self, message_id: str) -> None:
        body = self._bodies.pop(message_id, None)
        if body is not None:
            self._body_bytes -= len(body)
            self._journal.remove(StateTable.BODIES, message_id.encode())


def _pack(entry: LogEntry) -> bytes:
    """Return the row of an entry: clock, pending, then texts with zero characters between them."""
    head = entry.lamport.to_bytes(8, "big") + bytes((entry.pending,))
    return head + "\0".join((entry.sender_id, entry.hint.hex(), *entry.names)).encode()


def _unpack(message_id: str, value: bytes) -> LogEntry:
    """Return the entry of a row."""
    sender, hint, *names = value[9:].decode().split("\0")
    lamport = int.from_bytes(value[:8], "big")
    return LogEntry(message_id, lamport, sender, tuple(names), bytes.fromhex(hint), value[8] == 1)
