"""Events on their way to the application: numbered, kept until they are taken.

Bounds: `ChannelConfig.events_max` and ``event_bytes_max``; at either, the channel receives nothing
until the application takes events. What ends requests of ours is announced all the same: there are
never more of those than requests.

Source: reliable-channel-api (MessageEvents); decision C2.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from luxrelay.channel.events import (
    ChannelEvent,
    MessageDelivered,
    MessageDeliveryError,
    MessageDispatched,
    MessageLost,
    MessageReceived,
    MessageSendError,
    MessageSent,
    decode_event,
    encode_event,
)
from luxrelay.channel.params import ChannelConfig, EventProfile
from luxrelay.channel.requests import RequestChange, RequestOutcome
from luxrelay.channel.state import Journal, Row, StateTable


@dataclass(slots=True)
class Announce:
    """Tell the application."""

    event: ChannelEvent
    """What."""


class Announcer:
    """The events of one participant in one channel.

    Args:
        config: Profile and bounds.
        journal: Where changes are written down.

    """

    def __init__(self, config: ChannelConfig, journal: Journal) -> None:
        self._config = config
        self._journal = journal
        self._events: deque[ChannelEvent] = deque()
        self._size = 0
        self._next = 1
        self._out: list[Announce] = []

    def __len__(self) -> int:
        return len(self._events)

    @property
    def full(self) -> bool:
        """The application takes no events."""
        return (
            len(self._events) >= self._config.events_max
            or self._size >= self._config.event_bytes_max
        )

    def received(self, message: bytes, sender_id: str, *, ephemeral: bool = False) -> None:
        """Tell that a payload is whole."""
        self._happen(MessageReceived(0, message, sender_id, ephemeral))

    def lost(self, sender_id: str, reference: str, reason: str) -> None:
        """Tell that something will not be received."""
        self._happen(MessageLost(0, sender_id, reference, reason))

    def changed(self, change: RequestChange) -> None:
        """Tell what the profile calls a change of a request."""
        seed = self._config.event_profile is EventProfile.SEED
        match change.outcome:
            case RequestOutcome.DISPATCHED:
                self._happen((MessageDispatched if seed else MessageSent)(0, change.request_id))
            case RequestOutcome.ACKNOWLEDGED:
                self._happen((MessageSent if seed else MessageDelivered)(0, change.request_id))
            case RequestOutcome.UNACKNOWLEDGED if not seed:
                self._happen(MessageDeliveryError(0, change.request_id, change.error))
            case _:
                self._happen(MessageSendError(0, change.request_id, change.error))

    def taken(self, position: int) -> None:
        """Forget events up to a position: the application has dealt with them."""
        while self._events and self._events[0].position <= position:
            event = self._events.popleft()
            self._size -= _weight(event)
            self._journal.remove(StateTable.EVENTS, event.position.to_bytes(8, "big"))

    def drain(self) -> list[Announce]:
        """Return what is to be told, in order."""
        out, self._out = self._out, []
        return out

    def restore(self, rows: list[Row], taken: int) -> None:
        """Tell again what was not taken; rows of others are not looked at.

        Args:
            rows: All rows, in the order of table and key.
            taken: The application has dealt with events up to this position.

        """
        for row in rows:
            assert row.value is not None
            if row.table is StateTable.META and row.key == b"position":
                self._next = int.from_bytes(row.value, "big")
            elif row.table is StateTable.EVENTS:
                event = decode_event(int.from_bytes(row.key, "big"), row.value)
                self._events.append(event)
                self._size += _weight(event)
        self.taken(taken)
        self._out = [Announce(event) for event in self._events]

    def _happen(self, event: ChannelEvent) -> None:
        """Give an event its position, keep it, and tell it."""
        event = replace(event, position=self._next)
        self._journal.put(StateTable.EVENTS, self._next.to_bytes(8, "big"), encode_event(event))
        self._next += 1
        self._journal.put(StateTable.META, b"position", self._next.to_bytes(8, "big"))
        self._events.append(event)
        self._size += _weight(event)
        self._out.append(Announce(event))


def _weight(event: ChannelEvent) -> int:
    """Return the bytes of an event that count."""
    return len(event.message) if isinstance(event, MessageReceived) else 0
