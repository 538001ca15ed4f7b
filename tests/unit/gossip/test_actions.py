"""Actions."""

from __future__ import annotations

from typing import Any, get_args

from luxrelay.bus import VerdictKind
from luxrelay.gossip import Action, Deliver, Dial, Disconnect, Discover, Echo, Send, Validate

Kit = Any


def test_a_driver_needs_seven_effects() -> None:
    """The union of actions is complete: a driver is a table with these rows."""
    assert set(get_args(Action)) == {Send, Validate, Deliver, Disconnect, Dial, Discover, Echo}


def test_sends_stand_last(kit: Kit) -> None:
    """Validations and deliveries come before frames, so that they start first."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    peers = desk.peers(3, topic)
    (validate,) = desk.message(peers[0], topic, kit.envelope(topic)).validate
    desk.router.validated(validate.token, VerdictKind.ACCEPT, desk.now)
    desk.router.received(peers[0], kit.frame(messages=[(topic, kit.envelope(topic, 2))]), desk.now)

    kinds = [type(action) for action in desk.router.drain()]

    assert kinds == [Deliver, Validate, Send, Send]
