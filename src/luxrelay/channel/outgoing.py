"""Messages of ours without an acknowledgement: when they are sent again, and when never.

A message is *queued* until the driver says that it has gone out, then *waiting* for its timeout.
At the timeout it is sent again, at most ``max_retransmissions`` times; one timeout after the last
of these it is *exhausted*. One that a Bloom filter shows waits a second timeout before it is sent
again (the specification asks for unacknowledged ones first).

An entry of somebody's causal history acknowledges for certain. Bloom filters acknowledge when
``possible_acks_threshold`` different participants show the message: a false positive stays in a
filter, so one participant's next filter is no second witness.

Bounds: ``outgoing_max`` messages, ``outgoing_bytes_max`` bytes; the door in front of `add` is
`room_for`. A filter is compared with the 256 oldest only.

Source: SDS (acknowledgement, outgoing sweep); decisions C2, C5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from luxrelay.channel.bloom import shows
from luxrelay.channel.params import SdsConfig
from luxrelay.channel.schedule import Schedule
from luxrelay.channel.state import Journal, Row, StateTable

_FILTERED_MAX: Final = 256
"""Messages that one received filter is compared with."""


@dataclass(slots=True)
class Unacknowledged:
    """One message of ours."""

    message_id: str
    """Its id."""
    size: int
    """Its bytes."""
    marks: list[tuple[int, int]]
    """Where a Bloom filter shows it."""
    transmissions: int = 0
    """Times it was handed to the driver."""
    possible: set[str] = field(default_factory=set)
    """Participants whose filters show it."""
    extended: bool = False
    """It has waited a second timeout already."""


class OutgoingMessages:
    """The outgoing buffer of one participant in one channel.

    Args:
        config: Times and bounds.
        journal: Where changes are written down.

    """

    def __init__(self, config: SdsConfig, journal: Journal) -> None:
        self._config = config
        self._journal = journal
        self._messages: dict[str, Unacknowledged] = {}
        self._due = Schedule()
        self._size = 0

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._messages

    @property
    def size(self) -> int:
        """Bytes without an acknowledgement."""
        return self._size

    def room_for(self, messages: int, size: int) -> bool:
        """Return whether so many more fit; an empty buffer takes anything."""
        return not self._messages or (
            len(self._messages) + messages <= self._config.outgoing_max
            and self._size + size <= self._config.outgoing_bytes_max
        )

    def add(self, message_id: str, size: int, marks: list[tuple[int, int]]) -> None:
        """Have a message; it is on its way to the driver for the first time."""
        self._messages[message_id] = Unacknowledged(message_id, size, marks, 1)
        self._size += size
        self._journal.put(StateTable.OUTGOING, message_id.encode(), b"\x00\x01")

    def dispatched(self, message_id: str, now: float) -> None:
        """Begin to wait for an acknowledgement: the last transmission has gone out, or failed."""
        if message_id in self._messages:
            self._due.put(message_id, now + self._config.acknowledgement_timeout_ms / 1000)

    def acknowledge(self, ids: Iterable[str]) -> list[str]:
        """Return and forget those of ``ids`` that waited."""
        return [message_id for message_id in ids if self.forget(message_id)]

    def review(self, sender_id: str, filter_bytes: bytes) -> list[str]:
        """Return and forget what enough participants' filters show now."""
        threshold = self._config.possible_acks_threshold
        acknowledged = []
        for message in islice(self._messages.values(), _FILTERED_MAX):
            if sender_id not in message.possible and shows(filter_bytes, message.marks):
                message.possible.add(sender_id)
                if len(message.possible) >= threshold:
                    acknowledged.append(message.message_id)
        return self.acknowledge(acknowledged)

    def due(self, now: float) -> tuple[list[tuple[str, int]], list[str]]:
        """Return what to send again, with the number of the retransmission, and what never."""
        again, exhausted = [], []
        for message_id in self._due.due(now):
            message = self._messages[message_id]
            if message.possible and not message.extended:
                message.extended = True
                self.dispatched(message_id, now)
            elif message.transmissions > self._config.max_retransmissions:
                exhausted.append(message_id)
                self.forget(message_id)
            else:
                message.extended = False
                message.transmissions += 1
                again.append((message_id, message.transmissions - 1))
                self._journal.put(
                    StateTable.OUTGOING,
                    message_id.encode(),
                    message.transmissions.to_bytes(2, "big"),
                )
        return again, exhausted

    def wake_at(self) -> float | None:
        """Return when `due` has something to do."""
        return self._due.next()

    def forget(self, message_id: str) -> bool:
        """Drop a message; returns whether it was there."""
        message = self._messages.pop(message_id, None)
        if message is None:
            return False
        self._size -= message.size
        self._due.remove(message_id)
        self._journal.remove(StateTable.OUTGOING, message_id.encode())
        return True

    def restore(self, row: Row, size: int, marks: list[tuple[int, int]]) -> int:
        """Have a message that was kept; return the number of the transmission to repeat.

        Whether the last transmission went out before the crash is not known, so it is repeated.
        """
        assert row.value is not None
        message_id = row.key.decode()
        transmissions = int.from_bytes(row.value, "big")
        self._messages[message_id] = Unacknowledged(message_id, size, marks, transmissions)
        self._size += size
        return transmissions - 1
