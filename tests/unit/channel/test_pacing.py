"""Messages an epoch."""

from __future__ import annotations

import hashlib

import pytest

from luxrelay.channel.pacing import Pacer, Quota, Slot
from luxrelay.channel.params import Counting, RateLimitConfig
from luxrelay.channel.state import Journal
from luxrelay.errors import ChannelArgumentError

CONFIG = RateLimitConfig(enabled=True, epoch_size_ms=1_000, messages_per_epoch=3)


def test_epochs_are_windows_of_the_wall_clock() -> None:
    """The limit holds from one boundary to the next, not from the first message on."""
    pacer = Pacer(CONFIG, Journal())

    assert [pacer.admit(5_900) for _ in range(4)] == [
        Slot(5, 0), Slot(5, 1), Slot(5, 2), None,
    ]  # fmt: skip
    assert pacer.ends_ms(5_900) == 6_000
    assert pacer.admit(5_999) is None
    assert pacer.admit(6_000) == Slot(6, 0)


def test_published_epoch() -> None:
    """With 600 s the epoch of 1644810116 s is 2741350, and the next begins at 1644810600 s."""
    pacer = Pacer(RateLimitConfig(enabled=True), Journal())

    assert pacer.admit(1_644_810_116_000) == Slot(2_741_350, 0)
    assert pacer.ends_ms(1_644_810_116_000) == 1_644_810_600_000


def test_the_count_survives_a_restart() -> None:
    """What was used stays used, and what is written down was written before the message left."""
    journal = Journal()
    pacer = Pacer(CONFIG, journal)
    pacer.admit(5_000)
    pacer.admit(5_000)
    (row,) = journal.drain()

    again = Pacer(CONFIG, journal)
    again.restore(row)

    assert again.used == (5, 2)
    assert again.admit(5_000) == Slot(5, 2)
    assert again.admit(5_000) is None


def test_the_epoch_never_goes_back() -> None:
    """A wall clock that goes back finds the later epoch in force, and no nonce is used twice."""
    pacer = Pacer(CONFIG, Journal())
    for _ in range(3):
        pacer.admit(7_000)

    assert pacer.admit(6_500) is None
    assert pacer.ends_ms(6_500) == 8_000
    assert pacer.admit(8_000) == Slot(8, 0)


class Half:
    """Says that one message may leave in an epoch of two seconds."""

    def quota(self, now_ms: int) -> Quota:
        """Return it."""
        return Quota(now_ms // 2_000, 1, (now_ms // 2_000 + 1) * 2_000)


def test_quota_provider_lowers_the_limit() -> None:
    """The lower of the provider's limit and ours counts, in the provider's epochs."""
    config = RateLimitConfig(enabled=True, messages_per_epoch=3, quota_provider=Half())
    pacer = Pacer(config, Journal())

    assert [pacer.admit(4_000), pacer.admit(5_999)] == [Slot(2, 0), None]
    assert pacer.ends_ms(5_000) == 6_000


def test_scarce_above_the_share() -> None:
    """An epoch is scarce once `ephemeral_share` of it is used up."""
    config = RateLimitConfig(
        enabled=True, epoch_size_ms=1_000, messages_per_epoch=10, ephemeral_share=0.5
    )
    pacer = Pacer(config, Journal())
    scarce = []
    for _ in range(6):
        scarce.append(pacer.scarce(0))
        pacer.admit(0)

    assert scarce == [False] * 5 + [True]


def test_nothing_leaves_at_a_limit_of_zero() -> None:
    """A limit of zero admits nothing; an epoch of zero is refused."""
    assert Pacer(RateLimitConfig(enabled=True, messages_per_epoch=0), Journal()).admit(0) is None
    with pytest.raises(ChannelArgumentError):
        RateLimitConfig(epoch_size_ms=0)


class Proofs:
    """A provider whose proof is a hash."""

    def prove(self, payload: bytes, epoch: int, nonce: int) -> bytes:
        """Return epoch, nonce and hash."""
        head = epoch.to_bytes(8, "big") + nonce.to_bytes(8, "big")
        return head + hashlib.sha256(head + payload).digest()

    def verify(self, payload: bytes, proof: bytes, now_ms: int) -> bool:
        """Return whether the hash fits, and the epoch is not ahead."""
        right = hashlib.sha256(proof[:16] + payload).digest() == proof[16:]
        return right and int.from_bytes(proof[:8], "big") <= now_ms


@pytest.mark.parametrize(
    ("enabled", "counting"),
    [(False, Counting.EVERY_SEGMENT), (True, Counting.FIRST_SEGMENT)],
)
def test_proofs_need_every_segment_counted(enabled: bool, counting: Counting) -> None:
    """A proof is for one message of the network, so each of them must count."""
    with pytest.raises(ChannelArgumentError):
        RateLimitConfig(enabled=enabled, counting=counting, proof_provider=Proofs())
