"""Parameters of the peer score: weights, decays, caps, thresholds; checked as a set.

Penalties are magnitudes of zero or more that are subtracted (G17). Whoever copies the numbers of
another gossipsub drops their minus signs.

Source: LP-6420 §5; decisions G16, G17, G18 and the table of score defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf
from typing import Final

from luxrelay.errors import GossipArgumentError
from luxrelay.gossip.envelope import TopicKind

_DECAYS: Final = frozenset(
    {
        "first_deliveries_decay",
        "mesh_deliveries_decay",
        "mesh_failures_decay",
        "invalid_decay",
        "behaviour_decay_per_s",
    }
)
_SIGNED: Final = frozenset(
    {
        "gossip_threshold",
        "publish_threshold",
        "graylist_threshold",
        "accept_threshold",
        "reject_threshold",
        "opportunistic_graft_threshold",
        "px_threshold",
        "rotation_threshold",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicScoreParams:
    """What counts on one kind of topic; decays are what one heartbeat leaves of a counter."""

    weight: float = 1.0
    """Factor of everything below in the peer's score."""

    time_in_mesh_weight: float = 0.05
    """Credit of one quantum in our mesh (P1)."""
    time_in_mesh_quantum_s: float = 1.0
    """Length of a quantum, seconds."""
    time_in_mesh_cap: float = 300.0
    """Most quanta that count."""

    first_deliveries_weight: float = 1.0
    """Credit of one message that the peer brought first and that was accepted (P2)."""
    first_deliveries_decay: float = 0.98
    """What a heartbeat leaves of their number."""
    first_deliveries_cap: float = 100.0
    """Most first deliveries that count."""

    mesh_deliveries_weight: float = 0.0
    """Penalty of a squared deficit of deliveries in the mesh (P3); 0 turns it off. On topics with
    little or bursty traffic it punishes honest peers (G18)."""
    mesh_deliveries_decay: float = 0.98
    """What a heartbeat leaves of their number."""
    mesh_deliveries_cap: float = 100.0
    """Most of them that count."""
    mesh_deliveries_threshold: float = 5.0
    """Number below which there is a deficit."""
    mesh_deliveries_window_s: float = 2.0
    """Seconds after acceptance in which another copy still counts as delivered."""
    mesh_deliveries_activation_s: float = 60.0
    """Seconds in the mesh before a deficit counts."""
    mesh_failures_weight: float = 0.0
    """Penalty of the squared deficit with which a peer left the mesh (P3b); 0 turns it off."""
    mesh_failures_decay: float = 0.98
    """What a heartbeat leaves of it."""

    invalid_weight: float = 10.0
    """Penalty of the squared number of invalid messages (P4)."""
    invalid_decay: float = 0.99
    """What a heartbeat leaves of their number."""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be; the error names each."""
        _check(self, "TopicScoreParams")


def _opted_in() -> TopicScoreParams:
    return TopicScoreParams(mesh_deliveries_weight=0.5, mesh_failures_weight=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreParams:
    """How peers are scored and what follows from a score (LP-6420 §5)."""

    headers_global: TopicScoreParams = field(default_factory=TopicScoreParams)
    """For ``headers/global``; `watching_headers` turns mesh deliveries on there."""
    namespace: TopicScoreParams = field(default_factory=lambda: TopicScoreParams(weight=0.5))
    """For each namespace topic."""
    blocks: TopicScoreParams = field(default_factory=TopicScoreParams)
    """For ``blocks/proposed`` and ``blocks/finalized``."""
    blobs: TopicScoreParams = field(default_factory=lambda: TopicScoreParams(weight=0.3))
    """For ``blobs/available``."""
    unreadable: TopicScoreParams = field(default_factory=TopicScoreParams)
    """For frames and messages so broken that they name no topic."""
    topic_credit_cap: float = 200.0
    """Most credit of all topics together; penalties are subtracted after the cap."""

    app_weight: float = 1.0
    """Factor of the score that the application gives (P5)."""
    validator_credit: float = 50.0
    """Application score of a peer that has proven to be a validator (G24; 20-48)."""

    colocation_threshold: int = 4
    """Peers at one address (IPv6: one /64) without penalty (P6)."""
    colocation_weight: float = 10.0
    """Penalty of the squared excess over the threshold."""

    behaviour_weight: float = 10.0
    """Penalty of the squared excess of offences over the threshold (P7)."""
    behaviour_threshold: float = 6.0
    """Offences without penalty."""
    behaviour_decay_per_s: float = 0.95
    """What a second leaves of their number."""
    broken_promise: float = 1.0
    """Offences for a heartbeat in which announced and requested messages did not come."""
    graft_in_backoff: float = 2.0
    """Offences for a GRAFT before its back-off was over."""
    control_flood: float = 2.0
    """Offences for a heartbeat in which a cap on IHAVE, IWANT or IDONTWANT was exceeded."""

    gossip_threshold: float = 0.0
    """Below it no IHAVE or IWANT is exchanged and the peer leaves our meshes (G16)."""
    publish_threshold: float = 0.0
    """Below it our own messages do not go to the peer."""
    graylist_threshold: float = -1000.0
    """Below it the peer's control messages are not heard."""
    accept_threshold: float = -2500.0
    """Below it nothing the peer sends is heard."""
    reject_threshold: float = -5000.0
    """Below it the peer is disconnected and refused for ``refuse_s``."""
    opportunistic_graft_threshold: float = 1.0
    """Median score of a mesh below which better peers are grafted into it."""
    px_threshold: float = 1.0
    """Least score of a peer whose suggestions of other peers are followed; protected peers' always
    are."""
    rotation_threshold: float = 0.0
    """Score below which the rotation drops a peer (LP-6420 §6.2)."""

    counter_min: float = 0.01
    """A counter that decays below this is zero."""
    refuse_s: float = 600.0
    """Seconds a rejected peer is refused (G16)."""
    retain_s: float = 3600.0
    """Seconds for which a peer's penalties are remembered after it left, so that coming back does
    not wash it clean."""
    retained_max: int = 4_096
    """Peers remembered after they left; beyond it the oldest is forgotten."""
    window_messages_max: int = 4_096
    """Messages whose late copies are counted for mesh deliveries; beyond it the oldest is not."""

    def __post_init__(self) -> None:
        """Refuse a set of numbers that does not fit together; the error names each fault."""
        _check(self, "ScoreParams")
        ladder = (
            self.reject_threshold,
            self.accept_threshold,
            self.graylist_threshold,
            min(self.gossip_threshold, self.publish_threshold),
        )
        if list(ladder) != sorted(ladder) or max(self.gossip_threshold, self.publish_threshold) > 0:
            raise GossipArgumentError(
                "thresholds do not hold reject ≤ accept ≤ graylist ≤ gossip, publish ≤ 0",
                where="ScoreParams",
            )

    @classmethod
    def watching_headers(cls) -> ScoreParams:
        """Return the defaults with mesh deliveries counted on ``headers/global`` (opt-in)."""
        return cls(headers_global=_opted_in())

    def of(self, kind: TopicKind) -> TopicScoreParams:
        """Return what counts on a kind of topic."""
        match kind:
            case TopicKind.NAMESPACE:
                return self.namespace
            case TopicKind.HEADERS_GLOBAL:
                return self.headers_global
            case TopicKind.BLOBS_AVAILABLE:
                return self.blobs
            case TopicKind.BLOCKS_PROPOSED | TopicKind.BLOCKS_FINALIZED:
                return self.blocks


def _check(params: TopicScoreParams | ScoreParams, where: str) -> None:
    """Refuse values out of range: penalties and credits are zero or more (G17)."""
    faults = []
    for entry in fields(params):
        value = getattr(params, entry.name)
        if isinstance(value, TopicScoreParams):
            continue
        if entry.name in _SIGNED:
            fits = -inf < value < inf
        elif entry.name in _DECAYS:
            fits = 0 < value < 1
        elif entry.name.endswith(("_quantum_s", "_max")):
            fits = 0 < value < inf
        else:
            fits = 0 <= value < inf
        if not fits:
            faults.append(f"{entry.name} is {value}")
    if faults:
        raise GossipArgumentError(", ".join(faults), where=where)
