"""Message rate by epoch: permits, and the time of the next one.

Theory of operation
===================

*Decides*: whether a message may leave in the epoch that is, and as the how-manieth.

*Does not know*: what the message is, who waits; the session holds the queue.

*Machines and their states*: one counter, (epoch, used). Epochs are windows of the wall clock,
``floor(now / epoch_size)``, the same for everybody. The epoch never goes back, not even with the
wall clock: a nonce used twice in one epoch gives the sender's RLN secret away.

*Inputs and what they may cause*: ``admit`` uses one up and writes it down before anything leaves,
so that a restart cannot use it again. Nothing else changes the counter.

*Timers*: none; ``ends_ms`` says when the epoch is over.

*Bounds*: `RateLimitConfig.messages_per_epoch`, or less if a `QuotaProvider` says so.

*Deviations from the specification*: none; what counts is the caller's to say (`Counting`).

*What else to change when you change this*: ``session.py``, ``docs/explanation/channel.md``.

Source: reliable-channel-api (rate limit manager); decision C3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from luxrelay.channel.params import RateLimitConfig
from luxrelay.channel.state import Journal, Row, StateTable

_KEY: Final = b"epoch"


@dataclass(frozen=True, slots=True)
class Quota:
    """What may leave in an epoch."""

    epoch: int
    """Number of the epoch."""
    limit: int
    """Messages in it."""
    ends_ms: int
    """When the next one begins, Unix milliseconds."""


@runtime_checkable
class QuotaProvider(Protocol):
    """Says how much may leave; the configuration stays the upper bound."""

    def quota(self, now_ms: int) -> Quota:
        """Return the quota in force; must not block."""
        ...


@runtime_checkable
class ProofProvider(Protocol):
    """Makes and checks rate limit proofs."""

    def prove(self, payload: bytes, epoch: int, nonce: int) -> bytes:
        """Return a proof for the ``nonce``-th message of an epoch, from 0; must not block."""
        ...

    def verify(self, payload: bytes, proof: bytes, now_ms: int) -> bool:
        """Return whether a proof of somebody else holds; must not block."""
        ...


@dataclass(frozen=True, slots=True)
class Slot:
    """The right to send one message."""

    epoch: int
    """In which epoch."""
    nonce: int
    """As which message of it, from 0."""


class Pacer:
    """The counter of one participant in one channel.

    Args:
        config: Limit and epochs.
        journal: Where changes are written down.

    """

    def __init__(self, config: RateLimitConfig, journal: Journal) -> None:
        self._config = config
        self._journal = journal
        self._epoch = -1
        self._used = 0

    @property
    def used(self) -> tuple[int, int]:
        """The epoch of the last message, and how many left in it."""
        return self._epoch, self._used

    def admit(self, now_ms: int) -> Slot | None:
        """Use up one message of the epoch, or return None when there is none left."""
        quota = self._roll(now_ms)
        if self._used >= quota.limit:
            return None
        self._used += 1
        self._journal.put(
            StateTable.META, _KEY, self._epoch.to_bytes(8, "big") + self._used.to_bytes(8, "big")
        )
        return Slot(self._epoch, self._used - 1)

    def scarce(self, now_ms: int) -> bool:
        """Return whether more than `ephemeral_share` of the epoch is used up."""
        quota = self._roll(now_ms)
        return self._used >= quota.limit * self._config.ephemeral_share

    def ends_ms(self, now_ms: int) -> int:
        """Return when the epoch that counts is over, Unix milliseconds."""
        return self._roll(now_ms).ends_ms

    def restore(self, row: Row) -> None:
        """Go on from what was kept; other rows are not looked at."""
        if row.table is StateTable.META and row.key == _KEY and row.value is not None:
            self._epoch = int.from_bytes(row.value[:8], "big")
            self._used = int.from_bytes(row.value[8:], "big")

    def _roll(self, now_ms: int) -> Quota:
        """Return the quota that counts; a later epoch begins at zero, an earlier one never does."""
        size = self._config.epoch_size_ms
        epoch, limit = now_ms // size, self._config.messages_per_epoch
        ends_ms = (epoch + 1) * size
        if self._config.quota_provider is not None:
            given = self._config.quota_provider.quota(now_ms)
            epoch, limit, ends_ms = given.epoch, min(limit, given.limit), given.ends_ms
        if epoch > self._epoch:
            self._epoch, self._used = epoch, 0
        elif epoch < self._epoch:
            ends_ms += (self._epoch - epoch) * size
        return Quota(self._epoch, limit, ends_ms)
