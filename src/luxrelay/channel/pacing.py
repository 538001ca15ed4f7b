"""Messages an epoch: what limits them from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Quota:
    """What may leave in an epoch."""

    epoch: int
    """Number of the epoch."""
    limit: int
    """Messages in it."""
    ends_ms: int
    """When the next one begins, Unix milliseconds."""


class QuotaProvider(Protocol):
    """Says how much may leave, in place of the configuration."""

    def quota(self, now_ms: int) -> Quota:
        """Return the quota in force; must not block."""
        ...


class ProofProvider(Protocol):
    """Makes and checks rate limit proofs."""

    def prove(self, payload: bytes, epoch: int, nonce: int) -> bytes:
        """Return a proof for the ``nonce``-th message of an epoch; must not block."""
        ...

    def verify(self, payload: bytes, proof: bytes, now_ms: int) -> bool:
        """Return whether a proof of somebody else holds; must not block."""
        ...
