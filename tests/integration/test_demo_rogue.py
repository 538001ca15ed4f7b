"""The demonstration's rogue against one real relay, whose connection does not last."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from luxrelay.bus import topic_namespace
from luxrelay.cli.demo.attack import Attack, counts_of
from luxrelay.cli.demo.relays import RelayProcess
from luxrelay.cli.demo.rogue import Corrupt, Rogue

pytestmark = [pytest.mark.slow, pytest.mark.trial]
TOPIC = "/demo/1/a"
FRAME_TOO_LONG = bytes(2 * 1024 * 1024)
"""The relay ends the stream over it, and counts no message."""


class TooLong:
    """A broken message whose first ``times`` sendings end the connection."""

    def __init__(self, corrupt: Corrupt, times: int) -> None:
        """Be the message after that."""
        self.kind, self.topic, self.digests = corrupt.kind, corrupt.topic, corrupt.digests
        self._envelope = corrupt.envelope
        self._times = times

    @property
    def envelope(self) -> bytes:
        """What is sent this time."""
        self._times -= 1
        return FRAME_TOO_LONG if self._times >= 0 else self._envelope


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProcess]:
    """A relay of the demonstration."""
    relay = RelayProcess("relay-1", tmp_path / "relay-1", [TOPIC])
    relay.start([])
    try:
        relay.wait_ready()
        yield relay
    finally:
        relay.kill()


def attack_with(relay: RelayProcess, times: int) -> Attack:
    """Let the rogue send twelve messages, of which the fifth ends the connection ``times``."""
    rogue = Rogue(topic_namespace(TOPIC), seed=1)
    made = list(rogue.make(12, [], lambda: time.time_ns() // 1_000_000))
    made[4] = cast("Corrupt", TooLong(made[4], times))
    attack = Attack(
        relay.runtime.gossip[0],
        rogue,
        iter(made),
        lambda peer: counts_of(relay.status(), peer),
    )
    attack.run()
    return attack


def test_what_went_down_with_its_connection_is_sent_again_by_somebody_else(
    relay: RelayProcess,
) -> None:
    """A new identity sends it, and the account is whole."""
    fates = attack_with(relay, 1).fates

    assert fates.identities == 2
    assert fates.sent.total() == fates.accounted() == 12
    assert fates.unheard.total() == 0


def test_a_message_that_never_arrives_is_not_accounted_for(relay: RelayProcess) -> None:
    """The rogue gives up after three identities that achieved nothing, and says what it knows."""
    fates = attack_with(relay, 1_000).fates

    assert fates.identities == 4
    assert fates.accounted() == 4
    status = relay.status()
    assert status is not None
    assert len(status["departed"]) == 4
