"""Diversity of connections against eclipse: limits by network and region.

Source: LP-6420 §6; decisions G21, G22, G23.
"""

# Theory of operation
#
# Decides: whether one more peer at an address may connect, and (in `rotation`) which peers go now
#   and then so that others get their chance.
# Does not know: scores, topics, meshes. It counts the connected peers by address group, autonomous
#   system and region, and the outbound ones by group.
# Rules of admission, each a row of `Diversity.refusal`:
#   group      at most subnet_max peers of one /16 (IPv6: /32), private_subnet_max of a private one
#   asn        at most asn_max of one autonomous system, where the resolver knows it
#   outbound   while outbound peers are of fewer than outbound_distinct_min groups, the last places
#              are kept for groups that are missing
#   region     while there are fewer than regions_min regions, the last places are kept for those
#              that are missing
# Inputs and what they may cause: none causes an action; the router asks `refusal` and tells of
#   `joined` and `left`.
# Timers: none.
# Bounds: one entry a connected peer and group.
# Deviations from the specification: a peer that the operator chose (protected) is always let in,
#   and counts. Loopback counts unless exempt_loopback says that this is a development network. An
#   address that cannot be read belongs to no group.
# What else to change when you change this: `GossipRouter.refuses` is what the network room asks
#   before it dials and when somebody knocks.

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from math import inf
from typing import TypeVar

from luxrelay.errors import GossipArgumentError
from luxrelay.gossip.envelope import PeerId
from luxrelay.gossip.location import UNKNOWN, Location, PeerLocation, PlaceResolver, locate

_Key = TypeVar("_Key", int, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiversityParams:
    """How different peers have to be, and how often they change (LP-6420 §6)."""

    subnet_max: int = 4
    """Peers of one /16, for IPv6 of one /32."""
    private_subnet_max: int = 24
    """The same for a private network, loopback included: its addresses cost nothing, and all of an
    operator's relays are there."""
    asn_max: int = 8
    """Peers of one autonomous system; counts only with a resolver."""
    regions_min: int = 0
    """Regions that peers should be of; 0 turns it off, and it counts only with a resolver."""
    outbound_distinct_min: int = 4
    """Groups that outbound peers should be of."""
    outbound_max: int = 16
    """Places for outbound peers, as the network room has them; the last are kept for groups that
    are missing."""
    peers_min: int = 10
    """Peers below which a rotation drops nobody (LP-6420 §1.2)."""
    rotation_interval_s: float = 300.0
    """Seconds between rotations (LP-6420 §6.2)."""
    rotation_count: int = 2
    """New peers asked for in a rotation."""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be; the error names each."""
        may_be_zero = {"regions_min", "outbound_distinct_min", "peers_min", "rotation_count"}
        faults = [
            f"{field.name} is {getattr(self, field.name)}"
            for field in fields(self)
            if not (0 if field.name in may_be_zero else 1e-9) <= getattr(self, field.name) < inf
        ]
        if self.outbound_distinct_min > self.outbound_max:
            faults.append("outbound_distinct_min is above outbound_max")
        if faults:
            raise GossipArgumentError(", ".join(faults), where="DiversityParams")


@dataclass(frozen=True, slots=True)
class _Seat:
    """One connected peer."""

    location: Location | None
    """None for a peer that belongs to no group."""
    place: PeerLocation
    outbound: bool


class Diversity:
    """The connected peers by where they are.

    Args:
        params: What is allowed.
        peers_max: Places for peers in all.
        resolver: Knows autonomous systems and regions; without it neither counts.
        exempt_loopback: True where all peers may be on this machine.

    """

    def __init__(
        self,
        params: DiversityParams,
        *,
        peers_max: int,
        resolver: PlaceResolver | None,
        exempt_loopback: bool,
    ) -> None:
        self._params = params
        self._peers_max = peers_max
        self._resolver = resolver
        self._exempt_loopback = exempt_loopback
        self._seats: dict[PeerId, _Seat] = {}
        self._groups: Counter[str] = Counter()
        self._systems: Counter[int] = Counter()
        self._regions: Counter[str] = Counter()
        self._outbound: Counter[str] = Counter()
        self._outbound_count = 0

    def __len__(self) -> int:
        return len(self._seats)

    def refusal(self, address: str, *, outbound: bool) -> str:
        """Return why a peer at an address may not connect now, empty when it may (20-30, 20-31)."""
        location = self._locate(address)
        if location is None:
            return ""
        params, place = self._params, self._place(location)
        most = params.private_subnet_max if location.private else params.subnet_max
        if self._groups[location.group] >= most:
            return f"{most} peers of {location.group} are connected"
        if place.asn and self._systems[place.asn] >= params.asn_max:
            return f"{params.asn_max} peers of AS{place.asn} are connected"
        if outbound and location.group in self._outbound:
            missing = params.outbound_distinct_min - len(self._outbound)
            if 0 < missing >= params.outbound_max - self._outbound_count:
                return "the last outbound places are kept for other networks"
        if self._resolver is not None and (not place.region or place.region in self._regions):
            missing = params.regions_min - len(self._regions)
            if 0 < missing >= self._peers_max - len(self._seats):
                return "the last places are kept for other regions"
        return ""

    def joined(self, peer: PeerId, address: str, *, outbound: bool) -> None:
        """Count a connected peer; one that is counted already is counted anew."""
        self.left(peer)
        location = self._locate(address)
        place = self._place(location) if location is not None else UNKNOWN
        seat = self._seats[peer] = _Seat(location, place, outbound)
        self._count(seat, 1)

    def left(self, peer: PeerId) -> None:
        """Count a peer no longer."""
        seat = self._seats.pop(peer, None)
        if seat is not None:
            self._count(seat, -1)

    def _locate(self, address: str) -> Location | None:
        location = locate(address)
        if location is not None and location.loopback and self._exempt_loopback:
            return None
        return location

    def _place(self, location: Location) -> PeerLocation:
        return UNKNOWN if self._resolver is None else self._resolver.place(location.address)

    def _count(self, seat: _Seat, step: int) -> None:
        if seat.outbound:
            self._outbound_count += step
        if seat.location is None:
            return
        _add(self._groups, seat.location.group, step)
        if seat.place.asn:
            _add(self._systems, seat.place.asn, step)
        if seat.place.region:
            _add(self._regions, seat.place.region, step)
        if seat.outbound:
            _add(self._outbound, seat.location.group, step)


def _add(counter: Counter[_Key], key: _Key, step: int) -> None:
    counter[key] += step
    if not counter[key]:
        del counter[key]
