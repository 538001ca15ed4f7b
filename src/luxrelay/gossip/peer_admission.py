"""Admission of peers: limits, judgement by score, rotation, departure.

Source: LP-6420 §1.3, §5.3, §6; decisions G16, G21, G22, G23, G24.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from luxrelay.gossip.actions import Action, Disconnect, Discover
from luxrelay.gossip.diversity import Diversity, DiversityParams
from luxrelay.gossip.envelope import PeerId
from luxrelay.gossip.lazy import Lazy
from luxrelay.gossip.location import PlaceResolver, locate
from luxrelay.gossip.mesh import Mesh
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.peers import PeerState, PeerTable
from luxrelay.gossip.roles import proves_validator
from luxrelay.gossip.rotation import Rotation
from luxrelay.gossip.rpc import PROTOCOLS
from luxrelay.gossip.score import Scores
from luxrelay.gossip.stats import GossipStats

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True)
class Guards:
    """What a router is given to judge peers by."""

    diversity: DiversityParams | None
    """How different peers have to be; None turns admission by network and rotation off."""
    resolver: PlaceResolver | None
    """Knows autonomous systems and regions."""
    validators: Container[bytes]
    """Key fields of the validators."""


@dataclass(frozen=True, slots=True)
class NewPeer:
    """How a peer came."""

    protocol: str
    """The negotiated stream protocol."""
    address: str
    """Its IP address, empty when unknown."""
    outbound: bool
    """True when we dialed."""
    protected: bool
    """True for a peer that the operator chose."""


class Doorkeeper:
    """Lets peers in and shows them out; tells every machine of those who leave."""

    def __init__(
        self,
        params: GossipParams,
        rng: Random,
        *,
        own_id: PeerId,
        peers: PeerTable,
        mesh: Mesh,
        lazy: Lazy,
        scores: Scores,
        stats: GossipStats,
        actions: list[Action],
        guards: Guards,
    ) -> None:
        self._params = params
        self._own_id = own_id
        self._peers = peers
        self._mesh = mesh
        self._lazy = lazy
        self._scores = scores
        self._stats = stats
        self._actions = actions
        self._validators = guards.validators
        self._diversity: Diversity | None = None
        self._rotation: Rotation | None = None
        if guards.diversity is not None:
            self._diversity = Diversity(
                guards.diversity,
                peers_max=params.peers_max,
                resolver=guards.resolver,
                exempt_loopback=params.exempt_loopback,
            )
            self._rotation = Rotation(
                guards.diversity,
                gossip=params,
                scores=scores.params,
                rng=rng,
                peers=peers,
                mesh=mesh,
            )

    def let_in(self, peer: PeerId, arrival: NewPeer, now: float) -> PeerState | None:
        """Return the state of a peer that may be here, or ask for its disconnection."""
        state = self._peers.get(peer)
        if state is None:
            reason, refuse_s = self._refusal(peer, arrival, now)
            if reason:
                self._stats.refused += 1
                self._actions.append(Disconnect(peer=peer, reason=reason, refuse_s=refuse_s))
                return None
            ledger = self._scores.joined(peer, now)
            state = self._peers.add(
                peer, arrival.protocol, outbound=arrival.outbound, ledger=ledger
            )
            state.since = now
        state.protocol = arrival.protocol
        # Whom we once dialled stays one of our choice: its place in a mesh was given as that.
        state.outbound = state.outbound or arrival.outbound
        state.protected = arrival.protected
        state.declines = arrival.protocol == PROTOCOLS[0]
        self._locate(state, arrival)
        state.score = self._scores.score(state.ledger, now)
        return state

    def refuses(self, address: str, *, outbound: bool) -> str:
        """Return why a peer at an address would not be let in, empty when it would."""
        if self._diversity is None:
            return ""
        return self._diversity.refusal(address, outbound=outbound)

    def hear_proof(self, state: PeerState, proof: bytes, now: float) -> None:
        """Give a peer the credit of a validator when it proves to be one (G24; 20-48)."""
        if proves_validator(state.peer, proof, self._validators):
            state.ledger.validator = True
            self.judge(state, now)

    def judge(self, state: PeerState, now: float) -> None:
        """Count a peer's score anew, and have it disconnected when that is too low (G16)."""
        params = self._scores.params
        state.suspect = False
        state.score = self._scores.score(state.ledger, now)
        if state.score < params.reject_threshold and self._peers.get(state.peer) is state:
            self._stats.disconnected += 1
            self._scores.refuse(state.ledger, now)
            self._show_out(state, f"score {state.score:.0f}", params.refuse_s, now)

    def rotate(self, now: float) -> None:
        """Drop a few peers when it is time, and ask for others (LP-6420 §6.2; 20-32)."""
        if self._rotation is None or not self._rotation.due(now):
            return
        for state in self._rotation.choose():
            self._stats.rotated += 1
            self._show_out(state, f"rotation, score {state.score:.0f}", 0.0, now)
        wanted = self._rotation.wanted()
        if wanted > 0:
            self._actions.append(Discover(count=wanted))

    def see_off(self, peer: PeerId, now: float) -> None:
        """Forget a peer that left; its back-offs and its penalties stay."""
        state = self._peers.remove(peer)
        if state is not None:
            self._mesh.peer_left(peer)
            self._lazy.peer_left(peer)
            self._scores.left(state.ledger, now)
            self._stats.durations_s.observe(max(0.0, now - state.since))
            if self._diversity is not None:
                self._diversity.left(peer)

    def _show_out(self, state: PeerState, reason: str, refuse_s: float, now: float) -> None:
        self._actions.append(Disconnect(peer=state.peer, reason=reason, refuse_s=refuse_s))
        self.see_off(state.peer, now)

    def _refusal(self, peer: PeerId, arrival: NewPeer, now: float) -> tuple[str, float]:
        """Return why a peer is not let in and for how long not, or an empty reason."""
        if peer == self._own_id:
            return "this is ourselves", 0.0
        if arrival.protocol not in PROTOCOLS:
            return f"protocol {arrival.protocol[:40]!r} is not spoken here", 0.0
        refused_s = self._scores.refused_s(peer, now)
        if refused_s:
            return "its score was too low", refused_s
        if self._peers.full():
            return "too many peers", 0.0
        if arrival.protected:
            return "", 0.0
        return self.refuses(arrival.address, outbound=arrival.outbound), 0.0

    def _locate(self, state: PeerState, arrival: NewPeer) -> None:
        """Count a peer where it is (P6, LP-6420 §6.1)."""
        if self._diversity is not None:
            self._diversity.joined(state.peer, arrival.address, outbound=state.outbound)
        location = locate(arrival.address)
        if location is None or (location.loopback and self._params.exempt_loopback):
            self._scores.at(state.ledger, "")
        else:
            self._scores.at(state.ledger, location.host)
