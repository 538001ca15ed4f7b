"""Faults of a scenario: crashes, churn, partitions, and attackers of four kinds.

A fault is a table `[[fault]]` with a `kind`; its other keys are the fields of the class. Shares are
of all nodes; whom they hit is drawn from the seed, publishers spared.

What hostile nodes do. Each runs a real router, so that it is taken for a peer, and then cheats.

All of them are mute: they take part in meshes and forward nothing. Flooders spare each other: they
are one attacker, and what it does to itself says nothing.

Source: LP-6420, Security; decisions G1, G14, G16.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from luxrelay.errors import ScenarioError
from luxrelay.sim.network import PING_TIMEOUT_S
from luxrelay.sim.settings import read_table, setting

if TYPE_CHECKING:
    from luxrelay.sim.network import Network
    from luxrelay.sim.node import SimNode
    from luxrelay.sim.run import SimRun
from typing import TYPE_CHECKING

from luxrelay.bus import MessageId, VerdictKind
from luxrelay.gossip import Validate
from luxrelay.gossip.rpc import RpcPacker, encode_graft, encode_ihave, encode_message
from luxrelay.sim.traffic import TOPIC, Forger, twisted

if TYPE_CHECKING:
    from luxrelay.sim.network import Network
    from luxrelay.sim.node import SimNode


class Conduct:
    """A mute peer: it joins meshes and forwards nothing."""

    def verdict(self, network: Network, node: SimNode, action: Validate) -> VerdictKind:
        """Return the verdict that it gives its own router."""
        del network, node, action
        return VerdictKind.IGNORE


class Censor(Conduct):
    """It sends a twisted copy of each message ahead of the true one (G1)."""

    def verdict(self, network: Network, node: SimNode, action: Validate) -> VerdictKind:
        """Send the twisted copy to every peer at once."""
        if network.judge.verdict(action.data) is VerdictKind.ACCEPT:
            frame = encode_message(TOPIC, twisted(action.data))
            for link, _ in list(node.links.values()):
                network.send_raw(link, frame)
        return VerdictKind.IGNORE


class Flooder(Conduct):
    """It sends honest peers forged messages, announcements of nothing and a GRAFT, each turn.

    Args:
        rate: Turns a second.
        until_s: When it stops, virtual seconds.
        messages: Fresh forged messages in a turn.
        ids: Ids in a turn's IHAVE that nobody has.

    """

    def __init__(self, *, rate: float, until_s: float, messages: int, ids: int) -> None:
        self._pause = 1 / rate
        self._until_s = until_s
        self._messages = messages
        self._ids = ids
        self._forger = Forger()

    def turn(self, network: Network, node: SimNode) -> None:
        """Send one turn and schedule the next."""
        now = network.clock.now
        if now >= self._until_s:
            return
        links = [link for link, _ in node.links.values() if not link.target.hostile]
        if node.alive and links:
            frames = self._frames(network, node)
            for link in links:
                for frame in frames:
                    network.send_raw(link, frame)
        network.call_at(now + self._pause, self.turn, network, node)

    def _frames(self, network: Network, node: SimNode) -> list[bytes]:
        packer = RpcPacker(network.params.rpc_max)
        for _ in range(self._messages):
            packer.add_fragment(encode_message(TOPIC, self._forger.next(node.rng)))
        network.forged += self._messages
        packer.add_control(encode_graft(TOPIC))
        if self._ids:
            ids = [MessageId(node.rng.randbytes(32)) for _ in range(self._ids)]
            for body in encode_ihave(TOPIC, ids, network.params.rpc_max):
                packer.add_control(body)
        return packer.finish()


class SimFault(ABC):
    """Something that goes wrong; each kind is a frozen dataclass of settings."""

    kind: ClassVar[str]

    @property
    def hostile_share(self) -> float:
        """Share of the nodes that it makes hostile."""
        return 0.0

    @property
    def extra_hostile(self) -> int:
        """Hostile nodes that it adds."""
        return 0

    @property
    def victims(self) -> int:
        """Honest nodes that it singles out."""
        return 0

    def enlist(self, network: Network, hostile: list[SimNode], victims: list[SimNode]) -> None:
        """Tell hostile nodes what to do, before the network starts; nothing by default."""
        del network, hostile, victims

    @abstractmethod
    def schedule(self, run: SimRun) -> None:
        """Put it on the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash(SimFault):
    """A share of the nodes ends at once and stays away."""

    kind: ClassVar[str] = "crash"
    at_s: float = setting(20.0, "When", unit="seconds")
    share: float = setting(0.3, "Share of the nodes", high=0.95)
    silent: bool = setting(
        False, "Peers notice by their pings after 45 s, as when a machine loses power"
    )

    def schedule(self, run: SimRun) -> None:
        """Draw the nodes when the time has come."""
        run.network.call_at(self.at_s, self._strike, run)

    def _strike(self, run: SimRun) -> None:
        for node in run.draw(self.share):
            run.network.crash(node, silent=self.silent)
        run.mark("crash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn(SimFault):
    """Again and again a share of the nodes ends and comes back."""

    kind: ClassVar[str] = "churn"
    from_s: float = setting(15.0, "When it begins", unit="seconds")
    until_s: float = setting(60.0, "When it ends", unit="seconds")
    every_s: float = setting(10.0, "Time in which a share is replaced", unit="seconds", low=0.1)
    share: float = setting(0.1, "Share of the nodes in that time", high=0.95)
    down_s: float = setting(0.5, "How long a node is away", unit="seconds")
    fresh: bool = setting(True, "It comes back as a new node with another id and an empty store")

    def schedule(self, run: SimRun) -> None:
        """Spread the crashes evenly."""
        count = max(1, round(self.share * len(run.network.nodes)))
        pause = self.every_s / count
        steps = int((self.until_s - self.from_s) / pause)
        for step in range(max(0, steps)):
            run.network.call_at(self.from_s + step * pause, self._replace, run)

    def _replace(self, run: SimRun) -> None:
        network = run.network
        for node in run.draw_some(1):
            network.crash(node)
            network.call_at(network.clock.now + self.down_s, self._return, network, node)

    def _return(self, network: Network, node: SimNode) -> None:
        if not node.alive:
            network.start(node, fresh=self.fresh)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(SimFault):
    """The network falls into two parts, which later are in contact again."""

    kind: ClassVar[str] = "partition"
    at_s: float = setting(20.0, "When it begins", unit="seconds")
    for_s: float = setting(60.0, "How long it lasts", unit="seconds")
    share: float = setting(0.5, "Share of the nodes on the second side", high=1)

    def schedule(self, run: SimRun) -> None:
        """Part, let the pings run out, and meet again."""
        network = run.network
        network.call_at(self.at_s, self._part, run)
        if self.for_s > PING_TIMEOUT_S:
            network.call_at(self.at_s + PING_TIMEOUT_S, self._give_up, network)
        network.call_at(self.at_s + self.for_s, self._meet, run)

    def _part(self, run: SimRun) -> None:
        nodes = run.network.nodes
        for node in run.network.rng.sample(nodes, round(self.share * len(nodes))):
            node.side = 1
        run.parted = True

    def _give_up(self, network: Network) -> None:
        for node in network.nodes:
            for link, _ in list(node.links.values()):
                if link.open and link.source.side != link.target.side:
                    network.sever(link)

    def _meet(self, run: SimRun) -> None:
        network = run.network
        network.sides_met = [node.side for node in network.nodes]
        links = (link for node in network.nodes for link, _ in node.links.values())
        if any(link.open and link.source.side != link.target.side for link in links):
            network.contact_at = network.clock.now
        for node in network.nodes:
            node.side = 0
        run.parted = False
        run.mark("contact")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood(SimFault):
    """A share of the nodes floods its peers with forged messages, IHAVEs and GRAFTs."""

    kind: ClassVar[str] = "flood"
    from_s: float = setting(10.0, "When it begins", unit="seconds")
    until_s: float = setting(1e9, "When it ends", unit="seconds")
    share: float = setting(0.2, "Share of the nodes that are hostile", high=0.95)
    rate: float = setting(10.0, "Turns a second of each of them", low=0.01, high=1e4)
    messages: int = setting(5, "Forged messages to every peer in a turn", high=1000)
    ids: int = setting(50, "Invented ids announced to every peer in a turn", high=5000)

    @property
    def hostile_share(self) -> float:
        """The share of flooders."""
        return self.share

    def enlist(self, network: Network, hostile: list[SimNode], victims: list[SimNode]) -> None:
        """Make flooders."""
        del network, victims
        for node in hostile:
            node.conduct = Flooder(
                rate=self.rate, until_s=self.until_s, messages=self.messages, ids=self.ids
            )

    def schedule(self, run: SimRun) -> None:
        """Begin, each flooder at its own moment."""
        for node in run.network.nodes:
            if isinstance(node.conduct, Flooder):
                at_s = self.from_s + run.network.rng.random() / self.rate
                run.network.call_at(at_s, node.conduct.turn, run.network, node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sybil(SimFault):
    """A share of the nodes is one attacker: it joins the meshes and forwards nothing."""

    kind: ClassVar[str] = "sybil"
    share: float = setting(0.3, "Share of the nodes that are hostile", high=0.95)
    dials: int = setting(20, "Connections each of them opens", low=1, high=1000)

    @property
    def hostile_share(self) -> float:
        """The share of Sybils."""
        return self.share

    def enlist(self, network: Network, hostile: list[SimNode], victims: list[SimNode]) -> None:
        """Make mute peers that dial more than others."""
        del network, victims
        for node in hostile:
            node.conduct = Conduct()
            node.dials = self.dials

    def schedule(self, run: SimRun) -> None:
        """Do nothing: they are there from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Censorship(SimFault):
    """A share of the nodes sends a twisted copy of each message ahead of the true one (G1)."""

    kind: ClassVar[str] = "censor"
    share: float = setting(0.2, "Share of the nodes that are hostile", high=0.95)

    @property
    def hostile_share(self) -> float:
        """The share of censors."""
        return self.share

    def enlist(self, network: Network, hostile: list[SimNode], victims: list[SimNode]) -> None:
        """Make censors."""
        del network, victims
        for node in hostile:
            node.conduct = Censor()

    def schedule(self, run: SimRun) -> None:
        """Do nothing: they are there from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eclipse(SimFault):
    """Attackers of one /16 surround a few victims: they dial them first and all the time."""

    kind: ClassVar[str] = "eclipse"
    attackers: int = setting(100, "Hostile nodes, all with addresses of 203.0.0.0/16", low=1)
    targets: int = setting(5, "Victims", low=1)
    restart_s: float = setting(
        12.0, "When the victims restart, so that the attackers are there first", unit="seconds"
    )

    @property
    def extra_hostile(self) -> int:
        """The attackers."""
        return self.attackers

    @property
    def victims(self) -> int:
        """The targets."""
        return self.targets

    def enlist(self, network: Network, hostile: list[SimNode], victims: list[SimNode]) -> None:
        """Make mute peers of one subnet that know nobody but the victims."""
        del network
        for number, node in enumerate(hostile):
            node.conduct = Conduct()
            node.address = f"203.0.{number // 250}.{number % 250 + 1}"
            node.book = list(victims)
            node.dials = len(victims)

    def schedule(self, run: SimRun) -> None:
        """Restart the victims."""
        for node in run.victims:
            run.network.call_at(self.restart_s, self._restart, run.network, node)

    def _restart(self, network: Network, node: SimNode) -> None:
        network.crash(node)
        network.start(node)


KINDS: Final[dict[str, type[SimFault]]] = {
    kind.kind: kind for kind in (Crash, Churn, Partition, Flood, Sybil, Censorship, Eclipse)
}
"""Every kind of fault by its name."""


def read_fault(table: object, where: str) -> SimFault:
    """Return the fault that a table describes.

    Raises:
        ScenarioError: the kind is unknown, or a key or value does not fit.

    """
    if not isinstance(table, Mapping):
        raise ScenarioError("expected a table", where=where)
    kind = KINDS.get(str(table.get("kind")))
    if kind is None:
        raise ScenarioError(
            "unknown kind of fault", where=f"{where}.kind", hint=f"one of {', '.join(KINDS)}"
        )
    return read_table(kind, {name: table[name] for name in table if name != "kind"}, where)
