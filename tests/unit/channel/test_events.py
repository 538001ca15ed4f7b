"""Events as values and as rows."""

from __future__ import annotations

import pytest

from luxrelay.channel.events import (
    EVENT_NAMES,
    ChannelEvent,
    MessageDelivered,
    MessageDeliveryError,
    MessageDispatched,
    MessageLost,
    MessageReceived,
    MessageSendError,
    MessageSent,
    ReliableSendId,
    decode_event,
    encode_event,
)

REQUEST = ReliableSendId("r" * 32)
EVENTS = [
    MessageReceived(1, b"\0payload", "ünï"),
    MessageReceived(2, b"", "a", ephemeral=True),
    MessageDispatched(3, REQUEST),
    MessageSent(4, REQUEST),
    MessageDelivered(5, REQUEST),
    MessageSendError(6, REQUEST, "why"),
    MessageDeliveryError(7, REQUEST, ""),
    MessageLost(8, "", "ff", "late"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_row_round_trip(event: ChannelEvent) -> None:
    """An event comes back from its row as it was."""
    assert decode_event(event.position, encode_event(event)) == event


def test_names_are_the_specifications() -> None:
    """The events of both texts have their names there; ours begin the same way."""
    assert set(EVENT_NAMES) == {
        "reliable:message:received",
        "reliable:message:sent",
        "reliable:message:delivered",
        "reliable:message:send-error",
        "reliable:message:delivery-error",
        "reliable:message:dispatched",
        "reliable:message:lost",
    }
    assert len(EVENT_NAMES) == len({type(event) for event in EVENTS})
