"""Rate limits of a node: one lock around the pure limiter, and counters.

The doors of a node work in several threads. A message is admitted by its peer's bucket before
anything of it is parsed, looked at before its signature, and charged after it (G20), so that
nobody spends another sender's tokens by claiming its key. History that a relay serves is not
measured here: its bandwidth is the sync room's.

*Reputation*: only what a sender has proven to be its own counts, for or against it.

Source: LP-6422; decisions G20, S1, S8, S9.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from luxrelay.bus import Code, MsgHeader, NamespaceId, Verdict
from luxrelay.bus.limits import (
    IMPACT_ACCEPTED,
    IMPACT_INVALID,
    UNLIMITED,
    Layer,
    LimitConfig,
    Rate,
    RateLimiter,
)
from luxrelay.bus.policy import NamespacePolicy
from luxrelay.bus.verdict import ignore


def rate_of(per_second: int) -> Rate:
    """Return a rate in messages a second; 0 stands for no limit."""
    return Rate(per_second or UNLIMITED)


def policy_rate(policy: NamespacePolicy) -> Rate:
    """Return what a namespace's policy allows; 0 in a policy allows nothing."""
    return Rate(
        policy.messages_per_second,
        policy.bytes_per_second,
        burst_messages=policy.burst_messages,
    )


class NodeRates:
    """The four layers of LP-6422, for the doors that take live messages; any thread may call."""

    def __init__(self, config: LimitConfig, clock: Callable[[], float]) -> None:
        """Start with full buckets; ``clock`` gives monotonic seconds."""
        self._limiter = RateLimiter(config)
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter({layer.value: 0 for layer in Layer})

    def admit(self, peer: bytes, size: int) -> bool:
        """Take one message of ``size`` bytes from a peer's bucket, or say that it is empty."""
        with self._lock:
            admitted = self._limiter.admit_peer(peer, size, self._clock())
            if not admitted:
                self._refused[Layer.PEER.value] += 1
        return admitted

    def over(self, header: MsgHeader, parent: NamespaceId, policy: NamespacePolicy | None) -> bool:
        """Return True when a layer would refuse the message; nothing is taken."""
        with self._lock:
            return self._note(
                self._limiter.peek(
                    parent,
                    header.sender_pub_key,
                    size_of(header),
                    self._clock(),
                    namespace_rate=policy_rate(policy) if policy else None,
                )
            )

    def charge(
        self, header: MsgHeader, parent: NamespaceId, policy: NamespacePolicy | None
    ) -> bool:
        """Take a proven message from every layer; False when one refuses, and nothing is taken."""
        with self._lock:
            return not self._note(
                self._limiter.charge(
                    parent,
                    header.sender_pub_key,
                    size_of(header),
                    self._clock(),
                    namespace_rate=policy_rate(policy) if policy else None,
                )
            )

    def answer(
        self, header: MsgHeader, parent: NamespaceId, policy: NamespacePolicy | None
    ) -> Verdict:
        """Return what a refused message is told: which rate, how much and when again (user-09)."""
        with self._lock:
            short = self._limiter.shortfall(
                parent,
                header.sender_pub_key,
                size_of(header),
                self._clock(),
                namespace_rate=policy_rate(policy) if policy else None,
            )
        if short is None:  # what was lacking has come meanwhile
            return ignore(Code.RATE_LIMITED, "a rate was used up (LP-6422, G20)", 1)
        return ignore(Code.RATE_LIMITED, f"{short.words()} (LP-6422, G20)", short.retry_after_ms)

    def record(self, sender: bytes, *, good: bool) -> None:
        """Count what a sender has proven to be its own, for it or against it (S8)."""
        with self._lock:
            impact = IMPACT_ACCEPTED if good else IMPACT_INVALID
            self._limiter.reputation.record(sender, impact, self._clock())

    def reconfigure(self, config: LimitConfig) -> None:
        """Go on with other limits: buckets begin full, reputations stay."""
        with self._lock:
            reputation = self._limiter.reputation
            self._limiter = RateLimiter(config)
            self._limiter.reputation = reputation
            self._config = config

    def public(self) -> dict[str, int]:
        """Return the rates in force by their public names; see `message_rates`."""
        return message_rates(self._config)

    def refused(self) -> dict[str, int]:
        """Return how many messages each layer refused."""
        with self._lock:
            return dict(self._refused)

    def _note(self, layer: Layer | None) -> bool:
        if layer is not None:
            self._refused[layer.value] += 1
        return layer is not None


def size_of(header: MsgHeader) -> int:
    """Return what a message weighs: header and payload, bytes."""
    return len(header.encode()) + header.blob_len


LAYERS: Final = tuple(layer.value for layer in Layer)
"""What a message is measured against, as its metric names it."""


def message_rates(config: LimitConfig) -> dict[str, int]:
    """Return the rates and bursts of live messages by their public names; 0 for no limit.

    A policy may give its namespace another rate, and a sender's reputation doubles or halves its
    own (S8).
    """
    layers = {
        "peer": config.peer,
        "node": config.everything,
        "namespace": config.namespace,
        "sender": config.sender,
    }
    shown: dict[str, int] = {}
    for name, rate in layers.items():
        burst = rate.sizes(config.burst_factor, 1.0)[0]
        for part, value in (("MessagesPerS", rate.messages_per_s), ("BurstMessages", burst)):
            shown[name + part] = 0 if math.isinf(value) else int(value)
    return shown
