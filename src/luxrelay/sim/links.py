"""Links between simulated nodes: latency, loss, bandwidth, reordering, corruption.

A pair of nodes has one base latency, drawn log-normal when they connect; each frame takes it
times a jitter of its own. Frames of one direction keep their order, as on a stream, unless
`reorder` picks one. All frames that a node sends share its uplink.

Deviations from a real transport: a lost frame is lost for good, and a corrupted one is delivered,
where TCP would send it again and Noise would end the connection. Both are harder on the router.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from luxrelay.sim.settings import setting

if TYPE_CHECKING:
    from luxrelay.sim.node import SimNode

FRAME_OVERHEAD: Final = 60
"""Bytes that a frame costs on the wire besides itself: TCP/IP, Noise, Yamux, length."""
_JITTERS: Final = 4096
"""Jitter factors drawn once and picked from: a log-normal draw a frame costs ten times as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPlan:
    """How links behave; every value holds for all links."""

    latency_ms: float = setting(
        50.0, "Median one-way latency of a pair of nodes", unit="milliseconds", low=0.01
    )
    latency_sigma: float = setting(
        0.5, "Sigma of the log-normal distribution of that latency over pairs", high=3
    )
    jitter_sigma: float = setting(
        0.1, "Sigma of the log-normal factor that each frame adds to its pair's latency", high=2
    )
    bandwidth_bytes_s: int = setting(
        6_250_000, "Uplink of a node; 0 is without limit", unit="bytes a second"
    )
    uplink_queue_s: float = setting(
        5.0, "Uplink time that may be queued; frames beyond it are lost", unit="seconds", low=0.01
    )
    loss: float = setting(0.0, "Share of frames that are lost for good", high=1)
    reorder: float = setting(0.0, "Share of frames that may be overtaken", high=1)
    reorder_ms: float = setting(
        100.0, "Longest time such a frame is held back", unit="milliseconds"
    )
    corrupt: float = setting(0.0, "Share of frames in which one byte is changed", high=1)


class SimLink:
    """One direction of a connection."""

    __slots__ = ("back", "last_at", "latency_s", "open", "peer", "source", "source_peer", "target")

    def __init__(self, source: SimNode, target: SimNode, latency_s: float) -> None:
        self.source = source
        self.target = target
        self.source_peer = source.peer
        self.peer = target.peer
        """The identity that the target had when they connected; so for the source."""
        self.latency_s = latency_s
        self.last_at = 0.0
        """When the last frame in order arrives."""
        self.open = True
        """False when the connection has ended; what is under way then is lost."""
        self.back: SimLink | None = None
        """The other direction."""


class Weather:
    """Draws what happens to frames.

    Args:
        plan: How links behave.
        rng: The only source of chance.

    """

    __slots__ = ("_jitters", "_rng", "corrupted", "held_back", "lost", "plain", "plan")

    def __init__(self, plan: LinkPlan, rng: random.Random) -> None:
        self.plan = plan
        self._rng = rng
        self._jitters = [rng.lognormvariate(0, plan.jitter_sigma) for _ in range(_JITTERS)]
        self.plain = not (plan.loss or plan.reorder or plan.corrupt)
        """True when nothing happens to frames but that they take their time."""
        self.lost = 0
        """Frames lost, also for want of room at an uplink."""
        self.held_back = 0
        """Frames that others may have overtaken."""
        self.corrupted = 0
        """Frames in which a byte was changed."""

    def base_latency_s(self) -> float:
        """Return the latency of a new connection or call."""
        plan = self.plan
        return plan.latency_ms / 1000 * self._rng.lognormvariate(0, plan.latency_sigma)

    def arrival(self, link: SimLink, size: int, now: float) -> float | None:
        """Return when a frame of ``size`` bytes arrives, or None when it is lost."""
        plan, depart = self.plan, now
        if plan.bandwidth_bytes_s:
            source = link.source
            depart = max(now, source.uplink_free_at) + size / plan.bandwidth_bytes_s
            if depart - now > plan.uplink_queue_s:
                self.lost += 1
                return None
            source.uplink_free_at = depart
        draw = self._rng.random
        if not self.plain and plan.loss and draw() < plan.loss:
            self.lost += 1
            return None
        arrive = depart + link.latency_s * self._jitters[int(draw() * _JITTERS)]
        arrive = max(arrive, link.last_at)
        if not self.plain and plan.reorder and draw() < plan.reorder:
            self.held_back += 1
            return arrive + draw() * plan.reorder_ms / 1000
        link.last_at = arrive
        return arrive

    def through(self, data: bytes) -> bytes:
        """Return a frame as it arrives: now and then with one byte changed."""
        if self.plain or not data or self._rng.random() >= self.plan.corrupt:
            return data
        self.corrupted += 1
        changed = bytearray(data)
        changed[self._rng.randrange(len(data))] ^= self._rng.randrange(1, 256)
        return bytes(changed)
