"""One simulated node: router, stored messages, known peers, history."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from luxrelay.gossip import GossipParams, GossipRouter, GossipStats, PeerId, peer_id_of
from luxrelay.sim.record import RecordedRouter
from luxrelay.sim.recovery import LaneStore

if TYPE_CHECKING:
    from luxrelay.sim.faults import Conduct
    from luxrelay.sim.links import SimLink
    from luxrelay.sim.scenario import Scenario


class Role(Enum):
    """On whose side a node is."""

    HONEST = "honest"
    VICTIM = "victim"
    """Honest, and singled out by an attack."""
    HOSTILE = "hostile"


@dataclass(slots=True)
class Life:
    """A node from a start to a crash, as far as measures need it."""

    node: int
    """Index of the node."""
    born_at: float
    """When it started, virtual seconds."""
    died_at: float = float("inf")
    """When it crashed."""
    got: dict[int, float] = field(default_factory=dict)
    """Number of a message to when gossip delivered it."""
    stats: GossipStats = field(default_factory=GossipStats)
    """The router's counters at its end."""


class SimNode:
    """A node of the network; `luxrelay.sim.network` changes it, nobody else does."""

    __slots__ = (
        "address",
        "book",
        "conduct",
        "cpu_free_at",
        "dialling",
        "dials",
        "index",
        "kept",
        "life",
        "links",
        "lives",
        "peer",
        "refused",
        "rng",
        "role",
        "router",
        "side",
        "store",
        "syncing",
        "uplink_free_at",
        "wake_due",
    )

    def __init__(self, index: int, seed: int, *, address: str, role: Role, dials: int) -> None:
        self.index = index
        self.address = address
        """IPv4 address, as text."""
        self.role = role
        self.dials = dials
        """Connections it keeps open by dialing."""
        self.lives = 0
        """How often it has started."""
        self.rng = random.Random(f"{seed}/{index}")
        self.peer: PeerId = peer_of(seed, index, 0)
        self.router: GossipRouter | None = None
        """None while it is down."""
        self.life = Life(index, 0.0, 0.0)
        self.store = LaneStore()
        self.conduct: Conduct | None = None
        """What a hostile node does; None for an honest one."""
        self.book: list[SimNode] = []
        """Whom it may dial."""
        self.kept: list[SimNode] = []
        """Whom of these it dials again for ever, as configured peers."""
        self.links: dict[PeerId, tuple[SimLink, bool]] = {}
        """Its connections, each with True when it dialed."""
        self.dialling: dict[int, None] = {}
        """Indices of the nodes it is dialing."""
        self.refused: dict[PeerId, float] = {}
        """Peers it does not speak to, and until when."""
        self.side = 0
        """Which part of a partitioned network it is in."""
        self.uplink_free_at = 0.0
        self.cpu_free_at = 0.0
        self.wake_due: float | None = None
        """When its next wake event is scheduled."""
        self.syncing = False
        """True while a catch-up runs."""

    @property
    def alive(self) -> bool:
        """True while it runs."""
        return self.router is not None

    @property
    def hostile(self) -> bool:
        """True for an attacker."""
        return self.role is Role.HOSTILE

    def begin(
        self,
        scenario: Scenario,
        params: GossipParams,
        now: float,
        *,
        fresh: bool = False,
        record: Callable[[str], None] | None = None,
    ) -> GossipRouter:
        """Start it with a new router.

        Args:
            scenario: Of the run: its seed, its scores, its diversity.
            params: Of the router.
            now: Virtual seconds.
            fresh: It has a new identity and an empty store.
            record: Takes the lines of a recording of the router.

        """
        self.lives += 1
        if fresh and self.lives > 1:
            self.peer = peer_of(scenario.seed, self.index, self.lives)
            self.store = LaneStore()
        self.life = Life(self.index, now)
        self.links = {}
        self.dialling = {}
        self.refused = {}
        self.uplink_free_at = self.cpu_free_at = now
        self.wake_due = None
        self.syncing = False
        own_seed = f"{scenario.seed}/{self.index}/{self.lives}"
        scores, diversity = scenario.scores(), scenario.diversities()
        if record is None:
            self.router = GossipRouter(
                params,
                rng=random.Random(own_seed),
                own_id=self.peer,
                scores=scores,
                diversity=diversity,
            )
        else:
            self.router = RecordedRouter(
                params,
                seed=own_seed,
                own_id=self.peer,
                scores=scores,
                diversity=diversity,
                write=record,
            )
        return self.router

    def outbound(self) -> int:
        """Return how many of its connections it dialed."""
        return sum(dialed for _, dialed in self.links.values())


def peer_of(seed: int, index: int, life: int) -> PeerId:
    """Return a peer id of the usual form; nobody has its key."""
    return peer_id_of(hashlib.sha256(b"%d/%d/%d" % (seed, index, life)).digest())
